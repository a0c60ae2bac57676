//! `leasehold chaos`.

use std::cell::Cell;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use leasehold_geo_deploy::chaos::schedule::ScheduleSettings;
use leasehold_geo_deploy::chaos::{
    self, ChaosSummary, Falsification, Round, RoundProgress, RoundResult, Settings,
};
use leasehold_geo_deploy::standing::Lock;

use crate::terminal::{Interrupted, interrupted, note, runtime, say};

/// Maximum time for which clients send requests in one round, in seconds. Short runs have shorter
/// rounds.
const ROUND_S: f64 = 120.0;
const ROUND_S_MIN: f64 = 20.0;
/// Interval at which progress is printed if there is no terminal.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Maximum number of violations that are printed for one round. All violations are stored.
const VIOLATIONS_SHOWN: usize = 3;

const EXAMPLES: &str = "\
Examples:
  leasehold chaos                                      ten minutes, every strategy in turn
  leasehold chaos --minutes 60 --seed 7
  leasehold chaos --minutes 2 --strategy quorum --every 0.5
  leasehold chaos --seed 7 --minutes 60 --round 12     one round of it again
  leasehold chaos --minutes 0.5 --control stale-read   a falsified history must be noticed

Five replica processes behind an emulated WAN are killed, stopped, restarted, paused, cut off
one way or both, slowed down, and run out of disk, as the seed says, while clients at every site
get, put, delete, compare and swap, scan, read and write several keys, send transactions, append
and add. Each round has a cluster and a strategy of its own. At its end all replicas are killed and
started, and everything is read through each.

A violation ends the run with exit status 1: a history that is not linearizable, an acknowledged
write that is lost, an append or addition that counts twice, replicas that differ, one that ends by
itself, that does not serve when all is well again, or that takes too much memory. Logs, data,
history and schedule of the round are kept.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ChaosArgs {
    /// How long clients are at work, in minutes; starting and judging take some more
    #[arg(long, value_name = "M", default_value_t = 10.0, value_parser = minutes)]
    minutes: f64,
    /// Decides which faults happen when, and what clients ask
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Only this strategy, or several: quorum, leader, all, fixed, none, cost [default: each in turn]
    #[arg(long, value_name = "NAMES")]
    strategy: Option<String>,
    /// Mean time between the begins of two faults, in seconds
    #[arg(long, value_name = "S", default_value_t = 1.5, value_parser = every)]
    every: f64,
    /// Operations a second that all clients together try for
    #[arg(long, value_name = "N", default_value_t = 1000.0, value_parser = rate)]
    rate: f64,
    /// Where rounds work, and where summary.json and everything about a violation are kept
    #[arg(long, value_name = "DIR", default_value = "leasehold-chaos")]
    dir: PathBuf,
    /// Runs only this round, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    round: Option<u32>,
    /// Falsifies what clients saw, and expects that it is noticed
    #[arg(long, value_enum)]
    control: Option<ChaosSelfTestArg>,
    /// Changes a field of the cluster, as `cluster up` does: topology=FILE, leader=CA, clients=4 (of a
    /// site), lease.t_lease_ms=2000, local.jitter_ms=5, ...
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

/// Result that a control falsifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ChaosSelfTestArg {
    /// A client reads what was overwritten before
    StaleRead,
    /// An acknowledged write is not there at the end
    LostWrite,
    /// An acknowledged append is executed twice
    RepeatedAppend,
    /// An acknowledged addition is executed twice
    RepeatedAdd,
}

fn minutes(text: &str) -> Result<f64, String> {
    within(text, 0.2, 100_000.0)
}

fn every(text: &str) -> Result<f64, String> {
    within(text, 0.1, 3600.0)
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, 1.0, 100_000.0)
}

fn within(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let good = number.filter(|number| (least..=most).contains(number));
    good.ok_or_else(|| format!("a number from {least} to {most} is needed"))
}

