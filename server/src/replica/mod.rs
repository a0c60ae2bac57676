//! The replica: Multi-Paxos with read leases, as a state machine without I/O.
//!
//! # The call contract
//! - [`Replica::step`] takes one input. `now` is sampled *after* the input had
//!   arrived (a `now` from before could date a grant into the past, protocol §0).
//! - [`Replica::flush`] follows the last step of a group of inputs that shared a
//!   `now`, and does the work that is done once a group: it proposes batches and
//!   sends votes, forwards and news of commits.
//! - [`Replica::next_deadline`] says when to step with [`Input::Tick`] at the latest.
//! - Actions are performed in order. Nothing here waits, reads a clock or draws
//!   chance that was not handed in, so one seed gives one run.
//!
//! # The rooms
//! The roles of Paxos: `election` (Phase 1), `proposer` and `acceptor` (Phase 2),
//! `learner` (commit, execute, answer), with the rule itself in `commit`.
//! `reader` serves reads, `leasing` joins the lease engine, `catchup` fetches what
//! was missed, `heartbeat` says who leads, `timers` what is due, and `joining` keeps
//! out who has lost its disk. `plausible` says which numbers of a peer are believed,
//! `parts` how much goes into one message. `fingerprint` tells states apart for the model checker.

pub mod action;
pub mod input;
pub mod message;
pub mod settings;

mod acceptor;
mod catchup;
mod commit;
mod election;
mod fingerprint;
mod heartbeat;
mod joining;
mod kv;
mod learner;
mod leasing;
mod log;
mod marks;
pub(crate) mod parts;
mod persist;
pub mod plausible;
mod proposer;
mod ranges;
mod read_index;
mod reader;
mod recovery;
mod session;
mod status;
mod timers;

use std::time::Duration;

use leases::demand::{Demand, Tally};
use leases::mutants::{Rule, off};
use leases::{
    Ballot, ConfigId, Configs, Grantor, Holder, Incarnation, ReplicaId, ReplicaSet, Slot, Time,
    majority,
};
use rand_pcg::Pcg64Mcg;

pub use self::action::{Action, Event};
pub use self::commit::committed;
pub use self::input::{Input, Operator};
pub use self::joining::witnesses;
pub use self::settings::Settings;

use self::election::Candidacy;
use self::joining::Joining;
use self::kv::Kv;
use self::learner::Pending;
use self::leasing::Suspicions;
use self::log::Log;
use self::marks::Marks;
use self::message::{Envelope, LogId, Message, RequestId};
use self::persist::Persister;
use self::plausible::{Known, nearer, plausible, round_of};
use self::proposer::Leadership;
use self::reader::Reader;
use self::status::Counters;
use self::timers::{Timer, Timers};

/// What this replica does about leadership.
#[derive(Clone, Debug, Hash)]
enum Role {
    Follower,
    Candidate(Candidacy),
    Leader(Box<Leadership>),
}

/// What is known of another replica.
#[derive(Clone, Debug, Default)]
struct Peer {
    incarnation: Incarnation,
    /// Smoothed round trip; `None` until measured.
    rtt: Option<Duration>,
    /// When anything last came from it, or this run began.
    heard: Time,
}

/// A name for the next attempt: runs share none, or an answer to an earlier one
/// could be taken for an answer to this one (hazard 37).
fn name_request(incarnation: Incarnation, last: &mut u64) -> RequestId {
    *last += 1;
    let run = match off(Rule::H37Life) {
        true => 0,
        false => incarnation.0,
    };
    RequestId(run << 40 | *last)
}

/// One replica.
#[derive(Clone, Debug)]
pub struct Replica {
    settings: Settings,
    incarnation: Incarnation,
    /// Grants that an earlier run made may be alive until then (§3.7).
    restart_wait_until: Time,
    joining: Joining,
    rng: Pcg64Mcg,
    peers: Vec<Peer>,
    role: Role,
    /// Nothing is accepted below this ballot.
    promised: Ballot,
    /// The highest round seen anywhere.
    round_seen: u64,
    /// The ballot whose leader was last heard of; its round is 0 if nobody leads.
    leader: Ballot,
    logs: [Log; 2],
    marks: Marks,
    kv: Kv,
    persister: Persister,
    votes_due: Vec<acceptor::Vote>,
    /// By [`LogId::index`].
    fetching: [Option<catchup::Fetching>; 2],
    pending: Pending,
    reader: Reader,
    configs: Configs,
    grantor: Grantor,
    holder: Holder,
    suspicions: Suspicions,
    /// Since when this replica's configuration log lags the leader's.
    config_lag_since: Option<Time>,
    tally: Tally,
    demand: Demand,
    timers: Timers,
    storage_writable: bool,
    clock_trusted: bool,
    /// Whether any configuration was ever put in force; replicated, as it follows
    /// from the log.
    configured: bool,
    next_request: u64,
    /// Numbers this run's answers in Phase 1.
    last_answer: u64,
    counters: Counters,
}

