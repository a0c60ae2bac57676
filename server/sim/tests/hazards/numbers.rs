//! Lists of every kind of message, and of every number in each kind. The lists are exhaustive
//! matches: if a kind or a field is added, this file does not compile until it is listed here.

use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::{Ballot, ConfigChange, LeaseMessage, LeaseParams, Promise, Slot};
use leasehold_replica::lease_set::{Durations, InForce, LeaseSet};
use leasehold_replica::message::{
    Accept, Batch, DemandReport, LogNews, Message, PerLog, Proposal, ReadAnswer, ReportedEntry,
    Value,
};
use leasehold_wire::Command;

/// A number in a message.
pub enum Number<'a> {
    Long(&'a mut u64),
    Short(&'a mut u32),
    Span(&'a mut Duration),
}

impl Number<'_> {
    /// Sets the number to `value`, or to the maximum if `value` is too large for the type.
    pub fn set(self, value: u64) {
        match self {
            Number::Long(number) => *number = value,
            Number::Short(number) => *number = u32::try_from(value).unwrap_or(u32::MAX),
            Number::Span(span) => *span = Duration::from_nanos(value),
        }
    }
}

macro_rules! kinds {
    ($($kind:ident,)*) => {
        /// Kind of a message. Lease messages are not one kind: each of their variants is a separate
        /// kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($kind,)* }

        /// All kinds of messages.
        pub const KINDS: &[Kind] = &[$(Kind::$kind,)*];
    };
}

kinds! {
    Ping, Pong, Join, Joined, PreVote, PreVoted, Prepare, Prepared, Accept, AcceptConfig, Accepted,
    Rejected, Heartbeat, HeartbeatAck, Fetch, Fetched, Forward, Answered, ForwardRead, ReadAnswers,
    Guard, GuardAck, Promise, PromiseAck, Relinquish, Leave, Demand, TransferRequest, Transfer,
    Move, SetLease, LeaseAnswer,
}

/// Returns the kind of a message.
pub fn kind_of(message: &Message) -> Kind {
    match message {
        Message::Ping { .. } => Kind::Ping,
        Message::Pong { .. } => Kind::Pong,
        Message::Join { .. } => Kind::Join,
        Message::Joined { .. } => Kind::Joined,
        Message::PreVote { .. } => Kind::PreVote,
        Message::PreVoted { .. } => Kind::PreVoted,
        Message::Prepare { .. } => Kind::Prepare,
        Message::Prepared { .. } => Kind::Prepared,
        Message::Accept(accept) => match accept.value {
            Value::Config(_) => Kind::AcceptConfig,
            Value::Noop | Value::Commands(_) => Kind::Accept,
        },
        Message::Accepted { .. } => Kind::Accepted,
        Message::Rejected { .. } => Kind::Rejected,
        Message::Heartbeat { .. } => Kind::Heartbeat,
        Message::HeartbeatAck { .. } => Kind::HeartbeatAck,
        Message::Fetch { .. } => Kind::Fetch,
        Message::Fetched { .. } => Kind::Fetched,
        Message::Forward { .. } => Kind::Forward,
        Message::Answered { .. } => Kind::Answered,
        Message::ForwardRead { .. } => Kind::ForwardRead,
        Message::ReadAnswers(_) => Kind::ReadAnswers,
        Message::Lease(LeaseMessage::Guard { .. }) => Kind::Guard,
        Message::Lease(LeaseMessage::GuardAck { .. }) => Kind::GuardAck,
        Message::Lease(LeaseMessage::Promise(_)) => Kind::Promise,
        Message::Lease(LeaseMessage::PromiseAck { .. }) => Kind::PromiseAck,
        Message::Lease(LeaseMessage::Relinquish { .. }) => Kind::Relinquish,
        Message::Lease(LeaseMessage::Leave { .. }) => Kind::Leave,
        Message::Demand(_) => Kind::Demand,
        Message::TransferRequest => Kind::TransferRequest,
        Message::Transfer { .. } => Kind::Transfer,
        Message::Move { .. } => Kind::Move,
        Message::SetLease { .. } => Kind::SetLease,
        Message::LeaseAnswer { .. } => Kind::LeaseAnswer,
    }
}

/// Calls `visit` with every number of a message in turn.
pub fn each_number(message: &mut Message, visit: &mut dyn FnMut(Number<'_>)) {
    let mut it = Visitor { visit };
    match message {
        Message::Ping {
            stamp,
            cost_ms,
            flushed,
        } => {
            it.long(stamp);
            it.short(cost_ms);
            it.both(flushed);
        }
        Message::Pong { stamp } => it.long(stamp),
        Message::Join { life } | Message::Joined { life } => it.long(life),
        Message::PreVote { ballot, ask } | Message::PreVoted { ballot, ask } => {
            it.ballot(ballot);
            it.long(ask);
        }
        Message::Prepare { ballot, commits } => {
            it.ballot(ballot);
            it.both(commits);
        }
        Message::Prepared {
            ballot,
            answer,
            part,
            parts,
            commits,
            entries,
            log_starts,
        } => {
            it.ballot(ballot);
            it.long(answer);
            it.short(part);
            it.short(parts);
            it.both(commits);
            entries.iter_mut().for_each(|entry| it.reported(entry));
            for (_log, ballot, slot) in log_starts {
                it.ballot(ballot);
                it.slot(slot);
            }
        }
        Message::Accept(accept) => it.accept(accept),
        Message::Accepted {
            ballot,
            log: _,
            votes,
        } => {
            it.ballot(ballot);
            for (slot, tag) in votes {
                it.slot(slot);
                it.long(&mut tag.0);
            }
        }
        Message::Rejected { promised } => it.ballot(promised),
        Message::Heartbeat {
            ballot,
            probe,
            logs,
        } => {
            it.ballot(ballot);
            it.long(probe);
            it.news(&mut logs.commands);
            it.news(&mut logs.configs);
        }
        Message::HeartbeatAck {
            ballot,
            probe,
            suspects,
        } => {
            it.ballot(ballot);
            it.long(probe);
            it.long(&mut suspects.0);
        }
        Message::Fetch { log: _, from, to } => {
            it.slot(from);
            it.slot(to);
        }
        Message::Fetched { log: _, entries } => {
            for (slot, value) in entries {
                it.slot(slot);
                it.value(value);
            }
        }
        Message::Forward { commands } => {
            for (request, command) in commands {
                it.long(&mut request.0);
                it.command(command);
            }
        }
        // An outcome is a leader's answer to a request, and no replica relies on its numbers.
        Message::Answered { answers } => {
            for (request, _outcome) in answers {
                it.long(&mut request.0);
            }
        }
        Message::ForwardRead {
            read_index: _,
            reads,
        } => {
            for (request, _key) in reads {
                it.long(&mut request.0);
            }
        }
        Message::ReadAnswers(answers) => {
            for ReadAnswer {
                request,
                outcome: _,
            } in answers
            {
                it.long(&mut request.0);
            }
        }
        Message::Lease(message) => it.lease(message),
        Message::Demand(report) => it.demand(report),
        Message::TransferRequest => {}
        Message::Transfer {
            ballot,
            by_operator: _,
        } => it.ballot(ballot),
        Message::Move { to: _ } => {}
        Message::SetLease { ask, set } => {
            it.long(ask);
            it.lease_set(set);
        }
        Message::LeaseAnswer { ask, answer } => {
            it.long(ask);
            if let Ok(InForce { config, already: _ }) = answer {
                it.long(&mut config.0);
            }
        }
    }
}

struct Visitor<'a> {
    visit: &'a mut dyn FnMut(Number<'_>),
}

