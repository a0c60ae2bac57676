//! Random number generators. The numbers are, for example, the record of an operation, the length
//! of a field, or the length of a scan.
//!
//! The generators are pure: they take all randomness from a [`Random`] that the caller seeded, so
//! that equal seeds give equal workloads on every machine. The generators with YCSB's names use the
//! formulas of YCSB's code. [`ZipfExact`] and [`Permutation`] are additions, which the paper's
//! experiments need.

mod counter;
mod discrete;
mod fnv;
mod histogram;
mod latest;
mod permutation;
mod random;
mod simple;
mod zipf_exact;
mod zipfian;

pub use counter::{AcknowledgedCounter, Counter, Sequential, TooManyPending};
pub use discrete::Discrete;
pub use fnv::fnv_hash;
pub use histogram::{HistogramError, LengthHistogram};
pub use latest::Latest;
pub use permutation::Permutation;
pub use random::Random;
pub use simple::{Exponential, Hotspot, Uniform};
pub use zipf_exact::ZipfExact;
pub use zipfian::{
    SCRAMBLED_ITEMS, SCRAMBLED_ZETAN, ScrambledZipfian, ZIPFIAN_CONSTANT, Zipfian, zeta,
};
