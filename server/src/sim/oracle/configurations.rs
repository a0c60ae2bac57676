//! One content per configuration (oracle 8; §3.4): what a replica takes a
//! configuration to say is what the changes up to it say, folded plainly, whatever
//! it had to forget or restore meanwhile.

use std::collections::{BTreeMap, VecDeque};

use leases::{
    ConfigChange, ConfigId, Configs, Key, LeaseMessage, LeaseParams, RangeHolders, ReplicaId,
    ReplicaSet, Slot, StrategySpec,
};

use super::{Chosen, Sight, Verdict, ensure, id};
use crate::replica::message::{Envelope, LogId, Message, Value};

pub(super) const NAME: &str = "configurations";

/// Contents that are remembered: nobody lags by more.
const REMEMBERED: usize = 256;
/// The newest of those that a replica keeps are compared.
const COMPARED: u64 = 8;

/// What a configuration says.
#[derive(Clone, Debug)]
struct Content {
    params: LeaseParams,
    strategy: StrategySpec,
    excluded: ReplicaSet,
    defaults: ReplicaSet,
    ranges: Vec<RangeHolders>,
    /// Per replica, the oldest configuration it may still be promised under.
    oldest: Vec<ConfigId>,
    /// Of a sample of the keys.
    holders: Vec<(Key, ReplicaSet)>,
}

/// See the module.
#[derive(Debug)]
pub struct Configurations {
    newest: Content,
    listed: BTreeMap<Key, ReplicaSet>,
    /// By configuration, the last of them that of `applied`.
    contents: VecDeque<Content>,
    applied: ConfigId,
    /// By replica, the newest that it knew when its last step ended.
    known: Vec<ConfigId>,
    /// Configurations compared.
    pub checks: u64,
}

impl Configurations {
    pub(super) fn new(n: usize) -> Configurations {
        Configurations {
            newest: Content {
                params: LeaseParams::default(),
                strategy: StrategySpec::None,
                excluded: ReplicaSet::EMPTY,
                defaults: ReplicaSet::EMPTY,
                ranges: Vec::new(),
                oldest: vec![ConfigId(0); n],
                holders: Vec::new(),
            },
            listed: BTreeMap::new(),
            contents: VecDeque::new(),
            applied: ConfigId(0),
            known: vec![ConfigId(0); n],
            checks: 0,
        }
    }

    /// More is chosen.
    pub(super) fn advance(&mut self, chosen: &Chosen) {
        let none = ConfigChange::default();
        while let Some(value) = chosen.value(LogId::Configs, Slot(self.applied.0 + 1)) {
            let change = match value {
                Value::Config(change) => change,
                _ => &none,
            };
            self.applied.0 += 1;
            self.apply(change, chosen.sample());
        }
    }

    fn apply(&mut self, change: &ConfigChange, sample: &[Key]) {
        let content = &mut self.newest;
        content.params = change.params.unwrap_or(content.params);
        content.defaults = change.defaults.unwrap_or(content.defaults);
        if let Some(strategy) = &change.strategy {
            content.strategy = strategy.clone();
        }
        if let Some(ranges) = &change.ranges {
            content.ranges.clone_from(ranges);
            content.ranges.sort_by(|a, b| a.from.cmp(&b.from));
        }
        if let Some(excluded) = change.excluded {
            for suspect in excluded.iter().filter(|s| !content.excluded.contains(*s)) {
                content.oldest[suspect.index()] = self.applied;
            }
            content.excluded = excluded;
        }
        if change.clear {
            self.listed.clear();
        }
        for (holders, keys) in &change.keys {
            for key in keys {
                self.listed.insert(key.clone(), *holders);
            }
        }
        let holders = |key: &Key| (key.clone(), content.holders_of(key, &self.listed));
        content.holders = sample.iter().map(holders).collect();
        if self.contents.len() == REMEMBERED {
            self.contents.pop_front();
        }
        self.contents.push_back(self.newest.clone());
    }

