//! Clients that have requested the leader's counts of the demand for keys, and the pass over these
//! counts.
//!
//! A pass over a million keys takes longer than the event loop may be blocked. So the pass is made
//! in slices, one in each event-loop iteration. One pass answers all clients that wait.

use std::cell::RefCell;

use leasehold_wire::{Demand, StatusRequest};

use leasehold_replica::Replica;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::advice::DemandPass;

/// Number of keys that are visited in one event-loop iteration. Visiting them takes about a
/// millisecond.
const KEYS_PER_ITERATION: usize = 4096;

/// Number of clients that are answered in one event-loop iteration. The number is small, because
/// each answer may be megabytes long.
const ANSWERS_PER_ITERATION: usize = 1;

/// Clients that wait for the demand, and the current pass over the demand.
#[derive(Debug, Default)]
pub(crate) struct DemandPasses(RefCell<PassState>);

#[derive(Debug, Default)]
struct PassState {
    /// Clients that wait for the end of the current pass, and their requests.
    waiting: Vec<(ClientHandle, StatusRequest)>,
    pass: Option<DemandPass>,
    /// Result of an earlier pass: the demand, and the clients that have not been answered yet.
    answers: Option<DemandAnswers>,
}

/// Clients that must be answered, their requests, and the demand to report to these clients. The
/// demand is `None` if the replica does not lead.
pub(crate) type DemandAnswers = (Vec<(ClientHandle, StatusRequest)>, Option<Demand>);

impl DemandPasses {
    /// Adds a client that has requested the demand. `request` is the client's request.
    pub(crate) fn submit(&self, client: ClientHandle, request: StatusRequest) {
        self.0.borrow_mut().waiting.push((client, request));
    }

    /// Returns true if no client waits for an answer.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.0.borrow();
        state.waiting.is_empty() && state.answers.is_none()
    }

    /// Visits the next keys. Returns the clients that must be answered now, if there are any.
    pub(crate) fn advance(&self, replica: &Replica) -> Option<DemandAnswers> {
        let state = &mut *self.0.borrow_mut();
        if state.answers.is_none() {
            state.answers = state.advance(replica);
        }
        let (clients, demand) = state.answers.as_mut()?;
        let next = clients.len().min(ANSWERS_PER_ITERATION);
        let answered = (clients.drain(..next).collect(), demand.clone());
        if clients.is_empty() {
            state.answers = None;
        }
        Some(answered)
    }
}

impl PassState {
    /// Visits the next keys. After the last key, returns the clients that have waited for this
    /// pass.
    fn advance(&mut self, replica: &Replica) -> Option<DemandAnswers> {
        let state = self;
        if state.waiting.is_empty() {
            return None;
        }
        // The pass is begun again in a later leadership, and ends if the replica does not lead.
        let begun = state.pass.take().filter(|pass| replica.may_go_on(pass));
        let Some(mut pass) = begun.or_else(|| replica.begin_demand_pass()) else {
            return Some((std::mem::take(&mut state.waiting), None));
        };
        if !replica.look_at_demand(&mut pass, KEYS_PER_ITERATION) {
            state.pass = Some(pass);
            return None;
        }
        let found = replica.finish_demand_pass(pass);
        Some((std::mem::take(&mut state.waiting), Some(found)))
    }
}
