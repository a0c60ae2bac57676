#![cfg_attr(feature = "tls", doc = include_str!("../README.md"))]
#![cfg_attr(not(feature = "tls"), doc = "The client of Leasehold, without TLS.")]

mod admin;
mod backoff;
mod client;
mod connection;
mod copies;
mod error;
mod options;
mod raw;
mod replicas;
mod routing;
mod session;
mod status;
mod txn;
mod types;

pub use admin::{Admin, LeaseChange};
pub use client::Client;
pub use error::{Error, FailedAttempt};
pub use leasehold_transport::Secret;
#[cfg(feature = "tls")]
pub use leasehold_transport::tls::{Trust, TrustError};
pub use options::{ClientOptions, LivenessChange, ReplicaChange, Watcher};
pub use replicas::{Health, ReplicaHealth};
pub use routing::Routing;
pub use status::{
    HoldersQuery, KeyHolders, LeaseStatus, PeerStatus, RangeStatus, ServerInfo, Status, StatusQuery,
};
pub use txn::{
    Comparison, FailedComparison, Txn, TxnBranch, TxnBuilder, TxnKey, TxnOp, TxnOpResult,
    TxnOutcome, key,
};
pub use types::{
    CasOutcome, Operation, OperationResult, ParseVersionError, ReadPath, RefusalKind, Reply,
    StoredEntry, Version, VersionedValue,
};

#[cfg(feature = "raw")]
pub use self::{
    copies::OperationTrace,
    raw::{Raw, RawReply},
};