impl Visitor<'_> {
    fn long(&mut self, number: &mut u64) {
        (self.visit)(Number::Long(number));
    }

    fn short(&mut self, number: &mut u32) {
        (self.visit)(Number::Short(number));
    }

    fn span(&mut self, span: &mut Duration) {
        (self.visit)(Number::Span(span));
    }

    fn slot(&mut self, Slot(slot): &mut Slot) {
        self.long(slot);
    }

    fn both(&mut self, PerLog { commands, configs }: &mut PerLog<Slot>) {
        self.slot(commands);
        self.slot(configs);
    }

    /// Visits only the round. `replica` is not visited, because receivers compare it with the
    /// sender that they know from the connection.
    fn ballot(&mut self, Ballot { round, replica: _ }: &mut Ballot) {
        self.long(round);
    }

    fn news(&mut self, news: &mut LogNews) {
        let LogNews {
            commit_point,
            above,
            log_start,
        } = news;
        self.slot(commit_point);
        for (first, last) in above {
            self.slot(first);
            self.slot(last);
        }
        self.slot(log_start);
    }

    fn accept(&mut self, accept: &mut Accept) {
        let Accept {
            ballot,
            log: _,
            slot,
            value,
            vote,
            news,
            last_multi,
            infallible: _,
        } = accept;
        self.ballot(ballot);
        self.slot(slot);
        self.value(value);
        if let Some(tag) = vote {
            self.long(&mut tag.0);
        }
        self.news(news);
        self.slot(last_multi);
    }

    fn reported(&mut self, reported: &mut ReportedEntry) {
        let ReportedEntry {
            log: _,
            slot,
            ballot,
            value,
        } = reported;
        self.slot(slot);
        self.ballot(ballot);
        self.value(value);
    }

    fn value(&mut self, value: &mut Value) {
        match value {
            Value::Noop => {}
            Value::Commands(batch) => {
                let mut changed = Batch {
                    log_time_ms: batch.log_time_ms,
                    sessions_max: batch.sessions_max,
                    commands: batch.commands.clone(),
                    ..Batch::default()
                };
                self.long(&mut changed.log_time_ms);
                self.short(&mut changed.sessions_max);
                for Proposal {
                    origin: _,
                    request,
                    command,
                } in &mut changed.commands
                {
                    self.long(&mut request.0);
                    self.command(command);
                }
                *batch = Arc::new(changed);
            }
            Value::Config(change) => {
                let mut changed = ConfigChange::clone(change);
                self.change(&mut changed);
                *change = Arc::new(changed);
            }
        }
    }

    fn command(&mut self, command: &mut Command) {
        let Command {
            client,
            sequence,
            acked_below,
            opened_ms,
            op: _,
        } = command;
        for number in [client, sequence, acked_below, opened_ms] {
            self.long(number);
        }
    }

    fn change(&mut self, change: &mut ConfigChange) {
        let ConfigChange {
            ranges,
            keys,
            excluded,
            params,
        } = change;
        for defaults in ranges.iter_mut().filter_map(|it| it.defaults.as_mut()) {
            self.long(&mut defaults.0);
        }
        for (holders, _keys) in keys {
            self.long(&mut holders.0);
        }
        if let Some(excluded) = excluded {
            self.long(&mut excluded.0);
        }
        if let Some(params) = params {
            self.params(params);
        }
    }

    fn params(&mut self, params: &mut LeaseParams) {
        let LeaseParams {
            t_lease,
            t_guard,
            renew,
            t_grace,
            t0_cap,
            clock,
        } = params;
        for span in [t_lease, t_guard, renew, t_grace, t0_cap] {
            self.span(span);
        }
        self.short(&mut clock.rho_ppm);
    }

    fn lease(&mut self, message: &mut LeaseMessage) {
        match message {
            LeaseMessage::Guard { sequence } => self.long(sequence),
            LeaseMessage::GuardAck { sequence, known }
            | LeaseMessage::PromiseAck { sequence, known } => {
                self.long(sequence);
                self.long(&mut known.0);
            }
            LeaseMessage::Promise(promise) => {
                let Promise {
                    sequence,
                    base,
                    t0,
                    t_guard,
                    t_lease,
                    config,
                    highest_accepted,
                } = promise;
                for number in [sequence, base, &mut config.0] {
                    self.long(number);
                }
                for span in [t0, t_guard, t_lease] {
                    self.span(span);
                }
                self.slot(highest_accepted);
            }
            LeaseMessage::Relinquish { up_to } => self.long(up_to),
            LeaseMessage::Leave { recalls } => self.long(recalls),
        }
    }

    fn demand(&mut self, demand: &mut DemandReport) {
        let DemandReport { report, rtts_us } = demand;
        for delta in &mut report.deltas {
            self.short(&mut delta.reads);
            self.short(&mut delta.writes);
        }
        self.short(&mut report.rare_reads);
        self.short(&mut report.rare_writes);
        rtts_us.iter_mut().for_each(|rtt| self.short(rtt));
    }

    fn lease_set(&mut self, set: &mut LeaseSet) {
        let LeaseSet {
            strategies: _,
            durations,
            force: _,
        } = set;
        let Durations {
            t_lease,
            t_guard,
            renew,
            t_grace,
        } = durations;
        for span in [t_lease, t_guard, renew, t_grace].into_iter().flatten() {
            self.span(span);
        }
    }
}
