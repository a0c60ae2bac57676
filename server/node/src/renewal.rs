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

use super::config::ClusterConfig;
use super::reread::{LOOK_EVERY, Looks};
use crate::security::{Credentials, SecurityError};

/// By which a changed file is recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device_and_inode: (u64, u64),
    /// When the inode was last changed: seconds, nanoseconds.
    changed: (i64, i64),
    length: u64,
}

/// A file that is not there has no stamp.
type Stamps = Vec<Option<Stamp>>;

/// The files of a node's certificates.
pub(super) struct Renewal {
    config: ClusterConfig,
    name: String,
    /// Stamps of the files from which the certificates in use were read.
    used: Stamps,
    looks: Looks<Look>,
}

/// Result of another thread's look at the files.
enum Look {
    Same,
    New(Box<Credentials>, Stamps),
    Unusable(SecurityError),
}

impl Renewal {
    /// Reads the certificates of the node called `name`; none if the configuration wants none.
    ///
    /// # Errors
    /// They cannot be used.
    pub(super) fn open(
        config: &ClusterConfig,
        name: &str,
    ) -> Result<Option<(Credentials, Renewal)>, SecurityError> {
        // Before the files are read: a change meanwhile is seen later.
        let used = stamps(&Credentials::files(config, name));
        let credentials = Credentials::open(config, name)?;
        Ok(credentials.map(|credentials| {
            let renewal = Renewal {
                config: config.clone(),
                name: name.to_owned(),
                used,
                looks: Looks::default(),
            };
            (credentials, renewal)
        }))
    }

    /// Sends new certificates, for as long as somebody takes them.
    pub(super) async fn follow(mut self, taken: UnboundedSender<Credentials>) {
        while !taken.is_closed() {
            sleep(LOOK_EVERY).await;
            if let Some(credentials) = self.look().await {
                // Nobody takes them any more.
                let _ = taken.send(credentials);
            }
        }
    }

    async fn look(&mut self) -> Option<Credentials> {
        let (config, name, used) = (self.config.clone(), self.name.clone(), self.used.clone());
        let found = self.looks.look(move || look(&config, &name, &used));
        let problem = match found.await {
            Ok(Look::Same) => {
                self.looks.usable();
                return None;
            }
            Ok(Look::New(credentials, stamps)) => {
                self.used = stamps;
                self.looks.usable();
                return Some(*credentials);
            }
            Ok(Look::Unusable(error)) => error.to_string(),
            Err(problem) => problem,
        };
        if self.looks.unusable(&problem) {
            tracing::warn!(
                problem,
                "the new certificates are not used, the old ones still are; they are tried again every second"
            );
        }
        None
    }
}

fn look(config: &ClusterConfig, name: &str, used: &Stamps) -> Look {
    let stamps = stamps(&Credentials::files(config, name));
    if stamps == *used {
        return Look::Same;
    }
    match Credentials::open(config, name) {
        Ok(Some(credentials)) => Look::New(Box::new(credentials), stamps),
        Ok(None) => Look::Same,
        Err(error) => Look::Unusable(error),
    }
}

fn stamps(files: &[PathBuf]) -> Stamps {
    let stamp = |file: &PathBuf| {
        let found = std::fs::metadata(file).ok()?;
        Some(Stamp {
            device_and_inode: (found.dev(), found.ino()),
            changed: (found.ctime(), found.ctime_nsec()),
            length: found.len(),
        })
    };
    files.iter().map(stamp).collect()
}
