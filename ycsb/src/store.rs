//! What the load generator needs of a store: one operation of the wire protocol at a
//! time. A trait, so that the generator can be tested without a cluster.

use std::future::Future;

use client::wire::{ErrorCode, command::Op};
use client::{Client, Error, Reply};

use crate::measurement::Return;

/// Why an operation has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How it is reported; never `Ok`.
    pub returned: Return,
    /// What happened, in words.
    pub message: String,
}

/// A store under test. Clones share whatever connects them to it.
pub trait Store: Clone + Send + Sync + 'static {
    /// Executes one operation and waits for its result.
    fn execute(&self, op: Op) -> impl Future<Output = Result<Reply, Failure>> + Send;
}

impl Store for Client {
    async fn execute(&self, op: Op) -> Result<Reply, Failure> {
        Client::execute(self, op).await.map_err(|error| Failure {
            returned: returned(&error),
            message: error.to_string(),
        })
    }
}

fn returned(error: &Error) -> Return {
    match error {
        Error::Timeout { .. } => Return::Timeout,
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
        let timeout = Error::Timeout {
            after: Duration::from_secs(1),
            sent: true,
        };
        let cases = [
            (timeout, "TIMEOUT"),
            (refused(ErrorCode::Unavailable), "SERVICE_UNAVAILABLE"),
            (refused(ErrorCode::TooLarge), "BAD_REQUEST"),
            (refused(ErrorCode::Internal), "ERROR"),
            (Error::Closed, "ERROR"),
        ];
        for (error, name) in cases {
            assert_eq!(returned(&error).name(), name, "{error}");
        }
    }
}
