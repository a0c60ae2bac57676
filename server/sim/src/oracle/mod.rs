//! Oracles: checks that judge every step with full knowledge of the world, including true time.
//! Each file checks one property. Its description names the rule that requires the property, and
//! the source of the rule.
//!
//! Wherever possible, an oracle derives its judgement from the *actions* of replicas (messages,
//! promises, entries), and does not rely on the code that it judges.

mod agreement;
mod barriers;
mod chosen;
mod configurations;
mod confirmed;
mod containment;
mod elections;
mod frames;
mod freshness;
mod histories;
mod liveness;
mod notified;
mod old_leader;
mod order;
mod pending;
mod progress;
mod promises;
mod quorums;
mod reference;
mod refusals;
mod restart_wait;
mod sessions;
mod snapshot;
#[cfg(test)]
mod test_world;
mod unsent;
mod unwritable;

use leasehold_leases::{Key, ReplicaId, Slot};
use leasehold_wire::command::Op;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{Command, TxnOp};
use smallvec::SmallVec;

pub use agreement::AgreementOracle;
pub use barriers::BarrierOracle;
pub use configurations::ConfigurationOracle;
pub use confirmed::ConfirmationOracle;
pub use containment::ContainmentOracle;
pub use elections::ElectionOracle;
pub use frames::FrameOracle;
pub use freshness::FreshnessOracle;
pub use histories::HistoryOracle;
pub use liveness::LivenessOracle;
pub use notified::NotificationOracle;
pub use old_leader::OldLeaderOracle;
pub use order::OrderOracle;
pub use pending::PendingOracle;
pub use quorums::QuorumOracle;
pub use refusals::RefusalOracle;
pub use restart_wait::RestartWaitOracle;
pub use sessions::SessionOracle;
pub use snapshot::WorldSnapshot;
pub use unsent::UnsentOracle;
pub use unwritable::UnwritableOracle;

use self::chosen::ChosenValues;
use self::progress::{Progress, Stage};
use self::promises::Promises;
use self::snapshot::{Entry, StepContext, Vote};
use super::world::WorldSettings;
use leasehold_replica::Replica;
use leasehold_replica::action::{Action, ClientHandle, Event, Record};
use leasehold_replica::input::{FencedRead, ReadFrom};
use leasehold_replica::message::{LogId, Message, Value};
use leasehold_replica::shell::FencedReply;
use leasehold_replica::unavailable::{is_client_disconnected, is_sent_again, is_unsent};

/// Violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the oracle that saw the violation.
    pub oracle: &'static str,
    /// Description of the violation.
    pub what: String,
}

/// Verdict of an oracle.
pub(crate) type Verdict = Result<(), Violation>;

/// Returns a [`Violation`] as an error from the enclosing function, unless a condition holds.
macro_rules! ensure {
    ($oracle:expr, $holds:expr, $($what:tt)*) => {
        if !$holds {
            return Err($crate::oracle::violated($oracle, format_args!($($what)*)));
        }
    };
}
use ensure;

/// Creates a violation. This is a separate function, so that the checks of every step do not
/// contain code that rarely runs.
#[cold]
#[inline(never)]
fn violated(oracle: &'static str, what: std::fmt::Arguments<'_>) -> Violation {
    let what = what.to_string();
    Violation { oracle, what }
}

/// All oracles. The first violation ends a run, because the behavior of a world after a violation
/// is meaningless.
#[derive(Debug)]
pub struct Oracles {
    progress: Progress,
    chosen: ChosenValues,
    promises: Promises,
    containment: ContainmentOracle,
    notified: NotificationOracle,
    quorums: QuorumOracle,
    barriers: BarrierOracle,
    restart_wait: RestartWaitOracle,
    old_leader: OldLeaderOracle,
    pending: PendingOracle,
    order: OrderOracle,
    unwritable: UnwritableOracle,
    confirmed: ConfirmationOracle,
    /// Oracle of elections, which must be notified if a clock violates the assumptions about
    /// clocks.
    pub elections: ElectionOracle,
    configurations: ConfigurationOracle,
    agreement: AgreementOracle,
    sessions: SessionOracle,
    /// Oracle of frames, which is called for every message in runs with encoded messages.
    pub frames: FrameOracle,
    refusals: RefusalOracle,
    /// Oracle of unsent writes. This oracle also counts the merges that waited at the replica that
    /// received them, and the outcomes of these waits.
    pub unsent: UnsentOracle,
    /// Oracle of freshness. The driver of the clients notifies it of every request and answer.
    pub freshness: FreshnessOracle,
    /// Oracle of liveness. The driver of the clients notifies it of every request and answer, and
    /// of the moment at which all faults are healed.
    pub liveness: LivenessOracle,
    /// Oracle of histories, which is called at the end of a run with the history of the clients.
    pub histories: HistoryOracle,
}

