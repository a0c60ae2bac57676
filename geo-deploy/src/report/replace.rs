//! Replaces all files of the previous report together. The files of the new report are first
//! written to a separate directory. When all files are written, they are moved to their places.
//! Files that do not belong to a report are not touched.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use leasehold_histories::history::History;

/// Names of the files in a report. A report of a throughput experiment contains only some of these
/// files. All other reports contain all of them.
const NAMES: [&str; 7] = [
    "manifest.json",
    "summary.json",
    "report.md",
    "report.html",
    "cdf.csv",
    "events.jsonl",
    "latency.hlog",
];
/// Names of files that only some reports have.
const SOMETIMES: [&str; 3] = ["timeline.csv", "outages.csv", "course.csv"];

/// Name of a subdirectory of the output directory. This subdirectory contains the partial report of
/// an interrupted experiment.
pub const INCOMPLETE: &str = "incomplete";

/// Creates the directory `out` if necessary. Checks that a report and the files `histories` can be
/// written to `out`.
///
/// # Errors
/// Returns an error if the directory cannot be written. Also returns an error if the report or a
/// history would overwrite a file that does not belong to an earlier report.
pub fn prepare(out: &Path, histories: &[String]) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).with_context(|| {
        format!(
            "--out: {} cannot be made a directory; name one that can be written",
            out.display()
        )
    })?;
    tempfile::tempfile_in(out).with_context(|| {
        format!(
            "--out: nothing can be written into {}; name another directory",
            out.display()
        )
    })?;
    refuse_others(out, histories)?;
    refuse_others(&out.join(INCOMPLETE), histories)
}

/// Returns an error if the report or one of the files `histories` would overwrite a file that does
/// not belong to a report.
fn refuse_others(dir: &Path, histories: &[String]) -> anyhow::Result<()> {
    let of_others = |name: &str| {
        let name = dir.join(name);
        format!(
            "--out: {} is not of an earlier run, and is not replaced; name another directory",
            name.display()
        )
    };
    let is_there = |name: &&&str| dir.join(name).symlink_metadata().is_ok();
    if !holds_report(dir)
        && let Some(name) = NAMES.iter().chain(&SOMETIMES).find(is_there)
    {
        bail!(of_others(name));
    }
    for name in histories {
        let path = dir.join(name);
        let replaceable = !path.exists() || is_history(&path)?;
        ensure!(replaceable, of_others(name));
    }
    Ok(())
}

/// Replaces a report. `write` creates the files of the new report and its histories in an empty
/// directory. If `write` succeeds, the new files replace those in `out`, and the remaining files of
/// the previous report are removed. If `write` fails, `out` is not changed.
///
/// # Errors
/// Returns an error if a file cannot be written or replaced; the error names the file.
pub fn replace(out: &Path, write: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("creating {}", out.display()))?;
    let beside = tempfile::Builder::new().prefix(".new-").tempdir_in(out);
    let beside = beside.with_context(|| format!("making a directory in {}", out.display()))?;
    write(beside.path())?;
    let mut new = Vec::new();
    list(beside.path(), Path::new(""), &mut new)?;
    // The manifest is moved last, because it marks a directory that holds a report.
    new.sort_by_key(|name| (name == Path::new("manifest.json"), name.clone()));
    let old = leftovers(out, &new)?;
    for name in &new {
        let place = out.join(name);
        let made = place.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::rename(beside.path().join(name), &place))
            .with_context(|| format!("replacing {}", place.display()))?;
    }
    for path in old {
        std::fs::remove_file(&path)
            .with_context(|| format!("removing {}, of an earlier run", path.display()))?;
    }
    remove_incomplete(out, &new)
}

/// Removes the partial report of an earlier run, because there is a complete report now.
fn remove_incomplete(out: &Path, new: &[PathBuf]) -> anyhow::Result<()> {
    let dir = out.join(INCOMPLETE);
    if !holds_report(&dir) {
        return Ok(());
    }
    let mut names = leftovers(&dir, &[])?;
    names.extend(new.iter().map(|name| dir.join(name)));
    for path in names.iter().filter(|path| path.is_file()) {
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    }
    // Folders that contain other files stay.
    let folders = names.iter().filter_map(|path| path.parent());
    let mut folders: Vec<&Path> = folders.chain([dir.as_path()]).collect();
    folders.sort_by_key(|folder| std::cmp::Reverse(folder.components().count()));
    folders
        .iter()
        .for_each(|folder| _ = std::fs::remove_dir(folder));
    Ok(())
}

/// Returns true if a directory contains the manifest of a report.
fn holds_report(dir: &Path) -> bool {
    let Ok(text) = std::fs::read(dir.join("manifest.json")) else {
        return false;
    };
    let manifest: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    manifest["experiment"].is_object() && manifest["command"].is_array()
}

fn is_history(path: &Path) -> anyhow::Result<bool> {
    History::is_in(path).with_context(|| format!("reading {}", path.display()))
}

