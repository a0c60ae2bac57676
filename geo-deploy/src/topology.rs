//! Sites, and the round trips between them, on which latency depends. Topology files are written by
//! hand, so errors name the pair of sites, the value that was found and the correction.
//!
//! ```toml
//! sites = ["JP", "CA", "OR"]
//! local_rtt_ms = 0.4
//!
//! [rtt_ms]                    # every pair once; twice is fine if both agree
//! JP = { CA = 120, OR = 120 }
//! CA = { OR = 20 }
//! ```

mod error;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_node::config::from_toml;
use serde::{Deserialize, Serialize};

pub use error::TopologyError;
use file::TopologyFile;

/// Maximum number of sites of a topology. The limit exists because a set of holders is a bitmap of
/// 64 bits.
pub const SITES_MAX: usize = 64;
/// Longest round trip that is accepted, in ms: one minute. A longer round trip is regarded as a
/// mistake.
const RTT_MS_MAX: f64 = 60_000.0;

/// A place with one replica and its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Short name, which is used in tables and overrides.
    pub name: String,
}

/// Sites and the round trips between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "TopologyFile", into = "TopologyFile")]
pub struct Topology {
    sites: Vec<Site>,
    /// Matrix of round trips in ms, indexed by two sites. The matrix is symmetric. Every value on
    /// the diagonal is `local_rtt_ms`.
    rtt_ms: Vec<Vec<f64>>,
    local_rtt_ms: f64,
}

impl Topology {
    /// Returns the topology of the paper (Table 1). Round trips within a site are 0.4 ms, as in the
    /// paper.
    pub fn paper() -> Topology {
        const NAMES: [&str; 5] = ["JP", "CA", "OR", "VA", "IRL"];
        const ROWS: [[f64; 5]; 5] = [
            [0.4, 120.0, 120.0, 180.0, 270.0],
            [120.0, 0.4, 20.0, 85.0, 150.0],
            [120.0, 20.0, 0.4, 75.0, 170.0],
            [180.0, 85.0, 75.0, 0.4, 92.0],
            [270.0, 150.0, 170.0, 92.0, 0.4],
        ];
        Topology::new(
            NAMES.map(String::from).to_vec(),
            ROWS.map(|row| row.to_vec()).to_vec(),
            0.4,
        )
        .expect("the paper's table is complete and symmetric")
    }

    /// Creates a topology from a full matrix in ms. Every value on the diagonal must be
    /// `local_rtt_ms`.
    pub fn new(
        names: Vec<String>,
        rtt_ms: Vec<Vec<f64>>,
        local_rtt_ms: f64,
    ) -> Result<Topology, TopologyError> {
        let mut rows: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
        for (a, row) in names.iter().zip(&rtt_ms) {
            let row = names.iter().cloned().zip(row.iter().copied());
            rows.entry(a.clone()).or_default().extend(row);
        }
        Topology::try_from(TopologyFile {
            sites: names,
            local_rtt_ms,
            rtt_ms: rows,
        })
    }

    /// Reads a topology from a file.
    pub fn load(path: &Path) -> Result<Topology, TopologyError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| TopologyError::Unreadable {
            path: shown.clone(),
            source,
        })?;
        Topology::parse(&shown, &text)
    }

    /// Parses the text of a topology file. Error messages contain `path` as the name of the file.
    pub fn parse(path: &str, text: &str) -> Result<Topology, TopologyError> {
        let file: TopologyFile = from_toml(text).map_err(|source| TopologyError::Malformed {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        Topology::try_from(file).map_err(|source| TopologyError::Wrong {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    /// Returns the number of sites.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Returns false, because a topology has at least one site.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Returns the sites, in the order that tables and indexes use.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// Returns the names of the sites, in order.
    pub fn names(&self) -> Vec<&str> {
        self.sites.iter().map(|site| site.name.as_str()).collect()
    }

    /// Returns the index of a site; `None` if no site has this name.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.sites.iter().position(|site| site.name == name)
    }

    /// Returns the round trip in ms between two sites. If `a` equals `b`, this is the round trip
    /// within the site.
    pub fn rtt_ms(&self, a: usize, b: usize) -> f64 {
        self.rtt_ms[a][b]
    }

    /// Returns the full matrix of round trips in ms, with `local_rtt_ms` on its diagonal.
    pub fn matrix(&self) -> &[Vec<f64>] {
        &self.rtt_ms
    }

    /// Returns the round trip within a site, in ms.
    pub fn local_rtt_ms(&self) -> f64 {
        self.local_rtt_ms
    }

    /// Returns all other sites in ascending order of distance to `site`. Sites at the same distance
    /// are in the topology's order.
    pub fn nearest_to(&self, site: usize) -> Vec<usize> {
        let mut others: Vec<usize> = (0..self.len()).filter(|&other| other != site).collect();
        others.sort_by(|&a, &b| self.rtt_ms(site, a).total_cmp(&self.rtt_ms(site, b)));
        others
    }
}

/// Returns true if a name can be used in tables, overrides and names of files.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.chars().all(plain)
}
