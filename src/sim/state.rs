//! A campaign on disk: its state, from which the same command goes on, its summary,
//! and the end of a failed seed's trace. Files are replaced whole, or not at all, and
//! one process at a time has the directory.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use leasehold_sim::saved::Saved;
use leasehold_sim::scenario::Scenario;
use leasehold_sim::trace::Trace;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;

use super::campaign::Course;
use super::choices::Asked;
use super::examine::{self, Failure};
use super::meter::Meter;
use super::single::{LINES, command, describe};
use super::summary::Summary;

/// Names the code that this program simulates (`build.rs`).
pub const SIMULATED: &str = env!("LEASEHOLD_SIMULATED");

/// A campaign's directory, if one was asked for.
pub struct Store {
    dir: Option<Claimed>,
    pub state: Saved,
}

impl Store {
    /// Finds the state that an earlier run left, or begins.
    ///
    /// # Errors
    /// The directory is in use, or has another campaign, or no readable one.
    pub fn open(
        dir: Option<&Path>,
        asked: &Asked,
        from: u64,
        twice: bool,
    ) -> anyhow::Result<Store> {
        let mut choices = asked.named();
        choices.push(("--twice", twice.to_string()));
        let choices = choices.into_iter();
        let choices = choices.map(|(flag, value)| (flag.to_owned(), value));
        let fresh = Saved::begin(SIMULATED, choices.collect(), from);
        let Some(dir) = dir else {
            let dir = None;
            return Ok(Store { dir, state: fresh });
        };
        let dir = Claimed::take(dir)?;
        let path = dir.join("state.json");
        let state = match std::fs::read(&path) {
            Ok(bytes) => goes_on(&path, &bytes, &fresh)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => fresh,
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let dir = Some(dir);
        Ok(Store { dir, state })
    }

    pub fn save(&mut self, course: &Course, meter: &Meter) -> anyhow::Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let mut state = self.state.clone();
        state.next = course.next();
        state.tally = course.tally().clone();
        state.cpu_ms = (meter.cpu_s() * 1000.0) as u64;
        state.wall_ms = (meter.wall_s() * 1000.0) as u64;
        replace(&dir.join("state.json"), &state.to_json())
    }

    pub fn write_summary(&self, summary: &Summary) -> anyhow::Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        replace(&dir.join("summary.json"), &json(summary)?)?;
        replace(&dir.join("summary.md"), &summary.page())
    }

    /// Runs a failed seed again and keeps the end of its trace; says where.
    pub fn write_violation(
        &self,
        failure: &Failure,
        asked: &Asked,
    ) -> anyhow::Result<Option<PathBuf>> {
        let Some(dir) = &self.dir else {
            return Ok(None);
        };
        let scenario = Scenario::draw(failure.seed, &asked.choices());
        let outcome = examine::run(&scenario, Some(Trace::keeping(LINES)));
        let mut text = format!("{}\n\n", command(failure.seed, asked));
        for line in outcome.trace.iter().flat_map(Trace::lines) {
            text.push_str(line);
            text.push('\n');
        }
        let (oracle, what) = (&failure.oracle, &failure.what);
        text.push_str(&format!("\n{}\n{oracle}: {what}\n", describe(&scenario)));
        let path = dir.join(&format!("violation-{}.txt", failure.seed));
        replace(&path, &text)?;
        Ok(Some(path))
    }
}

/// A lock on a directory, held until this is dropped or the process ends in any way.
struct Claimed {
    dir: PathBuf,
    _lock: File,
}

impl Claimed {
    /// Makes the directory if need be.
    fn take(dir: &Path) -> anyhow::Result<Claimed> {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("--out {}: making that directory", dir.display()))?;
        let path = dir.join("lock");
        let lock = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Claimed {
                dir: dir.to_owned(),
                _lock: lock,
            }),
            Err(Errno::WOULDBLOCK) => bail!(
                "another process runs a campaign in {}; let it end, interrupt it, or choose \
                 another --out",
                dir.display()
            ),
            Err(error) => Err(error).with_context(|| format!("locking {}", path.display())),
        }
    }

    fn join(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn goes_on(path: &Path, bytes: &[u8], fresh: &Saved) -> anyhow::Result<Saved> {
    let read = Saved::read(bytes);
    let state = read.and_then(|state| state.goes_on_as(fresh).map(|()| state));
    state.with_context(|| path.display().to_string())
}

fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Writes a file next to the old one, then puts it in its place.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let beside = path.with_extension("tmp");
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().with_context(|| format!("writing {}", path.display()))
}
