//! Records the requests of clients and the answers, and computes the result of a run from this
//! record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use leasehold_histories::history::{History, HistoryAction, HistoryEvent, ValueId};
use leasehold_histories::linearizability::{LinearizabilityVerdict, check};
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Outcome, Path};
use leasehold_ycsb::sample::{OpKind, OpOutcome, Sample};

use super::changes::switch_reads;
use super::faults::{FaultOutcomes, RunFaults};
use super::load::KeyRequest;
use super::{RunPlan, RunResult};
use crate::run::bookkeeping::{Bookkeeping, IssuedOperation, bookkeeping};
use crate::run::bound::SiteSet;
use crate::run::{self, HistoryVerdict, MeasuredInterval, StrategyRun};
use crate::wan::NetworkReport;

/// Maximum number of operations for which memory is reserved in advance.
const RESERVED_MAX: u64 = 1 << 22;

/// Number of clients at each site for the reads at the end of a run with faults.
pub(crate) const READERS: usize = 10;

/// Note in a report about the reads at the end of a run. The text of the note is the same for every
/// run, so a report of several runs shows it once.
pub(crate) const READ_ONCE_MORE: &str = "after the run each key that was written was read \
     once more: the history that was judged includes these reads";

/// An operation that has ended, because it was answered, failed or was abandoned.
pub(crate) struct OperationRecord<'a> {
    pub(crate) site: usize,
    pub(crate) process: u32,
    pub(crate) request: KeyRequest,
    /// Time at which the operation began: when it was sent or, in an open loop, when it was due.
    /// Latency is measured from this time.
    pub(crate) due_ns: u64,
    /// Time at which the operation was sent.
    pub(crate) sent_ns: u64,
    pub(crate) now_ns: u64,
    /// Whether the operation ended at its timeout. An operation that has no answer and did not time
    /// out has failed.
    pub(crate) timed_out: bool,
    pub(crate) answer: Option<(Path, &'a Outcome)>,
}

/// Facts about a run besides its operations.
pub(crate) struct RunContext<'a> {
    /// Time at which the backend began the run, on the real clock.
    pub(crate) started: Instant,
    /// Beginning and end of the measured interval, in ns since the run began.
    pub(crate) interval_ns: (u64, u64),
    pub(crate) virtual_s: Option<f64>,
    pub(crate) events: Vec<run::RunEvent>,
    pub(crate) notes: Vec<String>,
    /// Faults that were injected into the cluster; `None` if there were none.
    pub(crate) faults: Option<RunFaults<'a>>,
    pub(crate) counters: BTreeMap<String, u64>,
    /// Network conditions that probes measured in the measured interval; `None` if there were no
    /// probes.
    pub(crate) network: Option<NetworkReport>,
}

/// Recorder of the clients' requests in one run and of the answers to these requests.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// All operations, including warm-up. Each operation is paired with the ID of its key.
    operations: Vec<(Sample, u64)>,
    history: History,
    /// Notes for the report.
    pub(crate) notes: Vec<String>,
}

impl Recorder {
    /// Creates the recorder for a plan.
    pub(crate) fn new(plan: &RunPlan<'_>) -> Recorder {
        let mut recorder = Recorder::default();
        recorder
            .operations
            .reserve(plan.requests().min(RESERVED_MAX) as usize);
        recorder
    }

    /// Records an operation that has ended.
    pub(crate) fn record(&mut self, operation: &OperationRecord<'_>) {
        self.operations
            .push((operation.sample(), operation.request.key));
        self.history.push(operation.event());
    }

    /// Returns every key that a client tried to write, in ascending order.
    pub(crate) fn written_keys(&self) -> Vec<u64> {
        let writes = self.operations.iter();
        let writes = writes.filter(|(sample, _)| sample.kind != OpKind::Read);
        let keys: BTreeSet<u64> = writes.map(|(_, key)| *key).collect();
        keys.into_iter().collect()
    }

