//! `[security]`: how peers prove who they are, and what clients see of that.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::check::{Checked, Checker};
use super::{ClusterConfig, ConfigError};

/// As it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecuritySection {
    certificates: Option<String>,
    secret: Option<String>,
    #[serde(default)]
    insecure: bool,
}

/// How replicas prove who they are, to each other and to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// They do not, and nothing is encrypted.
    #[default]
    None,
    /// With certificates of the cluster's authority, in this directory.
    Certificates(PathBuf),
    /// With certificates that each makes for itself, from the secret in this file.
    Secret(PathBuf),
}

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// How replicas prove who they are.
    pub identity: Identity,
    /// Whether it is meant that what is not asked for here is missing.
    pub insecure: bool,
}

impl Checker<'_> {
    pub(super) fn security(&self, found: SecuritySection, base: &Path) -> Checked<Security> {
        let identity = match (found.certificates, found.secret) {
            (None, None) => Identity::None,
            (Some(directory), None) => Identity::Certificates(base.join(directory)),
            (None, Some(file)) => Identity::Secret(base.join(file)),
            (Some(_), Some(file)) => {
                let accepted = "security.certificates is given, too; leave one of them out";
                return Err(self.quoted("security.secret", &file, accepted));
            }
        };
        Ok(Security {
            identity,
            insecure: found.insecure,
        })
    }
}

impl ClusterConfig {
    /// Refuses to let others than this machine pass for nodes, unless that is meant.
    ///
    /// # Errors
    /// An address that others may reach.
    pub fn check_reach(&self) -> Result<(), ConfigError> {
        if self.security.identity != Identity::None || self.security.insecure {
            return Ok(());
        }
        let Some((field, found)) = self.reachable() else {
            return Ok(());
        };
        let file = self.file.display();
        let accepted = format!(
            "others than this machine may reach it, and anybody could pass for a node. Make \
             certificates (`leasehold cert DIR --config {file}`) and add [security] certificates = \
             \"DIR\"; or put the same random bytes into a file of mode 0600 at every node (`head -c 32 \
             /dev/urandom | base64`) and add [security] secret = \"FILE\"; or, if nobody else reaches \
             this network, add [security] insecure = true"
        );
        Err(ConfigError::Field {
            file: self.file.clone(),
            field,
            found: format!("{found:?}"),
            accepted,
        })
    }

    /// The first address that others than this machine may reach, and which it is.
    fn reachable(&self) -> Option<(String, String)> {
        let addresses = self.nodes.iter().flat_map(|node| {
            let name = &node.name;
            let via = node.via.iter();
            let via =
                via.map(move |(to, address)| (format!("via of node {name} to {to}"), address));
            let own = [
                (format!("client of node {name}"), &node.client),
                (format!("peer of node {name}"), &node.peer),
            ];
            own.into_iter().chain(via)
        });
        let mut reachable = addresses.filter(|(_, address)| !is_loopback(address));
        reachable
            .next()
            .map(|(field, address)| (field, address.clone()))
    }
}

/// Whether only this machine reaches an address, `host:port`. A name may mean any machine.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(top: &str, addresses: [&str; 2]) -> Result<ClusterConfig, ConfigError> {
        let [client, peer] = addresses;
        let text = format!(
            "cluster = 'demo'\ndata = 'data'\n{top}\n[[node]]\nname = 'CA'\nclient = '{client}'\npeer = '{peer}'\n"
        );
        ClusterConfig::parse(&text, Path::new("/etc/leasehold/demo.toml"))
    }

    const HERE: [&str; 2] = ["127.0.0.1:7001", "localhost:7101"];

    #[test]
    fn only_this_machine_reaches_loopback() {
        for address in ["127.0.0.1:1", "127.9.8.7:1", "[::1]:1", "localhost:1"] {
            assert!(is_loopback(address), "{address}");
        }
        for address in [
            "0.0.0.0:1",
            "[::]:1",
            "10.0.0.1:1",
            "localhost.example:1",
            "db:1",
            "127.0.0.1.example:1",
            "[::ffff:10.0.0.1]:1",
        ] {
            assert!(!is_loopback(address), "{address}");
        }
    }

    #[test]
    fn beyond_this_machine_somebody_must_say_how_peers_are_known() {
        parse("", HERE).unwrap().check_reach().unwrap();
        for (field, addresses) in [
            ("client of node CA", ["0.0.0.0:7001", HERE[1]]),
            ("peer of node CA", [HERE[0], "ca.example:7101"]),
        ] {
            let config = parse("", addresses).unwrap();
            let refusal = config.check_reach().unwrap_err().to_string();
            for part in [
                "/etc/leasehold/demo.toml: ",
                field,
                "certificates = \"DIR\"",
                "secret = \"FILE\"",
                "insecure = true",
            ] {
                assert!(refusal.contains(part), "{part:?} is not in {refusal:?}");
            }
            for meant in ["certificates = 'c'", "secret = 's'", "insecure = true"] {
                let config = parse(&format!("[security]\n{meant}"), addresses);
                config.unwrap().check_reach().unwrap();
            }
            let config = parse("[security]\ninsecure = false", addresses).unwrap();
            config.check_reach().unwrap_err();
        }
    }

    #[test]
    fn a_relay_elsewhere_counts_as_an_address() {
        let text = "cluster = 'demo'\ndata = 'data'\n\
                    [[node]]\nname = 'CA'\nclient = '127.0.0.1:1'\npeer = '127.0.0.1:2'\n\
                    via = { JP = '10.0.0.1:4' }\n\
                    [[node]]\nname = 'JP'\nclient = '127.0.0.1:3'\npeer = '127.0.0.1:4'\n";
        let config = ClusterConfig::parse(text, Path::new("demo.toml")).unwrap();
        let refusal = config.check_reach().unwrap_err().to_string();
        assert!(
            refusal.contains("via of node CA to JP is \"10.0.0.1:4\""),
            "{refusal}"
        );
    }

    #[test]
    fn paths_begin_where_the_file_lies_and_one_way_is_enough() {
        let identity = |top: &str| parse(top, HERE).map(|config| config.security.identity);
        assert_eq!(identity("").unwrap(), Identity::None);
        assert_eq!(
            identity("[security]\ncertificates = 'certs'").unwrap(),
            Identity::Certificates("/etc/leasehold/certs".into())
        );
        assert_eq!(
            identity("[security]\nsecret = '/run/secret'").unwrap(),
            Identity::Secret("/run/secret".into())
        );
        let both = identity("[security]\nsecret = 's'\ncertificates = 'c'").unwrap_err();
        assert!(both.to_string().contains("leave one of them out"), "{both}");
    }
}
