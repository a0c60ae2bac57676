//! Admin requests of operators that change leases (§11). The leader checks each request, proposes a
//! configuration with the requested changes, and answers once that configuration is in force.

use std::collections::VecDeque;

use leasehold_leases::config::{RANGES_MAX, STARTS_BYTES_MAX};
use leasehold_leases::{
    ConfigChange, ConfigId, KeyRange, LeaseParams, Policy, RangeChange, RangeMap, ReplicaId,
    StrategySpec,
};

use super::{Leasing, durations};
use crate::action::Event;
use crate::context::ReplicaContext;
use crate::handles::Requester;
use crate::lease_set::{Durations, InForce, LeaseAnswer, LeaseSet, Refusal};
use crate::message::Message;
use crate::step::Step;

/// Maximum number of unanswered requests at a leader. The leader refuses further requests.
const REQUESTS_MAX: usize = 64;

/// Number of answers that a leader remembers.
const ANSWERED_MAX: usize = 256;

/// Request that is not answered yet.
#[derive(Clone, Debug, Hash)]
struct LeaseSetRequest {
    /// Replica that passed the request on, and the run in which the replica did so. The next field,
    /// `ask`, is the ID that the replica gave to the request in this run.
    from: Requester,
    ask: u64,
    set: LeaseSet,
    /// Whether a configuration with the requested change was proposed.
    proposed: bool,
}

/// Requests of operators that the leader has received.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct LeaseSetRequests {
    /// Requests that are to be put in force, in the order in which they arrived.
    waiting: Vec<LeaseSetRequest>,
    /// Leases as they will be after all waiting requests. They are stored here so that the leader
    /// need not merge the waiting requests again for the next request.
    merged: Option<MergedLeases>,
    /// Requests that would change nothing, as far as this leader knows. They are answered once a
    /// majority confirms that this replica still leads.
    unconfirmed: Vec<UnconfirmedRequest>,
    /// Answered requests, the newest last.
    answered: VecDeque<AnsweredRequest>,
}

/// Leases as they will be after a configuration with the requested changes.
#[derive(Clone, Debug, Hash)]
struct MergedLeases {
    /// Newest configuration at the time of the merge. These leases are based on that configuration.
    after: ConfigId,
    policies: RangeMap<Policy>,
    params: LeaseParams,
}

/// Request with a final answer. The request is remembered because a second copy of it may arrive
/// late. The second copy must not undo later changes. If the request was refused, the second copy
/// must not be put in force.
#[derive(Clone, Debug, Hash)]
struct AnsweredRequest {
    from: Requester,
    ask: u64,
    set: LeaseSet,
    answer: LeaseAnswer,
}

/// Request for settings that were in force already when the leader checked. Another leader may have
/// changed the leases meanwhile. So the request is answered only after a majority has answered a
/// probe that was sent after the check.
#[derive(Clone, Debug, Hash)]
struct UnconfirmedRequest {
    request: LeaseSetRequest,
    /// Newest configuration at the time of the leader's check.
    config: ConfigId,
    /// Sequence number of the probe that a majority must answer; `None` if that probe is not sent
    /// yet.
    probe: Option<u64>,
}

impl LeaseSetRequests {
    pub(super) fn clear(&mut self) {
        *self = LeaseSetRequests::default();
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.unconfirmed.len()
    }

    /// Whether this leader already has an equal request from the same replica and has not answered
    /// it yet.
    fn knows(&self, from: Requester, ask: u64, set: &LeaseSet) -> bool {
        let same = |request: &LeaseSetRequest| {
            request.from == from && request.ask == ask && request.set == *set
        };
        let found = self.unconfirmed.iter().map(|found| &found.request);
        self.waiting.iter().chain(found).any(same)
    }

    /// Returns the earlier answer to a request, if an answer to an equal request is remembered.
    fn answer_to(&self, from: Requester, ask: u64, set: &LeaseSet) -> Option<LeaseAnswer> {
        let same = |it: &&AnsweredRequest| it.from == from && it.ask == ask && it.set == *set;
        self.answered.iter().find(same).map(|it| it.answer.clone())
    }

