//! Moves of leadership that clients asked for and that are not answered yet. Any replica
//! takes one, passes it on to the leader, and answers once it sees the new leader.

use std::cell::RefCell;
use std::time::Duration;

use client::wire::{Error, ErrorCode, MoveRequest};
use leases::{ReplicaId, Time};

use crate::replica::action::ClientHandle;

/// A move that is under way.
#[derive(Debug)]
struct Move {
    client: ClientHandle,
    to: ReplicaId,
    give_up: Time,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Moves(RefCell<Vec<Move>>);

/// Whether a move can begin.
pub(super) enum Asked {
    /// It is done already.
    Leads,
    /// The replica is to be told.
    Begun(ReplicaId),
    /// It cannot.
    Refused(Error),
}

impl Moves {
    /// A client asks. `names` are those of the replicas, `leader` leads now, and `patience`
    /// is how long a handing over may take.
    pub(super) fn ask(
        &self,
        (client, asked): (ClientHandle, &MoveRequest),
        names: &[String],
        leader: Option<ReplicaId>,
        (now, patience): (Time, Duration),
    ) -> Asked {
        let Some(index) = names.iter().position(|name| *name == asked.to) else {
            let problem = format!(
                "there is no node {:?}; the cluster has {}",
                asked.to,
                names.join(", ")
            );
            return Asked::Refused(Error::new(ErrorCode::BadRequest, problem));
        };
        let to = ReplicaId(index as u8);
        if leader.is_none() {
            let problem = "nobody leads now, as this replica knows: ask again in a moment";
            return Asked::Refused(Error::new(ErrorCode::Unavailable, problem));
        }
        if leader == Some(to) {
            return Asked::Leads;
        }
        self.0.borrow_mut().push(Move {
            client,
            to,
            give_up: now + patience,
        });
        Asked::Begun(to)
    }

    /// Clients whose move is done: `leader` leads.
    pub(super) fn take_done(&self, leader: Option<ReplicaId>) -> Vec<ClientHandle> {
        self.take(|waiting| Some(waiting.to) == leader)
    }

    /// Clients whose move has taken too long.
    pub(super) fn take_overdue(&self, now: Time) -> Vec<ClientHandle> {
        self.take(|waiting| now >= waiting.give_up)
    }

    fn take(&self, over: impl Fn(&Move) -> bool) -> Vec<ClientHandle> {
        let mut waiting = self.0.borrow_mut();
        if waiting.is_empty() {
            return Vec::new();
        }
        waiting
            .extract_if(.., |waiting| over(waiting))
            .map(|over| over.client)
            .collect()
    }

    /// The next time at which one has taken too long.
    pub(super) fn next_deadline(&self) -> Time {
        let waiting = self.0.borrow();
        let deadlines = waiting.iter().map(|waiting| waiting.give_up);
        deadlines.min().unwrap_or(Time::MAX)
    }
}
