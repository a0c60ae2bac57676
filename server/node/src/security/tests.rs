//! Tests that certificates are made and found, or refused with helpful messages.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use leasehold_transport::tls::roots;
use tempfile::TempDir;

use super::credentials::check;
use super::*;
use crate::ClusterConfig;

const SECRET: &str = "Hn2Q0yJt1rXvB8kKxF5cV3mWz7pLd9Sg";

fn config(dir: &Path, security: &str) -> ClusterConfig {
    let security = security.replace("'.'", &format!("'{}'", dir.display()));
    let text = format!(
        "cluster = 'demo'\ndata = 'data'\n[security]\n{security}\n\
         [[node]]\nname = 'CA'\nclient = '127.0.0.1:1'\npeer = '127.0.0.1:2'\n\
         [[node]]\nname = 'JP'\nclient = '127.0.0.1:3'\npeer = '127.0.0.1:4'\n"
    );
    ClusterConfig::parse(&text, &dir.join("cluster.toml")).unwrap()
}

/// Returns a directory with the certificates of both nodes, and the authority that issued them.
fn certificates(validity: Validity) -> (TempDir, Authority) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("demo").unwrap();
    let pem = authority.certificate().pem();
    write_new(&dir.path().join(AUTHORITY), &pem, 0o644).unwrap();
    for name in ["CA", "JP"] {
        write(dir.path(), name, &authority.issue(name, validity).unwrap());
    }
    (dir, authority)
}

fn write(dir: &Path, name: &str, issued: &IssuedCertificate) {
    let (certificate, key) = (certificate_file(dir, name), key_file(dir, name));
    let _ = (
        std::fs::remove_file(&certificate),
        std::fs::remove_file(&key),
    );
    write_new(&certificate, &issued.certificate.pem(), 0o644).unwrap();
    write_new(&key, &issued.key.serialize_pem(), 0o600).unwrap();
}

fn refusal(config: &ClusterConfig, name: &str) -> String {
    NodeCredentials::open(config, name).unwrap_err().to_string()
}

#[test]
fn certificates_that_were_made_are_used() {
    let (dir, _) = certificates(Validity::days(100));
    let config = config(dir.path(), "certificates = '.'");
    let credentials = NodeCredentials::open(&config, "JP").unwrap().unwrap();
    let expires = credentials.expires.unwrap();
    let days = expires
        .duration_since(std::time::SystemTime::now())
        .unwrap()
        .as_secs()
        / 86_400;
    assert!((98..=100).contains(&days), "{days}");
    assert!(trust(&config).unwrap().is_some());
}

#[test]
fn a_certificate_that_others_would_not_accept_is_refused_at_the_start() {
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(86_400 * 365);
    let past = Validity::between(std::time::SystemTime::UNIX_EPOCH, long_ago);
    let (dir, authority) = certificates(past);
    let config = config(dir.path(), "certificates = '.'");
    let said = refusal(&config, "CA");
    assert!(
        said.contains("CA.pem: it has expired on 1971-01-01"),
        "{said}"
    );

    let others = Authority::new("demo").unwrap();
    write(
        dir.path(),
        "CA",
        &others.issue("CA", Validity::days(1)).unwrap(),
    );
    let said = refusal(&config, "CA");
    assert!(
        said.contains("not signed by the authority in ca.pem"),
        "{said}"
    );

    write(
        dir.path(),
        "CA",
        &authority.issue("JP", Validity::days(1)).unwrap(),
    );
    let said = refusal(&config, "CA");
    assert!(
        said.contains("not one of node \"CA\" of cluster \"demo\""),
        "{said}"
    );

    let elsewhere = Authority::from_pem("prod", &authority.key_pem()).unwrap();
    let mut pem = authority.certificate().pem();
    pem += &elsewhere.certificate().pem();
    std::fs::write(dir.path().join(AUTHORITY), pem).unwrap();
    write(
        dir.path(),
        "CA",
        &elsewhere.issue("CA", Validity::days(1)).unwrap(),
    );
    let said = refusal(&config, "CA");
    assert!(
        said.contains("not one of node \"CA\" of cluster \"demo\""),
        "{said}"
    );

    write(
        dir.path(),
        "CA",
        &authority.issue("CA", Validity::days(1)).unwrap(),
    );
    NodeCredentials::open(&config, "CA").unwrap().unwrap();
}

