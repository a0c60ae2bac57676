//! Options of a client: the replicas it asks, its timeouts, and the watcher that is notified when a
//! replica dies or answers again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::routing::Routing;
use leasehold_transport::Secret;
use leasehold_transport::is_loopback;
#[cfg(feature = "tls")]
use leasehold_transport::tls::Trust;

/// Addresses of replicas, and timeouts for them. Begin with [`ClientOptions::new`] or
/// [`ClientOptions::nearest_first`], and set fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// `host:port` of replicas' client ports, the nearest first; at least one. Replicas
    /// of one cluster: a write may be sent to several of them.
    pub addresses: Vec<String>,
    /// Refuse to talk to any other cluster than this one. Without it, the first replica
    /// that answers decides which cluster it is.
    pub cluster: Option<String>,
    /// Authorities that sign the certificates of trusted replicas, for TLS; default: any replica, in plain
    /// text.
    #[cfg(feature = "tls")]
    pub trust: Option<Trust>,
    /// Token that gives the client its rights, if the cluster asks for tokens; default: none. It is
    /// sent over TLS alone, except to replicas that only this machine reaches, see `plain_token`.
    pub token: Option<Secret>,
    /// Whether to send the token in plain text to machines other than this one; default: no. Any
    /// reader of the network can use it then.
    pub plain_token: bool,
    /// For a connection and its handshake, if there is one address; default 5 s.
    pub connect_timeout: Duration,
    /// Timeout after which another replica is asked, too, if one is silent; default 1 s, and at
    /// most a third of the request timeout. It also limits a connection and its handshake if there
    /// are several addresses.
    pub attempt_timeout: Duration,
    /// For an operation, all its attempts and the pauses between them included;
    /// default 10 s. While nobody can be connected to, all addresses are tried again
    /// until then. The first connection is not: a mistyped address is told at once.
    pub request_timeout: Duration,
    /// Maximum number of times that an operation is attempted again after a connection broke, or a
    /// replica was unavailable or silent; default 32. With 0 an operation leaves at most once.
    pub retries: u32,
    /// Rule for the replica that an operation is sent to first; default: the nearest.
    pub routing: Routing,
    /// With [`Routing::LeaseAware`]: most memory for what is known of keys, in bytes; default
    /// 16 MiB.
    pub hint_bytes_max: usize,
    /// Function that is called when a replica dies or answers again; default: none.
    pub watcher: Watcher,
}

impl ClientOptions {
    /// The defaults, for the replica at `address` (`host:port`).
    pub fn new(address: impl Into<String>) -> Self {
        ClientOptions::nearest_first([address])
    }

    /// The defaults, for the replicas at these addresses (`host:port`).
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

    /// The first address to which the token would go in plain text, unless that is meant.
    pub(crate) fn plain_text_to(&self) -> Option<&String> {
        if self.token.is_none() || self.uses_tls() || self.plain_token {
            return None;
        }
        self.addresses.iter().find(|address| !is_loopback(address))
    }

    /// Returns the timeout after which another replica is asked if one is silent.
    pub(crate) fn silence_timeout(&self) -> Duration {
        self.attempt_timeout.min(self.request_timeout / 3)
    }

    /// For a connection and its handshake.
    pub(crate) fn greeted_within(&self) -> Duration {
        match self.addresses.len() {
            1 => self.connect_timeout,
            _ => self.connect_timeout.min(self.silence_timeout()),
        }
    }
}

/// A replica has died, as far as a client can tell, or answers again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaChange {
    /// The address as it was given.
    pub address: String,
    /// The replica's name, if it has ever said it.
    pub replica: Option<Arc<str>>,
    /// The change: whether it died or answers again.
    pub liveness: LivenessChange,
}

/// Change of a replica's state, as far as the client can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LivenessChange {
    /// It is not asked any more, but looked after in the background.
    Dead {
        /// Last reply of the replica, or the operating system's error about it.
        reason: String,
    },
    /// It is asked again.
    Back {
        /// Duration for which it was not asked.
        after: Duration,
    },
}

/// Is called with every [`ReplicaChange`], from the client's own tasks: it must not block.
#[derive(Clone, Default)]
pub struct Watcher(Option<Arc<ChangeCallback>>);

type ChangeCallback = dyn Fn(&ReplicaChange) + Send + Sync;

impl Watcher {
    /// Calls `callback` with every change.
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
