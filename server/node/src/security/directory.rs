//! Creation of all certificates of a cluster in one directory.

use std::fs::{DirBuilder, rename};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leasehold_transport::tls::{self, roots};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::files::{self, AUTHORITY, AUTHORITY_KEY};
use super::{
    Authority, IssuedCertificate, SecurityError, Validity, certificate_file, credentials, key_file,
    write_new,
};

/// Description of the certificates that [`issue_certificates`] makes.
#[derive(Clone, Copy, Debug)]
pub struct CertificateSpec<'a> {
    /// Directory for the files. It is created if it does not exist.
    pub directory: &'a Path,
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Names of the cluster's nodes.
    pub nodes: &'a [String],
    /// Number of days for which the certificates of nodes are valid.
    pub days: u32,
    /// Whether existing certificates of nodes are replaced by new ones.
    pub renew: bool,
}

/// Outcome for the certificate of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateOutcome {
    /// A certificate was made, because the node had none.
    New,
    /// The existing certificate of the node was kept.
    Kept,
    /// The existing certificate of the node was replaced.
    Renewed,
}

/// Contents of the directory after [`issue_certificates`].
#[derive(Debug)]
pub struct CertificateDirectory {
    /// Whether [`issue_certificates`] has made the authority.
    pub is_new: bool,
    /// Name of each node, the outcome for its certificate, and the time until which the certificate
    /// is valid.
    pub nodes: Vec<(String, CertificateOutcome, SystemTime)>,
}

/// Makes an authority if there is none, and a certificate for each node that has none. Existing
/// certificates are replaced only with `renew`, and the authority's files are never replaced.
///
/// # Errors
/// Fails if a file cannot be read or written, or if the existing files do not belong together.
pub fn issue_certificates(
    spec: &CertificateSpec<'_>,
) -> Result<CertificateDirectory, SecurityError> {
    let mut builder = DirBuilder::new();
    let built = builder.recursive(true).mode(0o700).create(spec.directory);
    built.map_err(|source| SecurityError::Write {
        file: spec.directory.to_owned(),
        source,
    })?;
    let (authority, is_new) = authority(spec)?;
    let mut names = spec.nodes.iter();
    names.try_for_each(|node| check_files(spec.directory, node))?;
    let nodes = spec.nodes.iter();
    let nodes = nodes.map(|node| {
        let made = issue_node_certificate(spec, &authority, node)?;
        let expires = expires(spec, node)?;
        Ok((node.clone(), made, expires))
    });
    Ok(CertificateDirectory {
        is_new,
        nodes: nodes.collect::<Result<_, SecurityError>>()?,
    })
}

fn authority(spec: &CertificateSpec<'_>) -> Result<(Authority, bool), SecurityError> {
    let file = spec.directory.join(AUTHORITY);
    let key = spec.directory.join(AUTHORITY_KEY);
    if !file.exists() && !key.exists() {
        let authority = Authority::new(spec.cluster)?;
        write_new(&key, &authority.key_pem(), 0o600)?;
        write_new(&file, &authority.certificate().pem(), 0o644)?;
        return Ok((authority, true));
    }
    let fix =
        "run this where the authority's key is, or name another directory to make a new authority";
    let pem = files::read_private(&key, fix)?;
    let authority = Authority::from_pem(spec.cluster, &String::from_utf8_lossy(&pem));
    let authority = authority.map_err(|error| SecurityError::Malformed {
        file: key,
        problem: format!("{error}; {fix}"),
    })?;
    let pem = files::read(&file, fix)?;
    let mut trusted = CertificateDer::pem_slice_iter(&pem).flatten();
    if trusted.any(|one| one == *authority.certificate().der()) {
        return Ok((authority, false));
    }
    Err(SecurityError::Malformed {
        file,
        problem: format!(
            "it is not the authority that `leasehold cert` makes for cluster {:?} with the key in \
             {AUTHORITY_KEY}: {fix}",
            spec.cluster
        ),
    })
}

/// Checks that the files of a node are not the authority's files. For example, both are the same
/// files if the file system ignores case in names and the node is called `CA`.
fn check_files(directory: &Path, node: &str) -> Result<(), SecurityError> {
    for (file, authority) in [
        (certificate_file(directory, node), AUTHORITY),
        (key_file(directory, node), AUTHORITY_KEY),
    ] {
        if are_same_file(&file, &directory.join(authority)) {
            let problem = format!(
                "it is {authority}, the authority's own file, so node {node:?} can have none of this name; give the \
                 node another name, or name a directory where case counts in names of files"
            );
            return Err(SecurityError::Malformed { file, problem });
        }
    }
    Ok(())
}

fn are_same_file(a: &Path, b: &Path) -> bool {
    let inode = |file: &Path| file.metadata().map(|it| (it.dev(), it.ino())).ok();
    inode(a).is_some() && inode(a) == inode(b)
}

fn issue_node_certificate(
    spec: &CertificateSpec<'_>,
    authority: &Authority,
    node: &str,
) -> Result<CertificateOutcome, SecurityError> {
    let certificate = certificate_file(spec.directory, node);
    let key = key_file(spec.directory, node);
    let is_there = certificate.exists() || key.exists();
    if is_there && !spec.renew {
        return Ok(CertificateOutcome::Kept);
    }
    let issued = authority.issue(node, Validity::days(spec.days))?;
    if !is_there {
        write_pair(&issued, &certificate, &key)?;
        return Ok(CertificateOutcome::New);
    }
    // A node that reads the files meanwhile gets the old pair, or refuses the mixture and checks
    // again.
    let beside = |file: &Path| -> PathBuf {
        let mut name = file.as_os_str().to_owned();
        name.push(".new");
        name.into()
    };
    let (new_certificate, new_key) = (beside(&certificate), beside(&key));
    let _ = (
        std::fs::remove_file(&new_certificate),
        std::fs::remove_file(&new_key),
    );
    write_pair(&issued, &new_certificate, &new_key)?;
    for (new, file) in [(new_key, key), (new_certificate, certificate)] {
        rename(new, &file).map_err(|source| SecurityError::Write { file, source })?;
    }
    Ok(CertificateOutcome::Renewed)
}

fn write_pair(
    issued: &IssuedCertificate,
    certificate: &Path,
    key: &Path,
) -> Result<(), SecurityError> {
    write_new(key, &issued.key.serialize_pem(), 0o600)?;
    write_new(certificate, &issued.certificate.pem(), 0o644)
}

/// Returns the time until which a node's certificate is valid. Fails if other nodes would not
/// accept the certificate.
fn expires(spec: &CertificateSpec<'_>, node: &str) -> Result<SystemTime, SecurityError> {
    let fix = "make it anew with --renew";
    let file = certificate_file(spec.directory, node);
    let malformed = |problem: String| SecurityError::Malformed {
        file: file.clone(),
        problem: format!("{problem}; {fix}"),
    };
    let authority = spec.directory.join(AUTHORITY);
    let trusted = roots(&files::read(&authority, fix)?);
    let trusted = trusted.map_err(|problem| SecurityError::Malformed {
        file: authority,
        problem: format!("{problem}; bring it back from a copy"),
    })?;
    let pem = files::read(&file, fix)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| malformed(tls::malformed(&error)))?;
    credentials::check(&chain, &trusted, spec.cluster, node).map_err(malformed)?;
    let expires = credentials::expires(&chain, &trusted);
    expires.ok_or_else(|| malformed("it says not until when it is valid".to_owned()))
}
