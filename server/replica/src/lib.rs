//! The replica: Multi-Paxos with read leases, as a state machine without I/O.
//!
//! # The call contract
//! - [`Replica::step`] takes one input. `now` is sampled *after* the input has arrived; with an
//!   earlier sample, a grant could be dated too early (protocol §0).
//! - [`Replica::flush`] follows the last step of a batch of inputs that shared a `now`. It does the
//!   work that is done once for each batch: it proposes commands, and sends votes, forwarded
//!   requests and reports of commits.
//! - [`Replica::next_deadline`] returns the time by which the next step with [`Input::Tick`] must
//!   be made.
//! - Actions are performed in order. The replica never waits and never reads a clock. All its
//!   random numbers come from the seed that it was given. So the same seed and inputs always give
//!   the same run.
//!
//! # The parts
//! Each part owns its state, and no other part changes it. A part is given what it needs and
//! returns what happened. Calls between parts never form a cycle.
//!
//! - `consensus`: ballots, roles, both logs, votes, commits, catching up.
//! - `leasing`: decides which replicas a vote must name, and whether and until when a key may be
//!   read.
//! - `machine`: the state that results from executing the log: keys, values and sessions.
//! - `origin`: writes and reads of clients that wait at this replica.
//! - `joining`: keeps out a replica that has lost its disk.
//! - `flow`: the steps from part to part that an event triggers.
//!
//! `sanity` checks the numbers in a peer's messages, and `parts` limits the size of one message.
//!
//! Every part is given a `Step`: the time, this node (`ctx`), and the places where its effects go
//! (`persist`, `timers`, `metrics`). `fingerprint` distinguishes states for the model checker.
//! `status` and `inspect` show states to operators and to oracles.

pub mod action;
pub mod advice;
pub mod codec;
pub mod cost;
pub mod input;
pub mod lease_set;
pub mod message;
pub mod round_robin;
pub mod settings;
pub mod shell;

mod compaction;
mod consensus;
mod context;
mod fingerprint;
mod flow;
mod handles;
mod inspect;
mod joining;
mod leasing;
mod machine;
mod metrics;
mod origin;
pub mod parts;
mod per_log;
mod persist;
pub mod sanity;
pub mod size_estimate;
mod start;
mod status;
mod step;
mod timers;
pub mod unavailable;

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{ConfigId, Configs, ReplicaId, Slot, Time};

pub use self::action::{Action, Event};
pub use self::consensus::committed;
pub use self::input::{Input, OperatorRequest};
pub use self::joining::witnesses;
pub use self::origin::placeholder;
pub use self::persist::BACKLOG_BYTES_MAX;
pub use self::settings::Settings;
pub use self::size_estimate::{changes_size_estimate, record_size_estimate};
pub use self::status::ShortTimeout;
pub use self::timers::DueTimers;

use self::context::ReplicaContext;
use self::flow::Parts;
use self::message::{Envelope, Message, PerLog};
use self::metrics::Metrics;
use self::persist::Persister;
use self::sanity::{SanityBaseline, is_sane, round_of};
use self::step::{RequestNames, Step};
use self::timers::Timers;

/// A replica: its parts, and the context that they share.
#[derive(Clone, Debug)]
pub struct Replica {
    ctx: ReplicaContext,
    parts: Parts,
    persister: Persister,
    timers: Timers,
    metrics: Metrics,
    requests: RequestNames,
}

