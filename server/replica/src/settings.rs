//! Settings that a replica gets at its start.

use std::time::Duration;

use leasehold_leases::{LeaseParams, RangeMap, ReplicaId, StrategySpec};

use super::persist::BACKLOG_BYTES_MAX;

/// Recipients of an acceptor's vote, besides the leader (Castro's optimization, §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AcceptReplies {
    /// Nobody: origins learn from the leader.
    Leader,
    /// Every origin with a command in the batch.
    #[default]
    Origin,
    /// Every replica: holders learn of a commit by themselves.
    All,
}

/// Spans of a replica's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval at which a leader says that it lives.
    pub heartbeat: Duration,
    /// Silence of the leader after which the best successor campaigns. Others wait a little
    /// longer, in the order in which they would serve the sites. A leader that hears no
    /// majority for as long steps down.
    pub election_timeout: Duration,
    /// Time that the leader waits for a vote, an origin for its command's slot, or a follower
    /// behind for an entry, before it asks again.
    pub retransmit: Duration,
    /// Interval at which round trips are measured.
    pub ping: Duration,
    /// Interval at which demand is reported to the leader.
    pub report: Duration,
    /// Interval at which the leader asks the strategy for changes.
    pub reconfigure: Duration,
    /// Interval at which the state is checkpointed.
    pub checkpoint: Duration,
}

impl Default for Timing {
    /// As short as a world-wide network permits without false suspicion
    /// (`results/durations`).
    fn default() -> Self {
        let ms = Duration::from_millis;
        Timing {
            heartbeat: ms(150),
            election_timeout: ms(1000),
            retransmit: ms(700),
            ping: ms(500),
            report: ms(1000),
            reconfigure: ms(10_000),
            checkpoint: ms(1000),
        }
    }
}

/// Settings of leader elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Replica that should lead when it can.
    pub preferred: Option<ReplicaId>,
    /// Whether a replica asks the others before it raises its round. Off only where tests choose
    /// which replica campaigns.
    pub pre_vote: bool,
}

impl Default for ElectionSettings {
    fn default() -> Self {
        ElectionSettings {
            preferred: None,
            pre_vote: true,
        }
    }
}

/// Activity of sessions is remembered in steps of this, in log time: a busy one is moved
/// rarely, and each may live this much longer than it must.
pub const SESSION_STEP: Duration = Duration::from_secs(1);

/// Limits on the number of clients' sessions, and on their duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Time that a session lives after its last command, by the replicated clock. The same for all
    /// replicas, in every version that runs on their disks.
    pub ttl: Duration,
    /// Time, by the replicated clock, for which a session must have been silent before it ends to
    /// free capacity for another: longer than clients wait for the answer to a write, and at most
    /// `ttl`. The same for all replicas, in every version that runs on their disks.
    pub stay: Duration,
    /// Most sessions; 0: any number. Every batch names the bound of the leader that proposed
    /// it, so replicas may be told different ones.
    pub max: u32,
    /// Most sessions that clients of this replica open in a second, and those of [`busy`] at
    /// once; 0: any number.
    ///
    /// [`busy`]: SessionLimits::busy
    pub opened_per_s: u32,
}

impl SessionLimits {
    /// The defaults for a cluster of `n` replicas.
    pub fn of(n: usize) -> SessionLimits {
        let default = SessionLimits::default();
        SessionLimits {
            opened_per_s: default.session_opens_max(n),
            ..default
        }
    }

    /// Maximum time for which a session cannot end to free capacity for others.
    pub fn busy(&self) -> Duration {
        self.stay + SESSION_STEP
    }

    /// Maximum number of sessions that clients of each of `n` replicas may open in a second, so
    /// that new sessions alone never take all capacity. In the time for which a session cannot end
    /// for others, half of the capacity is for sessions opened at once, and half for those that
    /// follow.
    pub fn session_opens_max(&self, n: usize) -> u32 {
        let spans = 2 * self.busy().as_secs() * n as u64;
        (u64::from(self.max) / spans) as u32
    }
}

impl Default for SessionLimits {
    /// About 40 MB of sessions on every replica. Clients open any number.
    fn default() -> Self {
        SessionLimits {
            ttl: Duration::from_secs(3600),
            stay: Duration::from_secs(30),
            max: 1 << 18,
            opened_per_s: 0,
        }
    }
}

