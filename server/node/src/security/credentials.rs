//! Certificates that a node shows to others, and the certificates of others that it accepts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leasehold_transport::tls::{self, Trust, names, provider, roots};
use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, Error as TlsError, RootCertStore, ServerConfig, version,
};

use super::files::{self, AUTHORITY, SECRET_BYTES_MIN};
use super::{Authority, IssuedCertificate, SecurityError, Validity, certificate_file, key_file};
use crate::config::{ClusterConfig, Identity};

/// A time after the expiry of every certificate, as a duration since the beginning of 1970.
const FAR: Duration = Duration::from_secs(100_000 * 365 * 86_400);

/// TLS configurations of a node. They contain the certificate that the node shows, and the
/// authorities that it accepts.
#[derive(Clone, Debug)]
pub struct NodeCredentials {
    /// Configuration for connections to the clients' port.
    pub clients: Arc<ServerConfig>,
    /// Configuration for connections to the peers' port. The other end must show a certificate.
    pub peers: Arc<ServerConfig>,
    /// Configuration for connections to peers that this node dials.
    pub dial: Arc<ClientConfig>,
    /// Time at which the certificate expires; `None` if it never expires.
    pub expires: Option<SystemTime>,
}

/// Certificates and a private key as they were read from files, before any check.
struct KeyMaterial {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    roots: RootCertStore,
}

impl NodeCredentials {
    /// Returns the credentials of the node called `name`; `None` if the configuration names no
    /// certificates and no secret.
    ///
    /// # Errors
    /// Any [`SecurityError`].
    pub fn open(
        config: &ClusterConfig,
        name: &str,
    ) -> Result<Option<NodeCredentials>, SecurityError> {
        let cluster = &config.cluster;
        let found = match &config.security.identity {
            Identity::None => return Ok(None),
            Identity::Certificates(directory) => of_directory(cluster, name, directory),
            Identity::Secret(file) => of_secret(cluster, name, file),
        };
        let credentials = found.and_then(KeyMaterial::credentials);
        credentials.map(Some).map_err(|error| error.of(config))
    }

    /// Returns the paths of the files from which the credentials of the node called `name` are
    /// read.
    pub(crate) fn files(config: &ClusterConfig, name: &str) -> Vec<PathBuf> {
        match &config.security.identity {
            Identity::None => Vec::new(),
            Identity::Certificates(directory) => vec![
                directory.join(AUTHORITY),
                certificate_file(directory, name),
                key_file(directory, name),
            ],
            Identity::Secret(file) => vec![file.clone()],
        }
    }

    /// Returns credentials that show the given certificate and trust the given authority. These
    /// credentials are for tests of certificates that other machines might show.
    #[cfg(test)]
    pub(crate) fn issued(issued: &IssuedCertificate, authority: &Authority) -> NodeCredentials {
        let material = KeyMaterial::issued(issued, authority).unwrap();
        material.credentials().unwrap()
    }
}

fn of_directory(cluster: &str, name: &str, directory: &Path) -> Result<KeyMaterial, SecurityError> {
    let fix = "`leasehold cert` makes the certificates of all nodes; copy ca.pem and this node's two files here";
    let certificate = certificate_file(directory, name);
    let (key, authority) = (key_file(directory, name), directory.join(AUTHORITY));
    let malformed = |file: &Path, problem: String| SecurityError::Malformed {
        file: file.to_owned(),
        problem: format!("{problem}; {fix}"),
    };
    let roots = roots(&files::read(&authority, fix)?);
    let roots = roots.map_err(|problem| malformed(&authority, problem))?;
    let pem = files::read(&certificate, fix)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| malformed(&certificate, tls::malformed(&error)))?;
    let private = files::read_private(&key, fix)?;
    let private = PrivateKeyDer::from_pem_slice(&private);
    let private = private
        .map_err(|error| malformed(&key, format!("no private key: {}", tls::malformed(&error))))?;
    check(&chain, &roots, cluster, name).map_err(|problem| malformed(&certificate, problem))?;
    let material = KeyMaterial {
        chain,
        key: private,
        roots,
    };
    if material.server(None).is_err() {
        let problem = format!("it is not the key of the certificate in {name}.pem");
        return Err(malformed(&key, problem));
    }
    Ok(material)
}

fn of_secret(cluster: &str, name: &str, file: &Path) -> Result<KeyMaterial, SecurityError> {
    let authority = shared_authority(cluster, file)?;
    let issued = authority.issue(name, Validity::always())?;
    KeyMaterial::issued(&issued, &authority)
}

fn shared_authority(cluster: &str, file: &Path) -> Result<Authority, SecurityError> {
    let fix = "write random bytes into it (`head -c 32 /dev/urandom | base64`), and copy it to every node";
    let secret = files::read_private(file, fix)?;
    let length = secret.trim_ascii_end().len();
    if length < SECRET_BYTES_MIN {
        return Err(SecurityError::Malformed {
            file: file.to_owned(),
            problem: format!(
                "{length} bytes are no secret, at least {SECRET_BYTES_MIN} are needed; {fix}"
            ),
        });
    }
    Authority::from_secret(cluster, &secret)
}

/// Returns the authority that clients of a cluster must trust; `None` if its replicas do not use
/// TLS. This function is for programs that have the cluster's configuration.
///
/// # Errors
/// Any [`SecurityError`].
pub fn trust(config: &ClusterConfig) -> Result<Option<Trust>, SecurityError> {
    if config.security.identity == Identity::None {
        return Ok(None);
    }
    let trust = Trust::from_pem(authority_pem(config)?.as_bytes());
    let trust = trust.map_err(failed("trusting the cluster's authority"));
    trust.map(Some).map_err(|error| error.of(config))
}

