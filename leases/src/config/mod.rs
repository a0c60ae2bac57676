//! Lease configurations, which determine which replicas hold which key. Replicas agree on them
//! through a log of their own (§3.4).
//!
//! Configurations are incremental, and several are in force at the same time: while grants under an
//! old configuration last, replicas obey both the old and the new one. So contents are stored by
//! version. For each key, all its holder sets are stored, each with the configuration that
//! introduced the set. A configuration is a view of these versions. When a configuration changes a
//! few keys of a hundred thousand, no others are copied.

mod change;
mod checkpoint;
mod counts;
mod frame;
mod params;
mod policy;
mod ranges;
mod spec;
mod sweep;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::change::{ConfigChange, RangeChange};
pub use self::checkpoint::{
    CheckpointChanges, CheckpointError, FRAMES_SAVED, SavedFrame, SavedPolicy, check_frames,
    check_versions,
};
pub use self::params::{LeaseParams, ParamsError};
pub use self::policy::{Policy, RANGES_MAX, STARTS_BYTES_MAX};
pub use self::ranges::{KeyRange, RangeMap, RangesError};
pub use self::spec::{CostSettings, StrategySpec, UnlistedHolders};
pub use crate::types::Key;

use self::checkpoint::Unsaved;
use self::frame::Frame;
use self::sweep::Sweep;
use crate::growing::GrowingIndexMap;
use crate::membership::Membership;
use crate::mutants::{Rule, off};
use crate::types::{ConfigId, ReplicaId, ReplicaSet};

/// Sets of holders of one listed key, in ascending order of configuration. Each set is paired with
/// the configuration that introduced it.
pub type KeyVersions = SmallVec<[(ConfigId, ReplicaSet); 1]>;

/// The configurations that are still needed on this replica.
#[derive(Clone, Debug)]
pub struct Configs {
    members: Membership,
    /// Frames of the configurations that are kept, in ascending order. Their ids are consecutive.
    /// There is always at least one frame.
    frames: VecDeque<Frame>,
    keys: GrowingIndexMap<Key, KeyVersions>,
    /// For each configuration, the keys that the configuration changed. The superseded versions of
    /// these keys have not been dropped yet.
    changed: VecDeque<(ConfigId, Vec<Key>)>,
    /// Current pass over all listed keys; `None` if no pass is under way.
    sweep: Option<Sweep>,
    unsaved: Unsaved,
}

impl Hash for Configs {
    /// Hashes this value, except the list of unsaved keys, which only decides what is written to a
    /// checkpoint.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.frames.hash(state);
        crate::fingerprint::unordered(self.keys.iter(), state);
        (&self.changed, &self.sweep).hash(state);
    }
}

/// Holders of one key under every configuration. The key is looked up only once, when the view is
/// created.
#[derive(Clone, Copy)]
pub struct KeyView<'a> {
    configs: &'a Configs,
    key: &'a [u8],
    versions: &'a [(ConfigId, ReplicaSet)],
}

impl KeyView<'_> {
    /// Whether the contents of configuration `id` are kept on this replica. Only then can this
    /// replica determine which replicas a grant under `id` protects.
    #[inline]
    pub fn knows(&self, id: ConfigId) -> bool {
        self.configs.frame(id).is_some()
    }

    /// Returns the holders of the key under configuration `id`; no replicas if `id` is older than
    /// every configuration that is kept.
    #[inline]
    pub fn holders(&self, id: ConfigId) -> ReplicaSet {
        let Some(frame) = self.configs.frame(id) else {
            return ReplicaSet::EMPTY;
        };
        let base = frame.listed(self.key, self.versions).unwrap_or_else(|| {
            names_defaults(frame, self.configs)
                .policy(self.key)
                .defaults
        });
        base.minus(frame.excluded)
    }
}

/// Rule H12: every configuration has its own default holders. The default holders of the newest
/// configuration must not be used for an older configuration. The reason is that the newest set may
/// omit an older leader that still has a lease.
#[inline]
fn names_defaults<'a>(frame: &'a Frame, configs: &'a Configs) -> &'a Frame {
    if off(Rule::H12NamedLeader) {
        configs.last()
    } else {
        frame
    }
}

impl Configs {
    /// Creates the state before the first configuration, for `n` replicas: no replica holds any
    /// key.
    pub fn new(n: usize) -> Configs {
        let members = Membership::fixed(n);
        Configs {
            members,
            frames: [Frame::initial(members)].into(),
            keys: GrowingIndexMap::default(),
            changed: VecDeque::new(),
            sweep: None,
            unsaved: Unsaved::default(),
        }
    }

    /// Returns the newest configuration known on this replica.
    #[inline]
    pub fn newest(&self) -> ConfigId {
        self.last().id
    }

