//! Encoder and decoder of the values of slots: batches and configurations.

use std::sync::Arc;

use bytes::Bytes;
use leasehold_leases::{
    ClockBound, ConfigChange, CostSettings, KeyRange, LeaseParams, RangeChange, ReplicaSet,
    StrategySpec, UnlistedHolders,
};
use leasehold_wire::KEY_BYTES_MAX;

use super::check::{CodecResult, at_most, consistent, duration, present, put_duration};
use super::proto::{self, strategy::Kind};
use super::{CodecError, batch};
use crate::message::Value;

/// Maximum length, in bytes, of a key at which a range begins or ends.
pub(super) const KEY_MAX: u64 = KEY_BYTES_MAX as u64;

pub(super) fn encode(value: &Value) -> proto::Value {
    match value {
        Value::Noop => proto::Value::default(),
        Value::Commands(commands) => proto::Value {
            commands: Some(batch::encoded(commands)),
            config: None,
        },
        Value::Config(change) => proto::Value {
            commands: None,
            config: Some(Box::new(put_change(change))),
        },
    }
}

pub(super) fn decode(field: &'static str, value: Option<proto::Value>) -> CodecResult<Value> {
    match present(field, value)? {
        proto::Value {
            commands: None,
            config: None,
        } => Ok(Value::Noop),
        proto::Value {
            commands: Some(commands),
            config: None,
        } => Ok(Value::Commands(Arc::new(batch::decode(commands)?))),
        proto::Value {
            commands: None,
            config: Some(change),
        } => Ok(Value::Config(Arc::new(get_change(*change)?))),
        _ => Err(CodecError::Inconsistent {
            field,
            problem: "holds both commands and a configuration",
        }),
    }
}

fn put_change(change: &ConfigChange) -> proto::ConfigChange {
    let quorum = |(holders, keys): &(ReplicaSet, Vec<leasehold_leases::Key>)| proto::Quorum {
        holders: holders.0,
        keys: keys.clone(),
    };
    proto::ConfigChange {
        ranges: change.ranges.iter().map(put_range).collect(),
        keys: change.keys.iter().map(quorum).collect(),
        excluded: change.excluded.map(|set| set.0),
        params: change.params.as_ref().map(put_params),
    }
}

fn get_change(change: proto::ConfigChange) -> CodecResult<ConfigChange> {
    let quorum = |quorum: proto::Quorum| (ReplicaSet(quorum.holders), quorum.keys);
    Ok(ConfigChange {
        ranges: get_ranges(change.ranges)?,
        keys: change.keys.into_iter().map(quorum).collect(),
        excluded: change.excluded.map(ReplicaSet),
        params: change.params.map(get_params).transpose()?,
    })
}

fn put_range(change: &RangeChange) -> proto::RangeChange {
    proto::RangeChange {
        from: change.range.from().clone(),
        to: change.range.to().cloned(),
        strategy: change.strategy.as_ref().map(put_strategy),
        defaults: change.defaults.map(|set| set.0),
        clear: change.clear,
    }
}

pub(super) fn get_ranges(ranges: Vec<proto::RangeChange>) -> CodecResult<Vec<RangeChange>> {
    let most = ConfigChange::RANGES_MAX as u64;
    at_most("ranges", ranges.len() as u64, most)?;
    ranges.into_iter().map(get_range).collect()
}

fn get_range(change: proto::RangeChange) -> CodecResult<RangeChange> {
    let length = |key: &Bytes| at_most("config.ranges[].from, to", key.len() as u64, KEY_MAX);
    length(&change.from)?;
    change.to.as_ref().map(length).transpose()?;
    let range = KeyRange::new(change.from, change.to);
    consistent(
        range.is_some(),
        "config.ranges[]",
        "ends before its first key",
    )?;
    Ok(RangeChange {
        range: present("config.ranges[]", range)?,
        strategy: change.strategy.map(get_strategy).transpose()?,
        defaults: change.defaults.map(ReplicaSet),
        clear: change.clear,
    })
}

pub(super) fn put_strategy(strategy: &StrategySpec) -> proto::Strategy {
    let empty = proto::Empty::default;
    let kind = match strategy {
        StrategySpec::None => Kind::None(empty()),
        StrategySpec::Leader => Kind::Leader(empty()),
        StrategySpec::All => Kind::All(empty()),
        StrategySpec::Quorum { unlisted } => Kind::Quorum(match unlisted {
            UnlistedHolders::Leader => proto::Unlisted::Leader.into(),
            UnlistedHolders::Nearest => proto::Unlisted::Nearest.into(),
        }),
        StrategySpec::Fixed { holders } => Kind::Fixed(proto::Fixed {
            holders: holders.map(|set| set.0),
        }),
        StrategySpec::Cost(settings) => Kind::Cost(proto::Cost {
            read_weight: settings.thousandths(),
            spare: u32::from(settings.spare),
            counts_only: !settings.prior,
        }),
    };
    proto::Strategy { kind: Some(kind) }
}

pub(super) fn get_strategy(strategy: proto::Strategy) -> CodecResult<StrategySpec> {
    Ok(match present("config.strategy", strategy.kind)? {
        Kind::None(_) => StrategySpec::None,
        Kind::Leader(_) => StrategySpec::Leader,
        Kind::All(_) => StrategySpec::All,
        Kind::Quorum(unlisted) => StrategySpec::Quorum {
            unlisted: get_unlisted(unlisted)?,
        },
        Kind::Fixed(fixed) => StrategySpec::Fixed {
            holders: fixed.holders.map(ReplicaSet),
        },
        Kind::Cost(cost) => StrategySpec::Cost(CostSettings::from_thousandths(
            cost.read_weight,
            u8::try_from(cost.spare).unwrap_or(u8::MAX),
            !cost.counts_only,
        )),
    })
}

fn get_unlisted(found: i32) -> CodecResult<UnlistedHolders> {
    match proto::Unlisted::try_from(found) {
        Ok(proto::Unlisted::Leader) => Ok(UnlistedHolders::Leader),
        Ok(proto::Unlisted::Nearest) => Ok(UnlistedHolders::Nearest),
        Err(_) => Err(CodecError::Unknown {
            field: "config.strategy.unlisted",
            found,
        }),
    }
}

pub(super) fn put_params(params: &LeaseParams) -> proto::LeaseParams {
    proto::LeaseParams {
        t_lease_ns: put_duration(params.t_lease),
        t_guard_ns: put_duration(params.t_guard),
        renew_ns: put_duration(params.renew),
        t_grace_ns: put_duration(params.t_grace),
        t0_cap_ns: put_duration(params.t0_cap),
        rho_ppm: params.clock.rho_ppm,
    }
}

pub(super) fn get_params(params: proto::LeaseParams) -> CodecResult<LeaseParams> {
    let rho = u64::from(params.rho_ppm);
    at_most("params.rho_ppm", rho, ClockBound::RHO_PPM_MAX.into())?;
    Ok(LeaseParams {
        t_lease: duration("params.t_lease_ns", params.t_lease_ns)?,
        t_guard: duration("params.t_guard_ns", params.t_guard_ns)?,
        renew: duration("params.renew_ns", params.renew_ns)?,
        t_grace: duration("params.t_grace_ns", params.t_grace_ns)?,
        t0_cap: duration("params.t0_cap_ns", params.t0_cap_ns)?,
        clock: ClockBound {
            rho_ppm: params.rho_ppm,
        },
    })
}
