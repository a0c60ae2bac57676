//! Where the sites are, told as round trips: the one thing about geography that
//! decides latency. A file is read by people, so every mistake in it is named
//! with the pair, what was found and how to mend it.
//!
//! ```toml
//! sites = ["JP", "CA", "OR"]
//! local_rtt_ms = 0.4
//!
//! [rtt_ms]                    # every pair once; twice is fine if both agree
//! JP = { CA = 120, OR = 120 }
//! CA = { OR = 20 }
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use server::node::config::from_toml;

/// Most sites a topology can have: holder sets are bitmaps of 64 bits.
pub const SITES_MAX: usize = 64;
/// Longest round trip that is taken for meant, in ms: one minute.
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

/// The file's form: every pair under either of its sites.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    sites: Vec<String>,
    #[serde(default = "default_local_rtt_ms")]
    local_rtt_ms: f64,
    #[serde(default)]
    rtt_ms: BTreeMap<String, BTreeMap<String, f64>>,
}

fn default_local_rtt_ms() -> f64 {
    0.4
}

/// What is wrong with a topology, and how to mend it.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The file cannot be read.
    #[error("topology file {path}: {source}")]
    Unreadable {
        /// The file asked for.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not TOML, or a field that does not exist.
    #[error("topology file {path}: {source}")]
    Malformed {
        /// The file asked for.
        path: String,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// What it says makes no topology.
    #[error("topology file {path}: {source}")]
    Wrong {
        /// The file asked for.
        path: String,
        /// What is wrong in it.
        source: Box<TopologyError>,
    },
    /// No site at all, or more than a bitmap holds.
    #[error(
        "sites: {found} names found, 1 to {SITES_MAX} accepted; list the sites' names, as in sites = [\"JP\", \"CA\"]"
    )]
    SiteCount {
        /// Names found.
        found: usize,
    },
    /// A site without a name, or with one that tables and overrides cannot carry.
    #[error(
        "sites: the name {found:?} (number {position}) is not accepted; use letters, digits, '-' or '_'"
    )]
    SiteName {
        /// The name found.
        found: String,
        /// Its place in the list, from 1.
        position: usize,
    },
    /// Two sites of one name.
    #[error("sites: {name:?} stands at places {first} and {second}; rename one of them")]
    DuplicateSite {
        /// The name.
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
        /// Row.
        from: String,
        /// Column.
        to: String,
        /// Which of the two is not listed.
        unknown: String,
        /// The names there are.
        known: String,
    },
    /// Not a latency.
    #[error(
        "{field} = {found}: a round trip is a number of milliseconds from 0 to {RTT_MS_MAX}; correct it"
    )]
    RoundTrip {
        /// The field.
        field: String,
        /// The value found.
        found: f64,
    },
    /// A site at another distance from itself than the rest of the file says.
    #[error(
        "rtt_ms.{site}.{site} = {found}, but local_rtt_ms = {local}; leave the pair out, or write the same value"
    )]
    Diagonal {
        /// The site.
        site: String,
        /// The value in the table.
        found: f64,
        /// The value of `local_rtt_ms`.
        local: f64,
    },
    /// Two values for one pair.
    #[error(
        "rtt_ms.{a}.{b} = {ab}, but rtt_ms.{b}.{a} = {ba}; a round trip is the same from both ends: keep one of them"
    )]
    NotSymmetric {
        /// One site.
        a: String,
        /// The other.
        b: String,
        /// The value under `a`.
        ab: f64,
        /// The value under `b`.
        ba: f64,
    },
    /// Pairs without a value.
    #[error("rtt_ms: no round trip for {pairs}; add for example {example}")]
    NotComplete {
        /// The pairs, as `JP-CA, JP-OR`.
        pairs: String,
        /// A line that mends the first.
        example: String,
    },
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

    /// How many sites there are.
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Never: a topology has at least one site.
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

/// Whether tables, overrides and the names of files can carry a name.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !name.is_empty() && name.chars().all(plain)
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
    // NaN is in no range, so it is refused here too.
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

