//! Counts of the outcomes of all operations that a run was to carry out. No operation is omitted.

use std::time::Duration;

/// Fraction of the due operations that may be late, never sent or abandoned. One further such
/// operation is allowed for each thread. If there are more, the run has missed its target rate.
const LATE_SHARE: f64 = 0.01;

/// Counts of the operations that were due in the measured phase of a run. In a closed loop an
/// operation is due when it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Duration of the measured phase by the clock. Times without answers are included.
    pub runtime: Duration,
    /// Requested operations per second; `None` means as many as possible.
    pub target: Option<f64>,
    /// Maximum number of operations in flight.
    pub threads: u64,
    /// Number of operations that succeeded.
    pub succeeded: u64,
    /// Number of operations that failed: refused, lost, or timed out.
    pub failed: u64,
    /// Number of operations that were sent and had no answer at the end.
    pub abandoned: u64,
    /// Number of operations that were due and never sent.
    pub never_sent: u64,
    /// Number of operations that were sent late: after the time at which the last operation of the
    /// run was due.
    pub late: u64,
    /// Number of insertions for which the run first checked whether the record exists.
    pub probed: u64,
    /// Number of the checked insertions that found a record and overwrote it.
    pub overwrote: u64,
}

impl Account {
    /// Adds the counts of another part of the same run.
    pub fn add(&mut self, other: &Account) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.abandoned += other.abandoned;
        self.never_sent += other.never_sent;
        self.late += other.late;
        self.probed += other.probed;
        self.overwrote += other.overwrote;
    }

    /// Returns the number of operations that were due.
    pub fn intended(&self) -> u64 {
        self.ended() + self.abandoned + self.never_sent
    }

    /// Returns the number of operations that ended, successfully or not.
    pub fn ended(&self) -> u64 {
        self.succeeded + self.failed
    }

    /// Returns the number of operations per second that ended.
    pub fn throughput(&self) -> f64 {
        match self.runtime.as_secs_f64() {
            seconds if seconds > 0.0 => self.ended() as f64 / seconds,
            _ => 0.0,
        }
    }

    /// Returns the number of operations that the run did not complete at the target rate: those
    /// that were late, never sent, or abandoned.
    pub fn behind_target(&self) -> u64 {
        self.late + self.never_sent + self.abandoned
    }

    /// Returns the target rate if the run missed it. The run missed the rate if too many operations
    /// were late, never sent or abandoned. The allowed number of such operations is one for each
    /// thread, plus one in a hundred of the due operations. If a run caught up after an outage, it
    /// has not missed the target. Such an outage is visible in the latencies from the intended
    /// starts.
    pub fn missed_target(&self) -> Option<f64> {
        let allowed = self.threads as f64 + self.intended() as f64 * LATE_SHARE;
        self.target
            .filter(|_| self.behind_target() as f64 > allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(late: u64, abandoned: u64, never_sent: u64) -> Account {
        Account {
            runtime: Duration::from_secs(10),
            target: Some(500.0),
            threads: 10,
            succeeded: 5_000 - abandoned - never_sent,
            abandoned,
            never_sent,
            late,
            ..Account::default()
        }
    }

    #[test]
    fn a_target_is_missed_by_what_is_behind_at_the_end() {
        assert_eq!(account(0, 0, 0).missed_target(), None);
        assert_eq!(account(0, 10, 50).missed_target(), None);
        assert_eq!(account(0, 10, 51).missed_target(), Some(500.0));
        assert_eq!(account(61, 0, 0).missed_target(), Some(500.0));
        let closed = Account {
            target: None,
            ..account(0, 10, 51)
        };
        assert_eq!(closed.missed_target(), None);
    }

    #[test]
    fn the_parts_are_the_whole() {
        let account = Account {
            failed: 7,
            ..account(3, 4, 5)
        };
        assert_eq!((account.intended(), account.ended()), (5_007, 4_998));
        assert_eq!(account.throughput(), 499.8);
        assert_eq!(Account::default().throughput(), 0.0);
    }
}
