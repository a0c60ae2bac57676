//! `leasehold kv export`.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use leasehold_ycsb::output::finish;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;

use super::json;
use super::notation::Notation;
use super::pages::Pages;
use super::progress::CopyProgress;
use super::range::KeysLeft;
use super::replica::Asked;
use super::scan::KeyPartArgs;
use crate::connector::Connector;
use crate::terminal::{Interrupted, interrupted, is_closed, note, print_in_background};

/// Extension that the name of the file has until the export is complete.
const UNFINISHED: &str = ".part";

/// Length of the part at the end of a file that is read first to find the last line.
const TAIL_BYTES: u64 = 64 << 10;

/// Maximum length of the part at the end of a file that is read to find the last line. It has room
/// for two of the longest lines of an export.
const LAST_LINES_BYTES_MAX: u64 = 16 << 20;

#[derive(Args)]
pub struct ExportArgs {
    /// The new file; `-`: standard output. Until the export is complete, the name of the file ends with
    /// .part
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    part: KeyPartArgs,
    /// Continues an unfinished export: removes an incomplete last line of FILE.part, and begins after the
    /// last key. Give the same --prefix and --after as the first time, because the file does not contain
    /// them
    #[arg(long)]
    resume: bool,
}

impl ExportArgs {
    /// Returns the keys to export; `None` if no key can be among them.
    pub fn range(&self, notation: Notation) -> anyhow::Result<Option<KeysLeft>> {
        if self.resume && self.is_standard_output() {
            bail!("--resume: standard output has no last key; name the file, or give --after KEY");
        }
        self.part.range(notation, "", "")
    }

    fn is_standard_output(&self) -> bool {
        self.file == Path::new("-")
    }

    pub async fn run(
        &self,
        range: Option<KeysLeft>,
        notation: Notation,
        connector: &Connector,
        is_verbose: bool,
    ) -> anyhow::Result<()> {
        let mut asked = Asked::connect(connector, is_verbose).await?;
        let (mut to, range) = if self.is_standard_output() {
            (Destination::StandardOutput, range)
        } else {
            let (file, range) = UnfinishedFile::open(&self.file, self.resume, range)?;
            (Destination::File(file), range)
        };
        let mut pages = Pages::new(range, None);
        // On a terminal, the progress would stand between the lines.
        let is_quiet = self.is_standard_output() && std::io::stdout().is_terminal();
        let mut progress = CopyProgress::begin("exported", None, is_quiet);
        let ended = tokio::select! {
            biased; // handles the signals before anything else
            () = interrupted() => Err(None),
            copied = copy(&mut pages, &mut asked, &mut to, notation, &mut progress) => {
                copied.map_err(Some)
            }
        };
        progress.clear();
        if is_closed() {
            finish().context("writing to standard output: the output is not complete")?;
            bail!("the reader of standard output has closed it: the output is not complete");
        }
        progress.conclude(ended.is_ok());
        let Err(error) = ended else {
            return to.complete();
        };
        let advice = match to {
            Destination::StandardOutput => "the output is not complete".to_owned(),
            Destination::File(file) => file.give_up(),
        };
        Err(match error {
            Some(error) => error.context(advice),
            None => Interrupted(format!("interrupted: {advice}")).into(),
        })
    }
}

/// File of an export that is not complete yet. No other export can write it.
struct UnfinishedFile {
    file: File,
    path: PathBuf,
    /// Name of the file when the export is complete.
    complete: PathBuf,
}