    /// Returns the oldest configuration that is kept on this replica.
    #[inline]
    pub fn oldest_kept(&self) -> ConfigId {
        self.frames[0].id
    }

    /// Returns the durations under configuration `id`. If `id` is older than all configurations
    /// that are kept, returns the durations under the oldest configuration that is kept.
    #[inline]
    pub fn params(&self, id: ConfigId) -> &LeaseParams {
        &self.frame(id).unwrap_or(&self.frames[0]).params
    }

    /// Returns the policies of the newest configuration, by key range.
    pub fn policies(&self) -> &RangeMap<Policy> {
        &self.last().policies
    }

    /// Returns the policies by key range that result if `changes` are applied to the newest
    /// configuration.
    pub fn policies_after(&self, changes: &[RangeChange]) -> RangeMap<Policy> {
        let mut policies = RangeMap::clone(&self.last().policies);
        self.change_further(&mut policies, changes);
        policies
    }

    /// Applies further changes to `policies`, for the same next configuration. `policies` must be
    /// the result of [`Configs::policies_after`] for the earlier changes. Cost: one pass over the
    /// ranges, regardless of the number of earlier changes.
    pub fn change_further(&self, policies: &mut RangeMap<Policy>, changes: &[RangeChange]) {
        let next = ConfigId(self.last().id.0 + 1);
        policies.apply(changes, next, self.members.voters());
    }

    /// Returns the strategy in force for `key`.
    #[inline]
    pub fn strategy_of(&self, key: &[u8]) -> &StrategySpec {
        &self.last().policy(key).strategy
    }

    /// Whether at least one range has a strategy that depends on demand. If true, reads and writes
    /// must be counted.
    #[inline]
    pub fn wants_demand(&self) -> bool {
        self.last().wants_demand
    }

    /// Returns the holders of unlisted keys in the range that contains `key`, under the newest
    /// configuration.
    pub fn unlisted(&self, key: &[u8]) -> ReplicaSet {
        self.last().policy(key).defaults.minus(self.excluded())
    }

    /// Returns the replicas that hold no key under the newest configuration.
    pub fn excluded(&self) -> ReplicaSet {
        self.last().excluded
    }

    /// Returns the oldest configuration under which a grantor may still make promises to `holder`.
    pub fn oldest_promisable(&self, holder: ReplicaId) -> ConfigId {
        self.last().oldest[holder.index()]
    }

    /// Looks up `key`, and returns a view of its holders under all configurations.
    #[inline]
    pub fn view<'a>(&'a self, key: &'a [u8]) -> KeyView<'a> {
        KeyView {
            configs: self,
            key,
            versions: self.keys.get(key).map_or(&[], |v| v.as_slice()),
        }
    }

    /// Returns the holders of `key` under the newest configuration.
    pub fn holders(&self, key: &[u8]) -> ReplicaSet {
        self.view(key).holders(self.newest())
    }

    /// Returns the listed holders of `key` in the newest configuration; `None` if the key is not
    /// listed.
    pub fn listed(&self, key: &[u8]) -> Option<ReplicaSet> {
        let place = self.keys.get_index_of(key)?;
        self.listed_at(place).map(|(_, holders)| holders)
    }

    /// Returns the key at `place` in the list, and its own holders in the newest configuration.
    /// Returns `None` if `place` is not below [`listed_len`](Self::listed_len). Also returns `None`
    /// if the newest configuration does not list the key.
    ///
    /// A caller that looks at all keys must begin with the last place. The reason is that the last
    /// key moves to the place of a listed key that is forgotten.
    pub fn listed_at(&self, place: usize) -> Option<(&Key, ReplicaSet)> {
        let (key, versions) = self.keys.get_index(place)?;
        let (since, holders) = *versions.last()?;
        (since >= self.last().policy(key).cleared).then_some((key, holders))
    }

    /// Returns, for each range, the number of keys with holders of their own in the newest
    /// configuration. For a while after a range was split, the number for one part may also include
    /// keys of the other part.
    pub fn listed_by_range(&self) -> Vec<u64> {
        let ranges = self.policies().iter();
        ranges.map(|(_, policy)| policy.listed.total()).collect()
    }

    /// Returns the number of keys that have holders of their own in some configuration that is kept
    /// on this replica.
    pub fn listed_len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the replicas that hold every possible key under configuration `id`.
    pub fn universal(&self, id: ConfigId) -> ReplicaSet {
        self.frame(id)
            .map_or(ReplicaSet::EMPTY, |frame| frame.universal)
    }

