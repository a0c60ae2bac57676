//! Errors of a topology.

use super::{RTT_MS_MAX, SITES_MAX};

/// Error in a topology. The message describes how to correct the error.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum TopologyError {
    /// The file of the topology cannot be read.
    #[error("topology file {path}: {source}")]
    Unreadable {
        path: String,
        source: std::io::Error,
    },
    /// The text is not TOML, or has a field that does not exist.
    #[error("topology file {path}: {source}")]
    Malformed {
        path: String,
        source: Box<toml::de::Error>,
    },
    /// The contents of the file are not a valid topology.
    #[error("topology file {path}: {source}")]
    Wrong {
        path: String,
        source: Box<TopologyError>,
    },
    /// The topology has no site, or more than `SITES_MAX` sites.
    #[error(
        "sites: {found} names found, 1 to {SITES_MAX} accepted; list the sites' names, as in sites = [\"JP\", \"CA\"]"
    )]
    SiteCount { found: usize },
    /// A site has an empty name, or a name that cannot be used in tables and overrides.
    #[error(
        "sites: the name {found:?} (number {position}) is not accepted; use letters, digits, '-' or '_'"
    )]
    SiteName {
        found: String,
        /// Position of the site in the list, counted from 1.
        position: usize,
    },
    /// Two sites have the same name.
    #[error("sites: {name:?} stands at places {first} and {second}; rename one of them")]
    DuplicateSite {
        name: String,
        /// Position of the first site with this name, counted from 1.
        first: usize,
        /// Position of the second site with this name, counted from 1.
        second: usize,
    },
    /// A round trip refers to a site that is not listed.
    #[error(
        "rtt_ms.{from}.{to}: no site is called {unknown:?}; the sites are {known}; correct the name, or add it to sites"
    )]
    UnknownSite {
        from: String,
        to: String,
        unknown: String,
        known: String,
    },
    /// The value for a round trip is not a number of milliseconds in the accepted range.
    #[error(
        "{field} = {found}: a round trip is a number of milliseconds from 0 to {RTT_MS_MAX}; correct it"
    )]
    RoundTrip { field: String, found: f64 },
    /// A site's round trip to itself differs from `local_rtt_ms`.
    #[error(
        "rtt_ms.{site}.{site} = {found}, but local_rtt_ms = {local}; leave the pair out, or write the same value"
    )]
    Diagonal {
        site: String,
        found: f64,
        local: f64,
    },
    /// The round trip of a pair of sites is given twice, with different values.
    #[error(
        "rtt_ms.{a}.{b} = {ab}, but rtt_ms.{b}.{a} = {ba}; a round trip is the same from both ends: keep one of them"
    )]
    NotSymmetric {
        a: String,
        b: String,
        ab: f64,
        ba: f64,
    },
    /// Some pairs of sites have no round trip.
    #[error("rtt_ms: no round trip for {pairs}; add for example {example}")]
    NotComplete { pairs: String, example: String },
}