impl UnfinishedFile {
    /// Creates the file, or opens it if an unfinished export is continued. Returns the keys that are
    /// still to be exported, too.
    fn open(
        complete: &Path,
        continues: bool,
        range: Option<KeysLeft>,
    ) -> anyhow::Result<(UnfinishedFile, Option<KeysLeft>)> {
        let name = complete.display();
        let exists = complete.symlink_metadata().is_ok();
        let mut path = OsString::from(complete);
        path.push(UNFINISHED);
        let path = PathBuf::from(path);
        if exists && continues && path.symlink_metadata().is_err() {
            bail!("{name} is complete already; there is nothing to resume");
        }
        if exists {
            bail!("{name} exists and is not overwritten; name a new file");
        }
        let name = path.display();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let opened = if continues {
            options.open(&path)
        } else {
            Err(ErrorKind::NotFound.into())
        };
        let opened = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if continues {
                    note!("there is no {name}: the export begins anew");
                }
                options.create_new(true).open(&path)
            }
            opened => opened,
        };
        let mut file = match opened {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!("{name} is an unfinished export; continue it with --resume, or remove it")
            }
            opened => opened.with_context(|| format!("opening {name}"))?,
        };
        // Some file systems have no locks.
        if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            bail!("{name} is being written by another export");
        }
        let of_path = path.metadata().ok().map(|it| (it.dev(), it.ino()));
        let opened = file.metadata()?;
        if of_path != Some((opened.dev(), opened.ino())) {
            bail!("{name} has just been completed by another export");
        }
        let range = go_on(&mut file, range).with_context(|| name.to_string())?;
        let complete = complete.to_owned();
        let unfinished = UnfinishedFile {
            file,
            path,
            complete,
        };
        Ok((unfinished, range))
    }

    /// Waits until everything that was written is on the disk, and gives the file its name. An
    /// existing file is not overwritten.
    fn complete(&self) -> anyhow::Result<()> {
        let (from, to) = (&self.path, &self.complete);
        let synced = self.file.sync_all();
        synced.with_context(|| format!("writing {}", from.display()))?;
        let renamed = match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            // Some file systems do not know this flag.
            Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_err() => {
                std::fs::rename(from, to)
            }
            Err(Errno::INVAL | Errno::NOSYS) => Err(ErrorKind::AlreadyExists.into()),
            renamed => renamed.map_err(Into::into),
        };
        renamed.with_context(|| {
            let (from, to) = (from.display(), to.display());
            format!("{from} is complete, and could not be renamed to {to}; rename it yourself")
        })
    }

    /// Removes the file if nothing was exported. Returns advice for the user.
    fn give_up(self) -> String {
        let path = self.path.display();
        let is_empty = self.file.metadata().is_ok_and(|it| it.len() == 0);
        if is_empty && std::fs::remove_file(&self.path).is_ok() {
            return "nothing was exported".to_owned();
        }
        format!("{path} is not complete; the same command with --resume goes on")
    }
}

/// Prepares the file of an unfinished export: removes an incomplete last line. Returns the keys
/// after the last key of the file.
fn go_on(file: &mut File, range: Option<KeysLeft>) -> anyhow::Result<Option<KeysLeft>> {
    let (line, length) = last_line(file)?;
    let Some(line) = line else {
        let mut begun = Vec::new();
        file.rewind()?;
        let expected = json::LINE_BEGINNING;
        (&mut *file)
            .take(expected.len() as u64)
            .read_to_end(&mut begun)?;
        if !expected.starts_with(&begun) {
            bail!("--resume: it was not written by an export; name a new file");
        }
        file.set_len(0)?;
        file.rewind()?;
        return Ok(range);
    };
    let (key, _) = json::read_line(&line).context(
        "--resume: its last complete line was not written by an export; remove it, or name a new file",
    )?;
    let Some(range) = range.filter(|range| range.contains(&key)) else {
        bail!(
            "--resume: its last key is {}, which is outside --prefix or --after; give the same options as \
             for the first export",
            String::from_utf8_lossy(&Notation::Escapes.key(&key))
        );
    };
    file.set_len(length)?;
    file.seek(SeekFrom::End(0))?;
    Ok(range.after(&key))
}

