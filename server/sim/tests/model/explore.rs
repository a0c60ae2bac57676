//! Exploration of scenarios, and reports of the results.

use std::collections::BTreeMap;

use leasehold_leases::mutants::Rule;
use stateright::{Checker, Model};

use super::model::{Leasehold, MILESTONES, Milestone};
use super::scenario::Scenario;

/// Visits every state of all scenarios. Returns the number of transitions that brought each
/// milestone.
///
/// # Panics
/// If a state is wrong.
// The time is measured only for the reader of the report.
#[allow(clippy::disallowed_methods, clippy::disallowed_types)]
pub fn explore(scenarios: Vec<Scenario>) -> BTreeMap<Milestone, u64> {
    let mut reached: BTreeMap<Milestone, u64> = BTreeMap::new();
    for scenario in scenarios {
        let name = scenario.name.clone();
        let began = std::time::Instant::now();
        let checker = Leasehold::new(scenario, None).checker().threads(2);
        let checker = checker.spawn_dfs().join();
        println!(
            "{name}: {} states generated, {} unique, depth {}, {:.1} s, {}",
            checker.state_count(),
            checker.unique_state_count(),
            checker.max_depth(),
            began.elapsed().as_secs_f64(),
            if checker.is_done() {
                "exhausted"
            } else {
                "not exhausted"
            },
        );
        if let Some((property, path)) = checker.discoveries().into_iter().next() {
            for (state, action) in path.into_vec() {
                println!("  {state:?}\n    then {action:?}");
            }
            panic!("{name}: not so: {property}");
        }
        assert!(checker.is_done(), "{name}: not exhausted");
        for seen in MILESTONES {
            *reached.entry(seen).or_default() += checker.model().times(seen);
        }
    }
    println!("  transitions that brought: {reached:?}");
    reached
}

/// Explores a scenario with replicas that do not apply `rule`, until a wrong state is found.
/// Returns the property that the state violates, and the number of actions that lead to the state.
/// `None` if no state is wrong.
#[cfg_attr(not(feature = "mutants"), allow(dead_code))]
pub fn hunt(scenario: Scenario, rule: Rule) -> Option<(&'static str, usize)> {
    let checker = Leasehold::new(scenario, Some(rule)).checker().threads(2);
    let checker = checker
        .finish_when(stateright::HasDiscoveries::Any)
        .target_state_count(2_000_000)
        .spawn_dfs()
        .join();
    let found = checker.discoveries().into_iter();
    let mut found: Vec<_> = found
        .map(|(property, path)| (property, path.into_actions().len()))
        .collect();
    found.sort_unstable();
    found.first().copied()
}
