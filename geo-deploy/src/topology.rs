//! The sites and the round trips between them, which decide latency. People write these
//! files, so an error names the pair, what was found and how to correct it.
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

/// Most sites a topology can have: holder sets are bitmaps of 64 bits.
pub const SITES_MAX: usize = 64;
/// Longest round trip that is accepted, in ms: one minute. More is a mistake.
const RTT_MS_MAX: f64 = 60_000.0;

/// A place with one replica and its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Short name, as tables and overrides use it.
    pub name: String,
}

/// Sites and the round trips between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "TopologyFile", into = "TopologyFile")]
pub struct Topology {
    sites: Vec<Site>,
    /// Symmetric; the diagonal is `local_rtt_ms`.
    rtt_ms: Vec<Vec<f64>>,
    local_rtt_ms: f64,
}

impl Topology {
    /// Table 1 of the paper, with the 0.4 ms it gives for round trips within a site.
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

    /// A topology from a full matrix in ms; its diagonal must be `local_rtt_ms`.
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

    /// Reads a topology file.
    pub fn load(path: &Path) -> Result<Topology, TopologyError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| TopologyError::Unreadable {
            path: shown.clone(),
            source,
        })?;
        Topology::parse(&shown, &text)
    }

    /// Reads the text of a topology file, which errors will call `path`.
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

    /// Always false: a topology has at least one site.
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// The sites, in the order every table and index uses.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// The sites' names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.sites.iter().map(|site| site.name.as_str()).collect()
    }

    /// The index of a site.
    pub fn index(&self, name: &str) -> Option<usize> {
        self.sites.iter().position(|site| site.name == name)
    }

    /// The round trip between two sites in ms; within a site the local one.
    pub fn rtt_ms(&self, a: usize, b: usize) -> f64 {
        self.rtt_ms[a][b]
    }

    /// The whole matrix in ms, `local_rtt_ms` on its diagonal.
    pub fn matrix(&self) -> &[Vec<f64>] {
        &self.rtt_ms
    }

    /// The round trip within a site, in ms.
    pub fn local_rtt_ms(&self) -> f64 {
        self.local_rtt_ms
    }

    /// The other sites, nearest to `site` first; equals in the topology's order.
    pub fn nearest_to(&self, site: usize) -> Vec<usize> {
        let mut others: Vec<usize> = (0..self.len()).filter(|&other| other != site).collect();
        others.sort_by(|&a, &b| self.rtt_ms(site, a).total_cmp(&self.rtt_ms(site, b)));
        others
    }
}

/// Whether tables, overrides and the names of files can carry a name.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.chars().all(plain)
}