    /// Checks whether the history is linearizable, and returns all results that a report needs.
    pub(crate) fn finish(mut self, plan: &RunPlan<'_>, context: RunContext<'_>) -> RunResult {
        self.operations.sort_by_key(|(sample, _)| sample.start_ns);
        let (begin_ns, end_ns) = context.interval_ns;
        let started = |ns: u64| self.operations.partition_point(|(s, _)| s.start_ns < ns);
        let (first, after) = (started(begin_ns), started(end_ns));
        let measured = MeasuredInterval {
            start_s: begin_ns as f64 / 1e9,
            end_s: end_ns as f64 / 1e9,
        };
        let outcomes = context.faults.map(|faults| faults.finish(measured));
        let outcomes = outcomes.unwrap_or_default();
        let operations = &self.operations[first..after];
        let books = self.bookkeeping(plan, first, after);
        let parts = plan.parts();
        let n = plan.topology().len();
        let notes = [context.notes, self.notes.clone(), outcomes.notes.clone()];
        let run = StrategyRun {
            label: plan.strategy.label.clone(),
            strategy: plan.strategy.strategy.clone(),
            workload: plan.words(),
            issued: self.operations.len() as u64,
            samples: operations.iter().map(|(sample, _)| *sample).collect(),
            leased_to: leased_to(operations, &outcomes),
            part_of: part_of(operations, &parts),
            parts,
            switches: switch_reads(plan, &self.operations, &context.events, measured),
            repeats: Vec::new(),
            measured: Some(measured),
            faults: outcomes.spans,
            wall_s: context.started.elapsed().as_secs_f64(),
            virtual_s: context.virtual_s,
            linearizable: self.judge(),
            bookkeeping_local: books.as_ref().map(|a| a.local_reads.clone()),
            bookkeeping_minimum: books.map(|a| a.writes_at_minimum),
            notes: notes.concat(),
            counters: context.counters,
            measured_rtt_ms: context.network.as_ref().map(|found| found.matrix_ms(n)),
            network: context.network,
        };
        let mut events = context.events;
        events.extend(swaps(plan, measured));
        events.extend(plan.change_events(measured));
        events.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        RunResult {
            run,
            events,
            histories: vec![self.history],
        }
    }

    /// Returns the shares that perfect bookkeeping would have reached: the share of local reads,
    /// and the share of writes with their minimum latency. Both shares are computed for the
    /// operations with indexes from `first` (inclusive) to `after` (exclusive). The bookkeeping
    /// also counts the operations before `first`. Returns `None` if the strategy is not `quorum`.
    fn bookkeeping(&self, plan: &RunPlan<'_>, first: usize, after: usize) -> Option<Bookkeeping> {
        if plan.strategy.strategy != "quorum" {
            return None;
        }
        let operations = self.operations[..after].iter().enumerate();
        let stream = operations.map(|(index, (sample, key))| IssuedOperation {
            site: usize::from(sample.site),
            is_read: sample.kind == OpKind::Read,
            key: *key,
            measured: index >= first,
        });
        let leader = plan.experiment.leader_index();
        Some(bookkeeping(plan.topology(), leader, stream))
    }

    /// Returns the verdict on whether the history, warm-up included, is linearizable.
    fn judge(&self) -> HistoryVerdict {
        match check(&self.history) {
            LinearizabilityVerdict::Linearizable { ops, keys } => {
                HistoryVerdict::Yes(format!("{ops} operations on {keys} keys"))
            }
            LinearizabilityVerdict::Violation {
                key, explanation, ..
            } => HistoryVerdict::No(format!("key {key}: {explanation}")),
            unknown => HistoryVerdict::Unchecked(format!("{unknown:?}")),
        }
    }
}

/// Returns an event for each exchange of popular keys between two sites, if the workload has
/// exchanges.
fn swaps(plan: &RunPlan<'_>, measured: MeasuredInterval) -> Vec<run::RunEvent> {
    let Some(swap) = &plan.experiment.workload.swap else {
        return Vec::new();
    };
    let event = |at_s: f64| run::RunEvent {
        run: Some(plan.strategy.label.clone()),
        at_s: measured.start_s + at_s,
        kind: run::RunEvent::SWAP.to_owned(),
        sites: swap.sites.to_vec(),
        text: format!("{} exchange their popular keys", swap.sites.join(" and ")),
    };
    let times = swap.times_s(measured.end_s - measured.start_s);
    times.into_iter().map(event).collect()
}

/// Returns, for each operation, the index of the part of the key space that contains the
/// operation's key. `parts` contains the first key of each part. Returns an empty list if there are
/// fewer than two parts.
fn part_of(operations: &[(Sample, u64)], parts: &[u64]) -> Vec<u8> {
    if parts.len() < 2 {
        return Vec::new();
    }
    let part = |key: u64| parts.partition_point(|first| *first <= key) - 1;
    let operations = operations.iter();
    operations.map(|(_, key)| part(*key) as u8).collect()
}