#[test]
fn files_that_are_missing_open_or_mixed_up_are_named_with_what_to_do() {
    let (dir, authority) = certificates(Validity::days(1));
    let config = config(dir.path(), "certificates = '.'");
    let key = key_file(dir.path(), "CA");
    for mode in [0o604, 0o640, 0o620, 0o660] {
        set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let said = refusal(&config, "CA");
        let fix = format!("chmod 600 {}", key.display());
        assert!(
            said.contains(&fix) && said.contains(&format!("{mode:04o}")),
            "{said}"
        );
    }
    set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let others = authority.issue("CA", Validity::days(1)).unwrap();
    std::fs::write(&key, others.key.serialize_pem()).unwrap();
    let said = refusal(&config, "CA");
    assert!(
        said.contains("not the key of the certificate in CA.pem"),
        "{said}"
    );
    std::fs::write(&key, "nothing").unwrap();
    assert!(refusal(&config, "CA").contains("CA.key: no private key"));
    for file in [
        key,
        certificate_file(dir.path(), "CA"),
        dir.path().join(AUTHORITY),
    ] {
        std::fs::remove_file(&file).unwrap();
        let said = refusal(&config, "CA");
        let named = format!("security.certificates: {}: ", file.display());
        assert!(said.contains(&named), "{said}");
        assert!(said.contains("`leasehold cert`"), "{said}");
    }
}

#[test]
fn nothing_that_exists_is_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.key");
    write_new(&file, "first", 0o600).unwrap();
    write_new(&file, "second", 0o600).unwrap_err();
    assert_eq!(std::fs::read(&file).unwrap(), b"first");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn an_authority_is_the_same_whenever_it_is_made_from_the_same_key() {
    let first = Authority::new("demo").unwrap();
    let again = Authority::from_pem("demo", &first.key_pem()).unwrap();
    assert_eq!(first.certificate().der(), again.certificate().der());
    let secret = |cluster, secret: &str| {
        let made = Authority::from_secret(cluster, secret.as_bytes()).unwrap();
        made.certificate().der().clone()
    };
    let one = secret("demo", SECRET);
    assert_eq!(one, secret("demo", &format!("{SECRET}\r\n")));
    assert_ne!(one, secret("prod", SECRET));
    assert_ne!(one, secret("demo", &SECRET.to_lowercase()));
    // All releases must derive the same authority: nodes of two releases may form one cluster.
    let digest = ring::digest::digest(&ring::digest::SHA256, &one);
    assert_eq!(hex(&digest.as_ref()[..8]), "393f80b3366e8810");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_shared_secret_vouches_for_every_node_of_its_cluster_alone() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    write_new(&file, SECRET, 0o600).unwrap();
    let config = config(dir.path(), "secret = 'secret'");
    let credentials = NodeCredentials::open(&config, "CA").unwrap().unwrap();
    assert!(credentials.expires.unwrap() > std::time::SystemTime::now());
    let authority = Authority::from_secret("demo", SECRET.as_bytes()).unwrap();
    let issued = authority.issue("JP", Validity::always()).unwrap();
    let chain = [issued.certificate.der().clone()];
    let trusted = roots(authority.certificate().pem().as_bytes()).unwrap();
    check(&chain, &trusted, "demo", "JP").unwrap();
    check(&chain, &trusted, "demo", "CA").unwrap_err();
    check(&chain, &trusted, "prod", "JP").unwrap_err();

    set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    assert!(refusal(&config, "CA").contains("chmod 600"));
    set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&file, format!("{}\n", &SECRET[..31])).unwrap();
    let said = refusal(&config, "CA");
    assert!(
        said.contains("31 bytes are no secret") && !said.contains(&SECRET[..31]),
        "{said}"
    );
}

