//! Body for packets between members of a group with exclusive leases.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leasehold_leases::Time;
use leasehold_leases::time::ClockBound;
use leasehold_lock::codec::{WireMessage, decode_packet, encode_packet};
use leasehold_lock_core::message::{Body, Resource};
use leasehold_lock_core::{ClockModel, GroupSettings, MemberId, MemberInput, MemberMachine, rules};
use leasehold_wire::split_frame;

use crate::memory::{self, per_byte};

const FROM: MemberId = MemberId(1);
const TO: MemberId = MemberId(0);
const BOUNDED: ClockModel = ClockModel::Bounded(ClockBound { rho_ppm: 1000 });
const SYNCHRONISED: ClockModel = ClockModel::Synchronised {
    epsilon: Duration::from_millis(100),
};
const RESOURCE: &[u8] = b"resource";
/// Reading of the clock at which a member takes a packet.
const NOW: Time = Time(1_800_000_000_000_000_000);
/// Maximum memory for each byte of a packet, in bytes: a message, its converted form, and a copy of
/// the name of the resource.
const PER_BYTE: usize = per_byte::<WireMessage>() + per_byte::<(Resource, Body)>() + 64;

/// Decodes a packet, and gives it to a member that owns a resource or tries to.
pub fn lock_packet(input: &[u8]) {
    let decode = |bytes| decode_packet(bytes, FROM, TO);
    let Ok(packet) = memory::sharing(input, PER_BYTE, decode) else {
        return;
    };
    let mut buffer = BytesMut::new();
    encode_packet(packet.clone(), &mut buffer).expect("names are parts of a frame");
    let mut messages = Vec::new();
    while let Some(frame) = split_frame(&mut buffer).expect("what was encoded is a frame") {
        let part = decode_packet(frame, FROM, TO).expect("what was encoded is decoded");
        assert_eq!(part.sent, packet.sent);
        messages.extend(part.messages);
    }
    assert_eq!(messages, packet.messages);

    for clocks in [BOUNDED, SYNCHRONISED] {
        let mut member = member(clocks);
        member.step(NOW, MemberInput::Packet(packet.clone()));
        member.take_packets(NOW);
        member.step(NOW + Duration::from_secs(60), MemberInput::Tick);
    }
}

/// Returns a member that has sent a READ for a resource.
fn member(clocks: ClockModel) -> MemberMachine {
    let (members, term) = (3, Duration::from_secs(10));
    let settings = GroupSettings::new(members, term, clocks);
    let started = NOW - rules::restart_wait(&settings) - Duration::from_secs(1);
    let mut member = MemberMachine::new(settings, TO, 7, 7, 0, started);
    member.step(
        NOW,
        MemberInput::Acquire {
            resource: Bytes::from_static(RESOURCE),
            wait_until: Time::MAX,
        },
    );
    let resource = Bytes::from_static(RESOURCE);
    member.step(NOW, MemberInput::FindOwner { resource });
    member
}

pub mod seeds {
    use std::time::Duration;

    use bytes::BytesMut;
    use leasehold_lock::codec::encode_packet;
    use leasehold_lock_core::message::{Body, Lease, LeaseEnd, Packet, ReportedState, Resource};
    use leasehold_lock_core::{AttemptBallot, ClockModel, Proposer};
    use leasehold_wire::split_frame;

    use super::{BOUNDED, FROM, NOW, RESOURCE, SYNCHRONISED, TO, member};

    pub fn lock_packet() -> Vec<Vec<u8>> {
        let at = LeaseEnd::At(NOW);
        let left = LeaseEnd::Left(Duration::from_secs(3));
        let mut seeds = packets(SYNCHRONISED, at);
        seeds.extend(packets(BOUNDED, left));
        seeds
    }

    fn packets(clocks: ClockModel, end: LeaseEnd) -> Vec<Vec<u8>> {
        // The ballot of the READ that the member has sent.
        let sent = member(clocks).take_packets(NOW);
        let Some((_, Body::Read { ballot: own, .. })) = sent[0].messages.first() else {
            panic!("a request begins with READ");
        };
        let own = *own;
        let Some((_, Body::Query { number })) = sent[0].messages.last() else {
            panic!("the member has asked for the owner");
        };
        let number = *number;
        let report = |state| Body::Report { number, state };
        let proposer = Proposer {
            member: FROM,
            run: 9,
        };
        let ballot = AttemptBallot {
            round: own.round + 1,
            proposer,
        };
        let acquired = ballot;
        let lease = Lease { acquired, end };
        let bodies = [
            Body::Read {
                ballot,
                waits: true,
                renews: Some(ballot),
            },
            Body::ReadAck {
                ballot: own,
                accepted: AttemptBallot::ZERO,
                lease: None,
            },
            Body::Taken { ballot: own, lease },
            Body::Write { ballot, lease },
            Body::WriteAck { ballot: own },
            Body::Nack {
                ballot: own,
                promised: ballot,
            },
            Body::Release {
                acquired,
                successor: Some(TO),
            },
            Body::ReleaseAck { acquired: own },
            Body::Query { number: 7 },
            report(ReportedState::Free),
            report(ReportedState::Mine(lease)),
        ];
        let name = Resource::from_static(RESOURCE);
        let mut packets = vec![bodies.map(|body| (name.clone(), body)).to_vec()];
        packets.extend(bodies.map(|body| vec![(name.clone(), body)]));
        let encoded = packets.into_iter().map(|messages| {
            let (from, to, sent) = (FROM, TO, NOW);
            let packet = Packet {
                from,
                to,
                sent,
                messages,
            };
            let mut buffer = BytesMut::new();
            encode_packet(packet, &mut buffer).expect("names are short");
            let frame = split_frame(&mut buffer).expect("an encoded packet is a frame");
            frame.expect("the frame is whole").to_vec()
        });
        encoded.collect()
    }
}
