//! Encoder and decoder of every message of the core.

use leasehold_leases::demand::{Delta, TallyReport};
use leasehold_leases::{Ballot, ReplicaSet};
use leasehold_wire::{Command, Path};
use smallvec::SmallVec;

use super::batch::command;
use super::check::{
    CodecResult, at_most, ballot, consistent, log, outcome, path, put_ballot, put_log, replica,
    slot,
};
use super::proto::{self, envelope::Message as Wire};
use super::{CodecError, lease, lease_set, value};
use crate::message::{
    Accept, DemandReport, LogId, LogNews, Message, PerLog, ReadAnswer, ReportedEntry, RequestId,
    Value,
};

/// Maximum number of parts into which one Phase 1 reply may be split.
const PARTS_MAX: u64 = 1 << 16;

pub(super) fn encode(message: Message) -> Wire {
    match message {
        Message::Ping {
            stamp,
            cost_ms,
            flushed,
        } => Wire::Ping(proto::Ping {
            stamp,
            cost_ms,
            commands_flushed: flushed.commands.0,
            configs_flushed: flushed.configs.0,
        }),
        Message::Pong { stamp } => Wire::Pong(proto::Stamp { stamp }),
        Message::Join { life } => Wire::Join(proto::Life { life }),
        Message::Joined { life } => Wire::Joined(proto::Life { life }),
        Message::PreVote { ballot, ask } => Wire::PreVote(encode_pre_vote(ballot, ask)),
        Message::PreVoted { ballot, ask } => Wire::PreVoted(encode_pre_vote(ballot, ask)),
        Message::Prepare { ballot, commits } => Wire::Prepare(proto::Prepare {
            ballot: Some(put_ballot(ballot)),
            commands_committed: commits.commands.0,
            configs_committed: commits.configs.0,
        }),
        Message::Accept(accept) => Wire::Accept(encode_accept(&accept)),
        Message::Accepted { ballot, log, votes } => Wire::Accepted(proto::Accepted {
            ballot: Some(put_ballot(ballot)),
            log: put_log(log),
            slots: votes.iter().map(|(slot, _)| slot.0).collect(),
            tags: votes.iter().map(|(_, tag)| tag.0).collect(),
        }),
        Message::Rejected { promised } => Wire::Rejected(proto::Rejected {
            promised: Some(put_ballot(promised)),
        }),
        Message::Heartbeat {
            ballot,
            probe,
            logs,
        } => Wire::Heartbeat(proto::Heartbeat {
            ballot: Some(put_ballot(ballot)),
            probe,
            commands: Some(encode_news(&logs.commands)),
            configs: Some(encode_news(&logs.configs)),
        }),
        Message::HeartbeatAck {
            ballot,
            probe,
            suspects,
        } => Wire::HeartbeatAck(proto::HeartbeatAck {
            ballot: Some(put_ballot(ballot)),
            probe,
            suspects: suspects.0,
        }),
        Message::Fetch { log, from, to } => Wire::Fetch(proto::Fetch {
            log: put_log(log),
            from: from.0,
            to: to.0,
        }),
        Message::Lease(message) => Wire::Lease(lease::encode(&message)),
        Message::TransferRequest => Wire::TransferRequest(proto::Empty {}),
        Message::Transfer {
            ballot,
            by_operator,
        } => Wire::Transfer(proto::Transfer {
            ballot: Some(put_ballot(ballot)),
            by_operator,
        }),
        Message::Move { to } => Wire::Move(proto::Move { to: to.0.into() }),
        Message::SetLease { ask, set } => Wire::SetLease(lease_set::encode(ask, &set)),
        Message::LeaseAnswer { ask, answer } => {
            Wire::LeaseAnswer(lease_set::encode_answer(ask, answer))
        }
        Message::Prepared {
            ballot,
            answer,
            part,
            parts,
            commits,
            entries,
            log_starts,
        } => Wire::Prepared(proto::Prepared {
            ballot: Some(put_ballot(ballot)),
            answer,
            part,
            parts,
            commands_committed: commits.commands.0,
            configs_committed: commits.configs.0,
            entries: each(entries, encode_reported),
            log_starts: each(log_starts, |(log, ballot, slot)| proto::LogStart {
                log: put_log(log),
                ballot: Some(put_ballot(ballot)),
                slot: slot.0,
            }),
        }),
        Message::Fetched { log, entries } => Wire::Fetched(proto::Fetched {
            log: put_log(log),
            entries: each(entries, |(slot, held)| proto::SlotValue {
                slot: slot.0,
                value: Some(value::encode(&held)),
            }),
        }),
        Message::Forward { commands } => Wire::Forward(proto::Forward {
            commands: each(commands, |(request, command)| proto::Forwarded {
                request: request.0,
                command: Some(command),
            }),
        }),
        Message::Answered { answers } => Wire::Answered(proto::Answered {
            answers: each(answers, |(request, outcome)| proto::Answer {
                request: request.0,
                outcome: Some(outcome),
            }),
        }),
        Message::ForwardRead { read_index, reads } => {
            let (requests, keys) = reads.into_iter().map(|(id, key)| (id.0, key)).unzip();
            Wire::ForwardRead(proto::ForwardRead {
                read_index,
                requests,
                keys,
            })
        }
        Message::ReadAnswers(answers) => Wire::ReadAnswers(proto::ReadAnswers {
            answers: each(answers, encode_read_answer),
        }),
        Message::Demand(demand) => Wire::Demand(encode_demand(demand)),
    }
}

