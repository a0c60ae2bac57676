//! `[security]`: the means by which nodes prove their identity, and by which clients prove their
//! rights.

use std::path::{Path, PathBuf};

use leasehold_transport::is_loopback;
use serde::Deserialize;

use super::check::{CheckResult, Checker};
use super::{ClusterConfig, ConfigError};

/// The section `[security]` of the file, before any check.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SecuritySection {
    certificates: Option<String>,
    secret: Option<String>,
    tokens: Option<String>,
    #[serde(default)]
    insecure: bool,
}

/// Means by which replicas prove their identity to each other and to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// Replicas prove nothing, and connections are not encrypted.
    #[default]
    None,
    /// Each replica has a certificate that the cluster's authority has signed. The certificate is
    /// in this directory.
    Certificates(PathBuf),
    /// Each replica creates its own certificate from the secret in this file.
    Secret(PathBuf),
}

/// Conditions under which replicas and clients may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Security {
    /// Means by which replicas prove their identity.
    pub identity: Identity,
    /// Path of the token file. `None`: every client may do everything.
    pub tokens: Option<PathBuf>,
    /// Whether the operator has confirmed that a missing identity or a missing token file is
    /// intended.
    pub insecure: bool,
}

impl Checker<'_> {
    pub(super) fn security(&self, found: SecuritySection, base: &Path) -> CheckResult<Security> {
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
            tokens: found.tokens.map(|file| base.join(file)),
            insecure: found.insecure,
        })
    }
}

impl ClusterConfig {
    /// Refuses a configuration that lets other machines pretend to be nodes, or lets them read and
    /// write everything. Accepts every configuration that sets `insecure`.
    ///
    /// # Errors
    /// The error names an address that other machines may reach.
    pub fn check_reach(&self) -> Result<(), ConfigError> {
        if self.security.insecure {
            return Ok(());
        }
        self.check_peers_reach()
            .and_then(|()| self.check_clients_reach())
    }

    fn check_peers_reach(&self) -> Result<(), ConfigError> {
        let found = self
            .reachable()
            .filter(|_| self.security.identity == Identity::None);
        let Some((field, found)) = found else {
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
        Err(self.reached(field, &found, accepted))
    }

    fn check_clients_reach(&self) -> Result<(), ConfigError> {
        let mut nodes = self.nodes.iter();
        let found = nodes.find(|node| !is_loopback(&node.client));
        let Some(node) = found.filter(|_| self.security.tokens.is_none()) else {
            return Ok(());
        };
        let accepted = "others than this machine may reach it, and anybody could read and write \
                        everything. Make a token (`leasehold token new NAME --file tokens.toml \
                        --read '' --write '' --out FILE`) and add [security] tokens = \
                        \"tokens.toml\"; or, if nobody else reaches this network, add [security] \
                        insecure = true";
        let field = format!("client of node {}", node.name);
        Err(self.reached(field, &node.client, accepted.to_owned()))
    }

    fn reached(&self, field: String, found: &str, accepted: String) -> ConfigError {
        ConfigError::Field {
            file: self.file.clone(),
            field,
            found: format!("{found:?}"),
            accepted,
        }
    }

    /// Returns the first configured address that other machines may reach. The first string is the
    /// name of the field, and the second string is its value.
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
                let config = parse(&format!("[security]\ntokens = 't'\n{meant}"), addresses);
                config.unwrap().check_reach().unwrap();
            }
            for missing in ["insecure = false", "tokens = 't'"] {
                let config = parse(&format!("[security]\n{missing}"), addresses).unwrap();
                config.check_reach().unwrap_err();
            }
        }
    }

    #[test]
    fn beyond_this_machine_somebody_must_say_what_clients_may_do() {
        let elsewhere = ["10.1.2.3:7001", HERE[1]];
        let config = parse("[security]\ncertificates = 'c'", elsewhere).unwrap();
        let refusal = config.check_reach().unwrap_err().to_string();
        for part in [
            "/etc/leasehold/demo.toml: client of node CA is \"10.1.2.3:7001\"",
            "leasehold token new",
            "tokens = \"tokens.toml\"",
            "insecure = true",
        ] {
            assert!(refusal.contains(part), "{part:?} is not in {refusal:?}");
        }
        let peers_alone = parse("[security]\nsecret = 's'", [HERE[0], "10.1.2.3:7101"]);
        peers_alone.unwrap().check_reach().unwrap();
        let tokens = parse("[security]\ntokens = 'sub/tokens.toml'", HERE).unwrap();
        let file = Path::new("/etc/leasehold/sub/tokens.toml");
        assert_eq!(tokens.security.tokens.as_deref(), Some(file));
        let unknown = parse("[security]\ntoken = 'a'", HERE).unwrap_err();
        assert!(unknown.to_string().contains("`tokens`"), "{unknown}");
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
