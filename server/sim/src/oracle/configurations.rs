//! One content per configuration (oracle 8; §3.4). The content that a replica has for a
//! configuration must equal the result of all changes up to this configuration, applied one by one.
//! This also holds if the replica has forgotten or restored configurations meanwhile.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use leasehold_leases::{
    ConfigChange, ConfigId, Configs, Key, LeaseMessage, LeaseParams, RangeChange, ReplicaId,
    ReplicaSet, Slot, StrategySpec,
};

use super::{ChosenValues, Verdict, WorldSnapshot, ensure, id};
use leasehold_replica::message::{Envelope, LogId, Message};

pub(super) const NAME: &str = "configurations";

/// Number of configurations that are remembered with their contents. No replica lags by more
/// configurations than this.
const REMEMBERED: usize = 256;
/// Number of configurations that are compared for each replica. These are the newest ones.
const COMPARED: u64 = 8;

/// Content of a configuration.
#[derive(Clone, Debug)]
struct ConfigContent {
    params: LeaseParams,
    excluded: ReplicaSet,
    /// Entries of the form (key, strategy, default holders). There is one entry for each key in a
    /// sample, and one for each key at which a range ever began or ended.
    policies: Vec<(Key, StrategySpec, ReplicaSet)>,
    /// Oldest configuration under which other replicas may still send promises to each replica.
    oldest: Vec<ConfigId>,
    /// Holders of each key in a sample.
    holders: Vec<(Key, ReplicaSet)>,
}

/// Oracle that judges configurations: the content of each configuration must be the same at all
/// replicas.
#[derive(Debug)]
pub struct ConfigurationOracle {
    newest: ConfigContent,
    /// All changes of ranges so far, in order.
    changes: Vec<RangeChange>,
    listed: BTreeMap<Key, ReplicaSet>,
    /// Contents of successive configurations. The last content is the content of `applied`.
    contents: VecDeque<ConfigContent>,
    applied: ConfigId,
    /// Newest configuration that each replica knew at the end of its last step.
    newest_known: Vec<ConfigId>,
    /// Number of configurations compared.
    pub checks: u64,
}

impl ConfigurationOracle {
    pub(super) fn new(n: usize) -> ConfigurationOracle {
        ConfigurationOracle {
            newest: ConfigContent {
                params: LeaseParams::default(),
                excluded: ReplicaSet::EMPTY,
                policies: Vec::new(),
                oldest: vec![ConfigId(0); n],
                holders: Vec::new(),
            },
            changes: Vec::new(),
            listed: BTreeMap::new(),
            contents: VecDeque::new(),
            applied: ConfigId(0),
            newest_known: vec![ConfigId(0); n],
            checks: 0,
        }
    }

    /// Applies newly chosen changes.
    pub(super) fn advance(&mut self, chosen: &ChosenValues) {
        let none = ConfigChange::default();
        while let Some(value) = chosen.value(LogId::Configs, Slot(self.applied.0 + 1)) {
            self.applied.0 += 1;
            self.apply(value.config_change().unwrap_or(&none), chosen.sample());
        }
    }

    fn apply(&mut self, change: &ConfigChange, sample: &[Key]) {
        let content = &mut self.newest;
        content.params = change.params.unwrap_or(content.params);
        if let Some(excluded) = change.excluded {
            for suspect in excluded.iter().filter(|s| !content.excluded.contains(*s)) {
                content.oldest[suspect.index()] = self.applied;
            }
            content.excluded = excluded;
        }
        for change in &change.ranges {
            let stays = |key: &Key| !(change.clear && change.range.contains(key));
            self.listed.retain(|key, _| stays(key));
            self.changes.push(change.clone());
        }
        for (holders, keys) in &change.keys {
            for key in keys {
                self.listed.insert(key.clone(), *holders);
            }
        }
        let holders = |key: &Key| {
            let unlisted = || last_of(&self.changes, key, |change| change.defaults);
            let listed = self.listed.get(key).copied();
            let holders = listed.or_else(unlisted).unwrap_or_default();
            (key.clone(), holders.minus(content.excluded))
        };
        content.holders = sample.iter().map(holders).collect();
        let bounds = self.changes.iter().map(|change| &change.range);
        let bounds = bounds.flat_map(|range| std::iter::once(range.from()).chain(range.to()));
        let keys: BTreeSet<&Key> = sample.iter().chain(bounds).collect();
        let policy = |key: &&Key| {
            let strategy = last_of(&self.changes, key, |change| change.strategy.clone());
            let defaults = last_of(&self.changes, key, |change| change.defaults);
            let strategy = strategy.unwrap_or(StrategySpec::None);
            ((*key).clone(), strategy, defaults.unwrap_or_default())
        };
        content.policies = keys.iter().map(policy).collect();
        if self.contents.len() == REMEMBERED {
            self.contents.pop_front();
        }
        self.contents.push_back(self.newest.clone());
    }

