//! Lease configurations: which replicas hold which key, agreed through a log of
//! their own (§3.4).
//!
//! Configurations are incremental, and several are alive at once: while grants
//! under an old one last, replicas obey both. So contents are kept by version:
//! a key remembers the holder sets it had, each with the configuration that
//! gave it, and a configuration is a point of view on them. Nothing is copied
//! when a configuration changes a few keys of a hundred thousand.

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::mutants::{Rule, off};
use crate::time::ClockBound;
use crate::types::{ConfigId, ReplicaId, ReplicaSet};

/// A key of the store.
pub type Key = Bytes;

/// Durations and the drift bound of a configuration. Replicated, so that all
/// replicas count with the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseParams {
    /// How long a promise lasts at its holder, from its receipt.
    pub t_lease: Duration,
    /// How long after an ack was sent the promise that builds on it may arrive.
    pub t_guard: Duration,
    /// How often a grantor renews.
    pub renew: Duration,
    /// How long a replica may stay silent before it is suspected.
    pub t_grace: Duration,
    /// Past this age of the newest ack a grantor establishes anew.
    pub t0_cap: Duration,
    /// How far clock rates may differ.
    pub clock: ClockBound,
}

/// Why durations are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamsError {
    /// Renewing without pause would leave time for nothing else.
    #[error("the renewal interval and the lease must be longer than nothing")]
    Zero,
    /// The lease would lapse between any two renewals.
    #[error("the lease must be longer than the interval between its renewals")]
    LapsesBetweenRenewals,
    /// A renewal would find its base too old, and every promise needs a new guard.
    #[error("the cap on an ack's age must be longer than the interval between renewals")]
    CapBelowRenewal,
    /// A replica that answers every renewal would be suspected between two.
    #[error("the grace must be longer than the interval between renewals")]
    GraceBelowRenewal,
    /// No finite stretch makes up for such clocks.
    #[error("clock rates may differ by at most {} ppm", ClockBound::RHO_PPM_MAX)]
    Drift,
}

impl LeaseParams {
    /// Checks the durations against each other, before they are proposed.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), ParamsError> {
        if self.renew.is_zero() || self.t_lease.is_zero() {
            return Err(ParamsError::Zero);
        }
        if self.t_lease <= self.renew {
            return Err(ParamsError::LapsesBetweenRenewals);
        }
        if self.t0_cap <= self.renew {
            return Err(ParamsError::CapBelowRenewal);
        }
        if self.t_grace <= self.renew {
            return Err(ParamsError::GraceBelowRenewal);
        }
        if self.clock.rho_ppm > ClockBound::RHO_PPM_MAX {
            return Err(ParamsError::Drift);
        }
        Ok(())
    }

    /// How long a restarted replica must assume that grants it has forgotten
    /// are still alive: `(t_guard + t_lease + 2 rho t0_cap)(1+rho)/(1-rho)`.
    pub fn restart_wait(&self) -> Duration {
        self.clock
            .keep_from_send(self.t_lease, self.t_guard, self.t0_cap)
    }
}

impl Default for LeaseParams {
    /// The paper's setting (§5.2): lease and guard 2 s, renewal every 500 ms,
    /// grace 5 s; `rho` 0.001.
    fn default() -> Self {
        LeaseParams {
            t_lease: Duration::from_secs(2),
            t_guard: Duration::from_secs(2),
            renew: Duration::from_millis(500),
            t_grace: Duration::from_secs(5),
            t0_cap: Duration::from_secs(4),
            clock: ClockBound { rho_ppm: 1000 },
        }
    }
}

/// Holders of the keys from `from` on, up to the next range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key of the range.
    pub from: Key,
    /// Who holds the keys of the range.
    pub holders: ReplicaSet,
}

/// One entry of the configuration log. Fields left `None` or empty stay as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConfigChange {
    /// Forget every key's own holders (before `keys` is applied).
    pub clear: bool,
    /// Holders of keys that are neither listed nor in a range. They *name*
    /// replicas: a new leader must respect the lease of the old one.
    pub defaults: Option<ReplicaSet>,
    /// Holders by key range, in rising order of `from`; replaces all ranges.
    pub ranges: Option<Vec<KeyRange>>,
    /// Holders of single keys, grouped by quorum.
    pub keys: Vec<(ReplicaSet, Vec<Key>)>,
    /// Replicas that hold nothing, whatever the rest says (suspects, §3.7).
    pub excluded: Option<ReplicaSet>,
    /// The strategy behind this and later changes, by its name and settings.
    pub strategy: Option<crate::strategy::StrategySpec>,
    /// New durations.
    pub params: Option<LeaseParams>,
}

