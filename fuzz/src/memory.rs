//! Limit on the memory that a decoder may take for its input.
//!
//! The limit is proportional to the number of bytes that are present: a decoder must not rely on a
//! length that the input claims. The factor follows from the way in which lists are decoded. An
//! element takes at least two bytes in the input (its tag and a length of 0), and its full size in
//! memory. A list grows by doubling, and during this the old and the new buffer of the list exist
//! at the same time. So the largest element of any list determines the factor: [`per_byte`].

use bytes::Bytes;

/// Number of bytes of memory that a decoder may use even for an empty input. This memory is needed
/// for read buffers and for the text of an error.
pub const BASE_BYTES: usize = 64 << 10;

/// Minimum encoded size of a list element, in bytes.
const ELEMENT_BYTES_MIN: usize = 2;
/// Maximum memory that a list uses while it grows, divided by the size of the list's elements. A
/// growing list copies its elements from a full buffer to a buffer of twice the size. So both
/// buffers together are three times as large as the elements.
const WHILE_GROWING: usize = 3;

/// Returns the number of bytes of memory that a decoder may use for each byte of input. `T` must be
/// the type of the largest list element in the input.
pub const fn per_byte<T>() -> usize {
    WHILE_GROWING * size_of::<T>() / ELEMENT_BYTES_MIN
}

/// Runs a decoder with an input of `input` bytes, and asserts that the decoder does not use too
/// much memory. The memory of the result is included.
///
/// # Panics
/// Panics if at any time the decoder holds more than [`BASE_BYTES`] plus `per_byte` for each byte
/// of input.
pub fn within<T>(input: usize, per_byte: usize, decode: impl FnOnce() -> T) -> T {
    within_base(BASE_BYTES, input, per_byte, decode)
}

/// Does the same as [`within`], but allows `base` bytes instead of [`BASE_BYTES`].
///
/// # Panics
/// Panics if the decoder exceeds the limit.
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

/// Does the same as [`within`], for a decoder that keeps parts of its input. The decoder gets a
/// copy of the input. The memory of this copy is not counted.
///
/// # Panics
/// Panics if the decoder exceeds the limit.
pub fn sharing<T>(input: &[u8], per_byte: usize, decode: impl FnOnce(Bytes) -> T) -> T {
    let shared = Bytes::copy_from_slice(input);
    within(input.len(), per_byte, || decode(shared))
}
