//! Settings of a run other than its workload, read from its properties.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_client::Routing;

use crate::generator::fnv_hash;
use crate::measurement::{Exporter, Interval};
use crate::properties::{Properties, PropertyError};

/// Number of connections that one thread of the operating system serves by default. More
/// connections are divided among several threads.
const CONNECTIONS_A_CORE: u64 = 5;
/// Shortest interval between two status lines or log entries.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// The settings of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `threadcount`: maximum number of operations in flight.
    pub threads: u64,
    /// `leasehold.connections`: number of clients that the threads share for their operations. By
    /// default each thread has a client of its own.
    pub connections: u64,
    /// `leasehold.cores`: number of threads of the operating system that serve the connections.
    pub cores: usize,
    /// `target`, in operations per second; `None` means as many as possible.
    pub target: Option<f64>,
    /// `maxexecutiontime`: time after which the run ends; `None` means no limit.
    pub time_max: Option<Duration>,
    /// `warmuptime`: duration of the warm-up.
    pub warmup: Duration,
    /// `measurement.interval`: the latencies that are kept. The value is `both` if there is a
    /// target and the property is not set.
    pub interval: Interval,
    /// `status`: whether to show the state of the run.
    pub status: bool,
    /// `status.interval`: time between two updates of the status.
    pub status_every: Duration,
    /// `label`: text at the beginning of each status line.
    pub label: String,
    /// `exporter`: format of the report.
    pub exporter: Exporter,
    /// `exportfile`: file for the report; `None` means standard output.
    pub export_file: Option<String>,
    /// `hdrhistogram.percentiles`: percentiles to report, in percent.
    pub percentiles: Vec<f64>,
    /// `hdrhistogram.output.path`: prefix of the names of the histogram files; `None` if
    /// `hdrhistogram.fileoutput` is false.
    pub histogram_files: Option<String>,
    /// `hdrhistogram.interval`: length of the intervals in the histogram files.
    pub histogram_every: Duration,
    /// `core_workload_insertion_retry_limit`: maximum number of times that a failed insertion is
    /// tried again.
    pub insert_retries: u32,
    /// `core_workload_insertion_retry_interval`: pause before a failed insertion is tried again.
    pub insert_retry_pause: Duration,
    /// `core_workload_insertion_keep_going_on_error`: whether the load phase continues after an
    /// insertion that failed for good.
    pub insert_keep_going: bool,
    /// `leasehold.address`: one or more addresses of replicas, each as `host:port`.
    pub addresses: Vec<String>,
    /// `leasehold.cluster`: name of the cluster.
    pub cluster: Option<String>,
    /// `leasehold.ca`, or the environment's `LEASEHOLD_CA`: path of the certificate of the
    /// cluster's authority, for TLS.
    pub ca: Option<PathBuf>,
    /// `leasehold.token_file`, or the environment's `LEASEHOLD_TOKEN_FILE`: path of the file that
    /// holds the token. The token itself cannot be a property, because a property can be an
    /// argument of a command, and lists of processes show the arguments of commands.
    pub token_file: Option<PathBuf>,
    /// `leasehold.plain_token`: whether the token may be sent in plain text.
    pub plain_token: bool,
    /// `leasehold.timeout_ms`: timeout of a request.
    pub timeout: Duration,
    /// `leasehold.attempt_timeout_ms`: time to wait for a replica's answer before the request is
    /// also sent to another replica.
    pub attempt_timeout: Duration,
    /// `leasehold.routing`: rule that chooses the first replica for an operation.
    pub routing: Routing,
    /// `leasehold.start`: time at which the run begins, in seconds since 1970; `None` means
    /// immediately.
    pub start_s: Option<f64>,
    /// Site of each address, in the order of the addresses.
    pub sites: Vec<ClientSite>,
    /// Whether the properties name the sites.
    pub sites_are_named: bool,
}

/// A site: the place of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSite {
    /// Name of the site in reports.
    pub name: String,
    /// ID that determines which records are popular at the site (`permutation=site`). If the name
    /// is a number, the ID is this number. Otherwise, the ID is a hash of the name.
    pub number: u64,
}

