//! Decodes one histogram of an interval log. The bytes may come from an untrusted source.
//!
//! The library that decodes a histogram trusts the bytes. It allocates as much memory as the length
//! and the range in these bytes require. The library also negates each negative count, and the
//! negation of the lowest number overflows. So this module checks the length, the range and the
//! counts first.

use std::io::Read as _;

use flate2::read::ZlibDecoder;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

use crate::measurement::DIGITS;

/// First bytes of a compressed histogram. A length follows, and then the compressed data.
const COMPRESSED: [u8; 4] = [0x1C, 0x84, 0x93, 0x14];
/// First bytes of a histogram that is not compressed.
const PLAIN: [u8; 4] = [0x1C, 0x84, 0x93, 0x13];
const PREFIX_BYTES: usize = COMPRESSED.len() + 4;
/// Number of bytes before the counts. These bytes are the cookie, the length of the counts in
/// bytes, the offset, the digits, the lowest value, the highest value, and the ratio.
const HEADER_BYTES: usize = 40;
/// Maximum number of bytes of a decompressed histogram. With [`DIGITS`] there are fewer than 2^16
/// counts of at most nine bytes each.
const BYTES_MAX: usize = HEADER_BYTES + (9 << 16);
/// Number of bytes of the longest number.
const NUMBER_BYTES_MAX: usize = 9;

/// Decodes the histogram of one interval.
pub(super) fn decode(encoded: &[u8]) -> Result<Histogram<u64>, String> {
    let plain = match encoded.split_first_chunk::<PREFIX_BYTES>() {
        Some((prefix, rest)) if prefix.starts_with(&COMPRESSED) => decompress(rest)?,
        _ if encoded.len() > BYTES_MAX => return Err(too_long()),
        _ => encoded.to_vec(),
    };
    check_counts(check_header(&plain)?)?;
    Deserializer::new()
        .deserialize(&mut plain.as_slice())
        .map_err(|error| format!("{error:?}"))
}

fn too_long() -> String {
    format!("a histogram of more than {BYTES_MAX} bytes, which {DIGITS} digits do not need")
}

fn decompress(compressed: &[u8]) -> Result<Vec<u8>, String> {
    let mut plain = Vec::new();
    ZlibDecoder::new(compressed)
        .take(BYTES_MAX as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|error| error.to_string())?;
    if plain.len() > BYTES_MAX {
        Err(too_long())
    } else {
        Ok(plain)
    }
}

/// Checks the header, and returns the bytes of the counts. Returns an error if there are fewer
/// bytes than the header says, or if the histogram would need more memory than the histograms of
/// this program.
fn check_header(plain: &[u8]) -> Result<&[u8], String> {
    let Some((header, counts)) = plain.split_first_chunk::<HEADER_BYTES>() else {
        return Err("a histogram shorter than its header".to_owned());
    };
    let word = |at: usize| {
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        u32::from_be_bytes(bytes)
    };
    if !header.starts_with(&PLAIN) {
        return Err("not a histogram of version 2".to_owned());
    }
    let Some(counts) = counts.get(..word(4) as usize) else {
        let (claimed, there) = (word(4), counts.len());
        return Err(format!(
            "{claimed} bytes of counts are claimed, {there} are there"
        ));
    };
    let lowest = u64::from(word(16)) << 32 | u64::from(word(20));
    if word(12) > u32::from(DIGITS) || lowest != 1 {
        return Err(format!(
            "{} digits from {lowest} on, at most {DIGITS} digits from 1 on can be read",
            word(12)
        ));
    }
    Ok(counts)
}

/// Checks the counts, which are zigzag numbers. A negative number stands for a run of zeros. The
/// lowest number is refused, because its negation overflows.
fn check_counts(mut counts: &[u8]) -> Result<(), String> {
    while !counts.is_empty() {
        let length = counts.iter().take(NUMBER_BYTES_MAX - 1);
        let length = length.take_while(|&&byte| byte >= 0x80).count() + 1;
        let (number, rest) = counts.split_at(length.min(counts.len()));
        if number == [0xFF; NUMBER_BYTES_MAX] {
            return Err("a run of zeros without end".to_owned());
        }
        counts = rest;
    }
    Ok(())
}
