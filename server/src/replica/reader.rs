//! Reads (protocol §3): under a lease, held for writes in flight, forwarded to
//! the nearest holder, else confirmed by the leader (`read_index`).

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};

use client::wire::command::Op;
use client::wire::{Command, Outcome, Path};
use foldhash::fast::FixedState;
use leases::mutants::{Rule, off};
use leases::{Key, NoPermit, Permit, ReplicaId, Slot, Time};

use super::action::{Action, ClientHandle};
use super::input::{Again, ReadFrom};
use super::message::{Message, ReadAnswer, RequestId, Value};
use super::parts::{chunks, read_answers};
use super::read_index::Indexing;
use super::{Replica, Role};

/// A read under a valid permit that waits for the slots that were marked then.
#[derive(Clone, Debug, Hash)]
struct Held {
    from: ReadFrom,
    /// The newest slot marked on the key when the permit was found.
    wait: Slot,
}

/// A read that somebody else answers.
#[derive(Clone, Debug)]
struct Asked {
    from: ClientHandle,
    key: Key,
    sent: Time,
    attempts: u32,
    /// It waits for a leader: for the one that was known when it was sent, or for any.
    of_leader: bool,
}

impl Hash for Asked {
    /// When it was sent decides only when it is asked again: not before the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.from, &self.key, self.attempts, self.of_leader).hash(state);
    }
}

/// Reads that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader {
    held: HashMap<Key, Vec<Held>, FixedState>,
    /// Keys with held reads that a slot just executed.
    touched: Vec<Key>,
    asked: BTreeMap<RequestId, Asked>,
    pub(super) indexing: Indexing,
    /// To be sent at the end of the group: (to, read-index, attempt, key).
    to_forward: BTreeMap<(ReplicaId, bool), Vec<(RequestId, Key)>>,
    answers: BTreeMap<ReplicaId, Vec<ReadAnswer>>,
}

impl Hash for Reader {
    fn hash<H: Hasher>(&self, state: &mut H) {
        leases::fingerprint::unordered(&self.held, state);
        (&self.touched, &self.asked, &self.indexing).hash(state);
        (&self.to_forward, &self.answers).hash(state);
    }
}

impl Reader {
    /// A slot that writes `key` was executed.
    pub(super) fn note_executed(&mut self, key: &Key) {
        if !self.held.is_empty() && self.held.contains_key(key) {
            self.touched.push(key.clone());
        }
    }

    /// Keys with held reads.
    pub(super) fn held_keys(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.held.keys().cloned().collect();
        keys.sort_unstable();
        keys
    }

    /// How many reads wait here.
    pub(super) fn len(&self) -> usize {
        let held: usize = self.held.values().map(Vec::len).sum();
        held + self.asked.len() + self.indexing.len()
    }
}

impl Replica {
    /// Serves a read of one key as locally as it can.
    pub(super) fn read(&mut self, now: Time, from: ReadFrom, key: Key, out: &mut Vec<Action>) {
        match self.permit(now, &key) {
            Ok(permit) => self.read_permitted(from, key, permit, out),
            Err(reason) => {
                self.counters.count(reason);
                self.read_elsewhere(now, from, key, out);
            }
        }
    }

    /// The clock had passed the end of the permit when the answer was ready.
    pub(super) fn on_fence_missed(
        &mut self,
        now: Time,
        from: ReadFrom,
        again: Again,
        out: &mut Vec<Action>,
    ) {
        self.counters.fence_missed += 1;
        match (again, from) {
            (Again::Key(key), _) => self.read(now, from, key, out),
            (Again::Command(command), ReadFrom::Client(client)) => {
                self.on_client(now, client, *command, out)
            }
            (Again::Command(_), ReadFrom::Peer(..)) => {}
        }
    }

    /// Leave to read `key` here, now.
    fn permit(&self, now: Time, key: &[u8]) -> Result<Permit, NoPermit> {
        self.leader_ready()?;
        let newest = self.configs.newest();
        self.holder
            .permit(now, self.configs.view(key), newest, self.executed())
    }