pub fn run(args: &ChaosArgs) -> anyhow::Result<()> {
    let settings = settings(args)?;
    let _lock = Lock::take_for_run(&settings.dir).context("--dir")?;
    let (rounds, _) = rounds(args.minutes);
    let numbers = match args.round {
        Some(round) if round > rounds => bail!(
            "--round {round}: {} minutes have {rounds} rounds; give the --minutes of the run that it \
             is from",
            args.minutes
        ),
        Some(round) => round..=round,
        None => 1..=rounds,
    };
    let meter = ProgressMeter::new(rounds, settings.schedule.length_s);
    let mut ran = Vec::new();
    let ended = runtime()?.block_on(async {
        tokio::select! {
            biased; // a Ctrl-C is waited for before there is anything to leave behind
            () = interrupted() => Ok(StopReason::Interrupted),
            ended = all(&settings, numbers, &meter, &mut ran) => ended,
        }
    });
    meter.end();
    let summary = ChaosSummary::new(args.seed, ran);
    show(&settings.dir, &summary)?;
    conclude(args, &settings.dir, &summary, ended?)
}

/// Stores and prints the findings of all rounds. The findings are printed even if they cannot be
/// stored.
fn show(dir: &Path, summary: &ChaosSummary) -> anyhow::Result<()> {
    if summary.rounds.is_empty() {
        return Ok(());
    }
    let path = dir.join("summary.json");
    let written = std::fs::write(&path, serde_json::to_vec_pretty(summary)?);
    say!("{}", summary.text().trim_end());
    written.with_context(|| format!("writing {}", path.display()))
}

/// Returns the number of rounds, and the duration of each round in seconds.
fn rounds(minutes: f64) -> (u32, f64) {
    let seconds = minutes * 60.0;
    let length_s = (seconds / 5.0).clamp(ROUND_S_MIN, ROUND_S).min(seconds);
    let rounds = (seconds / length_s).round().max(1.0);
    (rounds as u32, length_s)
}

fn settings(args: &ChaosArgs) -> anyhow::Result<Settings> {
    let mut sets: Vec<String> = Vec::new();
    if let Some(names) = &args.strategy {
        sets.push(format!("strategies={names}"));
    }
    sets.extend(args.sets.iter().cloned());
    let experiment = chaos::experiment()?.with(&sets)?;
    let dir = std::path::absolute(&args.dir).context("--dir")?;
    std::fs::create_dir_all(&dir).with_context(|| {
        format!(
            "--dir: {} cannot be made a directory; name one that can be written",
            dir.display()
        )
    })?;
    let (_, length_s) = rounds(args.minutes);
    Ok(Settings {
        program: std::env::current_exe().context("finding this program")?,
        dir,
        experiment,
        seed: args.seed,
        schedule: ScheduleSettings {
            length_s,
            every_s: args.every,
        },
        rate: args.rate,
        self_test: args.control.map(|control| match control {
            ChaosSelfTestArg::StaleRead => Falsification::StaleRead,
            ChaosSelfTestArg::LostWrite => Falsification::LostWrite,
            ChaosSelfTestArg::RepeatedAppend => Falsification::RepeatedAppend,
            ChaosSelfTestArg::RepeatedAdd => Falsification::RepeatedAdd,
        }),
    })
}

#[derive(PartialEq, Eq)]
enum StopReason {
    Completed,
    Interrupted,
}

/// Runs one round after another, until all rounds are done or one of them has a violation.
async fn all(
    settings: &Settings,
    numbers: std::ops::RangeInclusive<u32>,
    meter: &ProgressMeter,
    ran: &mut Vec<RoundResult>,
) -> anyhow::Result<StopReason> {
    for number in numbers {
        let round = Round { settings, number };
        let done = round.run(&|progress| meter.show(progress)).await;
        let done = done.with_context(|| format!("round {number}"))?;
        meter.ended(&done);
        let violation = done.is_violation();
        ran.push(done);
        if violation {
            break;
        }
    }
    Ok(StopReason::Completed)
}

