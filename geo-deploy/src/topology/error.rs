//! Errors of a topology.

use super::{RTT_MS_MAX, SITES_MAX};

/// Error of a topology, and its fix.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("topology file {path}: {source}")]
    Unreadable {
        path: String,
        source: std::io::Error,
    },
    /// Not TOML, or a field that does not exist.
    #[error("topology file {path}: {source}")]
    Malformed {
        path: String,
        source: Box<toml::de::Error>,
    },
    /// The contents of the file make no topology.
    #[error("topology file {path}: {source}")]
    Wrong {
        path: String,
        source: Box<TopologyError>,
    },
    /// No site at all, or more than a bitmap holds.
    #[error(
        "sites: {found} names found, 1 to {SITES_MAX} accepted; list the sites' names, as in sites = [\"JP\", \"CA\"]"
    )]
    SiteCount { found: usize },
    /// A site without a name, or with one that tables and overrides cannot carry.
    #[error(
        "sites: the name {found:?} (number {position}) is not accepted; use letters, digits, '-' or '_'"
    )]
    SiteName {
        found: String,
        /// Its place in the list, from 1.
        position: usize,
    },
    /// Two sites of one name.
    #[error("sites: {name:?} stands at places {first} and {second}; rename one of them")]
    DuplicateSite {
        name: String,
        /// Its first place, from 1.
        first: usize,
        /// Its second place.
        second: usize,
    },
    /// A round trip of a site that is not listed.
    #[error(
        "rtt_ms.{from}.{to}: no site is called {unknown:?}; the sites are {known}; correct the name, or add it to sites"
    )]
    UnknownSite {
        from: String,
        to: String,
        unknown: String,
        known: String,
    },
    /// Not a latency.
    #[error(
        "{field} = {found}: a round trip is a number of milliseconds from 0 to {RTT_MS_MAX}; correct it"
    )]
    RoundTrip { field: String, found: f64 },
    /// A site at another distance from itself than the rest of the file says.
    #[error(
        "rtt_ms.{site}.{site} = {found}, but local_rtt_ms = {local}; leave the pair out, or write the same value"
    )]
    Diagonal {
        site: String,
        found: f64,
        local: f64,
    },
    /// Two values for one pair.
    #[error(
        "rtt_ms.{a}.{b} = {ab}, but rtt_ms.{b}.{a} = {ba}; a round trip is the same from both ends: keep one of them"
    )]
    NotSymmetric {
        a: String,
        b: String,
        ab: f64,
        ba: f64,
    },
    /// Pairs without a value.
    #[error("rtt_ms: no round trip for {pairs}; add for example {example}")]
    NotComplete { pairs: String, example: String },
}