    /// Whether `key` may be read here, now, under leases.
    pub fn may_read(&self, now: Time, key: &[u8]) -> bool {
        self.permit(now, key).is_ok()
    }

    /// A new leader reads locally not before its opening no-op has committed.
    fn leader_ready(&self) -> Result<(), NoPermit> {
        let start = self.commands().adopted.1;
        match self.role {
            Role::Leader(_) if self.executed() < start => Err(NoPermit::Barrier(start)),
            _ => Ok(()),
        }
    }

    fn read_permitted(&mut self, from: ReadFrom, key: Key, permit: Permit, out: &mut Vec<Action>) {
        let marked = self.marks.on(&key).last().copied();
        // Hazard 10: a leader is a holder like any, and waits for its own writes.
        let Some(newest) = marked.filter(|_| self.leads().is_none() || !off(Rule::H10LeaderMarks))
        else {
            let outcome = self.kv.read(&key);
            return self.answer_read(from, key, Path::Local, outcome, permit, out);
        };
        // Protocol §3.3: a committed slot, not below the newest marked, may answer
        // although slots before it are still open.
        if let Some(outcome) = self.value_at_commit(newest, &key) {
            return self.answer_read(from, key, Path::Held, outcome, permit, out);
        }
        self.counters.held += 1;
        self.reader
            .held
            .entry(key)
            .or_default()
            .push(Held { from, wait: newest });
    }

    fn answer_read(
        &mut self,
        to: ReadFrom,
        key: Key,
        path: Path,
        outcome: Outcome,
        permit: Permit,
        out: &mut Vec<Action>,
    ) {
        let path = match to {
            ReadFrom::Client(_) => path,
            ReadFrom::Peer(..) => Path::Forwarded,
        };
        let again = Again::Key(key);
        out.push(Action::FencedReply {
            to,
            path,
            outcome,
            until: permit.until,
            again,
        });
    }

    /// Slots were executed: reads held for them are answered.
    pub(super) fn release_executed(&mut self, now: Time, out: &mut Vec<Action>) {
        for key in std::mem::take(&mut self.reader.touched) {
            let executed = self.executed();
            let ready = self.take_held(&key, |held| held.wait <= executed);
            self.answer_held(now, &key, ready, None, out);
        }
        self.answer_executed(out);
    }

    /// A committed slot may answer reads of its keys before it is executed.
    pub(super) fn release_by_commit(
        &mut self,
        now: Time,
        slot: Slot,
        value: &Value,
        out: &mut Vec<Action>,
    ) {
        if !self.reader.held.is_empty() {
            for key in value.commands().iter().flat_map(|p| p.command.keys()) {
                if !self.reader.held.contains_key(key) {
                    continue;
                }
                let Some(outcome) = self.value_at_commit(slot, key) else {
                    continue;
                };
                let ready = self.take_held(key, |held| held.wait <= slot);
                self.answer_held(now, key, ready, Some(outcome), out);
            }
        }
        self.answer_by_commit(slot, out);
    }

    fn take_held(&mut self, key: &Key, ready: impl Fn(&Held) -> bool) -> Vec<Held> {
        let Some(all) = self.reader.held.get_mut(key) else {
            return Vec::new();
        };
        let (ready, rest): (Vec<Held>, Vec<Held>) = all.drain(..).partition(ready);
        if rest.is_empty() {
            self.reader.held.remove(key);
        } else {
            *all = rest;
        }
        ready
    }

    /// The permit is looked up again: what is answered is valid now, too.
    fn answer_held(
        &mut self,
        now: Time,
        key: &Key,
        ready: Vec<Held>,
        outcome: Option<Outcome>,
        out: &mut Vec<Action>,
    ) {
        if ready.is_empty() {
            return;
        }
        let permit = self.permit(now, key);
        for held in ready {
            match permit {
                Ok(permit) => {
                    let outcome = outcome.clone().unwrap_or_else(|| self.kv.read(key));
                    self.answer_read(held.from, key.clone(), Path::Held, outcome, permit, out);
                }
                Err(reason) => {
                    self.counters.count(reason);
                    self.read_elsewhere(now, held.from, key.clone(), out);
                }
            }
        }
    }

