//! Messages on the connections between members, as bytes.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leasehold_leases::Time;
use leasehold_lock_core::message::{Body, Lease, LeaseEnd, Packet, ReportedState, Resource};
use leasehold_lock_core::{AttemptBallot, MemberId, Proposer};
use leasehold_wire::{FrameError, encode_frame};
use prost::Message as _;

/// Magic number of the protocol between members: "LHL" and the version of the protocol.
pub(crate) const MAGIC: u32 = 0x4C48_4C01;
/// Maximum length of a hello or a greeting, in bytes.
pub(crate) const HELLO_BYTES_MAX: usize = 16 << 10;
/// Size of a frame, in bytes, above which the rest of a packet goes into another frame.
const FRAME_BYTES: usize = 256 << 10;
/// Maximum size of a frame, in bytes. A message with the longest name is far below 1 KiB.
pub(crate) const FRAME_BYTES_MAX: usize = FRAME_BYTES + (4 << 10);

/// First frame of a connection, by the member that dialled it.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Hello {
    #[prost(fixed32, tag = "1")]
    pub(crate) magic: u32,
    /// Name of the sender.
    #[prost(string, tag = "2")]
    pub(crate) from: String,
    /// Name of the receiver.
    #[prost(string, tag = "3")]
    pub(crate) to: String,
    /// Settings in which the members of a group must agree, a line each.
    #[prost(string, tag = "4")]
    pub(crate) agreement: String,
}

/// Answer to a hello.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Greeting {
    /// Reason why the connection is refused; empty if it is not.
    #[prost(string, tag = "1")]
    pub(crate) refusal: String,
}

/// A packet, or a part of one.
#[derive(Clone, PartialEq, prost::Message)]
struct WirePacket {
    #[prost(fixed64, tag = "1")]
    sent_ns: u64,
    #[prost(message, repeated, tag = "2")]
    messages: Vec<WireMessage>,
}

