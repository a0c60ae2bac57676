//! Answers to reads of other replicas' clients. They are collected until the end of the group of
//! steps.

use std::collections::BTreeMap;

use leasehold_leases::{Key, ReplicaId};
use leasehold_wire::{Outcome, Path};

use crate::handles::ReadFrom;
use crate::message::{ReadAnswer, RequestId};
use crate::parts::read_answers;
use crate::step::Step;

/// Request to read one key, and the client or peer that receives the answer.
#[derive(Clone, Debug, Hash)]
pub struct ReadRequest {
    pub from: ReadFrom,
    pub key: Key,
}

/// Collected answers for each peer. They are sent at the end of the group of steps.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct ReadAnswers(BTreeMap<ReplicaId, Vec<ReadAnswer>>);

impl ReadAnswers {
    /// Answers a read that needs no permit.
    pub(super) fn answer(
        &mut self,
        step: &mut Step<'_>,
        from: ReadFrom,
        path: Path,
        outcome: Outcome,
    ) {
        match from {
            ReadFrom::Client(to) => step.reply(to, path, outcome),
            ReadFrom::Peer(to, request) => self.push(to, request, Some((outcome, path))),
        }
    }

    /// Tells a peer that this replica does not answer the read that the peer forwarded.
    pub(super) fn refuse(&mut self, to: ReplicaId, request: RequestId) {
        self.push(to, request, None);
    }

    fn push(&mut self, to: ReplicaId, request: RequestId, outcome: Option<(Outcome, Path)>) {
        let answers = self.0.entry(to).or_default();
        answers.push(ReadAnswer { request, outcome });
    }

    pub(super) fn flush(&mut self, step: &mut Step<'_>) {
        while let Some((to, answers)) = self.0.pop_first() {
            for message in read_answers(answers) {
                step.send(to, message);
            }
        }
    }
}