    /// The slots that reads of these keys waited for were replaced or dropped.
    pub(super) fn look_again(&mut self, now: Time, keys: Vec<Key>, out: &mut Vec<Action>) {
        for key in keys {
            for held in self.take_held(&key, |_| true) {
                self.read(now, held.from, key.clone(), out);
            }
        }
    }

    /// No permit here: the nearest holder, then the leader's read-index.
    fn read_elsewhere(&mut self, now: Time, from: ReadFrom, key: Key, out: &mut Vec<Action>) {
        match from {
            ReadFrom::Client(client) => self.ask(now, client, key, 0, out),
            ReadFrom::Peer(..) if self.leads().is_some() => self.index_read(from, key, out),
            ReadFrom::Peer(to, request) => self.answer_peer(to, request, None),
        }
    }

    pub(super) fn answer_peer(
        &mut self,
        to: ReplicaId,
        request: RequestId,
        outcome: Option<(Outcome, Path)>,
    ) {
        self.reader
            .answers
            .entry(to)
            .or_default()
            .push(ReadAnswer { request, outcome });
    }

    pub(super) fn ask(
        &mut self,
        now: Time,
        from: ClientHandle,
        key: Key,
        attempts: u32,
        out: &mut Vec<Action>,
    ) {
        let target = match attempts {
            0 => self.nearest_holder(&key).or_else(|| self.leader()),
            _ => self.leader(),
        };
        if target == Some(self.me()) {
            return self.index_read(ReadFrom::Client(from), key, out);
        }
        let request = self.new_request();
        let asked = Asked {
            from,
            key: key.clone(),
            sent: now,
            attempts: attempts + 1,
            of_leader: target.is_none() || target == self.leader(),
        };
        self.reader.asked.insert(request, asked);
        if let Some(to) = target {
            let read_index = attempts > 0;
            let forward = self.reader.to_forward.entry((to, read_index)).or_default();
            forward.push((request, key));
        }
    }

    /// The holder of `key` with the shortest measured round trip.
    fn nearest_holder(&self, key: &[u8]) -> Option<ReplicaId> {
        let holders = self.configs.holders(key);
        let others = holders.iter().filter(|holder| *holder != self.me());
        others
            // A configuration comes from peers: it may name who is no member.
            .filter_map(|holder| {
                let peer = self.peers.get(holder.index())?;
                peer.rtt.map(|rtt| (rtt, holder))
            })
            .min()
            .map(|(_, holder)| holder)
    }

    pub(super) fn on_forward_read(
        &mut self,
        now: Time,
        from: ReplicaId,
        read_index: bool,
        reads: Vec<(RequestId, Key)>,
        out: &mut Vec<Action>,
    ) {
        for (request, key) in reads {
            let reader = ReadFrom::Peer(from, request);
            if !read_index {
                self.read(now, reader, key, out);
            } else if self.leads().is_some() {
                self.index_read(reader, key, out);
            } else {
                self.answer_peer(from, request, None);
            }
        }
    }

    pub(super) fn on_read_answers(
        &mut self,
        now: Time,
        from: ReplicaId,
        answers: Vec<ReadAnswer>,
        out: &mut Vec<Action>,
    ) {
        for answer in answers {
            // Unknown: an attempt that was given up, or of an earlier life (hazard 37).
            let Some(asked) = self.reader.asked.remove(&answer.request) else {
                continue;
            };
            match answer.outcome {
                Some((outcome, path)) => {
                    out.push(Action::Reply {
                        to: asked.from,
                        path,
                        outcome,
                    });
                }
                // It leads no longer, and nobody else is known to: asked at once, it
                // would refuse as fast as the network carries questions. Asked again
                // when somebody else is heard of.
                None if asked.of_leader && self.leader() == Some(from) => {
                    self.reader.asked.insert(answer.request, asked);
                }
                None => self.ask(now, asked.from, asked.key, asked.attempts, out),
            }
        }
    }

