//! Faults that can occur in a world, by name, and how often each fired: a fault that a campaign
//! enables and that never fires would prove nothing.

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
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
    /// A clock jumps ahead: outside what is assumed, and only in a control.
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
    /// The operator asks the leader to hand over.
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
    Again,
    /// A client waits no longer for an answer.
    GiveUp,
    /// A client begins a new session.
    Renewal,
    /// A write needs a session, and there is no room for it.
    NoRoom,
    /// A write needs a session, and too many are opened at its replica.
    Openings,
    /// A client's connection ends, and it goes on under another.
    HangUp,
    /// A merge waits at the replica that was asked, for others of its clients.
    Held,
    /// A merge that waits so is answered there though it never left: a copy of it came another way.
    HeldAnswered,
    /// A merge that waits so is dropped, because its client has disconnected.
    HeldGone,
    /// A long merge is refused where others wait.
    Merges,
}

impl Fault {
    /// Every kind. Those that are planned are drawn in this order.
    pub const ALL: [Fault; 40] = [
        Fault::Loss,
        Fault::Duplication,
        Fault::Reordering,
        Fault::OldPacket,
        Fault::Partition,
        Fault::OneWay,
        Fault::Bridge,
        Fault::Crash,
        Fault::Leave,
        Fault::CrashAll,
        Fault::CrashMidStep,
        Fault::Torn,
        Fault::Pause,
        Fault::PauseMidStep,
        Fault::Rate,
        Fault::Epoch,
        Fault::Distrust,
        Fault::Jump,
        Fault::Stall,
        Fault::Full,
        Fault::Corrupt,
        Fault::Wiped,
        Fault::Switch,
        Fault::Transfer,
        Fault::Nonsense,
        Fault::Flap,
        Fault::Retry,
        Fault::Elsewhere,
        Fault::Twice,
        Fault::Expiry,
        Fault::Again,
        Fault::GiveUp,
        Fault::Renewal,
        Fault::NoRoom,
        Fault::Openings,
        Fault::HangUp,
        Fault::Held,
        Fault::HeldAnswered,
        Fault::HeldGone,
        Fault::Merges,
    ];

    /// Whether a plan drawn from the seed makes it happen now and then. The others are
    /// the network's and the clients' habits, or only a control's.
    pub fn is_planned(self) -> bool {
        !matches!(
            self,
            Fault::Loss
                | Fault::Duplication
                | Fault::Reordering
                | Fault::OldPacket
                | Fault::Jump
                | Fault::Nonsense
                | Fault::Retry
                | Fault::Elsewhere
                | Fault::Twice
                | Fault::Expiry
                | Fault::Again
                | Fault::GiveUp
                | Fault::Renewal
                | Fault::NoRoom
                | Fault::Openings
                | Fault::HangUp
                | Fault::Held
                | Fault::HeldAnswered
                | Fault::HeldGone
                | Fault::Merges
        )
    }

    /// Its name in summaries.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Loss => "message lost",
            Fault::Duplication => "message duplicated",
            Fault::Reordering => "message reordered",
            Fault::OldPacket => "old packet",
            Fault::Partition => "partition, two-way",
            Fault::OneWay => "partition, one-way",
            Fault::Bridge => "partition, bridge",
            Fault::Crash => "crash",
            Fault::Leave => "planned restart",
            Fault::CrashAll => "crash of all",
            Fault::CrashMidStep => "crash between two actions",
            Fault::Torn => "crash during a sync",
            Fault::Pause => "pause",
            Fault::PauseMidStep => "pause between two actions",
            Fault::Rate => "clock rate changed",
            Fault::Epoch => "clock begun anew",
            Fault::Distrust => "clock not trusted",
            Fault::Jump => "clock jumped ahead",
            Fault::Stall => "disk stalled",
            Fault::Full => "disk full",
            Fault::Corrupt => "disk corrupted",
            Fault::Wiped => "disk wiped",
            Fault::Switch => "strategy switched",
            Fault::Transfer => "leader transferred",
            Fault::Nonsense => "nonsense reported",
            Fault::Flap => "replica flapped",
            Fault::Retry => "client retried",
            Fault::Elsewhere => "client sent a write to another replica, too",
            Fault::Twice => "client asked twice at once",
            Fault::Expiry => "session expired",
            Fault::Again => "refused write sent again",
            Fault::GiveUp => "client gave up",
            Fault::Renewal => "client began a session",
            Fault::NoRoom => "no room for a session",
            Fault::Openings => "too many sessions opened",
            Fault::HangUp => "client connected anew",
            Fault::Held => "merge held at its origin",
            Fault::HeldAnswered => "held merge answered by a copy",
            Fault::HeldGone => "held merge given up",
            Fault::Merges => "long merge refused",
        }
    }
}

/// Number of times that each fault fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fired([u64; Fault::ALL.len()]);

impl Default for Fired {
    fn default() -> Fired {
        Fired([0; Fault::ALL.len()])
    }
}

impl Fired {
    /// It fired `times` more.
    pub fn add(&mut self, fault: Fault, times: u64) {
        self.0[fault as usize] += times;
    }

    /// Returns the number of times that `fault` fired.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds what fired elsewhere.
    pub fn merge(&mut self, other: &Fired) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}
