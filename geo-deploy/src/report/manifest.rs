//! Manifest of a result: the program, the machine and the command that made it.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ExperimentReport;

/// Program, machine and command that made a result. The text `unknown` stands for a value that
/// cannot be determined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// The command, as a list of arguments.
    pub command: Vec<String>,
    /// Start time, in s since 1970.
    pub started_unix_s: u64,
    /// Revision of the source code.
    pub revision: String,
    /// Whether the source code differed from the revision; `None` if that is not known.
    pub dirty: Option<bool>,
    /// Version of the compiler.
    pub compiler: String,
    /// Version of the program.
    pub version: String,
    /// Version of the operating system's kernel.
    pub kernel: String,
    /// Model name of the processors, and the number of processors.
    pub cpu: String,
    /// Clock source of the kernel.
    pub clock: String,
}

impl Manifest {
    /// Creates the manifest for a command. Inspects the machine, and the working copy from which
    /// the program was built.
    pub fn capture(mut command: Vec<String>) -> Manifest {
        // The directory of the program is removed, because it means nothing on another machine.
        if let Some(program) = command.first_mut() {
            let name = std::path::Path::new(program.as_str()).file_name();
            *program = name.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let status = git(&["status", "--porcelain", "--untracked-files=no"]);
        Manifest {
            command,
            started_unix_s: since_1970.map_or(0, |duration| duration.as_secs()),
            revision: git(&["rev-parse", "HEAD"]).unwrap_or_else(unknown),
            dirty: status.map(|changes| !changes.is_empty()),
            compiler: env!("LEASEHOLD_RUSTC").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").map_or_else(
                || std::env::consts::OS.to_owned(),
                |release| format!("Linux {release}"),
            ),
            cpu: cpu(),
            clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .unwrap_or_else(unknown),
        }
    }

    /// Returns the revision, shortened for display. A note is appended if the source code differed
    /// from the revision.
    pub(super) fn revision_shown(&self) -> String {
        let short: String = self.revision.chars().take(12).collect();
        match self.dirty {
            Some(true) => format!("{short} with changes"),
            _ => short,
        }
    }
}

/// Returns the contents of `manifest.json`.
pub(super) fn json(report: &ExperimentReport) -> anyhow::Result<Vec<u8>> {
    let measured = report.runs.iter().map(
        |run| json!({ "run": run.label, "rtt_ms": run.measured_rtt_ms, "probes": run.network }),
    );
    let mut manifest = serde_json::to_value(&report.manifest)?;
    let rest = json!({
        "backend": report.backend,
        "seed": report.seed,
        "durability": report.experiment.local.durability.name(),
        "sites": report.topology.names(),
        "rtt_asked_ms": report.topology.matrix(),
        "rtt_measured_ms": measured.collect::<Vec<_>>(),
        "experiment": report.experiment,
    });
    if let (Some(manifest), serde_json::Value::Object(rest)) = (manifest.as_object_mut(), rest) {
        manifest.extend(rest);
    }
    Ok(serde_json::to_vec_pretty(&manifest)?)
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// Runs git in the working copy from which the program was built, regardless of the current
/// directory. Returns `None` if the working copy no longer exists.
fn git(arguments: &[&str]) -> Option<String> {
    let built_from = ["-C", env!("CARGO_MANIFEST_DIR")];
    let command = Command::new("git")
        .args(built_from)
        .args(arguments)
        .output();
    let output = command.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn read(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

fn cpu() -> String {
    let info = read("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{count} x {}", model.unwrap_or("unknown"))
}
