//! Reads of one key (protocol §3): under a lease, held for writes in flight, forwarded
//! to the nearest holder, else confirmed by the leader (`indexing`).

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use leasehold_leases::hashing::Seeded;
use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Key, Permit, ReplicaId, Slot};
use leasehold_wire::{Outcome, Path};

use super::super::action::Action;
use super::super::handles::{Again, ClientHandle, ReadFrom};
use super::super::message::{ReadAnswer, RequestId};
use super::super::step::Step;
use super::answers::{Answers, Read};
use super::asking::{Asking, Target, Wanted};
use super::indexing::Indexing;
use super::leavers::{Gone, tell_gone};
use super::view::View;

/// A read under a valid permit that waits for the slots that were marked then.
#[derive(Clone, Debug, Hash)]
struct Held {
    from: ReadFrom,
    /// The newest slot marked on the key when the permit was found.
    wait: Slot,
}

/// Reads that wait.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    held: HashMap<Key, Vec<Held>, Seeded>,
    /// Keys with held reads that a slot just executed.
    touched: Vec<Key>,
    asking: Asking,
    indexing: Indexing,
    answers: Answers,
}

impl Hash for Reads {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leasehold_leases::fingerprint::unordered(&self.held, state);
        (&self.touched, &self.asking).hash(state);
        (&self.indexing, &self.answers).hash(state);
    }
}

impl Reads {
    /// Number of reads that wait here.
    pub fn len(&self) -> usize {
        let held: usize = self.held.values().map(Vec::len).sum();
        held + self.asking.len() + self.indexing.len()
    }

    /// Serves a read of one key as locally as it can.
    pub fn read(&mut self, step: &mut Step<'_>, view: View<'_>, read: Read) {
        match view.permit(step.now, &read.key) {
            Ok(permit) => self.read_permitted(step, view, read, permit),
            Err(reason) => {
                step.metrics.count_fallback(reason);
                self.read_elsewhere(step, view, read);
            }
        }
    }

    /// Waits only for writes of this key that were accepted here before.
    fn read_permitted(&mut self, step: &mut Step<'_>, view: View<'_>, read: Read, permit: Permit) {
        // Hazard 10: a leader is a holder like any, and waits for its own writes.
        let marked = view
            .newest_mark(&read.key)
            .filter(|_| !view.consensus.leads() || !off(Rule::H10LeaderMarks));
        let Some(newest) = marked else {
            let outcome = view.kv.read(&read.key);
            return answer(step, read, Path::Local, outcome, permit);
        };
        // Protocol §3.3: a committed slot, not below the newest marked, may answer
        // although slots before it are still open.
        if let Some(outcome) = view.consensus.value_at_commit(newest, &read.key) {
            return answer(step, read, Path::Held, outcome, permit);
        }
        step.metrics.reads_held += 1;
        let held = self.held.entry(read.key).or_default();
        held.push(Held {
            from: read.from,
            wait: newest,
        });
    }

    /// A slot that writes `key` was executed.
    pub fn note_executed(&mut self, key: &Key) {
        if !self.held.is_empty() && self.held.contains_key(key) {
            self.touched.push(key.clone());
        }
    }

    /// Slots were executed: reads held for them are answered.
    pub fn release_executed(&mut self, step: &mut Step<'_>, view: View<'_>) {
        for key in std::mem::take(&mut self.touched) {
            let executed = view.executed();
            let ready = self.take_held(&key, |held| held.wait <= executed);
            self.answer_held(step, view, (&key, ready), None);
        }
        self.indexing.answer_executed(step, view, &mut self.answers);
    }

    /// A committed slot may answer reads of its keys before it is executed.
    pub fn release_by_commit(&mut self, step: &mut Step<'_>, view: View<'_>, slot: Slot) {
        if !self.held.is_empty() {
            let values = view
                .consensus
                .values_at_commit(slot, |key| self.held.contains_key(key));
            let values: Vec<(Key, Outcome)> = values
                .map(|(key, outcome)| (key.clone(), outcome))
                .collect();
            for (key, outcome) in values {
                let ready = self.take_held(&key, |held| held.wait <= slot);
                self.answer_held(step, view, (&key, ready), Some(outcome));
            }
        }
        self.indexing
            .answer_by_commit(step, view, &mut self.answers, slot);
    }

    fn take_held(&mut self, key: &Key, ready: impl Fn(&Held) -> bool) -> Vec<Held> {
        let Some(all) = self.held.get_mut(key) else {
            return Vec::new();
        };
        let (ready, rest): (Vec<Held>, Vec<Held>) = all.drain(..).partition(ready);
        if rest.is_empty() {
            self.held.remove(key);
        } else {
            *all = rest;
        }
        ready
    }

