//! What the load generator needs of a store: one operation of the wire protocol at a
//! time. A trait, so that the generator can be tested without a cluster.

use std::future::Future;
use std::sync::Arc;

use client::wire::{ErrorCode, command::Op};
use client::{Client, Error, Reply};

use crate::measurement::{ReplicaName, Return};

/// Why an operation has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How it is reported; never `Ok`.
    pub returned: Return,
    /// What happened, in words.
    pub message: String,
}

/// What came of a request. It is one request however many replicas were asked.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The result, or why there is none.
    pub result: Result<Reply, Failure>,
    /// The replica that answered, be it with a refusal; `None`: none did.
    pub from: Option<ReplicaName>,
    /// The replicas that were asked and did not answer.
    pub silent: Vec<ReplicaName>,
}

/// A store under test. Clones share whatever connects them to it.
pub trait Store: Clone + Send + Sync + 'static {
    /// Executes one operation and waits for its result.
    fn execute(&self, op: Op) -> impl Future<Output = Answer> + Send;
}

/// A connection to one replica.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The connection.
    pub client: Client,
    /// The replica's address.
    pub address: ReplicaName,
}

impl Store for Connection {
    async fn execute(&self, op: Op) -> Answer {
        let result = self.client.execute(op).await;
        let here = Some(Arc::clone(&self.address));
        let (from, silent) = match &result {
            Err(error) if unanswered(error) => (None, here.into_iter().collect()),
            _ => (here, Vec::new()),
        };
        let result = result.map_err(|error| Failure {
            returned: returned(&error),
            message: error.to_string(),
        });
        Answer {
            result,
            from,
            silent,
        }
    }
}

/// Whether the replica did not answer.
fn unanswered(error: &Error) -> bool {
    match error {
        Error::Timeout { .. } | Error::Connect { .. } | Error::Lost { .. } | Error::Closed => true,
        Error::Refused { .. } | Error::WrongCluster { .. } | Error::Protocol { .. } => false,
    }
}

fn returned(error: &Error) -> Return {
    match error {
        // Nothing was sent: no connection could be made, so nobody was slow to answer.
        Error::Timeout { sent: false, .. } => Return::ServiceUnavailable,
        Error::Timeout { sent: true, .. } => Return::Timeout,
        Error::Refused { code, .. } => match code {
            ErrorCode::Unavailable => Return::ServiceUnavailable,
            ErrorCode::BadRequest | ErrorCode::TooLarge | ErrorCode::NotARecord => {
                Return::BadRequest
            }
            ErrorCode::Internal | ErrorCode::SessionExpired | ErrorCode::WrongCluster => {
                Return::Error
            }
        },
        Error::Connect { .. } | Error::Lost { .. } => Return::ServiceUnavailable,
        Error::WrongCluster { .. } | Error::Protocol { .. } | Error::Closed => Return::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn failures_are_reported_under_ycsbs_names() {
        let refused = |code| Error::Refused {
            code,
            message: String::new(),
            log_time_ms: 0,
            resent: false,
        };
        let timeout = |sent| Error::Timeout {
            after: Duration::from_secs(1),
            sent,
        };
        let cases = [
            (timeout(true), "TIMEOUT", true),
            (timeout(false), "SERVICE_UNAVAILABLE", true),
            (
                refused(ErrorCode::Unavailable),
                "SERVICE_UNAVAILABLE",
                false,
            ),
            (refused(ErrorCode::TooLarge), "BAD_REQUEST", false),
            (refused(ErrorCode::Internal), "ERROR", false),
            (Error::Closed, "ERROR", true),
        ];
        for (error, name, silent) in cases {
            assert_eq!(returned(&error).name(), name, "{error}");
            assert_eq!(unanswered(&error), silent, "{error}");
        }
    }
}
