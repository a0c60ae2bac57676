//! `leasehold lock serve`: a member of a group in a process of its own.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leasehold_lock::{AcquireError, Check, Group, Held, LeaseView, Loss, Member, Released, Wait};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{LocalSet, spawn_local};

use super::control::{LockAnswer, LockLine, LockRequest, read_line, socket, write_line};
use crate::terminal::{escaped, is_unprintable, log, runtime, say};

/// Interval between checks of a lease that is about to end.
const LAST_CHECKS: Duration = Duration::from_millis(20);

#[derive(Args)]
pub struct LockServeArgs {
    /// The group file (TOML); the same file serves every member
    #[arg(long, value_name = "FILE")]
    group: PathBuf,
    /// Name of this member in the group file
    #[arg(long, value_name = "NAME")]
    me: String,
    /// Directory of this member; created if it is missing. `lock acquire`, `release` and `list` connect
    /// to a socket in it
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Ends when standard input is closed: for processes that start members
    #[arg(long)]
    until_stdin_closes: bool,
}

pub fn run(args: &LockServeArgs) -> anyhow::Result<()> {
    let _log = log();
    let group = Group::load(&args.group)?;
    if args.until_stdin_closes {
        crate::serve::wake_when_parent_dies()?;
    }
    let wait = group.restart_wait();
    let member = Member::start(group, &args.me, Some(&args.dir))?;
    say!(
        "member {} runs; it may acquire resources in {wait:.1?}",
        args.me
    );
    LocalSet::new().block_on(&runtime()?, async {
        let path = socket(&args.dir);
        // The directory is locked, so nobody uses a socket from before.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path);
        let listener = listener.with_context(|| {
            format!(
                "making {} (its path must be short: choose another --dir)",
                path.display()
            )
        })?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let served = Rc::new(Served {
            member: member.clone(),
            leases: RefCell::default(),
        });
        let ended = crate::serve::ended(args.until_stdin_closes)?;
        tokio::select! {
            () = served.clone().accept(listener) => {}
            () = ended => {}
        }
        // Afterwards, the directory may belong to another process.
        let _ = std::fs::remove_file(&path);
        member.stop().await;
        Ok(())
    })
}

/// A member with the leases that it has acquired for others.
struct Served {
    member: Member,
    leases: RefCell<BTreeMap<String, Held>>,
}

