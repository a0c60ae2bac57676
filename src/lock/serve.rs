//! `leasehold lock serve`: a member of a group in a process of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use leasehold_lock::{
    AcquireError, Check, Group, Held, LeaseView, Loss, Member, Owner, Released, Wait,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{LocalSet, spawn_local};

use super::control::{
    LockAnswer, LockLine, LockRequest, REQUEST_BYTES_MAX, read_line, socket, write_line,
};
use crate::terminal::{escaped, is_unprintable, log, runtime, say};

/// Interval between checks of a lease that is about to end.
const LAST_CHECKS: Duration = Duration::from_millis(20);
/// Reason for the end of leases and requests when the member ends.
const ENDS: &str = "its member ends";
/// Maximum number of connections of commands.
const CONNECTIONS_MAX: usize = 1024;

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
    let (wait, warn) = (group.restart_wait(), group.warn());
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
            term: wait,
            warn,
            leases: RefCell::default(),
            connections: Cell::default(),
            is_stopping: Cell::default(),
        });
        let ended = crate::serve::ended(args.until_stdin_closes)?;
        tokio::select! {
            () = served.clone().accept(listener) => {}
            () = ended => {}
        }
        served.end_commands().await;
        // Afterwards, the directory may belong to another process.
        let _ = std::fs::remove_file(&path);
        member.stop().await;
        Ok(())
    })
}

/// A member with the leases that it has acquired for others.
struct Served {
    member: Member,
    /// Longest time for which a lease is valid that is not renewed.
    term: Duration,
    warn: Duration,
    leases: RefCell<BTreeMap<String, ServedLease>>,
    /// Number of open connections.
    connections: Cell<usize>,
    /// Whether the member ends.
    is_stopping: Cell<bool>,
}

/// A lease that a member has acquired for others.
struct ServedLease {
    held: Held,
    /// Whether the lease belongs to a connection, and is not released by other requests.
    is_of_connection: bool,
}

