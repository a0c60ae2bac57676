//! Sums of the counters of all replicas.

use std::collections::BTreeMap;

use leasehold_wire::StatusReply;

/// Sums the counters of several replicas by name. Omits counters that report settings.
pub(super) fn sum_counters(
    statuses: impl IntoIterator<Item = StatusReply>,
) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    let counters = statuses.into_iter().flat_map(|status| status.counters);
    for counter in counters.filter(|counter| !counter.name.starts_with("limit_")) {
        *sum.entry(counter.name).or_insert(0) += counter.value;
    }
    sum
}
