//! The interface between the load generator and a store. A store executes operations of the wire
//! protocol, one for each call. The interface is a trait, so that the load generator can be tested
//! without a cluster.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold_client::{Client, Error, RawReply, RefusalKind};
use leasehold_wire::command::Op;

use crate::measurement::{ReplicaName, ReturnCode};

/// Reason why an operation has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpFailure {
    /// Status under which the failure is reported; never `Ok`.
    pub returned: ReturnCode,
    /// Description of the failure.
    pub message: String,
}

/// Outcome of one request, which may have been sent to several replicas.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The result, or the reason why there is none.
    pub result: Result<RawReply, OpFailure>,
    /// Replica that answered, possibly with a refusal; `None` if no replica answered.
    pub from: Option<ReplicaName>,
    /// Replicas that did not answer, although the request was sent to them.
    pub silent: Vec<ReplicaName>,
}

/// A store under test. Clones of a store share one connection.
pub trait KvStore: Clone + Send + Sync + 'static {
    /// Executes one operation and waits for its result.
    fn execute(&self, op: Op) -> impl Future<Output = Answer> + Send;
}

/// Connection to a store: a client, with the addresses of the replicas that it uses.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// Addresses that the client knows, the nearest first.
    pub addresses: Arc<[ReplicaName]>,
}

impl KvStore for Connection {
    async fn execute(&self, op: Op) -> Answer {
        let (result, trace) = self.client.raw().execute_traced(op).await;
        if is_unauthenticated(&result) {
            tokio::time::sleep(UNAUTHENTICATED_PAUSE).await;
        }
        let address = |place: usize| Arc::clone(&self.addresses[place]);
        Answer {
            result: result.map_err(|error| OpFailure {
                returned: returned(&error),
                message: error.to_string(),
            }),
            from: trace.answered.map(address),
            silent: trace.silent.into_iter().map(address).collect(),
        }
    }
}

/// Pause after the client's token was refused. After such a refusal, the client itself refuses
/// further requests immediately. The pause prevents a run from sending requests in a fast loop, and
/// from reporting the refusals as throughput.
const UNAUTHENTICATED_PAUSE: Duration = Duration::from_millis(100);

fn is_unauthenticated<T>(result: &Result<T, Error>) -> bool {
    let kind = RefusalKind::Unauthenticated;
    matches!(result, Err(Error::Refused { kind: found, .. }) if *found == kind)
}

fn returned(error: &Error) -> ReturnCode {
    match error {
        // Nothing was sent, because no connection could be made. So no replica was slow to answer.
        Error::Timeout { sent: false, .. } => ReturnCode::ServiceUnavailable,
        Error::Timeout { sent: true, .. } => ReturnCode::Timeout,
        Error::Refused { kind, .. } => match kind {
            RefusalKind::Unavailable => ReturnCode::ServiceUnavailable,
            RefusalKind::BadRequest
            | RefusalKind::TooLarge
            | RefusalKind::NotARecord
            | RefusalKind::NotAnInteger => ReturnCode::BadRequest,
            RefusalKind::Unauthenticated | RefusalKind::PermissionDenied => ReturnCode::Forbidden,
            RefusalKind::Internal
            | RefusalKind::SessionExpired
            | RefusalKind::WrongCluster
            | RefusalKind::Idle
            | _ => ReturnCode::Error,
        },
        Error::Connect { .. } | Error::Lost { .. } => ReturnCode::ServiceUnavailable,
        Error::WrongCluster { .. }
        | Error::PlainToken { .. }
        | Error::Protocol { .. }
        | Error::Closed
        | _ => ReturnCode::Error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_under_ycsbs_names() {
        let refused = |kind| Error::Refused {
            kind,
            message: String::new(),
            log_time_ms: 0,
            resent: false,
        };
        let timeout = |sent| Error::Timeout {
            after: Duration::from_secs(1),
            tried: Vec::new(),
            sent,
            is_change: true,
        };
        let unreachable = Error::Connect { tried: Vec::new() };
        let cases = [
            (timeout(true), "TIMEOUT"),
            (timeout(false), "SERVICE_UNAVAILABLE"),
            (unreachable, "SERVICE_UNAVAILABLE"),
            (refused(RefusalKind::Unavailable), "SERVICE_UNAVAILABLE"),
            (refused(RefusalKind::TooLarge), "BAD_REQUEST"),
            (refused(RefusalKind::PermissionDenied), "FORBIDDEN"),
            (refused(RefusalKind::Internal), "ERROR"),
            (Error::Closed, "ERROR"),
        ];
        for (error, name) in cases {
            assert_eq!(returned(&error).name(), name, "{error}");
        }
    }
}
