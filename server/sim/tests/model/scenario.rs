//! Bounds of one exploration, and the settings with which no event outside of these bounds happens.

use std::time::Duration;

use leasehold_leases::{ClockBound, LeaseParams, RangeMap, ReplicaId, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::action::ClientHandle;

/// Number of replicas.
pub const N: usize = 3;
/// Duration of a tick. A tick is so short that log time does not advance.
pub const TICK: Duration = Duration::from_micros(1);
/// Interval at which promises are renewed and the state is checkpointed. The cluster usually runs
/// for this time before exploration begins. So both happen before exploration begins, and neither
/// during it.
pub const PREFIX: Duration = Duration::from_millis(500);
/// Duration that never passes. It is shorter than a day, because no replica accepts longer leases.
const NEVER: Duration = Duration::from_secs(80_000);

/// One command of a client, with the replica that it is sent to.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Read(usize),
    Write(usize),
    /// A transaction that writes the key if it does not find the other key.
    Txn(usize),
    /// A write of the other key.
    WriteOther(usize),
}

impl Step {
    /// Returns the replica that the command is sent to.
    pub fn node(self) -> usize {
        match self {
            Step::Read(node) | Step::Write(node) => node,
            Step::Txn(node) | Step::WriteOther(node) => node,
        }
    }
}

/// Order in which packets of one link arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order in which the packets were sent.
    Fifo,
    /// Any order. So each packet may be late for ever, which has the same effect as a loss.
    Any,
}

/// Drift of the clocks. At any time, the readings of two clocks differ by at most one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Each clock ticks independently. While one clock ticks three times, every other clock ticks
    /// at least once. So leases are stretched by a factor of three (rho is one half), which is
    /// exactly sufficient.
    Free,
    /// This clock may lag a tick behind the two others, which tick together. While those two tick
    /// twice, this clock ticks at least once, so leases are stretched by a factor of two.
    Lag(usize),
}

/// Bounds of one exploration.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub strategies: RangeMap<StrategySpec>,
    pub name: String,
    /// For each client, the commands that it sends, one after the other. The first client writes.
    pub programs: [Vec<Step>; 2],
    pub clocks: Clocks,
    /// Number of ticks of each clock.
    pub horizon: u8,
    pub crashes: u8,
    /// Replicas that may crash. Writes to their disks take time. Writes to all other disks are
    /// durable immediately.
    pub may_crash: Vec<usize>,
    pub campaigns: u8,
    pub may_campaign: Vec<usize>,
    /// Whether a replica may campaign only after the crash.
    pub campaign_after_crash: bool,
    /// Whether each replica may flush its state once, at any moment before a replica campaigns. A
    /// ping then reports the flushed state, so that logs are truncated.
    pub flushes: bool,
    /// Whether a replica that restarted receives and makes promises again.
    pub promises: bool,
    /// Whether r0 renews its promise to the reading replica during exploration, after the promise
    /// before it has ended. Writes to the disk of r0 then take time.
    pub late_promise: bool,
    /// Only grantor of the reading replica's first lease; `None` if the lease may have several
    /// grantors. Among three replicas, one grantor is enough for a lease.
    pub sole_grantor: Option<usize>,
    pub order: Order,
}

impl Scenario {
    /// Returns lease parameters. Lease and guard last one tick, and rho is the smallest value that
    /// covers the drift of the clocks.
    fn params(&self) -> LeaseParams {
        let rho_ppm = match self.clocks {
            Clocks::Free => 500_000,
            Clocks::Lag(_) => 333_333,
        };
        LeaseParams {
            t_lease: TICK,
            t_guard: TICK,
            renew: PREFIX,
            t_grace: NEVER,
            t0_cap: Duration::ZERO,
            clock: ClockBound { rho_ppm },
        }
    }

    /// Returns the time for which the cluster runs before exploration begins. A late promise is
    /// renewed at the first tick of exploration, long after the promise before it has ended.
    pub fn preparation(&self) -> Duration {
        if self.late_promise {
            2 * PREFIX - TICK
        } else {
            PREFIX
        }
    }

    /// Returns the settings of replica `me`.
    pub fn settings(&self, me: usize) -> Settings {
        let mut settings = Settings::new(ReplicaId(me as u8), N);
        settings.strategies = self.strategies.clone();
        settings.params = self.params();
        settings.elections.pre_vote = false; // a campaign may begin at any moment
        let timing = &mut settings.timing;
        timing.heartbeat = NEVER;
        timing.election_timeout = NEVER;
        timing.retransmit = NEVER;
        timing.ping = NEVER;
        timing.report = NEVER;
        timing.reconfigure = NEVER;
        // A flush would end the writes to the disk that a late promise must precede.
        timing.checkpoint = if self.late_promise {
            PREFIX * 3 / 4
        } else {
            PREFIX
        };
        settings
    }

    /// Whether a client reads at `node`.
    pub fn reads_at(&self, node: usize) -> bool {
        let mut steps = self.programs.iter().flatten();
        steps.any(|step| matches!(step, Step::Read(at) if *at == node))
    }

    /// Whether writes to the disk of `node` take time. `crashes_left` is the number of crashes that
    /// may still happen.
    pub fn is_slow(&self, node: usize, crashes_left: u8) -> bool {
        let may_crash = crashes_left > 0 && self.may_crash.contains(&node);
        may_crash || self.late_promise && node == 0
    }

    /// Returns the replica to which a request was sent.
    pub fn origin(&self, request: ClientHandle) -> usize {
        let program = &self.programs[request.connection as usize];
        program[request.request as usize - 1].node()
    }
}