pub(super) fn decode(message: Wire) -> CodecResult<Message> {
    Ok(match message {
        Wire::Ping(ping) => Message::Ping {
            stamp: ping.stamp,
            cost_ms: ping.cost_ms,
            flushed: PerLog {
                commands: slot("ping.commands_flushed", ping.commands_flushed)?,
                configs: slot("ping.configs_flushed", ping.configs_flushed)?,
            },
        },
        Wire::Pong(pong) => Message::Pong { stamp: pong.stamp },
        Wire::Join(join) => Message::Join { life: join.life },
        Wire::Joined(joined) => Message::Joined { life: joined.life },
        Wire::PreVote(asked) => Message::PreVote {
            ballot: ballot("pre_vote.ballot", asked.ballot)?,
            ask: asked.ask,
        },
        Wire::PreVoted(agreed) => Message::PreVoted {
            ballot: ballot("pre_voted.ballot", agreed.ballot)?,
            ask: agreed.ask,
        },
        Wire::Prepare(prepare) => Message::Prepare {
            ballot: ballot("prepare.ballot", prepare.ballot)?,
            commits: PerLog {
                commands: slot("prepare.commands_committed", prepare.commands_committed)?,
                configs: slot("prepare.configs_committed", prepare.configs_committed)?,
            },
        },
        Wire::Prepared(prepared) => decode_prepared(prepared)?,
        Wire::Accept(accept) => Message::Accept(decode_accept(accept)?),
        Wire::Accepted(accepted) => Message::Accepted {
            ballot: ballot("accepted.ballot", accepted.ballot)?,
            log: log("accepted.log", accepted.log)?,
            votes: decode_votes(&accepted)?,
        },
        Wire::Rejected(rejected) => Message::Rejected {
            promised: ballot("rejected.promised", rejected.promised)?,
        },
        Wire::Heartbeat(heartbeat) => Message::Heartbeat {
            ballot: ballot("heartbeat.ballot", heartbeat.ballot)?,
            probe: heartbeat.probe,
            logs: PerLog {
                commands: decode_news("heartbeat.commands", heartbeat.commands)?,
                configs: decode_news("heartbeat.configs", heartbeat.configs)?,
            },
        },
        Wire::HeartbeatAck(ack) => Message::HeartbeatAck {
            ballot: ballot("heartbeat_ack.ballot", ack.ballot)?,
            probe: ack.probe,
            suspects: ReplicaSet(ack.suspects),
        },
        Wire::Fetch(fetch) => decode_fetch(&fetch)?,
        Wire::Lease(message) => Message::Lease(lease::decode(message)?),
        Wire::TransferRequest(_) => Message::TransferRequest,
        Wire::Transfer(transfer) => Message::Transfer {
            ballot: ballot("transfer.ballot", transfer.ballot)?,
            by_operator: transfer.by_operator,
        },
        Wire::Move(wanted) => Message::Move {
            to: replica("move.to", wanted.to)?,
        },
        Wire::SetLease(wanted) => {
            let (ask, set) = lease_set::decode(wanted)?;
            Message::SetLease { ask, set }
        }
        Wire::LeaseAnswer(found) => {
            let (ask, answer) = lease_set::decode_answer(found)?;
            Message::LeaseAnswer { ask, answer }
        }
        Wire::Fetched(fetched) => decode_fetched(fetched)?,
        Wire::Forward(forward) => Message::Forward {
            commands: try_each(forward.commands, |one| {
                Ok((RequestId(one.request), forwarded(one.command)?))
            })?,
        },
        Wire::Answered(answered) => Message::Answered {
            answers: try_each(answered.answers, |one| {
                let answer = outcome("answered.answers[].outcome", one.outcome)?;
                Ok((RequestId(one.request), answer))
            })?,
        },
        Wire::ForwardRead(reads) => decode_forward_read(reads)?,
        Wire::ReadAnswers(answers) => {
            Message::ReadAnswers(try_each(answers.answers, decode_read_answer)?)
        }
        Wire::Demand(demand) => Message::Demand(decode_demand(demand)),
    })
}

