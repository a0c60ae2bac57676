//! Commands that a leader has taken and that are not executed yet. With this list, a leader avoids
//! queuing a command twice. It also finds the *infallible* writes. Execution cannot refuse an
//! infallible write, whatever happens to the commands in flight.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};

use leasehold_leases::ReplicaId;
use leasehold_leases::hashing::SeededState;
use leasehold_leases::mutants::{Rule, off};
use leasehold_wire::Command;

use crate::machine::{Admission, InFlightBound, Sessions};
use crate::message::{Proposal, RequestId};

/// In-flight writes of one client.
#[derive(Clone, Debug, Default, Hash)]
struct ClientWrites {
    sequences: Vec<u64>,
    /// Highest low-water mark in these writes. Execution may refuse a write with a sequence number
    /// below this mark.
    acked_below: u64,
}

impl ClientWrites {
    /// Notes that one copy of the write with this sequence number is no longer in flight.
    fn forget(&mut self, sequence: u64) {
        if off(Rule::H31Copies) {
            self.sequences.retain(|other| *other != sequence);
        } else if let Some(at) = self.sequences.iter().position(|other| *other == sequence) {
            self.sequences.swap_remove(at);
        }
    }
}

/// Commands that are queued or proposed, but not executed yet.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    writes: HashMap<u64, ClientWrites, SeededState>,
    /// Reads in flight: for each read, the replica that answers it and the name of the attempt.
    reads: BTreeSet<(ReplicaId, RequestId)>,
}

impl Hash for InFlight {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leasehold_leases::fingerprint::unordered(&self.writes, state);
        self.reads.hash(state);
    }
}

impl InFlight {
    /// Returns whether a command is queued or proposed already. A repeated read must not be queued
    /// again. The second copy would make the queue longer and delay all reads, and delayed reads
    /// are repeated even more often.
    pub fn knows(&self, proposed: &Proposal) -> bool {
        let command = &proposed.command;
        if !command.is_write() {
            return self.reads.contains(&(proposed.origin, proposed.request));
        }
        let writes = self.writes.get(&command.client);
        writes.is_some_and(|writes| writes.sequences.contains(&command.sequence))
    }

    pub fn note(&mut self, proposed: &Proposal) {
        let command = &proposed.command;
        if !command.is_write() {
            self.reads.insert((proposed.origin, proposed.request));
        } else {
            let writes = self.writes.entry(command.client).or_default();
            writes.sequences.push(command.sequence);
            writes.acked_below = writes.acked_below.max(command.acked_below);
        }
    }

    /// Notes that one copy of a command was executed. The log may contain further copies that an
    /// earlier leader proposed. If the first copy had no effect because there was no space for
    /// another session, a further copy is still executed (hazard 31).
    pub fn forget(&mut self, proposed: &Proposal) {
        let command = &proposed.command;
        if !command.is_write() {
            self.reads.remove(&(proposed.origin, proposed.request));
        } else if let Some(writes) = self.writes.get_mut(&command.client) {
            writes.forget(command.sequence);
            if writes.sequences.is_empty() {
                self.writes.remove(&command.client);
            }
        }
    }

