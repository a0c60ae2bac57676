//! Numbers that have names.

use std::collections::BTreeMap;

/// Figures by name, in alphabetical order of the names.
pub type Figures = BTreeMap<String, f64>;

/// Creates figures from pairs of a name and a value.
pub fn figures<const N: usize>(named: [(&str, f64); N]) -> Figures {
    named.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Returns a percentile of the values by the nearest-rank method; 0 if there are no values. The
/// percentile is given by `share`, from 0 to 1.
pub fn percentile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    let rank = (values.len() as f64 * share).ceil() as usize;
    values
        .get(rank.max(1).min(values.len()).wrapping_sub(1))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_values_given() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut values, 0.5), 100);
        assert_eq!(percentile(&mut values, 0.99), 198);
        assert_eq!(percentile(&mut values, 1.0), 200);
        assert_eq!(percentile(&mut [7], 0.99), 7);
        assert_eq!(percentile(&mut [], 0.99), 0);
    }
}
