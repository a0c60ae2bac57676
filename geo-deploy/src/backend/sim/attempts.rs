//! Attempts of a client's operation, by the rules of the client library. The first attempt is sent
//! to the nearest replica. If it is not answered for some time, a second attempt is sent to the
//! next nearest replica, while the first may still be answered. A replica that did not answer in
//! time gets no more requests until it answers a probe. If a replica refuses the connection,
//! another replica is tried immediately.

use leasehold_replica::action::ClientHandle;
use leasehold_sim::world::ClientReply;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{ErrorCode, Outcome};

use super::clients::{ClientAlarm, Clients};
use crate::backend::key_name;
use crate::backend::outage::ATTEMPT_S;

/// Time, in ns, that a replica may take to answer. After this time, another replica is tried, too.
const ATTEMPT_NS: u64 = (ATTEMPT_S * 1e9) as u64;
/// Pause, in ns, after a replica has reported that it cannot answer yet. After the pause, the
/// client sends the next attempt.
const PAUSE_NS: u64 = 50_000_000;
/// Time, in ns, between two probes of a replica that did not answer.
const PROBE_NS: u64 = 250_000_000;
/// Lowest ID of a connection for a probe. The connections of clients have lower IDs.
const PROBES: u64 = 1 << 48;
/// Key that is read by probes, and never written.
const PROBE_KEY: u64 = u64::MAX;

