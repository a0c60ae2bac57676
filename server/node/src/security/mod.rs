//! Identity of nodes: the authority of a cluster, the certificates that it signs, and their use by
//! a node.
//!
//! There is only one mechanism: TLS, with certificates on both sides of connections between
//! replicas. Clusters that cannot keep an authority use a shared secret instead, and every node
//! derives the same authority from the secret (see [`Authority::from_secret`]).

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "certificates are files, and expire"
)]

mod authority;
pub(crate) mod cert_rotation;
mod credentials;
mod directory;
mod error;
mod files;
pub(crate) mod halves;
pub(crate) mod handshakes;
#[cfg(test)]
mod tests;

pub use authority::{Authority, IssuedCertificate, Validity, day};
pub(crate) use credentials::is_named;
pub use credentials::{NodeCredentials, authority_pem, trust};
pub use directory::{
    CertificateDirectory, CertificateOutcome, CertificateSpec, issue_certificates,
};
pub use error::SecurityError;
pub use files::{
    AUTHORITY, AUTHORITY_KEY, SECRET_BYTES_MIN, certificate_file, key_file, read_private, write_new,
};