/// The part of a configuration that is not about single keys.
#[derive(Clone, Debug, Hash)]
struct Frame {
    id: ConfigId,
    cleared: ConfigId,
    defaults: ReplicaSet,
    ranges: std::sync::Arc<[KeyRange]>,
    excluded: ReplicaSet,
    strategy: crate::strategy::StrategySpec,
    params: LeaseParams,
    /// Replicas in the set of every listed key; `None`: no key is listed. May
    /// be too small (a key listed anew is not forgotten), never too large.
    listed: Option<ReplicaSet>,
    /// Per replica, the oldest configuration it may still be promised under.
    oldest: SmallVec<[ConfigId; 8]>,
}

type Versions = SmallVec<[(ConfigId, ReplicaSet); 1]>;

/// All configurations that may still matter here.
#[derive(Clone, Debug)]
pub struct Configs {
    /// Rising by id, never empty: the first is the oldest still kept.
    frames: VecDeque<Frame>,
    keys: HashMap<Key, Versions, FixedState>,
    /// Keys that each configuration changed, for dropping what is superseded.
    changed: VecDeque<(ConfigId, Vec<Key>)>,
}

impl Hash for Configs {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.frames.hash(state);
        crate::fingerprint::unordered(&self.keys, state);
        self.changed.hash(state);
    }
}

/// The holder sets of one key, looked up once and asked under several configurations.
#[derive(Clone, Copy)]
pub struct KeyView<'a> {
    configs: &'a Configs,
    key: &'a [u8],
    versions: &'a [(ConfigId, ReplicaSet)],
}

impl KeyView<'_> {
    /// Whether the contents of configuration `id` are kept here. Without them
    /// nobody can tell whom a grant under it protects.
    pub fn knows(&self, id: ConfigId) -> bool {
        self.configs.frame(id).is_some()
    }

    /// Who holds the key under configuration `id`. Nobody, if `id` is older
    /// than everything that is kept.
    pub fn holders(&self, id: ConfigId) -> ReplicaSet {
        let Some(frame) = self.configs.frame(id) else {
            return ReplicaSet::EMPTY;
        };
        let listed = self.versions.iter().rev().find(|(since, _)| *since <= id);
        let base = match listed {
            Some((since, holders)) if *since >= frame.cleared => *holders,
            _ if off(Rule::H12NamedLeader) => self.configs.last().unlisted(self.key),
            _ => frame.unlisted(self.key),
        };
        base.minus(frame.excluded)
    }
}

impl Frame {
    fn unlisted(&self, key: &[u8]) -> ReplicaSet {
        let after = self
            .ranges
            .partition_point(|range| range.from.as_ref() <= key);
        match after.checked_sub(1) {
            Some(i) => self.ranges[i].holders,
            None => self.defaults,
        }
    }

    /// Holders of every key there is or could be.
    fn universal(&self) -> ReplicaSet {
        let ranges = self.ranges.iter().map(|range| range.holders);
        let start = match self.ranges.first() {
            Some(first) if first.from.is_empty() => first.holders,
            _ => self.defaults,
        };
        let everywhere = ranges.fold(start, ReplicaSet::intersection);
        let listed = self.listed.unwrap_or(everywhere);
        everywhere.intersection(listed).minus(self.excluded)
    }
}

impl Configs {
    /// The configuration before the first, for `n` replicas: nobody holds anything.
    pub fn new(n: usize) -> Configs {
        let frame = Frame {
            id: ConfigId(0),
            cleared: ConfigId(0),
            defaults: ReplicaSet::EMPTY,
            ranges: [].into(),
            excluded: ReplicaSet::EMPTY,
            strategy: crate::strategy::StrategySpec::None,
            params: LeaseParams::default(),
            listed: None,
            oldest: SmallVec::from_elem(ConfigId(0), n),
        };
        Configs {
            frames: [frame].into(),
            keys: HashMap::with_hasher(FixedState::default()),
            changed: VecDeque::new(),
        }
    }

    /// The newest configuration known here.
    pub fn newest(&self) -> ConfigId {
        self.last().id
    }

