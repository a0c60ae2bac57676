//! Results of a run, and the ways in which a run can miss its goals.

use std::fmt;

use super::run_state::RunState;
use crate::measurement::{Account, Availability, Measurements};

/// Results of a run.
#[derive(Clone, Debug)]
pub struct BenchmarkOutcome {
    /// Measurements of the whole run.
    pub measurements: Measurements,
    /// Outcome of every operation that was due in the measured phase.
    pub account: Account,
    /// Times of the answers to each site, and the replicas that answered.
    pub availability: Availability,
    /// Whether the caller or the user stopped the run.
    pub cancelled: bool,
    /// True if an insertion of the load phase failed and thereby ended the phase.
    pub load_failed: bool,
    /// Description of the first failure of an operation on one of the threads.
    pub failure: Option<String>,
}

/// Way in which a run missed a goal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shortfall {
    /// No operation was due in the measured phase.
    NothingMeasured,
    /// No operation succeeded.
    NothingSucceeded {
        /// Number of operations that were due.
        intended: u64,
    },
    /// An insertion of the load phase failed and thereby ended the phase.
    LoadFailed {
        /// Number of records that were inserted.
        inserted: u64,
    },
    /// The target rate was missed.
    TargetMissed(Account),
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shortfall::NothingMeasured => f.write_str(
                "nothing was measured: no operation was due after the warm-up (warmuptime)",
            ),
            Shortfall::NothingSucceeded { intended } => {
                write!(f, "none of {intended} operations succeeded")
            }
            Shortfall::LoadFailed { inserted } => write!(
                f,
                "the load stopped at an insertion that failed, after {inserted} records. \
                 core_workload_insertion_retry_limit=N tries each again, and \
                 core_workload_insertion_keep_going_on_error=true goes on without it"
            ),
            Shortfall::TargetMissed(account) => write!(
                f,
                "TARGET MISSED: {:.1} operations a second of {}. Of {} that were due, {} were \
                 never sent, {} were abandoned without an answer, {} were sent after the last \
                 was due",
                account.throughput(),
                account.target.unwrap_or_default(),
                account.intended(),
                account.never_sent,
                account.abandoned,
                account.late
            ),
        }
    }
}

impl BenchmarkOutcome {
    /// Returns the outcome of a run that has ended.
    pub(super) fn new(shared: &RunState, cancelled: bool) -> Self {
        let book = shared.whole();
        let length = shared.end().map_or_else(Default::default, |end| {
            end.saturating_duration_since(shared.measured_from)
        });
        BenchmarkOutcome {
            measurements: book.measurements,
            account: Account {
                runtime: length,
                ..book.account
            },
            availability: shared.availability().clone(),
            cancelled,
            load_failed: book.load_failed,
            failure: book.failure,
        }
    }

    /// Returns the worst shortfall of the run; `None` if the run reached its goals.
    pub fn shortfall(&self) -> Option<Shortfall> {
        let account = &self.account;
        let (intended, inserted) = (account.intended(), account.succeeded);
        if intended == 0 {
            Some(Shortfall::NothingMeasured)
        } else if account.succeeded == 0 {
            Some(Shortfall::NothingSucceeded { intended })
        } else if self.load_failed {
            Some(Shortfall::LoadFailed { inserted })
        } else if account.missed_target().is_some() {
            Some(Shortfall::TargetMissed(*account))
        } else {
            None
        }
    }
}
