//! Spare segment files. A separate thread fills them with zeros before they are used.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use super::log_files::sync_folder;

/// Name of the spare file.
pub(super) const NAME: &str = "spare";
/// Maximum number of bytes that are written to a spare file between two syncs. The number is a
/// multiple of the length of [`ZEROS`]. With a single sync at the end, syncs of the log would have
/// to wait for this long sync. With a quarter of this number, the thread makes segments more slowly
/// than large values fill them, and then votes wait for the thread.
const SYNC_BYTES: usize = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Maker of spare files. There is at most one spare file.
pub(super) struct SpareMaker {
    folder: PathBuf,
    orders: Option<Sender<FileOrder>>,
    made: Receiver<io::Result<File>>,
    /// Length in bytes of the spare file that was ordered and not yet taken; `None` if there is no
    /// such file.
    ordered: Option<usize>,
    /// Spare file that was a segment before it became a spare file, with its length in bytes.
    used: Option<(File, usize)>,
    thread: Option<JoinHandle<()>>,
}

/// Work for the thread.
enum FileOrder {
    /// Make a spare file of this length in bytes.
    Make(usize),
    /// Remove this file.
    Remove(PathBuf),
}

impl SpareMaker {
    /// Starts the thread. Removes the spare file of an earlier run, if there is one.
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
            .spawn(move || perform(&path, &ordered, &report))?;
        Ok(SpareMaker {
            folder: folder.to_owned(),
            orders: Some(orders),
            made,
            ordered: None,
            used: None,
            thread: Some(thread),
        })
    }

    /// Orders a spare file of this length, unless one was ordered already.
    pub(super) fn prepare(&mut self, bytes: usize) {
        if self.has_room()
            && let Some(orders) = &self.orders
            && orders.send(FileOrder::Make(bytes)).is_ok()
        {
            self.ordered = Some(bytes);
        }
    }

    /// Whether a spare file may be added: none exists, and none is ordered.
    pub(super) fn has_room(&self) -> bool {
        self.ordered.is_none() && self.used.is_none()
    }

    /// Removes a file that no start needs. The thread removes the file only when it has nothing
    /// else to do, because the removal of many files may take long.
    pub(super) fn remove_later(&self, path: PathBuf) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(FileOrder::Remove(path));
        }
    }

    /// Makes the file at `path` the spare file. There must be no other spare file. The file may
    /// contain old groups. No start reads these groups, because they have the number of another
    /// segment.
    ///
    /// # Errors
    /// Any error of the operating system.
    pub(super) fn offer(&mut self, path: &Path, bytes: usize) -> io::Result<()> {
        let file = File::options().read(true).write(true).open(path)?;
        fs::rename(path, self.folder.join(NAME))?;
        self.used = Some((file, bytes));
        Ok(())
    }

    /// Moves a file of this length to `path`, and waits until the file is durable there.
    ///
    /// # Errors
    /// Any error of the operating system. The call may be repeated if the disk was full.
    pub(super) fn take(&mut self, bytes: usize, path: &Path) -> io::Result<File> {
        let mut file = self.wait(bytes)?;
        let spare = self.folder.join(NAME);
        if !is_same(&file, &spare).map_err(|error| named(&spare, error))? {
            // Somebody has removed or replaced the spare file.
            file = make(&spare, bytes)?;
        }
        fs::rename(&spare, path).map_err(|error| named(path, error))?;
        sync_folder(&self.folder)?;
        Ok(file)
    }

    fn wait(&mut self, bytes: usize) -> io::Result<File> {
        if let Some((file, length)) = self.used.take()
            && length == bytes
        {
            return Ok(file);
        }
        self.prepare(bytes);
        let gone = || io::Error::other("the thread that makes segments has ended");
        let made = self.made.recv().map_err(|_| gone())?;
        // An error may be old. The disk may have space by now.
        if self.ordered.take() == Some(bytes) && made.is_ok() {
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

/// Performs orders until the channel is closed. Makes spare files before it removes files. If files
/// still wait for removal when the channel is closed, the next start removes them.
fn perform(spare: &Path, ordered: &Receiver<FileOrder>, report: &Sender<io::Result<File>>) {
    let mut removals = VecDeque::new();
    loop {
        let order = if removals.is_empty() {
            ordered.recv().map_err(|_| TryRecvError::Disconnected)
        } else {
            ordered.try_recv()
        };
        match order {
            Ok(FileOrder::Remove(path)) => removals.push_back(path),
            Ok(FileOrder::Make(bytes)) => {
                let mut made = make(spare, bytes);
                if made.is_err() && !removals.is_empty() {
                    // The disk may be full, and the removals make room.
                    removals.drain(..).for_each(remove_unneeded);
                    made = make(spare, bytes);
                }
                if report.send(made).is_err() {
                    return;
                }
            }
            Err(TryRecvError::Empty) => {
                if let Some(path) = removals.pop_front() {
                    remove_unneeded(path);
                }
            }
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

fn remove_unneeded(path: PathBuf) {
    if let Err(error) = remove(&path) {
        let path = path.display();
        tracing::warn!("{path} is no longer needed, and cannot be removed: {error}");
    }
}

/// Removes whatever is at the path: a file, a link, a pipe or an empty directory.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => fs::remove_dir(path),
        removed => removed,
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether the file at the path is this one.
fn is_same(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        found => Ok(identity(file.metadata()?) == identity(found?)),
    }
}

/// Adds a path to the text of an error.
fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Makes the file. Whatever is at the path is removed first, because a link would lead to another
/// file, and a write to a pipe would never end.
fn make(path: &Path, bytes: usize) -> io::Result<File> {
    let made = remove(path).and_then(|()| fill(path, bytes));
    if made.is_err() {
        // Nothing else frees the space that the part takes.
        let _ = remove(path);
    }
    made.map_err(|error| named(path, error))
}

fn fill(path: &Path, bytes: usize) -> io::Result<File> {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    let mut filled = 0;
    while filled < bytes {
        let part = (bytes - filled).min(ZEROS.len());
        file.write_all(&ZEROS[..part])?;
        filled += part;
        if filled.is_multiple_of(SYNC_BYTES) {
            file.sync_data()?;
        }
    }
    file.sync_all()?;
    Ok(file)
}
