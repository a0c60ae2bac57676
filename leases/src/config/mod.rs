//! Lease configurations: which replicas hold which key, agreed through a log of
//! their own (§3.4).
//!
//! Configurations are incremental, and several are alive at once: while grants
//! under an old one last, replicas obey both. So contents are kept by version:
//! a key remembers the holder sets it had, each with the configuration that
//! gave it, and a configuration is a point of view on them. Nothing is copied
//! when a configuration changes a few keys of a hundred thousand.

mod params;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use foldhash::fast::FixedState;
use smallvec::SmallVec;

pub use self::params::{LeaseParams, ParamsError};

use crate::mutants::{Rule, off};
use crate::types::{ConfigId, ReplicaId, ReplicaSet};

/// A key of the store.
pub type Key = Bytes;

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
    #[inline]
    pub fn knows(&self, id: ConfigId) -> bool {
        self.configs.frame(id).is_some()
    }

    /// Who holds the key under configuration `id`. Nobody, if `id` is older
    /// than everything that is kept.
    #[inline]
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
    #[inline]
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
    #[inline]
    pub fn newest(&self) -> ConfigId {
        self.last().id
    }

    /// The oldest configuration whose contents are kept here.
    #[inline]
    pub fn oldest_kept(&self) -> ConfigId {
        self.frames[0].id
    }

    /// Durations under `id`; of the oldest kept, if `id` is older.
    #[inline]
    pub fn params(&self, id: ConfigId) -> &LeaseParams {
        &self.frame(id).unwrap_or(&self.frames[0]).params
    }

    /// The strategy in force under the newest configuration.
    #[inline]
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
    #[inline]
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

    #[inline]
    fn last(&self) -> &Frame {
        self.frames.back().expect("there is always a configuration")
    }

    /// The frame of `id`: ids have no holes, so its place is its distance.
    #[inline]
    fn frame(&self, id: ConfigId) -> Option<&Frame> {
        let index = id.0.checked_sub(self.frames[0].id.0)?;
        self.frames.get(usize::try_from(index).ok()?)
    }
}