impl ClientSite {
    /// Returns the site with this name.
    pub fn new(name: &str) -> Self {
        let hash = |name: &str| {
            name.bytes()
                .fold(0, |hash, byte| fnv_hash(hash ^ u64::from(byte)))
        };
        ClientSite {
            name: name.to_owned(),
            number: name.parse().unwrap_or_else(|_| hash(name)),
        }
    }
}

impl Settings {
    /// Reads the settings from the properties.
    ///
    /// # Errors
    /// If a property does not parse, or no address is given.
    pub fn new(properties: &Properties) -> Result<Self, PropertyError> {
        let addresses = addresses(properties)?;
        let target = target(properties)?;
        let threads = properties.number("threadcount", "a number from 1 to 1000000", |n| {
            (1..=1_000_000).contains(n)
        })?;
        let connections = connections(properties, threads)?;
        Ok(Settings {
            threads,
            connections,
            cores: cores(properties, connections)?,
            target,
            time_max: Some(seconds(properties, "maxexecutiontime")?).filter(|t| !t.is_zero()),
            warmup: seconds(properties, "warmuptime")?,
            interval: interval(properties, target)?,
            status: properties.flag("status")?,
            status_every: seconds(properties, "status.interval")?.max(INTERVAL_MIN),
            label: properties.get("label").unwrap_or_default().to_owned(),
            exporter: exporter(properties)?,
            export_file: properties.text("exportfile").map(str::to_owned),
            percentiles: percentiles(properties)?,
            histogram_files: properties
                .flag("hdrhistogram.fileoutput")?
                .then(|| properties.get("hdrhistogram.output.path"))
                .flatten()
                .map(str::to_owned),
            histogram_every: seconds(properties, "hdrhistogram.interval")?.max(INTERVAL_MIN),
            insert_retries: properties.number(
                "core_workload_insertion_retry_limit",
                "a whole number from 0 on",
                |_| true,
            )?,
            insert_retry_pause: seconds(properties, "core_workload_insertion_retry_interval")?,
            insert_keep_going: properties.flag("core_workload_insertion_keep_going_on_error")?,
            cluster: properties.text("leasehold.cluster").map(str::to_owned),
            ca: file(properties, "leasehold.ca", "LEASEHOLD_CA"),
            token_file: file(properties, "leasehold.token_file", "LEASEHOLD_TOKEN_FILE"),
            plain_token: properties.flag("leasehold.plain_token")?,
            timeout: milliseconds(properties, "leasehold.timeout_ms")?,
            attempt_timeout: milliseconds(properties, "leasehold.attempt_timeout_ms")?,
            routing: properties.choice(
                "leasehold.routing",
                &[
                    ("local", Routing::Nearest),
                    ("lease-aware", Routing::LeaseAware),
                ],
            )?,
            start_s: properties.parsed(
                "leasehold.start",
                "a time in seconds since 1970",
                |s: &f64| s.is_finite() && *s >= 0.0,
            )?,
            sites: sites(properties, addresses.len())?,
            sites_are_named: properties.text("site").is_some(),
            addresses,
        })
    }

    /// Returns the names of the sites in the order of their indexes, without repetition.
    pub fn site_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for site in &self.sites {
            if !names.contains(&site.name) {
                names.push(site.name.clone());
            }
        }
        names
    }

    /// Returns the names of sites that the report shows. The list is empty if there is only one
    /// site and the user has not named this site.
    pub fn reported_sites(&self) -> Vec<String> {
        match self.site_names() {
            names if names == ["0"] => Vec::new(),
            names => names,
        }
    }

    /// Returns a warning if there are fewer threads or connections than addresses.
    pub fn idle_addresses(&self) -> Option<String> {
        let connections = usize::try_from(self.connections).unwrap_or(usize::MAX);
        let idle = self.addresses.get(connections..)?;
        if self.routing == Routing::LeaseAware {
            return None;
        }
        let all = self.addresses.len();
        let fix = if self.connections < self.threads {
            "leasehold.connections="
        } else {
            "--threads "
        };
        (!idle.is_empty()).then(|| {
            format!(
                "no thread asks {} unless another replica dies: each asks one address; {fix}{all} \
                 or more asks all {all}",
                idle.join(", ")
            )
        })
    }
}

