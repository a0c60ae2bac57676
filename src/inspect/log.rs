//! `leasehold inspect log`.

use leasehold_leases::Slot;
use leasehold_node::store::inspect::{
    Fact, FoundRecord, LogRecord, LogVisitor, StoppedDirectory, TornWrite,
};
use leasehold_replica::message::{LogId, Value as SlotValue};
use serde_json::{Value, json};

use super::words::{MemberNames, counted, log_name, refuse, torn_json, torn_text};
use super::{LogArgs, LogName, operation};
use crate::terminal::{is_closed, note, print_bytes};

/// Number of bytes that are printed at once.
const PRINT_BYTES: usize = 64 << 10;

pub fn run(args: &LogArgs) -> anyhow::Result<()> {
    let directory = StoppedDirectory::open(&args.dir)?;
    let mut printer = RecordPrinter {
        args,
        names: MemberNames::of(&directory),
        text: String::new(),
        shown: 0,
    };
    if !args.json {
        printer.heading();
    }
    let scan = directory.scan(&mut printer);
    printer.print();
    if printer.shown == 0 && !is_closed() {
        if printer.chooses() {
            note!("note: no record of the log is among those that --from, --to and --log choose");
        } else {
            note!("note: no record of the log can be read");
        }
    }
    directory.check_still_stopped()?;
    let mut problems = directory.problems().to_vec();
    problems.extend(scan.into_iter().flat_map(|scan| scan.problems));
    refuse(&args.dir, &problems)
}

/// Visitor that prints records.
struct RecordPrinter<'a> {
    args: &'a LogArgs,
    names: MemberNames<'a>,
    /// Text that is not printed yet.
    text: String,
    /// Number of records that were printed.
    shown: u64,
}

impl LogVisitor for RecordPrinter<'_> {
    fn record(&mut self, found: &FoundRecord<'_>) {
        if !self.shows(found) {
            return;
        }
        self.shown += 1;
        if self.args.json {
            let line = self.json(found);
            self.line(&line.to_string());
        } else {
            self.words(found);
        }
        if self.text.len() >= PRINT_BYTES {
            self.print();
        }
    }

    fn torn(&mut self, torn: &TornWrite) {
        if self.args.json {
            self.line(&json!({ "kind": "torn", "torn": torn_json(torn) }).to_string());
        } else {
            let place = format!("{} {:>9}", torn.segment, torn.offset);
            self.row(&place, ["-", "torn", "-", "-"], &torn_text(torn));
        }
    }

    fn wants_more(&self) -> bool {
        !is_closed()
    }
}