fn encode_demand(demand: DemandReport) -> proto::Demand {
    let DemandReport { report, rtts_us } = demand;
    proto::Demand {
        deltas: each(report.deltas, |delta| proto::Delta {
            key: delta.key,
            reads: delta.reads,
            writes: delta.writes,
        }),
        rare_reads: report.rare_reads,
        rare_writes: report.rare_writes,
        rtts_us,
    }
}

fn decode_demand(demand: proto::Demand) -> DemandReport {
    let deltas = each(demand.deltas, |delta| Delta {
        key: delta.key,
        reads: delta.reads,
        writes: delta.writes,
    });
    DemandReport {
        report: TallyReport {
            deltas,
            rare_reads: demand.rare_reads,
            rare_writes: demand.rare_writes,
        },
        rtts_us: demand.rtts_us,
    }
}

fn encode_pre_vote(ballot: Ballot, ask: u64) -> proto::PreVote {
    proto::PreVote {
        ballot: Some(put_ballot(ballot)),
        ask,
    }
}

fn encode_reported(entry: ReportedEntry) -> proto::Reported {
    proto::Reported {
        log: put_log(entry.log),
        slot: entry.slot.0,
        ballot: Some(put_ballot(entry.ballot)),
        value: Some(value::encode(&entry.value)),
    }
}

fn decode_prepared(prepared: proto::Prepared) -> CodecResult<Message> {
    at_most("prepared.parts", prepared.parts.into(), PARTS_MAX)?;
    consistent(
        prepared.part < prepared.parts,
        "prepared.part",
        "not below prepared.parts",
    )?;
    Ok(Message::Prepared {
        ballot: ballot("prepared.ballot", prepared.ballot)?,
        answer: prepared.answer,
        part: prepared.part,
        parts: prepared.parts,
        commits: PerLog {
            commands: slot("prepared.commands_committed", prepared.commands_committed)?,
            configs: slot("prepared.configs_committed", prepared.configs_committed)?,
        },
        entries: try_each(prepared.entries, |entry| {
            let log = log("prepared.entries[].log", entry.log)?;
            Ok(ReportedEntry {
                log,
                slot: slot("prepared.entries[].slot", entry.slot)?,
                ballot: ballot("prepared.entries[].ballot", entry.ballot)?,
                value: value_of(log, "prepared.entries[].value", entry.value)?,
            })
        })?,
        log_starts: try_each(prepared.log_starts, |start| {
            Ok((
                log("prepared.log_starts[].log", start.log)?,
                ballot("prepared.log_starts[].ballot", start.ballot)?,
                slot("prepared.log_starts[].slot", start.slot)?,
            ))
        })?,
    })
}

fn encode_accept(accept: &Accept) -> proto::Accept {
    proto::Accept {
        ballot: Some(put_ballot(accept.ballot)),
        log: put_log(accept.log),
        slot: accept.slot.0,
        value: Some(value::encode(&accept.value)),
        vote: accept.vote.map(|tag| tag.0),
        news: Some(encode_news(&accept.news)),
        last_multi: accept.last_multi.0,
        sure: accept.infallible.to_vec(),
    }
}

fn decode_accept(accept: proto::Accept) -> CodecResult<Accept> {
    let log = log("accept.log", accept.log)?;
    let held = value_of(log, "accept.value", accept.value)?;
    let mut infallible = accept.sure;
    // The bits are resized to one for each command: an absent bit means "not infallible".
    infallible.resize(held.commands().len().div_ceil(64), 0);
    Ok(Accept {
        ballot: ballot("accept.ballot", accept.ballot)?,
        log,
        slot: slot("accept.slot", accept.slot)?,
        value: held,
        vote: accept.vote.map(ReplicaSet),
        news: decode_news("accept.news", accept.news)?,
        last_multi: slot("accept.last_multi", accept.last_multi)?,
        infallible: infallible.into(),
    })
}

fn decode_votes(
    accepted: &proto::Accepted,
) -> CodecResult<SmallVec<[(leasehold_leases::Slot, ReplicaSet); 1]>> {
    consistent(
        accepted.slots.len() == accepted.tags.len(),
        "accepted.tags",
        "not as many as accepted.slots",
    )?;
    let votes = accepted.slots.iter().zip(&accepted.tags);
    votes
        .map(|(found, tag)| Ok((slot("accepted.slots[]", *found)?, ReplicaSet(*tag))))
        .collect()
}

