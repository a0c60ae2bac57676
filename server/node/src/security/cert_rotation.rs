//! Renewal of a node's certificates while it runs.
//!
//! Their files are looked at every second. A file has changed if it is another one, has
//! another length, or its inode was changed: new permissions alone may be what was missing.
//! Files that cannot be used are tried again: they may be copied just now, or a look may have
//! failed for want of file descriptors. The old certificates stay in use meanwhile.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use crate::config::ClusterConfig;
use crate::security::{NodeCredentials, SecurityError};
use crate::watch::files::{CHECK_INTERVAL, FileWatcher};

/// By which a changed file is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device_and_inode: (u64, u64),
    /// When the inode was last changed: seconds, nanoseconds.
    changed: (i64, i64),
    length: u64,
}

/// A file that is not there has no stamp.
type FileStamps = Vec<Option<FileStamp>>;

/// The files of a node's certificates.
pub(crate) struct CertRotation {
    config: ClusterConfig,
    name: String,
    /// Stamps of the files from which the certificates in use were read.
    used: FileStamps,
    watcher: FileWatcher<CertificateCheck>,
}

/// Result of another thread's look at the files.
enum CertificateCheck {
    Same,
    New(Box<NodeCredentials>, FileStamps),
    Unusable(SecurityError),
}

impl CertRotation {
    /// Reads the certificates of the node called `name`; none if the configuration wants none.
    ///
    /// # Errors
    /// They cannot be used.
    pub(crate) fn open(
        config: &ClusterConfig,
        name: &str,
    ) -> Result<Option<(NodeCredentials, CertRotation)>, SecurityError> {
        // Before the files are read: a change meanwhile is seen later.
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

    /// Sends new certificates, for as long as somebody takes them.
    pub(crate) async fn follow(mut self, taken: UnboundedSender<NodeCredentials>) {
        while !taken.is_closed() {
            sleep(CHECK_INTERVAL).await;
            if let Some(credentials) = self.check().await {
                // Nobody takes them any more.
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
