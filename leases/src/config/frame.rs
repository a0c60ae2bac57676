//! The part of a configuration that is not about single keys.

use std::sync::Arc;

use smallvec::SmallVec;

use super::change::ConfigChange;
use super::params::LeaseParams;
use super::ranges::{RangeHolders, RangeMap};
use super::spec::StrategySpec;
use crate::membership::Membership;
use crate::types::{ConfigId, ReplicaSet};

/// One configuration, without the holders of single keys.
#[derive(Clone, Debug, Hash)]
pub(super) struct Frame {
    pub(super) id: ConfigId,
    /// The newest configuration that cleared the listed keys: who was listed before
    /// it is listed no more.
    pub(super) cleared: ConfigId,
    pub(super) defaults: ReplicaSet,
    pub(super) ranges: Arc<[RangeHolders]>,
    pub(super) excluded: ReplicaSet,
    pub(super) strategies: Arc<RangeMap<StrategySpec>>,
    pub(super) params: LeaseParams,
    /// Replicas in the set of every listed key; `None`: no key is listed. May
    /// be too small (a key listed anew is not forgotten), never too large.
    pub(super) listed: Option<ReplicaSet>,
    /// Per replica, the oldest configuration it may still be promised under.
    pub(super) oldest: SmallVec<[ConfigId; 8]>,
}

impl Frame {
    /// The configuration before the first.
    pub(super) fn initial(members: Membership) -> Frame {
        Frame {
            id: ConfigId(0),
            cleared: ConfigId(0),
            defaults: ReplicaSet::EMPTY,
            ranges: [].into(),
            excluded: ReplicaSet::EMPTY,
            strategies: Arc::new(RangeMap::uniform(StrategySpec::None)),
            params: LeaseParams::default(),
            listed: None,
            oldest: SmallVec::from_elem(ConfigId(0), members.len()),
        }
    }

    /// The configuration that `change` makes of this one. A peer wrote the change:
    /// names of nobody hold nothing, and durations that cannot work change nothing.
    pub(super) fn next(&self, change: &ConfigChange, members: Membership) -> Frame {
        let mut frame = self.clone();
        frame.id = ConfigId(self.id.0 + 1);
        if let Some(defaults) = change.defaults {
            frame.defaults = defaults.intersection(members.voters());
        }
        if let Some(ranges) = &change.ranges {
            // In any other order the search would find other holders for a key
            // than `universal` has counted.
            frame.ranges = RangeHolders::in_order(ranges, members.voters()).into();
        }
        if let Some(params) = change.params.filter(LeaseParams::is_usable) {
            frame.params = params;
        }
        if let Some(strategy) = &change.strategy {
            frame.strategies = Arc::new(RangeMap::uniform(strategy.clone()));
        }
        if let Some(excluded) = change.excluded {
            frame.exclude(excluded.intersection(members.voters()));
        }
        frame.list(change, members);
        frame
    }

    /// §3.7: a suspect is not promised again under the configurations that gave it
    /// keys, however far its own log lags.
    fn exclude(&mut self, excluded: ReplicaSet) {
        for suspect in excluded.minus(self.excluded).iter() {
            self.oldest[suspect.index()] = self.id;
        }
        self.excluded = excluded;
    }

    fn list(&mut self, change: &ConfigChange, members: Membership) {
        if change.clear {
            self.cleared = self.id;
            self.listed = None;
        }
        for (holders, _) in change.keys.iter().filter(|(_, keys)| !keys.is_empty()) {
            let before = self.listed.unwrap_or(members.voters());
            self.listed = Some(before.intersection(*holders));
        }
    }

    /// Who holds `key` if it is not listed; exclusions are not applied.
    #[inline]
    pub(super) fn unlisted(&self, key: &[u8]) -> ReplicaSet {
        let after = self
            .ranges
            .partition_point(|range| range.from.as_ref() <= key);
        match after.checked_sub(1) {
            Some(i) => self.ranges[i].holders,
            None => self.defaults,
        }
    }

    /// Holders of every key there is or could be.
    pub(super) fn universal(&self) -> ReplicaSet {
        let ranges = self.ranges.iter().map(|range| range.holders);
        let start = match self.ranges.first() {
            Some(first) if first.from.is_empty() => first.holders,
            _ => self.defaults,
        };
        let everywhere = ranges.fold(start, ReplicaSet::intersection);
        let listed = self.listed.unwrap_or(everywhere);
        everywhere.intersection(listed).minus(self.excluded)
    }

    /// Panics if the configuration cannot be: see the messages.
    pub(super) fn check(&self, members: Membership) {
        let named = [
            self.defaults,
            self.excluded,
            self.listed.unwrap_or_default(),
        ];
        let ranges = self.ranges.iter().map(|range| range.holders);
        let everyone = named.into_iter().chain(ranges);
        let everyone = everyone.fold(ReplicaSet::EMPTY, ReplicaSet::union);
        assert!(everyone.is_subset(members.voters()), "holders are members");
        assert!(
            self.ranges.is_sorted_by(|a, b| a.from < b.from),
            "ranges are disjoint and in rising order"
        );
        self.strategies.check();
        assert!(self.params.is_usable(), "durations that can work");
        assert!(self.cleared <= self.id, "cleared by it or by one before it");
        assert_eq!(self.oldest.len(), members.len(), "one for each replica");
        assert!(
            self.oldest.iter().all(|oldest| *oldest <= self.id),
            "excluded by it or by one before it"
        );
    }

    /// Panics unless this one can come right after `before`.
    pub(super) fn check_follows(&self, before: &Frame) {
        assert_eq!(self.id.0, before.id.0 + 1, "ids rise without holes");
        assert!(self.cleared >= before.cleared, "what is cleared stays so");
        let mut oldest = self.oldest.iter().zip(&before.oldest);
        assert!(
            oldest.all(|(now, then)| now >= then),
            "the oldest promisable configuration only rises"
        );
    }
}
