//! Decides whether the clock that measures leases can be trusted.
//!
//! Leases rely on clock *rates*: the rate of each clock is within `rho` of the rate of true time. A
//! clock cannot detect its own error. So the clock of leases is compared with other clocks of the
//! machine, which have other kinds of errors: the clock that NTP steers (`chronyd` may slew it by
//! 8%), and the wall clock (which is set when the machine turns out to have been paused). If two
//! clocks disagree by more than `rho`, it is unknown which of them is right, and the clock of
//! leases is not trusted (hazard 80).

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;

/// Duration over which readings are compared. After a divergence, clocks must agree for this
/// duration before they are trusted again. A wrong rate is detected if it causes, within this
/// duration, a larger error than `rho` and [`SLACK`] allow.
const SPAN: Duration = Duration::from_secs(10);
/// Allowed difference between two readings, in addition to the difference that `rho` allows. Clocks
/// are read one after the other, so readings differ slightly.
const SLACK: Duration = Duration::from_millis(1);
/// Allowed difference between the wall clock and the clock of leases, in addition to the difference
/// that `rho` allows. A pause of the machine causes a larger difference.
const WALL_SLACK: Duration = Duration::from_millis(50);
/// Minimum interval between two readings that are kept.
const APART: Duration = Duration::from_millis(250);

/// Readings of the machine's clocks at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Reading of the clock that measures leases.
    pub now: Time,
    /// Readings of the other clocks; `None` if these clocks could not be read at nearly the same
    /// time as `now`.
    pub others: Option<OtherClocks>,
}

/// Readings of the clocks that do not measure leases. Each reading is in ns since the epoch of its
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherClocks {
    /// Time since boot, by the clock that NTP steers. This includes the time during which the
    /// machine was suspended.
    pub steered_ns: u64,
    /// The wall clock.
    pub wall_ns: u64,
}

impl ClockReading {
    /// Returns a reading of only the clock that measures leases. The reading contains no other
    /// clocks, so no clocks can be compared.
    pub fn alone(now: Time) -> ClockReading {
        ClockReading { now, others: None }
    }
}

/// Readings of all clocks at one time.
#[derive(Clone, Copy, Debug)]
struct AllClocks {
    /// Reading of the clock that measures leases.
    now: Time,
    others: OtherClocks,
}

/// A disagreement between another clock and the clock that measures leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Name of the clock: `"steered"` or `"wall"`.
    pub clock: &'static str,
    /// Time, in ns, by which the other clock has advanced further than the clock of leases. The
    /// time is negative if the other clock has advanced less.
    pub ahead_ns: i64,
    /// Duration over which the clocks diverged, measured by the clock of leases.
    pub within: Duration,
}

/// Compares readings of the machine's clocks, and decides whether the clock that measures leases
/// can be trusted.
#[derive(Clone, Debug, Default)]
pub struct ClockWatch {
    /// Readings from about the last [`SPAN`], in ascending order of time. Consecutive readings are
    /// at least [`APART`] apart. After a divergence, earlier readings are not kept.
    kept: VecDeque<AllClocks>,
    /// Divergence that made the clock untrusted; `None` if the clock is trusted.
    divergence: Option<Divergence>,
    /// Whether the clock was untrusted in the last verdict that the replica received.
    reported_untrusted: bool,
}

impl ClockWatch {
    /// Compares new readings of all clocks with earlier readings. Returns whether the clock of
    /// leases can be trusted; `None` if the verdict has not changed, or if the other clocks could
    /// not be read. `rho_ppm` is the maximum error of a clock's rate, in parts per million.
    pub fn news(&mut self, reading: ClockReading, rho_ppm: u32) -> Option<bool> {
        let latest = AllClocks {
            now: reading.now,
            others: reading.others?,
        };
        let kept = self.kept.iter();
        let found = kept
            .filter_map(|earlier| differ(*earlier, latest, rho_ppm))
            .next();
        if found.is_some() {
            self.divergence = found;
            self.kept.clear();
        }
        self.keep(latest);
        let agreed = self
            .kept
            .front()
            .is_some_and(|first| latest.now.since(first.now) >= SPAN);
        if agreed {
            self.divergence = None;
        }
        let untrusted = self.divergence.is_some();
        if std::mem::replace(&mut self.reported_untrusted, untrusted) == untrusted {
            return None;
        }
        Some(!untrusted)
    }

    /// Returns the divergence that made the clock untrusted; `None` if the clock is trusted.
    pub fn divergence(&self) -> Option<Divergence> {
        self.divergence
    }

    fn keep(&mut self, latest: AllClocks) {
        let is_within = |earlier: &AllClocks, span: Duration| latest.now.since(earlier.now) < span;
        if self.kept.back().is_some_and(|last| is_within(last, APART)) {
            return;
        }
        self.kept.push_back(latest);
        // One reading older than the span is kept, so that the kept readings cover the span.
        while self
            .kept
            .get(1)
            .is_some_and(|second| !is_within(second, SPAN))
        {
            self.kept.pop_front();
        }
    }
}

