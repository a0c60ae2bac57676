//! What has arrived and was not yet given to the replica.

use std::cell::RefCell;

use client::wire::{LeaseRequest, MoveRequest, StatusRequest};
use tokio::sync::Notify;

use crate::replica::action::ClientHandle;
use crate::replica::input::Input;

/// Filled by connections, emptied by the driver, on one thread.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    inputs: RefCell<Vec<Input>>,
    statuses: RefCell<Vec<(ClientHandle, StatusRequest)>>,
    moves: RefCell<Vec<(ClientHandle, MoveRequest)>>,
    leases: RefCell<Vec<(ClientHandle, LeaseRequest)>>,
    arrived: Notify,
}

impl Inbox {
    /// Adds an input. Call [`Inbox::ring`] after the last one that is available now.
    pub(super) fn push(&self, input: Input) {
        self.inputs.borrow_mut().push(input);
    }

    /// Adds a question about the replica's status. Call [`Inbox::ring`] afterwards.
    pub(super) fn push_status(&self, from: ClientHandle, asked: StatusRequest) {
        self.statuses.borrow_mut().push((from, asked));
    }

    /// Adds a wish to move leadership. Call [`Inbox::ring`] afterwards.
    pub(super) fn push_move(&self, from: ClientHandle, asked: MoveRequest) {
        self.moves.borrow_mut().push((from, asked));
    }

    /// Adds a wish to change leases. Call [`Inbox::ring`] afterwards.
    pub(super) fn push_lease(&self, from: ClientHandle, asked: LeaseRequest) {
        self.leases.borrow_mut().push((from, asked));
    }

    /// Wakes the driver.
    pub(super) fn ring(&self) {
        self.arrived.notify_one();
    }

    /// Waits for a ring, unless something is here already.
    pub(super) async fn arrival(&self) {
        while self.is_empty() {
            self.arrived.notified().await;
        }
    }

    fn is_empty(&self) -> bool {
        let asked = self.statuses.borrow().is_empty() && self.moves.borrow().is_empty();
        let asked = asked && self.leases.borrow().is_empty();
        asked && self.inputs.borrow().is_empty()
    }

    /// Takes all inputs, leaving the empty `into` in their place, so that no
    /// memory is taken anew for each group.
    pub(super) fn take(&self, into: &mut Vec<Input>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut *self.inputs.borrow_mut(), into);
    }

    /// Takes the wishes to move leadership.
    pub(super) fn take_moves(&self) -> Vec<(ClientHandle, MoveRequest)> {
        std::mem::take(&mut self.moves.borrow_mut())
    }

    /// Takes the wishes to change leases.
    pub(super) fn take_leases(&self) -> Vec<(ClientHandle, LeaseRequest)> {
        std::mem::take(&mut self.leases.borrow_mut())
    }

    /// Takes the questions.
    pub(super) fn take_statuses(&self) -> Vec<(ClientHandle, StatusRequest)> {
        std::mem::take(&mut self.statuses.borrow_mut())
    }
}