impl RecordPrinter<'_> {
    fn print(&mut self) {
        print_bytes(self.text.as_bytes());
        self.text.clear();
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn heading(&mut self) {
        let place = format!("{:10} {:>9}", "segment", "byte");
        self.row(&place, ["group", "kind", "slot", "ballot"], "content");
    }

    fn row(&mut self, place: &str, cells: [&str; 4], content: &str) {
        let [group, kind, slot, ballot] = cells;
        let line = format!("{place} {group:>8} {kind:8} {slot:>8} {ballot:10} {content}");
        self.line(&line);
    }

    fn shows(&self, found: &FoundRecord<'_>) -> bool {
        match found.record {
            LogRecord::Entry { log, slot, .. } | LogRecord::Erased { log, slot } => {
                self.is_chosen(log, slot)
            }
            LogRecord::Fact(_) if !self.chooses() || self.args.facts => true,
            LogRecord::Fact(Fact::LogStart { log, slot, .. }) => self.is_chosen(log, slot),
            LogRecord::Fact(_) => false,
        }
    }

    /// Whether the command line selects entries by slot or by log.
    fn chooses(&self) -> bool {
        let LogArgs { from, to, log, .. } = self.args;
        from.is_some() || to.is_some() || log.is_some()
    }

    fn is_chosen(&self, log: LogId, slot: Slot) -> bool {
        let LogArgs { from, to, .. } = self.args;
        let name = match log {
            LogId::Commands => LogName::Commands,
            LogId::Configs => LogName::Configs,
        };
        self.args.log.is_none_or(|chosen| chosen == name)
            && from.is_none_or(|from| slot.0 >= from)
            && to.is_none_or(|to| slot.0 <= to)
    }

    fn words(&mut self, found: &FoundRecord<'_>) {
        let place = format!("{} {:>9}", found.segment, found.offset);
        let group = found.group.number.to_string();
        match &found.record {
            LogRecord::Fact(fact) => {
                let kind = fact_kind(found);
                let words = self.names.fact(fact);
                self.row(&place, [&group, kind, "-", "-"], &words);
            }
            LogRecord::Erased { log, slot } => {
                let words = format!("the entry of {} is erased", log_name(*log));
                self.row(&place, [&group, "erased", &slot.0.to_string(), "-"], &words);
            }
            LogRecord::Entry { log, slot, .. } => {
                let (kind, slot_text) = (log_name(*log), slot.0.to_string());
                match found.entry(*log, *slot) {
                    Ok((ballot, value)) => {
                        let ballot = self.names.ballot(ballot);
                        let words = self.value(&value);
                        self.row(&place, [&group, kind, &slot_text, &ballot], &words);
                        self.commands(&value);
                    }
                    Err(problem) => {
                        let words = format!("unreadable: {problem}");
                        self.row(&place, [&group, kind, &slot_text, "-"], &words);
                    }
                }
            }
        }
    }

    fn value(&self, value: &SlotValue) -> String {
        match value {
            SlotValue::Noop => "no-op".to_owned(),
            SlotValue::Config(change) => self.names.config(change),
            SlotValue::Commands(batch) => {
                let count = counted(batch.commands.len(), "command");
                format!("{count} at log time {} ms", batch.log_time_ms)
            }
        }
    }

    /// Adds a line for each command of a slot.
    fn commands(&mut self, value: &SlotValue) {
        for proposal in value.commands() {
            let words = operation::words(proposal, &self.names, self.args.values);
            self.line(&format!("    {words}"));
        }
    }

    fn json(&self, found: &FoundRecord<'_>) -> Value {
        let mut object = json!({
            "segment": found.segment.0,
            "byte": found.offset,
            "bytes": found.bytes(),
            "group": found.group.number,
        });
        match &found.record {
            LogRecord::Fact(fact) => {
                object["kind"] = json!(fact_kind(found));
                object["fact"] = self.names.fact_json(fact);
            }
            LogRecord::Erased { log, slot } => {
                object["kind"] = json!("erased");
                object["log"] = json!(log_name(*log));
                object["slot"] = json!(slot.0);
            }
            LogRecord::Entry { log, slot, .. } => {
                object["kind"] = json!(log_name(*log));
                object["slot"] = json!(slot.0);
                match found.entry(*log, *slot) {
                    Ok((ballot, value)) => {
                        object["ballot"] = self.names.ballot_json(ballot);
                        object["value"] = self.value_json(&value);
                    }
                    Err(problem) => object["problem"] = json!(problem.to_string()),
                }
            }
        }
        object
    }

    fn value_json(&self, value: &SlotValue) -> Value {
        let command = |proposal| operation::json(proposal, &self.names, self.args.values);
        match value {
            SlotValue::Noop => json!("noop"),
            SlotValue::Config(change) => json!({ "config": self.names.config_json(change) }),
            SlotValue::Commands(batch) => json!({
                "log_time_ms": batch.log_time_ms,
                "commands": batch.commands.iter().map(command).collect::<Vec<_>>(),
            }),
        }
    }
}

/// Returns the kind of a fact. Facts are records that the head of a segment restates.
fn fact_kind(found: &FoundRecord<'_>) -> &'static str {
    if found.group.is_head { "head" } else { "fact" }
}
