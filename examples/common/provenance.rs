//! Origin of results: the program that was measured, the machine, and the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// Description of a program that was measured. The results of one run may come from several
/// programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Program {
    /// Version that the program reports.
    pub version: String,
    /// Revision of the program's sources, if it is known.
    pub revision: String,
    /// Time at which the file of the program was last written, in UTC.
    pub built: String,
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Program {
            version,
            revision,
            built,
        } = self;
        if revision.is_empty() {
            write!(f, "a program that was not noted")
        } else {
            write!(f, "{version}, revision {revision}, built {built}")
        }
    }
}

/// Returns the program to measure, and its description. If no `binary` is given, this is the program
/// from the same build, with the revision of the sources in this directory.
pub fn choose(binary: Option<&Path>, revision: Option<&str>) -> anyhow::Result<(PathBuf, Program)> {
    let chosen = match binary {
        Some(binary) => std::path::absolute(binary).context("--binary")?,
        None => beside()?,
    };
    let revision = match (revision, binary) {
        (Some(revision), _) => revision.to_owned(),
        (None, None) => revision_here(),
        (None, Some(_)) => "not known".to_owned(),
    };
    let program = describe(&chosen, revision)?;
    Ok((chosen, program))
}

/// Returns the path of the program `leasehold` from the same build. The program is in the folder
/// above the folder of the examples.
fn beside() -> anyhow::Result<PathBuf> {
    let this = std::env::current_exe().context("finding this program")?;
    let folder = this.parent().and_then(std::path::Path::parent);
    let program = folder.map(|folder| folder.join("leasehold"));
    let program = program.filter(|program| program.is_file());
    program.context("--binary: there is no leasehold beside this program; build it, or name one")
}

/// Describes the program in the file `binary`.
fn describe(binary: &Path, revision: String) -> anyhow::Result<Program> {
    let version = output_of(Command::new(binary).arg("--version"))
        .with_context(|| format!("starting {}", binary.display()))?;
    let mut date = Command::new("date");
    let date = date.arg("-u").arg("-r").arg(binary).arg("+%F %H:%M UTC");
    Ok(Program {
        version,
        revision,
        built: output_of(date).unwrap_or_default(),
    })
}

/// Returns the revision of the sources in this directory. If the sources differ from the committed
/// revision, the returned text ends with `-dirty`.
fn revision_here() -> String {
    let mut git = Command::new("git");
    let git = git.args(["describe", "--always", "--dirty", "--exclude", "*"]);
    let text = output_of(git).ok().filter(|text| !text.is_empty());
    text.unwrap_or_else(|| "not known".to_owned())
}

fn output_of(command: &mut Command) -> std::io::Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the command of this process. Directories are omitted, because they mean nothing on
/// another machine.
pub fn command() -> String {
    let words = std::env::args().map(|word| match word.rsplit_once('/') {
        Some((_, name)) => name.to_owned(),
        None => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the names of the processors of this machine.
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models = info
        .lines()
        .filter_map(|line| line.strip_prefix("model name"));
    let models: Vec<&str> = models
        .map(|model| model.trim_start_matches([' ', '\t', ':']))
        .collect();
    let model = models.first().copied().unwrap_or("an unknown processor");
    format!("{} x {model}", models.len())
}
