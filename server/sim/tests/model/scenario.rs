//! Bounds of one exploration, and the settings that keep everything else still.

use std::time::Duration;

use leasehold_leases::{ClockBound, LeaseParams, RangeMap, ReplicaId, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::action::ClientHandle;

/// Replicas.
pub const N: usize = 3;
/// By how much a clock moves at a time. So short that log time stands still.
pub const TICK: Duration = Duration::from_micros(1);
/// Time for which the cluster runs before exploration begins: until promises are renewed and the
/// state is checkpointed, as they are after the same duration again.
pub const PREFIX: Duration = Duration::from_millis(500);
/// Duration that never passes, and is not longer than a day: no replica believes in longer leases.
const NEVER: Duration = Duration::from_secs(80_000);

/// One command of a client, by the replica it is sent to.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Read(usize),
    Write(usize),
}

impl Step {
    /// Where it is sent.
    pub fn node(self) -> usize {
        match self {
            Step::Read(node) | Step::Write(node) => node,
        }
    }
}

/// In which order packets of one link arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they were sent.
    Fifo,
    /// Any, so that each may be late for ever: that is loss.
    Any,
}

/// Drift of the clocks. Their readings differ by at most one tick at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// Each by itself. While one counts three ticks, another counts one at least:
    /// leases are stretched by three (rho is one half), which is tight.
    Free,
    /// One may lag a tick behind the two others, which tick together. While those
    /// count two, it counts one at least: leases are stretched by two.
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
    /// Ticks of each clock.
    pub horizon: u8,
    pub crashes: u8,
    /// Only its writes take time: all others are durable at once.
    pub may_crash: Vec<usize>,
    pub campaigns: u8,
    pub may_campaign: Vec<usize>,
    /// Nobody campaigns before the crash.
    pub campaign_after_crash: bool,
    /// Whether promises are made after the preparation too: to and by the replica that restarted.
    pub promises: bool,
    /// The lease of the replica that is read at rests on this grantor alone at first: one is enough
    /// among three.
    pub sole_grantor: Option<usize>,
    pub order: Order,
}

impl Scenario {
    /// Lease and guard are one tick; rho is the least that outwaits the clocks.
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

    /// The replica that a request was sent to.
    pub fn origin(&self, request: ClientHandle) -> usize {
        let program = &self.programs[request.connection as usize];
        program[request.request as usize - 1].node()
    }
}
