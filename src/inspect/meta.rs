//! `leasehold inspect meta`.

use leasehold_leases::Slot;
use leasehold_node::store::inspect::{
    DirectorySummary, LogFacts, LogScan, MarkerSummary, SegmentSummary, StateSummary,
    StoppedDirectory,
};
use leasehold_replica::message::PerLog;
use serde_json::{Value, json};

use super::DataArgs;
use super::words::{
    MemberNames, life_text, log_name, printable, problem_json, refuse, torn_json, torn_text,
};
use crate::terminal::say;

pub fn run(args: &DataArgs) -> anyhow::Result<()> {
    let directory = StoppedDirectory::open(&args.dir)?;
    let summary = directory.summary();
    directory.check_still_stopped()?;
    let printer = SummaryPrinter {
        summary: &summary,
        names: MemberNames::of(&directory),
        is_unfinished: directory.is_unfinished(),
    };
    if args.json {
        let mut object = printer.json();
        object["directory"] = json!(args.dir.display().to_string());
        say!("{object:#}");
    } else {
        row("directory", &args.dir.display());
        printer.print();
    }
    refuse(&args.dir, &summary.problems)
}

struct SummaryPrinter<'a> {
    summary: &'a DirectorySummary,
    names: MemberNames<'a>,
    is_unfinished: bool,
}

fn row(name: &str, text: &dyn std::fmt::Display) {
    say!("{name:16} {text}");
}

impl SummaryPrinter<'_> {
    fn print(&self) {
        if self.is_unfinished {
            row(
                "unfinished",
                &"its first start was interrupted, and the next start makes it anew",
            );
        }
        if let Some(found) = &self.summary.stamp {
            let stamp = &found.stamp;
            let members: Vec<String> = stamp
                .members
                .iter()
                .map(|it| printable(it.as_bytes()))
                .collect();
            row("format", &found.format);
            row("cluster", &printable(stamp.cluster.as_bytes()));
            let name = printable(stamp.name.as_bytes());
            row("replica", &format!("{name}, id {}", stamp.replica.0));
            row("members", &members.join(", "));
            row("life", &life_text(found.life));
        }
        if let Some(log) = &self.summary.log {
            self.facts(&log.facts);
        }
        if let Some(marker) = &self.summary.marker {
            print_marker(marker);
        }
        if let Some(state) = &self.summary.state {
            print_state(state);
        }
        if let Some(log) = &self.summary.log {
            print_segments(log);
        }
    }

    fn facts(&self, facts: &LogFacts) {
        row("incarnation", &facts.incarnation.0);
        row("promised ballot", &self.names.ballot(facts.promised));
        row("joined", &if facts.joined { "yes" } else { "no" });
        let wait = facts.restart_wait;
        let wait = wait.map_or("none".to_owned(), |wait| {
            format!("{:.3} s", wait.as_secs_f64())
        });
        row("restart wait", &wait);
        let committed = facts.committed;
        let slots = format!(
            "slot {} of commands, {} of configs",
            committed.commands.0, committed.configs.0
        );
        row("committed up to", &slots);
        for (replica, life) in &facts.lives {
            let name = self.names.replica(*replica);
            row("life of another", &format!("{name} {}", life_text(*life)));
        }
        for ((log, ballot), slot) in &facts.log_starts {
            let ballot = self.names.ballot(*ballot);
            let text = format!(
                "ballot {ballot} begins at slot {} of {}",
                slot.0,
                log_name(*log)
            );
            row("log start", &text);
        }
    }

    fn json(&self) -> Value {
        let stamp = self.summary.stamp.as_ref();
        let problems = self.summary.problems.iter().map(problem_json);
        json!({
            "unfinished": self.is_unfinished,
            "format": stamp.map(|found| found.format),
            "cluster": stamp.map(|found| &found.stamp.cluster),
            "replica": stamp.map(|found| json!({
                "name": found.stamp.name,
                "id": found.stamp.replica.0,
            })),
            "members": stamp.map(|found| &found.stamp.members),
            "life": stamp.map(|found| life_text(found.life)),
            "facts": self.summary.log.as_ref().map(|log| self.facts_json(&log.facts)),
            "marker": self.summary.marker.as_ref().map(marker_json),
            "state": self.summary.state.as_ref().map(state_json),
            "log": self.summary.log.as_ref().map(log_json),
            "problems": problems.collect::<Vec<_>>(),
        })
    }

    fn facts_json(&self, facts: &LogFacts) -> Value {
        let lives = facts.lives.iter().map(|(replica, life)| {
            json!({ "replica": self.names.replica(*replica), "life": life_text(*life) })
        });
        let starts = facts.log_starts.iter().map(|((log, ballot), slot)| {
            json!({
                "log": log_name(*log),
                "ballot": self.names.ballot_json(*ballot),
                "slot": slot.0,
            })
        });
        json!({
            "incarnation": facts.incarnation.0,
            "promised": self.names.ballot_json(facts.promised),
            "joined": facts.joined,
            "restart_wait_ms": facts.restart_wait.map(|wait| wait.as_secs_f64() * 1e3),
            "committed": {
                "commands": facts.committed.commands.0,
                "configs": facts.committed.configs.0,
            },
            "lives": lives.collect::<Vec<_>>(),
            "log_starts": starts.collect::<Vec<_>>(),
        })
    }
}

