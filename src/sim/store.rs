//! Files of a campaign: the state of the campaign, a summary, and the end of the trace of a failed
//! seed. The state allows the same command to continue the campaign. Each file is replaced in one
//! step. Only one process at a time can use the directory.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use leasehold_kernel::campaign::CampaignState;
use leasehold_kernel::trace::Trace;
use leasehold_sim::scenario::Scenario;
use leasehold_sim::tally::CampaignTally;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;

use super::campaign::CampaignProgress;
use super::choices::ResolvedChoices;
use super::progress::CampaignClock;
use super::seed::{self, SeedFailure};
use super::single::{LINES, command, describe_scenario};
use super::summary::CampaignSummary;

/// Identifier of the version of the code that this program simulates. It comes from `build.rs`.
pub const SIMULATED: &str = env!("LEASEHOLD_SIMULATED");

/// Directory in which a campaign is stored, if the user gave one.
pub struct CampaignStore {
    dir: Option<DirLock>,
    pub state: CampaignState<CampaignTally>,
}

impl CampaignStore {
    /// Loads the state that an earlier run stored, or begins a new campaign.
    ///
    /// # Errors
    /// Returns an error if another process uses the directory, or if the directory contains another
    /// campaign or an unreadable state.
    pub fn open(
        dir: Option<&Path>,
        resolved: &ResolvedChoices,
        from: u64,
        twice: bool,
    ) -> anyhow::Result<CampaignStore> {
        let mut choices = resolved.named();
        choices.push(("--twice", twice.to_string()));
        let choices = choices.into_iter();
        let choices = choices.map(|(flag, value)| (flag.to_owned(), value));
        let fresh = CampaignState::begin(SIMULATED, choices.collect(), from);
        let Some(dir) = dir else {
            let dir = None;
            return Ok(CampaignStore { dir, state: fresh });
        };
        let dir = DirLock::take(dir)?;
        let path = dir.join("state.json");
        let state = match std::fs::read(&path) {
            Ok(bytes) => resume(&path, &bytes, &fresh)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => fresh,
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        let dir = Some(dir);
        Ok(CampaignStore { dir, state })
    }

    pub fn save(
        &mut self,
        progress: &CampaignProgress,
        clock: &CampaignClock,
    ) -> anyhow::Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        let mut state = self.state.clone();
        state.next = progress.next();
        state.sums = progress.sums().clone();
        state.cpu_ms = (clock.cpu_s() * 1000.0) as u64;
        state.wall_ms = (clock.wall_s() * 1000.0) as u64;
        replace(&dir.join("state.json"), &state.to_json())
    }

    pub fn write_summary(&self, summary: &CampaignSummary) -> anyhow::Result<()> {
        let Some(dir) = &self.dir else {
            return Ok(());
        };
        replace(&dir.join("summary.json"), &json(summary)?)?;
        replace(&dir.join("summary.md"), &summary.page())
    }

    /// Runs a failed seed again, and stores the end of its trace. Returns the path of the trace.
    pub fn write_violation(
        &self,
        failure: &SeedFailure,
        resolved: &ResolvedChoices,
    ) -> anyhow::Result<Option<PathBuf>> {
        let Some(dir) = &self.dir else {
            return Ok(None);
        };
        let scenario = Scenario::draw(failure.seed, &resolved.choices());
        let outcome = seed::run(&scenario, Some(Trace::keeping(LINES)));
        let mut text = format!("{}\n\n", command(failure.seed, resolved));
        for line in outcome.trace.iter().flat_map(Trace::lines) {
            text.push_str(line);
            text.push('\n');
        }
        let (oracle, what) = (&failure.oracle, &failure.what);
        text.push_str(&format!(
            "\n{}\n{oracle}: {what}\n",
            describe_scenario(&scenario)
        ));
        let path = dir.join(&format!("violation-{}.txt", failure.seed));
        replace(&path, &text)?;
        Ok(Some(path))
    }
}

/// Lock on a directory. The lock ends when this value is dropped, or when the process ends in any
/// way.
struct DirLock {
    dir: PathBuf,
    _lock: File,
}

impl DirLock {
    /// Locks a directory. Creates the directory if necessary.
    fn take(dir: &Path) -> anyhow::Result<DirLock> {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("--out {}: making that directory", dir.display()))?;
        let path = dir.join("lock");
        let lock = File::create(&path).with_context(|| format!("making {}", path.display()))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(DirLock {
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

fn resume(
    path: &Path,
    bytes: &[u8],
    fresh: &CampaignState<CampaignTally>,
) -> anyhow::Result<CampaignState<CampaignTally>> {
    let read = CampaignState::<CampaignTally>::read(bytes);
    let state = read.and_then(|state| state.check_resume(fresh).map(|()| state));
    state.with_context(|| path.display().to_string())
}

fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Replaces a file: writes the new text to another file in the same directory, and then renames
/// that file.
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
