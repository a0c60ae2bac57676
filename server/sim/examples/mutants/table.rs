//! The table of mutants, with the result of the hunt for each.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use leasehold_leases::mutants::Rule;

use super::hunt::{Detection, Hunt, HuntResult};

/// A rule and the result of the hunt for the mutant without this rule; `None` if there was no hunt.
pub type Row = (Rule, Option<HuntResult>);

/// Rules that can be switched off without a failure at any seed. Each rule has a directed test that
/// fails without the rule. The first half of `make mutants` checks that this test fails.
const DIRECTED: &[(Rule, &str, &str)] = &[
    (
        Rule::H24Falls,
        "h24_a_barrier_on_a_dead_entry_falls",
        "costs local reads while nobody writes, but no answer is wrong or late",
    ),
    (
        Rule::H31Copies,
        "h31_a_later_copy_of_a_write_that_found_no_room_is_in_flight",
        "a restarted leader must find two copies of one write, and room is made between them",
    ),
    (
        Rule::H31Unexecuted,
        "h31_a_committed_write_is_in_flight_until_it_is_executed",
        "a copy must reach a leader that begins before it has executed the first: one seed in a thousand notices",
    ),
    (
        Rule::H66Executed,
        "h66_an_executed_slot_is_not_accepted_below_the_promised_ballot",
        "an entry of a deposed leader must arrive after the slot was executed with another value: one seed in two thousand notices",
    ),
    (
        Rule::H71Configured,
        "h71_a_restart_does_not_replace_the_choice_of_an_operator",
        "a strategy that no operator chose comes into force; no answer is wrong or late",
    ),
    (
        Rule::H81Leaps,
        "h81_a_round_near_the_limit_wedges_nobody",
        "simulated replicas say nothing that is not so",
    ),
    (
        Rule::H92Earlier,
        "h92_what_an_earlier_run_asked_for_is_not_taken",
        "an answer must outlast a restart that forgets a promise, and arrive before the next leader speaks",
    ),
    (
        Rule::H114Segment,
        "h114_a_place_in_an_earlier_use_of_the_file_is_not_read",
        "a file must be used again while it is read, with a record as long at the same place: one seed in several hundred notices",
    ),
    (
        Rule::H117Behind,
        "h117_damage_is_not_taken_for_a_torn_write",
        "simulated disks lose unsynced sectors, and damage no others",
    ),
    (
        Rule::H117Follows,
        "h117_a_segment_continues_the_one_before_it",
        "simulated disks lose unsynced sectors, and damage no others",
    ),
];

/// Returns the directed test that fails when `rule` is switched off; `None` if seeds can catch this
/// mutant.
pub fn directed_test(rule: Rule) -> Option<&'static str> {
    let mut tests = DIRECTED.iter();
    let of = tests.find(|(of, ..)| *of == rule);
    of.map(|(_, test, _)| *test)
}

fn median(hunted: &Option<HuntResult>) -> Option<&Detection> {
    hunted.as_ref()?.median()
}

/// Returns the first line of a text, shortened if it is long.
pub fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(140).collect()
}

/// Returns the names of the oracles that caught the mutant in any round.
fn oracles(hunted: &HuntResult) -> String {
    let rounds = hunted.caught.iter();
    let names: BTreeSet<&str> = rounds.map(|c| c.violation.oracle.as_str()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns a text with the numbers of seeds that the rounds needed, in rising order.
fn seeds(hunted: &HuntResult) -> String {
    let mut after: Vec<String> = hunted.caught.iter().map(|c| c.after.to_string()).collect();
    after.resize(hunted.rounds as usize, "–".to_owned());
    after.join(", ")
}

/// Returns a line that reports the progress of the hunts.
pub fn line(rule: Rule, hunted: Option<&HuntResult>) -> String {
    let name = format!("{rule:?}");
    match (hunted, directed_test(rule)) {
        (Some(hunted), _) => {
            let first = hunted.caught.first();
            let text = first.map_or_else(String::new, |caught| short(&caught.violation.text));
            let (after, by) = (seeds(hunted), oracles(hunted));
            format!("{name:18} after {after} seeds, by {by}: {text}")
        }
        (None, Some(test)) => format!("{name:18} is left to the test {test}"),
        (None, None) => format!("{name:18} was not hunted"),
    }
}

/// Returns the rules that are tested too little: most rounds did not catch the mutant without the
/// rule, and no directed test covers the rule.
pub fn missed(rows: &[Row]) -> Vec<Rule> {
    let missed = rows
        .iter()
        .filter(|(rule, hunted)| median(hunted).is_none() && directed_test(*rule).is_none());
    missed.map(|(rule, _)| *rule).collect()
}

/// Returns the totals of the table.
pub fn summary(rows: &[Row]) -> String {
    let caught: Vec<(Rule, u64)> = rows
        .iter()
        .filter_map(|(rule, hunted)| Some((*rule, median(hunted)?.after)))
        .collect();
    let hazards: BTreeSet<u8> = caught.iter().map(|(rule, _)| rule.hazard()).collect();
    let mut after: Vec<u64> = caught.iter().map(|(_, after)| *after).collect();
    after.sort_unstable();
    let middle = after.get(after.len() / 2).copied().unwrap_or(0);
    let most = after.last().copied().unwrap_or(0);
    format!(
        "{} of {} mutants, of {} hazards, are caught by simulated seeds. Of the medians of their rounds \
         half are at most {middle} seeds, and none is above {most}.",
        after.len(),
        rows.len(),
        hazards.len(),
    )
}

/// Returns the table as a page.
pub fn page(hunt: &Hunt, rows: &[Row], summary: &str) -> String {
    let mut page = String::from("# Mutants\n\n");
    let (rounds, seeds_max, seconds) = (hunt.rounds, hunt.seeds, hunt.run_ns / 1_000_000_000);
    let _ = writeln!(
        page,
        "Each hazard rule of protocol §6, switched off: who notices, and after how many simulated seeds. Written \
         by\n`make mutants`: {rounds} rounds of up to {seeds_max} seeds, {seconds} s of requests each; a seed that fails \
         with the rule in force\ndoes not count. `assertion` is the replica's own.\n\n{summary}\n",
    );
    page.push_str("| rule | hazard | without it | noticed by | after seeds, by round | a seed |\n");
    page.push_str("|---|---|---|---|---|---|\n");
    for (rule, hunted) in rows {
        let (hazard, without) = (rule.hazard(), rule.without());
        let (by, after, seed) = hunt_cells(*rule, hunted.as_ref());
        let _ = writeln!(
            page,
            "| `{rule:?}` | {hazard} | {without} | {by} | {after} | {seed} |"
        );
    }
    page.push_str("\nRules left to directed tests:\n\n");
    for (rule, test, why) in DIRECTED {
        let _ = writeln!(page, "- `{rule:?}`: `{test}`: {why}.");
    }
    page
}

fn hunt_cells(rule: Rule, hunted: Option<&HuntResult>) -> (String, String, String) {
    match (hunted, directed_test(rule)) {
        (Some(hunted), _) if !hunted.caught.is_empty() => {
            let seed = hunted.caught[0].seed.to_string();
            (oracles(hunted), seeds(hunted), seed)
        }
        (None, Some(test)) => (format!("test `{test}`"), "–".into(), "–".into()),
        _ => ("**nobody**".into(), "–".into(), "–".into()),
    }
}
