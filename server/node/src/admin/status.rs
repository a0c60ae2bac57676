//! Answers to operators' requests for a node's status, for a change of leases, and for another
//! leader. The answers are made between two event-loop iterations.

use leasehold_leases::Time;
use leasehold_wire::{Counter, LeaseRequest, StatusReply, StatusRequest};

use crate::admin::lease_changes;
use crate::admin::transfers::{TransferAdmission, TransferContext};
use crate::driver::Driver;
use crate::front::inbox;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::input::{Input, OperatorRequest};

impl Driver {
    pub(crate) fn answer_statuses(&self, now: Time) {
        let mut waiting = self.inbox.take_statuses(|| self.replica.sizes());
        let of_demand = waiting.extract_if(.., |(_, request)| request.demand);
        of_demand.for_each(|(client, request)| self.demand_passes.submit(client, request));
        if waiting.is_empty() {
            return;
        }
        let status = self.with_names(self.replica.status(now));
        for (client, request) in waiting {
            self.answer_status(now, client, &request, status.clone());
        }
    }

    /// Adds to `status` the optional parts that the client has requested, and sends the status to
    /// the client.
    fn answer_status(
        &self,
        now: Time,
        client: ClientHandle,
        request: &StatusRequest,
        mut status: StatusReply,
    ) {
        if request.holders {
            self.replica
                .describe_holders(now, &request.key, &mut status);
            self.name_all(&mut status.holders);
            self.name_all(&mut status.may_hold);
        }
        if request.leases {
            self.replica.describe_leases(&mut status);
            self.name_ranges(&mut status);
        }
        self.clients.reply_status(client, status);
    }

    /// Adds the demand for the next keys to the answer, if clients wait for one. After the last
    /// key, sends the answer.
    pub(crate) fn answer_demand(&self, now: Time) {
        let Some((clients, demand)) = self.demand_passes.advance(&self.replica) else {
            return;
        };
        let status = StatusReply {
            demand,
            ..self.replica.status(now)
        };
        let status = self.with_names(status);
        for (client, request) in clients {
            self.answer_status(now, client, &request, status.clone());
        }
    }

    /// Takes requests for leadership transfers from the inbox. Answers the requests that have
    /// succeeded or failed.
    pub(crate) fn answer_transfers(&self, now: Time) {
        let requests = self.inbox.take_transfers();
        if requests.is_empty() && self.transfers.is_empty() {
            return;
        }
        let context = TransferContext {
            now,
            names: &self.names,
            leader: self.replica.leader(),
            silent: self.replica.out_of_touch(now),
            timeout: self.replica.transfer_duration_max(),
        };
        let transfer = |to| {
            self.inbox
                .push(Input::Operator(OperatorRequest::Transfer(to)))
        };
        for (client, request) in requests {
            match self.transfers.submit(client, &request, &context) {
                TransferAdmission::AlreadyLeads(to) => {
                    transfer(to);
                    self.reply_status(now, client);
                }
                TransferAdmission::Started(to) => transfer(to),
                TransferAdmission::Rejected(refusal) => self.clients.refuse(client, refusal),
            }
        }
        for (client, end) in self.transfers.take_ended(&context) {
            match end {
                Ok(()) => self.reply_status(now, client),
                Err(refusal) => self.clients.refuse(client, refusal),
            }
        }
    }

    /// Takes requests for lease changes from the inbox, and passes them to the leader. Answers the
    /// requests that have ended.
    pub(crate) fn answer_lease_changes(&mut self, now: Time) {
        let requests = self.inbox.take_leases(
            || self.replica.sizes(),
            |request| self.changes_leases(request),
        );
        if requests.is_empty() && self.lease_changes.is_empty() {
            return;
        }
        let context = lease_changes::LeaseChangeContext {
            now,
            names: &self.names,
            configs: self.replica.configs(),
            leader: self.replica.leader(),
            timeout: self.replica.transfer_duration_max() * 2,
        };
        for (client, request) in requests {
            if let Err(refusal) = self.lease_changes.submit(client, &request, &context) {
                self.clients.refuse(client, refusal);
            }
        }
        for operator in self.lease_changes.due(now) {
            self.inbox.push(Input::Operator(operator));
        }
        let most = inbox::lease_answers_per_iteration(self.replica.sizes());
        for (client, end) in self.lease_changes.take_ended(&context, most) {
            match end {
                Ok(in_force) => {
                    let mut status = self.replica.status(now);
                    self.replica.describe_leases(&mut status);
                    if let Some(leases) = &mut status.leases {
                        leases.already = in_force.already;
                    }
                    self.clients.reply_status(client, self.with_names(status));
                }
                Err(refusal) => self.clients.refuse(client, refusal),
            }
        }
    }

    /// Returns true if some part of a request is not in force yet. Strategies are compared by name
    /// only.
    fn changes_leases(&self, request: &LeaseRequest) -> bool {
        let configs = self.replica.configs();
        let Ok(range) = lease_changes::range(request) else {
            return false;
        };
        let mut within = configs.policies().overlapping(&range);
        let names = within.all(|(_, policy)| policy.strategy.name() == request.strategy);
        let settings = &LeaseRequest {
            from: request.from.clone(),
            to: request.to.clone(),
            strategy: request.strategy.clone(),
            ..LeaseRequest::default()
        };
        !names || request != settings
    }

    fn reply_status(&self, now: Time, client: ClientHandle) {
        let status = self.with_names(self.replica.status(now));
        self.clients.reply_status(client, status);
    }

    /// Adds the names of replicas to a status, because the core knows replicas by number only.
    fn with_names(&self, mut status: StatusReply) -> StatusReply {
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
        status
            .counters
            .extend(self.metrics().map(|(name, value)| Counter {
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
