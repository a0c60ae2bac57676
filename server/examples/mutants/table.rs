//! The table of mutants.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use leases::mutants::Rule;

use super::hunt::{Caught, Hunt};

/// A rule and the seed that noticed its absence.
pub type Row = (Rule, Option<Caught>);

/// Hazards that seeds cannot notice, each with a directed test that does. The
/// tests named here fail without their rule: `cargo test --features mutants`.
pub const DIRECTED: &[(u8, &str, &str)] = &[(
    24,
    "h24_a_barrier_on_a_dead_entry_falls",
    "costs local reads while nobody writes; neither safety nor an answer",
)];

/// The test that notices what no seed can.
pub fn directed_test(rule: Rule) -> Option<&'static str> {
    let mut tests = DIRECTED.iter();
    let of = tests.find(|(hazard, ..)| *hazard == rule.hazard());
    of.map(|(_, test, _)| *test)
}

/// The beginning of a text.
pub fn short(text: &str) -> String {
    text.chars().take(140).collect()
}

/// One line of progress.
pub fn line(rule: Rule, caught: Option<&Caught>) -> String {
    let name = format!("{rule:?}");
    match caught {
        Some(caught) => {
            let text = short(&caught.violation.text);
            let oracle = &caught.violation.oracle;
            let after = caught.after;
            format!("{name:18} after {after:4} seeds by {oracle}: {text}")
        }
        None => match directed_test(rule) {
            Some(test) => format!("{name:18} is left to the test {test}"),
            None => format!("{name:18} not caught"),
        },
    }
}

/// Rules that seeds should have caught and have not.
pub fn missed(rows: &[Row]) -> Vec<Rule> {
    let missed = rows
        .iter()
        .filter(|(rule, caught)| caught.is_none() && directed_test(*rule).is_none());
    missed.map(|(rule, _)| *rule).collect()
}

/// Totals.
pub fn summary(rows: &[Row]) -> String {
    let caught = rows.iter().filter(|(_, caught)| caught.is_some());
    let hazards: BTreeSet<u8> = caught.map(|(rule, _)| rule.hazard()).collect();
    let mut after: Vec<u64> = rows
        .iter()
        .filter_map(|(_, c)| c.as_ref())
        .map(|c| c.after)
        .collect();
    after.sort_unstable();
    let median = after.get(after.len() / 2).copied().unwrap_or(0);
    let most = after.last().copied().unwrap_or(0);
    format!(
        "{} of {} mutants caught by simulated seeds, of {} hazards; median after {median} seeds, at most {most}.",
        after.len(),
        rows.len(),
        hazards.len(),
    )
}

/// The table as a page.
pub fn page(hunt: &Hunt, rows: &[Row], summary: &str) -> String {
    let mut page = String::from("# Mutants\n\n");
    let (from, seeds, seconds) = (hunt.from, hunt.seeds, hunt.run_ns / 1_000_000_000);
    let _ = writeln!(
        page,
        "Each hazard rule of protocol §6, switched off: who notices, and after how many simulated seeds.\n\
         Written by `make mutants` (seeds {from} to {}, {seconds} s of requests each).\n\n{summary}\n",
        from + seeds - 1,
    );
    page.push_str("| rule | hazard | without it | noticed by | after seeds | seed |\n|---|---|---|---|---|---|\n");
    for (rule, caught) in rows {
        let (hazard, without) = (rule.hazard(), rule.without());
        let (by, after, seed) = match caught {
            Some(c) => (
                c.violation.oracle.clone(),
                c.after.to_string(),
                c.seed.to_string(),
            ),
            None => (directed(*rule), "–".to_owned(), "–".to_owned()),
        };
        let _ = writeln!(
            page,
            "| `{rule:?}` | {hazard} | {without} | {by} | {after} | {seed} |"
        );
    }
    page.push_str("\nHazards left to directed tests:\n\n");
    for (hazard, test, why) in DIRECTED {
        let _ = writeln!(page, "- {hazard}: `{test}`: {why}.");
    }
    page
}

fn directed(rule: Rule) -> String {
    let test = directed_test(rule);
    test.map_or("**nobody**".to_owned(), |test| format!("test `{test}`"))
}
