//! Faults that can occur in a world, by name, and how often each fired: a fault that a campaign
//! enables and that never fires would prove nothing.

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// A message is lost.
    Loss,
    /// A message arrives twice.
    Duplication,
    /// A message is delayed and overtaken.
    Reordering,
    /// A message arrives once more, seconds later.
    OldPacket,
    /// The replicas fall into two groups that do not hear each other.
    Partition,
    /// One direction of some links delivers nothing.
    OneWay,
    /// Two groups that hear each other only through one replica.
    Bridge,
    /// A replica is killed and started again.
    Crash,
    /// A replica is told to end, and started again.
    Leave,
    /// All are.
    CrashAll,
    /// A replica is killed between two actions of one step: some of its messages
    /// have left, some of its records have not been written.
    CrashMidStep,
    /// A replica is killed during a sync, of which a part survives.
    Torn,
    /// A replica stands still; what arrives meanwhile waits.
    Pause,
    /// A replica stands still between two actions of one step.
    PauseMidStep,
    /// A clock changes its rate, within the bound.
    Rate,
    /// A machine starts again, and its clock with it.
    Epoch,
    /// A replica is told that its clock is not to be believed.
    Distrust,
    /// A clock jumps ahead: outside what is assumed, and only in a self-test.
    Jump,
    /// A disk takes seconds for a sync.
    Stall,
    /// A disk has no room.
    Full,
    /// A record on a disk is damaged: its replica stops for good.
    Corrupt,
    /// A disk is lost: its replica comes back without a memory.
    Wiped,
    /// The operator switches the strategy and the durations.
    Switch,
    /// The operator asks the leader to transfer leadership.
    Transfer,
    /// A replica reports demand or round trips that are nonsense.
    Nonsense,
    /// A replica stands still, is cut off or is killed again and again, and is well in between.
    Flap,
    /// A client sends a command again, to any replica.
    Retry,
    /// A client sends a write that it has sent already, unchanged, to another replica: the
    /// same write enters the cluster at two origins.
    Elsewhere,
    /// A client sends a command to two replicas at once.
    Twice,
    /// A client's session expires while it waits.
    Expiry,
    /// A client sends a write that was refused once more, under a new session.
    ResentAfterRefusal,
    /// A client waits no longer for an answer.
    Abandon,
    /// A client begins a new session.
    NewSession,
    /// A write needs a session, and there is no room for it.
    NoRoom,
    /// A write needs a session, and too many are opened at its replica.
    SessionOpens,
    /// A client's connection ends, and it goes on under another.
    HangUp,
    /// A merge waits at the replica that was asked, for others of its clients.
    MergeQueued,
    /// A merge that waits so is answered there though it never left: a copy of it came another way.
    QueuedMergeAnswered,
    /// A merge that waits so is dropped, because its client has disconnected.
    QueuedMergeDropped,
    /// A long merge is refused where others wait.
    LongMergeRefused,
}

impl FaultKind {
    /// Every kind. Those that are planned are drawn in this order.
    pub const ALL: [FaultKind; 40] = [
        FaultKind::Loss,
        FaultKind::Duplication,
        FaultKind::Reordering,
        FaultKind::OldPacket,
        FaultKind::Partition,
        FaultKind::OneWay,
        FaultKind::Bridge,
        FaultKind::Crash,
        FaultKind::Leave,
        FaultKind::CrashAll,
        FaultKind::CrashMidStep,
        FaultKind::Torn,
        FaultKind::Pause,
        FaultKind::PauseMidStep,
        FaultKind::Rate,
        FaultKind::Epoch,
        FaultKind::Distrust,
        FaultKind::Jump,
        FaultKind::Stall,
        FaultKind::Full,
        FaultKind::Corrupt,
        FaultKind::Wiped,
        FaultKind::Switch,
        FaultKind::Transfer,
        FaultKind::Nonsense,
        FaultKind::Flap,
        FaultKind::Retry,
        FaultKind::Elsewhere,
        FaultKind::Twice,
        FaultKind::Expiry,
        FaultKind::ResentAfterRefusal,
        FaultKind::Abandon,
        FaultKind::NewSession,
        FaultKind::NoRoom,
        FaultKind::SessionOpens,
        FaultKind::HangUp,
        FaultKind::MergeQueued,
        FaultKind::QueuedMergeAnswered,
        FaultKind::QueuedMergeDropped,
        FaultKind::LongMergeRefused,
    ];

