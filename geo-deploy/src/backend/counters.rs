//! What replicas counted, together.

use std::collections::BTreeMap;

use client::wire::StatusReply;

/// Counters of several replicas, summed by name.
pub(super) fn sum_counters(
    statuses: impl IntoIterator<Item = StatusReply>,
) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for counter in statuses.into_iter().flat_map(|status| status.counters) {
        *sum.entry(counter.name).or_insert(0) += counter.value;
    }
    sum
}