impl Oracles {
    /// Creates the oracles for a world with these settings.
    pub(super) fn new(settings: &WorldSettings) -> Oracles {
        let n = settings.replica.n;
        Oracles {
            progress: Progress::new(n),
            chosen: ChosenValues::default(),
            promises: Promises::new(n),
            containment: ContainmentOracle::new(n),
            notified: NotificationOracle::default(),
            quorums: QuorumOracle::new(n),
            barriers: BarrierOracle::new(n),
            restart_wait: RestartWaitOracle::new(n),
            old_leader: OldLeaderOracle::new(n),
            pending: PendingOracle::default(),
            order: OrderOracle::default(),
            unwritable: UnwritableOracle::default(),
            confirmed: ConfirmationOracle::new(n),
            elections: ElectionOracle::new(n, settings.replica.timing.election_timeout),
            configurations: ConfigurationOracle::new(n),
            agreement: AgreementOracle::default(),
            sessions: SessionOracle::new(n, &settings.replica.sessions),
            frames: FrameOracle::default(),
            refusals: RefusalOracle::new(n),
            unsent: UnsentOracle::new(n),
            freshness: FreshnessOracle::default(),
            liveness: LivenessOracle::default(),
            histories: HistoryOracle::default(),
        }
    }

    /// Judges a replica that has just started from the state on its disk.
    pub(super) fn started(&mut self, snapshot: &WorldSnapshot<'_>, node: usize) -> Verdict {
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        self.progress.started(node, replica);
        self.promises.started(node);
        let disk = snapshot.node(node).disk();
        self.barriers.started(node, replica.executed(), disk);
        self.pending.started(node, replica)?;
        self.configurations.compare(snapshot, node)?;
        self.containment.stepped(snapshot, node)?;
        self.restart_wait.started(snapshot, node)
    }

    /// Records that a replica is about to end.
    pub(super) fn crashed(&mut self, node: usize) {
        self.sessions.crashed(node);
        self.refusals.crashed(node);
        self.unsent.crashed(node);
        self.confirmed.crashed(node);
        self.elections.crashed(node);
    }

    /// Records a client's command that has reached `node`.
    pub(super) fn requested(
        &mut self,
        now_ns: u64,
        node: usize,
        from: ClientHandle,
        command: &Command,
    ) {
        self.sessions.requested(node, from, command);
        self.refusals.requested(node, from, command);
        self.confirmed.requested(node, from, command);
        self.unsent.requested(now_ns, node, from, command);
    }

    /// Records that a client's connection to `node` has ended. The replica `node` does not know
    /// this yet.
    pub(super) fn hung_up(&mut self, node: usize, connection: u64) {
        self.unsent.hung_up(node, connection);
    }

    /// Judges a step of `node`, and the actions that `node` is about to perform. `leases` is true
    /// if any input of the step concerned leases.
    pub(super) fn stepped(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        node: usize,
        actions: &[Action],
        leases: bool,
    ) -> Verdict {
        let Some(replica) = snapshot.replica(node) else {
            return Ok(());
        };
        self.barriers.step_begins(node, actions);
        self.quorums.judge_again();
        for (index, action) in actions.iter().enumerate() {
            let rest = &actions[index + 1..];
            self.acts(
                StepContext {
                    snapshot,
                    node,
                    rest,
                },
                action,
            )?;
        }
        let rest = actions;
        self.learns(
            StepContext {
                snapshot,
                node,
                rest,
            },
            replica,
        )?;
        for action in actions {
            self.pending.persists(node, replica, action)?;
            self.order.answers(snapshot, &self.chosen, node, action)?;
            if let Action::Reply { to, outcome, .. } = action {
                if is_sent_again(outcome) || is_client_disconnected(outcome) || is_unsent(outcome) {
                    self.sessions.forget_request(node, *to);
                    continue;
                }
                let executed = replica.executed();
                self.refusals.replied(node, executed, *to, outcome)?;
                self.sessions.replied(&self.chosen, node, *to, outcome)?;
            }
        }
        self.unsent.step_ends(node, replica);
        self.sessions.step_ends(node, replica.executed());
        self.barriers.step_ends(snapshot, node, actions);
        self.quorums.step_ends(StepContext {
            snapshot,
            node,
            rest: actions,
        })?;
        self.agreement.stepped(node, replica)?;
        self.unwritable.stepped(snapshot, node, replica)?;
        // Promises and grants change only when messages about leases are received or sent.
        if leases || actions.iter().any(is_about_leases) {
            self.containment.stepped(snapshot, node)?;
        }
        Ok(())
    }