    /// Returns true if execution cannot reject this blind write of a batch with log time
    /// `log_time_ms` (protocol §1, hazard 31). `sessions_max` is the lowest maximum number of
    /// sessions in the batches in flight. All these conditions must hold:
    ///
    /// - The session exists in the executed state, or the write is certain to open the session.
    /// - The session lasts beyond the batch, and is not ended to make room for another session.
    /// - The executed sessions do not contain the write's sequence number, or a low-water mark
    ///   above it.
    /// - No other write in flight has this sequence number, or a low-water mark above it.
    ///
    /// A session that a slot in flight opens or extends does not count, because this slot may still
    /// turn out to be empty.
    pub fn is_infallible(
        &self,
        command: &Command,
        sessions: &Sessions,
        log_time_ms: u64,
        sessions_max: u32,
    ) -> bool {
        let Some(writes) = self.writes.get(&command.client) else {
            return false;
        };
        if off(Rule::H31Sure) {
            return true;
        }
        let fresh = sessions.admit(command, log_time_ms) == Admission::Fresh;
        let bound = InFlightBound {
            clients: self.writes.len(),
            sessions_max,
        };
        let lives = sessions.is_certain(command, log_time_ms, bound);
        let same = writes.sequences.iter().filter(|s| **s == command.sequence);
        let in_order = writes.acked_below <= command.sequence;
        fresh && lives && in_order && same.count() == 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_wire::command::Op;
    use leasehold_wire::{Outcome, Version};

    use super::*;
    use crate::settings::SessionLimits;

    fn proposed(sequence: u64, acked_below: u64) -> Proposal {
        Proposal {
            origin: ReplicaId(0),
            request: RequestId(sequence),
            command: Command::session(7, sequence, acked_below, Op::put("k", "v")),
        }
    }

    /// Each case has a name, the writes in flight (sequence number, low-water mark), and the
    /// executed sequence numbers. It also has the replicated clock with the maximum number of
    /// sessions. The last field states whether the write with sequence number 2 is infallible.
    #[test]
    fn a_write_is_sure_only_if_nothing_can_make_execution_refuse_it() {
        type Case = (
            &'static str,
            &'static [(u64, u64)],
            &'static [u64],
            (u64, u32),
            bool,
        );
        let cases: [Case; 11] = [
            ("alone, in a new session", &[(2, 1)], &[], (0, 0), true),
            ("not noted", &[(1, 1)], &[], (0, 0), false),
            ("twice in the log", &[(2, 1), (2, 1)], &[], (0, 0), false),
            (
                "a later write has acknowledged it",
                &[(2, 1), (3, 3)],
                &[],
                (0, 0),
                false,
            ),
            (
                "an earlier one is open, too",
                &[(1, 1), (2, 1)],
                &[],
                (0, 0),
                true,
            ),
            ("executed already", &[(2, 1)], &[2], (0, 0), false),
            (
                "its session may expire before",
                &[(2, 1)],
                &[1],
                (10_000, 0),
                false,
            ),
            ("there is room to open", &[(2, 1)], &[], (0, 1), true),
            ("room for both", &[(2, 1)], &[1], (9_999, 2), true),
            (
                "it may have to make room",
                &[(2, 1)],
                &[1],
                (9_999, 1),
                false,
            ),
            ("it was active lately", &[(2, 1)], &[1], (2_999, 1), true),
        ];
        for (case, flying, executed, (log_time_ms, sessions_max), infallible) in cases {
            let mut in_flight = InFlight::default();
            for (sequence, acked_below) in flying {
                in_flight.note(&proposed(*sequence, *acked_below));
            }
            let limits = SessionLimits {
                ttl: Duration::from_secs(10),
                stay: Duration::from_secs(2),
                ..SessionLimits::default()
            };
            let mut sessions = Sessions::new(&limits);
            for sequence in executed {
                let outcome = Outcome::written(Version { slot: 1, index: 0 });
                sessions.record(&proposed(*sequence, 1).command, 0, outcome);
            }
            let command = &proposed(2, 1).command;
            assert_eq!(
                in_flight.is_infallible(command, &sessions, log_time_ms, sessions_max),
                infallible,
                "{case}"
            );
        }
    }

    #[test]
    fn a_write_is_in_flight_as_long_as_one_of_its_copies_is() {
        let (one, two) = (proposed(1, 1), proposed(2, 1));
        let mut in_flight = InFlight::default();
        for copy in [&one, &two, &one] {
            in_flight.note(copy);
        }
        in_flight.forget(&one);
        in_flight.forget(&two);
        assert!(in_flight.knows(&one) && !in_flight.knows(&two));
        in_flight.forget(&one);
        assert!(!in_flight.knows(&one) && in_flight.writes.is_empty());
    }
}
