//! `[[lease.range]]`: the operator's own holders, by key range.

use std::collections::BTreeMap;

use client::wire::KEY_BYTES_MAX;
use leases::config::{RANGES_MAX, STARTS_BYTES_MAX};
use leases::{Key, RangeMap, ReplicaSet, StrategySpec};

use super::check::{Checked, Checker, Names};
use super::lease::RangeSection;

impl Checker<'_> {
    /// The holders of each range; the leader and the N/2 replicas nearest to it hold the
    /// keys before the first.
    pub(super) fn fixed(
        &self,
        ranges: &[RangeSection],
        names: &Names,
    ) -> Checked<RangeMap<StrategySpec>> {
        if ranges.is_empty() {
            let accepted = "strategy = \"fixed\" needs at least one, with `from` and `holders`";
            return Err(self.refuse("[[lease.range]]", "not given", accepted));
        }
        self.ranges_fit(ranges)?;
        let mut starts = BTreeMap::from([(Key::new(), None)]);
        for range in ranges {
            let holders = self.holders(range, names)?;
            let earlier = starts.insert(range.from.clone().into(), Some(holders));
            if earlier.is_some_and(|holders| holders.is_some()) {
                let accepted = "an earlier range begins there; leave one of them out";
                return Err(self.quoted("lease.range.from", &range.from, accepted));
            }
        }
        let fixed = |(from, holders)| (from, StrategySpec::Fixed { holders });
        let map = RangeMap::from_starts(starts.into_iter().map(fixed).collect());
        Ok(map.expect("in order, from the first key on"))
    }

    fn holders(&self, range: &RangeSection, names: &Names) -> Checked<ReplicaSet> {
        let field = format!("holders of lease.range from {:?}", range.from);
        if range.holders.is_empty() {
            return Err(self.refuse(field, "empty", "name at least one node"));
        }
        let holders = range.holders.iter();
        holders
            .map(|name| self.known(&field, name, names))
            .collect()
    }

    /// Refuses more than a configuration can hold.
    fn ranges_fit(&self, ranges: &[RangeSection]) -> Checked<()> {
        let lengths = || ranges.iter().map(|range| range.from.len());
        if let Some(length) = lengths().find(|length| *length > KEY_BYTES_MAX) {
            let found = format!("{length} bytes");
            let accepted = format!("keys have at most {KEY_BYTES_MAX} bytes");
            return Err(self.refuse("lease.range.from", found, accepted));
        }
        // One range more for the keys before the first.
        let most = RANGES_MAX - 1;
        let bytes: usize = lengths().sum();
        if ranges.len() <= most && bytes <= STARTS_BYTES_MAX {
            return Ok(());
        }
        let found = format!("{bytes} bytes in {} ranges", ranges.len());
        let accepted = format!(
            "accepted are {most} ranges and {STARTS_BYTES_MAX} bytes, the length of each `from` \
             together, so that one message holds all of them; give fewer ranges, or shorter `from`s"
        );
        Err(self.refuse("[[lease.range]]", found, accepted))
    }
}