/// The full matrix, from pairs that may be given once or twice.
fn complete(
    file: &TopologyFile,
    found: &[Vec<Option<f64>>],
) -> Result<Vec<Vec<f64>>, TopologyError> {
    let n = file.sites.len();
    let mut rtt_ms = vec![vec![file.local_rtt_ms; n]; n];
    let mut missing = Vec::new();
    for a in 0..n {
        if let Some(value) = found[a][a].filter(|value| *value != file.local_rtt_ms) {
            return Err(TopologyError::Diagonal {
                site: file.sites[a].clone(),
                found: value,
                local: file.local_rtt_ms,
            });
        }
        for b in a + 1..n {
            match (found[a][b], found[b][a]) {
                (Some(ab), Some(ba)) if ab != ba => {
                    return Err(TopologyError::NotSymmetric {
                        a: file.sites[a].clone(),
                        b: file.sites[b].clone(),
                        ab,
                        ba,
                    });
                }
                (Some(value), _) | (None, Some(value)) => {
                    rtt_ms[a][b] = value;
                    rtt_ms[b][a] = value;
                }
                (None, None) => missing.push((&file.sites[a], &file.sites[b])),
            }
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

impl From<Topology> for TopologyFile {
    /// Every pair once, under the site that comes first.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Topology, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
    }

    /// The error's text must hold every part: field, values and the mend.
    fn refused(text: &str, parts: &[&str]) {
        let error = parse(text).expect_err(text);
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing from: {error}");
        }
    }

    #[test]
    fn paper_survives_a_round_trip_through_toml() {
        let text = toml::to_string(&Topology::paper()).unwrap();
        assert_eq!(parse(&text).unwrap(), Topology::paper());
        assert_eq!(Topology::paper().rtt_ms(4, 3), 92.0);
        assert_eq!(Topology::paper().rtt_ms(2, 2), 0.4);
    }

    #[test]
    fn nearest_follow_the_matrix() {
        let paper = Topology::paper();
        let ca = paper.index("CA").unwrap();
        let names: Vec<&str> = paper
            .nearest_to(ca)
            .iter()
            .map(|&i| paper.names()[i])
            .collect();
        assert_eq!(names, ["OR", "VA", "JP", "IRL"]);
    }

    #[test]
    fn a_pair_may_stand_on_either_side() {
        let t = parse("sites=['A','B']\n[rtt_ms]\nB={A=7}").unwrap();
        assert_eq!((t.rtt_ms(0, 1), t.rtt_ms(1, 0)), (7.0, 7.0));
    }

    #[test]
    fn mistakes_are_named_with_their_mend() {
        refused(
            "sites=['A','B']\n[rtt_ms]\nA={B=7}\nB={A=8}",
            &["rtt_ms.A.B = 7", "rtt_ms.B.A = 8", "keep one"],
        );
        refused(
            "sites=['A','B','C']\n[rtt_ms]\nA={B=7}",
            &["A-C, B-C", "C = 100 to the row A"],
        );
        refused(
            "sites=['A','B']\n[rtt_ms]\nA={X=7}",
            &["rtt_ms.A.X", "\"X\"", "A, B", "correct the name"],
        );
        refused("sites=['A','B','A']", &["\"A\"", "1 and 3", "rename"]);
        refused(
            "sites=['A','B']\n[rtt_ms]\nA={B=-3}",
            &["rtt_ms.A.B = -3", "0 to 60000"],
        );
        refused(
            "sites=['A','B']\n[rtt_ms]\nA={B=nan}",
            &["rtt_ms.A.B = NaN"],
        );
        refused("sites=['A']\nlocal_rtt_ms=inf", &["local_rtt_ms = inf"]);
        refused(
            "sites=['A']\n[rtt_ms]\nA={A=3}",
            &["rtt_ms.A.A = 3", "local_rtt_ms = 0.4"],
        );
        refused("sites=[]", &["0 names", "1 to 64"]);
        refused("sites=['a b']", &["\"a b\"", "letters"]);
        refused("sites=['A']\nrtt=3", &["rtt", "unknown field"]);
        let many: Vec<String> = (0..65).map(|i| format!("'s{i}'")).collect();
        refused(&format!("sites=[{}]", many.join(",")), &["65", "64"]);
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Topology::load(Path::new("no/such/file.toml")).unwrap_err();
        assert!(error.to_string().contains("no/such/file.toml"));
    }

    #[test]
    fn a_mistake_is_told_with_its_file() {
        let error = Topology::parse("two.toml", "sites=['A','B']").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("two.toml") && error.contains("no round trip for A-B"),
            "{error}"
        );
    }
}