/// Returns the path of a file from a property. If the property is not set, returns the path from a
/// variable of the environment. An empty path means no file.
fn file(properties: &Properties, property: &str, variable: &str) -> Option<PathBuf> {
    let named = properties.text(property).map(PathBuf::from);
    let variable = std::env::var_os(variable).filter(|file| !file.is_empty());
    named.or_else(|| variable.map(PathBuf::from))
}

fn addresses(properties: &Properties) -> Result<Vec<String>, PropertyError> {
    let expected = "one or more HOST:PORT, separated by commas (or --address)";
    let Some(text) = properties.text("leasehold.address") else {
        let name = "leasehold.address";
        return Err(PropertyError::Missing { name, expected });
    };
    let addresses: Vec<_> = text.split(',').map(|part| part.trim().to_owned()).collect();
    let well_formed = |address: &String| {
        address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
    };
    // Measurements number the sites with eight bits.
    if addresses.iter().all(well_formed) && addresses.len() <= 256 {
        Ok(addresses)
    } else {
        Err(properties.invalid("leasehold.address", expected))
    }
}

/// Returns the site of each address. The property names one site for all addresses, or one site for
/// each address. Without the property, the sites have numbers as names.
fn sites(properties: &Properties, addresses: usize) -> Result<Vec<ClientSite>, PropertyError> {
    let Some(text) = properties.text("site") else {
        return Ok((0..addresses)
            .map(|i| ClientSite::new(&i.to_string()))
            .collect());
    };
    let names: Vec<_> = text.split(',').map(str::trim).collect();
    // A name becomes part of tags and of reported metrics, which are split at colons and blanks.
    let divides = |c: char| c == ':' || c.is_whitespace() || c.is_control();
    if let Some(name) = names.iter().find(|name| name.contains(divides)) {
        let expected = format!("names without blanks and colons, as in {}", {
            name.replace(divides, "_")
        });
        return Err(properties.invalid("site", &expected));
    }
    match names.as_slice() {
        [name] => Ok(vec![ClientSite::new(name); addresses]),
        names if names.len() == addresses && names.iter().all(|name| !name.is_empty()) => {
            Ok(names.iter().map(|name| ClientSite::new(name)).collect())
        }
        _ => {
            let expected = format!("one name, or {addresses}: as many as there are addresses");
            Err(properties.invalid("site", &expected))
        }
    }
}

/// Returns the number of connections. It is at most the number of threads, because further
/// connections would be idle.
fn connections(properties: &Properties, threads: u64) -> Result<u64, PropertyError> {
    let name = "leasehold.connections";
    let expected = format!("a number from 1 to threadcount, which is {threads}");
    match properties.text(name) {
        None => Ok(threads),
        Some(text) => match text.trim().parse() {
            Ok(connections) if (1..=threads).contains(&connections) => Ok(connections),
            _ => Err(properties.invalid(name, &expected)),
        },
    }
}

/// Returns the number of threads of the operating system. By default, the number of connections
/// determines the number of threads, up to half the number of processors. The other processors are
/// left to other programs, such as a cluster under test.
fn cores(properties: &Properties, connections: u64) -> Result<usize, PropertyError> {
    if properties.text("leasehold.cores").is_some() {
        let expected = "a number from 1 to 1024";
        return properties.number("leasehold.cores", expected, |n| (1..=1024).contains(n));
    }
    let half = std::thread::available_parallelism().map_or(1, |all| all.get() / 2);
    let busy = usize::try_from(connections / CONNECTIONS_A_CORE).unwrap_or(usize::MAX);
    Ok(busy.clamp(1, half.max(1)))
}

