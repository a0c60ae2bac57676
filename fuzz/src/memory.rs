//! Limit on the memory that a decoder may take for its input.
//!
//! The limit is proportional to the number of bytes that are present: a decoder must not rely on a
//! length that the input claims. The factor follows from the way in which lists are decoded. An
//! element takes at least two bytes in the input (its tag and a length of 0), and its full size in
//! memory. A list grows by doubling, and during this the old and the new buffer of the list exist
//! at the same time. So the largest element of any list determines the factor: [`per_byte`].

use bytes::Bytes;

/// Number of bytes of memory that a decoder may use for any input. These bytes are for buffers
/// while the input is read, and for the text of an error.
pub const BASE_BYTES: usize = 64 << 10;

/// Minimum number of bytes of an element in the input.
const ELEMENT_BYTES_MIN: usize = 2;
/// Ratio between the memory of a list that grows and the size of the list's elements. The old
/// buffer is full and the new buffer is twice as large, so both together are three times as large
/// as the elements.
const WHILE_GROWING: usize = 3;

/// Returns the number of bytes of memory that a decoder may use for one byte of input, if this byte
/// belongs to a list of `T` and `T` contains nothing larger.
pub const fn per_byte<T>() -> usize {
    WHILE_GROWING * size_of::<T>() / ELEMENT_BYTES_MIN
}

/// Runs a decoder with an input of `input` bytes, and checks its use of memory. Memory that the
/// result holds is included.
///
/// # Panics
/// Panics if at any time the decoder holds more than [`BASE_BYTES`] plus `per_byte` for each byte
/// of input.
pub fn within<T>(input: usize, per_byte: usize, decode: impl FnOnce() -> T) -> T {
    within_base(BASE_BYTES, input, per_byte, decode)
}

/// Does the same as [`within`], but allows `base` bytes for any input instead of [`BASE_BYTES`].
///
/// # Panics Panics if the decoder exceeds the limit.
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

/// Does the same as [`within`], for a decoder that keeps parts of its input. These parts belong to
/// a copy of the input. This copy is not included in the memory.
///
/// # Panics Panics if the decoder exceeds the limit.
pub fn sharing<T>(input: &[u8], per_byte: usize, decode: impl FnOnce(Bytes) -> T) -> T {
    let shared = Bytes::copy_from_slice(input);
    within(input.len(), per_byte, || decode(shared))
}
