//! Reads of one key (protocol §3). If this replica has a lease, it serves the read itself, if
//! necessary after writes in flight. Otherwise the read is forwarded to the nearest holder, or the
//! leader serves it after a confirmation (`read_index`).

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use leasehold_leases::hashing::SeededState;
use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Key, Permit, ReplicaId, Slot};
use leasehold_wire::{Outcome, Path};

use super::answers::{ReadAnswers, ReadRequest};
use super::disconnected::{DisconnectedClients, reply_disconnected};
use super::forwarded_reads::{ForwardedReads, Target, UnroutedRead};
use super::read_index::ReadIndex;
use super::view::View;
use crate::action::Action;
use crate::handles::{ClientHandle, FencedRead, ReadFrom};
use crate::message::{ReadAnswer, RequestId};
use crate::step::Step;

/// A read that has a valid permit, but waits for slots that write its key (`Path::Held`).
#[derive(Clone, Debug, Hash)]
struct BlockedRead {
    from: ReadFrom,
    /// Newest slot that had a mark on the key when the permit was found.
    wait: Slot,
}

/// Reads of one key that wait at this replica.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    blocked: HashMap<Key, Vec<BlockedRead>, SeededState>,
    /// Keys that were just written by an executed slot, and that have blocked reads.
    touched: Vec<Key>,
    forwarded: ForwardedReads,
    read_index: ReadIndex,
    answers: ReadAnswers,
}

impl Hash for Reads {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leasehold_leases::fingerprint::unordered(&self.blocked, state);
        (&self.touched, &self.forwarded).hash(state);
        (&self.read_index, &self.answers).hash(state);
    }
}

impl Reads {
    /// Number of reads that wait here.
    pub fn len(&self) -> usize {
        let blocked: usize = self.blocked.values().map(Vec::len).sum();
        blocked + self.forwarded.len() + self.read_index.len()
    }

    /// Serves a read of one key as locally as possible.
    pub fn read(&mut self, step: &mut Step<'_>, view: View<'_>, read: ReadRequest) {
        match view.permit(step.now, &read.key) {
            Ok(permit) => self.read_permitted(step, view, read, permit),
            Err(reason) => {
                step.metrics.count_fallback(reason);
                self.read_elsewhere(step, view, read);
            }
        }
    }

    /// Serves a read under `permit`. The read waits only for those writes of its key that were
    /// accepted here before the read began.
    fn read_permitted(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        read: ReadRequest,
        permit: Permit,
    ) {
        // Hazard 10: a leader waits for its own writes, like any holder.
        let marked = view
            .newest_mark(&read.key)
            .filter(|_| !view.consensus.leads() || !off(Rule::H10LeaderMarks));
        let Some(newest) = marked else {
            let outcome = view.kv.read(&read.key);
            return answer(step, read, Path::Local, outcome, permit);
        };
        // Protocol §3.3: a committed slot may answer although slots before it are still open, if it
        // is not below the newest marked slot.
        if let Some(outcome) = view.consensus.value_at_commit(newest, &read.key) {
            return answer(step, read, Path::Held, outcome, permit);
        }
        step.metrics.reads_held += 1;
        let blocked = self.blocked.entry(read.key).or_default();
        blocked.push(BlockedRead {
            from: read.from,
            wait: newest,
        });
    }

    /// Notes that a slot that writes `key` was executed.
    pub fn note_executed(&mut self, key: &Key) {
        if !self.blocked.is_empty() && self.blocked.contains_key(key) {
            self.touched.push(key.clone());
        }
    }

    /// Answers the reads that waited for slots which are executed now.
    pub fn release_executed(&mut self, step: &mut Step<'_>, view: View<'_>) {
        for key in std::mem::take(&mut self.touched) {
            let executed = view.executed();
            let ready = self.take_blocked(&key, |blocked| blocked.wait <= executed);
            self.answer_blocked(step, view, &key, ready, None);
        }
        self.read_index
            .answer_executed(step, view, &mut self.answers);
    }

    /// Answers waiting reads if the committed `slot` determines the value of their key. The slot
    /// need not be executed yet.
    pub fn release_by_commit(&mut self, step: &mut Step<'_>, view: View<'_>, slot: Slot) {
        if !self.blocked.is_empty() {
            let values = view
                .consensus
                .values_at_commit(slot, |key| self.blocked.contains_key(key));
            for (key, outcome) in values {
                let ready = self.take_blocked(&key, |blocked| blocked.wait <= slot);
                self.answer_blocked(step, view, &key, ready, Some(outcome));
            }
        }
        self.read_index
            .answer_by_commit(step, view, &mut self.answers, slot);
    }