    fn note_answered(&mut self, answered: AnsweredRequest) {
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back(answered);
    }

    /// Notes that a configuration with all waiting requests was proposed.
    pub(super) fn mark_proposed(&mut self) {
        self.waiting
            .iter_mut()
            .for_each(|request| request.proposed = true);
    }

    /// Adds a request, unless this leader has the request already. Returns whether the request is
    /// new. The same request may arrive again, because the replica that passes it on may repeat it.
    /// `merged` are the leases as they will be after all waiting requests and the new request.
    fn add(&mut self, request: LeaseSetRequest, merged: MergedLeases) -> bool {
        if self.knows(request.from, request.ask, &request.set) {
            return false;
        }
        let (from, ask) = (request.from.replica, request.ask);
        let same = |other: &LeaseSetRequest| other.from.replica == from && other.ask == ask;
        // A request with the same number is from an earlier run of the replica that passes it on.
        self.unconfirmed.retain(|found| !same(&found.request));
        match self.waiting.iter_mut().find(|other| same(other)) {
            Some(known) => {
                *known = request;
                self.merged = None;
            }
            None => {
                self.waiting.push(request);
                self.merged = Some(merged);
            }
        }
        assert!(
            self.len() <= REQUESTS_MAX,
            "at most {REQUESTS_MAX} requests are kept"
        );
        true
    }
}

impl Leasing {
    /// Handles an operator's request that replica `from` passes on to this leader. Returns whether
    /// the next configuration should include the request. `has_begun` is true if the leader has
    /// executed all configurations that earlier leaders proposed. Before that, the leader does not
    /// know which settings are in force.
    pub fn take_request(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        ask: u64,
        set: LeaseSet,
        has_begun: bool,
    ) -> bool {
        let from = requester(step, from);
        if self.leader_state.requests.knows(from, ask, &set) {
            return false;
        }
        if let Some(before) = self.leader_state.requests.answer_to(from, ask, &set) {
            report_answer(step, from.replica, ask, before);
            return false;
        }
        let merged = match self.merge(step, &set, has_begun) {
            Ok(merged) => merged,
            Err(refusal) => {
                self.answer(step, from, ask, set, Err(refusal));
                return false;
            }
        };
        let request = LeaseSetRequest {
            from,
            ask,
            set,
            proposed: false,
        };
        let fresh = self.leader_state.requests.add(request, merged);
        if fresh {
            // The pass under way does not include the new request. A repeated request must not
            // restart the pass, which may take longer than the time between two repetitions.
            self.leader_state.survey = None;
            self.leader_state.remaining = None;
        }
        fresh
    }

    /// Merges a request with the waiting requests.
    ///
    /// # Errors
    /// Returns the refusal, if the request is refused.
    fn merge(
        &self,
        step: &Step<'_>,
        set: &LeaseSet,
        has_begun: bool,
    ) -> Result<MergedLeases, Refusal> {
        if let Some(reason) = self.invalid(step.ctx, set) {
            return Err(Refusal::Invalid(reason));
        }
        if let Some(reason) = self.busy(step, set, has_begun) {
            return Err(Refusal::Busy(reason));
        }
        self.merge_if_fit(step.ctx, set).map_err(Refusal::Invalid)
    }

    /// Returns the reason for a refusal if no configuration could ever include this request;
    /// otherwise `None`.
    fn invalid(&self, ctx: &ReplicaContext, set: &LeaseSet) -> Option<String> {
        let voters = ctx.members.voters();
        let unknown = |(_, spec): &(KeyRange, StrategySpec)| match spec {
            StrategySpec::Fixed { holders } => {
                holders.is_some_and(|holders| holders.is_empty() || !holders.is_subset(voters))
            }
            _ => false,
        };
        let holders = || "holders: must be replicas of this cluster, at least one".to_owned();
        set.strategies.iter().any(unknown).then(holders)
    }

