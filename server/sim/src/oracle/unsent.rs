//! A command that is said not to have left a replica has not left it, and never does (protocol §1
//! "Sessions"): a client that is notified so may count on it, and ask another replica. This is
//! reported to a client that opens too many sessions, to a client that puts long fields where
//! merges wait (`too_many_merges`), and, about what waited, to a disconnected client
//! (`client_gone`). It must be true.
//!
//! A replica answers whatever it is asked to write in the end, also if its client has disconnected
//! meanwhile: the node keeps capacity for the answer until then. Whether it does, `run` looks once
//! all is well. A merge that waited for ever would hold up all that come after it.
//!
//! Departures are seen by what a replica sends: commands for the leader, and proposals of its own
//! clients' commands. A write is judged until this replica has answered it for good: what it asked
//! for before may leave later.

use std::collections::{BTreeSet, HashMap, HashSet};

use foldhash::fast::FixedState;
use leasehold_wire::{Command, Outcome};

use super::{Verdict, ensure, id};
use crate::fault::{Fault, Fired};
use leasehold_replica::Replica;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::message::{Envelope, Message, RequestId};
use leasehold_replica::unavailable::{
    is_asked_again, is_client_gone, is_too_many_merges, is_unsent,
};

pub(super) const NAME: &str = "unsent";

/// (client, sequence).
type Identity = (u64, u64);

/// Where a write is that a replica was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the replica. `held`: though there is a leader it could have been sent to.
    Here { held: bool },
    /// It was sent.
    Left,
    /// At its client, which was notified that it was not sent.
    GivenBack,
    /// It was answered for good, or an earlier run was asked for it: copies may come later.
    Unclear,
}

const HERE: Place = Place::Here { held: false };

#[derive(Clone, Copy, Debug)]
struct Write {
    place: Place,
    is_merge: bool,
    /// Requests for it that are not answered, and when the first of them came, in ns.
    requests: usize,
    since_ns: u64,
    /// As what it was last forwarded to a leader.
    forwarded: Option<RequestId>,
}

/// Requests that one replica has received.
#[derive(Clone, Debug, Default)]
struct Node {
    writes: HashMap<Identity, Write, FixedState>,
    requests: HashMap<ClientHandle, Identity, FixedState>,
    /// Since its last step.
    fresh: Vec<Identity>,
    /// Connections that have ended.
    gone: HashSet<u64, FixedState>,
    /// Writes that wait, by when they were asked for.
    waiting: BTreeSet<(u64, Identity)>,
}

/// Oracle that judges writes that are said not to have been sent.
#[derive(Debug)]
pub struct Unsent {
    nodes: Vec<Node>,
    /// Fates of merges that were held, and how often each occurred.
    pub fired: Fired,
    /// Answers judged.
    pub checks: u64,
}

impl Unsent {
    pub(super) fn new(n: usize) -> Unsent {
        Unsent {
            nodes: vec![Node::default(); n],
            fired: Fired::default(),
            checks: 0,
        }
    }

    /// A client's command has reached `node`.
    pub(super) fn asked(
        &mut self,
        now_ns: u64,
        node: usize,
        from: ClientHandle,
        command: &Command,
    ) {
        if !command.is_write() {
            return;
        }
        let identity = (command.client, command.sequence);
        let at = &mut self.nodes[node];
        if at.requests.insert(from, identity).is_some() {
            return; // sent to it twice
        }
        at.fresh.push(identity);
        let write = at.writes.entry(identity).or_insert(Write {
            place: HERE,
            is_merge: command.as_merge().is_some(),
            requests: 0,
            since_ns: 0,
            forwarded: None,
        });
        if write.place == Place::GivenBack {
            write.place = HERE;
        }
        if write.requests == 0 {
            write.since_ns = now_ns;
            at.waiting.insert((now_ns, identity));
        }
        write.requests += 1;
    }

    /// A client's connection to `node` has ended.
    pub(super) fn hung_up(&mut self, node: usize, connection: u64) {
        self.nodes[node].gone.insert(connection);
    }

    /// `node` has ended: it answers nobody any more.
    pub(super) fn crashed(&mut self, node: usize) {
        let at = &mut self.nodes[node];
        for write in at.writes.values_mut() {
            (write.place, write.requests, write.forwarded) = (Place::Unclear, 0, None);
        }
        let writes = std::mem::take(&mut at.writes);
        *at = Node {
            writes,
            ..Node::default()
        };
    }