    /// The permit is looked up again: what is answered is valid now, too.
    fn answer_held(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        (key, ready): (&Key, Vec<Held>),
        outcome: Option<Outcome>,
    ) {
        if ready.is_empty() {
            return;
        }
        let permit = view.permit(step.now, key);
        for held in ready {
            let read = Read {
                from: held.from,
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

    /// The slots that reads of these keys waited for were replaced or dropped.
    pub fn look_again(&mut self, step: &mut Step<'_>, view: View<'_>, keys: Vec<Key>) {
        for key in keys {
            for held in self.take_held(&key, |_| true) {
                let read = Read {
                    from: held.from,
                    key: key.clone(),
                };
                self.read(step, view, read);
            }
        }
    }

    /// Leases were given back: what waited under them looks elsewhere.
    pub fn look_again_all(&mut self, step: &mut Step<'_>, view: View<'_>) {
        let keys = self.held_keys();
        self.look_again(step, view, keys);
    }

    fn held_keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.held.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// No permit here: the nearest holder, then the leader's read-index.
    fn read_elsewhere(&mut self, step: &mut Step<'_>, view: View<'_>, read: Read) {
        match read.from {
            ReadFrom::Client(client) => self.ask(step, view, Wanted::asked(0, client, read.key)),
            ReadFrom::Peer(..) if view.consensus.leads() => self.index(step, view, read),
            ReadFrom::Peer(to, request) => self.answers.refuse(to, request),
        }
    }

    /// Has a majority confirm that this replica leads still.
    fn index(&mut self, step: &mut Step<'_>, view: View<'_>, read: Read) {
        self.indexing.begin(step, view, &mut self.answers, read);
    }

    /// Whether a read waits for a probe that is not sent yet.
    pub fn is_probe_due(&self) -> bool {
        self.indexing.is_probe_due()
    }

    /// A probe was sent.
    pub fn probe_sent(&mut self) {
        self.indexing.probe_sent();
    }

    /// A majority may have confirmed reads.
    pub fn confirm(&mut self, step: &mut Step<'_>, view: View<'_>) {
        self.indexing.confirm(step, view, &mut self.answers);
    }

    /// This replica no longer leads: what it was confirming is asked elsewhere.
    pub fn index_elsewhere(&mut self, step: &mut Step<'_>, view: View<'_>) {
        for read in self.indexing.take_all() {
            match read.from {
                ReadFrom::Client(client) => {
                    self.ask(step, view, Wanted::asked(1, client, read.key))
                }
                ReadFrom::Peer(to, request) => self.answers.refuse(to, request),
            }
        }
    }

    /// Asks the nearest holder at the first attempt, then the leader.
    fn ask(&mut self, step: &mut Step<'_>, view: View<'_>, wanted: Wanted) {
        let leader = view.consensus.leader();
        let to = match wanted.attempts {
            0 => {
                let holders = view.leasing.configs().holders(&wanted.key);
                step.us.nearest(holders).or(leader)
            }
            _ => leader,
        };
        if to == Some(step.me()) {
            let Wanted { from, key, .. } = wanted;
            let from = ReadFrom::Client(from);
            return self.index(step, view, Read { from, key });
        }
        let of_leader = to.is_none() || to == leader;
        self.asking.ask(step, wanted, Target { to, of_leader });
    }

    fn ask_all(&mut self, step: &mut Step<'_>, view: View<'_>, wanted: Vec<Wanted>) {
        for wanted in wanted {
            self.ask(step, view, wanted);
        }
    }

    /// Reads of a peer's clients.
    pub fn on_forwarded(
        &mut self,
        step: &mut Step<'_>,
        view: View<'_>,
        (from, read_index): (ReplicaId, bool),
        reads: Vec<(RequestId, Key)>,
    ) {
        for (request, key) in reads {
            let read = Read {
                from: ReadFrom::Peer(from, request),
                key,
            };
            if !read_index {
                self.read(step, view, read);
            } else if view.consensus.leads() {
                self.index(step, view, read);
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
        self.asking.hear(step.now, from);
        for ReadAnswer { request, outcome } in answers {
            match outcome {
                Some((outcome, path)) => {
                    if let Some(client) = self.asking.answered(request) {
                        step.reply(client, path, outcome);
                    }
                }
                None => {
                    let leader = view.consensus.leader();
                    if let Some(wanted) = self.asking.refused((from, request), leader) {
                        self.ask(step, view, wanted);
                    }
                }
            }
        }
    }

    /// Gives up the reads of clients that have gone.
    pub fn forget(&mut self, step: &mut Step<'_>, gone: &Gone) {
        let mut held: Vec<ClientHandle> = Vec::new();
        let mut stays = |from: ReadFrom| match from {
            ReadFrom::Client(client) if gone.has(client) => {
                held.push(client);
                false
            }
            _ => true,
        };
        self.held.retain(|_, of_key| {
            of_key.retain(|held| stays(held.from));
            !of_key.is_empty()
        });
        self.indexing.retain(stays);
        held.sort_unstable();
        for client in held {
            tell_gone(step, client);
        }
        self.asking.forget(step, gone);
    }

    /// Sends what reads left behind in this group of steps.
    pub fn flush(&mut self, step: &mut Step<'_>) {
        self.asking.flush(step);
        self.answers.flush(step);
    }

    /// Asks again for reads without an answer, the leader this time. Held reads without a permit
    /// any more look elsewhere.
    pub fn retry(&mut self, step: &mut Step<'_>, view: View<'_>) {
        let patience = step.us.settings.timing.retransmit;
        let now = step.now;
        let overdue = self.asking.take_overdue(now, patience);
        self.ask_all(step, view, overdue);
        let mut keys = self.held_keys();
        keys.retain(|key| view.permit(now, key).is_err());
        self.look_again(step, view, keys);
    }

    /// Somebody leads anew: reads that wait for an earlier leader, or for any, ask this
    /// one. Those that wait for a holder have no reason to.
    pub fn ask_new_leader(&mut self, step: &mut Step<'_>, view: View<'_>) {
        let of_leader = self.asking.take_of_leader();
        self.ask_all(step, view, of_leader);
    }

    /// # Panics
    /// If what waits here contradicts itself.
    pub fn check(&self) {
        assert!(
            self.touched.is_empty(),
            "reads of executed keys are released"
        );
        assert!(
            self.held.values().all(|held| !held.is_empty()),
            "no key is kept without reads"
        );
        self.indexing.check();
        self.asking.check();
    }
}

/// Answers a read under a permit: only if the clock, read again after the step, is
/// before the permit's end (protocol §3.5).
fn answer(step: &mut Step<'_>, read: Read, path: Path, outcome: Outcome, permit: Permit) {
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
        again: Again::Key(read.key),
    });
}