/// Returns, for each operation, the sites that may have held a lease on the operation's key.
/// Returns an empty list if the sites are not known for every operation.
fn leased_to(operations: &[(Sample, u64)], outcomes: &FaultOutcomes) -> Vec<SiteSet> {
    let holders = |(sample, key): &(Sample, u64)| {
        outcomes.leased_to(*key, sample.start_ns + sample.latency_ns)
    };
    let all: Option<Vec<SiteSet>> = operations.iter().map(holders).collect();
    all.unwrap_or_default()
}

impl OperationRecord<'_> {
    /// Returns the outcome of the operation, and the path by which it was served.
    fn end(&self) -> (OpOutcome, Path) {
        match self.answer {
            Some((path, outcome)) if !matches!(outcome.result, Some(Answer::Error(_)) | None) => {
                (OpOutcome::Ok, path)
            }
            Some(_) => (OpOutcome::Failed, Path::Unspecified),
            None if self.timed_out => (OpOutcome::TimedOut, Path::Unspecified),
            None => (OpOutcome::Failed, Path::Unspecified),
        }
    }

    fn sample(&self) -> Sample {
        let (end, path) = self.end();
        Sample {
            site: self.site as u8,
            kind: self.request.kind,
            path,
            end,
            start_ns: self.due_ns,
            latency_ns: self.now_ns - self.due_ns,
        }
    }

    fn event(&self) -> HistoryEvent {
        let value = self.request.value;
        let action = match self.request.kind {
            OpKind::Read => HistoryAction::Read {
                value: self.answer.and_then(|(_, outcome)| read_value(outcome)),
            },
            _ => HistoryAction::Write { value },
        };
        let (end, _) = self.end();
        HistoryEvent {
            process: self.process,
            key: self.request.key,
            action,
            invoke_ns: self.sent_ns,
            return_ns: (end == OpOutcome::Ok).then_some(self.now_ns),
        }
    }
}

/// Returns the value that a read found; `None` if the answer says that the key is missing. Returns
/// `ValueId::DAMAGED` for every other answer.
fn read_value(outcome: &Outcome) -> Option<ValueId> {
    match &outcome.result {
        Some(Answer::Value(value)) => Some(ValueId::of_value(&value.value)),
        Some(Answer::Missing(_)) => None,
        _ => Some(ValueId::DAMAGED),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_wire::Version;

    use super::*;

    /// Returns the value that the history records for a read with this answer.
    fn found(outcome: &Outcome) -> Option<ValueId> {
        let request = KeyRequest {
            kind: OpKind::Read,
            key: 1,
            value: ValueId(7),
        };
        let ended = OperationRecord {
            site: 0,
            process: 1,
            request,
            due_ns: 0,
            sent_ns: 0,
            now_ns: 5,
            timed_out: false,
            answer: Some((Path::Local, outcome)),
        };
        match ended.event().action {
            HistoryAction::Read { value } => value,
            other => panic!("a read became {other:?}"),
        }
    }

    #[test]
    fn operations_that_failed_are_told_from_those_that_were_given_up() {
        let ended = |timed_out| OperationRecord {
            site: 0,
            process: 1,
            request: KeyRequest {
                kind: OpKind::Update,
                key: 1,
                value: ValueId(7),
            },
            due_ns: 1,
            sent_ns: 3,
            now_ns: 5,
            timed_out,
            answer: None,
        };
        assert_eq!(ended(true).sample().end, OpOutcome::TimedOut);
        let failed = ended(false);
        assert_eq!(failed.sample().end, OpOutcome::Failed);
        // Latency is measured from the time when the request was due; the history begins when it
        // was sent. The write may have taken effect.
        assert_eq!(
            (failed.sample().start_ns, failed.sample().latency_ns),
            (1, 4)
        );
        let event = failed.event();
        assert_eq!((event.invoke_ns, event.return_ns), (3, None));
    }

    #[test]
    fn only_a_missing_key_is_absent() {
        let id = ValueId(3 << 32 | 7);
        let value = |bytes: &[u8]| Outcome::value(bytes.to_vec(), Version::default());
        let stored = id.to_value(100);
        assert_eq!(found(&Outcome::missing()), None);
        assert_eq!(found(&value(&stored)), Some(id));
        for damaged in [b"".as_slice(), b"short", &[stored.as_ref(), b"."].concat()] {
            let found = found(&value(damaged)).expect("damage is not absence");
            assert_ne!(found, id, "{damaged:?}");
        }
        let mut late = stored.to_vec();
        late[99] ^= 1;
        assert_eq!(found(&value(&late)), Some(ValueId::DAMAGED));
        let strange = Outcome::written(Version::default());
        assert_eq!(found(&strange), Some(ValueId::DAMAGED));
    }
}
