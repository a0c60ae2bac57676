//! Kinds of faults that can occur in a world, their names, and counts of how often each fired. If a
//! campaign enables a fault that never fires, it proves nothing about that fault.

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// A message is lost.
    Loss,
    /// A message arrives twice.
    Duplication,
    /// A message is delayed, and a later message of the same link arrives before it.
    Reordering,
    /// A message arrives once more, seconds later.
    OldPacket,
    /// The replicas are divided into two groups. No message passes between the groups.
    Partition,
    /// Some links deliver nothing in one direction.
    OneWay,
    /// The replicas are divided into two groups, and only one replica has links to both.
    Bridge,
    /// A replica is killed and started again.
    Crash,
    /// A replica is told to end, and is started again.
    Leave,
    /// All replicas are killed and started again.
    CrashAll,
    /// A replica is killed between two actions of one step: some of its messages have been sent,
    /// and some of its records have not been written.
    CrashMidStep,
    /// A replica is killed during a sync. Only a part of the data of this sync survives.
    Torn,
    /// A replica is paused. Messages that arrive meanwhile are handled after the pause.
    Pause,
    /// A replica is paused between two actions of one step.
    PauseMidStep,
    /// The rate of a clock changes. The new rate is within the allowed drift.
    Rate,
    /// A machine is rebooted. Afterwards, its clock counts from another origin.
    Epoch,
    /// A replica is told that its clock cannot be trusted.
    Distrust,
    /// A clock jumps forward. This breaks an assumption about clocks, so it happens only in a
    /// self-test.
    Jump,
    /// A sync of a disk takes seconds.
    Stall,
    /// A disk has no free space.
    Full,
    /// A record on a disk is damaged, and its replica stops permanently.
    Corrupt,
    /// A disk is wiped, and its replica starts again without its earlier state.
    Wiped,
    /// The operator changes strategies, durations, or both.
    Switch,
    /// The operator requests that the leader transfer leadership.
    Transfer,
    /// A replica reports meaningless numbers as demand or round-trip times.
    Nonsense,
    /// A replica is repeatedly paused, cut off or killed, and works normally in between.
    Flap,
    /// A client sends a command again. Any replica may be the receiver.
    Retry,
    /// A client sends a write again, unchanged, to another replica. So the same write enters the
    /// cluster at two origins.
    Elsewhere,
    /// A client sends a command to two replicas at the same time.
    Twice,
    /// A client's session expires while the client waits for an answer.
    Expiry,
    /// A client sends a refused write once more, under a new session.
    ResentAfterRefusal,
    /// A client stops waiting for an answer.
    Abandon,
    /// A client begins a new session.
    NewSession,
    /// A write is refused because it needs a new session and there is no room for one.
    NoRoom,
    /// A write is refused because it needs a new session and too many sessions are being opened at
    /// its replica.
    SessionOpens,
    /// A client's connection ends, and the client continues on another one.
    HangUp,
    /// A merge waits at the replica that received it, because other merges of that replica's
    /// clients are ahead of it in the queue.
    MergeQueued,
    /// A merge that waits at its origin is answered there without being sent, because another copy
    /// of the merge was executed.
    QueuedMergeAnswered,
    /// A merge that waits at its origin is dropped, because its client has disconnected.
    QueuedMergeDropped,
    /// A long merge is refused, because other merges wait at the same replica.
    LongMergeRefused,
    /// A read of a log takes longer than usual, or never ends.
    SlowRead,
    /// The file of a segment is used again while it is read, and an entry is overwritten before the
    /// read reaches it.
    Reused,
    /// A crash loses some sectors of a write to a log, and keeps others.
    TornSectors,
    /// A crash loses some of the changes that were applied to the state, after the engine has
    /// flushed others by itself.
    PartFlushed,
    /// A leader is killed after it has proposed an entry, and before its own copy is durable.
    LeaderUnsynced,
    /// A flush of the state ends that covers less than was requested, because the disk was full when
    /// the flush began.
    FlushedInPart,
}

impl FaultKind {
    /// Every kind of fault. Planned faults are drawn at random from this list. Therefore, a
    /// different order would change the runs.
    pub const ALL: [FaultKind; 46] = [
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
        FaultKind::SlowRead,
        FaultKind::Reused,
        FaultKind::TornSectors,
        FaultKind::PartFlushed,
        FaultKind::LeaderUnsynced,
        FaultKind::FlushedInPart,
    ];

    /// Whether the plan of a run can contain this fault. A planned fault occurs repeatedly in the
    /// run. Every other fault is caused by the network, by a client, or by a self-test.
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
                | FaultKind::SlowRead
                | FaultKind::Reused
                | FaultKind::TornSectors
                | FaultKind::PartFlushed
                | FaultKind::LeaderUnsynced
                | FaultKind::FlushedInPart
        )
    }

    /// Returns the name of the fault in summaries.
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
            FaultKind::SlowRead => "log read slow",
            FaultKind::Reused => "file used again under a read",
            FaultKind::TornSectors => "log write torn",
            FaultKind::PartFlushed => "crash with some changes flushed",
            FaultKind::LeaderUnsynced => "leader killed before its entry was durable",
            FaultKind::FlushedInPart => "state flushed in part",
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
    /// Adds `times` occurrences of `fault`.
    pub fn add(&mut self, fault: FaultKind, times: u64) {
        self.0[fault as usize] += times;
    }

    /// Returns the number of times that `fault` fired.
    pub fn of(&self, fault: FaultKind) -> u64 {
        self.0[fault as usize]
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &FaultCounts) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
