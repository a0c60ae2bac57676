//! Random choice among a few values with given weights, such as the kinds of operations.

use super::Random;

/// Chooses a random value by weight.
#[derive(Clone, Debug)]
pub struct Discrete<T> {
    /// All values, each with the sum of the weights up to and including the weight of this value.
    cumulated: Vec<(f64, T)>,
}

impl<T: Copy> Discrete<T> {
    /// Creates a choice among these values. Values with a weight of zero or less are omitted.
    pub fn new(weights: impl IntoIterator<Item = (f64, T)>) -> Self {
        let mut sum = 0.0;
        let cumulated = weights
            .into_iter()
            .filter(|(weight, _)| *weight > 0.0)
            .map(|(weight, value)| {
                sum += weight;
                (sum, value)
            })
            .collect();
        Discrete { cumulated }
    }

    /// Returns a random value; `None` if no value has a weight above zero.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> Option<T> {
        let (total, last) = *self.cumulated.last()?;
        let point = random.unit() * total;
        let chosen = self.cumulated.iter().find(|(sum, _)| point < *sum);
        Some(chosen.map_or(last, |(_, value)| *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_weights() {
        let mut random = Random::new(1, &[]);
        // Weights need not add up to 1, and a value with weight zero is never drawn.
        let discrete = Discrete::new([(1.9, 'a'), (0.0, 'b'), (0.1, 'c')]);
        let draws: Vec<_> = (0..100_000)
            .map(|_| discrete.draw(&mut random).unwrap())
            .collect();
        let c = draws.iter().filter(|&&d| d == 'c').count();
        assert!((4_800..5_200).contains(&c), "{c}");
        assert!(!draws.contains(&'b'));
    }

    #[test]
    fn nothing_to_choose_from() {
        let discrete = Discrete::new([(0.0, 1), (-1.0, 2)]);
        assert_eq!(discrete.draw(&mut Random::new(1, &[])), None);
    }
}