    fn content(&self, id: ConfigId) -> Option<&ConfigContent> {
        let back = usize::try_from(self.applied.0.checked_sub(id.0)?).ok()?;
        let index = self.contents.len().checked_sub(back + 1)?;
        self.contents.get(index)
    }

    /// Judges a promise of `node`. Suppose that `node` knows a configuration that excludes the
    /// receiver from leases. Then `node` must not make the promise under an earlier configuration
    /// (§3.7, hazard 41). Otherwise the suspect would stay a holder.
    pub(super) fn sent(&mut self, node: usize, to: ReplicaId, envelope: &Envelope) -> Verdict {
        let Message::Lease(LeaseMessage::Promise(promise)) = &envelope.message else {
            return Ok(());
        };
        let known = self.content(self.newest_known[node]);
        let oldest = known.map_or(ConfigId(0), |content| content.oldest[to.index()]);
        self.checks += 1;
        ensure!(
            NAME,
            promise.config >= oldest,
            "{:?} promises {to:?} under {:?}, but has excluded it under {oldest:?}",
            id(node),
            promise.config
        );
        Ok(())
    }

    /// Compares the configurations of `node`, after it has executed a configuration or restored its
    /// state.
    pub(super) fn compare(&mut self, snapshot: &WorldSnapshot<'_>, node: usize) -> Verdict {
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        let configs = replica.configs();
        let newest = configs.newest();
        self.newest_known[node] = newest;
        let first = configs
            .oldest_kept()
            .0
            .max(newest.0.saturating_sub(COMPARED));
        self.checks += newest.0 + 1 - first;
        if let Some(content) = self.content(newest) {
            content.compare_newest(node, configs)?;
        }
        for config in (first..=newest.0).map(ConfigId) {
            if let Some(content) = self.content(config) {
                content.compare(node, configs, config)?;
            }
        }
        Ok(())
    }
}

impl ConfigContent {
    /// Compares the parts that replicas keep only for their newest configuration. These parts are
    /// the exclusions, the policies, and the oldest configuration under which promises to each
    /// replica are allowed.
    fn compare_newest(&self, node: usize, configs: &Configs) -> Verdict {
        let n = self.oldest.len() as u8;
        let oldest = (0..n).map(|r| configs.oldest_promisable(ReplicaId(r)));
        let policy = |(key, strategy, defaults): &(Key, StrategySpec, ReplicaSet)| {
            let found = configs.policies().get(key);
            found.strategy == *strategy && found.defaults == *defaults
        };
        let same = configs.excluded() == self.excluded
            && self.policies.iter().all(policy)
            && oldest.eq(self.oldest.iter().copied());
        ensure!(
            NAME,
            same,
            "{:?} takes {:?} for something else than {self:?}",
            id(node),
            configs.newest()
        );
        Ok(())
    }

    /// Compares the content that `node` has for `config` with the expected content.
    fn compare(&self, node: usize, configs: &Configs, config: ConfigId) -> Verdict {
        let universal = configs.universal(config);
        let wrong = self.holders.iter().find(|(key, holders)| {
            configs.view(key).holders(config) != *holders || !universal.is_subset(*holders)
        });
        ensure!(
            NAME,
            configs.params(config) == &self.params && wrong.is_none(),
            "{:?} takes {config:?} to say {:?}, every key {universal:?}, {:?}; it says {:?}, \
             {wrong:?}",
            id(node),
            configs.params(config),
            wrong.map(|(key, _)| configs.view(key).holders(config)),
            self.params
        );
        Ok(())
    }
}