impl Served {
    async fn accept(self: Rc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let served = self.clone();
                    spawn_local(async move {
                        served.connections.update(|it| it + 1);
                        if let Err(error) = served.serve(stream).await {
                            tracing::debug!(%error, "a connection has ended");
                        }
                        served.connections.update(|it| it - 1);
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
        if self.connections.get() > CONNECTIONS_MAX {
            let message = format!("the member has {CONNECTIONS_MAX} connections already");
            return write_line(&mut writer, &LockAnswer::Refused { message }).await;
        }
        let mut own = None;
        let result = self.converse(&mut reader, &mut writer, &mut own).await;
        if let Some((resource, view)) = own {
            self.keep_for_a_term(&resource, &view).await;
        }
        result
    }

    /// Makes the commands end that use leases, and waits until they have, for a term at most: a command
    /// may not react.
    async fn end_commands(&self) {
        self.is_stopping.set(true);
        let is_used = || self.leases.borrow().values().any(|it| it.is_of_connection);
        if is_used() {
            say!("waiting for the commands of `lock run` to end");
        }
        let all_ended = async {
            while is_used() {
                tokio::time::sleep(LAST_CHECKS).await;
            }
        };
        if tokio::time::timeout(self.term, all_ended).await.is_err() {
            tracing::warn!("some commands of `lock run` have not ended");
        }
    }

    /// Keeps the lease of a connection that has ended without a release. The program at the other end
    /// may still be about to end.
    async fn keep_for_a_term(&self, resource: &str, view: &LeaseView) {
        let name = escaped(resource.as_bytes(), is_unprintable);
        if self.fence(resource) != Some(view.fence()) {
            return;
        }
        let term = self.term;
        say!("{name} stays owned for {term:.1?}: its command has ended without a release");
        tokio::time::sleep(term).await;
        if self.fence(resource) == Some(view.fence()) {
            self.release(resource, None).await;
        }
    }

    /// Answers the requests of a connection. `own` is the lease that it holds.
    async fn converse(
        self: &Rc<Self>,
        reader: &mut BufReader<OwnedReadHalf>,
        writer: &mut OwnedWriteHalf,
        own: &mut Option<(String, LeaseView)>,
    ) -> anyhow::Result<()> {
        loop {
            let request = match read_line(reader, REQUEST_BYTES_MAX, &mut Vec::new()).await {
                Ok(None) => return Ok(()),
                Ok(Some(request)) => request,
                Err(error) => {
                    let message = format!("{error:#}");
                    return write_line(writer, &LockAnswer::Refused { message }).await;
                }
            };
            let answer = match request {
                LockRequest::List => self.list(),
                LockRequest::Release { resource } => {
                    self.release_for_command(&resource, None).await
                }
                LockRequest::HandOver { resource, to } => {
                    self.release_for_command(&resource, Some(&to)).await
                }
                LockRequest::Owner { resource } => self.owner(resource).await,
                LockRequest::Check => match own {
                    Some(_) if self.is_stopping.get() => LockAnswer::Lost {
                        message: ENDS.to_owned(),
                        is_clock_wrong: false,
                    },
                    Some((_, view)) => check(view),
                    None => no_lease(),
                },
                LockRequest::ReleaseHeld => match own.take() {
                    Some((resource, view)) if self.fence(&resource) == Some(view.fence()) => {
                        self.release(&resource, None).await
                    }
                    Some((_, view)) => check(&view),
                    None => no_lease(),
                },
                LockRequest::Hold { .. } | LockRequest::Acquire { .. }
                    if self.is_stopping.get() =>
                {
                    let message = ENDS.to_owned();
                    LockAnswer::Refused { message }
                }
                LockRequest::Hold { .. } if own.is_some() => LockAnswer::Refused {
                    message: "this connection holds a lease already".to_owned(),
                },
                LockRequest::Hold { resource, wait_ms } => {
                    let acquired = self.acquire(&resource, wait_ms, true);
                    let acquired = tokio::select! {
                        acquired = acquired => acquired,
                        // Nobody waits any more.
                        () = closed(reader) => return Ok(()),
                    };
                    match acquired {
                        Ok(view) => {
                            let fence = view.fence();
                            *own = Some((resource, view));
                            let warn_ms = to_ms(self.warn);
                            LockAnswer::Held { fence, warn_ms }
                        }
                        Err(refusal) => refusal,
                    }
                }
                LockRequest::Acquire { resource, wait_ms } => {
                    let acquired = self.acquire(&resource, wait_ms, false);
                    let acquired = tokio::select! {
                        acquired = acquired => acquired,
                        // Nobody waits any more.
                        () = closed(reader) => return Ok(()),
                    };
                    let answer = match &acquired {
                        Ok(view) => LockAnswer::Acquired {
                            fence: view.fence(),
                            left_ms: left_ms(view),
                        },
                        Err(refusal) => refusal.clone(),
                    };
                    if let Err(error) = write_line(writer, &answer).await {
                        // Nobody knows that the resource was acquired.
                        if let Ok(view) = acquired
                            && self.fence(&resource) == Some(view.fence())
                        {
                            self.release(&resource, None).await;
                        }
                        return Err(error);
                    }
                    continue;
                }
            };
            write_line(writer, &answer).await?;
        }
    }

    /// Acquires a resource. The error is the answer to the request.
    async fn acquire(
        self: &Rc<Self>,
        resource: &str,
        wait_ms: Option<u64>,
        is_of_connection: bool,
    ) -> Result<LeaseView, LockAnswer> {
        let wait = match wait_ms {
            None => Wait::Forever,
            Some(0) => Wait::No,
            Some(ms) => Wait::For(Duration::from_millis(ms)),
        };
        let held = match self.member.acquire(resource.to_owned(), wait).await {
            Ok(held) => held,
            Err(error @ AcquireError::Taken { .. }) => {
                let message = format!("{}: {error}", escaped(resource.as_bytes(), is_unprintable));
                return Err(LockAnswer::Taken { message });
            }
            Err(error) => {
                let message = format!("{}: {error}", escaped(resource.as_bytes(), is_unprintable));
                return Err(LockAnswer::Refused { message });
            }
        };
        // The process may have been paused meanwhile.
        if let Check::Lost(loss) = held.check() {
            let name = escaped(resource.as_bytes(), is_unprintable);
            let message = format!("{name}: acquired, but lost at once: {loss}");
            return Err(LockAnswer::Refused { message });
        }
        let (fence, view) = (held.fence(), held.view());
        say!(
            "{} acquired, fence {fence}",
            escaped(resource.as_bytes(), is_unprintable)
        );
        let lease = ServedLease {
            held,
            is_of_connection,
        };
        self.leases.borrow_mut().insert(resource.to_owned(), lease);
        spawn_local(self.clone().watch(resource.to_owned(), view.clone()));
        Ok(view)
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
            .is_some_and(|it| it.held.fence() == view.fence())
        {
            leases.remove(&resource);
        }
    }

    /// Releases a lease that belongs to no connection.
    async fn release_for_command(&self, resource: &str, to: Option<&str>) -> LockAnswer {
        let is_used = |leases: &BTreeMap<String, ServedLease>| {
            leases.get(resource).is_some_and(|it| it.is_of_connection)
        };
        if is_used(&self.leases.borrow()) {
            let name = escaped(resource.as_bytes(), is_unprintable);
            let message = format!("{name}: a `lock run` uses it: end that command instead");
            return LockAnswer::Refused { message };
        }
        self.release(resource, to).await
    }

    async fn release(&self, resource: &str, to: Option<&str>) -> LockAnswer {
        let lease = self.leases.borrow_mut().remove(resource);
        let Some(lease) = lease else {
            let name = escaped(resource.as_bytes(), is_unprintable);
            let message = format!("{name}: this member does not own it (`leasehold lock list`)");
            return LockAnswer::Refused { message };
        };
        let released = match to {
            None => Ok(lease.held.release().await),
            Some(to) => lease.held.hand_over(to).await,
        };
        match released {
            Ok(Released::Yes) => LockAnswer::Released { ends_in_ms: None },
            Ok(Released::Unknown { ends_in }) => LockAnswer::Released {
                ends_in_ms: Some(to_ms(ends_in)),
            },
            Err(error) => {
                let message = format!("TO: {error}");
                let held = *error.held;
                let is_of_connection = lease.is_of_connection;
                let lease = ServedLease {
                    held,
                    is_of_connection,
                };
                self.leases.borrow_mut().insert(resource.to_owned(), lease);
                LockAnswer::Refused { message }
            }
        }
    }

    async fn owner(&self, resource: String) -> LockAnswer {
        let name = escaped(resource.as_bytes(), is_unprintable);
        match self.member.owner(resource).await {
            Owner::Free => LockAnswer::Free,
            Owner::Is {
                member,
                fence,
                at_most,
            } => LockAnswer::Owned {
                owner: member,
                fence,
                at_most_ms: to_ms(at_most),
            },
            Owner::Unknown => LockAnswer::Refused {
                message: format!(
                    "{name}: the owner is unknown: too few members have answered, or some have just \
                     started; try again"
                ),
            },
        }
    }

    fn fence(&self, resource: &str) -> Option<u64> {
        let leases = self.leases.borrow();
        leases.get(resource).map(|lease| lease.held.fence())
    }

    fn list(&self) -> LockAnswer {
        let leases = self.leases.borrow();
        let valid = leases
            .iter()
            .filter(|(_, it)| matches!(it.held.check(), Check::Valid { .. }));
        let line = |(resource, lease): (&String, &ServedLease)| LockLine {
            resource: resource.clone(),
            fence: lease.held.fence(),
            left_ms: left_ms(&lease.held),
        };
        LockAnswer::Leases {
            leases: valid.map(line).collect(),
        }
    }
}

/// Returns a duration in ms, rounded down.
fn to_ms(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// Returns the time until the end of a lease, in ms, rounded down.
fn left_ms(view: &LeaseView) -> u64 {
    to_ms(view.left())
}

/// Answers whether the lease of a connection is valid.
fn check(view: &LeaseView) -> LockAnswer {
    match view.check() {
        Check::Valid { .. } => LockAnswer::Valid {
            left_ms: left_ms(view),
        },
        Check::Lost(loss) => LockAnswer::Lost {
            message: loss.to_string(),
            is_clock_wrong: loss == Loss::Clock,
        },
    }
}

fn no_lease() -> LockAnswer {
    LockAnswer::Refused {
        message: "this connection holds no lease".to_owned(),
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
