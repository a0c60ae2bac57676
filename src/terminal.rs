//! Terminal functions that several commands use: the log, Ctrl-C, and the display of progress.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::Mutex;

use anyhow::Context as _;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
pub use leasehold_ycsb::output::{is_closed, print_bytes};
use leasehold_ycsb::runner::Shortfall;
pub use leasehold_ycsb::{note, say};
use tokio::signal::unix::{SignalKind, signal};
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;

/// Former names of packages and modules (before release 0.2), each with its present name. Log
/// filters may still use the former names. If several pairs match a name, the first pair is used.
const RENAMED: [(&str, &str); 21] = [
    ("server::node::access", "leasehold_node::front::access"),
    (
        "server::node::connection",
        "leasehold_node::front::connection",
    ),
    (
        "server::node::descriptors",
        "leasehold_node::front::admission::fd_budget",
    ),
    ("server::node::ending", "leasehold_node::shutdown"),
    (
        "server::node::handshakes",
        "leasehold_node::security::handshakes",
    ),
    ("server::node::inbound", "leasehold_node::peers::inbound"),
    (
        "server::node::limits",
        "leasehold_node::front::admission::limits",
    ),
    ("server::node::listener", "leasehold_node::front::listener"),
    (
        "server::node::renewal",
        "leasehold_node::security::cert_rotation",
    ),
    ("server::node::step_watch", "leasehold_node::watch::step"),
    (
        "server::node::timeout_watch",
        "leasehold_node::watch::timeouts",
    ),
    (
        "server::node::transport",
        "leasehold_node::peers::transport",
    ),
    ("server::node::storage", "leasehold_node::store"),
    ("leasehold_node::storage", "leasehold_node::store"),
    ("server::node", "leasehold_node"),
    ("server::security", "leasehold_node::security"),
    ("server", "leasehold_node"),
    ("client", "leasehold_client"),
    ("leases", "leasehold_leases"),
    ("ycsb", "leasehold_ycsb"),
    ("geo_deploy", "leasehold_geo_deploy"),
];

/// Returns a log filter in which former names are replaced by present ones.
fn renamed(filter: &str) -> String {
    let directives = filter.split(',').map(|directive| {
        let rest = |old: &str| {
            let rest = directive.strip_prefix(old)?;
            (rest.is_empty() || rest.starts_with(['=', '[']) || rest.starts_with("::"))
                .then_some(rest)
        };
        let found = RENAMED
            .iter()
            .find_map(|(old, new)| Some(format!("{new}{}", rest(old)?)));
        found.unwrap_or_else(|| directive.to_owned())
    });
    directives.collect::<Vec<_>>().join(",")
}