/// Returns the outdated files: files of the previous report that are not among the new files. A
/// file of a report is recognized by its name and contents.
fn leftovers(out: &Path, new: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut old = Vec::new();
    if holds_report(out) {
        old.extend(SOMETIMES.iter().map(PathBuf::from));
    }
    for entry in entries(out)? {
        let name = entry.file_name();
        let label = name.to_str().and_then(|name| name.strip_prefix("history-"));
        let named = label.is_some_and(|label| label.ends_with(".bin"));
        if named && entry.path().is_file() && is_history(&entry.path())? {
            old.push(PathBuf::from(name));
        }
    }
    let old = old.into_iter().filter(|name| !new.contains(name));
    let paths = old.map(|name| out.join(name));
    Ok(paths.filter(|path| path.exists()).collect())
}

/// Adds the files in `dir/below` and its subdirectories to `files`, as paths relative to `dir`.
fn list(dir: &Path, below: &Path, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in entries(&dir.join(below))? {
        let name = below.join(entry.file_name());
        if entry.path().is_dir() {
            list(dir, &name, files)?
        } else {
            files.push(name)
        }
    }
    Ok(())
}

fn entries(dir: &Path) -> anyhow::Result<Vec<std::fs::DirEntry>> {
    let read = std::fs::read_dir(dir).and_then(Iterator::collect);
    read.with_context(|| format!("listing {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "{\"experiment\": {}, \"command\": []}";

    fn put(dir: &Path, names: &[&str]) {
        for name in names {
            let bytes = match name.strip_prefix("history-") {
                Some(_) => History::new().to_bytes(),
                None if *name == "manifest.json" => MANIFEST.into(),
                None => (*name).into(),
            };
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }

    fn files(dir: &Path) -> Vec<String> {
        let mut files = Vec::new();
        list(dir, Path::new(""), &mut files).unwrap();
        let names = files.iter().map(|name| name.to_str().unwrap().to_owned());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    const BEFORE: [&str; 5] = [
        "history-LL.bin",
        "history-ML.bin",
        "manifest.json",
        "outages.csv",
        "report.md",
    ];

    #[test]
    fn a_report_that_cannot_be_written_leaves_the_one_before_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &BEFORE);
        let failed = replace(dir.path(), |new| {
            put(new, &["history-LL.bin", "report.md"]);
            std::fs::write(new.join("report.md"), "torn").unwrap();
            bail!("the disk is full")
        });
        assert!(failed.is_err());
        assert_eq!(files(dir.path()), BEFORE);
        let report = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
        assert_eq!(report, "report.md");
    }

    #[test]
    fn a_whole_report_removes_the_incomplete_one_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let incomplete = dir.path().join(INCOMPLETE);
        put(&incomplete, &BEFORE);
        put(&incomplete, &["plots/cdf.svg"]);
        let new = ["manifest.json", "plots/cdf.svg", "report.md"];
        let write = |new_dir: &Path| {
            put(new_dir, &new);
            Ok(())
        };
        replace(dir.path(), write).unwrap();
        assert_eq!(files(dir.path()), new);
        assert!(!incomplete.exists());
        put(&incomplete, &BEFORE);
        put(&incomplete, &["notes.txt"]);
        replace(dir.path(), write).unwrap();
        assert!(files(dir.path()).contains(&"incomplete/notes.txt".to_owned()));
    }

    #[test]
    fn a_report_replaces_its_own_files_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &BEFORE);
        put(dir.path(), &["plots/mine.svg", "notes.txt"]);
        std::fs::write(dir.path().join("history-of-rome.bin"), "a book").unwrap();
        let new = [
            "history-QL.bin",
            "manifest.json",
            "plots/cdf.svg",
            "report.md",
        ];
        prepare(dir.path(), &["history-QL.bin".to_owned()]).unwrap();
        replace(dir.path(), |beside| {
            put(beside, &new);
            Ok(())
        })
        .unwrap();
        let kept = ["history-of-rome.bin", "notes.txt", "plots/mine.svg"];
        let mut expected = [&new[..], &kept].concat();
        expected.sort_unstable();
        assert_eq!(files(dir.path()), expected);
    }

    #[test]
    fn files_of_others_are_refused_before_the_run() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &["report.md"]);
        let refused = prepare(dir.path(), &[]).unwrap_err().to_string();
        assert!(
            refused.contains("report.md is not of an earlier run"),
            "{refused}"
        );
        put(dir.path(), &["manifest.json"]);
        prepare(dir.path(), &[]).unwrap();
        std::fs::write(dir.path().join("history-LL.bin"), "a book").unwrap();
        prepare(dir.path(), &["history-QL.bin".to_owned()]).unwrap();
        let refused = prepare(dir.path(), &["history-LL.bin".to_owned()]);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("history-LL.bin is not of"), "{refused}");
        std::fs::write(dir.path().join("manifest.json"), "{}").unwrap();
        assert!(
            prepare(dir.path(), &[]).is_err(),
            "a manifest of something else"
        );
    }
}