/// Returns the first result of `says` that is not `None`. Calls `says` for the changes with ranges
/// that contain `key`, from the last change to the first.
fn last_of<T>(
    changes: &[RangeChange],
    key: &Key,
    says: impl Fn(&RangeChange) -> Option<T>,
) -> Option<T> {
    let of_key = changes.iter().filter(|change| change.range.contains(key));
    of_key.rev().find_map(says)
}

#[cfg(test)]
mod tests {
    use leasehold_leases::KeyRange;

    use super::*;
    use crate::oracle::test_world::{ReplicaState, TestWorld, everybody};

    fn set(bits: u64) -> ReplicaSet {
        ReplicaSet(bits)
    }

    fn of(from: &'static [u8], to: Option<&'static [u8]>) -> RangeChange {
        let range = KeyRange::new(from.into(), to.map(Key::from_static));
        RangeChange::nothing(range.expect("some keys"))
    }

    #[test]
    fn changes_add_up() {
        let mut oracle = ConfigurationOracle::new(3);
        let keys = [Key::from("a"), Key::from("b"), Key::from("c")];
        let changes = [
            ConfigChange {
                keys: vec![
                    (set(0b110), vec![Key::from("a")]),
                    (set(0b101), vec![Key::from("c")]),
                ],
                ..ConfigChange::everywhere(set(0b001))
            },
            ConfigChange {
                ranges: vec![RangeChange {
                    defaults: Some(set(0b011)),
                    ..of(b"b", Some(b"c"))
                }],
                excluded: Some(set(0b010)),
                ..ConfigChange::default()
            },
            ConfigChange {
                ranges: vec![RangeChange {
                    clear: true,
                    ..of(b"", Some(b"b"))
                }],
                ..ConfigChange::default()
            },
        ];
        for change in &changes {
            oracle.applied.0 += 1;
            oracle.apply(change, &keys);
        }
        let holders = |id: u64| {
            let content = oracle.content(ConfigId(id)).expect("remembered");
            content.holders.iter().map(|(_, h)| h.0).collect::<Vec<_>>()
        };
        assert_eq!(holders(1), [0b110, 0b001, 0b101]);
        assert_eq!(holders(2), [0b100, 0b001, 0b101]);
        assert_eq!(holders(3), [0b001, 0b001, 0b101], "c is of another range");
        assert_eq!(
            oracle.newest.oldest,
            [ConfigId(0), ConfigId(2), ConfigId(0)]
        );
        assert!(oracle.content(ConfigId(4)).is_none());
    }

    #[test]
    fn whoever_takes_a_configuration_for_another_is_noticed() {
        let other = |change: ConfigChange| ReplicaState {
            change,
            ..ReplicaState::default()
        };
        let defaults = ConfigChange::everywhere(set(0b011));
        let mut in_part = everybody();
        in_part.ranges.push(RangeChange {
            defaults: Some(set(0b011)),
            ..of(b"a", Some(b"b"))
        });
        let mut strategy = everybody();
        strategy.ranges[0].strategy = Some(StrategySpec::All);
        let listed = ConfigChange {
            keys: vec![(set(0b001), vec![Key::from("a")])],
            ..everybody()
        };
        let excluded = ConfigChange {
            excluded: Some(set(0b001)),
            ..everybody()
        };
        let longer = ConfigChange {
            params: Some(LeaseParams {
                t_lease: std::time::Duration::from_secs(9),
                ..LeaseParams::default()
            }),
            ..everybody()
        };
        for (change, good) in [
            (everybody(), true),
            (defaults, false),
            (in_part, false),
            (strategy, false),
            (listed, false),
            (excluded, false),
            (longer, false),
        ] {
            let world = TestWorld::new([
                other(change.clone()),
                ReplicaState::default(),
                ReplicaState::default(),
            ]);
            let mut oracle = ConfigurationOracle::new(3);
            oracle.applied.0 += 1;
            oracle.apply(&everybody(), &[Key::from("a")]);
            let verdict = oracle.compare(&world.snapshot(), 0);
            assert_eq!(verdict.is_ok(), good, "{change:?}");
            assert!(oracle.checks > 0);
        }
    }
}