    /// `node` sends a message.
    pub(super) fn sent(&mut self, node: usize, envelope: &Envelope) -> Verdict {
        match &envelope.message {
            Message::Forward { commands } => commands.iter().try_for_each(|(name, command)| {
                self.leaves(node, command)?;
                self.forwards(node, *name, command)
            }),
            Message::Accept(accept) => {
                let proposed = accept.value.commands().iter();
                let mut own = proposed.filter(|proposed| proposed.origin == id(node));
                own.try_for_each(|proposed| self.leaves(node, &proposed.command))
            }
            _ => Ok(()),
        }
    }

    fn leaves(&mut self, node: usize, command: &Command) -> Verdict {
        let identity = (command.client, command.sequence);
        if let Some(write) = self.nodes[node].writes.get_mut(&identity) {
            ensure!(
                NAME,
                write.place != Place::GivenBack,
                "{:?} sends {identity:?}, but its client was told that it was not sent",
                id(node)
            );
            if matches!(write.place, Place::Here { .. }) {
                write.place = Place::Left;
            }
        }
        Ok(())
    }

    /// Judges the name of a forwarded command: one that is sent again has another name than before.
    fn forwards(&mut self, node: usize, name: RequestId, command: &Command) -> Verdict {
        let identity = (command.client, command.sequence);
        if let Some(write) = self.nodes[node].writes.get_mut(&identity) {
            let before = write.forwarded.replace(name);
            ensure!(
                NAME,
                before != Some(name),
                "{:?} sends {identity:?} twice, as {name:?}",
                id(node)
            );
        }
        Ok(())
    }

    /// `node` answers a client.
    pub(super) fn replied(&mut self, node: usize, to: ClientHandle, outcome: &Outcome) -> Verdict {
        let at = &mut self.nodes[node];
        let gone = is_client_gone(outcome);
        if gone {
            self.checks += 1;
            ensure!(
                NAME,
                at.gone.contains(&to.connection),
                "{:?} gives up a request of {to:?}, which has not gone",
                id(node)
            );
        }
        let Some(identity) = at.requests.remove(&to) else {
            return Ok(()); // a read, or told twice
        };
        let Some(write) = at.writes.get_mut(&identity) else {
            return Ok(());
        };
        write.requests -= 1;
        if write.requests == 0 {
            at.waiting.remove(&(write.since_ns, identity));
        }
        if is_asked_again(outcome) {
            return Ok(());
        }
        let held = write.place == Place::Here { held: true };
        if !gone && !is_unsent(outcome) {
            self.fired.add(Fault::HeldAnswered, u64::from(held));
            write.place = Place::Unclear;
            return Ok(());
        }
        self.checks += 1;
        self.fired.add(Fault::HeldGone, u64::from(held && gone));
        let before = write.place;
        write.place = match before {
            Place::Unclear => before,
            _ if write.requests > 0 => HERE, // asked for again in the same step
            _ => Place::GivenBack,
        };
        ensure!(
            NAME,
            before != Place::Left,
            "{:?} says that it has not sent {identity:?}, but it has",
            id(node)
        );
        let may_be_held = write.is_merge || !gone && !is_too_many_merges(outcome);
        ensure!(
            NAME,
            may_be_held,
            "{:?} does not send {identity:?}, which is no merge: {outcome:?}",
            id(node)
        );
        Ok(())
    }

    /// `node` has taken a step, and sent what it sends. A leader sends itself nothing.
    pub(super) fn step_ends(&mut self, node: usize, replica: &Replica) {
        let at = &mut self.nodes[node];
        let has_leader = replica.leader().is_some_and(|leader| leader != id(node));
        for identity in at.fresh.drain(..) {
            let write = at.writes.get_mut(&identity);
            if let Some(write) = write.filter(|_| has_leader)
                && (write.place, write.requests > 0) == (HERE, true)
            {
                write.place = Place::Here { held: true };
                self.fired.add(Fault::Held, 1);
            }
        }
    }

    /// Since when, in ns, `node` has had a write that it has not answered.
    pub fn waiting(&self, node: usize) -> Option<u64> {
        self.nodes[node]
            .waiting
            .first()
            .map(|(since_ns, _)| *since_ns)
    }
}

#[cfg(test)]
mod tests;
