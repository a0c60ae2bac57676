//! Spare segment files: filled with zeros ahead of their use, by a thread of their own.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::log_files::sync_folder;

/// Name of the spare file.
pub(super) const NAME: &str = "spare";
/// Number of bytes between two syncs of a spare file while it is filled. With a single long sync at
/// the end, syncs of the log would have to wait for it.
const SYNC_BYTES: usize = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Maker of spare files. There is at most one spare file.
pub(super) struct SpareMaker {
    folder: PathBuf,
    orders: Option<Sender<usize>>,
    made: Receiver<io::Result<File>>,
    /// Length in bytes of the spare file that was ordered and not yet taken; `None` if there is
    /// none.
    ordered: Option<usize>,
    thread: Option<JoinHandle<()>>,
}

impl SpareMaker {
    /// Starts the thread. A spare file that an earlier run left is removed.
    ///
    /// # Errors
    /// The operating system cannot start a thread, or cannot remove the file.
    pub(super) fn start(folder: &Path) -> io::Result<SpareMaker> {
        let path = folder.join(NAME);
        remove(&path)?;
        let (orders, ordered) = channel();
        let (report, made) = channel();
        let thread = std::thread::Builder::new()
            .name("segments".to_owned())
            .spawn(move || {
                while let Ok(bytes) = ordered.recv() {
                    if report.send(make(&path, bytes)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(SpareMaker {
            folder: folder.to_owned(),
            orders: Some(orders),
            made,
            ordered: None,
            thread: Some(thread),
        })
    }

    /// Orders a spare file of this length, unless one was ordered already.
    pub(super) fn prepare(&mut self, bytes: usize) {
        if self.ordered.is_none()
            && let Some(orders) = &self.orders
            && orders.send(bytes).is_ok()
        {
            self.ordered = Some(bytes);
        }
    }

    /// Moves a file of this length to `path`, and waits until the file is durable there.
    ///
    /// # Errors
    /// Any error of the operating system. The call may be repeated if the disk was full.
    pub(super) fn take(&mut self, bytes: usize, path: &Path) -> io::Result<File> {
        let file = self.wait(bytes)?;
        fs::rename(self.folder.join(NAME), path)?;
        sync_folder(&self.folder)?;
        Ok(file)
    }

    fn wait(&mut self, bytes: usize) -> io::Result<File> {
        self.prepare(bytes);
        let gone = || io::Error::other("the thread that makes segments has ended");
        let made = self.made.recv().map_err(|_| gone())?;
        if self.ordered.take() == Some(bytes) {
            return made;
        }
        make(&self.folder.join(NAME), bytes)
    }
}

impl Drop for SpareMaker {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It ends after the file that it is making.
            let _ = thread.join();
        }
        let _ = remove(&self.folder.join(NAME));
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn make(path: &Path, bytes: usize) -> io::Result<File> {
    let made = fill(path, bytes);
    if made.is_err() {
        // Nothing else frees the space that the part takes.
        let _ = remove(path);
    }
    made
}

fn fill(path: &Path, bytes: usize) -> io::Result<File> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    let mut left = bytes;
    while left > 0 {
        let part = left.min(ZEROS.len());
        file.write_all(&ZEROS[..part])?;
        left -= part;
        if left.is_multiple_of(SYNC_BYTES) {
            file.sync_data()?;
        }
    }
    file.sync_all()?;
    Ok(file)
}