    /// The oldest configuration whose contents are kept here.
    pub fn oldest_kept(&self) -> ConfigId {
        self.frames[0].id
    }

    /// Durations under `id`; of the oldest kept, if `id` is older.
    pub fn params(&self, id: ConfigId) -> &LeaseParams {
        &self.frame(id).unwrap_or(&self.frames[0]).params
    }

    /// The strategy in force under the newest configuration.
    pub fn strategy(&self) -> &crate::strategy::StrategySpec {
        &self.last().strategy
    }

    /// Holders of unlisted keys outside every range, exclusions not yet applied.
    pub fn defaults(&self) -> ReplicaSet {
        self.last().defaults
    }

    /// The key ranges of the newest configuration.
    pub fn ranges(&self) -> &[KeyRange] {
        &self.last().ranges
    }

    /// Replicas that hold nothing under the newest configuration.
    pub fn excluded(&self) -> ReplicaSet {
        self.last().excluded
    }

    /// The oldest configuration under which `holder` may still be promised.
    pub fn oldest_promisable(&self, holder: ReplicaId) -> ConfigId {
        self.last().oldest[holder.index()]
    }

    /// Looks `key` up, once for all configurations.
    pub fn view<'a>(&'a self, key: &'a [u8]) -> KeyView<'a> {
        KeyView {
            configs: self,
            key,
            versions: self.keys.get(key).map_or(&[], |v| v.as_slice()),
        }
    }

    /// Who holds `key` under the newest configuration.
    pub fn holders(&self, key: &[u8]) -> ReplicaSet {
        self.view(key).holders(self.newest())
    }

    /// The listed holders of `key` in the newest configuration, if it is listed.
    pub fn listed(&self, key: &[u8]) -> Option<ReplicaSet> {
        let (since, holders) = *self.keys.get(key)?.last()?;
        (since >= self.last().cleared).then_some(holders)
    }

    /// Whether any key has holders of its own in the newest configuration.
    pub fn any_listed(&self) -> bool {
        self.last().listed.is_some()
    }

    /// Keys whose own holders, in the newest configuration, lack `replica`; in
    /// rising order. Looks at every listed key, unless all are known to have it.
    pub fn listed_without(&self, replica: ReplicaId) -> Vec<(Key, ReplicaSet)> {
        let newest = self.last();
        if newest.listed.is_none_or(|common| common.contains(replica)) {
            return Vec::new();
        }
        let listed = self.keys.iter().filter_map(|(key, versions)| {
            let (since, holders) = *versions.last()?;
            let lacks = since >= newest.cleared && !holders.contains(replica);
            lacks.then(|| (key.clone(), holders))
        });
        let mut found: Vec<_> = listed.collect();
        found.sort_unstable();
        found
    }

    /// How many keys have holders of their own in some configuration kept here.
    pub fn listed_len(&self) -> usize {
        self.keys.len()
    }

    /// Replicas that hold every key there is or could be under `id`.
    pub fn universal(&self, id: ConfigId) -> ReplicaSet {
        self.frame(id).map_or(ReplicaSet::EMPTY, Frame::universal)
    }

    /// Takes the change in slot `id` of the configuration log.
    ///
    /// # Panics
    /// If `id` does not follow the newest: the log is executed without holes.
    pub fn apply(&mut self, id: ConfigId, change: &ConfigChange) {
        assert_eq!(id.0, self.newest().0 + 1, "configurations have no holes");
        let mut frame = self.last().clone();
        frame.id = id;
        if let Some(defaults) = change.defaults {
            frame.defaults = defaults;
        }
        if let Some(ranges) = &change.ranges {
            // An operator writes them: a search among unordered ones would find
            // other holders for a key than `universal` has counted.
            let mut ranges = ranges.clone();
            ranges.sort_by(|a, b| a.from.cmp(&b.from));
            frame.ranges = ranges.into();
        }
        if let Some(params) = change.params {
            frame.params = params;
        }
        if let Some(strategy) = &change.strategy {
            frame.strategy = strategy.clone();
        }
        if let Some(excluded) = change.excluded {
            // §3.7: a suspect is not promised again under the configurations
            // that gave it keys, however far its own log lags.
            for suspect in excluded.minus(frame.excluded).iter() {
                if let Some(oldest) = frame.oldest.get_mut(suspect.index()) {
                    *oldest = id;
                }
            }
            frame.excluded = excluded;
        }
        if change.clear {
            frame.cleared = id;
            frame.listed = None;
        }
        for (holders, _) in change.keys.iter().filter(|(_, keys)| !keys.is_empty()) {
            let before = frame.listed.unwrap_or(*holders);
            frame.listed = Some(before.intersection(*holders));
        }
        self.frames.push_back(frame);
        self.list(id, &change.keys);
    }