impl Served {
    async fn accept(self: Rc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let served = self.clone();
                    spawn_local(async move {
                        if let Err(error) = served.serve(stream).await {
                            tracing::debug!(%error, "a connection has ended");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn serve(self: &Rc<Self>, stream: UnixStream) -> anyhow::Result<()> {
        let (reader, mut writer) = stream.into_split();
        let mut reader = BufReader::new(reader);
        loop {
            let request = match read_line(&mut reader).await {
                Ok(None) => return Ok(()),
                Ok(Some(request)) => request,
                Err(error) => {
                    let message = format!("{error:#}");
                    return write_line(&mut writer, &LockAnswer::Refused { message }).await;
                }
            };
            let answer = match request {
                LockRequest::List => self.list(),
                LockRequest::Release { resource } => self.release(&resource).await,
                LockRequest::Acquire { resource, wait_ms } => {
                    let acquired = self.acquire(&resource, wait_ms);
                    let answer = tokio::select! {
                        answer = acquired => answer,
                        // Nobody waits any more.
                        () = closed(&mut reader) => return Ok(()),
                    };
                    if let Err(error) = write_line(&mut writer, &answer).await {
                        // Nobody knows that the resource was acquired.
                        if let LockAnswer::Acquired { fence, .. } = answer
                            && self.fence(&resource) == Some(fence)
                        {
                            self.release(&resource).await;
                        }
                        return Err(error);
                    }
                    continue;
                }
            };
            write_line(&mut writer, &answer).await?;
        }
    }

    async fn acquire(self: &Rc<Self>, resource: &str, wait_ms: Option<u64>) -> LockAnswer {
        let wait = match wait_ms {
            None => Wait::Forever,
            Some(0) => Wait::No,
            Some(ms) => Wait::For(Duration::from_millis(ms)),
        };
        let held = match self.member.acquire(resource.to_owned(), wait).await {
            Ok(held) => held,
            Err(error @ AcquireError::Taken { .. }) => {
                let message = format!("{}: {error}", escaped(resource.as_bytes(), is_unprintable));
                return LockAnswer::Taken { message };
            }
            Err(error) => {
                let message = format!("{}: {error}", escaped(resource.as_bytes(), is_unprintable));
                return LockAnswer::Refused { message };
            }
        };
        // The process may have been paused meanwhile.
        if let Check::Lost(loss) = held.check() {
            let name = escaped(resource.as_bytes(), is_unprintable);
            let message = format!("{name}: acquired, but lost at once: {loss}");
            return LockAnswer::Refused { message };
        }
        let (fence, view) = (held.fence(), held.view());
        let left_ms = left_ms(&view);
        say!(
            "{} acquired, fence {fence}",
            escaped(resource.as_bytes(), is_unprintable)
        );
        self.leases.borrow_mut().insert(resource.to_owned(), held);
        spawn_local(self.clone().watch(resource.to_owned(), view));
        LockAnswer::Acquired { fence, left_ms }
    }

    /// Forgets a lease when it is lost.
    async fn watch(self: Rc<Self>, resource: String, view: LeaseView) {
        let loss = loop {
            let _ = view.lost().await;
            if let Check::Lost(loss) = view.check() {
                break loss;
            }
            // It may still be renewed.
            tokio::time::sleep(LAST_CHECKS).await;
        };
        let name = escaped(resource.as_bytes(), is_unprintable);
        if loss == Loss::Released {
            return say!("{name} released, fence {}", view.fence());
        }
        say!("{name} lost, fence {}: {loss}", view.fence());
        let mut leases = self.leases.borrow_mut();
        if leases
            .get(&resource)
            .is_some_and(|it| it.fence() == view.fence())
        {
            leases.remove(&resource);
        }
    }

    async fn release(&self, resource: &str) -> LockAnswer {
        let held = self.leases.borrow_mut().remove(resource);
        let Some(held) = held else {
            let name = escaped(resource.as_bytes(), is_unprintable);
            let message = format!("{name}: this member does not own it (`leasehold lock list`)");
            return LockAnswer::Refused { message };
        };
        let ends_in_ms = match held.release().await {
            Released::Yes => None,
            Released::Unknown { ends_in } => {
                Some(ends_in.as_millis().try_into().unwrap_or(u64::MAX))
            }
        };
        LockAnswer::Released { ends_in_ms }
    }

    fn fence(&self, resource: &str) -> Option<u64> {
        self.leases.borrow().get(resource).map(|held| held.fence())
    }

    fn list(&self) -> LockAnswer {
        let leases = self.leases.borrow();
        let valid = leases
            .iter()
            .filter(|(_, held)| matches!(held.check(), Check::Valid { .. }));
        let line = |(resource, held): (&String, &Held)| LockLine {
            resource: resource.clone(),
            fence: held.fence(),
            left_ms: left_ms(held),
        };
        LockAnswer::Leases {
            leases: valid.map(line).collect(),
        }
    }
}

/// Returns the time until the end of a lease, in ms, rounded down.
fn left_ms(view: &LeaseView) -> u64 {
    match view.check() {
        Check::Valid { left } => left.as_millis().try_into().unwrap_or(u64::MAX),
        Check::Lost(_) => 0,
    }
}

/// Waits until the other end has closed the connection. Everything that it sends before is ignored.
async fn closed(reader: &mut (impl tokio::io::AsyncBufRead + Unpin)) {
    loop {
        let count = reader.fill_buf().await.map_or(0, <[u8]>::len);
        if count == 0 {
            return;
        }
        reader.consume(count);
    }
}
