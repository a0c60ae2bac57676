//! The files of a round: what is needed to understand a violation, and to see it again.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use super::ran::Ran;
use super::round::Lived;
use crate::fault::Fault;

/// A directory without anything of an earlier run in it.
pub fn make_empty(dir: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("emptying {}", dir.display()));
        }
        _ => {}
    }
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))
}

fn write(dir: &Path, name: &str, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// As experiments write them.
pub fn write_schedule(dir: &Path, faults: &[Fault]) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct File<'a> {
        fault: &'a [Fault],
    }
    let text = toml::to_string(&File { fault: faults }).context("the schedule")?;
    write(dir, "schedule.toml", text)
}

/// Adds what happened to the logs and data of a round.
pub fn keep(dir: &Path, lived: &Lived, ran: &Ran) -> anyhow::Result<()> {
    write(dir, "faults.log", lived.performed.log.join("\n") + "\n")?;
    let words: Vec<&str> = ran.violations().map(String::as_str).collect();
    write(dir, "violation.txt", words.join("\n\n") + "\n")?;
    lived.record.history.save(&dir.join("history.bin"))?;
    lived.record.grouped().save(&dir.join("groups.bin"))?;
    Ok(())
}
