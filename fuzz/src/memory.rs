//! Limit on the memory that a decoder may take for its input.
//!
//! The limit is proportional to the number of bytes that are present: a decoder must not rely on a
//! length that the input claims. The factor follows from the way in which lists are decoded. An
//! element has at least two bytes in the input (its tag and a length of 0), and its size in memory.
//! While the list grows by doubling, its old and its new buffer exist at the same time. So the
//! largest element of any list determines the factor: [`per_byte`].

use bytes::Bytes;

/// Memory that a decoder may take for any input, in bytes: buffers for reading, and the text of an
/// error.
pub const BASE_BYTES: usize = 64 << 10;

/// Minimum number of bytes of an element in the input.
const ELEMENT_BYTES_MIN: usize = 2;
/// Memory of a list that has just doubled: the sizes of the old and of the new buffer together, as
/// a multiple of the present elements.
const WHILE_GROWING: usize = 3;

/// Returns the number of bytes in memory for one byte of input, if lists of `T` are decoded and
/// nothing else in them is larger.
pub const fn per_byte<T>() -> usize {
    WHILE_GROWING * size_of::<T>() / ELEMENT_BYTES_MIN
}

/// Runs a decoder with an input of `input` bytes. Memory that is still held at the end is included.
///
/// # Panics
/// Panics if at any time it took more than [`BASE_BYTES`], and `per_byte` for each byte of input.
pub fn within<T>(input: usize, per_byte: usize, decode: impl FnOnce() -> T) -> T {
    within_base(BASE_BYTES, input, per_byte, decode)
}

/// Runs a decoder as [`within`] does, with a limit of `base` bytes for any input instead of
/// [`BASE_BYTES`].
///
/// # Panics
/// Panics if the decoder exceeded the limit, as [`within`] does.
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

/// Runs a decoder that keeps parts of its input, as [`within`] does. The copy of the input that it
/// keeps is not included.
///
/// # Panics
/// Panics if the decoder exceeded the limit, as [`within`] does.
pub fn sharing<T>(input: &[u8], per_byte: usize, decode: impl FnOnce(Bytes) -> T) -> T {
    let shared = Bytes::copy_from_slice(input);
    within(input.len(), per_byte, || decode(shared))
}
