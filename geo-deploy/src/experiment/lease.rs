//! `[lease]` of an experiment. It has the fields of `[lease]` in `cluster.toml`, except the
//! strategy, because an experiment compares several strategies.

use leasehold_node::config::LeaseSection;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::ExperimentError;
use super::validate::check;

pub(super) fn default() -> LeaseSection {
    LeaseSection {
        unlisted: Some(Default::default()),
        cost: Some(Default::default()),
        ..LeaseSection::default()
    }
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LeaseSection, D::Error> {
    let mut lease = LeaseSection::deserialize(from)?;
    if lease.strategy.is_some() || !lease.range.is_empty() {
        let problem = "[lease] holds neither `strategy` nor `range`: write them in [[strategies]]";
        return Err(D::Error::custom(problem));
    }
    // Written out, like every other default.
    lease.unlisted.get_or_insert_default();
    lease.cost.get_or_insert_default();
    Ok(lease)
}

pub(super) fn validate(lease: &LeaseSection) -> Result<(), ExperimentError> {
    for (field, value) in [
        ("lease.t_lease_ms", lease.t_lease_ms),
        ("lease.t_guard_ms", lease.t_guard_ms),
        ("lease.renew_ms", lease.renew_ms),
        ("lease.reconfigure_ms", lease.reconfigure_ms),
        ("lease.grace_ms", lease.grace_ms),
    ] {
        check((1..=3_600_000).contains(&value), field, value, || {
            "1 ms to 3600000 ms (an hour) are accepted".into()
        })?;
    }
    let renewed = lease.renew_ms < lease.t_lease_ms;
    check(renewed, "lease.renew_ms", lease.renew_ms, || {
        format!(
            "leases of {} ms would lapse before they are renewed; choose less, a quarter is usual",
            lease.t_lease_ms
        )
    })?;
    let cost = lease.cost.unwrap_or_default();
    let share = (0.0..=1.0).contains(&cost.read_weight);
    check(share, "lease.cost.read_weight", cost.read_weight, || {
        "0 (only writes count) to 1 (only reads count) are accepted".into()
    })?;
    let bounded = (0.0..=0.1).contains(&lease.rho);
    check(bounded, "lease.rho", lease.rho, || {
        "0 to 0.1 are accepted (0.001 is one part in a thousand)".into()
    })
}
