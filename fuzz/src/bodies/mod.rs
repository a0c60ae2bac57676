//! Bodies of the fuzz targets. The module of each body also has a module `seeds`, with the inputs
//! with which fuzzing begins.

pub mod access;
pub mod client;
mod cluster;
pub mod config;
mod contradictions;
pub mod disk;
pub mod frames;
pub mod history;
pub mod lock;
pub mod log;
pub mod member;
pub mod peer;
mod samples;
pub mod session;
pub mod ycsb;

use std::fmt::Debug;

use prost::Message;

use crate::memory;

/// Decodes a message of a generated type. Asserts that the message is the same after it is encoded
/// and decoded again. The encoded forms are compared, because a number may be NaN, and NaN is not
/// equal to itself.
fn decode_round_trip<M: Message + Default + Debug>(input: &[u8], per_byte: usize) -> Option<M> {
    let decoded = memory::sharing(input, per_byte, |bytes| M::decode(bytes)).ok()?;
    let encoded = decoded.encode_to_vec();
    let again = M::decode(encoded.as_slice()).expect("what was encoded is decoded");
    assert!(
        again.encode_to_vec() == encoded,
        "{again:?} was {decoded:?}"
    );
    Some(decoded)
}
