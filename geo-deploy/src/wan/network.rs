//! Comparison of the configured network with the one that probes measured, and a verdict on whether
//! the difference is small enough.

use std::time::Duration;

use serde::Serialize;

use super::probe::Probe;

/// Maximum median lateness of messages, in ms, in a valid network. The value is the same as the
/// tolerance of the minimum latency in virtual time.
const LATE_P50_MS_MAX: f64 = 1.0;
/// Maximum of the 99th percentile of the lateness, in ms, in a valid network. Above this maximum,
/// more than 1% of the messages waited for a processor for longer than one time slice of the
/// scheduler (3 to 4 ms).
const LATE_P99_MS_MAX: f64 = 5.0;
/// Minimum number of probes for a verdict. With fewer probes, the 99th percentile is meaningless.
const PROBES_MIN: usize = 20;

/// Measurements of the emulated network over one interval of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkReport {
    /// Round trips of every pair of sites that has a completed probe.
    pub pairs: Vec<PairReport>,
    /// Lateness of the probes of all pairs, in ms. The lateness of a probe is its round-trip time
    /// minus the configured delay and jitter.
    pub late: Lateness,
    /// Verdict that follows from the lateness.
    pub verdict: NetworkVerdict,
}

/// Round trips between two sites, in ms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairReport {
    /// Index of one site in the topology.
    pub a: usize,
    /// Index of the other site in the topology.
    pub b: usize,
    /// Number of completed probes.
    pub probes: usize,
    /// Median round trip of the configured network: the sum of both directions' delays and jitter.
    pub asked_p50_ms: f64,
    /// 99th percentile of the round trip of the configured network.
    pub asked_p99_ms: f64,
    /// Median of the round-trip times that the probes measured.
    pub p50_ms: f64,
    /// 99th percentile of the round-trip times that the probes measured.
    pub p99_ms: f64,
}

/// Lateness of probes, in ms: the measured round-trip time minus the configured round-trip time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// Number of probes over all pairs of sites.
    pub probes: usize,
    /// Median of the lateness.
    pub p50_ms: f64,
    /// 99th percentile of the lateness.
    pub p99_ms: f64,
}

/// Verdict on an emulated network. The results of a run are valid only if the emulated network
/// matched the configured network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkVerdict {
    /// Results are valid for the configured network.
    Valid,
    /// The results are not valid, because the machine was too busy for the network.
    Invalid,
    /// The validity is unknown, because too few probes came back over links without faults.
    Unknown,
}

/// Settings of the links between two sites before any fault: the two sites, the sum of both
/// directions' delays, and the jitter of each direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairSettings {
    pub pair: (usize, usize),
    pub delay: Duration,
    pub jitter: (Duration, Duration),
}

impl NetworkReport {
    /// Evaluates `probes` between the pairs of sites in `settings`.
    pub(super) fn of(settings: &[PairSettings], probes: &[Probe]) -> NetworkReport {
        let pairs = settings
            .iter()
            .filter_map(|settings| pair(settings, probes));
        let mut excess: Vec<f64> = probes.iter().filter_map(excess_ms).collect();
        excess.sort_by(f64::total_cmp);
        let beyond_jitter = |q: f64| {
            let jitter = settings.iter().map(|settings| jitter_ms(settings, q));
            let jitter = jitter.fold(0.0, f64::max);
            quantile(&excess, q).map_or(0.0, |found| (found - jitter).max(0.0))
        };
        let late = Lateness {
            probes: excess.len(),
            p50_ms: beyond_jitter(0.5),
            p99_ms: beyond_jitter(0.99),
        };
        NetworkReport {
            pairs: pairs.collect(),
            late,
            verdict: judge(late),
        }
    }

