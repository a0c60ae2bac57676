//! Tables of cases: for each number in a message, the largest value that is believed. The next
//! larger value must be refused.

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::demand::{Delta, TallyReport};
use leasehold_leases::{ConfigChange, Promise, ReplicaId, ReplicaSet};
use smallvec::smallvec;

use super::*;
use crate::lease_set::LeaseSet;
use crate::message::Batch;

const KNOWN: SanityBaseline = SanityBaseline {
    round: 7,
    incarnation: Incarnation(3),
    slots: PerLog {
        commands: Slot(1000),
        configs: Slot(20),
    },
    log_time_ms: 5_000_000,
};
const ROUND: u64 = 7 + ROUNDS_AHEAD_MAX;
const COMMANDS: u64 = 1000 + SLOTS_AHEAD_MAX.commands;
const CONFIGS: u64 = 20 + SLOTS_AHEAD_MAX.configs;
const LOG_TIME: u64 = 5_000_000 + LOG_TIME_AHEAD_MAX_MS;
const T0_NS: u64 = Durations::T0_MAX.as_nanos() as u64;
const SPAN_NS: u64 = Durations::MAX.as_nanos() as u64;

fn envelope(incarnation: u64, message: Message) -> Envelope {
    Envelope {
        from: ReplicaId(1),
        from_incarnation: Incarnation(incarnation),
        to_incarnation: Incarnation(1),
        message,
    }
}

fn ballot(round: u64) -> Ballot {
    let replica = ReplicaId(1);
    Ballot { round, replica }
}

fn batch(log_time_ms: u64) -> Value {
    Value::Commands(Arc::new(Batch {
        log_time_ms,
        ..Batch::default()
    }))
}

fn news(commit_point: u64, above: u64, log_start: u64) -> LogNews {
    LogNews {
        commit_point: Slot(commit_point),
        above: vec![(Slot(2), Slot(above))],
        log_start: Slot(log_start),
    }
}

fn accept(log: LogId, slot: u64, change: impl FnOnce(&mut Accept)) -> Message {
    let mut accept = Accept {
        ballot: ballot(7),
        log,
        slot: Slot(slot),
        value: Value::Noop,
        vote: Some(ReplicaSet::EMPTY),
        news: LogNews::default(),
        last_multi: Slot::ZERO,
        infallible: Arc::from([]),
    };
    change(&mut accept);
    Message::Accept(accept)
}

fn heartbeat(round: u64, commands: LogNews, configs: LogNews) -> Message {
    Message::Heartbeat {
        ballot: ballot(round),
        probe: 1,
        logs: [commands, configs].into(),
    }
}

fn prepared(answer: u64, entry: (u64, u64, u64), start: (u64, u64), commit: u64) -> Message {
    let (slot, round, log_time_ms) = entry;
    let entry = ReportedEntry {
        log: LogId::Commands,
        slot: Slot(slot),
        ballot: ballot(round),
        value: batch(log_time_ms),
    };
    Message::Prepared {
        ballot: ballot(7),
        answer,
        part: 0,
        parts: 1,
        commits: [Slot(commit), Slot(1)].into(),
        entries: vec![entry],
        log_starts: vec![(LogId::Configs, ballot(start.0), Slot(start.1))],
    }
}

fn promise(sequence: u64, base: u64, config: u64, highest_accepted: u64) -> Message {
    let span = Duration::from_secs(1);
    promise_with(|promise| {
        *promise = Promise {
            sequence,
            base,
            t0: span,
            t_guard: span,
            t_lease: span,
            config: ConfigId(config),
            highest_accepted: Slot(highest_accepted),
        }
    })
}

fn promise_with(change: impl FnOnce(&mut Promise)) -> Message {
    let mut promise = Promise {
        sequence: 1,
        base: 1,
        t0: Duration::ZERO,
        t_guard: Duration::ZERO,
        t_lease: Duration::ZERO,
        config: ConfigId(1),
        highest_accepted: Slot(1),
    };
    change(&mut promise);
    Message::Lease(LeaseMessage::Promise(promise))
}

fn configured(change: impl FnOnce(&mut LeaseParams)) -> Message {
    let mut params = LeaseParams::default();
    change(&mut params);
    let value = Value::Config(Arc::new(ConfigChange {
        params: Some(params),
        ..ConfigChange::default()
    }));
    accept(LogId::Configs, 1, |accept| accept.value = value)
}

fn lease_set(change: impl FnOnce(&mut Durations)) -> Message {
    let mut set = LeaseSet::default();
    change(&mut set.durations);
    Message::SetLease { ask: 1, set }
}

/// Function that builds a message with the given number in one place.
type Saying = fn(u64) -> Message;