    fn content(&self, id: ConfigId) -> Option<&Content> {
        let back = usize::try_from(self.applied.0.checked_sub(id.0)?).ok()?;
        let index = self.contents.len().checked_sub(back + 1)?;
        self.contents.get(index)
    }

    /// `node` promises under no configuration from before it excluded the holder, as
    /// far as it knows (§3.7, hazard 41): a suspect would be kept alive.
    pub(super) fn sent(&mut self, node: usize, to: ReplicaId, envelope: &Envelope) -> Verdict {
        let Message::Lease(LeaseMessage::Promise(promise)) = &envelope.message else {
            return Ok(());
        };
        let known = self.content(self.known[node]);
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

    /// `node` has executed a configuration, or restored what it had.
    pub(super) fn compare(&mut self, sight: &Sight<'_>, node: usize) -> Verdict {
        let Some(replica) = sight.replica(node) else {
            return Ok(());
        };
        let configs = replica.configs();
        let newest = configs.newest();
        self.known[node] = newest;
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

impl Content {
    /// What a configuration says of all configurations after it.
    fn compare_newest(&self, node: usize, configs: &Configs) -> Verdict {
        let n = self.oldest.len() as u8;
        let oldest = (0..n).map(|r| configs.oldest_promisable(ReplicaId(r)));
        let same = configs.strategy() == &self.strategy
            && configs.excluded() == self.excluded
            && configs.defaults() == self.defaults
            && configs.ranges() == self.ranges
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

    /// What `config` says by itself.
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

    fn holders_of(&self, key: &Key, listed: &BTreeMap<Key, ReplicaSet>) -> ReplicaSet {
        let range = self.ranges.iter().rev().find(|range| range.from <= *key);
        let unlisted = range.map_or(self.defaults, |range| range.holders);
        let holders = listed.get(key).copied().unwrap_or(unlisted);
        holders.minus(self.excluded)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bench::{Has, World, everybody};
    use super::*;

    fn set(bits: u64) -> ReplicaSet {
        ReplicaSet(bits)
    }

    #[test]
    fn changes_add_up() {
        let mut oracle = Configurations::new(3);
        let keys = [Key::from("a"), Key::from("b"), Key::from("c")];
        let changes = [
            ConfigChange {
                defaults: Some(set(0b001)),
                keys: vec![(set(0b110), vec![Key::from("a")])],
                ..ConfigChange::default()
            },
            ConfigChange {
                ranges: Some(vec![RangeHolders {
                    from: Key::from("b"),
                    holders: set(0b011),
                }]),
                excluded: Some(set(0b010)),
                ..ConfigChange::default()
            },
            ConfigChange {
                clear: true,
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
        assert_eq!(holders(1), [0b110, 0b001, 0b001]);
        assert_eq!(holders(2), [0b100, 0b001, 0b001]);
        assert_eq!(holders(3), [0b001, 0b001, 0b001]);
        assert_eq!(
            oracle.newest.oldest,
            [ConfigId(0), ConfigId(2), ConfigId(0)]
        );
        assert!(oracle.content(ConfigId(4)).is_none());
    }

    #[test]
    fn whoever_takes_a_configuration_for_another_is_noticed() {
        let other = |change: ConfigChange| Has {
            change,
            ..Has::default()
        };
        let defaults = ConfigChange {
            defaults: Some(set(0b011)),
            ..everybody()
        };
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
            (listed, false),
            (excluded, false),
            (longer, false),
        ] {
            let world = World::new([other(change.clone()), Has::default(), Has::default()]);
            let mut oracle = Configurations::new(3);
            oracle.applied.0 += 1;
            oracle.apply(&everybody(), &[Key::from("a")]);
            let verdict = oracle.compare(&world.sight(), 0);
            assert_eq!(verdict.is_ok(), good, "{change:?}");
            assert!(oracle.checks > 0);
        }
    }
}
