//! Maps that grow a part at a time.
//!
//! A standard map doubles in one step: the insertion that finds it full moves every entry
//! there is. With millions of keys that takes seconds, and a replica does nothing else
//! meanwhile: all replicas execute the same log, so all of them stop at once, and the
//! leader is deposed. In these maps no insertion moves more than one segment, which is some
//! hundreds to two thousand entries.
//!
//! | | is like | order |
//! |---|---|---|
//! | [`GrowingMap`] | `HashMap` | unspecified; the same in every run with the same secret |
//! | [`GrowingIndexMap`] | `indexmap::IndexMap` | that of insertion, until a removal puts the last entry into the gap |
//!
//! The table below both is a linear hash table (Litwin 1980): an array of small tables,
//! the *segments*. Whenever there are too many entries for the segments, the next segment
//! in turn is split in two. The array itself is moved when it doubles: 32 bytes for about
//! 800 entries.
//!
//! Memory that a map has taken is given back when the map is dropped, as with standard
//! maps. To drop a large map is a long step.
//!
//! # Limits
//! Keys with equal hashes share a segment, which then grows as a standard map does. A client
//! that does not know the secret by which a map hashes cannot choose such keys
//! ([`crate::hashing`]).

mod chunks;
mod index_map;
mod map;
mod table;
#[cfg(test)]
mod tests;

pub use self::index_map::GrowingIndexMap;
pub use self::map::GrowingMap;
