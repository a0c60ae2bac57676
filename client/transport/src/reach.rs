//! Decides whether an address can be reached from this machine only, or also from other machines.

use std::net::IpAddr;

/// Whether only this machine can reach an address (`host:port`). Returns false for every host name
/// except `localhost`, because a host name may refer to any machine.
pub fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let ip = host.parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
