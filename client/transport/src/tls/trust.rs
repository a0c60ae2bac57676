//! Certificate authorities that a client trusts.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, version};

use super::{names, provider};

/// Reason why the authorities could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file cannot be read.
    #[error("{}: {source}; give the certificate of the cluster's authority, its ca.pem", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file contains no certificate, or no certificate that can be used.
    #[error("{}: {problem}; it should hold the PEM certificate of the cluster's authority, its ca.pem", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Description of the fault.
        problem: String,
    },
}

/// Authorities that sign the certificates of the replicas to which a client connects.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// Loads the certificates in a PEM file.
    ///
    /// # Errors
    /// Any [`TrustError`].
    pub fn load(file: &Path) -> Result<Trust, TrustError> {
        let pem = std::fs::read(file).map_err(|source| TrustError::Read {
            file: file.to_owned(),
            source,
        })?;
        Trust::from_pem(&pem).map_err(|problem| TrustError::Malformed {
            file: file.to_owned(),
            problem,
        })
    }

    /// Reads the certificates in a PEM text.
    ///
    /// # Errors
    /// Returns a description of the fault of the text.
    pub fn from_pem(pem: &[u8]) -> Result<Trust, String> {
        let roots = roots(pem)?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13]);
        let config = config.map_err(|error| error.to_string())?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        // The name would be readable by any listener on the network, and replicas do not need it.
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(Trust(Arc::new(config)))
    }

    /// Creates the client's side of a connection to a replica of `cluster`. If `cluster` is `None`,
    /// the replica may belong to any cluster.
    ///
    /// # Errors
    /// Returns a description of what is wrong with the cluster's name.
    pub fn connection(&self, cluster: Option<&str>) -> Result<ClientConnection, String> {
        let name = match cluster {
            Some(cluster) if !cluster.is_empty() => names::of_cluster(cluster),
            _ => names::REPLICA.to_owned(),
        };
        let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
        ClientConnection::new(self.0.clone(), name).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trust")
    }
}

/// Returns a readable description of an error in a PEM text. The error's own text is not used,
/// because that text shows bytes as numbers, and might quote a key.
pub fn malformed(error: &pem::Error) -> String {
    let problem = match error {
        pem::Error::MissingSectionEnd { .. } => {
            "it ends within a section, before the line -----END ...-----: it was cut off".to_owned()
        }
        pem::Error::IllegalSectionStart { .. } => {
            "a line that begins with -----BEGIN does not end with -----".to_owned()
        }
        pem::Error::Base64Decode(_) => "a section is not in Base64".to_owned(),
        pem::Error::NoItemsFound => "it holds nothing of the kind".to_owned(),
        other => other.to_string(),
    };
    format!("malformed PEM: {problem}")
}

/// Returns the authorities in a PEM text.
///
/// # Errors
/// Returns a description of the fault of the text.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| malformed(&error))?;
        let added = roots.add(certificate);
        added.map_err(|error| format!("a certificate that cannot be used: {error}"))?;
    }
    if roots.is_empty() {
        Err("it holds no certificate".to_owned())
    } else {
        Ok(roots)
    }
}
