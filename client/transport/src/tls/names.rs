//! Names in certificates.
//!
//! The names of clusters and replicas may hold characters that a DNS name may not, and the
//! certificate is shown to every peer that connects. So a label is a hash: the first 32
//! hexadecimal digits of the SHA-256 of the name.

use std::fmt::Write as _;

use ring::digest::{SHA256, digest};

/// Name in the certificate of every replica, in all clusters. A client checks this name if it knows
/// only an address and an authority.
pub const REPLICA: &str = "replica.leasehold";

/// Returns the name of one replica: `<label of the replica>.<label of the cluster>.leasehold`.
pub fn of_replica(cluster: &str, replica: &str) -> String {
    format!("{}.{}.leasehold", label(replica), label(cluster))
}

/// Returns the name that all replicas of a cluster have in common: `replica.<label of the
/// cluster>.leasehold`.
pub fn of_cluster(cluster: &str) -> String {
    format!("replica.{}.leasehold", label(cluster))
}

/// Returns all names that the certificate of a replica must contain.
pub fn all(cluster: &str, replica: &str) -> Vec<String> {
    vec![
        of_replica(cluster, replica),
        of_cluster(cluster),
        REPLICA.to_owned(),
    ]
}

/// Returns the first half of the SHA-256 of a name, in hexadecimal digits.
pub fn label(name: &str) -> String {
    let hash = digest(&SHA256, name.as_bytes());
    let mut label = String::new();
    for byte in &hash.as_ref()[..16] {
        // Writing into a string does not fail.
        let _ = write!(label, "{byte:02x}");
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_anybody_can_compute() {
        // Output of: printf CA | sha256sum
        assert_eq!(label("CA"), "4b650e5c4785025dee7bd65e3c5c5273");
        let all = [
            of_replica("demo", "CA"),
            of_replica("demo", "ca"),
            of_replica("Demo", "CA"),
            of_cluster("demo"),
            of_cluster("Demo"),
            of_replica("demo", "replica"),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert!(all.iter().all(|name| name.len() < 100));
    }
}