fn print_marker(marker: &MarkerSummary) {
    let (number, bytes) = marker.manifest;
    let state = &marker.state;
    row(
        "marker",
        &format!(
            "log: last group {}, first segment {}; flushed state: slot {}, configuration {}; manifest {number} \
             with {bytes} bytes; creation {}",
            marker.last_group,
            marker.first_segment,
            state.commands.0,
            state.configs.0,
            if marker.is_made {
                "complete"
            } else {
                "interrupted"
            }
        ),
    );
}

fn marker_json(marker: &MarkerSummary) -> Value {
    let (number, bytes) = marker.manifest;
    json!({
        "life": life_text(marker.life),
        "created": marker.is_made,
        "last_group": marker.last_group,
        "first_segment": marker.first_segment.0,
        "flushed_slot": marker.state.commands.0,
        "flushed_configuration": marker.state.configs.0,
        "manifest": number,
        "manifest_bytes": bytes,
    })
}

fn print_state(state: &StateSummary) {
    let position = &state.position;
    row(
        "state",
        &format!(
            "executed up to slot {}, configuration {}; log time {} ms; {} keys, {} sessions, {} listed keys",
            position.executed.0,
            position.config.0,
            position.log_time_ms,
            state.keys,
            state.sessions,
            state.listed
        ),
    );
}

fn state_json(state: &StateSummary) -> Value {
    json!({
        "executed": state.position.executed.0,
        "configuration": state.position.config.0,
        "log_time_ms": state.position.log_time_ms,
        "opens_from_ms": state.position.opens_from_ms,
        "keys": state.keys,
        "sessions": state.sessions,
        "listed_keys": state.listed,
    })
}

fn print_segments(log: &LogScan) {
    row("last group", &log.last_group);
    say!("segment         bytes      used  groups           commands         configs");
    for segment in &log.segments {
        let PerLog { commands, configs } = &segment.slots;
        say!(
            "{} {:>10} {:>9}  {:15}  {:15}  {}",
            segment.segment,
            segment.bytes,
            segment.used,
            range(segment.groups),
            range(numbers(commands)),
            range(numbers(configs))
        );
        if let Some(torn) = &segment.torn {
            say!("    byte {}: {}", torn.offset, torn_text(torn));
        }
    }
}

fn range(numbers: Option<(u64, u64)>) -> String {
    numbers.map_or("-".to_owned(), |(first, last)| format!("{first}..{last}"))
}

fn numbers(slots: &Option<(Slot, Slot)>) -> Option<(u64, u64)> {
    slots.map(|(first, last)| (first.0, last.0))
}

fn log_json(log: &LogScan) -> Value {
    let segments = log.segments.iter().map(segment_json);
    json!({
        "last_group": log.last_group,
        "segments": segments.collect::<Vec<_>>(),
    })
}

fn segment_json(segment: &SegmentSummary) -> Value {
    let pair = |numbers: Option<(u64, u64)>| numbers.map(|(first, last)| [first, last]);
    json!({
        "segment": segment.segment.0,
        "bytes": segment.bytes,
        "used": segment.used,
        "groups": pair(segment.groups),
        "commands": pair(numbers(&segment.slots.commands)),
        "configs": pair(numbers(&segment.slots.configs)),
        "torn": segment.torn.as_ref().map(torn_json),
    })
}