    fn list(&mut self, id: ConfigId, quorums: &[(ReplicaSet, Vec<Key>)]) {
        let mut touched = Vec::new();
        for (holders, keys) in quorums {
            for key in keys {
                let versions = self.keys.entry(key.clone()).or_default();
                if !versions.is_empty() {
                    touched.push(key.clone());
                }
                match versions.last_mut() {
                    Some(last) if last.0 == id => last.1 = *holders,
                    _ => versions.push((id, *holders)),
                }
            }
        }
        self.changed.push_back((id, touched));
    }

    /// Drops what only configurations before `oldest` can see.
    pub fn forget_before(&mut self, oldest: ConfigId) {
        let cleared_before = self.frames[0].cleared;
        while self.frames.len() > 1 && self.frames[1].id <= oldest {
            self.frames.pop_front();
        }
        let oldest = self.frames[0].id;
        let cleared = self.frames[0].cleared;
        if cleared > cleared_before {
            // Every configuration still kept forgot what was listed before.
            self.keys.retain(|_, versions| {
                versions.retain(|(since, _)| *since >= cleared);
                !versions.is_empty()
            });
        }
        while self.changed.front().is_some_and(|(id, _)| *id <= oldest) {
            let (_, keys) = self.changed.pop_front().unwrap_or_default();
            for key in keys {
                if let Some(versions) = self.keys.get_mut(&key) {
                    let visible = versions.iter().rposition(|(id, _)| *id <= oldest);
                    versions.drain(..visible.unwrap_or(0));
                }
            }
        }
    }

    fn last(&self) -> &Frame {
        self.frames.back().expect("there is always a configuration")
    }