    fn take_blocked(
        &mut self,
        key: &Key,
        ready: impl Fn(&BlockedRead) -> bool,
    ) -> Vec<BlockedRead> {
        let Some(all) = self.blocked.get_mut(key) else {
            return Vec::new();
        };
        let (ready, rest): (Vec<BlockedRead>, Vec<BlockedRead>) = all.drain(..).partition(ready);
        if rest.is_empty() {
            self.blocked.remove(key);
        } else {
            *all = rest;
        }
        ready
    }

    /// Answers reads that no longer need to wait. If this replica has no permit for the key any
    /// more, the reads are passed to [`Self::read_elsewhere`] instead. If `outcome` is `None`, the
    /// answer is taken from the executed state.
    fn answer_blocked(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        key: &Key,
        ready: Vec<BlockedRead>,
        outcome: Option<Outcome>,
    ) {
        if ready.is_empty() {
            return;
        }
        let permit = view.permit(step.now, key);
        for blocked in ready {
            let read = ReadRequest {
                from: blocked.from,
                key: key.clone(),
            };
            match permit {
                Ok(permit) => {
                    let outcome = outcome.clone().unwrap_or_else(|| view.kv.read(key));
                    answer(step, read, Path::Held, outcome, permit);
                }
                Err(reason) => {
                    step.metrics.count_fallback(reason);
                    self.read_elsewhere(step, view, read);
                }
            }
        }
    }

    /// Handles the blocked reads of `keys` like new reads. This is needed, for example, if the
    /// slots for which the reads waited were replaced or dropped.
    pub fn look_again(&mut self, step: &mut Step<'_>, view: View<'_>, keys: Vec<Key>) {
        for key in keys {
            for blocked in self.take_blocked(&key, |_| true) {
                let read = ReadRequest {
                    from: blocked.from,
                    key: key.clone(),
                };
                self.read(step, view, read);
            }
        }
    }

    /// Handles all blocked reads like new reads, because the leases were given back.
    pub fn look_again_all(&mut self, step: &mut Step<'_>, view: View<'_>) {
        let keys = self.blocked_keys();
        self.look_again(step, view, keys);
    }

    fn blocked_keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.blocked.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// Serves a read for which this replica has no permit. A client's read is forwarded to the
    /// nearest holder, or to the leader if there is no holder. A peer's read is served by
    /// read-index if this replica leads, and is refused otherwise.
    fn read_elsewhere(&mut self, step: &mut Step<'_>, view: View<'_>, read: ReadRequest) {
        match read.from {
            ReadFrom::Client(client) => {
                self.forward(step, view, UnroutedRead::after(0, client, read.key))
            }
            ReadFrom::Peer(..) if view.consensus.leads() => self.start_read_index(step, view, read),
            ReadFrom::Peer(to, request) => self.answers.refuse(to, request),
        }
    }

    /// Serves a read once a majority has confirmed that this replica still leads.
    fn start_read_index(&mut self, step: &mut Step<'_>, view: View<'_>, read: ReadRequest) {
        self.read_index.begin(step, view, &mut self.answers, read);
    }

    /// Whether a read waits for a probe that is not sent yet.
    pub fn is_probe_due(&self) -> bool {
        self.read_index.is_probe_due()
    }

    /// Notes that a probe was sent.
    pub fn probe_sent(&mut self) {
        self.read_index.probe_sent();
    }

    /// Serves the reads that a majority has confirmed by now.
    pub fn confirm(&mut self, step: &mut Step<'_>, view: View<'_>) {
        self.read_index.confirm(step, view, &mut self.answers);
    }

    /// Reroutes the reads that wait for the read-index, because this replica no longer leads.
    pub fn reroute_read_index(&mut self, step: &mut Step<'_>, view: View<'_>) {
        for read in self.read_index.take_all() {
            match read.from {
                ReadFrom::Client(client) => {
                    self.forward(step, view, UnroutedRead::after(1, client, read.key))
                }
                ReadFrom::Peer(to, request) => self.answers.refuse(to, request),
            }
        }
    }

    /// Forwards a read. The first attempt goes to the nearest holder, and later attempts go to the
    /// leader. If the read would go to this replica itself, the read is served by read-index
    /// instead.
    fn forward(&mut self, step: &mut Step<'_>, view: View<'_>, unrouted: UnroutedRead) {
        let leader = view.consensus.leader();
        let to = match unrouted.attempts {
            0 => {
                let holders = view.leasing.configs().holders(&unrouted.key);
                step.ctx.nearest(holders).or(leader)
            }
            _ => leader,
        };
        if to == Some(step.me()) {
            let UnroutedRead { from, key, .. } = unrouted;
            let from = ReadFrom::Client(from);
            return self.start_read_index(step, view, ReadRequest { from, key });
        }
        let of_leader = to.is_none() || to == leader;
        self.forwarded
            .forward(step, unrouted, Target { to, of_leader });
    }

