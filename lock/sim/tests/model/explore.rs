//! Exploration of scenarios, and reports of the results.

use std::collections::BTreeMap;

use leasehold_lock_core::mutants::LockRule;
use stateright::{Checker, Model};

use super::model::{Group, MILESTONES, Milestone};
use super::scenario::Scenario;
use super::world::Violation;

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
        let checker = Group::new(scenario).checker();
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
        if let Some((_, path)) = checker.discoveries().into_iter().next() {
            for (state, action) in path.into_vec() {
                println!("  {state:?}\n    then {action:?}");
            }
            panic!("{name}: there is a violation");
        }
        assert!(checker.is_done(), "{name}: not exhausted");
        for seen in MILESTONES {
            *reached.entry(seen).or_default() += checker.model().times(seen);
        }
    }
    println!("  transitions that brought: {reached:?}");
    reached
}

/// Number of states after which a hunt ends without a result.
const HUNT_MAX: usize = 12_000_000;

/// Explores a scenario with members that do not apply `rule`, until a wrong state is found. Returns
/// the violation, and the number of actions that lead to it. `None` if no state is wrong.
#[cfg_attr(not(feature = "mutants"), allow(dead_code))]
pub fn hunt(mut scenario: Scenario, rule: LockRule) -> Option<(Violation, usize)> {
    scenario.without = Some(rule);
    let checker = Group::new(scenario)
        .checker()
        .target_state_count(HUNT_MAX)
        .spawn_bfs()
        .join();
    let path = checker.discoveries().into_values().next()?;
    let actions = path.clone().into_actions().len();
    Some((path.last_state().violation.clone()?, actions))
}
