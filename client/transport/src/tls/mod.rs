//! TLS 1.3, for connections from clients to replicas and for connections between replicas.
//!
//! A replica proves its identity with a certificate that an authority of the cluster signed. The
//! certificate holds *names*, which are made from the names of the cluster and the replica (see
//! [`names`]). It holds no addresses, because those may change.

mod channel;
mod handshake;
pub mod names;
mod trust;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group};

pub use channel::{Channel, ReadProgress};
pub use handshake::{HandshakeError, handshake};
pub use trust::{Trust, TrustError, malformed, roots};

/// Returns the algorithms that connections use: algorithms of TLS 1.3, with key agreement by
/// X25519. AES with 128 bits comes first, because it costs the least on processors that support
/// AES.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![kx_group::X25519, kx_group::SECP256R1],
        ..default_provider()
    })
}
