//! Admin requests to a node: for its status, other holders, another leader. They are answered
//! between two event-loop iterations.

use leasehold_leases::Time;
use leasehold_wire::{Counter, LeaseRequest, StatusReply, StatusRequest};

use super::clock;
use super::driver::Driver;
use super::inbox;
use super::lease_wishes;
use super::moves::{Asked, Scene};
use leasehold_replica::action::ClientHandle;
use leasehold_replica::input::{Input, Operator};

impl Driver {
    pub(super) fn answer_statuses(&self, now: Time) {
        let mut waiting = self.inbox.take_statuses(|| self.replica.sizes());
        let of_demand = waiting.extract_if(.., |(_, asked)| asked.demand);
        of_demand.for_each(|(client, asked)| self.demand_passes.ask(client, asked));
        if waiting.is_empty() {
            return;
        }
        let status = self.named(self.replica.status(now));
        for (client, asked) in waiting {
            self.answer_status(now, (client, &asked), status.clone());
        }
    }

    /// Adds to `status` what else was asked for, and answers.
    fn answer_status(
        &self,
        now: Time,
        (client, asked): (ClientHandle, &StatusRequest),
        mut status: StatusReply,
    ) {
        if asked.holders {
            self.replica.tell_holders(now, &asked.key, &mut status);
            self.name_all(&mut status.holders);
            self.name_all(&mut status.may_hold);
        }
        if asked.leases {
            self.replica.tell_leases(&mut status);
            self.name_ranges(&mut status);
        }
        self.clients.reply_status(client, status);
    }

    /// Looks at some of the demand, if clients wait for that, and answers them after the last.
    pub(super) fn answer_demand(&self, now: Time) {
        let Some((clients, demand)) = self.demand_passes.look(&self.replica) else {
            return;
        };
        let status = StatusReply {
            demand,
            ..self.replica.status(now)
        };
        let status = self.named(status);
        for (client, asked) in clients {
            self.answer_status(now, (client, &asked), status.clone());
        }
    }

    /// Takes wishes to move leadership, and answers those that have come true or that will not.
    pub(super) fn answer_moves(&self, now: Time) {
        let asked = self.inbox.take_moves();
        if asked.is_empty() && self.moves.is_empty() {
            return;
        }
        let scene = Scene {
            now,
            names: &self.names,
            leader: self.replica.leader(),
            silent: self.replica.out_of_touch(now),
            patience: self.replica.handing_over_max(),
        };
        let wish = |to| self.inbox.push(Input::Operator(Operator::Transfer(to)));
        for (client, asked) in asked {
            match self.moves.ask(client, &asked, &scene) {
                Asked::Leads(to) => {
                    wish(to);
                    self.reply_status(now, client);
                }
                Asked::Begun(to) => wish(to),
                Asked::Refused(refusal) => self.clients.refuse(client, refusal),
            }
        }
        for (client, end) in self.moves.take_ended(&scene) {
            match end {
                Ok(()) => self.reply_status(now, client),
                Err(refusal) => self.clients.refuse(client, refusal),
            }
        }
    }

    /// Takes wishes to change leases, passes them on, and answers those that have ended.
    pub(super) fn answer_wishes(&mut self, now: Time) {
        let asked = self
            .inbox
            .take_leases(|| self.replica.sizes(), |asked| self.changes(asked));
        if asked.is_empty() && self.wishes.is_empty() {
            return;
        }
        let scene = lease_wishes::Scene {
            now,
            names: &self.names,
            configs: self.replica.configs(),
            leader: self.replica.leader(),
            patience: self.replica.handing_over_max() * 2,
        };
        for (client, asked) in asked {
            if let Err(refusal) = self.wishes.ask(client, &asked, &scene) {
                self.clients.refuse(client, refusal);
            }
        }
        for operator in self.wishes.due(now) {
            self.inbox.push(Input::Operator(operator));
        }
        let most = inbox::lease_answers_a_round(self.replica.sizes());
        for (client, end) in self.wishes.take_ended(&scene, most) {
            match end {
                Ok(in_force) => {
                    let mut status = self.replica.status(now);
                    self.replica.tell_leases(&mut status);
                    if let Some(leases) = &mut status.leases {
                        leases.already = in_force.already;
                    }
                    self.clients.reply_status(client, self.named(status));
                }
                Err(refusal) => self.clients.refuse(client, refusal),
            }
        }
    }

    /// Returns true if some part of a request is not in force yet, as far as strategies' names
    /// tell.
    fn changes(&self, asked: &LeaseRequest) -> bool {
        let configs = self.replica.configs();
        let Ok(range) = lease_wishes::range(asked) else {
            return false;
        };
        let mut within = configs.policies().overlapping(&range);
        let names = within.all(|(_, policy)| policy.strategy.name() == asked.strategy);
        let settings = &LeaseRequest {
            from: asked.from.clone(),
            to: asked.to.clone(),
            strategy: asked.strategy.clone(),
            ..LeaseRequest::default()
        };
        !names || asked != settings
    }

    fn reply_status(&self, now: Time, client: ClientHandle) {
        let status = self.named(self.replica.status(now));
        self.clients.reply_status(client, status);
    }

    /// The core knows replicas by number.
    fn named(&self, mut status: StatusReply) -> StatusReply {
        self.name(&mut status.replica);
        self.name(&mut status.leader);
        for peer in &mut status.peers {
            self.name(&mut peer.name);
        }
        self.name_all(&mut status.unlisted);
        self.name_all(&mut status.excluded);
        self.name_ranges(&mut status);
        if let Some(demand) = &mut status.demand {
            self.name_all(&mut demand.replicas);
        }
        self.durability.name().clone_into(&mut status.durability);
        status.counters.push(Counter {
            name: "unsendable_messages".to_owned(),
            value: self.peers.unsendable(),
        });
        status.counters.push(Counter {
            name: "cpu_us".to_owned(),
            value: clock::processor_us(),
        });
        let shell = self.clients.counters().chain(self.clients.limits());
        let shell = shell.chain(self.peers.handshakes().counters());
        let shell = shell.chain(self.peers.counters());
        let shell = shell.chain(self.step_watch.counters());
        let shell = shell.chain(self.clients.access_counters());
        status.counters.extend(shell.map(|(name, value)| Counter {
            name: name.to_owned(),
            value,
        }));
        status
    }

    fn name_ranges(&self, status: &mut StatusReply) {
        let ranges = status.leases.iter_mut().flat_map(|it| &mut it.ranges);
        ranges.for_each(|range| self.name_all(&mut range.defaults));
    }

    fn name(&self, found: &mut String) {
        let known = found.parse::<usize>().ok();
        if let Some(name) = known.and_then(|id| self.names.get(id)) {
            found.clone_from(name);
        }
    }

    fn name_all(&self, found: &mut [String]) {
        for name in found {
            self.name(name);
        }
    }
}