    fn forward_all(&mut self, step: &mut Step<'_>, view: View<'_>, unrouted: Vec<UnroutedRead>) {
        for unrouted in unrouted {
            self.forward(step, view, unrouted);
        }
    }

    /// Handles reads of a peer's clients. If `read_index` is set, the leader answers the reads
    /// after a majority has confirmed that it leads. A replica that does not lead refuses these
    /// reads.
    pub fn on_forwarded(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        from: ReplicaId,
        read_index: bool,
        reads: Vec<(RequestId, Key)>,
    ) {
        for (request, key) in reads {
            let read = ReadRequest {
                from: ReadFrom::Peer(from, request),
                key,
            };
            if !read_index {
                self.read(step, view, read);
            } else if view.consensus.leads() {
                self.start_read_index(step, view, read);
            } else {
                self.answers.refuse(from, request);
            }
        }
    }

    pub fn on_answers(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        from: ReplicaId,
        answers: Vec<ReadAnswer>,
    ) {
        self.forwarded.note_answer(step.now, from);
        for ReadAnswer { request, outcome } in answers {
            match outcome {
                Some((outcome, path)) => {
                    if let Some(client) = self.forwarded.take_answered(request) {
                        step.reply(client, path, outcome);
                    }
                }
                None => {
                    let leader = view.consensus.leader();
                    if let Some(unrouted) = self.forwarded.take_refused(from, request, leader) {
                        self.forward(step, view, unrouted);
                    }
                }
            }
        }
    }

    /// Drops the reads of disconnected clients.
    pub fn forget(&mut self, step: &mut Step<'_>, disconnected: &DisconnectedClients) {
        let mut blocked: Vec<ClientHandle> = Vec::new();
        let mut stays = |from: ReadFrom| match from {
            ReadFrom::Client(client) if disconnected.has(client) => {
                blocked.push(client);
                false
            }
            _ => true,
        };
        self.blocked.retain(|_, of_key| {
            of_key.retain(|blocked| stays(blocked.from));
            !of_key.is_empty()
        });
        self.read_index.retain(stays);
        blocked.sort_unstable();
        for client in blocked {
            reply_disconnected(step, client);
        }
        self.forwarded.forget(step, disconnected);
    }

    /// Sends the reads and answers that were collected in this group of steps.
    pub fn flush(&mut self, step: &mut Step<'_>) {
        self.forwarded.flush(step);
        self.answers.flush(step);
    }

    /// Forwards reads to the leader if they were not answered in time. Handles blocked reads like
    /// new reads if this replica no longer has a permit for their key.
    pub fn retry(&mut self, step: &mut Step<'_>, view: View<'_>) {
        let timeout = step.ctx.settings.timing.retransmit;
        let now = step.now;
        let overdue = self.forwarded.take_overdue(now, timeout);
        self.forward_all(step, view, overdue);
        let mut keys = self.blocked_keys();
        keys.retain(|key| view.permit(now, key).is_err());
        self.look_again(step, view, keys);
    }

    /// Forwards the reads that wait for a leader to the new leader. Reads that wait for a holder
    /// keep waiting for that holder.
    pub fn ask_new_leader(&mut self, step: &mut Step<'_>, view: View<'_>) {
        let of_leader = self.forwarded.take_of_leader();
        self.forward_all(step, view, of_leader);
    }

    /// # Panics
    /// If the waiting reads contradict each other.
    pub fn check(&self) {
        assert!(
            self.touched.is_empty(),
            "reads of executed keys are released"
        );
        assert!(
            self.blocked.values().all(|blocked| !blocked.is_empty()),
            "no key is kept without reads"
        );
        self.read_index.check();
        self.forwarded.check();
    }
}

/// Answers a read under a permit. The shell samples the clock after the step, and sends the answer
/// only if this time is before the end of the permit (protocol §3.5).
fn answer(step: &mut Step<'_>, read: ReadRequest, path: Path, outcome: Outcome, permit: Permit) {
    assert!(step.now < permit.until, "a permit is valid when it is used");
    let path = match read.from {
        ReadFrom::Client(_) => path,
        ReadFrom::Peer(..) => Path::Forwarded,
    };
    step.out.push(Action::FencedReply {
        to: read.from,
        path,
        outcome,
        until: permit.until,
        again: FencedRead::Key(read.key),
    });
}
