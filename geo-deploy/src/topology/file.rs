//! The format of topology files, and the checks when such a file is read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{RTT_MS_MAX, SITES_MAX, Site, Topology, TopologyError, is_plain_name};

/// Contents of a topology file. The round trip of a pair of sites may be given under either site.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopologyFile {
    pub sites: Vec<String>,
    #[serde(default = "default_local_rtt_ms")]
    pub local_rtt_ms: f64,
    #[serde(default)]
    pub rtt_ms: BTreeMap<String, BTreeMap<String, f64>>,
}

fn default_local_rtt_ms() -> f64 {
    0.4
}

impl TryFrom<TopologyFile> for Topology {
    type Error = TopologyError;

    fn try_from(file: TopologyFile) -> Result<Topology, TopologyError> {
        check_names(&file.sites)?;
        check_round_trip("local_rtt_ms", file.local_rtt_ms)?;
        let index: BTreeMap<&str, usize> = file.sites.iter().map(String::as_str).zip(0..).collect();
        let n = file.sites.len();
        let mut found: Vec<Vec<Option<f64>>> = vec![vec![None; n]; n];
        for (from, row) in &file.rtt_ms {
            for (to, &value) in row {
                let (a, b) = place(&index, &file.sites, from, to)?;
                check_round_trip(&format!("rtt_ms.{from}.{to}"), value)?;
                found[a][b] = Some(value);
            }
        }
        let rtt_ms = complete(&file, &found)?;
        Ok(Topology {
            sites: file.sites.into_iter().map(|name| Site { name }).collect(),
            rtt_ms,
            local_rtt_ms: file.local_rtt_ms,
        })
    }
}

fn check_names(names: &[String]) -> Result<(), TopologyError> {
    if names.is_empty() || names.len() > SITES_MAX {
        return Err(TopologyError::SiteCount { found: names.len() });
    }
    for (i, name) in names.iter().enumerate() {
        if !is_plain_name(name) {
            return Err(TopologyError::SiteName {
                found: name.clone(),
                position: i + 1,
            });
        }
        if let Some(first) = names[..i].iter().position(|other| other == name) {
            return Err(TopologyError::DuplicateSite {
                name: name.clone(),
                first: first + 1,
                second: i + 1,
            });
        }
    }
    Ok(())
}

fn check_round_trip(field: &str, value: f64) -> Result<(), TopologyError> {
    // NaN is in no range, so it is refused too.
    if (0.0..=RTT_MS_MAX).contains(&value) {
        return Ok(());
    }
    Err(TopologyError::RoundTrip {
        field: field.to_owned(),
        found: value,
    })
}

fn place(
    index: &BTreeMap<&str, usize>,
    names: &[String],
    from: &str,
    to: &str,
) -> Result<(usize, usize), TopologyError> {
    let unknown = |name: &str| TopologyError::UnknownSite {
        from: from.to_owned(),
        to: to.to_owned(),
        unknown: name.to_owned(),
        known: names.join(", "),
    };
    let a = index.get(from).ok_or_else(|| unknown(from))?;
    let b = index.get(to).ok_or_else(|| unknown(to))?;
    Ok((*a, *b))
}

/// Returns the full matrix of round trips. The file may state the round trip of a pair of sites
/// once or twice.
fn complete(
    file: &TopologyFile,
    found: &[Vec<Option<f64>>],
) -> Result<Vec<Vec<f64>>, TopologyError> {
    let n = file.sites.len();
    let mut rtt_ms = vec![vec![file.local_rtt_ms; n]; n];
    let mut missing = Vec::new();
    for (a, b) in (0..n).flat_map(|a| (a..n).map(move |b| (a, b))) {
        if a == b {
            check_diagonal(file, a, found[a][a])?;
            continue;
        }
        match one_of(&file.sites, found, a, b)? {
            Some(value) => {
                rtt_ms[a][b] = value;
                rtt_ms[b][a] = value;
            }
            None => missing.push((&file.sites[a], &file.sites[b])),
        }
    }
    let Some((a, b)) = missing.first() else {
        return Ok(rtt_ms);
    };
    let pairs: Vec<String> = missing.iter().map(|(a, b)| format!("{a}-{b}")).collect();
    Err(TopologyError::NotComplete {
        pairs: pairs.join(", "),
        example: format!("{b} = 100 to the row {a} of [rtt_ms]"),
    })
}

fn check_diagonal(
    file: &TopologyFile,
    site: usize,
    found: Option<f64>,
) -> Result<(), TopologyError> {
    match found {
        Some(found) if found != file.local_rtt_ms => Err(TopologyError::Diagonal {
            site: file.sites[site].clone(),
            found,
            local: file.local_rtt_ms,
        }),
        _ => Ok(()),
    }
}

/// Returns the round trip of a pair of sites. The round trip may be given under either site.
fn one_of(
    sites: &[String],
    found: &[Vec<Option<f64>>],
    a: usize,
    b: usize,
) -> Result<Option<f64>, TopologyError> {
    match (found[a][b], found[b][a]) {
        (Some(ab), Some(ba)) if ab != ba => Err(TopologyError::NotSymmetric {
            a: sites[a].clone(),
            b: sites[b].clone(),
            ab,
            ba,
        }),
        (ab, ba) => Ok(ab.or(ba)),
    }
}

impl From<Topology> for TopologyFile {
    /// Lists each pair of sites once. The pair is listed under the site that comes first in the
    /// topology.
    fn from(topology: Topology) -> TopologyFile {
        let names: Vec<String> = topology.sites.into_iter().map(|site| site.name).collect();
        let mut rows: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
        for (a, from) in names.iter().enumerate() {
            for (b, to) in names.iter().enumerate().skip(a + 1) {
                let row = rows.entry(from.clone()).or_default();
                row.insert(to.clone(), topology.rtt_ms[a][b]);
            }
        }
        TopologyFile {
            sites: names,
            local_rtt_ms: topology.local_rtt_ms,
            rtt_ms: rows,
        }
    }
}