    /// Returns the reason for a refusal if this request cannot be checked or accepted at present;
    /// otherwise `None`.
    fn busy(&self, step: &Step<'_>, set: &LeaseSet, has_begun: bool) -> Option<String> {
        let heard = step
            .ctx
            .others()
            .filter(|other| step.ctx.is_heard(step.now, *other));
        let lives = heard.chain([step.me()]).collect();
        let measured = || self.demand_tracker.matrix.is_known(step.ctx, lives);
        if !has_begun {
            return Some("the leader has just begun: ask again".to_owned());
        }
        if set.durations != Durations::default() && !measured() {
            let reason =
                "the leader does not know the round trips between all nodes yet: ask again";
            return Some(reason.to_owned());
        }
        let full = self.leader_state.requests.len() >= REQUESTS_MAX;
        full.then(|| {
            format!("{REQUESTS_MAX} changes of leases wait for an answer at the leader: ask again")
        })
    }

    /// Merges a request with the leases as they will be after all waiting requests.
    ///
    /// # Errors
    /// Returns the reason, and values that would be accepted, if the result is not valid.
    fn merge_if_fit(&self, ctx: &ReplicaContext, set: &LeaseSet) -> Result<MergedLeases, String> {
        let mut merged = self.waiting_merged();
        let mut change = ConfigChange::default();
        self.add(&mut change, &set.strategies, &mut merged.policies);
        if !merged.policies.fits() {
            return Err(format!(
                "range: there are {RANGES_MAX} ranges at most, which begin with {STARTS_BYTES_MAX} bytes of keys at \
                 most, together; set one strategy for a range that covers several of them first"
            ));
        }
        if set.durations == Durations::default() {
            return Ok(merged);
        }
        merged.params = set.durations.in_place(&merged.params);
        let distance = self.demand_tracker.matrix.longest(ctx);
        match durations::unfit(&merged.params, distance, set.force) {
            Some(reason) => Err(reason),
            None => Ok(merged),
        }
    }

    /// Returns the leases as they will be after all waiting requests.
    fn waiting_merged(&self) -> MergedLeases {
        let after = self.configs.newest();
        let known = self.leader_state.requests.merged.as_ref();
        if let Some(merged) = known.filter(|merged| merged.after == after) {
            return merged.clone();
        }
        let mut change = ConfigChange::default();
        let mut params = *self.configs.params(after);
        let (policies, _) = self.add_requests(&mut change, &mut params);
        MergedLeases {
            after,
            policies,
            params,
        }
    }

    /// Adds the changes of all waiting requests to `change` and `params`. Returns the resulting
    /// policies of all ranges, and the number of requests at the front of the queue that are in
    /// force already.
    pub(super) fn add_requests(
        &self,
        change: &mut ConfigChange,
        params: &mut LeaseParams,
    ) -> (RangeMap<Policy>, usize) {
        let newest = *self.configs.params(self.configs.newest());
        let requests = &self.leader_state.requests.waiting;
        let mut policies = self.configs.policies_after(&change.ranges);
        let mut already = 0;
        let mut nothing = true;
        for (index, request) in requests.iter().enumerate() {
            self.add(change, &request.set.strategies, &mut policies);
            *params = request.set.durations.in_place(params);
            nothing = *change == ConfigChange::default() && *params == newest;
            already += usize::from(nothing && already == index);
        }
        assert!(
            already <= requests.len(),
            "a configuration in force was requested"
        );
        // A later request may undo an earlier one. If all of them together change nothing, nothing
        // is proposed.
        let already = if nothing { requests.len() } else { already };
        (policies, already)
    }

    /// Adds the requested strategies to `change`. Omits a strategy if its whole range will have
    /// this strategy anyway once `change` is in force. `policies` are the policies of all ranges
    /// once `change` is in force. This function updates `policies` for the added strategies.
    fn add(
        &self,
        change: &mut ConfigChange,
        wanted: &[(KeyRange, StrategySpec)],
        policies: &mut RangeMap<Policy>,
    ) {
        let before = change.ranges.len();
        for (range, spec) in wanted {
            let within = || policies.overlapping(range);
            if within().all(|(_, policy)| policy.strategy == *spec) {
                continue;
            }
            change.ranges.push(RangeChange {
                // A strategy that lists no keys clears all parts of the range in one step, so they
                // become one range.
                clear: !spec.wants_demand() && within().count() > 1,
                ..RangeChange::strategy(range.clone(), spec.clone())
            });
        }
        self.configs
            .change_further(policies, &change.ranges[before..]);
    }

