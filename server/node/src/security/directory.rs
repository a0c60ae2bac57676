//! The certificates of a cluster, made in one directory.

use std::fs::{DirBuilder, rename};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leasehold_transport::tls::{self, roots};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::files::{self, AUTHORITY, AUTHORITY_KEY};
use super::{
    Authority, Issued, SecurityError, Validity, certificate_file, credentials, key_file, write_new,
};

/// Certificates to be made.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Where. It is made if there is no such directory.
    pub directory: &'a Path,
    /// The cluster's name.
    pub cluster: &'a str,
    /// The names of its nodes.
    pub nodes: &'a [String],
    /// For how many days the certificates of nodes are valid.
    pub days: u32,
    /// Whether certificates that are there already are made anew.
    pub renew: bool,
}

/// Outcome for a node's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// There was none.
    New,
    /// It was there, and stays.
    Kept,
    /// It was there, and was replaced.
    Renewed,
}

/// Contents of a directory now.
#[derive(Debug)]
pub struct Directory {
    /// Whether the authority was made.
    pub is_new: bool,
    /// By node: what was done, and until when its certificate is valid.
    pub nodes: Vec<(String, Made, SystemTime)>,
}

/// Makes an authority if there is none, and the certificates of all nodes that have none.
///
/// # Errors
/// A file cannot be read or written, or what is there does not belong together. Nothing that
/// is there is replaced, but by `renew`, and the authority's files never are.
pub fn equip(wanted: &Wanted<'_>) -> Result<Directory, SecurityError> {
    let mut builder = DirBuilder::new();
    let built = builder.recursive(true).mode(0o700).create(wanted.directory);
    built.map_err(|source| SecurityError::Write {
        file: wanted.directory.to_owned(),
        source,
    })?;
    let (authority, is_new) = authority(wanted)?;
    let mut names = wanted.nodes.iter();
    names.try_for_each(|node| check_files(wanted.directory, node))?;
    let nodes = wanted.nodes.iter();
    let nodes = nodes.map(|node| {
        let made = equip_node(wanted, &authority, node)?;
        let expires = expires(wanted, node)?;
        Ok((node.clone(), made, expires))
    });
    Ok(Directory {
        is_new,
        nodes: nodes.collect::<Result<_, SecurityError>>()?,
    })
}

fn authority(wanted: &Wanted<'_>) -> Result<(Authority, bool), SecurityError> {
    let file = wanted.directory.join(AUTHORITY);
    let key = wanted.directory.join(AUTHORITY_KEY);
    if !file.exists() && !key.exists() {
        let authority = Authority::new(wanted.cluster)?;
        write_new(&key, &authority.key_pem(), 0o600)?;
        write_new(&file, &authority.certificate().pem(), 0o644)?;
        return Ok((authority, true));
    }
    let mend =
        "run this where the authority's key is, or name another directory to make a new authority";
    let pem = files::read_private(&key, mend)?;
    let authority = Authority::from_pem(wanted.cluster, &String::from_utf8_lossy(&pem));
    let authority = authority.map_err(|error| SecurityError::Malformed {
        file: key,
        problem: format!("{error}; {mend}"),
    })?;
    let pem = files::read(&file, mend)?;
    let mut trusted = CertificateDer::pem_slice_iter(&pem).flatten();
    if trusted.any(|one| one == *authority.certificate().der()) {
        return Ok((authority, false));
    }
    Err(SecurityError::Malformed {
        file,
        problem: format!(
            "it is not the authority that `leasehold cert` makes for cluster {:?} with the key in \
             {AUTHORITY_KEY}: {mend}",
            wanted.cluster
        ),
    })
}

/// Refuses a node whose files are those of the authority, as those of a node called `CA` where
/// case does not count in names of files.
fn check_files(directory: &Path, node: &str) -> Result<(), SecurityError> {
    for (file, authority) in [
        (certificate_file(directory, node), AUTHORITY),
        (key_file(directory, node), AUTHORITY_KEY),
    ] {
        if are_one(&file, &directory.join(authority)) {
            let problem = format!(
                "it is {authority}, the authority's own file, so node {node:?} can have none of this name; give the \
                 node another name, or name a directory where case counts in names of files"
            );
            return Err(SecurityError::Malformed { file, problem });
        }
    }
    Ok(())
}

fn are_one(a: &Path, b: &Path) -> bool {
    let inode = |file: &Path| file.metadata().map(|it| (it.dev(), it.ino())).ok();
    inode(a).is_some() && inode(a) == inode(b)
}

fn equip_node(
    wanted: &Wanted<'_>,
    authority: &Authority,
    node: &str,
) -> Result<Made, SecurityError> {
    let certificate = certificate_file(wanted.directory, node);
    let key = key_file(wanted.directory, node);
    let is_there = certificate.exists() || key.exists();
    if is_there && !wanted.renew {
        return Ok(Made::Kept);
    }
    let issued = authority.issue(node, Validity::days(wanted.days))?;
    if !is_there {
        write_pair(&issued, &certificate, &key)?;
        return Ok(Made::New);
    }
    // A node that reads them now finds the old ones, or refuses the mixture and looks again.
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
    Ok(Made::Renewed)
}

fn write_pair(issued: &Issued, certificate: &Path, key: &Path) -> Result<(), SecurityError> {
    write_new(key, &issued.key.serialize_pem(), 0o600)?;
    write_new(certificate, &issued.certificate.pem(), 0o644)
}

/// Until when a node's certificate is valid, if others would accept it.
fn expires(wanted: &Wanted<'_>, node: &str) -> Result<SystemTime, SecurityError> {
    let mend = "make it anew with --renew";
    let file = certificate_file(wanted.directory, node);
    let malformed = |problem: String| SecurityError::Malformed {
        file: file.clone(),
        problem: format!("{problem}; {mend}"),
    };
    let authority = wanted.directory.join(AUTHORITY);
    let trusted = roots(&files::read(&authority, mend)?);
    let trusted = trusted.map_err(|problem| SecurityError::Malformed {
        file: authority,
        problem: format!("{problem}; bring it back from a copy"),
    })?;
    let pem = files::read(&file, mend)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.map_err(|error| malformed(tls::malformed(&error)))?;
    credentials::check(&chain, &trusted, wanted.cluster, node).map_err(malformed)?;
    let expires = credentials::expires(&chain, &trusted);
    expires.ok_or_else(|| malformed("it says not until when it is valid".to_owned()))
}
