//! The network as probes found it, beside the one asked for, and whether it will do.

use std::time::Duration;

use serde::Serialize;

use super::probe::Probe;

/// A median that is later than this is not of the network asked for: reports call an
/// operation "at its minimum" within 1 ms.
const LATE_P50_MS_MAX: f64 = 1.0;
/// A 99th percentile that is later than this: more than one message in a hundred waited
/// longer for a processor than one time slice of the scheduler takes (3 to 4 ms).
const LATE_P99_MS_MAX: f64 = 5.0;
/// With fewer probes a 99th percentile says nothing.
const PROBES_MIN: usize = 20;

/// The emulated network in some interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkReport {
    /// Every pair of sites with a probe.
    pub pairs: Vec<PairReport>,
    /// Lateness of the probes of all pairs, in ms, beyond delay and jitter.
    pub late: Lateness,
    /// Conclusion from it.
    pub verdict: NetworkVerdict,
}

/// Round trips between two sites, in ms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairReport {
    /// One site, by its index.
    pub a: usize,
    /// The other.
    pub b: usize,
    /// Probes.
    pub probes: usize,
    /// Median asked for: the delays of both directions, and the jitter.
    pub asked_p50_ms: f64,
    /// 99th percentile asked for.
    pub asked_p99_ms: f64,
    /// Median measured.
    pub p50_ms: f64,
    /// 99th percentile measured.
    pub p99_ms: f64,
}

/// Lateness of probes, compared with the time asked for, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// Probes of all pairs.
    pub probes: usize,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

/// Verdict on whether a run on this network says anything about the network asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkVerdict {
    /// It does.
    Valid,
    /// It does not: the machine was too busy.
    Invalid,
    /// Too few probes came back in links without faults.
    Unknown,
}

/// Settings of a pair: the sites, the delays of both directions without faults, and their jitters.
#[derive(Clone, Copy, Debug)]
pub(super) struct PairSettings {
    pub pair: (usize, usize),
    pub delay: Duration,
    pub jitter: (Duration, Duration),
}

impl NetworkReport {
    /// Returns the findings of these probes between these pairs.
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

    /// Median round trips in ms; 0 where nothing was measured, and on the diagonal.
    pub fn matrix_ms(&self, sites: usize) -> Vec<Vec<f64>> {
        let mut rows = vec![vec![0.0; sites]; sites];
        for pair in &self.pairs {
            rows[pair.a][pair.b] = pair.p50_ms;
            rows[pair.b][pair.a] = pair.p50_ms;
        }
        rows
    }

    /// Returns the warning for a reader of the run; nothing if all is well.
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

/// Evaluates the probes over links that had the delays of a pair without faults.
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

/// The value that the share `q` of all does not exceed; nothing of nothing.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Quantile `q`, at least one half, of the sum of both directions' jitter: each is drawn
/// evenly from 0 to its most.
fn jitter_ms(settings: &PairSettings, q: f64) -> f64 {
    let (a, b) = (ms(settings.jitter.0), ms(settings.jitter.1));
    let (less, more) = (a.min(b), a.max(b));
    if more == 0.0 {
        return 0.0;
    }
    // Where both can vary no more, the density falls evenly to nothing at their sum.
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

    /// Probes that took these times, in ms.
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

        // What clients saw beside eight busy loops, where medians of relays said 20.4.
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
        // Quantiles of the sum, at even distances.
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
        // One way only, and very unlike ones: evenly drawn, or nearly.
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