fn target(properties: &Properties) -> Result<Option<f64>, PropertyError> {
    let expected = "a number of operations a second, 0 for as many as go";
    let target: f64 = properties.number("target", expected, |x: &f64| {
        *x == 0.0 || (1e-6..=1e9).contains(x)
    })?;
    Ok((target > 0.0).then_some(target))
}

fn interval(properties: &Properties, target: Option<f64>) -> Result<Interval, PropertyError> {
    if properties.text("measurement.interval").is_none() {
        // With a target, latencies from the intended start must not be missing.
        return Ok(match target {
            Some(_) => Interval::Both,
            None => Interval::Op,
        });
    }
    let words = [
        ("op", Interval::Op),
        ("intended", Interval::Intended),
        ("both", Interval::Both),
    ];
    properties.choice("measurement.interval", &words)
}

fn seconds(properties: &Properties, name: &'static str) -> Result<Duration, PropertyError> {
    let expected = "a number of seconds from 0 to 1000000000";
    let seconds = properties.number(name, expected, |s| (0.0..=1e9).contains(s))?;
    Ok(Duration::from_secs_f64(seconds))
}

fn milliseconds(properties: &Properties, name: &'static str) -> Result<Duration, PropertyError> {
    let expected = "a number of milliseconds from 1 to 3600000";
    let ms = properties.number(name, expected, |ms| (1..=3_600_000).contains(ms))?;
    Ok(Duration::from_millis(ms))
}

/// Returns the exporter. The property names a Java class, as in YCSB; the package of the class is
/// ignored.
fn exporter(properties: &Properties) -> Result<Exporter, PropertyError> {
    let class = properties.get("exporter").unwrap_or_default();
    match class.rsplit('.').next() {
        Some("TextMeasurementsExporter") => Ok(Exporter::Text),
        Some("JSONMeasurementsExporter") => Ok(Exporter::Json),
        Some("JSONArrayMeasurementsExporter") => Ok(Exporter::JsonArray),
        _ => {
            let expected = "site.ycsb.measurements.exporter. and one of \
                 TextMeasurementsExporter, JSONMeasurementsExporter, JSONArrayMeasurementsExporter";
            Err(properties.invalid("exporter", expected))
        }
    }
}

