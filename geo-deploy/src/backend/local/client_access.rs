//! Name of a local cluster, and the certificates by which the cluster's replicas prove their
//! identity to each other and to clients.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use leasehold_client::ClientOptions;
use leasehold_node::security::{AUTHORITY, CertificateSpec, issue_certificates};
use leasehold_transport::tls::Trust;

use super::LocalSettings;
use crate::cluster_file::Security;

/// Name of the directory for certificates, within the cluster's directory.
const CERTIFICATES: &str = "certificates";
/// Validity of the certificates, in days.
const DAYS: u32 = 3650;

/// Settings that the clients of a cluster need besides the addresses of replicas.
#[derive(Clone, Debug)]
pub struct ClientAccess {
    cluster: String,
    trust: Option<Trust>,
    ca: Option<PathBuf>,
}

impl ClientAccess {
    /// Creates the settings for a cluster that is about to start, and issues certificates for the
    /// replicas of the cluster.
    pub(super) fn prepare(
        settings: &LocalSettings,
        nodes: &[&str],
    ) -> anyhow::Result<ClientAccess> {
        let cluster = settings.cluster.clone();
        if settings.insecure {
            return Ok(ClientAccess {
                cluster,
                trust: None,
                ca: None,
            });
        }
        let directory = &settings.dir.join(CERTIFICATES);
        let nodes: Vec<String> = nodes.iter().map(|name| (*name).to_owned()).collect();
        let spec = CertificateSpec {
            directory,
            cluster: &cluster,
            nodes: &nodes,
            days: DAYS,
            renew: false,
        };
        if issue_certificates(&spec).is_err() {
            // The directory may have certificates of an earlier cluster. This program made them, so
            // it may replace them.
            let _ = std::fs::remove_dir_all(directory);
            issue_certificates(&spec).context("making the cluster's certificates")?;
        }
        let ca = directory.join(AUTHORITY);
        Ok(ClientAccess {
            trust: Some(Trust::load(&ca)?),
            ca: Some(ca),
            cluster,
        })
    }

    /// Returns the security section of the cluster's configuration; `None` without TLS.
    pub(super) fn section(&self) -> Option<Security> {
        let certificates = CERTIFICATES.to_owned();
        self.ca.as_ref().map(|_| Security { certificates })
    }

    /// Returns the cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Returns the path of the certificate of the cluster's authority; `None` if the replicas do
    /// not use TLS.
    pub fn ca(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// Returns the options of a client that connects to these addresses.
    pub fn options(&self, addresses: impl IntoIterator<Item = impl ToString>) -> ClientOptions {
        let addresses = addresses.into_iter().map(|address| address.to_string());
        let mut options = ClientOptions::nearest_first(addresses);
        options.cluster = Some(self.cluster.clone());
        options.trust = self.trust.clone();
        options
    }
}