#[test]
fn certificates_name_neither_cluster_nor_node() {
    let authority = Authority::new("pantry-cluster").unwrap();
    let issued = authority.issue("kitchen-node", Validity::days(1)).unwrap();
    for certificate in [authority.certificate(), &issued.certificate] {
        let der = certificate.der();
        for name in ["pantry", "kitchen"] {
            assert!(!der.windows(name.len()).any(|part| part == name.as_bytes()));
        }
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_directory_is_made_added_to_and_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let directory = &dir.path().join("certs");
    let equip = |nodes: &[&str], renew| {
        let made = super::issue_certificates(&CertificateSpec {
            directory,
            cluster: "demo",
            nodes: &names(nodes),
            days: 10,
            renew,
        });
        let made = made.unwrap();
        let done: Vec<CertificateOutcome> = made.nodes.iter().map(|(_, done, _)| *done).collect();
        (made.is_new, done)
    };
    let text = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
    let config = config(directory, "certificates = '.'");
    assert_eq!(equip(&["CA"], false), (true, vec![CertificateOutcome::New]));
    let first = (
        text("CA.pem"),
        text("CA.key"),
        text(AUTHORITY),
        text(AUTHORITY_KEY),
    );
    assert_eq!(
        equip(&["CA", "JP"], false),
        (
            false,
            vec![CertificateOutcome::Kept, CertificateOutcome::New]
        )
    );
    assert_eq!(
        first,
        (
            text("CA.pem"),
            text("CA.key"),
            text(AUTHORITY),
            text(AUTHORITY_KEY)
        )
    );
    for name in ["CA", "JP"] {
        NodeCredentials::open(&config, name).unwrap().unwrap();
    }
    assert_eq!(
        equip(&["CA"], true),
        (false, vec![CertificateOutcome::Renewed])
    );
    assert_ne!((&first.0, &first.1), (&text("CA.pem"), &text("CA.key")));
    assert_eq!((first.2, first.3), (text(AUTHORITY), text(AUTHORITY_KEY)));
    NodeCredentials::open(&config, "CA").unwrap().unwrap();
    for (file, mode) in [
        ("CA.key", 0o600),
        ("JP.key", 0o600),
        (AUTHORITY_KEY, 0o600),
        (AUTHORITY, 0o644),
    ] {
        let found = std::fs::metadata(directory.join(file)).unwrap();
        // The umask may remove more bits.
        assert_eq!(found.permissions().mode() & 0o777 & !mode, 0, "{file}");
    }
}

/// The test uses two names for the same file. The two names act like two spellings of one name on a
/// file system that ignores case.
#[test]
fn the_authority_is_never_replaced_by_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let equip = |node: &str, renew| {
        super::issue_certificates(&CertificateSpec {
            directory: dir.path(),
            cluster: "demo",
            nodes: &names(&["JP", node]),
            days: 10,
            renew,
        })
    };
    let files = || {
        let all = std::fs::read_dir(dir.path()).unwrap().map(|entry| {
            let file = entry.unwrap().path();
            (file.clone(), std::fs::read(file).unwrap())
        });
        all.collect::<std::collections::BTreeMap<_, _>>()
    };
    equip("CA", false).unwrap();
    for (authority, file) in [
        (AUTHORITY, certificate_file(dir.path(), "CA")),
        (AUTHORITY_KEY, key_file(dir.path(), "CA")),
    ] {
        let aside = dir.path().join("aside");
        std::fs::rename(&file, &aside).unwrap();
        std::fs::hard_link(dir.path().join(authority), &file).unwrap();
        let before = files();
        for (node, renew) in [("CA", true), ("CA", false), ("ca", true)] {
            let said = equip(node, renew).unwrap_err().to_string();
            let expected = format!("it is {authority}, the authority's own file");
            assert!(said.contains(&expected) || node == "ca", "{said}");
            assert!(before == files(), "nothing is done");
        }
        std::fs::rename(&aside, &file).unwrap();
    }
    equip("CA", true).unwrap();
}

#[test]
fn a_directory_without_its_key_or_of_another_cluster_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let equip = |cluster, nodes: &[&str]| {
        super::issue_certificates(&CertificateSpec {
            directory: dir.path(),
            cluster,
            nodes: &names(nodes),
            days: 10,
            renew: false,
        })
    };
    equip("demo", &["CA"]).unwrap();
    let said = equip("prod", &["OR"]).unwrap_err().to_string();
    assert!(
        said.contains("ca.pem: ") && said.contains("for cluster \"prod\""),
        "{said}"
    );
    std::fs::remove_file(dir.path().join(AUTHORITY_KEY)).unwrap();
    let said = equip("demo", &["OR"]).unwrap_err().to_string();
    assert!(
        said.contains("ca.key: ") && said.contains("where the authority's key is"),
        "{said}"
    );
    assert!(!certificate_file(dir.path(), "OR").exists());
}
