//! YCSB's hash function. The hash determines the names of records, and scatters the records that
//! the scrambled zipfian chooses.

const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01B3;

/// Returns the FNV-1a hash of the eight bytes of `value`, the lowest byte first. As in YCSB, the
/// result is the absolute value of the hash as a signed number, so it has at most 63 bits.
#[inline]
pub fn fnv_hash(value: u64) -> u64 {
    let hash = value
        .to_le_bytes()
        .iter()
        .fold(OFFSET_BASIS, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        });
    // The absolute value of the smallest signed number is that number itself, in Java and here.
    (hash as i64).wrapping_abs() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first keys of any YCSB data set are `user6284781860667377211` and so on.
    #[test]
    fn first_keys_are_those_of_ycsb() {
        assert_eq!(fnv_hash(0), 6_284_781_860_667_377_211);
        assert_eq!(fnv_hash(1), 8_517_097_267_634_966_620);
        assert_eq!(fnv_hash(2), 1_820_151_046_732_198_393);
    }
}
