//! Lines in a trace that describe inputs and actions of replicas.

use std::fmt::Write as _;

use leasehold_kernel::trace::Trace;
use leasehold_leases::{LeaseMessage, Promise, ReplicaSet};
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use leasehold_replica::Input;
use leasehold_replica::action::{Action, Record};
use leasehold_replica::message::{Accept, LogId, Message, ReportedEntry, Value};

/// Adds lines about inputs of a replica.
pub(super) fn inputs(lines: &mut Trace, now_ns: u64, node: usize, inputs: &[Input]) {
    for input in inputs {
        let what = match input {
            Input::Peer(envelope) => {
                let message = describe(&envelope.message);
                format!("<- {:?} {message}", envelope.from)
            }
            Input::Client { from, command } => {
                let (client, request) = (from.connection, from.request);
                format!("<- client {client}, request {request}: {}", ask(command))
            }
            Input::ClientDisconnected { connection } => {
                format!("<- client {connection} has gone")
            }
            Input::Persisted(sequence) => format!("   durable up to {}", sequence.0),
            Input::Flushed(slots) => format!("   state durable up to {:?}", slots.commands),
            Input::LogRead { log, entries, .. } => {
                format!("   {} entries of {log:?} read", entries.len())
            }
            Input::FenceMissed { .. } => "   the permit had ended: reads again".into(),
            Input::StorageWritable(writable) => format!("   storage writable: {writable}"),
            Input::ClockTrusted(trusted) => format!("   clock trusted: {trusted}"),
            Input::Operator(operator) => format!("<- operator: {operator:?}"),
            Input::Stop => "<- told to end".into(),
            Input::Tick => continue,
        };
        lines.line(now_ns, format_args!("r{node} {what}"));
    }
}

/// Adds a line about an action of a replica.
pub(super) fn action(lines: &mut Trace, now_ns: u64, node: usize, action: &Action) {
    let what = match action {
        Action::Send { to, envelope } => format!("-> {to:?} {}", describe(&envelope.message)),
        Action::Flush => "flushes its state".to_owned(),
        Action::Truncate(slots) => format!("   truncates its log up to {:?}", slots.commands),
        Action::Persist { sequence, records } => {
            let records: Vec<String> = records.iter().map(record).collect();
            format!("   persists {}: {}", sequence.0, records.join(", "))
        }
        Action::Reply { to, path, outcome } => {
            let (client, request) = (to.connection, to.request);
            let path = path.as_str_name();
            format!("=> client {client}, request {request}, {path}: {outcome:?}")
        }
        Action::FencedReply {
            to, outcome, until, ..
        } => format!("=> {to:?} until {until:?}: {outcome:?}"),
        Action::ReadLog { from, last, .. } => format!("   reads its log, {from:?} to {last:?}"),
        Action::Event(event) => format!("   {event:?}"),
    };
    lines.line(now_ns, format_args!("r{node} {what}"));
}

/// Returns a short description of a command.
fn ask(command: &Command) -> String {
    let mut text = String::new();
    if command.is_write() {
        let (client, sequence) = (command.client, command.sequence);
        let _ = write!(text, "#{client}.{sequence} ");
    }
    let name = match &command.op {
        Some(Op::Get(_)) => "get",
        Some(Op::Put(_)) => "put",
        Some(Op::Delete(_)) => "delete",
        Some(Op::Cas(_)) => "cas",
        Some(Op::PutFields(_)) => "put fields",
        Some(Op::MultiGet(_)) => "multi-get",
        Some(Op::MultiPut(_)) => "multi-put",
        Some(Op::Txn(_)) => "txn",
        Some(Op::Scan(_)) => "scan",
        None => "nothing",
    };
    text.push_str(name);
    for key in command.keys() {
        let _ = write!(text, " {}", key.escape_ascii());
    }
    text
}

fn contents(value: &Value) -> String {
    match value {
        Value::Noop => "no-op".into(),
        Value::Config(change) => format!("{change:?}"),
        Value::Commands(batch) => {
            let asks: Vec<String> = batch.commands.iter().map(|p| ask(&p.command)).collect();
            format!("[{}]", asks.join("; "))
        }
    }
}

fn record(record: &Record) -> String {
    match record {
        Record::Accepted {
            log, slot, ballot, ..
        } => format!("{} {slot:?} at {ballot:?}", short(*log)),
        Record::Changes(changes) => format!("state at {:?}", changes.executed),
        other => format!("{other:?}"),
    }
}

fn short(log: LogId) -> &'static str {
    match log {
        LogId::Commands => "command",
        LogId::Configs => "config",
    }
}

fn describe(message: &Message) -> String {
    match message {
        Message::Prepared {
            ballot,
            commits,
            entries,
            log_starts,
            ..
        } => {
            let entries: String = entries.iter().map(reported).collect();
            format!("Prepared {ballot:?} commits {commits:?}{entries} starts {log_starts:?}")
        }
        Message::Accept(accept) => describe_accept(accept),
        Message::Accepted { ballot, log, votes } => {
            let votes: Vec<String> = votes.iter().map(|(s, t)| vote(*s, *t)).collect();
            format!("Accepted {} {ballot:?} {}", short(*log), votes.join(" "))
        }
        Message::Heartbeat {
            ballot,
            probe,
            logs,
        } => {
            let points = [logs.commands.commit_point, logs.configs.commit_point];
            format!("Heartbeat {ballot:?} probe {probe} commits {points:?}")
        }
        Message::Fetched { log, entries } => {
            let slots: Vec<_> = entries.iter().map(|(slot, _)| *slot).collect();
            format!("Fetched {} {slots:?}", short(*log))
        }
        Message::Forward { commands } => {
            let asks: Vec<String> = commands.iter().map(|(_, command)| ask(command)).collect();
            format!("Forward {}", asks.join("; "))
        }
        Message::Lease(LeaseMessage::Promise(promise)) => describe_promise(promise),
        Message::Lease(lease) => format!("{lease:?}"),
        other => format!("{other:?}"),
    }
}

fn reported(entry: &ReportedEntry) -> String {
    let (log, slot, ballot) = (short(entry.log), entry.slot, entry.ballot);
    format!(" {log} {slot:?} at {ballot:?}")
}

fn describe_accept(accept: &Accept) -> String {
    format!(
        "Accept {} {:?} {:?}{} commit {:?} {}",
        short(accept.log),
        accept.ballot,
        accept.slot,
        accept
            .vote
            .map_or(String::new(), |tag| format!(" vote {tag:?}")),
        accept.news.commit_point,
        contents(&accept.value)
    )
}

fn describe_promise(p: &Promise) -> String {
    format!(
        "Promise #{} on #{} t0 {:?} under {:?} barrier {:?}",
        p.sequence, p.base, p.t0, p.config, p.highest_accepted
    )
}

fn vote(slot: leasehold_leases::Slot, tag: ReplicaSet) -> String {
    format!("{slot:?}{tag:?}")
}