/// Returns the divergence of a clock from the clock of leases between two readings; `None` if they
/// agree.
fn differ(from: AllClocks, to: AllClocks, rho_ppm: u32) -> Option<Divergence> {
    let within = to.now.since(from.now);
    let drift_ns = (within.as_nanos() * u128::from(rho_ppm)).div_ceil(1_000_000);
    let differs = |clock, from_ns: u64, to_ns: u64, slack: Duration| {
        let gone_ns = i128::from(to_ns) - i128::from(from_ns);
        let ahead_ns = gone_ns - within.as_nanos() as i128;
        let allowed_ns = drift_ns + slack.as_nanos();
        (ahead_ns.unsigned_abs() > allowed_ns).then(|| Divergence {
            clock,
            ahead_ns: ahead_ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            within,
        })
    };
    let (before, after) = (from.others, to.others);
    differs("steered", before.steered_ns, after.steered_ns, SLACK)
        .or_else(|| differs("wall", before.wall_ns, after.wall_ns, WALL_SLACK))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const RHO_PPM: u32 = 1000;

    /// A machine with clocks that are read every 100 ms, and the verdicts about these clocks.
    struct Machine {
        watch: ClockWatch,
        true_ns: u64,
        read: [f64; 3],
        news: Vec<(u64, bool)>,
    }

    impl Machine {
        fn new() -> Machine {
            Machine {
                watch: ClockWatch::default(),
                true_ns: 0,
                read: [5e12, 7e12, 1.7e18],
                news: Vec::new(),
            }
        }

        /// Lets `ms` milliseconds pass. `ppm` contains the errors in the rates of three clocks: the
        /// clock of leases, the steered clock and the wall clock.
        fn run(&mut self, ms: u64, ppm: [i32; 3]) -> &mut Machine {
            for _ in 0..ms / 100 {
                self.true_ns += 100 * MS;
                for (read, ppm) in self.read.iter_mut().zip(ppm) {
                    *read += 1e8 * (1.0 + f64::from(ppm) * 1e-6);
                }
                self.look();
            }
            self
        }

        /// Sets each clock forward by a number of ms.
        fn jump(&mut self, ms: [i32; 3]) -> &mut Machine {
            for (read, ms) in self.read.iter_mut().zip(ms) {
                *read += f64::from(ms) * 1e6;
            }
            self
        }

        fn look(&mut self) {
            let [now, steered, wall] = self.read.map(|read| read as u64);
            let reading = ClockReading {
                now: Time(now),
                others: Some(OtherClocks {
                    steered_ns: steered,
                    wall_ns: wall,
                }),
            };
            if let Some(trusted) = self.watch.news(reading, RHO_PPM) {
                self.news.push((self.true_ns / MS, trusted));
            }
        }

        fn untrusted(&self) -> bool {
            self.watch.divergence().is_some()
        }
    }

    #[test]
    fn clocks_that_agree_within_the_bound_are_believed() {
        for ppm in [
            [0, 0, 0],
            [80, 0, 0],
            [-900, 0, 0],
            [0, 500, 500],
            [0, -1000, -1000],
            [-500, 500, 500],
        ] {
            let mut machine = Machine::new();
            machine.run(600_000, ppm);
            assert_eq!(machine.news, [], "{ppm:?}");
        }
    }

    #[test]
    fn clocks_that_diverge_are_noticed_before_much_is_lost() {
        let cases = [
            // chronyd slews at the maximum of its default setting, or by half a percent, or
            // slightly too much.
            ([0, 83_333, 83_333], 100),
            ([0, -83_333, -83_333], 100),
            ([0, 5000, 5000], 500),
            ([0, 1200, 1200], 7000),
            // The counter itself runs at a wrong rate.
            ([50_000, 0, 0], 100),
            ([-50_000, 0, 0], 100),
            // Only the wall clock is steered.
            ([0, 0, 20_000], 3100),
        ];
        for (ppm, within_ms) in cases {
            let mut machine = Machine::new();
            machine.run(30_000, [0; 3]);
            machine.run(20_000, ppm);
            let (at_ms, trusted) = machine.news[0];
            assert!(!trusted, "{ppm:?}");
            let late_ms = at_ms - 30_000;
            assert!(late_ms <= within_ms, "{ppm:?} noticed after {late_ms} ms");
            assert!(machine.untrusted(), "{ppm:?} goes on");
        }
    }

    #[test]
    fn a_machine_that_stood_still_is_noticed_when_its_wall_clock_is_set() {
        let mut machine = Machine::new();
        machine.run(20_000, [0; 3]).jump([0, 0, 8000]);
        machine.run(100, [0; 3]);
        assert_eq!(machine.news, [(20_100, false)]);
        let found = machine.watch.divergence().unwrap();
        assert_eq!(found.clock, "wall");
        assert!(found.ahead_ns.abs_diff(8_000_000_000) < MS);
    }

    #[test]
    fn all_clocks_may_jump_together_as_after_a_suspension() {
        let mut machine = Machine::new();
        machine.run(20_000, [0; 3]).jump([3_600_000; 3]);
        machine.run(20_000, [0; 3]);
        assert_eq!(machine.news, []);
    }

    #[test]
    fn a_clock_is_believed_again_once_all_have_agreed_for_a_while() {
        let mut machine = Machine::new();
        machine.run(20_000, [0; 3]);
        machine.run(3000, [0, 83_333, 83_333]);
        machine.run(9000, [0; 3]);
        assert!(machine.untrusted(), "not for long enough yet");
        machine.run(1000, [0, 83_333, 83_333]);
        machine.run(9000, [0; 3]);
        assert!(machine.untrusted(), "the span began anew");
        machine.run(3000, [0; 3]);
        assert!(!machine.untrusted());
        let reported: Vec<bool> = machine.news.iter().map(|(_, trusted)| *trusted).collect();
        assert_eq!(reported, [false, true], "each reported once");
    }

    #[test]
    fn a_moment_at_which_clocks_could_not_be_read_together_says_nothing() {
        let mut watch = ClockWatch::default();
        for second in 0..60 {
            let now = Time(second * 1_000_000_000);
            assert_eq!(watch.news(ClockReading::alone(now), 0), None);
        }
        assert_eq!(watch.divergence(), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut machine = Machine::new();
        machine.run(100_000, [0; 3]);
        assert!(
            machine.watch.kept.len() <= 42,
            "{}",
            machine.watch.kept.len()
        );
    }
}
