//! Builds the state of the logs from the durable state when a replica starts, for the first time or
//! after a crash.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Slot, Time};

use super::acceptor::{SlotEntry, origins};
use super::cell::Accepted;
use super::log::Log;
use super::marks::Marks;
use crate::action::RecoveredState;
use crate::message::{LogId, ReportedEntry};
use crate::per_log::PerLog;
use crate::settings::Settings;

/// Returns both logs. They hold all accepted entries above the last executed slot, even those far
/// above that slot, because other replicas may rely on each entry (hazard 78). Slots up to the
/// recorded commit points are committed. This replica must learn again which later slots are
/// committed.
pub(super) fn logs(recovered: &RecoveredState, settings: &Settings) -> PerLog<Log> {
    let executed = PerLog {
        commands: recovered.state.executed,
        configs: Slot(recovered.state.config.0),
    };
    let (window, kept_max) = (settings.log_window, settings.kept_slots_max);
    PerLog::of(|log| {
        let empty = Log::restored(executed[log], window, kept_max);
        restore(recovered, log, empty)
    })
}

/// Returns the marks of all accepted, unexecuted slots (hazard 30).
pub(super) fn marks(commands: &Log) -> Marks {
    let mut marks = Marks::default();
    for (slot, cell) in commands.unexecuted() {
        if let Some(accepted) = &cell.accepted
            && !off(Rule::H30Marks)
        {
            marks.mark(slot, &accepted.value);
        }
    }
    marks
}

fn restore(recovered: &RecoveredState, id: LogId, mut log: Log) -> Log {
    for (_, ballot, slot) in recovered.log_starts.iter().filter(|(of, ..)| *of == id) {
        log.log_starts.insert(*ballot, *slot);
    }
    if let Some((ballot, start)) = log.log_starts.last_key_value() {
        log.adopted = (*ballot, *start);
    }
    let (executed, end) = (log.executed, log.end());
    let unexecuted = |entry: &&ReportedEntry| entry.log == id && entry.slot > executed;
    for entry in recovered.accepted.iter().filter(unexecuted) {
        if entry.slot > end && off(Rule::H78Durable) {
            continue;
        }
        let plain = SlotEntry::plain(entry.ballot, entry.value.clone());
        log.restored_cell(entry.slot).accepted = Some(Accepted {
            ballot: plain.ballot,
            origins: origins(&plain.value),
            value: plain.value,
            durable: true,
            last_multi: plain.last_multi,
            infallible: plain.infallible,
            early_tag: None,
            proposed: Time::ZERO,
            sent: Time::ZERO,
        });
        let highest = log.highest;
        log.note_accepted(entry.slot, entry.ballot);
        if off(Rule::H30Highest) {
            log.highest = highest;
        }
    }
    log.restore_commits(recovered.committed[id]);
    log
}