/// Starts the log on stderr. If the terminal is slow, lines are lost, because the program never
/// waits for the terminal. `RUST_LOG` selects the entries; an empty `RUST_LOG` is ignored. Lines
/// are written only until the returned guard is dropped.
pub fn log() -> WorkerGuard {
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    let chosen = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let chosen = (!chosen.is_empty()).then(|| EnvFilter::try_new(renamed(&chosen)).ok());
    let filter = chosen.flatten().unwrap_or_else(|| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_writer(writer)
        .with_ansi(std::io::stderr().is_terminal())
        .with_env_filter(filter)
        .init();
    guard
}

/// Prints bytes in another thread, which waits if the reader is slow. Meanwhile this thread keeps
/// connections alive.
pub async fn print_in_background(bytes: Vec<u8>) -> anyhow::Result<()> {
    let printed = tokio::task::spawn_blocking(move || print_bytes(&bytes)).await;
    printed.context("printing")
}

/// Returns true for characters that a terminal obeys instead of showing them: control characters,
/// and the characters of Unicode that begin a line or change the direction of the text.
pub fn is_unprintable(letter: char) -> bool {
    let obeyed = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
    letter.is_control()
        || obeyed.contains(&letter)
        || ('\u{202a}'..='\u{202e}').contains(&letter)
        || ('\u{2066}'..='\u{2069}').contains(&letter)
}

/// Converts bytes to text. Two kinds of content are replaced by escape sequences: bytes that are
/// not UTF-8, and characters for which `must_escape` returns true.
pub fn escaped(bytes: &[u8], must_escape: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if must_escape(letter) {
                text.extend(letter.escape_default())
            } else {
                text.push(letter)
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Maximum length of an error, in characters.
const ERROR_CHARACTERS_MAX: usize = 4000;

/// Removes the middle of an error that is too long, such as one that quotes a word of many MiB. The
/// beginning and the end stay, because an error often ends with the advice.
pub fn abridged(error: &str) -> Cow<'_, str> {
    let count = error.chars().count();
    if count <= ERROR_CHARACTERS_MAX {
        return error.into();
    }
    let half = ERROR_CHARACTERS_MAX / 2;
    let part = |from| error.chars().skip(from).take(half).collect::<String>();
    let (begin, end) = (part(0), part(count - half));
    format!("{begin} [… {} more characters …] {end}", count - 2 * half).into()
}

/// Creates an async runtime that runs on this thread.
pub fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

/// Error of a command that was ended by Ctrl-C. The result of the command is not known, so this
/// error has an exit status of its own.
#[derive(Debug)]
pub struct Interrupted(pub String);

impl Interrupted {
    /// Exit status that shells report for a process that was ended by SIGINT.
    pub const STATUS: u8 = 130;
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Error of a load generator that did not reach its target rate. The report is complete, but does
/// not measure the requested rate. Therefore this error has an exit status of its own.
#[derive(Debug)]
pub struct TargetMissed(pub String);

impl TargetMissed {
    /// Exit status of a load generator that did not reach its target rate. It differs from success
    /// (0), failure (1) and a wrong command line (2).
    pub const STATUS: u8 = 3;
}

impl std::fmt::Display for TargetMissed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TargetMissed {}

/// Waits for SIGINT, SIGTERM or SIGHUP. After any of these signals, the run ends as on Ctrl-C, and
/// keeps the results so far. SIGHUP is sent if the terminal or the connection is closed.
pub async fn interrupted() {
    let terminated = async {
        if let Ok(terminated) = leasehold_node::terminated() {
            terminated.await;
        }
    };
    tokio::select! {
        () = terminated => {}
        () = hung_up() => {}
    }
}

async fn hung_up() {
    // A signal that is ignored must not be awaited: `nohup` keeps a process running this way, and a
    // handler would let SIGHUP end it.
    if !ignores_hangup()
        && let Ok(mut hangup) = signal(SignalKind::hangup())
    {
        hangup.recv().await;
    } else {
        std::future::pending::<()>().await;
    }
}

/// Returns true if this process was started with SIGHUP ignored, or if this cannot be determined.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 (SIGHUP) is the lowest bit.
    mask.is_none_or(|mask| mask & 1 == 1)
}

/// Runs `leasehold ycsb`.
pub fn ycsb(arguments: Vec<String>) -> anyhow::Result<()> {
    let args = match leasehold_ycsb::args::parse(arguments)? {
        leasehold_ycsb::args::Invocation::Help(text) => {
            say!("{text}");
            return Ok(());
        }
        leasehold_ycsb::args::Invocation::Execute(args) => args,
    };
    let cancel = leasehold_ycsb::runner::CancellationToken::default();
    let local = tokio::task::LocalSet::new();
    let outcome = runtime()?.block_on(local.run_until(async {
        let watch = cancel.clone();
        tokio::task::spawn_local(async move {
            interrupted().await;
            watch.cancel();
        });
        leasehold_ycsb::command::execute(&args, &mut std::io::stdout(), &cancel).await
    }))?;
    if outcome.cancelled {
        let words = "interrupted; the report is of what was measured until then";
        return Err(Interrupted(words.to_owned()).into());
    }
    match outcome.shortfall() {
        None => Ok(()),
        Some(missed @ Shortfall::TargetMissed(_)) => Err(TargetMissed(missed.to_string()).into()),
        Some(other) => Err(anyhow::anyhow!("{other}")),
    }
}

/// Display of the progress of several strategies. On a terminal, each strategy has a bar.
/// Otherwise, lines of text are printed.
pub struct Bars {
    all: Option<MultiProgress>,
    bars: Mutex<BTreeMap<String, ProgressBar>>,
}

impl Bars {
    /// Creates a display that is still empty.
    pub fn new() -> Bars {
        let terminal = std::io::stderr().is_terminal();
        Bars {
            all: terminal.then(MultiProgress::new),
            bars: Mutex::default(),
        }
    }

    fn begin(&self, label: &str, total: u64) -> ProgressBar {
        let Some(all) = &self.all else {
            note!("{label}: begun");
            return ProgressBar::hidden();
        };
        let bar = all.add(ProgressBar::new(total));
        let style = ProgressStyle::with_template("{prefix:>12} {wide_bar} {percent:>3}% {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_prefix(label.to_string());
        bar
    }

    /// Shows the progress of the strategy `label`: `done` of `total` parts are finished.
    pub fn show(&self, label: &str, done: u64, total: u64) {
        let Ok(mut bars) = self.bars.lock() else {
            return;
        };
        let bar = bars
            .entry(label.to_string())
            .or_insert_with(|| self.begin(label, total));
        bar.set_position(done);
        if done >= total && !bar.is_finished() {
            bar.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_error_the_beginning_and_the_end_are_kept() {
        let short = "ü".repeat(ERROR_CHARACTERS_MAX);
        assert_eq!(abridged(&short), short);
        let long = format!("unknown field `{}`, expected `key`", "ü".repeat(10 << 20));
        let shown = abridged(&long);
        assert!(shown.starts_with("unknown field `ü") && shown.ends_with("ü`, expected `key`"));
        let left_out = long.chars().count() - ERROR_CHARACTERS_MAX;
        assert!(shown.contains(&format!("[… {left_out} more characters …]")));
        assert!(shown.chars().count() < ERROR_CHARACTERS_MAX + 100);
    }

    #[test]
    fn filters_with_former_names_select_the_present_modules() {
        for (before, now) in [
            ("server=debug", "leasehold_node=debug"),
            ("server::node::storage", "leasehold_node::store"),
            (
                "info,server::node::limits=trace",
                "info,leasehold_node::front::admission::limits=trace",
            ),
            ("server::node::limitless", "leasehold_node::limitless"),
            ("leasehold_node::front=warn", "leasehold_node::front=warn"),
            ("servers", "servers"),
        ] {
            assert_eq!(renamed(before), now);
        }
        for (_, now) in RENAMED {
            assert!(now.starts_with("leasehold_"), "{now}");
        }
    }
}
