//! Settings that a replica receives when it starts.

use std::time::Duration;

use leasehold_leases::{LeaseParams, RangeMap, ReplicaId, StrategySpec};

use super::persist::BACKLOG_BYTES_MAX;

/// Replicas, besides the leader, to which an acceptor sends its vote (Castro's optimization, §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AcceptReplies {
    /// Votes go only to the leader. Origins learn of a commit from the leader. If two votes are a
    /// majority, the leader's own votes nevertheless go to all replicas.
    Leader,
    /// Votes also go to every origin of a command in the batch.
    #[default]
    Origin,
    /// Votes go to every replica. Holders, too, learn of a commit from the votes.
    All,
}

/// Intervals and timeouts of a replica's timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Interval at which a leader sends heartbeats.
    pub heartbeat: Duration,
    /// Time for which a leader must be silent before the best successor campaigns. Other replicas
    /// wait a little longer; the better a replica would serve the sites, the shorter it waits. If a
    /// leader receives no answers from a majority for this time, it steps down.
    pub election_timeout: Duration,
    /// Time after which a request without an answer is repeated. The leader waits this long for a
    /// vote, and a lagging follower for an entry. An origin waits this long for a forwarded read,
    /// and twice as long for the slot of a command.
    pub retransmit: Duration,
    /// Interval at which a replica sends pings to measure round trips.
    pub ping: Duration,
    /// Interval at which demand is reported to the leader.
    pub report: Duration,
    /// Interval at which the leader asks the strategy for changes.
    pub reconfigure: Duration,
    /// Interval of checkpoints. At a checkpoint, the executed state is flushed to disk.
    pub checkpoint: Duration,
}

impl Default for Timing {
    /// Returns the shortest intervals and timeouts that cause no false suspicion in a world-wide
    /// network (`results/durations`).
    fn default() -> Self {
        let ms = Duration::from_millis;
        Timing {
            heartbeat: ms(150),
            election_timeout: ms(1000),
            retransmit: ms(700),
            ping: ms(500),
            report: ms(1000),
            reconfigure: ms(10_000),
            checkpoint: ms(10_000),
        }
    }
}

/// Settings of leader elections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// Replica that should lead when it can; `None` if no replica is preferred.
    pub preferred: Option<ReplicaId>,
    /// Whether a replica asks the others before it raises its round. It is off only in tests that
    /// choose which replica campaigns.
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

/// Precision, in log time, with which the last activity of a session is stored. Because this
/// precision is coarse, a busy session rarely needs an update. But a session may live longer than
/// its time to live, by at most this duration.
pub const SESSION_STEP: Duration = Duration::from_secs(1);

/// Limits on the number of clients' sessions, and on how long a session lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Time that a session lives after its last command, by the replicated clock. This value must
    /// be the same for all replicas, and must not change as long as their disks are used.
    pub ttl: Duration,
    /// Minimum silence, by the replicated clock, before a session may be ended to free capacity for
    /// another one. This time must be longer than the time for which clients wait for the answer to
    /// a write, and at most `ttl`. This value must be the same for all replicas, and must not
    /// change as long as their disks are used.
    pub stay: Duration,
    /// Maximum number of sessions; 0 if there is no maximum. Every batch contains the maximum of
    /// the leader that proposed it, so replicas may be configured differently.
    pub max: u32,
    /// Maximum number of sessions that clients of this replica open in a second; 0 if there is no
    /// maximum. In one burst, clients may open as many sessions as this maximum allows in the time
    /// [`busy`].
    ///
    /// [`busy`]: SessionLimits::busy
    pub opened_per_s: u32,
}

impl SessionLimits {
    /// Returns the default limits for a cluster of `n` replicas.
    pub fn of(n: usize) -> SessionLimits {
        let default = SessionLimits::default();
        SessionLimits {
            opened_per_s: default.session_opens_max(n),
            ..default
        }
    }

    /// Returns the maximum time for which a session is protected. A protected session is not ended
    /// to free capacity for others.
    pub fn busy(&self) -> Duration {
        self.stay + SESSION_STEP
    }

    /// Returns the maximum number of sessions that clients of one of `n` replicas may open in a
    /// second. With this maximum, new sessions alone never take all capacity. While a session is
    /// protected, one burst of new sessions takes at most half of the capacity. The sessions that
    /// follow the burst take at most the other half.
    pub fn session_opens_max(&self, n: usize) -> u32 {
        let spans = 2 * self.busy().as_secs() * n as u64;
        (u64::from(self.max) / spans) as u32
    }
}

impl Default for SessionLimits {
    /// Returns limits that allow about 40 MB of sessions on every replica. They do not limit the
    /// rate at which clients open sessions.
    fn default() -> Self {
        SessionLimits {
            ttl: Duration::from_secs(3600),
            stay: Duration::from_secs(30),
            max: 1 << 18,
            opened_per_s: 0,
        }
    }
}

