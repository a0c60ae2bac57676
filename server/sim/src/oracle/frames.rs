//! Frames (oracle 17): in runs with encoded messages, each message that is sent fits into a frame,
//! and the receiver's decoder accepts it. A node would drop any other message. A peer that needs
//! the message would then wait until a timer expires, or for ever.

use bytes::BytesMut;
use leasehold_wire::split_frame;

use super::{Violation, ensure};
use leasehold_replica::codec::{decode_envelope, encode_envelope};
use leasehold_replica::message::Envelope;

pub(super) const NAME: &str = "frames";

/// Oracle that judges frames: each message must fit into a frame, and the receiver must be able to
/// decode it.
#[derive(Debug, Default)]
pub struct FrameOracle {
    /// Number of messages encoded and decoded.
    pub checks: u64,
}

impl FrameOracle {
    /// Encodes a message, and returns the message that the addressee decodes.
    ///
    /// # Errors
    /// The message does not fit into a frame, or the decoder refuses it.
    pub fn pass(&mut self, envelope: Envelope) -> Result<Envelope, Violation> {
        self.checks += 1;
        let mut buffer = BytesMut::new();
        let kind = envelope.message.name();
        let encoded = encode_envelope(envelope, &mut buffer);
        ensure!(NAME, encoded.is_ok(), "{kind} cannot be sent: {encoded:?}");
        let frame = split_frame(&mut buffer);
        let Ok(Some(frame)) = frame else {
            return Err(super::violated(NAME, format_args!("{kind}: {frame:?}")));
        };
        let decoded = decode_envelope(frame);
        decoded.map_err(|error| super::violated(NAME, format_args!("{kind} is refused: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::{Ballot, Incarnation, ReplicaId};
    use leasehold_wire::{FRAME_BYTES_MAX, Outcome, Path, Version};

    use super::*;
    use leasehold_replica::codec::NUMBER_MAX;
    use leasehold_replica::message::{Message, ReadAnswer, RequestId};

    fn pass(message: Message) -> Result<Envelope, Violation> {
        FrameOracle::default().pass(Envelope {
            from: ReplicaId(1),
            from_incarnation: Incarnation(1),
            to_incarnation: Incarnation(1),
            message,
        })
    }

    #[test]
    fn what_is_too_long_or_is_refused_is_noticed() {
        let answers = |bytes: usize| {
            let outcome = Outcome::value(vec![7; bytes], Version::default());
            let request = RequestId(1);
            let outcome = Some((outcome, Path::Local));
            Message::ReadAnswers(vec![ReadAnswer { request, outcome }])
        };
        assert!(pass(answers(FRAME_BYTES_MAX - 100)).is_ok());
        let long = pass(answers(FRAME_BYTES_MAX)).expect_err("no frame holds it");
        assert!(long.what.contains("ReadAnswers") && long.what.contains("TooLong"));
        let rejected = |round| Message::Rejected {
            promised: Ballot {
                round,
                replica: ReplicaId(1),
            },
        };
        assert!(pass(rejected(NUMBER_MAX)).is_ok());
        let refused = pass(rejected(NUMBER_MAX + 1)).expect_err("a decoder refuses it");
        assert!(refused.what.contains("rejected.promised"), "{refused:?}");
    }
}