    /// Whether a plan drawn from the seed makes it happen now and then. The others are
    /// the network's and the clients' habits, or only a self-test's.
    pub fn is_planned(self) -> bool {
        !matches!(
            self,
            FaultKind::Loss
                | FaultKind::Duplication
                | FaultKind::Reordering
                | FaultKind::OldPacket
                | FaultKind::Jump
                | FaultKind::Nonsense
                | FaultKind::Retry
                | FaultKind::Elsewhere
                | FaultKind::Twice
                | FaultKind::Expiry
                | FaultKind::ResentAfterRefusal
                | FaultKind::Abandon
                | FaultKind::NewSession
                | FaultKind::NoRoom
                | FaultKind::SessionOpens
                | FaultKind::HangUp
                | FaultKind::MergeQueued
                | FaultKind::QueuedMergeAnswered
                | FaultKind::QueuedMergeDropped
                | FaultKind::LongMergeRefused
        )
    }

    /// Its name in summaries.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Loss => "message lost",
            FaultKind::Duplication => "message duplicated",
            FaultKind::Reordering => "message reordered",
            FaultKind::OldPacket => "old packet",
            FaultKind::Partition => "partition, two-way",
            FaultKind::OneWay => "partition, one-way",
            FaultKind::Bridge => "partition, bridge",
            FaultKind::Crash => "crash",
            FaultKind::Leave => "planned restart",
            FaultKind::CrashAll => "crash of all",
            FaultKind::CrashMidStep => "crash between two actions",
            FaultKind::Torn => "crash during a sync",
            FaultKind::Pause => "pause",
            FaultKind::PauseMidStep => "pause between two actions",
            FaultKind::Rate => "clock rate changed",
            FaultKind::Epoch => "clock begun anew",
            FaultKind::Distrust => "clock not trusted",
            FaultKind::Jump => "clock jumped ahead",
            FaultKind::Stall => "disk stalled",
            FaultKind::Full => "disk full",
            FaultKind::Corrupt => "disk corrupted",
            FaultKind::Wiped => "disk wiped",
            FaultKind::Switch => "strategy switched",
            FaultKind::Transfer => "leader transferred",
            FaultKind::Nonsense => "nonsense reported",
            FaultKind::Flap => "replica flapped",
            FaultKind::Retry => "client retried",
            FaultKind::Elsewhere => "client sent a write to another replica, too",
            FaultKind::Twice => "client asked twice at once",
            FaultKind::Expiry => "session expired",
            FaultKind::ResentAfterRefusal => "refused write sent again",
            FaultKind::Abandon => "client gave up",
            FaultKind::NewSession => "client began a session",
            FaultKind::NoRoom => "no room for a session",
            FaultKind::SessionOpens => "too many sessions opened",
            FaultKind::HangUp => "client connected anew",
            FaultKind::MergeQueued => "merge held at its origin",
            FaultKind::QueuedMergeAnswered => "held merge answered by a copy",
            FaultKind::QueuedMergeDropped => "held merge given up",
            FaultKind::LongMergeRefused => "long merge refused",
        }
    }
}

/// Number of times that each fault fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCounts([u64; FaultKind::ALL.len()]);

impl Default for FaultCounts {
    fn default() -> FaultCounts {
        FaultCounts([0; FaultKind::ALL.len()])
    }
}

impl FaultCounts {
    /// It fired `times` more.
    pub fn add(&mut self, fault: FaultKind, times: u64) {
        self.0[fault as usize] += times;
    }

    /// Returns the number of times that `fault` fired.
    pub fn of(&self, fault: FaultKind) -> u64 {
        self.0[fault as usize]
    }

    /// Adds what fired elsewhere.
    pub fn merge(&mut self, other: &FaultCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
