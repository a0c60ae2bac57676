//! Encoder and decoder of operators' requests to change leases, and of the results of these
//! requests.

use std::time::Duration;

use leasehold_leases::{ConfigId, KeyRange, StrategySpec};

use super::check::{CodecResult, at_most, duration, number, present, put_duration};
use super::{proto, value};
use crate::lease_set::{Durations, InForce, LeaseAnswer, LeaseSet, Refusal};

/// Maximum length, in bytes, of the text that explains a refusal.
const REFUSAL_BYTES_MAX: u64 = 4096;

pub(super) fn encode(ask: u64, set: &LeaseSet) -> proto::SetLease {
    let strategy = |(range, spec): &(KeyRange, StrategySpec)| proto::RangeChange {
        from: range.from().clone(),
        to: range.to().cloned(),
        strategy: Some(value::put_strategy(spec)),
        ..proto::RangeChange::default()
    };
    let durations = set.durations;
    proto::SetLease {
        ask,
        strategies: set.strategies.iter().map(strategy).collect(),
        t_lease_ns: durations.t_lease.map(put_duration),
        t_guard_ns: durations.t_guard.map(put_duration),
        renew_ns: durations.renew.map(put_duration),
        t_grace_ns: durations.t_grace.map(put_duration),
        force: set.force,
    }
}

pub(super) fn decode(wanted: proto::SetLease) -> CodecResult<(u64, LeaseSet)> {
    let optional = |field, found: Option<u64>| -> CodecResult<Option<Duration>> {
        found.map(|ns| duration(field, ns)).transpose()
    };
    let set = LeaseSet {
        durations: Durations {
            t_lease: optional("set_lease.t_lease_ns", wanted.t_lease_ns)?,
            t_guard: optional("set_lease.t_guard_ns", wanted.t_guard_ns)?,
            renew: optional("set_lease.renew_ns", wanted.renew_ns)?,
            t_grace: optional("set_lease.t_grace_ns", wanted.t_grace_ns)?,
        },
        strategies: value::get_ranges(wanted.strategies)?
            .into_iter()
            .map(|change| {
                let strategy = present("set_lease.strategies[].strategy", change.strategy)?;
                Ok((change.range, strategy))
            })
            .collect::<CodecResult<_>>()?,
        force: wanted.force,
    };
    Ok((number("set_lease.ask", wanted.ask)?, set))
}

pub(super) fn encode_answer(ask: u64, answer: LeaseAnswer) -> proto::LeaseAnswer {
    match answer {
        Ok(InForce { config, already }) => proto::LeaseAnswer {
            ask,
            config: config.0,
            already,
            ..proto::LeaseAnswer::default()
        },
        Err(refusal) => proto::LeaseAnswer {
            ask,
            refusal: Some(refusal.reason().to_owned()),
            busy: matches!(refusal, Refusal::Busy(_)),
            ..proto::LeaseAnswer::default()
        },
    }
}

pub(super) fn decode_answer(found: proto::LeaseAnswer) -> CodecResult<(u64, LeaseAnswer)> {
    let config = ConfigId(number("lease_answer.config", found.config)?);
    let already = found.already;
    let answer = match found.refusal {
        None => Ok(InForce { config, already }),
        Some(refusal) => {
            let length = refusal.len() as u64;
            at_most("lease_answer.refusal", length, REFUSAL_BYTES_MAX)?;
            Err(if found.busy {
                Refusal::Busy(refusal)
            } else {
                Refusal::Invalid(refusal)
            })
        }
    };
    Ok((number("lease_answer.ask", found.ask)?, answer))
}
