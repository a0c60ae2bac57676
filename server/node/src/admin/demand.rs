//! Clients that asked for the demand that the leader knows, and the pass that is made for them.
//!
//! A pass over a million keys takes longer than the loop may stand still. So it is made in
//! slices, one in each event-loop iteration, and all clients that wait are answered by the same
//! pass.

use std::cell::RefCell;

use leasehold_wire::{Demand, StatusRequest};

use leasehold_replica::Replica;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::advice::DemandPass;

/// Number of keys that are looked at in one event-loop iteration: about a millisecond.
const KEYS_PER_ITERATION: usize = 4096;

/// Number of clients that are answered in one round: an answer may have megabytes.
const ANSWERS_PER_ITERATION: usize = 1;

/// Clients that wait for the demand, and the pass that is made for them.
#[derive(Debug, Default)]
pub(crate) struct DemandPasses(RefCell<PassState>);

#[derive(Debug, Default)]
struct PassState {
    /// Clients that are answered once the pass is over, with their requests.
    waiting: Vec<(ClientHandle, StatusRequest)>,
    pass: Option<DemandPass>,
    /// Clients of an earlier pass that are still to be answered, and their answer.
    answers: Option<DemandAnswers>,
}

/// Clients to be answered, and the demand for them; `None`: the replica does not lead.
pub(crate) type DemandAnswers = (Vec<(ClientHandle, StatusRequest)>, Option<Demand>);

impl DemandPasses {
    /// A client asks.
    pub(crate) fn submit(&self, client: ClientHandle, request: StatusRequest) {
        self.0.borrow_mut().waiting.push((client, request));
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        let state = self.0.borrow();
        state.waiting.is_empty() && state.answers.is_none()
    }

    /// Looks at some more keys. Returns the clients to be answered now, if there are any.
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
    /// Looks at some more keys. After the last, returns the clients that waited.
    fn advance(&mut self, replica: &Replica) -> Option<DemandAnswers> {
        let state = self;
        if state.waiting.is_empty() {
            return None;
        }
        // It is begun again in a later leadership, and ends where there is none.
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
