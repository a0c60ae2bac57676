//! Random field lengths by a histogram from a file in YCSB's format. The first line is
//! `BlockSize<TAB>bytes`; the other lines are `bucket<TAB>count`, with buckets counted from 0.

use super::Random;

/// Reason why a histogram file cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: found \"{found}\", expected {expected}")]
pub struct HistogramError {
    line: usize,
    found: String,
    expected: &'static str,
}

/// Distribution of random lengths, with the frequencies of a histogram. Bucket `i` stands for the
/// length `(i + 1) * block`, which is the upper edge of the bucket.
#[derive(Clone, Debug)]
pub struct LengthHistogram {
    block: u64,
    /// For each bucket, the sum of its count and the counts of all earlier buckets.
    cumulated: Vec<u64>,
}

impl LengthHistogram {
    /// Parses the text of a histogram file.
    pub fn parse(text: &str) -> Result<Self, HistogramError> {
        let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line));
        let (_, first) = lines.next().unwrap_or((1, ""));
        let block = pair(first)
            .filter(|(name, _)| *name == "BlockSize")
            .and_then(|(_, value)| value.parse().ok())
            .filter(|block| *block > 0)
            .ok_or_else(|| error(1, first, "\"BlockSize<TAB>bytes\" with bytes above 0"))?;
        let mut sum = 0u64;
        let mut cumulated = Vec::new();
        for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            let (bucket, count) = parse_bucket(text)
                .ok_or_else(|| error(line, text, "\"bucket<TAB>count\", both whole numbers"))?;
            if bucket != cumulated.len() as u64 {
                return Err(error(line, text, "buckets in order, from 0 on"));
            }
            sum = sum
                .checked_add(count)
                .ok_or_else(|| error(line, text, "counts that add up to less than 2^64"))?;
            cumulated.push(sum);
        }
        if sum == 0 {
            return Err(error(1, first, "at least one bucket with a count above 0"));
        }
        Ok(LengthHistogram { block, cumulated })
    }

    /// Returns a random length.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let total = self.cumulated.last().copied().unwrap_or(0);
        let point = random.below(total);
        let bucket = self.cumulated.partition_point(|&sum| sum <= point);
        (bucket as u64 + 1).saturating_mul(self.block)
    }

    /// Returns the longest length that can occur.
    pub fn longest(&self) -> u64 {
        (self.cumulated.len() as u64).saturating_mul(self.block)
    }
}

fn pair(line: &str) -> Option<(&str, &str)> {
    let (left, right) = line.split_once('\t')?;
    Some((left.trim(), right.trim()))
}

fn parse_bucket(line: &str) -> Option<(u64, u64)> {
    let (bucket, count) = pair(line)?;
    Some((bucket.parse().ok()?, count.parse().ok()?))
}

fn error(line: usize, found: &str, expected: &'static str) -> HistogramError {
    HistogramError {
        line,
        found: found.to_owned(),
        expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_file() {
        let histogram = LengthHistogram::parse("BlockSize\t10\n0\t1\n1\t0\n2\t3\n").unwrap();
        let mut random = Random::new(1, &[]);
        let mut counts = [0; 4];
        for _ in 0..40_000 {
            counts[histogram.draw(&mut random) as usize / 10] += 1;
        }
        assert_eq!((counts[0], counts[2]), (0, 0));
        assert!((9_700..10_300).contains(&counts[1]), "{counts:?}");
        assert_eq!(histogram.longest(), 30);
    }

    #[test]
    fn errors_name_the_line() {
        let message = |text| LengthHistogram::parse(text).unwrap_err().to_string();
        assert!(message("").starts_with("line 1: found \"\""));
        assert!(message("BlockSize\t10\n0\tmany").starts_with("line 2: found \"0\tmany\""));
        assert!(message("BlockSize\t10\n1\t5").contains("in order"));
        assert!(message("BlockSize\t10\n0\t0").contains("above 0"));
    }
}
