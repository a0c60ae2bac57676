//! Functions that report the replica's state and counters to an operator.

use std::time::Duration;

use leasehold_leases::{Key, KeyRange, Policy, ReplicaId, ReplicaSet, Time};
use leasehold_wire::{Counter, Hint, LeaseRange, Leases, Peer, StatusReply};

use super::Replica;
use super::message::LogId;
use crate::cost::Sizes;

/// Returns the names of replicas. The name of a replica is its index.
fn names(replicas: ReplicaSet) -> Vec<String> {
    replicas
        .iter()
        .map(|replica| replica.0.to_string())
        .collect()
}

/// An election timeout that is too short for the distances between replicas.
#[derive(Clone, Copy, Debug)]
pub struct ShortTimeout {
    /// Configured election timeout.
    pub set: Duration,
    /// Measured round trip to the nearest majority.
    pub rtt: Duration,
}

impl ShortTimeout {
    /// Returns the smallest election timeout, in ms, that is long enough.
    pub fn least_ms(&self) -> u64 {
        (self.rtt * 2).as_micros().div_ceil(1000) as u64
    }
}

impl Replica {
    /// Returns the election timeout if it is less than two measured round trips to the nearest
    /// majority. With such a timeout, an election takes longer than the timeout, and a late
    /// heartbeat deposes a healthy leader.
    pub fn short_timeout(&self) -> Option<ShortTimeout> {
        self.ctx.short_timeout()
    }

    /// Returns the round trip to the farthest replica; `None` until the round trips to a majority are
    /// measured. For each replica, the shortest of the recent round trips counts, so the result does
    /// not rise if replicas are busy.
    pub fn longest_round_trip(&self) -> Option<Duration> {
        self.ctx.majority_rtt().map(|_| self.ctx.farthest_rtt())
    }

    /// Returns a summary of the state. Replicas are named by their index.
    pub fn status(&self, now: Time) -> StatusReply {
        let name = |replica: ReplicaId| replica.0.to_string();
        let consensus = &self.parts.consensus;
        StatusReply {
            replica: name(self.ctx.me()),
            leader: self.leader().map_or(String::new(), name),
            ballot_round: consensus.promised().round,
            committed: consensus.commands().commit_point().0,
            executed: self.executed().0,
            configuration: self.configuration().0,
            strategy: self.configs().policies().strategies().names(),
            counters: self.counters(),
            peers: self.ctx.others().map(|peer| self.peer(now, peer)).collect(),
            incarnation: self.ctx.incarnation.0,
            durability: String::new(),
            keys: self.parts.machine.kv().len() as u64,
            unlisted: names(self.configs().unlisted(b"")),
            excluded: names(self.configs().excluded()),
            leader_since_ms: consensus.led_for(now).as_millis() as u64,
            ..StatusReply::default()
        }
    }

    /// Returns the maximum duration of a move of leadership. A move consists of a wait and an
    /// election. The leader waits at most t_grace for the commit of its proposals.
    pub fn transfer_duration_max(&self) -> Duration {
        self.parts.leasing.grace() + self.ctx.settings.timing.election_timeout * 2
    }

    /// Returns the replicas that have not answered this leader lately. Returns the empty set if
    /// this replica does not lead.
    pub fn out_of_touch(&self, now: Time) -> ReplicaSet {
        match self
            .parts
            .consensus
            .in_touch(now, self.ctx.majority_timeout())
        {
            Some(touched) => self
                .ctx
                .others()
                .filter(|it| !touched.contains(*it))
                .collect(),
            None => ReplicaSet::EMPTY,
        }
    }

    /// Adds to `status` the holders of `key`, and the replicas that may hold `key`. A replica may
    /// hold `key` if a promise of this replica to it is still in force at `now`. If `key` is empty,
    /// the key with the most known demand is used.
    pub fn describe_holders(&self, now: Time, key: &[u8], status: &mut StatusReply) {
        let hottest = || self.parts.leasing.hottest();
        let key = match key {
            [] => hottest().unwrap_or_default(),
            key => Key::copy_from_slice(key),
        };
        let holders = if key.is_empty() {
            self.configs().unlisted(b"")
        } else {
            self.configs().holders(&key)
        };
        let promised = self.parts.leasing.promised_to(now, &key);
        status.holders = names(holders);
        status.may_hold = names(holders.union(promised));
        status.holders_of = key;
    }

