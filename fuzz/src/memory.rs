//! Limit on the memory that a decoder may take for its input.
//!
//! No more than in proportion to the bytes that are really there: a length that
//! somebody claims must not be believed. What the proportion is follows from how a
//! list is decoded. An element takes two bytes at least (its tag and a length of
//! 0) and its size in memory; while the list grows by doubling, its old and its
//! new buffer are there at once. So the largest element of any list decides:
//! [`per_byte`].

use bytes::Bytes;

/// Bytes that a decoder may take for an input that says nothing: buffers for reading,
/// words for an error.
pub const BASE_BYTES: usize = 64 << 10;

/// Bytes of an element on the wire, at least.
const ELEMENT_BYTES_MIN: usize = 2;
/// The old buffer and the new one of a list that has just doubled, in elements
/// that are there.
const WHILE_GROWING: usize = 3;

/// Bytes that one byte of input may take where lists of `T` are decoded and
/// nothing else in them is larger.
pub const fn per_byte<T>() -> usize {
    WHILE_GROWING * size_of::<T>() / ELEMENT_BYTES_MIN
}

/// Runs a decoder over `input` bytes. Memory still held at the end counts too.
///
/// # Panics
/// If it took more than [`BASE_BYTES`] and `per_byte` for each of them at once.
pub fn within<T>(input: usize, per_byte: usize, decode: impl FnOnce() -> T) -> T {
    within_base(BASE_BYTES, input, per_byte, decode)
}

/// As [`within`], for what takes `base` bytes whatever the input says.
///
/// # Panics
/// As [`within`].
pub fn within_base<T>(base: usize, input: usize, per_byte: usize, decode: impl FnOnce() -> T) -> T {
    let mut decoded = None;
    let taken = allocation_counter::measure(|| decoded = Some(decode())).bytes_max;
    let limit = base + per_byte * input;
    assert!(
        taken <= limit as u64,
        "{taken} bytes were taken at once for an input of {input} bytes, the limit is {limit}"
    );
    decoded.expect("the decoder has returned")
}

/// As [`within`], for a decoder that keeps parts of its input: the copy that it
/// keeps is not counted.
///
/// # Panics
/// As [`within`].
pub fn sharing<T>(input: &[u8], per_byte: usize, decode: impl FnOnce(Bytes) -> T) -> T {
    let shared = Bytes::copy_from_slice(input);
    within(input.len(), per_byte, || decode(shared))
}
