//! Self-tests of the simulator: runs that break an assumption about clocks, in which the oracles
//! must see a violation. If a simulator finds no violation in these runs, a clean result in other
//! runs means nothing.

use std::time::Duration;

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use super::scenario::Scenario;
use super::swarm::{FaultPlan, Isolation};
use super::workload::ClientLoad;
use leasehold_kernel::network::Faults;

/// An assumption about clocks. The self-test breaks this assumption on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSelfTest {
    /// Clocks drift more than leases allow for (`Choices::drift_ppm`). Only the clients' answers
    /// are judged. The self-test requires at least one stale read.
    Drift,
    /// Clocks jump forward by seconds. Every oracle judges the run.
    Jump,
}

impl ClockSelfTest {
    /// Every self-test.
    pub const ALL: [ClockSelfTest; 2] = [ClockSelfTest::Drift, ClockSelfTest::Jump];

    /// Returns the name of the self-test.
    pub fn name(self) -> &'static str {
        match self {
            ClockSelfTest::Drift => "drift",
            ClockSelfTest::Jump => "jump",
        }
    }

    /// Returns the names of the oracles that belong to this self-test. The self-test requires that
    /// at least one of these oracles sees a violation.
    pub fn expected_oracles(self) -> &'static [&'static str] {
        match self {
            ClockSelfTest::Drift => &["freshness", "histories"],
            ClockSelfTest::Jump => &["containment"],
        }
    }

    /// Adapts a scenario to this self-test. The scenario was drawn from a seed.
    pub fn arrange(self, scenario: &mut Scenario, rng: &mut Pcg64Mcg) {
        match self {
            ClockSelfTest::Drift => drift(scenario, rng),
            ClockSelfTest::Jump => scenario.plan = FaultPlan::jumps(rng),
        }
    }
}

/// Changes a scenario so that drift leads to a stale read. A stale read requires a holder that is
/// cut off and still relies on a lease, although all grants to this holder have ended at the
/// grantors. At that moment, a client must send a read to the holder.
///
/// Leases are long, so that drift accumulates. The guard and the delays of links are short, because
/// both hide drift: the guard and the delay each make the wait of a grantor end later.
///
/// The holder is cut off in two stages. First, other replicas receive no messages from the holder.
/// In the second stage, the holder receives no messages either. This stage begins only when no
/// replica renews its promises to the holder any more. If the stage began earlier, a promise in
/// transit would be lost, and its grantor would wait.
fn drift(scenario: &mut Scenario, rng: &mut Pcg64Mcg) {
    let ms = Duration::from_millis;
    let world = &mut scenario.world;
    let params = &mut world.replica.params;
    params.t_lease = ms(10_000);
    params.t_guard = ms(50);
    params.renew = ms(200);
    params.t_grace = ms(1000);
    world.faults = Faults::default();
    for links in &mut world.one_way_ns {
        for link in links {
            *link = rng.random_range(200_000..2_000_000);
        }
    }
    world.watched = false;
    scenario.load = ClientLoad {
        clients: 2,
        window: 64,
        burst: 1,
        rate: scenario.load.rate,
        keys: rng.random_range(1..4),
        reads: 0.95,
        rare: 0.0,
        twice: 0.0,
        retry_timeout_ns: 1_000_000_000,
        silence_ns: None,
        large: 0,
        abandons: 0.0,
        abandon_timeout_ns: 0,
        renews: 0.0,
        hangs_up: 0.0,
        records: None,
        txns: 0.0,
        txn_rewrites: 0.0,
    };
    let second = 1_000_000_000;
    scenario.plan = FaultPlan::isolating(Isolation {
        mute_ns: 3 * second / 2,
        apart_ns: 11 * second,
        well_ns: 4 * second,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::run;
    use crate::scenario::Choices;

    fn noticed(seed: u64, self_test: ClockSelfTest, drift_ppm: u32) -> Option<&'static str> {
        let choices = Choices {
            drift_ppm,
            self_test: Some(self_test),
            ..Choices::default()
        };
        let outcome = run(&Scenario::draw(seed, &choices), None);
        outcome.violation.map(|violation| violation.oracle)
    }

    #[test]
    fn ten_times_the_bound_of_drift_serves_a_stale_read_and_the_bound_itself_none() {
        let stale = |oracle| ClockSelfTest::Drift.expected_oracles().contains(&oracle);
        let beyond = |seed: &u64| noticed(*seed, ClockSelfTest::Drift, 10_000).is_some_and(stale);
        let found = (0..30).find(beyond);
        let seed = found.expect("some of these seeds serve a stale read");
        assert_eq!(noticed(seed, ClockSelfTest::Drift, 1000), None);
    }

    #[test]
    fn a_clock_that_jumps_is_noticed() {
        let found =
            (0..30).any(|seed| noticed(seed, ClockSelfTest::Jump, 1000) == Some("containment"));
        assert!(found);
    }
}
