//! Answers to reads that peers forwarded. The answers of one batch of inputs are sent together,
//! after the clock was read again.

use leasehold_leases::ReplicaId;
use leasehold_wire::{Outcome, Path};

use crate::message::{Message, ReadAnswer, RequestId};
use crate::parts;

/// Answers that are not sent yet, for each peer.
#[derive(Debug, Default)]
pub struct FencedAnswers {
    of_peers: Vec<(ReplicaId, Vec<ReadAnswer>)>,
}

impl FencedAnswers {
    /// Adds the answer to a peer's `request`.
    pub fn push(&mut self, peer: ReplicaId, request: RequestId, outcome: Outcome, path: Path) {
        let outcome = Some((outcome, path));
        let answer = ReadAnswer { request, outcome };
        match self.of_peers.iter_mut().find(|(to, _)| *to == peer) {
            Some((_, of_peer)) => of_peer.push(answer),
            None => self.of_peers.push((peer, vec![answer])),
        }
    }

    /// Removes the answers, and returns them as messages to the peers. Each message fits into a
    /// frame.
    pub fn take(&mut self) -> impl Iterator<Item = (ReplicaId, Message)> + use<> {
        let of_peers = std::mem::take(&mut self.of_peers).into_iter();
        of_peers.flat_map(|(peer, answers)| {
            parts::read_answers(answers).map(move |message| (peer, message))
        })
    }
}
