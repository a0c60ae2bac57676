//! Renewal of a node's certificates while the node runs.
//!
//! The files are checked every second. A file counts as changed if a different file is at its path,
//! if its length has changed, or if its inode was changed. The inode matters because new
//! permissions alone may make the file readable. Files that cannot be used are tried again, because
//! they may still be incomplete, or file descriptors may have been missing during the check. In the
//! meantime the old certificates stay in use.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use crate::config::ClusterConfig;
use crate::security::{NodeCredentials, SecurityError};
use crate::watch::files::{CHECK_INTERVAL, FileWatcher};

/// Attributes by which a changed file is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device_and_inode: (u64, u64),
    /// Time of the last change of the inode, as seconds and nanoseconds.
    changed: (i64, i64),
    length: u64,
}

/// Stamps of several files; `None` stands for a file that does not exist.
type FileStamps = Vec<Option<FileStamp>>;

/// Watcher of the files from which a node's certificates are read.
pub(crate) struct CertRotation {
    config: ClusterConfig,
    name: String,
    /// Stamps of the files at the time when the current certificates were read.
    used: FileStamps,
    watcher: FileWatcher<CertificateCheck>,
}

/// Result of a check of the files. Another thread makes the check.
enum CertificateCheck {
    Same,
    New(Box<NodeCredentials>, FileStamps),
    Unusable(SecurityError),
}

impl CertRotation {
    /// Reads the certificates of the node called `name`; `None` if the configuration names no
    /// certificates.
    ///
    /// # Errors
    /// Fails if the certificates cannot be used.
    pub(crate) fn open(
        config: &ClusterConfig,
        name: &str,
    ) -> Result<Option<(NodeCredentials, CertRotation)>, SecurityError> {
        // The stamps are taken before the files are read, so that a change meanwhile is noticed
        // later.
        let used = stamps(&NodeCredentials::files(config, name));
        let credentials = NodeCredentials::open(config, name)?;
        Ok(credentials.map(|credentials| {
            let rotation = CertRotation {
                config: config.clone(),
                name: name.to_owned(),
                used,
                watcher: FileWatcher::default(),
            };
            (credentials, rotation)
        }))
    }

    /// Sends new certificates to `taken` whenever the files have changed. Returns when the receiver
    /// is dropped.
    pub(crate) async fn follow(mut self, taken: UnboundedSender<NodeCredentials>) {
        while !taken.is_closed() {
            sleep(CHECK_INTERVAL).await;
            if let Some(credentials) = self.check().await {
                // The receiver was dropped.
                let _ = taken.send(credentials);
            }
        }
    }

    async fn check(&mut self) -> Option<NodeCredentials> {
        let (config, name, used) = (self.config.clone(), self.name.clone(), self.used.clone());
        let found = self.watcher.check(move || check(&config, &name, &used));
        let problem = match found.await {
            Ok(CertificateCheck::Same) => {
                self.watcher.mark_usable();
                return None;
            }
            Ok(CertificateCheck::New(credentials, stamps)) => {
                self.used = stamps;
                self.watcher.mark_usable();
                return Some(*credentials);
            }
            Ok(CertificateCheck::Unusable(error)) => error.to_string(),
            Err(problem) => problem,
        };
        if self.watcher.mark_unusable(&problem) {
            tracing::warn!(
                problem,
                "the new certificates cannot be used, and the old ones stay in use; the \
                 new ones are tried again every second"
            );
        }
        None
    }
}

fn check(config: &ClusterConfig, name: &str, used: &FileStamps) -> CertificateCheck {
    let stamps = stamps(&NodeCredentials::files(config, name));
    if stamps == *used {
        return CertificateCheck::Same;
    }
    match NodeCredentials::open(config, name) {
        Ok(Some(credentials)) => CertificateCheck::New(Box::new(credentials), stamps),
        Ok(None) => CertificateCheck::Same,
        Err(error) => CertificateCheck::Unusable(error),
    }
}

fn stamps(files: &[PathBuf]) -> FileStamps {
    let stamp = |file: &PathBuf| {
        let found = std::fs::metadata(file).ok()?;
        Some(FileStamp {
            device_and_inode: (found.dev(), found.ino()),
            changed: (found.ctime(), found.ctime_nsec()),
            length: found.len(),
        })
    };
    files.iter().map(stamp).collect()
}