/// Returns the certificate of a cluster's authority, in PEM.
///
/// # Errors
/// Any [`SecurityError`]. It is also an error if the configuration names neither certificates nor a
/// secret.
pub fn authority_pem(config: &ClusterConfig) -> Result<String, SecurityError> {
    match &config.security.identity {
        Identity::None => Err(SecurityError::Malformed {
            file: config.file.clone(),
            problem:
                "[security] names neither certificates nor a secret, so there is no authority; \
                      add one of them (`leasehold cert --help`)"
                    .to_owned(),
        }),
        Identity::Certificates(directory) => {
            let fix = "copy the cluster's ca.pem there";
            let pem = files::read(&directory.join(AUTHORITY), fix);
            let pem = pem.map_err(|error| error.of(config))?;
            Ok(String::from_utf8_lossy(&pem).into_owned())
        }
        Identity::Secret(file) => {
            let authority = shared_authority(&config.cluster, file);
            let authority = authority.map_err(|error| error.of(config))?;
            Ok(authority.certificate().pem())
        }
    }
}

impl KeyMaterial {
    /// Returns the given certificate and its key, with `authority` as the only trusted authority.
    fn issued(
        issued: &IssuedCertificate,
        authority: &Authority,
    ) -> Result<KeyMaterial, SecurityError> {
        let mut roots = RootCertStore::empty();
        let added = roots.add(authority.certificate().der().clone());
        added.map_err(failed("trusting the authority"))?;
        let key = PrivateKeyDer::try_from(issued.key.serialize_der());
        Ok(KeyMaterial {
            chain: vec![issued.certificate.der().clone()],
            key: key.map_err(failed("using a new key"))?,
            roots,
        })
    }

    fn credentials(self) -> Result<NodeCredentials, SecurityError> {
        Ok(NodeCredentials {
            clients: self.server(None)?,
            peers: self.server(Some(&self.roots))?,
            dial: self.client()?,
            expires: expires(&self.chain, &self.roots),
        })
    }

    /// Returns the TLS configuration for connections that the node accepts. If `of` is `None`, the
    /// other end needs no certificate. Otherwise the other end must show a certificate of one of
    /// the authorities in `of`.
    fn server(&self, of: Option<&RootCertStore>) -> Result<Arc<ServerConfig>, SecurityError> {
        let failed = failed("using the certificate");
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(&failed)?;
        let config = match of {
            None => config.with_no_client_auth(),
            Some(roots) => {
                let roots = Arc::new(roots.clone());
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    // Otherwise any machine that connects would receive the authority's name.
                    .clear_root_hint_subjects()
                    .build();
                config.with_client_cert_verifier(verifier.map_err(self::failed("trusting"))?)
            }
        };
        let config = config.with_single_cert(self.chain.clone(), self.key.clone_key());
        let mut config = config.map_err(failed)?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn client(&self) -> Result<Arc<ClientConfig>, SecurityError> {
        let failed = failed("using the certificate");
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(&failed)?
            .with_root_certificates(self.roots.clone())
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key());
        let mut config = config.map_err(failed)?;
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// Checks that a certificate belongs to the node called `name`, and that it would be accepted now.
///
/// # Errors
/// Returns the problem with the certificate.
pub(super) fn check(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    cluster: &str,
    name: &str,
) -> Result<(), String> {
    verify(chain, roots, UnixTime::now()).map_err(|error| match error {
        TlsError::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            format!("it has expired on {}", super::day(at(not_after)))
        }
        TlsError::InvalidCertificate(CertificateError::NotValidYetContext {
            not_before, ..
        }) => format!("it is not valid before {}", super::day(at(not_before))),
        TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "it was not signed by the authority in ca.pem".to_owned(),
        other => format!("it is not accepted: {other}"),
    })?;
    let certificate = ParsedCertificate::try_from(&chain[0]).map_err(|error| error.to_string())?;
    let needed = names::all(cluster, name);
    match needed.iter().find(|needed| !is_named(&certificate, needed)) {
        None => Ok(()),
        Some(missing) => Err(format!(
            "it is not one of node {name:?} of cluster {cluster:?}: that one holds the DNS name {missing}"
        )),
    }
}

/// Whether a certificate contains this DNS name.
pub(crate) fn is_named(certificate: &ParsedCertificate<'_>, name: &str) -> bool {
    let name = ServerName::try_from(name);
    name.is_ok_and(|name| verify_server_name(certificate, &name).is_ok())
}

/// Checks that a certificate is valid at a given time and was issued by one of the given
/// authorities.
fn verify(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: UnixTime,
) -> Result<(), TlsError> {
    let [certificate, others @ ..] = chain else {
        return Err(TlsError::General("there is no certificate".to_owned()));
    };
    let roots = Arc::new(roots.clone());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
    let verifier = verifier.map_err(|error| TlsError::General(error.to_string()))?;
    let name = ServerName::try_from(names::REPLICA);
    let name = name.map_err(|error| TlsError::General(error.to_string()))?;
    let verified = verifier.verify_server_cert(certificate, others, &name, &[], now);
    match verified {
        // Names are checked separately.
        Err(TlsError::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ))
        | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the expiry time of one certificate: a certificate in the chain, or the trusted
/// certificate above the chain. Returns `None` if none of these certificates expires.
pub(super) fn expires(chain: &[CertificateDer<'_>], roots: &RootCertStore) -> Option<SystemTime> {
    match verify(chain, roots, UnixTime::since_unix_epoch(FAR)) {
        Err(TlsError::InvalidCertificate(CertificateError::ExpiredContext {
            not_after, ..
        })) => Some(at(not_after)),
        _ => None,
    }
}

fn at(time: UnixTime) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs())
}

fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> SecurityError {
    move |error| SecurityError::Failed {
        doing,
        problem: error.to_string(),
    }
}