    /// Returns the matrix of median round trips between sites, in ms. A value is 0 if both sites
    /// are the same, or if there are no probes between the two sites.
    pub fn matrix_ms(&self, sites: usize) -> Vec<Vec<f64>> {
        let mut rows = vec![vec![0.0; sites]; sites];
        for pair in &self.pairs {
            rows[pair.a][pair.b] = pair.p50_ms;
            rows[pair.b][pair.a] = pair.p50_ms;
        }
        rows
    }

    /// Returns a warning for readers of the run's results; `None` if the network is valid.
    pub fn warning(&self) -> Option<String> {
        let Lateness {
            probes,
            p50_ms,
            p99_ms,
        } = self.late;
        match self.verdict {
            NetworkVerdict::Valid => None,
            NetworkVerdict::Invalid => Some(format!(
                "INVALID: this machine was too busy for the network that it emulates. Messages \
                 came {p50_ms:.1} ms later than asked for in the median and {p99_ms:.1} ms in the \
                 99th percentile ({probes} probes; valid up to {LATE_P50_MS_MAX} and \
                 {LATE_P99_MS_MAX} ms). Run it again with nothing else on the machine, or with \
                 fewer sites or clients."
            )),
            NetworkVerdict::Unknown => Some(format!(
                "whether the emulated network was as asked for is not known: only {probes} probes \
                 came back in links without faults, {PROBES_MIN} are needed"
            )),
        }
    }
}

/// Returns the verdict on a network with this lateness.
fn judge(late: Lateness) -> NetworkVerdict {
    if late.probes < PROBES_MIN {
        return NetworkVerdict::Unknown;
    }
    if late.p50_ms <= LATE_P50_MS_MAX && late.p99_ms <= LATE_P99_MS_MAX {
        NetworkVerdict::Valid
    } else {
        NetworkVerdict::Invalid
    }
}

/// Evaluates the probes of one pair of sites. Includes only probes that were sent while the links
/// of the pair had their configured delays.
fn pair(settings: &PairSettings, probes: &[Probe]) -> Option<PairReport> {
    let of_pair = |probe: &&Probe| probe.pair == settings.pair && probe.expected == settings.delay;
    let took = probes.iter().filter(of_pair).filter_map(|probe| probe.took);
    let mut took: Vec<f64> = took.map(ms).collect();
    took.sort_by(f64::total_cmp);
    Some(PairReport {
        a: settings.pair.0,
        b: settings.pair.1,
        probes: took.len(),
        asked_p50_ms: ms(settings.delay) + jitter_ms(settings, 0.5),
        asked_p99_ms: ms(settings.delay) + jitter_ms(settings, 0.99),
        p50_ms: quantile(&took, 0.5)?,
        p99_ms: quantile(&took, 0.99)?,
    })
}