    /// Judges an action that a replica is about to perform. `ctx` contains the actions that follow
    /// in the same step.
    fn acts(&mut self, ctx: StepContext<'_>, action: &Action) -> Verdict {
        let StepContext { snapshot, node, .. } = ctx;
        match action {
            Action::Send { to, envelope } => {
                let now_ns = snapshot.now_ns;
                self.elections.sent(now_ns, node, to.index(), envelope);
                self.promises.sent(snapshot, node, *to, envelope)?;
                self.configurations.sent(node, *to, envelope)?;
                self.confirmed.sent(node, *to, envelope)?;
                self.unsent.sent(node, envelope)?;
                self.barriers.sent(node, *to, envelope)?;
                self.restart_wait.sent(ctx, &self.promises, envelope)?;
                self.quorums.sent(ctx, envelope)
            }
            Action::FencedReply { until, again, .. } => {
                self.barriers.read(ctx, &self.promises, *until, again)
            }
            Action::Reply { to, path, outcome } => {
                self.unsent.replied(node, *to, outcome)?;
                self.confirmed.replied(node, *to, *path)
            }
            Action::Persist { records, .. } => {
                self.quorums.judge_again();
                let (wait, promises) = (&mut self.restart_wait, &self.promises);
                let mut records = records.iter();
                records.try_for_each(|record| wait.records(snapshot, promises, node, record))
            }
            Action::Event(Event::Campaigning(_)) => self.elections.campaigns(snapshot, node),
            Action::Event(Event::Leading(ballot)) => {
                self.old_leader.leads(node, *ballot);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Judges the slots that a replica has committed and executed in a step, before any action of
    /// the step is performed.
    fn learns(&mut self, ctx: StepContext<'_>, replica: &Replica) -> Verdict {
        let StepContext { snapshot, node, .. } = ctx;
        let (mut first, mut configured) = (false, false);
        for (log, slot, stage) in self.progress.news(node, replica) {
            let Some(value) = replica.entry(log, slot) else {
                // The slot was executed and forgotten in one step, after other replicas had
                // committed it. A run has too few values for this to happen to the first replica
                // that commits a slot.
                assert!(
                    self.chosen.value(log, slot).is_some(),
                    "a chosen value is seen before it is forgotten"
                );
                continue;
            };
            let entry = Entry { log, slot, value };
            let new = stage == Stage::Committed && self.chosen.committed(log, slot, value);
            self.agreement.learns(&self.chosen, node, stage, entry)?;
            self.pending.learns(node, replica, entry)?;
            if new {
                first = true;
                self.quorums.chosen(ctx, entry)?;
                self.notified.chosen(snapshot, entry)?;
                self.old_leader.chosen(snapshot, &self.promises, entry)?;
            }
            match (stage, log) {
                (Stage::Executed, LogId::Configs) => configured = true,
                (Stage::Executed, LogId::Commands) => {
                    self.refusals.executed(replica, slot, value)?
                }
                _ => {}
            }
        }
        if first {
            self.sessions.advance(&self.chosen)?;
            self.configurations.advance(&self.chosen);
        }
        if configured {
            self.configurations.compare(snapshot, node)?;
        }
        Ok(())
    }

    /// Judges a read that `node` has made under leases and is about to answer.
    pub(super) fn read(
        &mut self,
        snapshot: &WorldSnapshot<'_>,
        node: usize,
        read: &FencedReply,
    ) -> Verdict {
        if let (ReadFrom::Client(to), FencedRead::Command(_)) = (read.to, &read.again) {
            self.sessions.forget_request(node, to);
        }
        self.confirmed.forget_request(node, read.to);
        self.notified.read(snapshot, &self.chosen, node, read)
    }

    /// Returns the number of checks that each oracle made. An oracle with no checks has judged
    /// nothing.
    pub fn checks(&self) -> Vec<(&'static str, u64)> {
        vec![
            (containment::NAME, self.containment.checks),
            (notified::NAME, self.notified.checks),
            (quorums::NAME, self.quorums.checks),
            (barriers::NAME, self.barriers.checks),
            (freshness::NAME, self.freshness.checks),
            (frames::NAME, self.frames.checks),
            (restart_wait::NAME, self.restart_wait.checks),
            (old_leader::NAME, self.old_leader.checks),
            (pending::NAME, self.pending.checks),
            (order::NAME, self.order.checks),
            (unwritable::NAME, self.unwritable.checks),
            (confirmed::NAME, self.confirmed.checks),
            (elections::NAME, self.elections.checks),
            (configurations::NAME, self.configurations.checks),
            (agreement::NAME, self.agreement.checks),
            (liveness::NAME, self.liveness.checks),
            (sessions::NAME, self.sessions.checks),
            (refusals::NAME, self.refusals.checks),
            (unsent::NAME, self.unsent.checks),
            (histories::NAME, self.histories.checks),
        ]
    }
}

fn is_about_leases(action: &Action) -> bool {
    matches!(action, Action::Send { envelope, .. } if matches!(envelope.message, Message::Lease(_)))
}

/// Identifier of a write: (client, sequence number).
type WriteId = (u64, u64);

/// Returns the identifier by which messages name `node`.
fn id(node: usize) -> ReplicaId {
    ReplicaId(node as u8)
}

/// Whether a replica has executed `slot`, or has `value` pending in the slot.
fn knows(replica: &Replica, slot: Slot, value: &Value) -> bool {
    let pending = replica.entry(LogId::Commands, slot);
    replica.executed() >= slot || pending.is_some_and(|pending| pending == value)
}

/// Whether the rest of a step replaces or erases the entry that is accepted in `slot`. If so,
/// earlier messages of the step are about another entry than the one that is in the slot after the
/// step.
fn rewritten(rest: &[Action], log: LogId, slot: Slot) -> bool {
    records(rest).any(|record| match record {
        Record::Accepted {
            log: l, slot: s, ..
        }
        | Record::Erased { log: l, slot: s } => (*l, *s) == (log, slot),
        _ => false,
    })
}

/// Returns the records that the actions write to disk.
fn records(actions: &[Action]) -> impl Iterator<Item = &Record> {
    actions.iter().flat_map(|action| match action {
        Action::Persist { records, .. } => records.as_slice(),
        _ => &[],
    })
}

/// Returns the keys that a value writes or may write. A key that is written several times is
/// returned several times.
fn writes(value: &Value) -> impl Iterator<Item = &Key> {
    let writes = value.commands().iter().filter(|p| p.command.is_write());
    writes.flat_map(|proposed| written(&proposed.command))
}

/// Returns the keys that a write writes or may write. Each list of a transaction may be executed.
fn written(command: &Command) -> SmallVec<[&Key; 4]> {
    let Some(Op::Txn(txn)) = &command.op else {
        return command.keys().collect();
    };
    let lists = txn.then.iter().chain(&txn.or_else);
    lists.filter_map(written_by_one).collect()
}

/// Returns the key that an operation of a transaction writes, if there is one.
fn written_by_one(listed: &TxnOp) -> Option<&Key> {
    match listed.op.as_ref()? {
        Listed::Get(_) => None,
        Listed::Put(op) => Some(&op.key),
        Listed::Delete(op) => Some(&op.key),
        Listed::PutFields(op) => Some(&op.key),
        Listed::DeleteFields(op) => Some(&op.key),
        Listed::Add(op) => Some(&op.key),
        Listed::Append(op) => Some(&op.key),
    }
}

/// Returns the keys that a read names. A scan names no keys, because it may read any key.
fn keys_read(again: &FencedRead) -> SmallVec<[&Key; 4]> {
    match again {
        FencedRead::Key(key) => SmallVec::from_slice(&[key]),
        FencedRead::Command(command) => command.keys().collect(),
    }
}
