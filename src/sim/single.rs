//! `leasehold sim --seed`, which runs a single seed and shows its details.

use anyhow::bail;
use leasehold_kernel::network::Faults;
use leasehold_kernel::trace::Trace;
use leasehold_sim::run::ScenarioOutcome;
use leasehold_sim::scenario::Scenario;

use super::choices::ResolvedChoices;
use super::seed;
use crate::terminal::say;

/// Number of trace lines that usually suffice to find the cause of a failure.
pub const LINES: usize = 400;

/// Returns the command that repeats a seed and shows the end of the seed's trace.
pub fn command(seed: u64, resolved: &ResolvedChoices) -> String {
    let words = resolved.flags();
    format!("leasehold sim --seed {seed} --trace --lines {LINES}{words}")
}

/// Runs a seed, and prints its result. Before the result, prints the last `lines` lines of the
/// trace. If `lines` is 0, prints all lines; if `lines` is `None`, prints no line.
pub fn run(seed: u64, resolved: &ResolvedChoices, lines: Option<usize>) -> anyhow::Result<()> {
    let scenario = Scenario::draw(seed, &resolved.choices());
    let outcome = seed::run(&scenario, lines.map(Trace::keeping));
    for line in outcome.trace.iter().flat_map(Trace::lines) {
        say!("{line}");
    }
    say!("{}", describe_scenario(&scenario));
    say!("{}", describe_outcome(&outcome));
    match &outcome.violation {
        Some(violation) => {
            say!("{}: {}", violation.oracle, violation.what);
            bail!("seed {seed} violates {}", violation.oracle)
        }
        None => Ok(()),
    }
}

/// Describes the parameters of a run in words.
pub fn describe_scenario(scenario: &Scenario) -> String {
    let (replica, load) = (&scenario.world.replica, &scenario.load);
    let params = &replica.params;
    let faults: Vec<&str> = scenario.plan.faults().map(|fault| fault.name()).collect();
    format!(
        "seed {}: {} replicas under {}, lease {} ms, guard {} ms, grace {} ms; {} clients at \
         each, {} requests a second, {} keys; faults: {}; messages: {}",
        scenario.seed,
        replica.n,
        replica.strategies.names(),
        params.t_lease.as_millis(),
        params.t_guard.as_millis(),
        params.t_grace.as_millis(),
        load.clients,
        load.rate,
        load.keys,
        if faults.is_empty() {
            "none".to_owned()
        } else {
            faults.join("; ")
        },
        describe_message_faults(&scenario.world.faults),
    )
}

/// Describes the network faults. For each kind of fault, the description contains the share of
/// affected messages.
fn describe_message_faults(faults: &Faults) -> String {
    let shares = [
        ("lost", faults.loss),
        ("duplicated", faults.duplication),
        ("reordered", faults.reordering),
        ("again much later", faults.old),
    ];
    let some = shares.iter().filter(|(_, share)| *share > 0.0);
    let some: Vec<String> = some
        .map(|(what, share)| format!("{:.1}% {what}", share * 100.0))
        .collect();
    if some.is_empty() {
        "in order".to_owned()
    } else {
        some.join("; ")
    }
}

fn describe_outcome(outcome: &ScenarioOutcome) -> String {
    let paths = outcome.paths.iter();
    let paths: Vec<String> = paths.map(|(path, n)| format!("{n} {path}")).collect();
    format!(
        "ended after {:.3} virtual s: {} operations ({}), {} of unknown fate, {} reads within 10 ms \
         of a lease's end; digest {:016x}; {}",
        outcome.ended_ns as f64 / 1e9,
        outcome.answered,
        paths.join(", "),
        outcome.unknown,
        outcome.near_end,
        outcome.hash,
        match outcome.violation {
            Some(_) => "a violation",
            None => "no violation",
        }
    )
}
