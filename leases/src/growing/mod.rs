//! Maps that grow in small steps.
//!
//! A standard map doubles its capacity in one step: an insertion into a full map moves all entries.
//! With millions of keys this takes seconds, in which a replica does nothing else. All replicas
//! execute the same log, so all of them stop at the same time, and the leader is deposed. In these
//! maps no insertion moves more than one segment, which has some hundreds to two thousand entries.
//!
//! | | similar to | order of entries |
//! |---|---|---|
//! | [`GrowingMap`] | `HashMap` | unspecified; the same in every run with the same secret |
//! | [`GrowingIndexMap`] | `indexmap::IndexMap` | insertion; the last entry fills a gap |
//!
//! Both maps are based on a linear hash table (Litwin 1980): an array of small tables, the
//! *segments*. When there are too many entries for the number of segments, the next segment in turn
//! is split in two. When the array of segments is full, it is moved to an array of twice the size.
//! The array takes 32 bytes for each segment, which has about 800 entries.
//!
//! A map keeps its memory until the map is dropped, as standard maps do. Dropping a large map takes
//! a long step.
//!
//! # Limits
//! Keys with equal hashes share a segment, which then grows as a standard map does. A client cannot
//! choose such keys unless it knows the secret by which the map hashes ([`crate::hashing`]).

mod chunks;
mod index_map;
mod map;
mod table;
#[cfg(test)]
mod tests;

pub use self::index_map::GrowingIndexMap;
pub use self::map::GrowingMap;