/// Message about one resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WireMessage {
    #[prost(bytes = "bytes", tag = "1")]
    resource: Bytes,
    #[prost(oneof = "WireBody", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11")]
    body: Option<WireBody>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum WireBody {
    #[prost(message, tag = "2")]
    Read(WireRead),
    #[prost(message, tag = "3")]
    ReadAck(WireReadAck),
    #[prost(message, tag = "4")]
    Taken(WireWrite),
    #[prost(message, tag = "5")]
    Write(WireWrite),
    #[prost(message, tag = "6")]
    WriteAck(WireBallot),
    #[prost(message, tag = "7")]
    Nack(WireNack),
    #[prost(message, tag = "8")]
    Release(WireRelease),
    #[prost(message, tag = "9")]
    ReleaseAck(WireBallot),
    #[prost(message, tag = "10")]
    Query(WireQuery),
    #[prost(message, tag = "11")]
    Report(WireReport),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireBallot {
    #[prost(uint64, tag = "1")]
    round: u64,
    #[prost(uint32, tag = "2")]
    member: u32,
    #[prost(fixed64, tag = "3")]
    run: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireLease {
    #[prost(message, optional, tag = "1")]
    acquired: Option<WireBallot>,
    #[prost(oneof = "WireEnd", tags = "2, 3")]
    end: Option<WireEnd>,
}

/// End of a lease, in ns.
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
enum WireEnd {
    #[prost(fixed64, tag = "2")]
    At(u64),
    #[prost(uint64, tag = "3")]
    Left(u64),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireRead {
    #[prost(message, optional, tag = "1")]
    ballot: Option<WireBallot>,
    #[prost(bool, tag = "2")]
    waits: bool,
    #[prost(message, optional, tag = "3")]
    renews: Option<WireBallot>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireReadAck {
    #[prost(message, optional, tag = "1")]
    ballot: Option<WireBallot>,
    #[prost(message, optional, tag = "2")]
    accepted: Option<WireBallot>,
    #[prost(message, optional, tag = "3")]
    lease: Option<WireLease>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireWrite {
    #[prost(message, optional, tag = "1")]
    ballot: Option<WireBallot>,
    #[prost(message, optional, tag = "2")]
    lease: Option<WireLease>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireNack {
    #[prost(message, optional, tag = "1")]
    ballot: Option<WireBallot>,
    #[prost(message, optional, tag = "2")]
    promised: Option<WireBallot>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireRelease {
    #[prost(message, optional, tag = "1")]
    acquired: Option<WireBallot>,
    #[prost(uint32, optional, tag = "2")]
    successor: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireQuery {
    #[prost(fixed64, tag = "1")]
    number: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct WireReport {
    #[prost(fixed64, tag = "1")]
    number: u64,
    /// The sender's own lease.
    #[prost(message, optional, tag = "2")]
    mine: Option<WireLease>,
    /// Whether the sender holds the lease of another member as an acceptor.
    #[prost(bool, tag = "3")]
    is_held: bool,
}

/// Error in a packet of another member.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The bytes are no packet.
    #[error("malformed packet: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A field of a message is missing.
    #[error("a message without `{0}`")]
    Missing(&'static str),
    /// The number of a member is too large.
    #[error("member {0} is named, but a group has at most 15 members")]
    Member(u32),
}

/// Appends a packet to `buffer`, in as many frames as it needs.
///
/// # Errors
/// `TooLong` if the name of a resource is longer than a frame. Members have no such names.
pub fn encode_packet(packet: Packet, buffer: &mut BytesMut) -> Result<(), FrameError> {
    let mut part = WirePacket {
        sent_ns: packet.sent.0,
        messages: Vec::new(),
    };
    let mut bytes = 0;
    for (resource, body) in packet.messages {
        let message = WireMessage {
            resource,
            body: Some(body.into()),
        };
        bytes += message.encoded_len();
        part.messages.push(message);
        if bytes >= FRAME_BYTES {
            encode_frame(&part, buffer)?;
            part.messages.clear();
            bytes = 0;
        }
    }
    if part.messages.is_empty() {
        return Ok(());
    }
    encode_frame(&part, buffer)
}

/// Decodes a packet, or a part of one, that the member `from` has sent to `to`.
///
/// # Errors
/// Any [`PacketError`].
pub fn decode_packet(frame: Bytes, from: MemberId, to: MemberId) -> Result<Packet, PacketError> {
    let WirePacket { sent_ns, messages } = WirePacket::decode(frame)?;
    let message = |message: WireMessage| {
        let body = message.body.ok_or(PacketError::Missing("body"))?;
        // The name must not keep the whole frame in memory.
        let resource = Resource::copy_from_slice(&message.resource);
        Ok((resource, body.try_into()?))
    };
    let messages: Result<_, PacketError> = messages.into_iter().map(message).collect();
    Ok(Packet {
        from,
        to,
        sent: Time(sent_ns),
        messages: messages?,
    })
}

impl From<AttemptBallot> for WireBallot {
    fn from(ballot: AttemptBallot) -> WireBallot {
        WireBallot {
            round: ballot.round,
            member: ballot.proposer.member.0.into(),
            run: ballot.proposer.run,
        }
    }
}

impl From<Lease> for WireLease {
    fn from(lease: Lease) -> WireLease {
        WireLease {
            acquired: Some(lease.acquired.into()),
            end: Some(match lease.end {
                LeaseEnd::At(until) => WireEnd::At(until.0),
                // A term has at most a day.
                LeaseEnd::Left(left) => WireEnd::Left(left.as_nanos() as u64),
            }),
        }
    }
}

impl From<Body> for WireBody {
    fn from(body: Body) -> WireBody {
        match body {
            Body::Read {
                ballot,
                waits,
                renews,
            } => WireBody::Read(WireRead {
                ballot: Some(ballot.into()),
                waits,
                renews: renews.map(WireBallot::from),
            }),
            Body::ReadAck {
                ballot,
                accepted,
                lease,
            } => WireBody::ReadAck(WireReadAck {
                ballot: Some(ballot.into()),
                accepted: Some(accepted.into()),
                lease: lease.map(WireLease::from),
            }),
            Body::Taken { ballot, lease } => WireBody::Taken(WireWrite {
                ballot: Some(ballot.into()),
                lease: Some(lease.into()),
            }),
            Body::Write { ballot, lease } => WireBody::Write(WireWrite {
                ballot: Some(ballot.into()),
                lease: Some(lease.into()),
            }),
            Body::WriteAck { ballot } => WireBody::WriteAck(ballot.into()),
            Body::Nack { ballot, promised } => WireBody::Nack(WireNack {
                ballot: Some(ballot.into()),
                promised: Some(promised.into()),
            }),
            Body::Release {
                acquired,
                successor,
            } => WireBody::Release(WireRelease {
                acquired: Some(acquired.into()),
                successor: successor.map(|it| it.0.into()),
            }),
            Body::ReleaseAck { acquired } => WireBody::ReleaseAck(acquired.into()),
            Body::Query { number } => WireBody::Query(WireQuery { number }),
            Body::Report { number, state } => WireBody::Report(WireReport {
                number,
                mine: match state {
                    ReportedState::Mine(lease) => Some(lease.into()),
                    ReportedState::Held | ReportedState::Free => None,
                },
                is_held: state == ReportedState::Held,
            }),
        }
    }
}

/// Returns a field that every message of its kind has.
fn required<T, U>(field: Option<T>, name: &'static str) -> Result<U, PacketError>
where
    U: TryFrom<T, Error = PacketError>,
{
    field.ok_or(PacketError::Missing(name))?.try_into()
}

fn member(number: u32) -> Result<MemberId, PacketError> {
    let member = u8::try_from(number).ok().filter(|it| *it < 15);
    member.map(MemberId).ok_or(PacketError::Member(number))
}

impl TryFrom<WireBallot> for AttemptBallot {
    type Error = PacketError;

    fn try_from(ballot: WireBallot) -> Result<AttemptBallot, PacketError> {
        let member = member(ballot.member)?;
        let run = ballot.run;
        Ok(AttemptBallot {
            round: ballot.round,
            proposer: Proposer { member, run },
        })
    }
}

impl TryFrom<WireLease> for Lease {
    type Error = PacketError;

    fn try_from(lease: WireLease) -> Result<Lease, PacketError> {
        Ok(Lease {
            acquired: required(lease.acquired, "acquired")?,
            end: match lease.end.ok_or(PacketError::Missing("end"))? {
                WireEnd::At(until_ns) => LeaseEnd::At(Time(until_ns)),
                WireEnd::Left(left_ns) => LeaseEnd::Left(Duration::from_nanos(left_ns)),
            },
        })
    }
}

impl TryFrom<WireBody> for Body {
    type Error = PacketError;

    fn try_from(body: WireBody) -> Result<Body, PacketError> {
        Ok(match body {
            WireBody::Read(WireRead {
                ballot,
                waits,
                renews,
            }) => Body::Read {
                ballot: required(ballot, "ballot")?,
                waits,
                renews: renews.map(AttemptBallot::try_from).transpose()?,
            },
            WireBody::ReadAck(WireReadAck {
                ballot,
                accepted,
                lease,
            }) => Body::ReadAck {
                ballot: required(ballot, "ballot")?,
                accepted: required(accepted, "accepted")?,
                lease: lease.map(Lease::try_from).transpose()?,
            },
            WireBody::Taken(WireWrite { ballot, lease }) => Body::Taken {
                ballot: required(ballot, "ballot")?,
                lease: required(lease, "lease")?,
            },
            WireBody::Write(WireWrite { ballot, lease }) => Body::Write {
                ballot: required(ballot, "ballot")?,
                lease: required(lease, "lease")?,
            },
            WireBody::WriteAck(ballot) => Body::WriteAck {
                ballot: ballot.try_into()?,
            },
            WireBody::Nack(WireNack { ballot, promised }) => Body::Nack {
                ballot: required(ballot, "ballot")?,
                promised: required(promised, "promised")?,
            },
            WireBody::Release(WireRelease {
                acquired,
                successor,
            }) => Body::Release {
                acquired: required(acquired, "acquired")?,
                successor: successor.map(member).transpose()?,
            },
            WireBody::ReleaseAck(acquired) => Body::ReleaseAck {
                acquired: acquired.try_into()?,
            },
            WireBody::Query(WireQuery { number }) => Body::Query { number },
            WireBody::Report(WireReport {
                number,
                mine,
                is_held,
            }) => Body::Report {
                number,
                state: match mine {
                    Some(lease) => ReportedState::Mine(lease.try_into()?),
                    None if is_held => ReportedState::Held,
                    None => ReportedState::Free,
                },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use leasehold_wire::split_frame;

    use super::*;

    const FROM: MemberId = MemberId(1);
    const TO: MemberId = MemberId(2);

    fn ballot(round: u64) -> AttemptBallot {
        let (member, run) = (FROM, u64::MAX - round);
        let proposer = Proposer { member, run };
        AttemptBallot { round, proposer }
    }

    fn bodies() -> [Body; 15] {
        let (ballot, other) = (ballot(7), ballot(1 << 40));
        let acquired = other;
        let end = LeaseEnd::At(Time(9));
        let lease = Lease { acquired, end };
        let end = LeaseEnd::Left(Duration::from_millis(1));
        let timed = Lease { acquired, end };
        let report = |state| Body::Report { number: 9, state };
        [
            Body::Read {
                ballot,
                waits: true,
                renews: None,
            },
            Body::Read {
                ballot,
                waits: false,
                renews: Some(other),
            },
            Body::ReadAck {
                ballot,
                accepted: AttemptBallot::ZERO,
                lease: None,
            },
            Body::ReadAck {
                ballot,
                accepted: other,
                lease: Some(lease),
            },
            Body::Taken {
                ballot,
                lease: timed,
            },
            Body::Write { ballot, lease },
            Body::WriteAck { ballot },
            Body::Nack {
                ballot,
                promised: other,
            },
            Body::Release {
                acquired,
                successor: None,
            },
            Body::Release {
                acquired,
                successor: Some(MemberId(14)),
            },
            Body::ReleaseAck { acquired },
            Body::Query { number: 1 << 50 },
            report(ReportedState::Free),
            report(ReportedState::Held),
            report(ReportedState::Mine(lease)),
        ]
    }

    fn packet(messages: Vec<(Resource, Body)>) -> Packet {
        let (from, to, sent) = (FROM, TO, Time(5));
        Packet {
            from,
            to,
            sent,
            messages,
        }
    }

    #[test]
    fn every_message_comes_back() {
        let name = Resource::from_static(b"\0resource");
        let sent = packet(bodies().map(|body| (name.clone(), body)).to_vec());
        let mut buffer = BytesMut::new();
        encode_packet(sent.clone(), &mut buffer).unwrap();
        let frame = split_frame(&mut buffer).unwrap().unwrap();
        assert_eq!(decode_packet(frame, FROM, TO).unwrap(), sent);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_long_packet_is_sent_in_parts() {
        let message = |number: u64| {
            let name = Resource::from(format!("{number:0256}"));
            (
                name,
                Body::WriteAck {
                    ballot: ballot(number),
                },
            )
        };
        let sent = packet((0..5_000).map(message).collect());
        let mut buffer = BytesMut::new();
        encode_packet(sent.clone(), &mut buffer).unwrap();
        let (mut messages, mut frames) = (Vec::new(), 0);
        while let Some(frame) = split_frame(&mut buffer).unwrap() {
            assert!(frame.len() <= FRAME_BYTES_MAX);
            let part = decode_packet(frame, FROM, TO).unwrap();
            assert_eq!(part.sent, sent.sent);
            messages.extend(part.messages);
            frames += 1;
        }
        assert!(frames > 3);
        assert_eq!(messages, sent.messages);
    }

    #[test]
    fn malformed_packets_are_refused() {
        let decode = |packet: WirePacket| {
            let frame = packet.encode_to_vec().into();
            decode_packet(frame, FROM, TO).unwrap_err().to_string()
        };
        let with = |body| WirePacket {
            sent_ns: 1,
            messages: vec![WireMessage {
                resource: Bytes::from_static(b"r"),
                body,
            }],
        };
        assert_eq!(decode(with(None)), "a message without `body`");
        let (ballot, lease) = (None, None);
        let body = WireBody::Write(WireWrite { ballot, lease });
        assert_eq!(decode(with(Some(body))), "a message without `ballot`");
        let far = WireBallot {
            member: 15,
            ..ballot_of(3)
        };
        let told = decode(with(Some(WireBody::WriteAck(far))));
        assert!(told.contains("member 15"), "{told}");
        let told = decode(with(Some(WireBody::Release(WireRelease {
            acquired: Some(ballot_of(3)),
            successor: Some(16),
        }))));
        assert!(told.contains("member 16"), "{told}");
        assert!(decode_packet(Bytes::from_static(b"\xff"), FROM, TO).is_err());
    }

    fn ballot_of(round: u64) -> WireBallot {
        ballot(round).into()
    }
}
