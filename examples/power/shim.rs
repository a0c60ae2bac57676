//! Compilation of the shim, which records the file operations of a process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

const SOURCE: &str = include_str!("shim.c");
/// Maximum delay, in µs, that the shim adds to a sync. Without this delay, few writes would wait
/// for a sync when the power fails.
const DELAY_US: &str = "4000";

/// The compiled shim.
#[derive(Clone, Debug)]
pub struct Shim {
    library: PathBuf,
}

impl Shim {
    /// Compiles the shim into a folder.
    pub fn compile(folder: &Path) -> anyhow::Result<Shim> {
        if !cfg!(target_os = "linux") {
            bail!("power failures are made with LD_PRELOAD: run this on Linux");
        }
        let source = folder.join("shim.c");
        let library = folder.join("shim.so");
        let written = std::fs::write(&source, SOURCE);
        written.with_context(|| format!("writing {}; is there space?", source.display()))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-shared", "-fPIC", "-o"]);
        compiler.arg(&library).arg(&source);
        let made = compiler
            .args(["-ldl", "-lpthread"])
            .stdin(Stdio::null())
            .output();
        let made = made.context("cc does not start; install a C compiler, as `make setup` does")?;
        if !made.status.success() {
            let problem = String::from_utf8_lossy(&made.stderr);
            bail!(
                "cc cannot compile examples/power/shim.c; mend it:\n{}",
                problem.trim()
            );
        }
        Ok(Shim { library })
    }

    /// Makes a process record its operations below `disk`. The process writes the record to the
    /// file `trace`.
    pub fn record(&self, process: &mut Command, disk: &Path, trace: &Path) {
        process.env("LD_PRELOAD", &self.library);
        process.env("POWER_ROOT", disk).env("POWER_TRACE", trace);
        process.env("POWER_DELAY_US", DELAY_US);
    }
}