/// Places in messages for numbers that have a limit: (name, largest number that is believed,
/// builder).
const CASES: &[(&str, u64, Saying)] = &[
    ("prepare.ballot", ROUND, |round| Message::Prepare {
        ballot: ballot(round),
        commits: [Slot(1); 2].into(),
    }),
    ("prepare.commands", COMMANDS, |slot| Message::Prepare {
        ballot: ballot(7),
        commits: [Slot(slot), Slot(1)].into(),
    }),
    ("prepare.configs", CONFIGS, |slot| Message::Prepare {
        ballot: ballot(7),
        commits: [Slot(1), Slot(slot)].into(),
    }),
    ("prepared.answer", COUNT_MAX, |answer| {
        prepared(answer, (1, 1, 1), (1, 1), 1)
    }),
    ("prepared.commits", COMMANDS, |slot| {
        prepared(1, (1, 1, 1), (1, 1), slot)
    }),
    ("prepared.entry.slot", COMMANDS, |slot| {
        prepared(1, (slot, 1, 1), (1, 1), 1)
    }),
    ("prepared.entry.ballot", ROUND, |round| {
        prepared(1, (1, round, 1), (1, 1), 1)
    }),
    ("prepared.entry.log_time", LOG_TIME, |ms| {
        prepared(1, (1, 1, ms), (1, 1), 1)
    }),
    ("prepared.start.ballot", ROUND, |round| {
        prepared(1, (1, 1, 1), (round, 1), 1)
    }),
    ("prepared.start.slot", CONFIGS, |slot| {
        prepared(1, (1, 1, 1), (1, slot), 1)
    }),
    ("accept.ballot", ROUND, |round| {
        accept(LogId::Commands, 1, |a| a.ballot = ballot(round))
    }),
    ("accept.slot", COMMANDS, |slot| {
        accept(LogId::Commands, slot, |_| {})
    }),
    ("accept.slot of configs", CONFIGS, |slot| {
        accept(LogId::Configs, slot, |_| {})
    }),
    ("accept.last_multi", COMMANDS, |slot| {
        accept(LogId::Commands, 1, |a| a.last_multi = Slot(slot))
    }),
    ("accept.log_time", LOG_TIME, |ms| {
        accept(LogId::Commands, 1, |a| a.value = batch(ms))
    }),
    ("accept.log_start", COMMANDS, |slot| {
        accept(LogId::Commands, 1, |a| a.news = news(1, 3, slot))
    }),
    ("accepted.ballot", ROUND, |round| Message::Accepted {
        ballot: ballot(round),
        log: LogId::Commands,
        votes: smallvec![],
    }),
    ("accepted.slot", CONFIGS, |slot| Message::Accepted {
        ballot: ballot(7),
        log: LogId::Configs,
        votes: smallvec![(Slot(slot), ReplicaSet::EMPTY)],
    }),
    ("rejected", ROUND, |round| Message::Rejected {
        promised: ballot(round),
    }),
    ("heartbeat.ballot", ROUND, |round| {
        heartbeat(round, LogNews::default(), LogNews::default())
    }),
    ("heartbeat.commit_point", COMMANDS, |slot| {
        heartbeat(7, news(slot, 3, 1), LogNews::default())
    }),
    ("heartbeat.above", COMMANDS, |slot| {
        heartbeat(7, news(1, slot, 1), LogNews::default())
    }),
    ("heartbeat.configs.log_start", CONFIGS, |slot| {
        heartbeat(7, LogNews::default(), news(1, 3, slot))
    }),
    ("heartbeat_ack.ballot", ROUND, |round| {
        Message::HeartbeatAck {
            ballot: ballot(round),
            probe: 1,
            suspects: ReplicaSet::EMPTY,
        }
    }),
    ("heartbeat_ack.probe", COUNT_MAX, |probe| {
        Message::HeartbeatAck {
            ballot: ballot(7),
            probe,
            suspects: ReplicaSet::EMPTY,
        }
    }),
    ("transfer", ROUND, |round| Message::Transfer {
        ballot: ballot(round),
        by_operator: false,
    }),
    ("pre_vote.ballot", ROUND, |round| Message::PreVote {
        ballot: ballot(round),
        ask: 1,
    }),
    ("pre_vote.ask", COUNT_MAX, |ask| Message::PreVote {
        ballot: ballot(7),
        ask,
    }),
    ("pre_voted.ballot", ROUND, |round| Message::PreVoted {
        ballot: ballot(round),
        ask: 1,
    }),
    ("pre_voted.ask", COUNT_MAX, |ask| Message::PreVoted {
        ballot: ballot(7),
        ask,
    }),
    ("fetch.to", COMMANDS, |slot| Message::Fetch {
        log: LogId::Commands,
        from: Slot(1),
        to: Slot(slot),
    }),
    ("fetched.slot", COMMANDS, |slot| Message::Fetched {
        log: LogId::Commands,
        entries: vec![(Slot(slot), Value::Noop)],
    }),
    ("fetched.log_time", LOG_TIME, |ms| Message::Fetched {
        log: LogId::Commands,
        entries: vec![(Slot(1), batch(ms))],
    }),
    ("guard", COUNT_MAX, |sequence| {
        Message::Lease(LeaseMessage::Guard { sequence })
    }),
    ("guard_ack.known", CONFIGS, |known| {
        let (sequence, known) = (1, ConfigId(known));
        Message::Lease(LeaseMessage::GuardAck { sequence, known })
    }),
    ("promise.sequence", COUNT_MAX, |n| promise(n, 1, 1, 1)),
    ("promise.base", COUNT_MAX, |n| promise(1, n, 1, 1)),
    ("promise.config", CONFIGS, |n| promise(1, 1, n, 1)),
    ("promise.highest", COMMANDS, |n| promise(1, 1, 1, n)),
    ("promise.t0", T0_NS, |ns| {
        promise_with(|promise| promise.t0 = Duration::from_nanos(ns))
    }),
    ("promise.t_guard", SPAN_NS, |ns| {
        promise_with(|promise| promise.t_guard = Duration::from_nanos(ns))
    }),
    ("promise.t_lease", SPAN_NS, |ns| {
        promise_with(|promise| promise.t_lease = Duration::from_nanos(ns))
    }),
    ("params.t_lease", SPAN_NS, |ns| {
        configured(|params| params.t_lease = Duration::from_nanos(ns))
    }),
    ("params.t_guard", SPAN_NS, |ns| {
        configured(|params| params.t_guard = Duration::from_nanos(ns))
    }),
    ("params.renew", SPAN_NS, |ns| {
        configured(|params| params.renew = Duration::from_nanos(ns))
    }),
    ("params.t_grace", SPAN_NS, |ns| {
        configured(|params| params.t_grace = Duration::from_nanos(ns))
    }),
    ("params.t0_cap", T0_NS, |ns| {
        configured(|params| params.t0_cap = Duration::from_nanos(ns))
    }),
    ("set_lease.t_lease", SPAN_NS, |ns| {
        lease_set(|durations| durations.t_lease = Some(Duration::from_nanos(ns)))
    }),
    ("set_lease.t_grace", SPAN_NS, |ns| {
        lease_set(|durations| durations.t_grace = Some(Duration::from_nanos(ns)))
    }),
    ("promise_ack.sequence", COUNT_MAX, |sequence| {
        let known = ConfigId(1);
        Message::Lease(LeaseMessage::PromiseAck { sequence, known })
    }),
    ("relinquish", COUNT_MAX, |up_to| {
        Message::Lease(LeaseMessage::Relinquish { up_to })
    }),
];