/// Settings that a replica gets at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This replica.
    pub me: ReplicaId,
    /// Number of replicas.
    pub n: usize,
    /// The strategies, by key range, that a leader puts in force when no configuration ever
    /// was. What the log holds then counts, not what a node is told.
    pub strategies: RangeMap<StrategySpec>,
    /// Likewise the lease durations.
    pub params: LeaseParams,
    /// Timers.
    pub timing: Timing,
    /// Settings of leader elections.
    pub elections: ElectionSettings,
    /// Recipients of votes.
    pub accept_replies: AcceptReplies,
    /// Most commands in a slot.
    pub batch_max: usize,
    /// Most uncommitted slots a leader keeps in flight.
    pub in_flight_max: usize,
    /// Work that a group of inputs executes, in units of [`crate::cost`], unless much is left. The
    /// last slot may exceed it.
    pub executed_work_max: usize,
    /// Most work of merges that a replica has in the log for its clients, in units of
    /// [`crate::cost::merging`]. More merges wait at the replica, and other commands pass them by. Each
    /// counts as 64 bytes at least. Long merges have a quarter of that for themselves.
    pub merge_work_max: usize,
    /// With so many merges of one key waiting at a replica more of them count as 512 bytes at
    /// least.
    pub merges_of_key_max: usize,
    /// Most work that is committed and to be executed, in units of [`crate::cost`]. With more a leader
    /// proposes no more commands. With twice as many others accept none; what they miss they fetch later.
    pub to_execute_work_max: usize,
    /// Most bytes of long values that a checkpoint has the disk write at once; one longer value goes
    /// alone. More than that is written ahead of it, in parts.
    pub checkpoint_piece_bytes: usize,
    /// Number of slots above its durable checkpoint that a replica accepts, in each log. A leader
    /// proposes in the first half, and a quarter executed forces the next checkpoint. At least 4,
    /// and the same for all replicas, in every version that runs on their disks.
    pub log_window: u64,
    /// Limits on the number of clients' sessions, and on their duration.
    pub sessions: SessionLimits,
    /// Most memory for demand, in bytes.
    pub demand_bytes_max: usize,
    /// Maximum traffic for the choice of holders, in bytes a second: half of it from a replica to
    /// the leader (the demand of clients), half from the leader to each replica (the holders of
    /// keys) (§3.4).
    pub holders_bytes_s: usize,
}

/// Some 1.7 ms: a write passes through several replicas, and waits for a group at each. A command of the
/// most keys exceeds it.
const EXECUTED_WORK_MAX: usize = 256 << 10;
/// Some 5 ms, so 170 merges into the largest records (27 if they are the first since a checkpoint), or
/// 8,192 into small ones: what follows them in the log waits for those of all replicas. These 8,192 take up to 240 ms if writes on their way make
/// all their records the largest, and merging has a quarter of the time.
const MERGE_WORK_MAX: usize = 512 << 10;
/// More of one key are rare, unless they are meant to follow a write that makes it large. 1,024 of
/// them are sent at once.
const MERGES_OF_KEY_MAX: usize = 64;
/// The disk takes some ms for it, with what the store writes behind it.
const CHECKPOINT_PIECE_BYTES: usize = 512 << 10;
/// A replica is behind with this share, one part in so many, of the work that may be left to execute.
const BEHIND_SHARE: usize = 4;
/// As much as may wait for the disk.
const TO_EXECUTE_WORK_MAX: usize = BACKLOG_BYTES_MAX;

impl Settings {
    /// The defaults for replica `me` of `n`.
    pub fn new(me: ReplicaId, n: usize) -> Settings {
        Settings {
            me,
            n,
            strategies: StrategySpec::Leader.into(),
            params: LeaseParams::for_sites(),
            timing: Timing::default(),
            elections: ElectionSettings::default(),
            accept_replies: AcceptReplies::default(),
            batch_max: 5000,
            in_flight_max: 1024,
            executed_work_max: EXECUTED_WORK_MAX,
            merge_work_max: MERGE_WORK_MAX,
            merges_of_key_max: MERGES_OF_KEY_MAX,
            to_execute_work_max: TO_EXECUTE_WORK_MAX,
            checkpoint_piece_bytes: CHECKPOINT_PIECE_BYTES,
            log_window: 1 << 20,
            sessions: SessionLimits::of(n),
            demand_bytes_max: 64 << 20,
            holders_bytes_s: 100_000,
        }
    }

    /// With more work left to execute a replica is behind.
    pub(super) fn behind_work(&self) -> usize {
        self.to_execute_work_max / BEHIND_SHARE
    }

    /// Most bytes of a report of demand.
    pub(super) fn report_bytes_max(&self) -> usize {
        let ms = self.timing.report.as_millis() as usize;
        (self.holders_bytes_s / 2).saturating_mul(ms) / 1000
    }

    /// Most bytes of keys that configurations bring in a second.
    pub(super) fn configuration_bytes_s(&self) -> usize {
        self.holders_bytes_s / 2
    }
}
