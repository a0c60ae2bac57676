//! Encoder and decoder of messages of the lease engine.

use leasehold_leases::{ConfigId, LeaseMessage, Promise};

use super::check::{CodecResult, duration, number, present, put_duration, slot};
use super::proto::{self, lease::Message};

pub(super) fn encode(message: &LeaseMessage) -> proto::Lease {
    let ack = |sequence: u64, known: ConfigId| proto::LeaseAck {
        sequence,
        known: known.0,
    };
    let message = match *message {
        LeaseMessage::Guard { sequence } => Message::Guard(sequence),
        LeaseMessage::GuardAck { sequence, known } => Message::GuardAck(ack(sequence, known)),
        LeaseMessage::Promise(promise) => Message::Promise(proto::Promise {
            sequence: promise.sequence,
            base: promise.base,
            t0_ns: put_duration(promise.t0),
            t_guard_ns: put_duration(promise.t_guard),
            t_lease_ns: put_duration(promise.t_lease),
            config: promise.config.0,
            highest_accepted: promise.highest_accepted.0,
        }),
        LeaseMessage::PromiseAck { sequence, known } => Message::PromiseAck(ack(sequence, known)),
        LeaseMessage::Relinquish { up_to } => Message::Relinquish(up_to),
        LeaseMessage::Leave { recalls } => Message::Leave(recalls),
    };
    proto::Lease {
        message: Some(message),
    }
}

pub(super) fn decode(lease: proto::Lease) -> CodecResult<LeaseMessage> {
    let sequence = |found| number("lease.sequence", found);
    let known = |found| number("lease.known", found).map(ConfigId);
    Ok(match present("lease.message", lease.message)? {
        Message::Guard(found) => LeaseMessage::Guard {
            sequence: sequence(found)?,
        },
        Message::GuardAck(ack) => LeaseMessage::GuardAck {
            sequence: sequence(ack.sequence)?,
            known: known(ack.known)?,
        },
        Message::Promise(promise) => LeaseMessage::Promise(decode_promise(promise)?),
        Message::PromiseAck(ack) => LeaseMessage::PromiseAck {
            sequence: sequence(ack.sequence)?,
            known: known(ack.known)?,
        },
        Message::Relinquish(found) => LeaseMessage::Relinquish {
            up_to: sequence(found)?,
        },
        Message::Leave(found) => LeaseMessage::Leave {
            recalls: sequence(found)?,
        },
    })
}

fn decode_promise(promise: proto::Promise) -> CodecResult<Promise> {
    Ok(Promise {
        sequence: number("promise.sequence", promise.sequence)?,
        base: number("promise.base", promise.base)?,
        t0: duration("promise.t0_ns", promise.t0_ns)?,
        t_guard: duration("promise.t_guard_ns", promise.t_guard_ns)?,
        t_lease: duration("promise.t_lease_ns", promise.t_lease_ns)?,
        config: ConfigId(number("promise.config", promise.config)?),
        highest_accepted: slot("promise.highest_accepted", promise.highest_accepted)?,
    })
}