#[test]
fn each_number_is_believed_up_to_its_bound() {
    for (place, most, saying) in CASES {
        let believed = |number| is_sane(&KNOWN, &envelope(3, saying(number)));
        assert!(believed(0) && believed(*most), "{place}: {most}");
        for beyond in [most + 1, NUMBER_MAX, u64::MAX] {
            assert!(!believed(beyond), "{place}: {beyond}");
        }
    }
}

/// No client can request a key that is empty or too long. A configuration that listed such a key
/// would not be decoded.
#[test]
fn demand_for_keys_that_cannot_be_is_refused() {
    let believed = |length| {
        let delta = Delta {
            key: vec![b'k'; length].into(),
            reads: u32::MAX,
            writes: u32::MAX,
        };
        let report = TallyReport {
            deltas: vec![delta],
            ..TallyReport::default()
        };
        let rtts_us = vec![u32::MAX; 9];
        let demand = DemandReport { report, rtts_us };
        is_sane(&KNOWN, &envelope(3, Message::Demand(demand)))
    };
    assert!(believed(1) && believed(KEY_BYTES_MAX));
    assert!(!believed(0) && !believed(KEY_BYTES_MAX + 1));
}

#[test]
fn a_run_of_a_peer_is_believed_up_to_its_bound() {
    let unknown = SanityBaseline {
        incarnation: Incarnation(0),
        ..KNOWN
    };
    for (known, most) in [
        (KNOWN, 3 + INCARNATIONS_AHEAD_MAX),
        (unknown, FIRST_INCARNATION_MAX),
    ] {
        let believed = |run| is_sane(&known, &envelope(run, Message::TransferRequest));
        assert!(believed(0) && believed(most));
        assert!(!believed(most + 1) && !believed(NUMBER_MAX) && !believed(u64::MAX));
    }
}

#[test]
fn no_bound_leaves_what_decoders_take() {
    let extreme = SanityBaseline {
        round: NUMBER_MAX,
        ..KNOWN
    };
    let rejected = |round| {
        let promised = ballot(round);
        is_sane(&extreme, &envelope(3, Message::Rejected { promised }))
    };
    assert!(rejected(NUMBER_MAX) && !rejected(NUMBER_MAX + 1));
    assert_eq!(nearer(NUMBER_MAX - 1, u64::MAX), NUMBER_MAX);
}

#[test]
fn rounds_come_nearer_by_as_much_as_is_believed() {
    for (seen, told, then) in [
        (5, 3, 5),
        (5, 9, 9),
        (5, u64::MAX, 5 + ROUNDS_AHEAD_MAX),
        (5, 6 + ROUNDS_AHEAD_MAX, 5 + ROUNDS_AHEAD_MAX),
    ] {
        assert_eq!(nearer(seen, told), then, "{seen}, {told}");
    }
}