    /// The frame of `id`: ids have no holes, so its place is its distance.
    fn frame(&self, id: ConfigId) -> Option<&Frame> {
        let index = id.0.checked_sub(self.frames[0].id.0)?;
        self.frames.get(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(bits: u64) -> ReplicaSet {
        ReplicaSet(bits)
    }

    fn listing(bits: u64, key: &'static str) -> ConfigChange {
        ConfigChange {
            keys: vec![(set(bits), vec![Key::from(key)])],
            ..Default::default()
        }
    }

    #[test]
    fn a_configuration_sees_what_came_before_it_and_not_after() {
        let mut configs = Configs::new(3);
        configs.apply(
            ConfigId(1),
            &ConfigChange {
                defaults: Some(set(0b001)),
                ..Default::default()
            },
        );
        configs.apply(ConfigId(2), &listing(0b011, "a"));
        configs.apply(ConfigId(3), &listing(0b110, "a"));
        let view = configs.view(b"a");
        assert_eq!(view.holders(ConfigId(0)), set(0));
        assert_eq!(view.holders(ConfigId(1)), set(0b001));
        assert_eq!(view.holders(ConfigId(2)), set(0b011));
        assert_eq!(view.holders(ConfigId(3)), set(0b110));
        assert_eq!(configs.holders(b"b"), set(0b001));
    }

    #[test]
    fn forgetting_keeps_what_the_oldest_kept_can_see() {
        let mut configs = Configs::new(3);
        configs.apply(ConfigId(1), &listing(0b001, "a"));
        configs.apply(ConfigId(2), &listing(0b010, "a"));
        configs.apply(ConfigId(3), &listing(0b100, "a"));
        configs.forget_before(ConfigId(2));
        let view = configs.view(b"a");
        assert_eq!(view.holders(ConfigId(1)), set(0), "forgotten: nobody");
        assert_eq!(view.holders(ConfigId(2)), set(0b010));
        assert_eq!(view.holders(ConfigId(3)), set(0b100));
        configs.forget_before(ConfigId(9));
        assert_eq!(configs.holders(b"a"), set(0b100));
        assert_eq!(configs.keys[b"a".as_slice()].len(), 1);
    }

    #[test]
    fn clearing_returns_every_key_to_the_defaults() {
        let mut configs = Configs::new(3);
        configs.apply(ConfigId(1), &listing(0b010, "a"));
        let clear = ConfigChange {
            clear: true,
            defaults: Some(set(0b111)),
            ..Default::default()
        };
        configs.apply(ConfigId(2), &clear);
        assert_eq!(configs.view(b"a").holders(ConfigId(1)), set(0b010));
        assert_eq!(configs.holders(b"a"), set(0b111));
        assert_eq!(configs.universal(ConfigId(2)), set(0b111));
        assert_eq!(configs.listed(b"a"), None);
        assert!(!configs.any_listed());
        configs.forget_before(ConfigId(1));
        assert_eq!(configs.view(b"a").holders(ConfigId(1)), set(0b010));
        configs.forget_before(ConfigId(2));
        assert_eq!(configs.listed_len(), 0, "nobody can see it any more");
    }

    #[test]
    fn ranges_reach_up_to_the_next() {
        let mut configs = Configs::new(3);
        let ranges = [("f", 0b011), ("p", 0b101)].map(|(from, bits)| KeyRange {
            from: Key::from(from),
            holders: set(bits),
        });
        configs.apply(
            ConfigId(1),
            &ConfigChange {
                defaults: Some(set(0b001)),
                ranges: Some(ranges.to_vec()),
                ..Default::default()
            },
        );
        let holders = |key: &str| configs.holders(key.as_bytes());
        assert_eq!(holders("a"), set(0b001));
        assert_eq!(holders("f"), set(0b011));
        assert_eq!(holders("oz"), set(0b011));
        assert_eq!(holders("z"), set(0b101));
        assert_eq!(configs.universal(ConfigId(1)), set(0b001));
    }

    #[test]
    fn an_excluded_replica_holds_nothing_and_is_promised_nothing_older() {
        let mut configs = Configs::new(3);
        configs.apply(
            ConfigId(1),
            &ConfigChange {
                defaults: Some(set(0b111)),
                ..Default::default()
            },
        );
        let exclude = ConfigChange {
            excluded: Some(set(0b100)),
            ..Default::default()
        };
        configs.apply(ConfigId(2), &exclude);
        assert_eq!(configs.holders(b"a"), set(0b011));
        assert_eq!(configs.oldest_promisable(ReplicaId(2)), ConfigId(2));
        assert_eq!(configs.oldest_promisable(ReplicaId(1)), ConfigId(0));
    }

    #[test]
    fn universal_never_claims_a_key_somebody_lacks() {
        let mut configs = Configs::new(3);
        configs.apply(
            ConfigId(1),
            &ConfigChange {
                defaults: Some(set(0b111)),
                ..Default::default()
            },
        );
        configs.apply(ConfigId(2), &listing(0b011, "a"));
        configs.apply(ConfigId(3), &ConfigChange::default());
        assert_eq!(configs.universal(ConfigId(1)), set(0b111));
        assert_eq!(configs.universal(ConfigId(3)), set(0b011));
    }
    #[test]
    fn universal_follows_the_defaults_when_no_key_is_listed() {
        let defaults = |bits| ConfigChange {
            defaults: Some(set(bits)),
            ..Default::default()
        };
        let mut configs = Configs::new(3);
        // A leader changes, then the strategy does: neither may leave scans
        // without a holder for good.
        for (id, bits) in [(1, 0b001), (2, 0b010), (3, 0b111)] {
            configs.apply(ConfigId(id), &defaults(bits));
            assert_eq!(configs.universal(ConfigId(id)), set(bits));
        }
    }

    #[test]
    fn durations_that_cannot_work_are_refused() {
        let good = LeaseParams::default();
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut LeaseParams)| {
            let mut params = good;
            change(&mut params);
            params.check()
        };
        assert_eq!(bad(|p| p.renew = Duration::ZERO), Err(ParamsError::Zero));
        assert_eq!(bad(|p| p.t_lease = Duration::ZERO), Err(ParamsError::Zero));
        assert_eq!(
            bad(|p| p.renew = p.t_lease),
            Err(ParamsError::LapsesBetweenRenewals)
        );
        assert_eq!(
            bad(|p| p.t0_cap = p.renew),
            Err(ParamsError::CapBelowRenewal)
        );
        assert_eq!(
            bad(|p| p.t_grace = p.renew),
            Err(ParamsError::GraceBelowRenewal)
        );
        assert_eq!(
            bad(|p| p.clock.rho_ppm = ClockBound::RHO_PPM_MAX + 1),
            Err(ParamsError::Drift)
        );
    }
}
