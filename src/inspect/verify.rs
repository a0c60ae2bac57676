//! `leasehold inspect verify`.

use leasehold_node::store::inspect::{
    CheckedParts, DirectoryProblem, DirectoryVerdict, StartEffect, StoppedDirectory,
};
use serde_json::{Value, json};

use super::DataArgs;
use super::words::{file_of, problem_json, torn_json, torn_text};
use crate::terminal::say;

pub fn run(args: &DataArgs) -> anyhow::Result<()> {
    let directory = StoppedDirectory::open(&args.dir)?;
    let verdict = directory.verify();
    directory.check_still_stopped()?;
    let is_unfinished = directory.is_unfinished();
    if args.json {
        let mut object = json(&verdict);
        object["directory"] = json!(args.dir.display().to_string());
        object["unfinished"] = json!(is_unfinished);
        say!("{object:#}");
    } else {
        print(&verdict);
    }
    let problems = &verdict.problems;
    if !problems.is_empty() {
        anyhow::bail!(
            "data directory {}: {} found; {}",
            args.dir.display(),
            count(problems.len()),
            conclusion(problems)
        );
    }
    if !args.json {
        let words = if is_unfinished {
            "its first start was interrupted; the next start makes it anew"
        } else {
            "no problems found: a start would succeed"
        };
        say!("{words}");
    }
    Ok(())
}

fn count(problems: usize) -> String {
    match problems {
        1 => "1 problem was".to_owned(),
        problems => format!("{problems} problems were"),
    }
}

/// Describes the effect of all problems together.
fn conclusion(problems: &[DirectoryProblem]) -> &'static str {
    let has = |effects: &[StartEffect]| problems.iter().any(|it| effects.contains(&it.effect));
    if has(&[StartEffect::Refused, StartEffect::Unwritable]) {
        "a start would not succeed"
    } else if has(&[StartEffect::Unreadable]) {
        "not everything could be checked"
    } else if has(&[StartEffect::Unnoticed]) {
        "a start would succeed, but the node must not be started"
    } else {
        "a start would succeed, but the disk is not to be trusted"
    }
}

fn print(verdict: &DirectoryVerdict) {
    let CheckedParts {
        segments,
        groups,
        records,
        entries,
        tables,
        rows,
    } = verdict.checked;
    say!(
        "checked: log with {segments} segments, {groups} groups, {records} records, {entries} entries; \
         RocksDB with {tables} tables, {rows} rows"
    );
    for torn in &verdict.torn {
        let file = file_of(torn.segment);
        say!("torn: {file}, byte {}: {}", torn.offset, torn_text(torn));
    }
    for problem in &verdict.problems {
        say!("problem: {problem}");
        say!("  effect: {}", problem.effect.words());
        say!("  advice: {}", problem.effect.advice());
    }
}

fn json(verdict: &DirectoryVerdict) -> Value {
    let CheckedParts {
        segments,
        groups,
        records,
        entries,
        tables,
        rows,
    } = verdict.checked;
    let torn = verdict.torn.iter().map(torn_json);
    let problems = verdict.problems.iter().map(problem_json);
    json!({
        "ok": verdict.problems.is_empty(),
        "checked": {
            "segments": segments,
            "groups": groups,
            "records": records,
            "entries": entries,
            "tables": tables,
            "rows": rows,
        },
        "torn": torn.collect::<Vec<_>>(),
        "problems": problems.collect::<Vec<_>>(),
    })
}