fn excess_ms(probe: &Probe) -> Option<f64> {
    Some(ms(probe.took?) - ms(probe.expected))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the quantile `q` of sorted values; `None` for an empty slice.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Returns the quantile `q` of the sum of both directions' jitter, in ms. `q` must be at least one
/// half. Each jitter is uniformly distributed between 0 and the maximum for its direction.
fn jitter_ms(settings: &PairSettings, q: f64) -> f64 {
    let (a, b) = (ms(settings.jitter.0), ms(settings.jitter.1));
    let (less, more) = (a.min(b), a.max(b));
    if more == 0.0 {
        return 0.0;
    }
    // If the sum exceeds the larger maximum, its density falls linearly to 0 at the sum of both
    // maxima.
    let rest = 1.0 - q;
    if rest <= less / (2.0 * more) {
        less + more - (2.0 * rest * less * more).sqrt()
    } else {
        q * more + less / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late(p50_ms: f64, p99_ms: f64, probes: usize) -> NetworkVerdict {
        judge(Lateness {
            probes,
            p50_ms,
            p99_ms,
        })
    }

    #[test]
    fn a_late_median_or_a_late_tail_makes_a_run_invalid() {
        assert_eq!(late(0.1, 0.9, 1000), NetworkVerdict::Valid);
        assert_eq!(late(1.0, 5.0, 20), NetworkVerdict::Valid);
        assert_eq!(late(1.1, 1.2, 1000), NetworkVerdict::Invalid);
        assert_eq!(late(0.1, 5.1, 1000), NetworkVerdict::Invalid);
        assert_eq!(late(0.1, 0.2, 19), NetworkVerdict::Unknown);
    }

    fn settings(there_ms: u64, back_ms: u64) -> PairSettings {
        PairSettings {
            pair: (0, 1),
            delay: Duration::from_millis(20),
            jitter: (
                Duration::from_millis(there_ms),
                Duration::from_millis(back_ms),
            ),
        }
    }

    /// Returns probes with these round-trip times, in ms.
    fn probes(took_ms: impl Iterator<Item = f64>) -> Vec<Probe> {
        let probe = |ms: f64| Probe::completed((0, 1), Duration::from_millis(20), ms);
        took_ms.map(probe).collect()
    }

    #[test]
    fn probes_are_compared_with_what_was_asked_for() {
        let on_time = probes((0..200).map(|i| 20.0 + f64::from(i) / 1000.0));
        let network = NetworkReport::of(&[settings(0, 0)], &on_time);
        assert_eq!(network.verdict, NetworkVerdict::Valid);
        assert_eq!(network.warning(), None);
        let pair = &network.pairs[0];
        assert_eq!((pair.probes, pair.asked_p99_ms), (200, 20.0));
        assert!((pair.p50_ms - 20.099).abs() < 1e-6, "{pair:?}");
        assert!((pair.p99_ms - 20.197).abs() < 1e-6, "{pair:?}");
        assert_eq!(network.matrix_ms(2)[1][0], pair.p50_ms);

        // Delays that clients measured beside eight busy loops, when the relays' own medians were
        // 20.4 ms.
        let starved = probes((0..200).map(|i| 20.4 + f64::from(i % 10)));
        let network = NetworkReport::of(&[settings(0, 0)], &starved);
        assert_eq!(network.verdict, NetworkVerdict::Invalid);
        let warning = network.warning().unwrap();
        assert!(
            warning.contains("INVALID") && warning.contains("200 probes"),
            "{warning}"
        );
    }

    #[test]
    fn jitter_that_was_asked_for_is_not_late() {
        // All sums of two jitters at even distances.
        let sums = (0..100).flat_map(|a| (0..100).map(move |b| f64::from(a + b) / 10.0));
        let sums: Vec<f64> = sums.collect();
        let network =
            NetworkReport::of(&[settings(10, 10)], &probes(sums.iter().map(|j| 20.0 + j)));
        assert_eq!(network.verdict, NetworkVerdict::Valid, "{network:?}");
        let late = network.late;
        assert!(late.p50_ms < 0.2 && late.p99_ms < 0.2, "{late:?}");
        assert_eq!(network.pairs[0].asked_p50_ms, 30.0);
        let without = NetworkReport::of(&[settings(0, 0)], &probes(sums.iter().map(|j| 20.0 + j)));
        assert_eq!(without.verdict, NetworkVerdict::Invalid);
        // With jitter in one direction only, or with very different jitters, the sum is uniform or
        // nearly so.
        assert!((jitter_ms(&settings(10, 0), 0.99) - 9.9).abs() < 1e-9);
        assert!((jitter_ms(&settings(1, 100), 0.5) - 50.5).abs() < 1e-9);
    }

    #[test]
    fn a_link_that_a_fault_slows_is_no_late_machine() {
        let mut slowed = probes((0..50).map(|_| 60.2));
        slowed
            .iter_mut()
            .for_each(|probe| probe.expected = Duration::from_millis(60));
        let network = NetworkReport::of(&[settings(0, 0)], &slowed);
        assert_eq!(network.verdict, NetworkVerdict::Valid);
        assert!(
            network.pairs.is_empty(),
            "it says nothing of the pair without faults"
        );
    }
}
