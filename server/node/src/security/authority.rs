//! The authority of a cluster: a key that signs the certificates of its replicas.

use std::time::{Duration, SystemTime};

use leasehold_transport::tls::names;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
};
use ring::hkdf;
use rustls::pki_types::PrivatePkcs8KeyDer;
use time::{Date, OffsetDateTime};

use super::SecurityError;

/// DER encoding that precedes the seed of an Ed25519 key in the format for private keys (RFC 8410).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];
const SEED_BYTES: usize = 32;
/// Salt that makes an authority's keys differ from any other keys that are derived from the same
/// secret.
const SALT: &[u8] = b"leasehold: the authority of a cluster, 1";
/// Duration by which the start of a certificate's validity is backdated. So a node accepts a new
/// certificate even if the node's clock is behind by this duration.
const CLOCKS_DIFFER: Duration = Duration::from_secs(24 * 3600);

/// Period in which a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    from: OffsetDateTime,
    to: OffsetDateTime,
}

impl Validity {
    /// Returns a period without end. It is for authorities, because an authority is used until
    /// operators stop trusting it. It is also for certificates that are made anew at every start.
    pub fn always() -> Validity {
        Validity {
            from: rcgen::date_time_ymd(1975, 1, 1),
            to: rcgen::date_time_ymd(4096, 1, 1),
        }
    }

    /// Returns a period of `days` days from now.
    pub fn days(days: u32) -> Validity {
        let now = SystemTime::now();
        Validity::between(
            now - CLOCKS_DIFFER,
            now + Duration::from_secs(u64::from(days) * 86_400),
        )
    }

    /// Returns the period from one time to another.
    pub fn between(from: SystemTime, to: SystemTime) -> Validity {
        Validity {
            from: from.into(),
            to: to.into(),
        }
    }
}

/// Returns the day of a time in UTC, in the form `2030-01-31`.
pub fn day(time: SystemTime) -> String {
    let date: Date = OffsetDateTime::from(time).date();
    let month = u8::from(date.month());
    format!("{:04}-{month:02}-{:02}", date.year(), date.day())
}

/// A certificate of a replica, and the private key that belongs to it.
pub struct IssuedCertificate {
    /// The certificate.
    pub certificate: Certificate,
    /// The private key of the certificate.
    pub key: KeyPair,
}

/// The authority of a cluster: a key that signs the certificates of its replicas.
pub struct Authority {
    cluster: String,
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority with a new key.
    ///
    /// # Errors
    /// Fails if the system provides no random numbers.
    pub fn new(cluster: &str) -> Result<Authority, SecurityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519);
        Authority::of_key(cluster, key.map_err(failed("making a key"))?)
    }

    /// Derives the authority of this cluster from `secret`. All nodes that have the same secret
    /// derive the same authority. White space at the end of the secret is ignored, because editors
    /// append a line end.
    ///
    /// # Errors
    /// Fails if key derivation or signing fails. No value of the arguments causes such a failure.
    pub fn from_secret(cluster: &str, secret: &[u8]) -> Result<Authority, SecurityError> {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT);
        let mut key = PKCS8_PREFIX.to_vec();
        let mut seed = [0; SEED_BYTES];
        let derived = salt
            .extract(secret.trim_ascii_end())
            .expand(&[cluster.as_bytes()], hkdf::HKDF_SHA256)
            .and_then(|derived| derived.fill(&mut seed));
        derived.map_err(failed("deriving a key from the secret"))?;
        key.extend(seed);
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519);
        Authority::of_key(
            cluster,
            key.map_err(failed("deriving a key from the secret"))?,
        )
    }

    /// Creates the authority from a stored private key, in PEM.
    ///
    /// # Errors
    /// Fails if the text is not such a key.
    pub fn from_pem(cluster: &str, key: &str) -> Result<Authority, SecurityError> {
        let key = KeyPair::from_pem(key).map_err(failed("reading the authority's key"))?;
        Authority::of_key(cluster, key)
    }

    fn of_key(cluster: &str, key: KeyPair) -> Result<Authority, SecurityError> {
        let mut params = CertificateParams::default();
        // A replica shows its certificates to every machine that connects, so they name no member.
        params.distinguished_name =
            named(&format!("leasehold authority {}", names::label(cluster)));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let Validity { from, to } = Validity::always();
        (params.not_before, params.not_after) = (from, to);
        let certificate = params.self_signed(&key);
        let certificate = certificate.map_err(failed("signing the authority's certificate"))?;
        Ok(Authority {
            cluster: cluster.to_owned(),
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// Returns the authority's certificate. The same key always yields the same certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Returns the authority's private key, in PEM. Anyone with the key can pretend to be any
    /// replica.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a certificate for a replica, with a new key.
    ///
    /// # Errors
    /// Fails if the system provides no random numbers.
    pub fn issue(
        &self,
        replica: &str,
        validity: Validity,
    ) -> Result<IssuedCertificate, SecurityError> {
        self.sign(names::all(&self.cluster, replica), validity)
    }

    /// Issues a certificate that contains these names.
    pub(crate) fn sign(
        &self,
        names: Vec<String>,
        validity: Validity,
    ) -> Result<IssuedCertificate, SecurityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(failed("making a key"))?;
        let mut params = CertificateParams::new(names).map_err(failed("naming a replica"))?;
        params.distinguished_name = named("leasehold replica");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = (validity.from, validity.to);
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate.map_err(failed("signing a certificate"))?;
        Ok(IssuedCertificate { certificate, key })
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn failed<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> SecurityError {
    move |error| SecurityError::Failed {
        doing,
        problem: error.to_string(),
    }
}