/// Settings that a replica receives when it starts.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Id of this replica.
    pub me: ReplicaId,
    /// Number of replicas.
    pub n: usize,
    /// Strategies for ranges of keys. A leader puts them in force if there has never been a
    /// configuration. After that the configurations in the log are authoritative, and this setting
    /// is ignored.
    pub strategies: RangeMap<StrategySpec>,
    /// Durations of leases. A leader puts them in force if there has never been a configuration.
    pub params: LeaseParams,
    /// Intervals and timeouts of the timers.
    pub timing: Timing,
    /// Settings of leader elections.
    pub elections: ElectionSettings,
    /// Recipients of votes, besides the leader.
    pub accept_replies: AcceptReplies,
    /// Maximum number of commands that a leader puts into one slot.
    pub batch_max: usize,
    /// Maximum number of uncommitted slots that a leader keeps in flight.
    pub in_flight_max: usize,
    /// Maximum work that one group of inputs executes, in units of [`crate::cost`]. The maximum is
    /// higher if much committed work is not executed yet. The last slot of a group may exceed the
    /// maximum.
    pub executed_work_max: usize,
    /// Maximum work of the merges that a replica has in the log for its clients, in units of
    /// [`crate::cost::merging`]. Each merge is charged for at least 64 units. The maximum applies
    /// to small merges and to large merges separately. A quarter of the maximum applies to long
    /// merges, and another quarter to transactions that rewrite large values. Merges above the
    /// maximum wait at the replica, and other commands overtake them; long merges are refused.
    pub merge_work_max: usize,
    /// Number of unanswered merges of one key at which a replica raises the charge. If this many or
    /// more are unanswered, each further merge of that key is charged for at least 512 units.
    pub merges_of_key_max: usize,
    /// Maximum work of committed commands that are not executed yet, in units of [`crate::cost`].
    /// Above this maximum, a leader proposes no more commands. Above twice this maximum, other
    /// replicas accept no more commands, and fetch the missed commands later.
    pub to_execute_work_max: usize,
    /// Number of slots in which a replica accepts values, for each of the two logs. The slots begin
    /// above the replica's durable checkpoint. A leader proposes only in the first half of this
    /// window. Once a quarter of the window is executed, the next checkpoint is forced. The value
    /// is at least 4. This value must be the same for all replicas, and must not change as long as
    /// their disks are used.
    pub log_window: u64,
    /// Maximum number of executed slots of each log that stay in memory for followers that lag.
    /// Older slots are read from the disk.
    pub kept_slots_max: usize,
    /// Limits on the number of clients' sessions, and on how long a session lives.
    pub sessions: SessionLimits,
    /// Maximum memory for demand, in bytes.
    pub demand_bytes_max: usize,
    /// Maximum traffic for the choice of holders, in bytes a second (§3.4). Half of this traffic is
    /// for the reports in which a replica tells the leader the demand of its clients. The other
    /// half is for the configurations in which the leader tells each replica the holders of keys.
    pub holders_bytes_s: usize,
}

/// Default of [`Settings::executed_work_max`]. This work takes about 1.7 ms. The time must be
/// short, because a write passes through several replicas and waits for a group of inputs at each.
/// A command with the maximum number of keys exceeds this work.
const EXECUTED_WORK_MAX: usize = 256 << 10;
/// Default of [`Settings::merge_work_max`]. This work takes about 5 ms. It is enough for 8,192
/// merges into small records, or 171 merges into the largest records. For the first merges since a
/// batch of changes, it is enough for 27 merges into the largest records. The quarter for
/// transactions is enough for 2 transactions that rewrite 1 MiB. The 8,192 merges take up to 240 ms
/// of processor time if writes in flight make all these records as large as possible. Merges may
/// use only a quarter of the time, so they then take a second. Commands behind merges in the log
/// wait for the merges of all replicas.
const MERGE_WORK_MAX: usize = 512 << 10;
/// Default of [`Settings::merges_of_key_max`]. Usually fewer merges of one key wait. But a client
/// may send many merges of one key on purpose, after a write that makes the record large. Each of
/// these merges is charged for at least 512 units. Therefore at most 1,024 of them are sent in one
/// burst.
const MERGES_OF_KEY_MAX: usize = 64;
/// Divisor of the maximum work that is left to execute. If more work is left than the quotient, the
/// replica is behind.
const BEHIND_SHARE: usize = 4;
/// Default of [`Settings::to_execute_work_max`]. It equals the maximum number of bytes that may
/// wait for the disk.
const TO_EXECUTE_WORK_MAX: usize = BACKLOG_BYTES_MAX;

impl Settings {
    /// Returns the default settings of replica `me` of `n`.
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
            log_window: 1 << 20,
            kept_slots_max: 8192,
            sessions: SessionLimits::of(n),
            demand_bytes_max: 64 << 20,
            holders_bytes_s: 100_000,
        }
    }

    /// Returns a limit on the work that is left to execute, in units of [`crate::cost`]. If more
    /// work is left, this replica is behind.
    pub(super) fn behind_work(&self) -> usize {
        self.to_execute_work_max / BEHIND_SHARE
    }

    /// Returns the maximum size of a demand report, in bytes.
    pub(super) fn report_bytes_max(&self) -> usize {
        let ms = self.timing.report.as_millis() as usize;
        (self.holders_bytes_s / 2).saturating_mul(ms) / 1000
    }

    /// Returns the maximum number of bytes of keys that configurations may include in a second.
    pub(super) fn configuration_bytes_s(&self) -> usize {
        self.holders_bytes_s / 2
    }
}