    /// Applies the change in slot `id` of the configuration log.
    ///
    /// # Panics
    /// If `id` does not directly follow the newest configuration.
    pub fn apply(&mut self, id: ConfigId, change: &ConfigChange) {
        assert_eq!(id.0, self.newest().0 + 1, "configurations have no holes");
        let mut frame = self.last().next(change, self.members);
        let recounts = frame.counted_twice || self.sweep.is_some();
        if recounts && !change.ranges.is_empty() {
            self.sweep = None;
        }
        self.list(&mut frame, &change.keys);
        frame.derive_universal();
        frame.check(self.members);
        frame.check_follows(self.last());
        self.frames.push_back(frame);
        if recounts && self.sweep.is_none() {
            self.begin_sweep();
        }
    }

    /// Lists single keys with their holders in the configuration of `frame`. Adds these keys to the
    /// counts of holders.
    fn list(&mut self, frame: &mut Frame, quorums: &[(ReplicaSet, Vec<Key>)]) {
        let mut touched = Vec::new();
        for (holders, keys) in quorums {
            let holders = holders.intersection(self.members.voters());
            for key in keys {
                self.unsaved.touch(key);
                if self.list_key(frame, key, holders) {
                    touched.push(key.clone());
                }
            }
        }
        self.changed.push_back((frame.id, touched));
    }

    /// Lists a key with its holders. Returns whether the key already had holders of its own in some
    /// configuration.
    fn list_key(&mut self, frame: &mut Frame, key: &Key, holders: ReplicaSet) -> bool {
        let policy = Arc::make_mut(&mut frame.policies).get_mut(key);
        let place = self.keys.get_index_of(key);
        let place =
            place.unwrap_or_else(|| self.keys.insert_full(key.clone(), KeyVersions::new()).0);
        let (_, versions) = self
            .keys
            .get_index_mut(place)
            .expect("a key that is listed has a place");
        let known = !versions.is_empty();
        let last = versions.last().copied();
        let before = last.filter(|(since, _)| *since >= policy.cleared);
        let before = before.map(|(_, holders)| holders);
        match versions.last_mut() {
            Some(last) if last.0 == frame.id => last.1 = holders,
            last => {
                assert!(last.is_none_or(|last| last.0 < frame.id), "versions rise");
                versions.push((frame.id, holders));
            }
        }
        before
            .into_iter()
            .for_each(|before| policy.listed.remove(before));
        policy.listed.add(holders);
        if let Some(sweep) = &mut self.sweep {
            sweep.note(place, key, before, holders);
        }
        known
    }

    /// Drops all data that only configurations before `oldest` use. The newest configuration is
    /// always kept. Cleared keys are dropped from the list step by step: one call looks at some
    /// thousands of keys. [`is_sweeping`](Self::is_sweeping) returns whether further calls are
    /// necessary.
    pub fn forget_before(&mut self, oldest: ConfigId) {
        let cleared_before = self.frames[0].cleared;
        while self.frames.len() > 1 && self.frames[1].id <= oldest {
            self.frames.pop_front();
        }
        if self.frames[0].cleared > cleared_before {
            self.begin_sweep();
        }
        self.sweep_on();
        self.forget_superseded(self.frames[0].id);
    }

    /// Drops the superseded versions of each key that was changed by a configuration up to
    /// `oldest`. `oldest` and later configurations do not use these versions.
    fn forget_superseded(&mut self, oldest: ConfigId) {
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

    /// Panics if the configurations are invalid. Ids must be consecutive, ranges disjoint, holders
    /// members, and durations above zero. The oldest configuration under which a replica may
    /// receive promises must not become older. Listed keys are not checked here, because they are
    /// checked when they are listed. Cost: the number of configurations that are kept (rarely more
    /// than four) times the number of replicas and ranges.
    pub fn check(&self) {
        assert!(!self.frames.is_empty(), "there is always a configuration");
        for frame in &self.frames {
            frame.check(self.members);
        }
        for (before, after) in self.frames.iter().zip(self.frames.iter().skip(1)) {
            after.check_follows(before);
        }
        let changed = self.changed.back().map_or(self.newest(), |(id, _)| *id);
        assert_eq!(
            changed,
            self.newest(),
            "the newest configuration is noted last"
        );
        let first = self.changed.front().map(|(id, _)| *id);
        assert!(
            first.is_none_or(|id| id > self.oldest_kept()),
            "changes that only forgotten configurations could see are dropped"
        );
        assert!(
            !self.last().counted_twice || self.is_sweeping(),
            "keys that are counted twice are counted anew"
        );
    }

    #[inline]
    fn last(&self) -> &Frame {
        self.frames.back().expect("there is always a configuration")
    }

    /// Returns the frame of configuration `id`. Ids are consecutive, so the index of the frame is
    /// `id` minus the oldest id.
    #[inline]
    fn frame(&self, id: ConfigId) -> Option<&Frame> {
        let index = id.0.checked_sub(self.frames[0].id.0)?;
        self.frames.get(usize::try_from(index).ok()?)
    }
}
