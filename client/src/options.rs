//! Options of a client: the replicas that it uses, its timeouts, and the watcher that is notified
//! when a replica dies or answers again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::routing::Routing;
use leasehold_transport::Secret;
use leasehold_transport::is_loopback;
#[cfg(feature = "tls")]
use leasehold_transport::tls::Trust;

/// Addresses of replicas, and timeouts for them. Create the options with [`ClientOptions::new`] or
/// [`ClientOptions::nearest_first`], then set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Addresses (`host:port`) of the replicas' client ports, nearest first. At least one address
    /// is required. All replicas must belong to one cluster.
    pub addresses: Vec<String>,
    /// Name of the only cluster that the client may connect to. Without a name, the client uses the
    /// cluster of the first replica that answers.
    pub cluster: Option<String>,
    /// Authorities that sign the certificates of trusted replicas, for TLS. By default there are
    /// none, and the client connects in plain text to any replica.
    #[cfg(feature = "tls")]
    pub trust: Option<Trust>,
    /// Token that gives the client its rights, if the cluster requires tokens; default: none.
    /// Without TLS, the token is sent only to replicas that only this machine can reach, unless
    /// `plain_token` is set.
    pub token: Option<Secret>,
    /// Whether to send the token in plain text to other machines; default: no. Any reader of the
    /// network traffic can use a token that is sent in plain text.
    pub plain_token: bool,
    /// Timeout for making a connection, including the handshake, if there is only one address;
    /// default 5 s.
    pub connect_timeout: Duration,
    /// Time for which a replica may be silent before the request is also sent to another replica;
    /// default 1 s. A value above a third of the request timeout is reduced to that third. With
    /// several addresses, this time is also the timeout for making a connection, including the
    /// handshake.
    pub attempt_timeout: Duration,
    /// Timeout for an operation, including all its attempts and the pauses between them; default 10
    /// s. If no replica can be reached, the client tries all addresses again until the timeout.
    /// There is one exception: for the first connection of a client, each address is tried only
    /// once.
    pub request_timeout: Duration,
    /// Maximum number of times that an operation is sent again; default 32. An operation is sent
    /// again after a connection broke, or after a replica was unavailable or silent. With 0, an
    /// operation is sent at most once.
    pub retries: u32,
    /// Rule that chooses the first replica to which an operation is sent; default: the nearest
    /// replica.
    pub routing: Routing,
    /// Maximum memory for hints about the holders of keys, in bytes; default 16 MiB. This limit is
    /// used only with [`Routing::LeaseAware`].
    pub hint_bytes_max: usize,
    /// Function that is called when a replica dies or answers again; default: none.
    pub watcher: Watcher,
}

impl ClientOptions {
    /// Returns the default options for the replica at `address` (`host:port`).
    pub fn new(address: impl Into<String>) -> Self {
        ClientOptions::nearest_first([address])
    }

    /// Returns the default options for the replicas at these addresses (`host:port`).
    pub fn nearest_first(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        ClientOptions {
            addresses: addresses.into_iter().map(Into::into).collect(),
            cluster: None,
            #[cfg(feature = "tls")]
            trust: None,
            token: None,
            plain_token: false,
            connect_timeout: Duration::from_secs(5),
            attempt_timeout: Duration::from_secs(1),
            request_timeout: Duration::from_secs(10),
            retries: 32,
            routing: Routing::default(),
            hint_bytes_max: 16 << 20,
            watcher: Watcher::default(),
        }
    }

    #[cfg(feature = "tls")]
    fn uses_tls(&self) -> bool {
        self.trust.is_some()
    }

    #[cfg(not(feature = "tls"))]
    fn uses_tls(&self) -> bool {
        false
    }

    /// Returns the first address to which the token would be sent in plain text although
    /// `plain_token` is not set; `None` if there is no such address.
    pub(crate) fn plain_text_to(&self) -> Option<&String> {
        if self.token.is_none() || self.uses_tls() || self.plain_token {
            return None;
        }
        self.addresses.iter().find(|address| !is_loopback(address))
    }

    /// Returns the time for which a replica may be silent before the request is also sent to
    /// another replica.
    pub(crate) fn silence_timeout(&self) -> Duration {
        self.attempt_timeout.min(self.request_timeout / 3)
    }

    /// Returns the timeout for making a connection, including the handshake.
    pub(crate) fn greeted_within(&self) -> Duration {
        match self.addresses.len() {
            1 => self.connect_timeout,
            _ => self.connect_timeout.min(self.silence_timeout()),
        }
    }
}

/// An event that a client reports: a replica has died, or answers again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaChange {
    /// Address of the replica as the options give it.
    pub address: String,
    /// Name of the replica; `None` if no greeting has arrived yet.
    pub replica: Option<Arc<str>>,
    /// The change of the replica's state: the replica has died, or answers again.
    pub liveness: LivenessChange,
}

/// Change of a replica's state from the client's view.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LivenessChange {
    /// The client sends no more requests to the replica, but probes it in the background.
    Dead {
        /// Last reply of the replica, or the operating system's error about the connection.
        reason: String,
    },
    /// The client sends requests to the replica again.
    Back {
        /// Time for which the client sent no requests to the replica.
        after: Duration,
    },
}

/// Callback that receives every [`ReplicaChange`]. The callback must not block, because the
/// client's own tasks call it.
#[derive(Clone, Default)]
pub struct Watcher(Option<Arc<ChangeCallback>>);

type ChangeCallback = dyn Fn(&ReplicaChange) + Send + Sync;

impl Watcher {
    /// Creates a watcher that calls `callback` with every change.
    pub fn new(callback: impl Fn(&ReplicaChange) + Send + Sync + 'static) -> Watcher {
        Watcher(Some(Arc::new(callback)))
    }

    pub(crate) fn notify(&self, change: &ReplicaChange) {
        if let Some(callback) = &self.0 {
            callback(change);
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Watcher" } else { "None" })
    }
}
