//! Requests and answers as messages of `leasehold-wire`, for tools that record or show the full
//! answers of replicas. These messages change with the protocol, so they are not part of the stable
//! interface. The feature `raw` is only for the packages of Leasehold itself.

use std::sync::Arc;

#[cfg(feature = "raw")]
use leasehold_wire::{
    LeaseRequest, MoveRequest, StatusReply, StatusRequest, Welcome, command::Op, request::Body,
};
use leasehold_wire::{Outcome, Path};

#[cfg(feature = "raw")]
use crate::{client::Client, copies::OperationTrace, error::Error};

/// Result of a command in the form of a message. Also contains the path by which a read was served,
/// and the name of the replica that answered.
#[derive(Debug, Clone, PartialEq)]
pub struct RawReply {
    /// Outcome of the command; never an error. Errors are reported as [`Error::Refused`].
    pub outcome: Outcome,
    /// Path by which a read was served; `Log` or `Unspecified` for a write.
    pub path: Path,
    /// Name of the replica that answered.
    pub replica: Arc<str>,
}

/// Interface for requests and answers in the form of messages. [`Client::raw`] returns this
/// interface.
#[cfg(feature = "raw")]
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    client: &'a Client,
}

#[cfg(feature = "raw")]
impl Client {
    /// Returns the interface for requests and answers in the form of messages.
    pub fn raw(&self) -> Raw<'_> {
        Raw { client: self }
    }
}

#[cfg(feature = "raw")]
impl Raw<'_> {
    /// Returns the greeting that the nearest serving replica sent when its connection was last
    /// made.
    pub fn welcome(self) -> Welcome {
        self.client.last_welcome()
    }

    /// Executes one command and waits for its result.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn execute(self, op: Op) -> Result<RawReply, Error> {
        self.execute_traced(op).await.0
    }

    /// Executes one command as [`Raw::execute`] does. Also returns the replicas to which the
    /// command was sent.
    pub async fn execute_traced(self, op: Op) -> (Result<RawReply, Error>, OperationTrace) {
        self.client.execute_op(op).await
    }

    /// Requests the status of a replica.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn status(self, request: StatusRequest) -> Result<StatusReply, Error> {
        self.client.request_status(Body::Status(request)).await
    }

    /// Moves leadership as [`Admin::move_leadership`](crate::Admin::move_leadership) does, and
    /// returns the answer as a message.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn move_leadership(self, to: &str) -> Result<StatusReply, Error> {
        let body = Body::Move(MoveRequest { to: to.to_owned() });
        self.client.request_status(body).await
    }

    /// Changes leases as [`Admin::set_leases`](crate::Admin::set_leases) does. The request and the
    /// answer have the form of messages.
    ///
    /// # Errors
    /// The same errors as [`Client::execute`].
    pub async fn set_leases(self, wanted: LeaseRequest) -> Result<StatusReply, Error> {
        self.client.request_status(Body::Lease(wanted)).await
    }
}
