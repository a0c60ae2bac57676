//! A leader's report of the demand for keys, for a client that needs to know which strategy would
//! be best.

use leasehold_leases::advice::{Profile, ProfileBuilder, ProfilePass};
use leasehold_leases::latency::RoundTrips;
use leasehold_leases::{Ballot, LeaseParams, ReplicaId, StrategySpec, UnlistedHolders};
use leasehold_wire as wire;

use super::Replica;
use super::settings::AcceptReplies;

/// A pass over all keys with known demand, a few keys at a time. The pass changes nothing at the
/// replica.
#[derive(Debug)]
pub struct DemandPass {
    gathering: ProfilePass,
    /// Ballot of the leader to which the demand was reported.
    ballot: Ballot,
}

impl Replica {
    /// Begins a pass over all keys with known demand. Returns `None` if this replica does not lead.
    pub fn begin_demand_pass(&self) -> Option<DemandPass> {
        let ballot = self.leads_at()?;
        let n = self.ctx.settings.n;
        let demand = self.parts.leasing.demand();
        let gathering = ProfilePass::begin(demand, n, ProfileBuilder::fitting(n));
        Some(DemandPass { gathering, ballot })
    }

    /// Returns whether a pass may continue. A pass must not continue if this replica's leadership
    /// has ended since the pass began, because the replica then forgets the reported demand.
    pub fn may_go_on(&self, pass: &DemandPass) -> bool {
        self.leads_at() == Some(pass.ballot)
    }

    /// Continues the pass with up to `keys` further keys. Returns true if no keys are left.
    ///
    /// # Panics
    /// If the pass may not continue.
    pub fn look_at_demand(&self, pass: &mut DemandPass, keys: usize) -> bool {
        assert!(self.may_go_on(pass), "the demand is of this leadership");
        let holders = |key: &[u8]| self.configs().holders(key);
        let demand = self.parts.leasing.demand();
        pass.gathering.look(demand, holders, keys)
    }

    /// Returns the demand that a pass has found. The pass must have looked at all keys. In the
    /// result, each replica is named by its index.
    ///
    /// # Panics
    /// If the pass may not continue.
    pub fn finish_demand_pass(&self, pass: DemandPass) -> wire::Demand {
        assert!(self.may_go_on(&pass), "the demand is of this leadership");
        let configs = self.configs();
        let demand = self.parts.leasing.demand();
        let keys = self.parts.machine.kv().len();
        let profile = pass.gathering.finish(demand, keys, configs.unlisted(b""));
        let strategies = configs.policies().iter();
        let strategies = strategies.map(|(_, policy)| policy.strategy.clone());
        let strategies: Vec<StrategySpec> = strategies.collect();
        let described = wire::Demand {
            rtt_us: matrix(&self.parts.leasing.round_trips(&self.ctx)),
            replies_to_leader: self.ctx.settings.accept_replies == AcceptReplies::Leader,
            strategies: strategies
                .iter()
                .map(|spec| spec.name().to_owned())
                .collect(),
            stall_ms: stall_ms(configs.params(configs.newest())),
            ..describe(&profile)
        };
        with_settings(described, &strategies)
    }
}

fn matrix(rtts: &RoundTrips) -> Vec<u32> {
    let replicas = || (0..rtts.n()).map(|index| ReplicaId(index as u8));
    let row = |a| replicas().map(move |b| (rtts.get(a, b) * 1e3).round() as u32);
    replicas().flat_map(row).collect()
}

fn stall_ms(params: &LeaseParams) -> u64 {
    (params.t_grace + params.t_guard + params.t_lease).as_millis() as u64
}

fn describe(profile: &Profile) -> wire::Demand {
    let all = || profile.keys().iter().chain([profile.unrequested()]);
    let thousandths = |number: &f32| (f64::from(*number) * 1e3).round() as u64;
    let billionths = |rate: &f32| (f64::from(*rate) * 1e9).round() as u64;
    wire::Demand {
        replicas: (0..profile.n()).map(|index| index.to_string()).collect(),
        operations: profile.operations() as u64,
        keys: all().map(|it| thousandths(&it.keys)).collect(),
        holders: all().map(|it| it.holders.0).collect(),
        rates: all()
            .flat_map(|it| it.rates.iter().map(billionths))
            .collect(),
        reads: all()
            .flat_map(|it| it.reads.iter().map(thousandths))
            .collect(),
        ..wire::Demand::default()
    }
}

/// Adds the settings of each kind of strategy to the report `described`. The settings come from the
/// first range with a strategy of this kind. If there is no such range, the default settings are
/// added.
fn with_settings(described: wire::Demand, strategies: &[StrategySpec]) -> wire::Demand {
    let cost = strategies.iter().find_map(|spec| match spec {
        StrategySpec::Cost(settings) => Some(*settings),
        _ => None,
    });
    let unlisted = strategies.iter().find_map(|spec| match spec {
        StrategySpec::Quorum { unlisted } => Some(*unlisted),
        _ => None,
    });
    let cost = cost.unwrap_or_default();
    wire::Demand {
        unlisted_leader: unlisted.unwrap_or_default() == UnlistedHolders::Leader,
        read_weight: cost.thousandths(),
        spare: cost.spare.into(),
        ..described
    }
}
