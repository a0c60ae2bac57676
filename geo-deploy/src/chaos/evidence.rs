//! Files of a round with which a violation can be understood and reproduced.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::result::RoundResult;
use super::round::RoundFacts;
use crate::fault::FaultSpec;

/// Name of a file that exists only in the directories of rounds with a violation.
const VIOLATION: &str = "violation.txt";

/// Makes sure that the directory exists and is empty. If the directory has the evidence of a
/// violation from an earlier run, this directory is renamed, and a new one is created.
pub fn make_empty(dir: &Path) -> anyhow::Result<()> {
    if dir.join(VIOLATION).exists() {
        move_aside(dir)?;
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("emptying {}", dir.display()));
        }
        _ => {}
    }
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))
}

fn move_aside(dir: &Path) -> anyhow::Result<()> {
    let named = |number: u32| dir.with_extension(format!("violation-{number}"));
    let mut names = (1..).map(named);
    let aside = names.find(|aside| !aside.exists()).context("a free name")?;
    std::fs::rename(dir, &aside)
        .with_context(|| format!("moving {} to {}", dir.display(), aside.display()))
}

fn write(dir: &Path, name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// Writes the schedule in the format of experiment files.
pub fn write_schedule(dir: &Path, faults: &[FaultSpec]) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct File<'a> {
        fault: &'a [FaultSpec],
    }
    let text = toml::to_string(&File { fault: faults }).context("the schedule")?;
    write(dir, "schedule.toml", text)
}

/// Saves the violations, the histories and the fault log of a round. The files are stored beside
/// the logs and the data of the round's replicas.
pub fn save(dir: &Path, facts: &RoundFacts, result: &RoundResult) -> anyhow::Result<()> {
    write(dir, "faults.log", facts.account.log.join("\n") + "\n")?;
    let words: Vec<&str> = result.violations().map(String::as_str).collect();
    write(dir, VIOLATION, words.join("\n\n") + "\n")?;
    facts.record.history.save(&dir.join("history.bin"))?;
    facts.record.grouped().save(&dir.join("groups.bin"))?;
    write(dir, "ledger.txt", facts.record.ledger.text())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_the_same_directory_keeps_the_evidence_of_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let round = dir.path().join("round-1");
        for run in ["first", "second"] {
            make_empty(&round).unwrap();
            write(&round, VIOLATION, run).unwrap();
        }
        make_empty(&round).unwrap();
        assert_eq!(std::fs::read_dir(&round).unwrap().count(), 0);
        for (number, run) in [(1, "first"), (2, "second")] {
            let kept = dir.path().join(format!("round-1.violation-{number}"));
            assert_eq!(std::fs::read_to_string(kept.join(VIOLATION)).unwrap(), run);
        }
    }

    #[test]
    fn what_a_round_without_a_violation_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let round = dir.path().join("round-1");
        std::fs::create_dir(&round).unwrap();
        write(&round, "CA.log", "").unwrap();
        make_empty(&round).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(&round).unwrap().count(), 0);
    }
}