    /// Notes that the first `already` waiting requests are in force already, as far as this leader
    /// knows. A majority must still confirm that this replica leads.
    pub(super) fn note_in_force(&mut self, already: usize) {
        let config = self.configs.newest();
        let requests = &mut self.leader_state.requests;
        requests.merged = None;
        let found = requests
            .waiting
            .drain(..already)
            .map(|request| UnconfirmedRequest {
                request,
                config,
                probe: None,
            });
        requests.unconfirmed.extend(found);
    }

    /// Makes all new unconfirmed requests wait for `probe`, the next probe to be sent. Returns
    /// whether there are any such requests.
    pub fn await_probe(&mut self, probe: u64) -> bool {
        let found = self.leader_state.requests.unconfirmed.iter_mut();
        let fresh = found.filter(|found| found.probe.is_none());
        fresh.map(|found| found.probe = Some(probe)).count() > 0
    }

    /// Answers the unconfirmed requests that wait for probes up to `confirmed`. A majority has
    /// answered these probes. So this replica still led when it found that the requested settings
    /// were in force.
    pub fn answer_confirmed(&mut self, step: &mut Step<'_>, confirmed: u64) {
        let may_say =
            |found: &mut UnconfirmedRequest| found.probe.is_some_and(|probe| probe <= confirmed);
        let found = &mut self.leader_state.requests.unconfirmed;
        let ended: Vec<UnconfirmedRequest> = found.extract_if(.., may_say).collect();
        for UnconfirmedRequest {
            request, config, ..
        } in ended
        {
            let already = true;
            let in_force = Ok(InForce { config, already });
            self.answer(step, request.from, request.ask, request.set, in_force);
        }
    }

    /// Answers the requests that configuration `config` has put in force. This configuration was
    /// just executed.
    pub fn answer_requests(&mut self, step: &mut Step<'_>, config: ConfigId) {
        assert_eq!(
            config,
            self.configs.newest(),
            "the configuration just executed is in force"
        );
        self.leader_state.requests.merged = None;
        let waiting = &mut self.leader_state.requests.waiting;
        let proposed: Vec<LeaseSetRequest> =
            waiting.extract_if(.., |request| request.proposed).collect();
        for request in proposed {
            let already = false;
            let in_force = Ok(InForce { config, already });
            self.answer(step, request.from, request.ask, request.set, in_force);
        }
    }

    /// Reports the outcome of a request to the replica that passed it on. Remembers the answer,
    /// unless the request may be repeated (`Busy`).
    fn answer(
        &mut self,
        step: &mut Step<'_>,
        from: Requester,
        ask: u64,
        set: LeaseSet,
        answer: LeaseAnswer,
    ) {
        if !matches!(answer, Err(Refusal::Busy(_))) {
            self.leader_state.requests.note_answered(AnsweredRequest {
                from,
                ask,
                set,
                answer: answer.clone(),
            });
        }
        report_answer(step, from.replica, ask, answer);
    }
}

/// Returns the present run of the replica that passes a request on.
fn requester(step: &Step<'_>, replica: ReplicaId) -> Requester {
    let incarnation = if replica == step.me() {
        step.ctx.incarnation
    } else {
        step.ctx.incarnation_of(replica)
    };
    Requester {
        replica,
        incarnation,
    }
}

fn report_answer(step: &mut Step<'_>, to: ReplicaId, ask: u64, answer: LeaseAnswer) {
    if to == step.me() {
        step.announce(Event::LeaseAnswered { ask, answer })
    } else {
        step.send(to, Message::LeaseAnswer { ask, answer })
    }
}
