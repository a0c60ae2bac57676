//! Body for messages between replicas.

use bytes::{Bytes, BytesMut};
use leasehold_replica::codec::{CodecError, decode_envelope, encode_envelope, proto};
use leasehold_replica::message::{Envelope, ReportedEntry};
use leasehold_wire::split_frame;

use super::decode_round_trip;
use crate::memory::{self, per_byte};

/// Maximum memory for each byte of a message, in bytes. The limit is computed from the largest
/// element that a list can have. The limit also includes the memory of the converted element in the
/// replica's core.
pub(super) const PER_BYTE: usize = per_byte::<proto::Reported>() + per_byte::<ReportedEntry>();

/// Decodes the greetings of both sides of a connection, and envelopes.
pub fn peer(input: &[u8]) {
    decode_round_trip::<proto::Hello>(input, PER_BYTE);
    decode_round_trip::<proto::Greeting>(input, PER_BYTE);
    let Ok(envelope) = memory::sharing(input, PER_BYTE, decode_envelope) else {
        return;
    };
    let Some(sent) = framed(envelope) else { return };
    let again = decode_envelope(sent.clone()).expect("what was encoded is decoded");
    assert_eq!(framed(again), Some(sent));
}

/// Returns an envelope as a frame; `None` if the frame would be too long. A frame can become too
/// long because fields that the input omitted are filled in.
pub(super) fn framed(envelope: Envelope) -> Option<Bytes> {
    let mut buffer = BytesMut::new();
    match encode_envelope(envelope, &mut buffer) {
        Ok(()) => {}
        Err(CodecError::TooLong { .. }) => return None,
        Err(error) => panic!("{error}"),
    }
    let frame = split_frame(&mut buffer).expect("an encoded envelope is a frame");
    assert!(buffer.is_empty(), "one envelope is one frame");
    frame
}

pub mod seeds {
    use leasehold_leases::{Incarnation, ReplicaId};
    use leasehold_replica::codec::proto;
    use leasehold_replica::message::Envelope;
    use prost::Message as _;

    use crate::bodies::samples;

    pub fn peer() -> Vec<Vec<u8>> {
        let envelope = |message| Envelope {
            from: ReplicaId(3),
            from_incarnation: Incarnation(7),
            to_incarnation: Incarnation(1 << 40),
            message,
        };
        let messages = samples::messages().into_iter().map(envelope);
        let mut seeds: Vec<Vec<u8>> = messages
            .map(|envelope| super::framed(envelope).expect("samples are short").into())
            .collect();
        let hello = proto::Hello {
            magic: 0x4C48_5008,
            cluster: "cluster".into(),
            members: 5,
            from: 1,
            from_name: "JP".into(),
            to: 0,
            to_name: "CA".into(),
        };
        seeds.push(hello.encode_to_vec());
        let refusal = "hello.cluster is \"other\"".into();
        seeds.push(proto::Greeting { refusal }.encode_to_vec());
        seeds
    }
}