impl Clients<'_> {
    /// Returns true if the client still waits for the end of its operation, and `attempt` is the
    /// last attempt of this operation.
    pub(super) fn is_last(&self, slot: usize, attempt: u64) -> bool {
        let slot = &self.slots[slot];
        slot.operation.is_some() && slot.attempts == attempt
    }

    /// Sends one more attempt of a client's operation, to the nearest replica that has no open
    /// attempt of this operation.
    pub(super) fn send(&mut self, slot: usize) {
        let now_ns = self.world.now_ns();
        let client = &mut self.slots[slot];
        let site = client.process.site;
        let Some(operation) = &mut client.operation else {
            return;
        };
        let Some(node) = self.routes[site].nearest(&operation.open) else {
            // All replicas have been tried, or do not answer.
            let attempt = client.attempts;
            return self.alarm(now_ns + PROBE_NS, ClientAlarm::Retry { slot, attempt });
        };
        client.attempts += 1;
        let attempt = client.attempts;
        operation.targets.push(node);
        operation.open.push(node);
        match self.far_ns(site, node) {
            0 => self.request_arrives(slot, attempt),
            far_ns => self.alarm(
                now_ns + far_ns,
                ClientAlarm::RequestArrives { slot, attempt },
            ),
        }
        if self.doubtful {
            self.alarm(now_ns + ATTEMPT_NS, ClientAlarm::Late { slot, attempt });
        }
    }

    /// Returns the one-way delay, in ns, between `site` and the site of the replica `node`; 0 if
    /// both are the same site.
    fn far_ns(&self, site: usize, node: usize) -> u64 {
        if site == node {
            0
        } else {
            (self.plan.topology().rtt_ms(site, node) / 2.0 * 1e6) as u64
        }
    }

    /// Delivers a request that has arrived at the site of the replica.
    pub(super) fn request_arrives(&mut self, slot: usize, attempt: u64) {
        let client = &self.slots[slot];
        let Some(node) = client.target(attempt) else {
            return;
        };
        if self.world.refuses(node) {
            return self.refuse(slot, attempt, node);
        }
        let Some(operation) = &client.operation else {
            return;
        };
        let from = ClientHandle {
            connection: slot as u64,
            request: attempt,
        };
        let command = operation.command.clone();
        self.world.request(node, vec![(from, command)]);
    }

    /// Sets an alarm for a connection that is refused or breaks. The alarm is due when the client
    /// notices the refusal or the break. This takes the one-way delay from the replica to the
    /// client.
    fn refuse(&mut self, slot: usize, attempt: u64, node: usize) {
        let site = self.slots[slot].process.site;
        let local_ns = (self.plan.topology().local_rtt_ms() / 2.0 * 1e6) as u64;
        let at_ns = self.world.now_ns() + local_ns + self.far_ns(site, node);
        self.alarm(at_ns, ClientAlarm::Refused { slot, attempt });
    }

    /// Breaks all connections to a replica after its process has ended.
    pub(super) fn on_disconnect(&mut self, node: usize) {
        for slot in 0..self.slots.len() {
            let Some(operation) = &self.slots[slot].operation else {
                continue;
            };
            let place = operation.targets.iter().rposition(|target| *target == node);
            if let Some(place) = place.filter(|_| operation.open.contains(&node)) {
                let attempt = operation.first + place as u64;
                self.refuse(slot, attempt, node);
            }
        }
    }

    /// Handles an attempt that failed because its connection was refused or broke. If the attempt
    /// was the last one of its operation, sends another attempt to another replica.
    pub(super) fn refused(&mut self, slot: usize, attempt: u64) {
        let Some(node) = self.slots[slot].target(attempt) else {
            return;
        };
        let site = self.slots[slot].process.site;
        self.avoid(site, node);
        if let Some(operation) = &mut self.slots[slot].operation {
            operation.open.retain(|open| *open != node);
        }
        if self.is_last(slot, attempt) {
            self.send(slot);
        }
    }

    /// Stops sending the requests of a site's clients to a replica until the replica has answered a
    /// probe.
    fn avoid(&mut self, site: usize, node: usize) {
        let now_ns = self.world.now_ns();
        if self.routes[site].avoid(node, now_ns) {
            let at_ns = now_ns + PROBE_NS;
            self.alarm(at_ns, ClientAlarm::Probe { site, node });
        }
    }

    pub(super) fn probe(&mut self, site: usize, node: usize) {
        if !self.routes[site].avoids(node) {
            return;
        }
        if !self.world.refuses(node) {
            let from = ClientHandle {
                connection: PROBES + (site * self.routes.len() + node) as u64,
                request: 0,
            };
            let read = Op::multi_get(vec![key_name(PROBE_KEY)]).into();
            self.world.request(node, vec![(from, read)]);
        }
        let at_ns = self.world.now_ns() + PROBE_NS;
        self.alarm(at_ns, ClientAlarm::Probe { site, node });
    }

    pub(super) fn replied(&mut self, reply: ClientReply) {
        if let Some(probe) = reply.to.connection.checked_sub(PROBES) {
            let (site, node) = (
                probe as usize / self.routes.len(),
                probe as usize % self.routes.len(),
            );
            if !is_unavailable(&reply.outcome) {
                let now_ns = self.world.now_ns();
                self.routes[site].answered(node, now_ns);
            }
            return;
        }
        let slot = reply.to.connection as usize;
        let Some(node) = self.slots[slot].target(reply.to.request) else {
            return;
        };
        match self.far_ns(self.slots[slot].process.site, node) {
            0 => self.reply_arrives(reply, node),
            far_ns => {
                let reply = Box::new(reply);
                let at_ns = self.world.now_ns() + far_ns;
                self.alarm(at_ns, ClientAlarm::ReplyArrives { reply, node });
            }
        }
    }

    pub(super) fn reply_arrives(&mut self, reply: ClientReply, node: usize) {
        let (slot, attempt) = (reply.to.connection as usize, reply.to.request);
        let client = &mut self.slots[slot];
        if client.target(attempt).is_none() {
            return;
        }
        let Some(operation) = &mut client.operation else {
            return;
        };
        if is_unavailable(&reply.outcome) {
            operation.open.retain(|open| *open != node);
            if self.is_last(slot, attempt) {
                let at_ns = self.world.now_ns() + PAUSE_NS;
                self.alarm(at_ns, ClientAlarm::Retry { slot, attempt });
            }
            return;
        }
        // Attempts at replicas that were tried earlier have had their time.
        let place = operation.targets.iter().position(|target| *target == node);
        let earlier = operation.targets[..place.unwrap_or(0)].iter().copied();
        let overtaken: Vec<usize> = earlier.filter(|one| operation.open.contains(one)).collect();
        let site = client.process.site;
        overtaken
            .into_iter()
            .for_each(|node| self.avoid(site, node));
        self.complete(slot, Some((reply.path, &reply.outcome)));
    }
}

fn is_unavailable(outcome: &Outcome) -> bool {
    matches!(&outcome.result, Some(Answer::Error(error)) if error.code() == ErrorCode::Unavailable)
}