    /// Returns a hint that tells a client from which replica to read `key`: the holders of the key,
    /// and the leader.
    pub fn hint(&self, key: &[u8]) -> Hint {
        let configs = self.configs();
        Hint {
            holders: configs.holders(key).0,
            leader: self.leader().map_or(0, |leader| u32::from(leader.0) + 1),
            listed: configs.listed(key).is_some(),
        }
    }

    /// Adds to `status` the strategies and durations in force for reads under leases, with one
    /// entry for each range.
    pub fn describe_leases(&self, status: &mut StatusReply) {
        let configs = self.configs();
        let params = configs.params(configs.newest());
        let us = |span: Duration| span.as_micros() as u64;
        let listed = configs.listed_by_range();
        assert_eq!(
            listed.len(),
            configs.policies().iter().count(),
            "one count for each range"
        );
        let range = |((range, policy), listed): ((KeyRange, &Policy), u64)| LeaseRange {
            from: range.from().clone(),
            to: range.to().cloned().unwrap_or_default(),
            strategy: policy.strategy.name().to_owned(),
            settings: policy.strategy.settings(),
            defaults: names(policy.defaults),
            listed,
        };
        status.leases = Some(Leases {
            ranges: configs.policies().iter().zip(listed).map(range).collect(),
            t_lease_us: us(params.t_lease),
            t_guard_us: us(params.t_guard),
            renew_us: us(params.renew),
            grace_us: us(params.t_grace),
            rho_ppm: params.clock.rho_ppm,
            unfinished: self.parts.leasing.is_unfinished(),
            already: false,
        });
    }

    /// Returns the sizes of the state on which the cost of operators' requests depends.
    pub fn sizes(&self) -> Sizes {
        let starts = || self.configs().policies().starts();
        Sizes {
            ranges: starts().count(),
            starts_bytes: starts().map(|from| from.len()).sum(),
            demand_keys: self.parts.leasing.demand_use().keys,
        }
    }

    fn peer(&self, now: Time, peer: ReplicaId) -> Peer {
        let (grantor, holder) = (self.parts.leasing.grantor(), self.parts.leasing.holder());
        let granted_until = grantor.granted_until(peer);
        Peer {
            name: peer.0.to_string(),
            rtt_us: self.ctx.rtt(peer).map_or(0, |rtt| rtt.as_micros() as u64),
            granted_to: granted_until.is_some_and(|until| now < until),
            granted_by: holder.grantors(now).contains(peer),
        }
    }

    /// Returns the counters, and the sizes of everything that may grow.
    fn counters(&self) -> Vec<Counter> {
        let parts = &self.parts;
        let (demand, sessions) = (parts.leasing.demand_use(), parts.machine.sessions());
        let limits = &self.ctx.settings.sessions;
        let sizes = [
            (
                "log_window_used",
                parts.consensus.commands().used() as usize,
            ),
            (
                "config_window_used",
                parts.consensus.log(LogId::Configs).used() as usize,
            ),
            ("clock_trusted", usize::from(self.ctx.clock_trusted)),
            (
                "preferred_leader_wait_s",
                parts.consensus.preferred_wait().as_secs() as usize,
            ),
            ("sessions", sessions.len()),
            ("sessions_max", sessions.max() as usize),
            ("limit_sessions_max", limits.max as usize),
            ("limit_sessions_opened_per_s", limits.opened_per_s as usize),
            ("sessions_made_room", sessions.made_room() as usize),
            ("sessions_refused", sessions.no_room() as usize),
            ("listed_keys", self.configs().listed_len()),
            ("demand_keys", demand.keys),
            ("demand_bytes", demand.bytes),
            ("demand_report_bytes", demand.reported_bytes),
            ("pending_commands", parts.writes.len()),
            ("waiting_reads", parts.reads.len()),
            ("joined", usize::from(self.has_joined())),
        ];
        let sizes = sizes.map(|(name, size)| (name, size as u64));
        let named = |(name, value): (&str, u64)| Counter {
            name: name.to_string(),
            value,
        };
        self.metrics.all().chain(sizes).map(named).collect()
    }
}
