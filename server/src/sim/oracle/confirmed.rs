//! A read that the leader confirms is confirmed by a majority that was asked after
//! it (protocol §3.7, hazard 26): answers to earlier probes say nothing about who
//! leads now.
//!
//! Told by messages: when a read was forwarded, when probes left, and which of
//! them were answered. Judged for reads that were forwarded to the leader.

use std::collections::{BTreeMap, VecDeque};

use client::wire::Path;
use leases::{Ballot, ReplicaId, majority};

use super::{Verdict, ensure, id};
use crate::replica::message::{Envelope, Message, RequestId};

pub(super) const NAME: &str = "confirmed";

/// Probes that are remembered: those of minutes.
const PROBES_MAX: usize = 4096;

/// What a leader has asked under one ballot.
#[derive(Clone, Debug, Default)]
struct Asked {
    ballot: Ballot,
    /// (probe, when it left, in ns), rising.
    probes: VecDeque<(u64, u64)>,
    /// Per replica, the newest that it answered.
    answered: Vec<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Confirmed {
    leaders: Vec<Asked>,
    /// When a read was forwarded, in ns.
    forwarded: BTreeMap<(ReplicaId, RequestId), u64>,
    /// Confirmed reads looked at.
    pub checks: u64,
}

impl Confirmed {
    pub(super) fn new(n: usize) -> Confirmed {
        Confirmed {
            leaders: vec![Asked::default(); n],
            forwarded: BTreeMap::new(),
            checks: 0,
        }
    }

    /// `node` sends a message at a true time.
    pub(super) fn sent(
        &mut self,
        now_ns: u64,
        node: usize,
        to: ReplicaId,
        envelope: &Envelope,
    ) -> Verdict {
        match &envelope.message {
            Message::Heartbeat { ballot, probe, .. } => self.probes(now_ns, node, *ballot, *probe),
            Message::HeartbeatAck { ballot, probe, .. } => {
                let asked = &mut self.leaders[to.index()];
                if asked.ballot == *ballot {
                    let answered = &mut asked.answered[node];
                    *answered = (*answered).max(*probe);
                }
            }
            Message::ForwardRead { reads, .. } => {
                let named = reads
                    .iter()
                    .map(|(request, _)| ((id(node), *request), now_ns));
                self.forwarded.extend(named);
            }
            Message::ReadAnswers(answers) => {
                for answer in answers {
                    let asked_ns = self.forwarded.remove(&(to, answer.request));
                    let confirmed = answer.outcome.as_ref();
                    let confirmed = confirmed.is_some_and(|(_, path)| *path == Path::ReadIndex);
                    if let Some(asked_ns) = asked_ns.filter(|_| confirmed) {
                        self.confirms(node, asked_ns)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn probes(&mut self, now_ns: u64, node: usize, ballot: Ballot, probe: u64) {
        let n = self.leaders.len();
        let asked = &mut self.leaders[node];
        if asked.ballot != ballot {
            *asked = Asked {
                ballot,
                probes: VecDeque::new(),
                answered: vec![0; n],
            };
        }
        // The same heartbeat goes to everybody; one without a number asks nothing.
        if asked.probes.back().is_none_or(|(last, _)| *last < probe) && probe > 0 {
            asked.probes.push_back((probe, now_ns));
            if asked.probes.len() > PROBES_MAX {
                asked.probes.pop_front();
            }
        }
    }

    /// `node` answers a read that was forwarded to it at `asked_ns`.
    fn confirms(&mut self, node: usize, asked_ns: u64) -> Verdict {
        self.checks += 1;
        let asked = &self.leaders[node];
        let after = asked
            .probes
            .iter()
            .find(|(_, left_ns)| *left_ns >= asked_ns);
        let answers = after.map_or(0, |(probe, _)| {
            asked.answered.iter().filter(|a| *a >= probe).count()
        });
        ensure!(
            NAME,
            answers + 1 >= majority(self.leaders.len()),
            "{:?} confirms a read that was forwarded to it at {asked_ns} ns, but {answers} others \
             have answered a probe from after that",
            id(node)
        );
        Ok(())
    }
}
