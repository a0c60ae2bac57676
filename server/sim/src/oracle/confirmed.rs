//! Before the leader confirms a read, a majority must have answered a probe that the leader sent
//! after it received the read (protocol §3.7, hazard 26). Answers to earlier probes do not show
//! which replica leads now.
//!
//! This is judged by messages. For each read, the oracle notes the leader's newest probe when the
//! read was forwarded to the leader, or when the leader's own client sent it. This probe is
//! compared with the probes that were answered.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use leasehold_leases::{Ballot, ReplicaId, majority};
use leasehold_wire::{Command, Path};

use super::{Verdict, ensure, id};
use leasehold_replica::action::ClientHandle;
use leasehold_replica::input::ReadFrom;
use leasehold_replica::message::{Envelope, Message, ReadAnswer, RequestId};

pub(super) const NAME: &str = "confirmed";

/// Probes that a leader has sent under one ballot.
#[derive(Clone, Debug, Default)]
struct LeaderProbes {
    newest: Probe,
    /// Newest probe that each replica has answered.
    answered: Vec<u64>,
}

/// Probe of a leader: the leader's ballot, and the number of the probe under this ballot. Numbers
/// begin at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Probe {
    ballot: Ballot,
    number: u64,
}

/// A read of a client.
#[derive(Clone, Copy, Debug)]
struct PendingRead {
    /// Newest probe that the replica had sent when it received the read.
    after: Probe,
    /// Number of reads that this replica had forwarded and other replicas had confirmed when this
    /// read arrived.
    peer_confirmed: u64,
}

/// Oracle that judges confirmed reads: before a read is confirmed, a majority must have answered a
/// probe that was sent after the read arrived.
#[derive(Debug)]
pub struct ConfirmationOracle {
    leaders: Vec<LeaderProbes>,
    /// Map from each forwarded read to a probe. This is the newest probe that the receiving replica
    /// had sent when the read was forwarded.
    forwarded: HashMap<(ReplicaId, RequestId), Probe, FixedState>,
    /// Unanswered reads of clients. The key is (replica that received the read, handle of the
    /// client).
    reads: HashMap<(usize, ClientHandle), PendingRead, FixedState>,
    /// Number of reads that each replica has forwarded and other replicas have confirmed.
    peer_confirmed: Vec<u64>,
    /// Number of confirmed reads judged.
    pub checks: u64,
}

impl ConfirmationOracle {
    pub(super) fn new(n: usize) -> ConfirmationOracle {
        ConfirmationOracle {
            leaders: vec![LeaderProbes::default(); n],
            forwarded: HashMap::default(),
            reads: HashMap::default(),
            peer_confirmed: vec![0; n],
            checks: 0,
        }
    }

    /// Records a client's command that has reached `node`.
    pub(super) fn requested(&mut self, node: usize, from: ClientHandle, command: &Command) {
        if let Some(leasehold_wire::ReadOp::Get(_)) = command.as_read() {
            let read = PendingRead {
                after: self.leaders[node].newest,
                peer_confirmed: self.peer_confirmed[node],
            };
            // If the same read was sent twice, an answer does not say which of the two it is for.
            self.reads.entry((node, from)).or_insert(read);
        }
    }

    /// Forgets a read that `node` has answered under a lease.
    pub(super) fn forget_request(&mut self, node: usize, to: ReadFrom) {
        match to {
            ReadFrom::Client(to) => {
                self.reads.remove(&(node, to));
            }
            ReadFrom::Peer(to, request) => {
                self.forwarded.remove(&(to, request));
            }
        }
    }

    /// Handles the end of `node`, which will not answer its pending requests.
    pub(super) fn crashed(&mut self, node: usize) {
        self.reads.retain(|(at, _), _| *at != node);
    }