impl Replica {
    fn me(&self) -> ReplicaId {
        self.settings.me
    }

    fn majority(&self) -> usize {
        majority(self.settings.n)
    }

    fn others(&self) -> impl Iterator<Item = ReplicaId> + use<> {
        let me = self.me();
        (0..self.settings.n as u8)
            .map(ReplicaId)
            .filter(move |replica| *replica != me)
    }

    fn log(&mut self, log: LogId) -> &mut Log {
        &mut self.logs[log.index()]
    }

    fn commands(&self) -> &Log {
        &self.logs[LogId::Commands.index()]
    }

    /// Takes one input.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Action>) {
        if self.is_wiped() {
            return;
        }
        match input {
            Input::Client { from, command } => self.on_client(now, from, command, out),
            Input::FenceMissed { from, again } => self.on_fence_missed(now, from, again, out),
            Input::Peer(envelope) => self.on_peer(now, envelope, out),
            Input::Persisted(sequence) => self.on_persisted(now, sequence, out),
            Input::LogRead { log, to, entries } => self.on_log_read(log, to, entries, out),
            Input::StorageWritable(writable) => self.on_storage_writable(now, writable, out),
            Input::ClockTrusted(trusted) => self.on_clock_trusted(now, trusted, out),
            Input::Operator(operator) => self.on_operator(now, operator),
            Input::Tick => {}
        }
        self.tick(now, out);
    }

    /// Ends a group of inputs that shared `now`.
    pub fn flush(&mut self, now: Time, out: &mut Vec<Action>) {
        if self.is_wiped() {
            return;
        }
        self.flush_votes(now, out);
        self.propose_batches(now);
        self.flush_forwards(now, out);
        self.flush_read_index(out);
        self.flush_commit_news(out);
        self.flush_reads(out);
        let executed = [self.logs[0].executed, self.logs[1].executed];
        self.persister.flush(executed, out);
    }

    fn on_peer(&mut self, now: Time, envelope: Envelope, out: &mut Vec<Action>) {
        let Envelope {
            from,
            from_incarnation,
            to_incarnation,
            ..
        } = envelope;
        if from.index() >= self.settings.n || from == self.me() {
            self.counters.refused_messages += 1;
            return;
        }
        if !plausible(&self.known_of(from), &envelope) {
            return self.refuse(&envelope.message);
        }
        let Envelope { message, .. } = envelope;
        self.meet(now, from, from_incarnation);
        // §0: both incarnations must be current for leases and forwarded
        // requests, and for what is fetched; an acceptance of an earlier run stays
        // valid, with its tag.
        let current = from_incarnation == self.peers[from.index()].incarnation
            && to_incarnation == self.incarnation
            || off(Rule::H16OldPromise)
            || off(Rule::H37Life);
        if !self.has_joined() {
            return self.on_peer_before_joining(now, from, current, message, out);
        }
        match message {
            Message::Ping { stamp } => self.send(from, Message::Pong { stamp }, out),
            Message::Pong { stamp } => {
                if current {
                    self.on_pong(now, from, stamp);
                }
            }
            Message::Join { life } => self.on_join(from, life),
            Message::Joined { life } => self.on_joined(from, life, out),
            Message::Prepare { ballot, commits } => {
                self.on_prepare(now, from, ballot, commits, out)
            }
            Message::Prepared { .. } => self.on_prepared(now, from, from_incarnation, message, out),
            Message::Accept(accept) => self.on_accept(now, from, accept, out),
            Message::Accepted { ballot, log, votes } => {
                self.on_accepted(now, from, ballot, log, &votes, out)
            }
            Message::Rejected { promised } => self.on_rejected(now, promised, out),
            Message::Heartbeat {
                ballot,
                probe,
                logs,
            } => self.on_heartbeat(now, from, ballot, probe, &logs, out),
            Message::HeartbeatAck {
                ballot,
                probe,
                suspects,
            } => self.on_heartbeat_ack(now, from, ballot, probe, suspects, out),
            Message::TransferRequest => self.on_transfer_request(now, from),
            Message::Transfer { ballot } => self.on_transfer(now, from, ballot, out),
            _ if !current => self.counters.stale_incarnation += 1,
            // What an earlier run asked for may be of a ballot that it had heard of, and
            // this one has forgotten: it would be stored at a lower one (`on_fetched`).
            Message::Fetch {
                log,
                from: first,
                to,
            } => self.on_fetch(from, log, first, to, out),
            Message::Fetched { log, entries } => self.on_fetched(now, from, log, entries, out),
            Message::Forward { commands } => self.on_forward(now, from, commands, out),
            Message::Answered { answers } => self.on_answered(answers, out),
            Message::ForwardRead { read_index, reads } => {
                self.on_forward_read(now, from, read_index, reads, out)
            }
            Message::ReadAnswers(answers) => self.on_read_answers(now, from, answers, out),
            Message::Lease(message) => self.on_lease(now, from, &message, out),
            Message::Demand(deltas) => {
                for delta in deltas {
                    self.demand.add(&delta.key, from, delta.reads, delta.writes);
                }
            }
        }
    }

    fn known_of(&self, from: ReplicaId) -> Known {
        Known {
            round: self.round_seen.max(self.promised.round),
            incarnation: self.peers[from.index()].incarnation,
            slots: [self.logs[0].highest, self.logs[1].highest],
            log_time_ms: self.kv.log_time_ms,
        }
    }

    /// Nothing that a message says is believed, for its numbers leap too far.
    fn refuse(&mut self, message: &Message) {
        self.counters.refused_messages += 1;
        if let Some(round) = round_of(message) {
            self.round_seen = nearer(self.round_seen, round);
        }
    }

    /// A message of this run of a peer came: a later run than the one known has
    /// forgotten its promises, and honours none made to the earlier one.
    fn meet(&mut self, now: Time, from: ReplicaId, incarnation: Incarnation) {
        let peer = &mut self.peers[from.index()];
        peer.heard = now;
        if incarnation > peer.incarnation {
            peer.incarnation = incarnation;
            self.grantor.met(now, from, incarnation);
            self.holder.met(from, incarnation);
            self.timers.set(Timer::Lease, now);
        }
    }

    fn on_operator(&mut self, now: Time, operator: Operator) {
        let grace = self.configs.params(self.configs.newest()).t_grace;
        let known = |to: ReplicaId| to.index() < self.settings.n && to != self.settings.me;
        let Role::Leader(leadership) = &mut self.role else {
            return;
        };
        match operator {
            Operator::Transfer(to) if known(to) && leadership.transfer.is_none() => {
                leadership.transfer = Some((to, now + grace));
            }
            Operator::Transfer(_) => {}
            Operator::Switch(spec, params) if params.check().is_ok() => {
                leadership.switch = Some((spec, params));
                self.timers.set(Timer::Reconfigure, now);
            }
            Operator::Switch(..) => {}
        }
    }

    fn on_pong(&mut self, now: Time, from: ReplicaId, stamp: u64) {
        let sample = now.since(Time(stamp));
        let peer = &mut self.peers[from.index()];
        peer.rtt = Some(peer.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
    }

    fn send(&self, to: ReplicaId, message: Message, out: &mut Vec<Action>) {
        debug_assert_ne!(to, self.me());
        out.push(Action::Send {
            to,
            envelope: self.envelope(to, message),
        });
    }

    /// A message to `to`, with both incarnations.
    pub fn envelope(&self, to: ReplicaId, message: Message) -> Envelope {
        Envelope {
            from: self.me(),
            from_incarnation: self.incarnation,
            to_incarnation: self.peers[to.index()].incarnation,
            message,
        }
    }

    fn broadcast(&self, message: &Message, out: &mut Vec<Action>) {
        for to in self.others() {
            self.send(to, message.clone(), out);
        }
    }

    /// A name for an attempt, never used before by any run of this replica.
    fn new_request(&mut self) -> RequestId {
        name_request(self.incarnation, &mut self.next_request)
    }

    /// Who leads, as far as this replica knows.
    pub fn leader(&self) -> Option<ReplicaId> {
        (self.leader.round > 0).then_some(self.leader.replica)
    }

    /// Whether this replica leads and its opening no-op has committed.
    fn leads(&self) -> Option<&Leadership> {
        match &self.role {
            Role::Leader(leadership) => Some(leadership),
            _ => None,
        }
    }

    /// Commands executed here.
    pub fn executed(&self) -> Slot {
        self.commands().executed
    }

    /// The newest configuration known here.
    pub fn configuration(&self) -> ConfigId {
        self.configs.newest()
    }

    /// The lease configurations known here.
    pub fn configs(&self) -> &Configs {
        &self.configs
    }

    /// Replicas suspected here.
    fn suspects(&self) -> ReplicaSet {
        self.grantor.suspects()
    }

    /// A digest of the replicated state.
    pub fn digest(&self) -> u64 {
        self.kv.digest()
    }
}