/// Returns the last complete line of a file, and the length of the file up to the end of this line.
fn last_line(file: &mut File) -> anyhow::Result<(Option<Vec<u8>>, u64)> {
    let length = file.metadata()?.len();
    let mut wanted = TAIL_BYTES;
    loop {
        let start = length.saturating_sub(wanted);
        let mut tail = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        file.take(length - start).read_to_end(&mut tail)?;
        let end = tail.iter().rposition(|byte| *byte == b'\n');
        let before = end.and_then(|end| tail[..end].iter().rposition(|byte| *byte == b'\n'));
        match (end, before) {
            (Some(end), Some(before)) => {
                let line = tail[before + 1..end].to_vec();
                return Ok((Some(line), start + end as u64 + 1));
            }
            (Some(end), None) if start == 0 => {
                return Ok((Some(tail[..end].to_vec()), end as u64 + 1));
            }
            (None, _) if start == 0 => return Ok((None, 0)),
            _ if wanted >= LAST_LINES_BYTES_MAX => {
                bail!("--resume: its last line is longer than any of an export; name a new file")
            }
            _ => wanted *= 2,
        }
    }
}

/// The place to which lines are written.
enum Destination {
    StandardOutput,
    File(UnfinishedFile),
}

impl Destination {
    async fn write(&mut self, lines: Vec<u8>) -> anyhow::Result<()> {
        match self {
            Destination::StandardOutput => print_in_background(lines).await,
            Destination::File(to) => to.file.write_all(&lines).context("writing"),
        }
    }

    /// Ends the output after everything was written.
    fn complete(&self) -> anyhow::Result<()> {
        match self {
            Destination::StandardOutput => Ok(()),
            Destination::File(file) => file.complete(),
        }
    }
}

async fn copy(
    pages: &mut Pages,
    asked: &mut Asked<'_>,
    to: &mut Destination,
    notation: Notation,
    progress: &mut CopyProgress,
) -> anyhow::Result<()> {
    while let Some(entries) = pages.next(asked).await? {
        let mut lines = Vec::new();
        for entry in &entries {
            json::append_line(&mut lines, notation, &entry.key, Some(&entry.value), None)?;
        }
        let bytes = lines.len();
        to.write(lines).await?;
        if is_closed() {
            break;
        }
        progress.add(entries.len(), bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        file
    }

    #[test]
    fn the_last_complete_line_is_found_whatever_its_length() {
        for length in [
            1,
            100,
            TAIL_BYTES as usize - 1,
            TAIL_BYTES as usize,
            300_000,
        ] {
            let line = vec![b'x'; length];
            for before in [&b""[..], b"\n", b"first\n"] {
                for cut in [&b""[..], b"cut", &line] {
                    let text = [before, &line, b"\n", cut].concat();
                    let found = last_line(&mut file(&text)).unwrap();
                    let end = (text.len() - cut.len()) as u64;
                    assert_eq!(found, (Some(line.clone()), end));
                }
            }
            assert_eq!(last_line(&mut file(&line)).unwrap(), (None, 0));
        }
        assert_eq!(last_line(&mut file(b"")).unwrap(), (None, 0));
    }

    #[test]
    fn an_export_goes_on_after_the_last_complete_line() {
        let users = || Some(KeysLeft::of_prefix("users/".into()));
        let line = b"{\"key\":\"users/1\",\"value\":\"Ada\"}\n";
        let mut begun = file(&[line, &b"{\"key\":\"users/2"[..]].concat());
        let range = go_on(&mut begun, users()).unwrap().unwrap();
        assert_eq!(range.from, &b"users/1\0"[..]);
        begun.write_all(b"next").unwrap();
        let mut text = Vec::new();
        begun.rewind().unwrap();
        begun.read_to_end(&mut text).unwrap();
        assert_eq!(text, [line, &b"next"[..]].concat());

        assert_eq!(go_on(&mut file(b"{\"key"), users()).unwrap(), users());
        assert_eq!(go_on(&mut file(b""), users()).unwrap(), users());
        let mut foreign = file(b"secret");
        let error = go_on(&mut foreign, users()).unwrap_err();
        assert!(
            error.to_string().contains("not written by an export"),
            "{error}"
        );
        assert_eq!(foreign.metadata().unwrap().len(), 6);
        let other = Some(KeysLeft::of_prefix("jobs/".into()));
        let error = go_on(&mut file(line), other).unwrap_err().to_string();
        assert!(error.contains("users/1"), "{error}");
        let error = go_on(&mut file(b"poem\n"), users()).unwrap_err();
        assert!(error.to_string().contains("last complete line"), "{error}");
    }
}