    /// Sends what reads left behind in this group of steps.
    pub(super) fn flush_reads(&mut self, out: &mut Vec<Action>) {
        while let Some(((to, read_index), reads)) = self.reader.to_forward.pop_first() {
            for reads in chunks(reads, |(_, key)| key.len()) {
                self.send(to, Message::ForwardRead { read_index, reads }, out);
            }
        }
        while let Some((to, answers)) = self.reader.answers.pop_first() {
            for message in read_answers(answers) {
                self.send(to, message, out);
            }
        }
    }

    /// Reads without an answer ask again, the leader this time; held reads whose
    /// permit has gone look elsewhere.
    pub(super) fn retry_reads(&mut self, now: Time, out: &mut Vec<Action>) {
        let patience = self.settings.timing.retransmit;
        let overdue = |asked: &Asked| now.since(asked.sent) >= patience * asked.attempts.min(8);
        let late: Vec<RequestId> = self
            .reader
            .asked
            .iter()
            .filter(|(_, asked)| overdue(asked))
            .map(|(request, _)| *request)
            .collect();
        self.ask_again(now, late, out);
        let mut keys = self.reader.held_keys();
        keys.retain(|key| self.permit(now, key).is_err());
        self.look_again(now, keys, out);
    }

    /// Somebody leads anew: reads that wait for an earlier leader, or for any, ask
    /// this one. Those that wait for a holder have no reason to.
    pub(super) fn ask_new_leader(&mut self, now: Time, out: &mut Vec<Action>) {
        let asked = self.reader.asked.iter();
        let of_leaders = asked.filter(|(_, asked)| asked.of_leader);
        let of_leaders = of_leaders.map(|(request, _)| *request).collect();
        self.ask_again(now, of_leaders, out);
    }

    fn ask_again(&mut self, now: Time, reads: Vec<RequestId>, out: &mut Vec<Action>) {
        for request in reads {
            if let Some(asked) = self.reader.asked.remove(&request) {
                self.ask(now, asked.from, asked.key, asked.attempts, out);
            }
        }
    }

    /// Reads of several keys: local only with a permit for every key they could
    /// return, all of them unmarked, in this one step. Else they go through the log.
    pub(super) fn read_many(
        &mut self,
        now: Time,
        from: ClientHandle,
        command: &Command,
        out: &mut Vec<Action>,
    ) -> bool {
        if self.leader_ready().is_err() {
            return false;
        }
        let permit = match &command.op {
            Some(Op::MultiGet(multi)) => {
                let unmarked = multi.keys.iter().all(|key| self.marks.on(key).is_empty())
                    || off(Rule::H43Unmarked);
                let permits = multi.keys.iter().map(|key| self.permit(now, key).ok());
                let until = permits.collect::<Option<Vec<Permit>>>();
                let least = until.and_then(|all| all.into_iter().map(|p| p.until).min());
                least.filter(|_| unmarked).map(|until| Permit { until })
            }
            Some(Op::Scan(scan)) => {
                let permit = self
                    .holder
                    .permit_all(now, &self.configs, self.executed())
                    .ok();
                permit.filter(|_| {
                    !self.marks.any_within(&scan.from, &scan.to) || off(Rule::H43Unmarked)
                })
            }
            _ => None,
        };
        let Some(permit) = permit else {
            return false;
        };
        let outcome = match &command.op {
            Some(Op::MultiGet(multi)) => self.kv.read_many(&multi.keys),
            Some(Op::Scan(scan)) => self.kv.scan(&scan.from, &scan.to, scan.limit as usize),
            _ => return false,
        };
        out.push(Action::FencedReply {
            to: ReadFrom::Client(from),
            path: Path::Local,
            outcome,
            until: permit.until,
            again: Again::Command(Box::new(command.clone())),
        });
        true
    }
}