fn encode_news(news: &LogNews) -> proto::News {
    let above = news.above.iter();
    proto::News {
        commit_point: news.commit_point.0,
        above: above.flat_map(|(first, last)| [first.0, last.0]).collect(),
        log_start: news.log_start.0,
    }
}

fn decode_news(field: &'static str, news: Option<proto::News>) -> CodecResult<LogNews> {
    let news = news.unwrap_or_default();
    let (pairs, rest) = news.above.as_chunks::<2>();
    consistent(rest.is_empty(), field, "a range without an end")?;
    let mut above = Vec::with_capacity(pairs.len());
    let mut below = None;
    for [first, last] in pairs {
        let rising = first <= last && below.is_none_or(|below| below < *first);
        consistent(rising, field, "ranges not in rising order")?;
        above.push((slot(field, *first)?, slot(field, *last)?));
        below = Some(*last);
    }
    Ok(LogNews {
        commit_point: slot(field, news.commit_point)?,
        above,
        log_start: slot(field, news.log_start)?,
    })
}

fn decode_fetch(fetch: &proto::Fetch) -> CodecResult<Message> {
    consistent(fetch.from <= fetch.to, "fetch.from", "above fetch.to")?;
    Ok(Message::Fetch {
        log: log("fetch.log", fetch.log)?,
        from: slot("fetch.from", fetch.from)?,
        to: slot("fetch.to", fetch.to)?,
    })
}

fn decode_fetched(fetched: proto::Fetched) -> CodecResult<Message> {
    let rising = fetched.entries.is_sorted_by(|a, b| a.slot < b.slot);
    consistent(rising, "fetched.entries", "not in rising order")?;
    let log = log("fetched.log", fetched.log)?;
    let entries = try_each(fetched.entries, |entry| {
        let slot = slot("fetched.entries[].slot", entry.slot)?;
        let held = value_of(log, "fetched.entries[].value", entry.value)?;
        Ok((slot, held))
    })?;
    Ok(Message::Fetched { log, entries })
}

/// Decodes a value, and checks that it is of the kind that `log` holds.
fn value_of(log: LogId, field: &'static str, value: Option<proto::Value>) -> CodecResult<Value> {
    let held = value::decode(field, value)?;
    let fits = !matches!(
        (&held, log),
        (Value::Commands(_), LogId::Configs) | (Value::Config(_), LogId::Commands)
    );
    consistent(fits, field, "belongs in the other log")?;
    Ok(held)
}

/// Decodes a command that a peer has received from a client. Validates the command again by this
/// replica's rules for clients, because the peer may run another version.
fn forwarded(found: Option<Command>) -> CodecResult<Command> {
    let found = command("forward.commands[].command", found)?;
    leasehold_wire::validate(&found).map_err(|_| CodecError::Inconsistent {
        field: "forward.commands[].command",
        problem: "a command that no client may send",
    })?;
    Ok(found)
}

fn decode_forward_read(reads: proto::ForwardRead) -> CodecResult<Message> {
    consistent(
        reads.requests.len() == reads.keys.len(),
        "forward_read.keys",
        "not as many as forward_read.requests",
    )?;
    let requests = reads.requests.into_iter().map(RequestId);
    Ok(Message::ForwardRead {
        read_index: reads.read_index,
        reads: requests.zip(reads.keys).collect(),
    })
}

fn encode_read_answer(answer: ReadAnswer) -> proto::ReadAnswer {
    let (outcome, path) = answer.outcome.unzip();
    proto::ReadAnswer {
        request: answer.request.0,
        outcome,
        path: path.unwrap_or(Path::Unspecified).into(),
    }
}

fn decode_read_answer(answer: proto::ReadAnswer) -> CodecResult<ReadAnswer> {
    let served = match answer.outcome {
        None => None,
        some => Some((
            outcome("read_answers[].outcome", some)?,
            path("read_answers[].path", answer.path)?,
        )),
    };
    Ok(ReadAnswer {
        request: RequestId(answer.request),
        outcome: served,
    })
}

fn each<A, B>(from: Vec<A>, into: impl FnMut(A) -> B) -> Vec<B> {
    from.into_iter().map(into).collect()
}

fn try_each<A, B>(from: Vec<A>, into: impl FnMut(A) -> CodecResult<B>) -> CodecResult<Vec<B>> {
    from.into_iter().map(into).collect()
}
