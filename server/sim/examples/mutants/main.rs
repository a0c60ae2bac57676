//! Mutation testing of the safety rules: for each hazard rule of protocol §6, runs simulated seeds
//! without this rule. Reports which oracle caught each mutant, and after how many seeds. If nothing
//! notices that a rule is missing, nothing tests the rule.
//!
//! `make mutants` runs this program and writes `results/safety/mutants.md`.

#![allow(clippy::print_stdout)] // a program: output

mod hunt;
mod judge;
mod table;

use std::path::PathBuf;

use leasehold_leases::mutants::Rule;

use hunt::Hunt;

const USAGE: &str = "\
usage: mutants [--seeds N] [--rounds R] [--from SEED] [--seconds S] [--only RULE]... [--out FILE]
  --seeds    seeds tried for a rule in a round before it counts as missed (500)
  --rounds   rounds, each with other seeds; a rule must be caught in most (5)
  --from     the first of them (0)
  --seconds  virtual time in which each begins requests (30)
  --only     a rule, by the beginning of its name, such as H17 or H17PerConfig; may be repeated
  --out      where the table goes, in Markdown; nowhere if left out";

struct Options {
    hunt: Hunt,
    only: Vec<String>,
    out: Option<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        hunt: Hunt {
            from: 0,
            seeds: 500,
            rounds: 5,
            run_ns: 30_000_000_000,
            baseline_failures: Default::default(),
        },
        only: Vec::new(),
        out: None,
    };
    #[allow(clippy::disallowed_methods)] // a command, not the pure core
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| {
            let parsed = text.parse::<u64>();
            parsed.map_err(|_| format!("{text} is no number"))
        };
        match word.as_str() {
            "--seeds" => options.hunt.seeds = number(value()?)?,
            "--rounds" => options.hunt.rounds = number(value()?)?.max(1),
            "--from" => options.hunt.from = number(value()?)?,
            "--seconds" => options.hunt.run_ns = number(value()?)? * 1_000_000_000,
            "--only" => options.only.push(value()?),
            "--out" => options.out = Some(value()?.into()),
            _ => return Err(format!("{word} is not known\n{USAGE}")),
        }
    }
    Ok(options)
}

fn rules(only: &[String]) -> Vec<Rule> {
    let wanted = |rule: &Rule| {
        let name = format!("{rule:?}");
        only.is_empty() || only.iter().any(|start| name.starts_with(start))
    };
    Rule::ALL.iter().copied().filter(wanted).collect()
}

fn main() -> Result<(), String> {
    let options = options()?;
    judge::silence_panics();
    let mut rows = Vec::new();
    for rule in rules(&options.only) {
        let named = !options.only.is_empty();
        let hunted = named || table::directed_test(rule).is_none();
        let hunted = hunted.then(|| options.hunt.run(rule));
        println!("{}", table::line(rule, hunted.as_ref()));
        rows.push((rule, hunted));
    }
    let summary = table::summary(&rows);
    println!("\n{summary}");
    if let Some(path) = &options.out {
        let page = table::page(&options.hunt, &rows, &summary);
        #[allow(clippy::disallowed_methods)] // as above
        std::fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let baseline_failures = options
        .hunt
        .baseline_failures
        .into_inner()
        .expect("no holder panicked");
    for (seed, violation) in &baseline_failures {
        let (oracle, text) = (&violation.oracle, table::short(&violation.text));
        println!("seed {seed} fails with every rule in force, by {oracle}: {text}");
    }
    let missed = table::missed(&rows);
    match (missed.is_empty(), baseline_failures.is_empty()) {
        (true, true) => Ok(()),
        (false, _) => Err(format!("not caught by any seed: {missed:?}")),
        (true, false) => Err("seeds fail with every rule in force".to_owned()),
    }
}
