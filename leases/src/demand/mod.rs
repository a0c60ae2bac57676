//! Reads and writes by key and origin, in bounded memory, and the forecast that follows from
//! them.
//!
//! Every replica counts its own clients' operations ([`Tally`]) and reports them to the leader,
//! which keeps them by key and origin ([`Demand`]). Counts fade with a half-life; those of an
//! origin whose clients turn to other keys are dropped at once (`shift.rs`).
//!
//! A count is not yet a forecast. A key that a site has asked once will hardly be asked as
//! often as all others of its kind together, and a key that it has not asked yet may be. So the
//! leader observes how often keys of each count are asked next, and reads the forecast off that
//! curve ([`Estimator`]). This is empirical Bayes estimation, as by Good and Turing, with real
//! observations in the place of their smoothing.

mod estimate;
mod memory_budget;
mod shift;
mod table;
mod tally;

pub use self::estimate::{Estimator, Rates, as_counted};
pub use self::table::{Census, Count, Demand, Row};
pub use self::tally::Tally;

use crate::types::Key;

/// Operations on one key by one origin since its last report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delta {
    /// The key.
    pub key: Key,
    /// Reads by clients of this origin.
    pub reads: u32,
    /// Writes by clients of this origin.
    pub writes: u32,
}

/// Counts that one origin reports of its clients' operations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TallyReport {
    /// By key.
    pub deltas: Vec<Delta>,
    /// Reads of keys that were too rare to be remembered, together.
    pub rare_reads: u32,
    /// Writes of such keys.
    pub rare_writes: u32,
}

impl TallyReport {
    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.rare_reads == 0 && self.rare_writes == 0
    }

    /// Size of the report in a message, in bytes.
    pub fn bytes(&self) -> usize {
        self.deltas.iter().map(|delta| bytes_of(&delta.key)).sum()
    }
}

/// Size of a key in a report, in bytes: the key itself, its counts, and their framing.
fn bytes_of(key: &[u8]) -> usize {
    key.len() + 12
}
