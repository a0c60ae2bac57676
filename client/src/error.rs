//! Reasons why an operation has no result, and whether the operation may have taken effect. A
//! history may omit a write only if it certainly did not take effect.

use std::fmt;
use std::time::Duration;

use crate::types::{RefusalKind, Version};

/// A replica that was tried, and the reason why it gave no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Address of the replica as the options give it.
    pub address: String,
    /// Reason why there is no result: a message of the replica or of the operating system.
    pub reason: String,
}

/// Formats all attempts in one line.
fn list(tried: &[FailedAttempt]) -> String {
    if tried.is_empty() {
        return "no address".to_owned();
    }
    let words = tried.iter().map(ToString::to_string);
    words.collect::<Vec<_>>().join("; ")
}

fn doubt(sent: bool, is_change: bool) -> &'static str {
    match (sent, is_change) {
        (true, true) => "; it may have taken effect",
        (true, false) => "",
        (false, _) => "; nothing was sent",
    }
}

/// Describes a transaction that was executed and has lost its results.
fn executed(held: bool, version: Option<Version>) -> String {
    let list = if held {
        "all its comparisons held"
    } else {
        "one of its comparisons did not hold"
    };
    let written = match version {
        Some(version) => format!("its writes have version {version}"),
        None => "it wrote nothing".to_owned(),
    };
    format!(
        "the transaction was executed, {list}, and {written}; its results were too large to be kept \
         for a repetition: get the keys to see their values"
    )
}

impl fmt::Display for FailedAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.reason)
    }
}

/// Reason why an operation has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The client could not make its first connection to any replica.
    #[error("cannot connect to {}", list(.tried))]
    Connect {
        /// One attempt for each address.
        tried: Vec<FailedAttempt>,
    },
    /// The server belongs to another cluster than the one in the options.
    #[error("{address} is not of the cluster asked for: {message}")]
    WrongCluster {
        /// Address of the server as the options give it.
        address: String,
        /// Message of the server.
        message: String,
    },
    /// The token would be sent in plain text to a replica that other machines can reach, although
    /// [`plain_token`](crate::ClientOptions::plain_token) does not allow this.
    #[error(
        "the token is not sent to {address} in plain text, where whoever reads the network could use it: with \
         --token-file give --ca FILE, the certificate of the cluster's authority (ClientOptions::trust); or, if \
         nobody else reaches the network, --plain-token (ClientOptions::plain_token)"
    )]
    PlainToken {
        /// Address of the replica as the options give it.
        address: String,
    },
    /// No answer arrived within the request timeout, which includes all retries.
    #[error("no answer within {after:?} ({}){}", list(.tried), doubt(*.sent, *.is_change))]
    Timeout {
        /// The request timeout.
        after: Duration,
        /// Replicas to which the request was sent, and replicas known to be dead.
        tried: Vec<FailedAttempt>,
        /// Whether an attempt was sent. If an attempt was sent, a change may have taken effect.
        sent: bool,
        /// True if the request was a change: a write, a change of leases or a move of leadership.
        is_change: bool,
    },
    /// The connection broke before an answer arrived, at every attempt. A write may have taken
    /// effect.
    #[error("connection lost at each of {attempts} attempts, the last time: {}", list(.tried))]
    Lost {
        /// Replicas to which the request was sent, and replicas known to be dead.
        tried: Vec<FailedAttempt>,
        /// Number of times that the request was sent.
        attempts: u32,
    },
    /// The server refused the request, or this client refused it before sending it.
    #[error("refused ({}): {message}", .kind.name())]
    Refused {
        /// The kind of refusal.
        kind: RefusalKind,
        /// Description of the problem.
        message: String,
        /// Whether other attempts were sent before the refusal. Such other attempts may have taken
        /// effect.
        resent: bool,
        /// Log time of the refusal, in ms, if the session had expired; otherwise 0.
        log_time_ms: u64,
    },
    /// The server sent an answer that the protocol does not allow.
    #[error("protocol violated by {address}: {message}")]
    Protocol {
        /// Address of the server as the options give it.
        address: String,
        /// Description of the answer, and of what the protocol requires.
        message: String,
    },
    /// The transaction was executed, but its results are lost. An earlier answer was lost on the
    /// way, and replicas keep only small results for such a case. The transaction has taken effect
    /// once, and must not be repeated.
    #[error("executed: {}", executed(*.held, *.version))]
    Executed {
        /// True if all comparisons of the transaction held.
        held: bool,
        /// Version of every value that was written; `None` if nothing was written.
        version: Option<Version>,
    },
    /// The client was closed before the answer arrived.
    #[error("the client is closed")]
    Closed,
}

impl Error {
    /// Whether a write that ended with this error may have taken effect or may still take effect.
    /// False means that the write has not taken effect and never will. This method is only
    /// meaningful for writes: it may return true for a lost read.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::WrongCluster { .. } | Error::PlainToken { .. } => false,
            Error::Timeout {
                sent, is_change, ..
            } => *sent && *is_change,
            Error::Lost { .. } | Error::Protocol { .. } | Error::Closed => true,
            Error::Executed { version, .. } => version.is_some(),
            Error::Refused { kind, resent, .. } => match kind {
                RefusalKind::Internal | RefusalKind::Unavailable => true,
                // The refusal is a result of executing the command.
                RefusalKind::NotARecord | RefusalKind::NotAnInteger => false,
                // Another replica, perhaps of another version, may have accepted an earlier copy.
                RefusalKind::SessionExpired
                | RefusalKind::BadRequest
                | RefusalKind::TooLarge
                | RefusalKind::Idle
                | RefusalKind::WrongCluster
                | RefusalKind::Unauthenticated
                | RefusalKind::PermissionDenied => *resent,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_certainly_did_nothing_may_be_left_out_of_a_history() {
        let timeout = |sent| Error::Timeout {
            after: Duration::from_secs(1),
            tried: Vec::new(),
            sent,
            is_change: true,
        };
        let unreachable = Error::Connect { tried: Vec::new() };
        let refused = |kind, resent| Error::Refused {
            kind,
            message: String::new(),
            resent,
            log_time_ms: 0,
        };
        assert!(timeout(true).may_have_taken_effect());
        assert!(!timeout(false).may_have_taken_effect());
        assert!(!unreachable.may_have_taken_effect());
        assert!(refused(RefusalKind::Unavailable, false).may_have_taken_effect());
        assert!(refused(RefusalKind::SessionExpired, true).may_have_taken_effect());
        assert!(!refused(RefusalKind::SessionExpired, false).may_have_taken_effect());
        assert!(!refused(RefusalKind::NotARecord, true).may_have_taken_effect());
        assert!(refused(RefusalKind::TooLarge, true).may_have_taken_effect());
        assert!(!refused(RefusalKind::TooLarge, false).may_have_taken_effect());
        assert!(Error::Closed.may_have_taken_effect());
    }

    #[test]
    fn only_of_a_change_it_is_said_that_it_may_have_taken_effect() {
        let timeout = |sent, is_change| Error::Timeout {
            after: Duration::from_secs(1),
            tried: Vec::new(),
            sent,
            is_change,
        };
        for (error, doubtful) in [
            (timeout(true, true), true),
            (timeout(true, false), false),
            (timeout(false, true), false),
        ] {
            let said = error.to_string();
            assert_eq!(said.contains("may have taken effect"), doubtful, "{said}");
            assert_eq!(error.may_have_taken_effect(), doubtful, "{said}");
        }
    }
}
