//! Positive controls: runs outside what is assumed of clocks, in which a rule must
//! be seen broken. A simulator that finds nothing there would find nothing anywhere.

use std::time::Duration;

use rand::RngExt as _;
use rand_pcg::Pcg64Mcg;

use super::network::Faults;
use super::scenario::Scenario;
use super::swarm::{Isolation, Plan};
use super::workload::Load;

/// An assumption that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Clocks drift further than leases count with (`Choices::drift_ppm`). Clients
    /// alone judge: they must be served a stale read.
    Drift,
    /// Clocks jump ahead by seconds; every oracle judges.
    Jump,
}

impl Control {
    /// Every control.
    pub const ALL: [Control; 2] = [Control::Drift, Control::Jump];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Control::Drift => "drift",
            Control::Jump => "jump",
        }
    }

    /// The oracles of which one must notice.
    pub fn judges(self) -> &'static [&'static str] {
        match self {
            Control::Drift => &["freshness", "histories"],
            Control::Jump => &["containment"],
        }
    }

    /// Makes the control's run out of a drawn one.
    pub fn arrange(self, scenario: &mut Scenario, rng: &mut Pcg64Mcg) {
        match self {
            Control::Drift => drift(scenario, rng),
            Control::Jump => scenario.plan = Plan::jumps(rng),
        }
    }
}

/// A stale read takes a holder that is cut off with its lease unexpired after all
/// that it was promised has ended elsewhere, and a client that asks it just then.
///
/// So leases are long, that drift adds up, and what hides it is short: the guard,
/// by which a grantor waits longer, and the links, by which it starts later. A
/// holder falls mute first and hears nothing more only when nobody renews its
/// promises any longer, or else a promise on its way would make grantors wait.
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
    scenario.load = Load {
        clients: 2,
        window: 64,
        burst: 1,
        rate: scenario.load.rate,
        keys: rng.random_range(1..4),
        reads: 0.95,
        rare: 0.0,
        twice: 0.0,
        patience_ns: 1_000_000_000,
        silence_ns: None,
        large: 0,
        gives_up: 0.0,
        timeout_ns: 0,
        renews: 0.0,
        hangs_up: 0.0,
        records: None,
    };
    let second = 1_000_000_000;
    scenario.plan = Plan::isolating(Isolation {
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

    fn noticed(seed: u64, control: Control, drift_ppm: u32) -> Option<&'static str> {
        let choices = Choices {
            drift_ppm,
            control: Some(control),
            ..Choices::default()
        };
        let outcome = run(&Scenario::draw(seed, &choices), None);
        outcome.violation.map(|violation| violation.oracle)
    }

    #[test]
    fn ten_times_the_bound_of_drift_serves_a_stale_read_and_the_bound_itself_none() {
        let stale = |oracle| Control::Drift.judges().contains(&oracle);
        let beyond = |seed: &u64| noticed(*seed, Control::Drift, 10_000).is_some_and(stale);
        let found = (0..30).find(beyond);
        let seed = found.expect("some of these seeds serve a stale read");
        assert_eq!(noticed(seed, Control::Drift, 1000), None);
    }

    #[test]
    fn a_clock_that_jumps_is_noticed() {
        let found = (0..30).any(|seed| noticed(seed, Control::Jump, 1000) == Some("containment"));
        assert!(found);
    }
}