    /// Judges and records a message that `node` sends.
    pub(super) fn sent(&mut self, node: usize, to: ReplicaId, envelope: &Envelope) -> Verdict {
        match &envelope.message {
            Message::Heartbeat { ballot, probe, .. } => self.probes(node, *ballot, *probe),
            Message::HeartbeatAck { ballot, probe, .. } => {
                let probes = &mut self.leaders[to.index()];
                if probes.newest.ballot == *ballot {
                    let answered = &mut probes.answered[node];
                    *answered = (*answered).max(*probe);
                }
            }
            Message::ForwardRead { reads, .. } => {
                let after = self.leaders[to.index()].newest;
                let named = reads
                    .iter()
                    .map(|(request, _)| ((id(node), *request), after));
                self.forwarded.extend(named);
            }
            Message::ReadAnswers(answers) => {
                for answer in answers {
                    self.answers(node, to, answer)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Judges the answer of `node` to a read that `to` forwarded.
    fn answers(&mut self, node: usize, to: ReplicaId, answer: &ReadAnswer) -> Verdict {
        let after = self.forwarded.remove(&(to, answer.request));
        let confirmed = answer.outcome.as_ref();
        if confirmed.is_none_or(|(_, path)| *path != Path::ReadIndex) {
            return Ok(());
        }
        self.peer_confirmed[to.index()] += 1;
        after.map_or(Ok(()), |after| self.confirms(node, after))
    }

    fn probes(&mut self, node: usize, ballot: Ballot, number: u64) {
        let n = self.leaders.len();
        let probes = &mut self.leaders[node];
        if probes.newest.ballot != ballot {
            *probes = LeaderProbes {
                newest: Probe { ballot, number: 0 },
                answered: vec![0; n],
            };
        }
        // A heartbeat without a number is no probe.
        probes.newest.number = probes.newest.number.max(number);
    }

    /// Judges the answer of `node` to its client.
    pub(super) fn replied(&mut self, node: usize, to: ClientHandle, path: Path) -> Verdict {
        let Some(read) = self.reads.remove(&(node, to)) else {
            return Ok(());
        };
        // If another replica has confirmed reads since, it was judged when it sent its
        // confirmation.
        if path != Path::ReadIndex || self.peer_confirmed[node] > read.peer_confirmed {
            return Ok(());
        }
        self.confirms(node, read.after)
    }

    /// Judges a confirmation that `node` gives for a read. `after` is the newest probe that `node`
    /// had sent when it received the read.
    fn confirms(&mut self, node: usize, after: Probe) -> Verdict {
        self.checks += 1;
        let probes = &self.leaders[node];
        // Every probe under a later ballot was sent after the read.
        let same = probes.newest.ballot == after.ballot;
        let last = if same { after.number } else { 0 };
        let answers = probes.answered.iter().filter(|a| **a > last).count();
        ensure!(
            NAME,
            answers + 1 >= majority(self.leaders.len()),
            "{:?} confirms a read that came to it after {after:?}, but {answers} others have \
             answered a later probe",
            id(node)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::ReplicaSet;
    use leasehold_wire::Outcome;
    use leasehold_wire::command::Op;

    use super::*;
    use crate::oracle::test_world::{BALLOT, key, says};
    use leasehold_replica::message::ReadAnswer;

    const READ: ClientHandle = ClientHandle {
        connection: 1,
        request: 1,
    };

    /// Replica 0, which leads a cluster of five. A read arrives between two probes of this leader.
    struct Leader(ConfirmationOracle, Ballot);

    impl Leader {
        /// Creates a leader. Every replica has answered the first probe of this leader.
        fn new() -> Leader {
            let mut leader = Leader(ConfirmationOracle::new(5), BALLOT);
            leader.probe(1);
            for node in 1..5 {
                leader.answer(node, 1);
            }
            leader
        }

        fn say(&mut self, from: usize, to: usize, message: Message) -> Verdict {
            let (node, to, envelope) = says((from, 1), (to, 1), message);
            self.0.sent(node, to, &envelope)
        }

        fn probe(&mut self, probe: u64) {
            let heartbeat = Message::Heartbeat {
                ballot: self.1,
                probe,
                logs: Default::default(),
            };
            assert!(self.say(0, 1, heartbeat).is_ok());
        }

        fn answer(&mut self, node: usize, probe: u64) {
            let ack = Message::HeartbeatAck {
                ballot: self.1,
                probe,
                suspects: ReplicaSet::EMPTY,
            };
            assert!(self.say(node, 0, ack).is_ok());
        }

        fn forward(&mut self, from: usize, to: usize) {
            let reads = vec![(RequestId(1), key("a"))];
            let read_index = true;
            let forward = Message::ForwardRead { read_index, reads };
            assert!(self.say(from, to, forward).is_ok());
        }

        /// Lets `node` answer a read that replica `to` has forwarded.
        fn answer_read(&mut self, node: usize, to: usize, path: Path) -> Verdict {
            let answer = ReadAnswer {
                request: RequestId(1),
                outcome: Some((Outcome::missing(), path)),
            };
            self.say(node, to, Message::ReadAnswers(vec![answer]))
        }

        fn ask(&mut self) {
            self.0.requested(0, READ, &Command::from(Op::get(key("a"))));
        }

        fn reply(&mut self, path: Path) -> Verdict {
            self.0.replied(0, READ, path)
        }
    }

    /// Checks that a read may be confirmed only after a majority has answered a probe that was sent
    /// after the read arrived. `ask` sends the read, and `confirm` confirms it.
    fn judge(ask: fn(&mut Leader), confirm: fn(&mut Leader) -> Verdict) {
        let case = |happens: &dyn Fn(&mut Leader)| {
            let mut leader = Leader::new();
            ask(&mut leader);
            happens(&mut leader);
            let verdict = confirm(&mut leader);
            assert_eq!(leader.0.checks, 1);
            verdict.is_ok()
        };
        assert!(!case(&|_| {}), "answers from before it");
        assert!(!case(&|leader| leader.probe(2)), "no answers");
        let few = |leader: &mut Leader| {
            leader.probe(2);
            leader.answer(1, 2);
            leader.answer(1, 2);
            leader.answer(2, 1);
        };
        assert!(!case(&few), "two of five");
        let enough = |leader: &mut Leader| {
            few(leader);
            leader.answer(2, 2);
        };
        assert!(case(&enough));
        let later_ballot = |leader: &mut Leader| {
            leader.1.round += 1;
            leader.probe(1);
        };
        assert!(!case(&later_ballot), "answers to an earlier ballot");
        assert!(case(&|leader| {
            later_ballot(leader);
            leader.answer(1, 1);
            leader.answer(2, 1);
        }));
    }

    #[test]
    fn a_forwarded_read_is_confirmed_by_a_majority_that_was_asked_after_it() {
        judge(
            |leader| leader.forward(3, 0),
            |leader| leader.answer_read(0, 3, Path::ReadIndex),
        );
    }

    #[test]
    fn so_is_a_read_of_the_leaders_own_client() {
        judge(Leader::ask, |leader| leader.reply(Path::ReadIndex));
    }

    #[test]
    fn what_others_have_confirmed_is_judged_when_they_say_so() {
        let mut leader = Leader::new();
        assert!(leader.answer_read(3, 0, Path::ReadIndex).is_ok());
        leader.ask();
        assert!(leader.reply(Path::ReadIndex).is_err(), "told before it");
        leader.ask();
        leader.forward(0, 3);
        assert!(leader.answer_read(3, 0, Path::ReadIndex).is_err());
        assert!(leader.reply(Path::ReadIndex).is_ok());
    }

    #[test]
    fn an_answer_to_what_was_asked_twice_is_for_the_first() {
        let mut leader = Leader::new();
        leader.ask();
        leader.probe(2);
        leader.ask();
        leader.answer(1, 2);
        leader.answer(2, 2);
        assert!(leader.reply(Path::ReadIndex).is_ok());
    }

    #[test]
    fn what_was_not_confirmed_is_not_judged() {
        let mut leader = Leader::new();
        leader.ask();
        assert!(leader.reply(Path::Forwarded).is_ok());
        leader.ask();
        leader.0.forget_request(0, ReadFrom::Client(READ));
        assert!(leader.reply(Path::ReadIndex).is_ok(), "answered before");
        leader.ask();
        leader.0.crashed(0);
        assert!(leader.reply(Path::ReadIndex).is_ok(), "of an earlier run");
        leader.forward(3, 0);
        assert!(leader.answer_read(0, 3, Path::Forwarded).is_ok());
        assert_eq!(leader.0.checks, 0);
    }
}
