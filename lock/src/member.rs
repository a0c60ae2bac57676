//! A member of a group, as programs use it.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::hashing::seed_thread;
use leasehold_lock_core::MemberId;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, channel};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use crate::directory::{DirectoryError, MemberDirectory};
use crate::driver::{Command, Commands, Driver, Rounds};
use crate::group::Group;
use crate::held::Held;
use crate::peers::Peers;

/// Maximum number of packets that wait for the state machine. Connections are not read meanwhile.
const PACKETS_MAX: usize = 256;

/// Time for which a request waits if the resource has an owner, or if no majority answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The request does not wait: it makes one attempt.
    No,
    /// The request waits this long, and then ends with its last attempt.
    For(Duration),
    /// The request waits until the resource is free.
    Forever,
}

/// Owner of a resource, as [`Member::owner`] finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Nobody owns the resource. A majority of the group has confirmed it.
    Free,
    /// A member owns the resource, and has confirmed it.
    Is {
        /// Name of the owner.
        member: String,
        /// Fence token of its lease.
        fence: u64,
        /// Time until the end of the lease, at most, if it is not renewed before.
        at_most: Duration,
    },
    /// Too few members have answered, or the owner has not.
    Unknown,
}

/// Reason why a resource was not acquired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Another member owns the resource.
    #[error(
        "member {owner:?} owns it, for {at_most:.1?} at most unless it renews its lease (fence {fence})"
    )]
    Taken {
        /// Name of the owner.
        owner: String,
        /// Fence token of the owner's lease.
        fence: u64,
        /// Time after which the resource can be acquired, if the owner does not renew its lease.
        at_most: Duration,
    },
    /// This member has started, and is silent until every lease has ended that it granted before.
    #[error("this member has just started, and may not acquire anything for {at_most:.1?}")]
    Starting {
        /// Time until the end of the silence.
        at_most: Duration,
    },
    /// No majority of the group has answered in time.
    #[error("no majority of the group has answered; start the other members, or check the network")]
    NoMajority,
    /// The program holds a lease of the resource, or has requested one that it has not received.
    #[error("this member owns it already, or has an earlier request for it")]
    AlreadyRequested,
    /// The name of the resource is empty or too long.
    #[error("the name of a resource has 1 to 256 bytes")]
    Name,
    /// The clocks of this machine disagree, or its wall clock was set. With synchronised clocks, also:
    /// its clock differs too much from the clock of another member.
    #[error("a clock is wrong, of this machine or of another member; the log says which")]
    Clock,
    /// The program has stopped the member.
    #[error("this member has been stopped")]
    Stopped,
}

/// Reason why a member cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The group has no member with this name.
    #[error("the group has no member {name:?}, but: {}", known.join(", "))]
    Unknown {
        /// The name.
        name: String,
        /// Names of all members.
        known: Vec<String>,
    },
    /// The member cannot listen at its address.
    #[error(
        "listening at {address}, the address of member {name:?}: {source}; {}",
        listen_fix(source)
    )]
    Listen {
        /// Name of the member.
        name: String,
        /// The address.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The directory of the member cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The thread of the member cannot be started.
    #[error("starting the thread of a member: {0}")]
    Thread(#[source] io::Error),
}

fn listen_fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens there, perhaps the same member; a member has one process"
        }
        _ => "run the member on the machine with this address, or correct the group file",
    }
}

/// A member of a group, which runs in a thread of its own. Clones are handles to the same member.
///
/// The thread ends when the program has dropped all handles and all leases.
#[derive(Clone, Debug)]
pub struct Member {
    commands: Commands,
    next_request: Arc<AtomicU64>,
}

impl Member {
    /// Starts the member `me` of a group. It is silent at first: see [`AcquireError::Starting`]. The
    /// member keeps the rounds that it has reserved in the directory `dir`. Without a directory,
    /// fence tokens may begin anew after restarts, unless the group has synchronised clocks.
    ///
    /// # Errors
    /// Fails if the group has no such member, if another process uses the directory, or if the
    /// member cannot listen at its address.
    pub fn start(group: Group, me: &str, dir: Option<&Path>) -> Result<Member, StartError> {
        let group = Arc::new(group);
        let Some(id) = group.member(me) else {
            return Err(StartError::Unknown {
                name: me.to_owned(),
                known: group.names(),
            });
        };
        let (directory, floor) = match dir.map(MemberDirectory::open).transpose()? {
            Some((directory, floor)) => (Some(directory), floor),
            None => (None, 0),
        };
        let address = &group.members()[usize::from(id.0)].address;
        let listener = listen(address).map_err(|source| StartError::Listen {
            name: me.to_owned(),
            address: address.clone(),
            source,
        })?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let (commands, received) = Commands::new();
        let weak = commands.clone();
        std::thread::Builder::new()
            .name(format!("lock {me}"))
            .spawn(move || {
                let rounds = Rounds { directory, floor };
                run(&runtime, group, id, rounds, listener, weak, received);
            })
            .map_err(StartError::Thread)?;
        Ok(Member {
            commands,
            next_request: Arc::default(),
        })
    }

    /// Acquires a resource. If the returned future is dropped, the request is cancelled.
    ///
    /// # Errors
    /// Any [`AcquireError`].
    pub async fn acquire(
        &self,
        resource: impl Into<Bytes>,
        wait: Wait,
    ) -> Result<Held, AcquireError> {
        let resource = resource.into();
        let request = self.next_request.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let mut cancel = CancelOnDrop {
            commands: &self.commands,
            request,
            resource: resource.clone(),
            is_answered: false,
        };
        self.commands.send(Command::Acquire {
            request,
            resource,
            wait,
            answer,
        });
        let answer = answered.await;
        cancel.is_answered = true;
        answer.unwrap_or(Err(AcquireError::Stopped))
    }

    /// Finds the owner of a resource. The answer was true at some moment during the call.
    pub async fn owner(&self, resource: impl Into<Bytes>) -> Owner {
        let (answer, answered) = oneshot::channel();
        let resource = resource.into();
        self.commands.send(Command::FindOwner { resource, answer });
        // There is no answer if the thread has ended.
        answered.await.unwrap_or(Owner::Unknown)
    }

    /// Releases all leases, and ends the member's thread. Returns when a majority has confirmed the
    /// releases, or after `attempt_ms` of the group file.
    pub async fn stop(&self) {
        let (answer, answered) = oneshot::channel();
        self.commands.send(Command::Stop { answer });
        // There is no answer if the thread has ended before.
        let _ = answered.await;
    }
}

/// Cancels a request to acquire a resource if nobody waits for its result any more.
struct CancelOnDrop<'a> {
    commands: &'a Commands,
    request: u64,
    resource: Bytes,
    is_answered: bool,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        self.commands.send(Command::Cancel {
            request: self.request,
            resource: self.resource.clone(),
        });
    }
}

fn listen(address: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Runs a member until the program has stopped it.
fn run(
    runtime: &Runtime,
    group: Arc<Group>,
    me: MemberId,
    rounds: Rounds,
    listener: TcpListener,
    commands: Commands,
    received: UnboundedReceiver<Command>,
) {
    // Other members choose names of resources, too.
    let random = || RandomState::new().hash_one(0);
    seed_thread([random(), random()]);
    let (packets, arrived) = channel(PACKETS_MAX);
    let peers = Peers::new(group.clone(), me, packets);
    let local = LocalSet::new();
    local.block_on(runtime, async {
        peers.start(listener);
        let driver = Driver::new(group, me, rounds, peers, &commands);
        drop(commands);
        driver.run(received, arrived).await;
    });
}