fn percentiles(properties: &Properties) -> Result<Vec<f64>, PropertyError> {
    let name = "hdrhistogram.percentiles";
    let parse = |part: &str| part.trim().parse().ok();
    let text = properties.get(name).unwrap_or_default();
    let parsed: Option<Vec<f64>> = text.split(',').map(parse).collect();
    parsed
        .filter(|all| all.iter().all(|p| (0.0..=100.0).contains(p)))
        .ok_or_else(|| properties.invalid(name, "numbers from 0 to 100, separated by commas"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, String> {
        let mut properties = Properties::new();
        properties
            .load_text("base", "leasehold.address=127.0.0.1:7000")
            .unwrap();
        properties.load_text("test", text).unwrap();
        Settings::new(&properties).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_ycsbs() {
        let settings = settings("").unwrap();
        assert_eq!((settings.threads, settings.target), (1, None));
        assert_eq!(settings.time_max, None);
        assert_eq!(settings.interval, Interval::Op);
        assert_eq!(settings.status_every, Duration::from_secs(10));
        assert_eq!(settings.percentiles, [50.0, 95.0, 99.0]);
        assert_eq!(
            (settings.histogram_files, settings.export_file),
            (None, None)
        );
        assert_eq!(settings.exporter, Exporter::Text);
        assert_eq!(
            settings.sites,
            [ClientSite {
                name: "0".into(),
                number: 0
            }]
        );
    }

    #[test]
    fn everything_can_be_set() {
        let settings = settings(
            "threadcount=8\ntarget=500\nmaxexecutiontime=60\nwarmuptime=5\nstatus=true\n\
             exporter=com.yahoo.ycsb.measurements.exporter.JSONArrayMeasurementsExporter\n\
             hdrhistogram.percentiles=50,99.9\nhdrhistogram.fileoutput=true\n\
             hdrhistogram.output.path=out/\nsite=CA,VA\nleasehold.address=a:1, b:2",
        )
        .unwrap();
        assert_eq!((settings.threads, settings.target), (8, Some(500.0)));
        assert_eq!(settings.time_max, Some(Duration::from_secs(60)));
        assert_eq!(settings.interval, Interval::Both, "because of the target");
        assert_eq!(settings.exporter, Exporter::JsonArray);
        assert_eq!(settings.percentiles, [50.0, 99.9]);
        assert_eq!(settings.histogram_files.as_deref(), Some("out/"));
        assert_eq!(settings.addresses, ["a:1", "b:2"]);
        assert_eq!(settings.sites[1].name, "VA");
        assert_ne!(settings.sites[0].number, settings.sites[1].number);
    }

    #[test]
    fn an_interval_that_is_set_stays() {
        let settings = settings("target=5\nmeasurement.interval=op").unwrap();
        assert_eq!(settings.interval, Interval::Op);
    }

    #[test]
    fn addresses_of_one_name_are_one_site() {
        let named = |sites| {
            let text = format!("leasehold.address=a:1,b:2,c:3\nsite={sites}");
            settings(&text).unwrap().site_names()
        };
        assert_eq!(named("JP"), ["JP"]);
        assert_eq!(named("JP,CA,JP"), ["JP", "CA"]);
        assert!(settings("").unwrap().reported_sites().is_empty());
        assert_eq!(settings("site=CA").unwrap().reported_sites(), ["CA"]);
    }

    #[test]
    fn addresses_that_no_thread_asks_are_named() {
        let idle = |threads| {
            let text = format!("leasehold.address=a:1,b:2,c:3\nthreadcount={threads}");
            settings(&text).unwrap().idle_addresses()
        };
        let words = idle(1).expect("two are left");
        assert!(
            words.contains("b:2, c:3") && words.contains("--threads 3"),
            "{words}"
        );
        assert!(!words.contains("a:1"), "{words}");
        assert_eq!((idle(3), idle(50)), (None, None));
        let text = "leasehold.address=a:1,b:2,c:3\nthreadcount=50\nleasehold.connections=2";
        let words = settings(text).unwrap().idle_addresses();
        let words = words.expect("one is left");
        assert!(words.contains("leasehold.connections=3"), "{words}");
    }

    #[test]
    fn threads_have_connections_of_their_own_unless_told_to_share() {
        let connections = |text| settings(text).unwrap().connections;
        assert_eq!(connections("threadcount=160"), 160);
        assert_eq!(connections("threadcount=160\nleasehold.connections=10"), 10);
    }

    #[test]
    fn numbers_name_sites_as_they_are() {
        assert_eq!(ClientSite::new("7").number, 7);
        let several = settings("leasehold.address=a:1,b:2").unwrap();
        assert_eq!(several.sites[1].number, 1);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let cases = [
            ("threadcount=0", "threadcount: found \"0\""),
            ("target=-1", "target: found \"-1\""),
            ("target=NaN", "target: found \"NaN\""),
            ("maxexecutiontime=soon", "a number of seconds"),
            ("measurement.interval=all", "one of op, intended, both"),
            ("exporter=my.Exporter", "TextMeasurementsExporter"),
            ("hdrhistogram.percentiles=50,101", "numbers from 0 to 100"),
            ("leasehold.address=localhost", "HOST:PORT"),
            ("site=a,b,c", "one name, or 1"),
            (
                "site=rack:1",
                "site: found \"rack:1\", expected names without",
            ),
            ("site=New York", "as in New_York"),
            ("leasehold.start=inf", "seconds since 1970"),
            ("leasehold.routing=any", "one of local, lease-aware"),
            ("leasehold.cores=0", "a number from 1 to 1024"),
            ("leasehold.connections=0", "a number from 1 to threadcount"),
            ("threadcount=4\nleasehold.connections=5", "which is 4"),
        ];
        for (text, expected) in cases {
            let message = settings(text).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
        let missing = Settings::new(&Properties::new()).unwrap_err().to_string();
        assert!(
            missing.contains("leasehold.address is not set"),
            "{missing}"
        );
    }
}
