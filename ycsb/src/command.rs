//! `leasehold ycsb`: connects, carries out the workload, and reports. The caller decides the
//! destination of the report and the effect of Ctrl-C.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold_client::Routing;

use crate::args::YcsbArgs;
use crate::connect::AddressSurvey;
use crate::measurement::{HlogError, IntervalFiles, WorkloadReport, format_lines};
use crate::note;
use crate::properties::PropertyError;
use crate::runner::{
    self, BenchmarkOutcome, CancellationToken, Cores, Observer, Phase, RunOptions, RunProgress,
    SiteStore, Tick,
};
use crate::settings::{ClientSite, Settings};
use crate::status::{CoarseObserver, RunStatus, TeeObserver};
use crate::store::KvStore;
use crate::workload::CoreWorkload;

/// Reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A property has a fault.
    #[error(transparent)]
    Property(#[from] PropertyError),
    /// No replica can be reached.
    #[error(transparent)]
    Connect(#[from] leasehold_client::Error),
    /// The certificate of the cluster's authority cannot be used.
    #[error("leasehold.ca: {0}")]
    Authority(#[from] leasehold_transport::tls::TrustError),
    /// The file of the token cannot be used.
    #[error("leasehold.token_file: {0}")]
    Token(#[from] leasehold_transport::PrivateFileError),
    /// The addresses do not match the sites, or do not belong to one cluster.
    #[error("{0}")]
    Sites(String),
    /// A histogram file cannot be written.
    #[error(transparent)]
    Histogram(#[from] HlogError),
    /// The report cannot be written.
    #[error("cannot write the report: {0}")]
    Report(io::Error),
    /// The report cannot be written to its file.
    #[error("exportfile: cannot write {path}: {source}")]
    Export {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Carries out the workload of a command line. Warnings, the effective properties and the status
/// are written to stderr. The report is written to the file that the property `exportfile` names.
/// Without this property, the report is written to `out`. If the file cannot be written at the end
/// of the run, the report is written to `out`, too. If `cancel` was raised, the report contains the
/// measurements up to that time. The report is written even if another file cannot be written.
///
/// # Errors
/// If the properties have a fault, no replica can be reached at the start, or a file cannot be
/// written. An error about a file that is written during or after the run is returned only after
/// the report is written. A failed operation is not an error of this function; the report contains
/// the number of failed operations. [`BenchmarkOutcome::shortfall`] describes the goals that the
/// run missed.
pub async fn execute(
    args: &YcsbArgs,
    out: &mut dyn Write,
    cancel: &CancellationToken,
) -> Result<BenchmarkOutcome, CommandError> {
    let mut settings = Settings::new(&args.properties)?;
    let workload = CoreWorkload::new(&args.properties)?;
    echo(args);
    // If the report cannot be written, this fails before the run, not after it.
    if let Some(file) = &settings.export_file {
        let opened = std::fs::File::options()
            .create(true)
            .append(true)
            .open(file);
        opened.map_err(|source| CommandError::Export {
            path: PathBuf::from(file),
            source,
        })?;
    }
    let survey = AddressSurvey::take(&settings).await?;
    settings.sites = survey.sites(&settings)?;
    let idle = settings.idle_addresses();
    for warning in survey.warnings(&settings.sites).into_iter().chain(idle) {
        note!("warning: {warning}");
    }
    let cores = Cores::start(settings.cores)?;
    let connections = survey.connect(&settings, &cores).await?;
    let stores = connections.into_iter().zip(addresses(&settings));
    let stores = stores
        .enumerate()
        .map(|(place, (store, (address, site)))| SiteStore {
            site: site.0,
            site_number: site.1.number,
            address: address.into(),
            routed: settings.routing == Routing::LeaseAware,
            core: cores.round_robin(place).clone(),
            store,
        });
    let stores = stores.collect();
    let job = Job {
        phase: args.phase,
        settings: &settings,
        workload: &workload,
    };
    carry_out(&job, stores, out, cancel).await
}

fn echo(args: &YcsbArgs) {
    for warning in &args.warnings {
        note!("warning: {warning}");
    }
    for (name, value) in args.properties.effective() {
        note!("{name}={value}");
    }
}

/// Returns an iterator that repeats the addresses without end. Each address comes with its site,
/// and with the index of this site.
fn addresses(settings: &Settings) -> impl Iterator<Item = (&str, (u8, &ClientSite))> {
    let names = settings.site_names();
    let index = move |site: &ClientSite| {
        let found = names.iter().position(|name| *name == site.name);
        // The number fits: there are at most 256 addresses.
        found
            .and_then(|index| u8::try_from(index).ok())
            .unwrap_or(0)
    };
    let sites = settings.sites.iter().cycle();
    let addresses = settings.addresses.iter().cycle().map(String::as_str);
    addresses.zip(sites.map(move |site| (index(site), site)))
}

/// A workload to carry out, with the settings of the run.
struct Job<'a> {
    phase: Phase,
    settings: &'a Settings,
    workload: &'a CoreWorkload,
}

/// Runs a job against stores.
///
/// # Errors
/// If a file cannot be written, or a thread cannot be started.
async fn carry_out<S: KvStore>(
    job: &Job<'_>,
    stores: Vec<SiteStore<S>>,
    out: &mut dyn Write,
    cancel: &CancellationToken,
) -> Result<BenchmarkOutcome, CommandError> {
    let settings = job.settings;
    wait_for_start(settings.start_s, cancel).await;
    let mut status = status(settings);
    let live = matches!(status, RunStatus::Bar(_));
    let mut files = Files::create(settings)?;
    let options = run_options(job.phase, settings, live);
    let mut coarse = CoarseObserver::new(&mut status, settings.status_every);
    let mut observer = TeeObserver(&mut coarse, &mut files);
    let outcome = runner::run(job.workload, &stores, &options, &mut observer, cancel).await?;
    status.finish();
    let finished = files.finish(&outcome);
    for warning in crate::summary::warnings(&outcome, &settings.reported_sites()) {
        note!("warning: {warning}");
    }
    export(settings, &outcome, out)?;
    finished?;
    Ok(outcome)
}

/// Waits until the start time, so that several load generators with the same start time begin
/// together.
async fn wait_for_start(start_s: Option<f64>, cancel: &CancellationToken) {
    let start = start_s.and_then(|s| Duration::try_from_secs_f64(s).ok());
    let Some(start) = start.and_then(|start| UNIX_EPOCH.checked_add(start)) else {
        return;
    };
    let wait = start
        .duration_since(SystemTime::now())
        .unwrap_or(Duration::ZERO);
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = cancel.cancelled() => {}
    }
}

fn status(settings: &Settings) -> RunStatus {
    if io::stderr().is_terminal() {
        RunStatus::bar(&settings.label)
    } else if settings.status {
        let label = settings.label.clone();
        RunStatus::Lines { label }
    } else {
        RunStatus::Silent
    }
}

fn run_options(phase: Phase, settings: &Settings, live: bool) -> RunOptions {
    // Histogram files have their own intervals; status lines add them up.
    let interval_every = match settings.histogram_files {
        Some(_) => settings.histogram_every.min(settings.status_every),
        None => settings.status_every,
    };
    RunOptions {
        phase,
        precise: true,
        threads: settings.threads,
        target: settings.target,
        time_max: settings.time_max,
        warmup: settings.warmup,
        interval: settings.interval,
        interval_every,
        refresh_every: live.then_some(Duration::from_millis(250)),
        insert_retries: settings.insert_retries,
        insert_retry_pause: settings.insert_retry_pause,
        insert_keep_going: settings.insert_keep_going,
    }
}

fn export(
    settings: &Settings,
    outcome: &BenchmarkOutcome,
    out: &mut dyn Write,
) -> Result<(), CommandError> {
    let report = WorkloadReport {
        measurements: &outcome.measurements,
        account: &outcome.account,
        availability: &outcome.availability,
        sites: &settings.reported_sites(),
        percentiles: &settings.percentiles,
    };
    let text = format_lines(&report.lines(), settings.exporter);
    let Some(path) = settings.export_file.as_ref().map(PathBuf::from) else {
        return print(&text, out);
    };
    let Err(source) = std::fs::write(&path, &text) else {
        return Ok(());
    };
    print(&text, out)?;
    Err(CommandError::Export { path, source })
}

/// Prints the report. A closed `out` is not an error.
fn print(report: &str, out: &mut dyn Write) -> Result<(), CommandError> {
    let printed = out.write_all(report.as_bytes()).and_then(|()| out.flush());
    match printed {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::Report(error)),
        _ => Ok(()),
    }
}

/// The histogram files of a run; `None` if the run writes no such files.
struct Files(Option<IntervalFiles>);

impl Files {
    fn create(settings: &Settings) -> Result<Self, HlogError> {
        let create = |prefix: &String| {
            let (now, sites) = (SystemTime::now(), settings.site_names());
            IntervalFiles::create(prefix, now, sites, settings.interval)
        };
        let files = settings.histogram_files.as_ref().map(create);
        Ok(Files(files.transpose()?))
    }

    fn finish(self, outcome: &BenchmarkOutcome) -> Result<(), HlogError> {
        self.0
            .map_or(Ok(()), |files| files.finish(&outcome.measurements))
    }
}

impl Observer for Files {
    fn interval(&mut self, tick: &Tick<'_>) {
        if let Some(files) = &mut self.0 {
            files.write(tick.start, tick.length, tick.measured);
        }
    }

    fn refresh(&mut self, _: &RunProgress) {}
}
