//! Bounds of one exploration, and the settings that prevent every other event.

use std::time::Duration;

use leasehold_leases::{ClockBound, LeaseParams, RangeMap, ReplicaId, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::action::ClientHandle;

/// Number of replicas.
pub const N: usize = 3;
/// Duration of a tick. It is so short that log time does not advance.
pub const TICK: Duration = Duration::from_micros(1);
/// Time for which the cluster runs before exploration begins. Within it, promises are renewed and
/// the state is checkpointed, and both are due again only after the same time.
pub const PREFIX: Duration = Duration::from_millis(500);
/// Duration that never passes. It is shorter than a day, because no replica accepts longer leases.
const NEVER: Duration = Duration::from_secs(80_000);

/// One command of a client, with the replica that it is sent to.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Read(usize),
    Write(usize),
}

impl Step {
    /// Returns the replica that the command is sent to.
    pub fn node(self) -> usize {
        match self {
            Step::Read(node) | Step::Write(node) => node,
        }
    }
}

/// Order in which packets of one link arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Order in which they were sent.
    Fifo,
    /// Any order. So each packet may be late for ever, which is the same as its loss.
    Any,
}

/// Drift of the clocks. At any time, their readings differ by at most one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Each clock ticks independently. While one clock ticks three times, another ticks at least
    /// once. So leases are stretched by a factor of three (rho is one half), which is exactly
    /// sufficient.
    Free,
    /// This clock may lag a tick behind the two others, which tick together. While they tick twice,
    /// it ticks at least once, so leases are stretched by a factor of two.
    Lag(usize),
}

/// One exploration.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub strategies: RangeMap<StrategySpec>,
    pub name: String,
    /// Commands of each client, one after the other; the first client writes.
    pub programs: [Vec<Step>; 2],
    pub clocks: Clocks,
    /// Number of ticks of each clock.
    pub horizon: u8,
    pub crashes: u8,
    /// Replicas that may crash. Only their writes to disk take time; all others are durable
    /// immediately.
    pub may_crash: Vec<usize>,
    pub campaigns: u8,
    pub may_campaign: Vec<usize>,
    /// Whether no replica campaigns before the crash.
    pub campaign_after_crash: bool,
    /// Whether promises are also made after the preparation, to and by the replica that restarted.
    pub promises: bool,
    /// Grantor on which alone the lease of the reading replica rests at first, if there is one.
    /// Among three replicas, one grantor is enough.
    pub sole_grantor: Option<usize>,
    pub order: Order,
}

impl Scenario {
    /// Returns parameters in which lease and guard are one tick, and rho is the least that covers
    /// the drift of the clocks.
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
        timing.checkpoint = PREFIX;
        settings
    }

    /// Whether a client reads at `node`.
    pub fn reads_at(&self, node: usize) -> bool {
        let mut steps = self.programs.iter().flatten();
        steps.any(|step| matches!(step, Step::Read(at) if *at == node))
    }

    /// Returns the replica that a request was sent to.
    pub fn origin(&self, request: ClientHandle) -> usize {
        let program = &self.programs[request.connection as usize];
        program[request.request as usize - 1].node()
    }
}
