//! Reads and writes by key and origin, counted in bounded memory, and a forecast of future
//! requests.
//!
//! Every replica counts the operations of its own clients ([`Tally`]) and reports them to the
//! leader, which stores them by key and origin ([`Demand`]). Counts fade with a half-life. When the
//! clients of an origin begin to request other keys, the counts of this origin are made almost 0
//! immediately (`shift.rs`).
//!
//! Counts are not a forecast. A site that has requested a key once will probably not request it
//! again as often as the count suggests, and it may request a key that it has never requested. So
//! the leader observes how often keys with each count are requested next, and derives the forecast
//! from these observations ([`Estimator`]). This is empirical Bayes estimation, as by Good and
//! Turing, but with real observations in place of a smoothing formula.

mod estimate;
mod memory_budget;
mod shift;
mod table;
mod tally;

pub use self::estimate::{Estimator, Rates, as_counted};
pub use self::table::{Census, Count, Demand, Row};
pub use self::tally::Tally;

use crate::types::Key;

/// Operations on one key by clients of one origin since the origin's last report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Delta {
    /// The key.
    pub key: Key,
    /// Number of reads by clients of this origin.
    pub reads: u32,
    /// Number of writes by clients of this origin.
    pub writes: u32,
}

/// Report in which one origin states the operations of its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TallyReport {
    /// Changes of counts, one for each key.
    pub deltas: Vec<Delta>,
    /// Total number of reads of keys that were requested too rarely to be remembered.
    pub rare_reads: u32,
    /// Total number of writes of keys that were requested too rarely to be remembered.
    pub rare_writes: u32,
}

impl TallyReport {
    /// Whether the report is empty.
    pub fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.rare_reads == 0 && self.rare_writes == 0
    }

    /// Returns the size of the report in a message, in bytes.
    pub fn bytes(&self) -> usize {
        self.deltas.iter().map(|delta| bytes_of(&delta.key)).sum()
    }
}

/// Returns the size of a key in a report, in bytes: the key itself, its counts, and their framing.
fn bytes_of(key: &[u8]) -> usize {
    key.len() + 12
}