impl Replica {
    /// Handles one input. Appends the resulting actions to `out`.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Action>) {
        if self.is_wiped() {
            return;
        }
        match input {
            Input::Peer(envelope) => self.on_peer(now, envelope, out),
            Input::StorageWritable(writable) => {
                if std::mem::replace(&mut self.ctx.writable, writable) != writable {
                    self.with(now, out, |parts, step| parts.on_writable(step));
                }
            }
            Input::ClockTrusted(trusted) => {
                // Hazard 80: readings of the clock are not believed while it is not trusted.
                if self.ctx.clock_trusted != trusted && !off(Rule::H80Slew) {
                    self.ctx.clock_trusted = trusted;
                    self.with(now, out, |parts, step| parts.on_clock_trusted(step));
                }
            }
            input => self.with(now, out, |parts, step| parts.on_input(step, input)),
        }
        self.with(now, out, Parts::tick);
    }

    /// Ends a group of inputs that were handled at the same time `now`.
    pub fn flush(&mut self, now: Time, out: &mut Vec<Action>) {
        if !self.is_wiped() {
            self.with(now, out, Parts::flush);
        }
    }

    /// Returns the time by which the next step with [`Input::Tick`] must be made.
    pub fn next_deadline(&self) -> Time {
        self.timers.next()
    }

    /// Returns the timers that are due at `now`.
    pub fn due(&self, now: Time) -> DueTimers {
        self.timers.all_due(now)
    }

    /// Handles a message of another member. Messages from any other sender are refused, and so are
    /// messages with implausible numbers. A message from a later run of the sender shows that the
    /// sender has restarted and has forgotten the promises of its earlier run.
    fn on_peer(&mut self, now: Time, envelope: Envelope, out: &mut Vec<Action>) {
        let (from, incarnation) = (envelope.from, envelope.from_incarnation);
        if !self.ctx.is_other(from) {
            self.metrics.refused_messages += 1;
            return;
        }
        if !is_sane(&self.sanity_baseline(from), &envelope) {
            return self.refuse(&envelope.message);
        }
        let contact = self.ctx.note_contact(now, from, incarnation);
        if contact.is_later_run {
            self.with(now, out, |parts, step| {
                parts.peer_restarted(step, from, incarnation)
            });
        }
        if contact.interrupted.is_some() {
            self.with(now, out, |parts, step| {
                parts.peer_interrupted(step, from, contact)
            });
        }
        let current = self.ctx.is_current(&envelope);
        match envelope.message {
            Message::Pong { stamp } => {
                if current {
                    self.ctx.note_rtt(now, from, stamp);
                }
            }
            Message::Ping { cost_ms, .. } => {
                self.ctx.note_cost(from, cost_ms);
                self.with(now, out, |parts, step| {
                    parts.on_peer(step, envelope, current)
                })
            }
            _ => self.with(now, out, |parts, step| {
                parts.on_peer(step, envelope, current)
            }),
        }
    }

    fn sanity_baseline(&self, from: ReplicaId) -> SanityBaseline {
        let consensus = &self.parts.consensus;
        SanityBaseline {
            round: consensus.round_seen(),
            incarnation: self.ctx.incarnation_of(from),
            slots: PerLog::of(|log| consensus.log(log).highest()),
            log_time_ms: self.parts.machine.log_time_ms(),
        }
    }

    /// Refuses a message, because its numbers are too far above the numbers that this replica
    /// knows. This replica ignores the content of the message, but the round of the message may
    /// raise the highest round seen here.
    fn refuse(&mut self, message: &Message) {
        self.metrics.refused_messages += 1;
        if let Some(round) = round_of(message) {
            self.parts.consensus.note_refused_round(round);
        }
    }

    /// Calls `flow` with the parts and with the context of one step.
    fn with(
        &mut self,
        now: Time,
        out: &mut Vec<Action>,
        flow: impl FnOnce(&mut Parts, &mut Step<'_>),
    ) {
        let mut step = Step {
            now,
            ctx: &self.ctx,
            out,
            persister: &mut self.persister,
            timers: &mut self.timers,
            metrics: &mut self.metrics,
            requests: &mut self.requests,
        };
        flow(&mut self.parts, &mut step);
    }

    /// Wraps a message to `to` with the incarnations of both replicas.
    pub fn envelope(&self, to: ReplicaId, message: Message) -> Envelope {
        self.ctx.envelope(to, message)
    }

    /// Returns the present leader, as far as this replica knows. Returns `None` if no leader is
    /// known.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.parts.consensus.leader()
    }

    /// Returns the last slot of the log of commands that is executed here.
    pub fn executed(&self) -> Slot {
        self.parts.consensus.commands().executed()
    }

    /// Returns the newest configuration known here.
    pub fn configuration(&self) -> ConfigId {
        self.configs().newest()
    }

    /// Returns the lease configurations known here.
    pub fn configs(&self) -> &Configs {
        self.parts.leasing.configs()
    }

    /// Whether this replica's disk was wiped after the replica had joined the cluster. A wiped
    /// replica never sends a message again.
    pub fn is_wiped(&self) -> bool {
        self.parts.joining.is_wiped()
    }

    /// Whether this replica has joined the cluster, because enough other replicas know its data
    /// directory.
    pub fn has_joined(&self) -> bool {
        self.parts.joining.has_joined()
    }

    /// Returns a digest of the replicated keys and values.
    pub fn digest(&self) -> u64 {
        self.parts.machine.kv().digest()
    }

    /// Checks invariants within the parts and between them. A check takes about a tenth of the time
    /// of a step. The simulator and the model checker run it after each step.
    ///
    /// # Panics
    /// If an invariant is broken.
    pub fn check(&self) {
        self.parts.check();
        self.timers.check();
    }
}