fn conclude(
    args: &ChaosArgs,
    dir: &Path,
    summary: &ChaosSummary,
    ended: StopReason,
) -> anyhow::Result<()> {
    if ended == StopReason::Interrupted {
        let words = format!(
            "interrupted after {} whole rounds; no replica is left running, and what the round \
             under way has written is in {}",
            summary.rounds.len(),
            dir.display()
        );
        return Err(Interrupted(words).into());
    }
    match (summary.violations().next(), args.control) {
        (None, None) => Ok(()),
        (Some(ran), Some(_)) if ran.broken.is_empty() => {
            let words = ran.violations().next().map_or("", String::as_str);
            say!("\nThe control was noticed: {words}");
            Ok(())
        }
        (Some(ran), _) => {
            report_violation(args, ran);
            bail!("round {} violates what is promised", ran.number)
        }
        (None, Some(_)) => {
            bail!("the control was NOT noticed: a verdict of this judge proves nothing")
        }
    }
}

/// Prints a violation, the directory with the evidence, and the command that repeats the round.
fn report_violation(args: &ChaosArgs, ran: &RoundResult) {
    for violation in ran.violations().take(VIOLATIONS_SHOWN) {
        say!("\nround {} ({}): {violation}", ran.number, ran.strategy);
    }
    let more = ran.violations().count().saturating_sub(VIOLATIONS_SHOWN);
    if more > 0 {
        say!("\nand {more} more, in violation.txt");
    }
    if let Some(dir) = &ran.kept {
        say!(
            "\nkept: {} (logs, data, history.bin, groups.bin, ledger.txt, schedule.toml, faults.log)",
            dir.display()
        );
    }
    let mut line = format!(
        "leasehold chaos --seed {} --minutes {} --every {} --rate {} --round {}",
        args.seed, args.minutes, args.every, args.rate, ran.number
    );
    if let Some(strategy) = &args.strategy {
        line += &format!(" --strategy {strategy}");
    }
    for set in &args.sets {
        line += &format!(" --set {set}");
    }
    say!("the same faults at the same times: {line}");
}

/// Display of the progress of a run. On a terminal, one line is updated; otherwise a new line is
/// printed at intervals.
struct ProgressMeter {
    bar: Option<ProgressBar>,
    rounds: u32,
    length_s: f64,
    reported_at: Cell<Instant>,
    doing: Cell<&'static str>,
}

impl ProgressMeter {
    fn new(rounds: u32, length_s: f64) -> ProgressMeter {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        ProgressMeter {
            bar,
            rounds,
            length_s,
            reported_at: Cell::new(Instant::now()),
            doing: Cell::new(""),
        }
    }

    fn show(&self, progress: &RoundProgress<'_>) {
        let changed = self.doing.replace(progress.doing) != progress.doing;
        if let Some(bar) = &self.bar {
            bar.set_message(self.describe(progress));
        } else if changed || self.reported_at.get().elapsed() >= REPORT_EVERY {
            self.reported_at.set(Instant::now());
            note!("{}", self.describe(progress));
        }
    }

    fn describe(&self, progress: &RoundProgress<'_>) -> String {
        let RoundProgress {
            number,
            strategy,
            doing,
            ..
        } = progress;
        let before = format!("round {number} of {} ({strategy})", self.rounds);
        if *doing != "running" {
            return format!("{before}: {doing}");
        }
        let operations = progress.operations;
        let failing = if progress.failing.is_empty() {
            "nothing".to_owned()
        } else {
            progress.failing.join("; ")
        };
        format!(
            "{before}: {:.0} of {:.0} s, {} faults, {} operations ({} of unknown fate); failing now: \
             {failing}",
            progress.elapsed_s,
            self.length_s,
            progress.faults,
            operations.all(),
            operations.unknown
        )
    }

    fn ended(&self, ran: &RoundResult) {
        let verdict = if ran.is_violation() {
            "VIOLATION"
        } else {
            "no violation"
        };
        let line = format!("round {} ({}): {verdict}", ran.number, ran.strategy);
        match &self.bar {
            Some(bar) => bar.println(line),
            None => note!("{line}"),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_share_the_minutes() {
        assert_eq!(rounds(10.0), (5, 120.0));
        assert_eq!(rounds(60.0), (30, 120.0));
        assert_eq!(rounds(0.4), (1, 20.0));
        assert_eq!(rounds(0.2), (1, 12.0));
        let (number, length_s) = rounds(5.0);
        assert_eq!((number, length_s), (5, 60.0));
    }
}
