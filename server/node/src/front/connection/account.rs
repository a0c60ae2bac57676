//! Account of one connection. The account holds the charge of each request until the replica has
//! answered the request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use leasehold_leases::hashing::SeededState;

use super::SMALL_BYTES;
use super::budget::Budget;

/// Charges of the requests in flight on one connection. The account outlives the connection,
/// because the replica works on the requests even after the client has disconnected.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Rc<Budget>,
    in_flight: Cell<usize>,
    charged: Cell<usize>,
    /// Sum of the guessed extra costs of the reads in flight, in units of
    /// [`leasehold_replica::cost`]. These reads may cost more than their charges, by up to this
    /// sum.
    guessed: Cell<usize>,
    /// Charges of more than [`SMALL_BYTES`]. The keys are request numbers.
    large: RefCell<HashMap<u64, Charge, SeededState>>,
}

/// Charge of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    /// Number of bytes of the request and of its expected answer.
    pub(super) bytes: usize,
    /// Cost of a large write in units of [`leasehold_replica::cost`]; 0 for any other request.
    pub(super) large_write: usize,
    /// Number of cost units by which the request may exceed its charge. For example, a scan may
    /// find more entries than earlier scans found.
    pub(super) guessed: usize,
}

impl Account {
    pub(super) fn new(budget: Rc<Budget>) -> Account {
        Account {
            budget,
            in_flight: Cell::new(0),
            charged: Cell::new(0),
            guessed: Cell::new(0),
            large: RefCell::default(),
        }
    }

    /// Charges a request. No other request of the connection may have the same number.
    pub(super) fn charge(&self, request: u64, charge: Charge) {
        let bytes = charge.bytes.max(SMALL_BYTES);
        if bytes > SMALL_BYTES || charge.large_write > 0 || charge.guessed > 0 {
            let charge = Charge { bytes, ..charge };
            self.large.borrow_mut().insert(request, charge);
        }
        self.set_guessed(self.guessed.get() + charge.guessed);
        self.in_flight.set(self.in_flight.get() + 1);
        self.charged.set(self.charged.get() + bytes);
        self.budget.charged.set(self.budget.charged.get() + bytes);
    }

    /// Releases the charge of an answered request. Returns the cost of a large write in units; 0
    /// for any other request.
    pub(crate) fn release(&self, request: u64) -> usize {
        let mut large = self.large.borrow_mut();
        let charge = if large.is_empty() {
            None
        } else {
            large.remove(&request)
        };
        let charge = charge.unwrap_or(Charge {
            bytes: SMALL_BYTES,
            large_write: 0,
            guessed: 0,
        });
        self.set_guessed(self.guessed.get() - charge.guessed);
        let bytes = charge.bytes.min(self.charged.get());
        self.in_flight.set(self.in_flight.get().saturating_sub(1));
        self.charged.set(self.charged.get() - bytes);
        self.budget.charged.set(self.budget.charged.get() - bytes);
        charge.large_write
    }

    fn set_guessed(&self, units: usize) {
        let others = self.budget.guessed.get() - self.guessed.replace(units);
        self.budget.guessed.set(others + units);
    }

    /// Releases the charges for answers that a disconnected client will not receive. A large write
    /// keeps its charge, because the write continues. Every other request keeps the minimum charge.
    /// The guessed extra costs of reads are released only after the account's last request has
    /// ended, because the replica may still execute the reads.
    pub(crate) fn client_disconnected(&self) {
        let mut large = self.large.borrow_mut();
        let mut given_back = 0;
        large.retain(|_, charge| {
            let is_write = charge.large_write > 0;
            if !is_write {
                given_back += charge.bytes - SMALL_BYTES;
            }
            is_write
        });
        self.charged.set(self.charged.get() - given_back);
        let all = &self.budget.charged;
        all.set(all.get() - given_back);
    }

    /// Returns the number of requests that are not answered yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.get()
    }

    /// Returns the number of bytes that are charged for requests in flight.
    pub(super) fn charged(&self) -> usize {
        self.charged.get()
    }
}

/// Dropping the account releases all charges that are left. Charges of unanswered requests are left
/// only if the replica ends before it answers these requests.
impl Drop for Account {
    fn drop(&mut self) {
        let left = self.budget.charged.get() - self.charged.get();
        self.budget.charged.set(left);
        self.set_guessed(0);
    }
}
