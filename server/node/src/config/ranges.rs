//! `[[lease.range]]`: the keys of each range.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_leases::config::{RANGES_MAX, STARTS_BYTES_MAX};
use leasehold_leases::{KeyRange, RangeMap, StrategySpec};
use leasehold_wire::KEY_BYTES_MAX;

use super::check::{CheckResult, Checker};
use super::lease::RangeSection;

impl Checker<'_> {
    /// Returns the strategies by key range. `of_range` returns the strategy for the keys of a
    /// range. All other keys have the strategy `of_all`.
    pub(super) fn by_range(
        &self,
        of_all: StrategySpec,
        ranges: &[RangeSection],
        of_range: impl Fn(&RangeSection) -> CheckResult<StrategySpec>,
    ) -> CheckResult<RangeMap<StrategySpec>> {
        self.ranges_fit(ranges)?;
        let ordered = self.in_order(ranges)?;
        let mut map = RangeMap::uniform(of_all);
        let mut nexts = ordered.iter().skip(1);
        for range in &ordered {
            let keys = self.keys(range, nexts.next().map(|next| next.from.as_str()))?;
            let spec = of_range(range)?;
            map.update(&keys, |value| *value = spec.clone());
        }
        Ok(map)
    }

    fn in_order<'r>(&self, ranges: &'r [RangeSection]) -> CheckResult<Vec<&'r RangeSection>> {
        let mut ordered = BTreeMap::new();
        for range in ranges {
            if ordered.insert(&range.from, range).is_some() {
                let accepted = "an earlier range begins there; leave one of them out";
                return Err(self.quoted("lease.range.from", &range.from, accepted));
            }
        }
        Ok(ordered.into_values().collect())
    }

    /// Returns the keys of a range. The range ends at its own `to`, or else at the beginning of the
    /// `next` range.
    fn keys(&self, range: &RangeSection, next: Option<&str>) -> CheckResult<KeyRange> {
        let end = range.to.as_deref().or(next);
        let field = || format!("to of lease.range from {:?}", range.from);
        if let (Some(to), Some(next)) = (&range.to, next)
            && to.as_str() > next
        {
            let accepted = format!(
                "the range from {next:?} begins before; end this one there, or leave `to` out"
            );
            return Err(self.quoted(&field(), to, accepted));
        }
        let key = |text: &str| text.to_owned().into();
        KeyRange::new(key(&range.from), end.map(key)).ok_or_else(|| {
            let accepted = "a range ends after its first key; leave `to` out if it has no end";
            self.quoted(&field(), end.unwrap_or_default(), accepted)
        })
    }

    /// Checks that a configuration can hold this many ranges.
    fn ranges_fit(&self, ranges: &[RangeSection]) -> CheckResult<()> {
        let ends = ranges.iter().flat_map(|range| &range.to);
        let bounds: BTreeSet<&String> =
            ranges.iter().map(|range| &range.from).chain(ends).collect();
        let lengths = || bounds.iter().map(|bound| bound.len());
        if let Some(length) = lengths().find(|length| *length > KEY_BYTES_MAX) {
            let found = format!("{length} bytes");
            let accepted = format!("keys have at most {KEY_BYTES_MAX} bytes");
            return Err(self.refuse("lease.range.from", found, accepted));
        }
        // The keys before the first range take one range more.
        let most = RANGES_MAX - 1;
        let bytes: usize = lengths().sum();
        if bounds.len() <= most && bytes <= STARTS_BYTES_MAX {
            return Ok(());
        }
        let found = format!("{bytes} bytes in {} ranges", bounds.len());
        let accepted = format!(
            "accepted are {most} ranges and {STARTS_BYTES_MAX} bytes, the length of each `from` \
             together, so that one message holds all of them; keys between two ranges are one, too; \
             give fewer ranges, or shorter `from`s"
        );
        Err(self.refuse("[[lease.range]]", found, accepted))
    }
}
