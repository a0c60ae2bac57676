//! Records what clients asked and were answered, and makes a run's result of it.

use std::collections::BTreeMap;
use std::time::Instant;

use client::history::{Action, Event, History, ValueId};
use client::linearizability::{Verdict as Judged, check};
use client::wire::outcome::Result as Answer;
use client::wire::{Outcome, Path};
use ycsb::sample::{End, OpKind, Sample};

use super::{Ask, Plan, Ran};
use crate::attainable::{Attainable, Issued, attainable};
use crate::report::{self, StrategyRun, Verdict};

/// An operation that was answered or given up.
pub(crate) struct Ended<'a> {
    pub(crate) site: usize,
    pub(crate) process: u32,
    pub(crate) ask: Ask,
    pub(crate) began_ns: u64,
    pub(crate) now_ns: u64,
    /// `None`: it was given up.
    pub(crate) answer: Option<(Path, &'a Outcome)>,
}

/// What is known of a run beside its operations.
pub(crate) struct Around {
    /// When the backend began with it.
    pub(crate) started: Instant,
    pub(crate) virtual_s: Option<f64>,
    pub(crate) events: Vec<report::Event>,
    pub(crate) notes: Vec<String>,
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) measured_rtt_ms: Option<Vec<Vec<f64>>>,
}

/// Gathers what clients of one run asked and were answered.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Of the measured phase.
    samples: Vec<Sample>,
    /// All of it, warm-up included.
    history: History,
    issued: Vec<(u64, Issued)>,
    /// Operations answered or given up.
    pub(crate) ended: u64,
}

impl Recorder {
    /// A recorder for a plan.
    pub(crate) fn new(plan: &Plan<'_>) -> Recorder {
        let mut recorder = Recorder::default();
        recorder.issued.reserve(plan.requests() as usize);
        recorder.samples.reserve(plan.requests() as usize);
        recorder
    }

    /// Notes an operation that ended.
    pub(crate) fn ended(&mut self, ended: &Ended<'_>) {
        self.ended += 1;
        self.issued.push((ended.began_ns, ended.issued()));
        if ended.ask.measured {
            self.samples.push(ended.sample());
        }
        self.history.push(ended.event());
    }

    /// Adds another recorder's.
    pub(crate) fn merge(&mut self, other: Recorder) {
        self.samples.extend(other.samples);
        self.history.merge(other.history);
        self.issued.extend(other.issued);
        self.ended += other.ended;
    }

    /// Judges the run, and says all that a report needs of it.
    pub(crate) fn finish(mut self, plan: &Plan<'_>, around: Around) -> Ran {
        let attainable = self.attainable(plan);
        let linearizable = self.judge();
        let run = StrategyRun {
            label: plan.strategy.label.clone(),
            strategy: plan.strategy.strategy.clone(),
            workload: plan.words(),
            samples: self.samples,
            leased_to: Vec::new(),
            measured: None,
            faults: Vec::new(),
            wall_s: around.started.elapsed().as_secs_f64(),
            virtual_s: around.virtual_s,
            linearizable,
            attainable_local: attainable.as_ref().map(|a| a.local_reads.clone()),
            attainable_minimum: attainable.map(|a| a.writes_at_minimum),
            notes: around.notes,
            counters: around.counters,
            measured_rtt_ms: around.measured_rtt_ms,
        };
        Ran {
            run,
            events: around.events,
            history: self.history,
        }
    }

    /// What perfect bookkeeping would have reached on these operations; `None` for
    /// a strategy that does not learn.
    fn attainable(&mut self, plan: &Plan<'_>) -> Option<Attainable> {
        if plan.strategy.strategy != "quorum" {
            return None;
        }
        self.issued.sort_by_key(|(began_ns, _)| *began_ns);
        let stream = self.issued.iter().map(|(_, issued)| *issued);
        let leader = plan.experiment.leader_index();
        Some(attainable(plan.topology(), leader, stream))
    }

    /// Whether the history, warm-up included, is linearizable.
    fn judge(&self) -> Verdict {
        match check(&self.history) {
            Judged::Linearizable { ops, keys } => {
                Verdict::Yes(format!("{ops} operations on {keys} keys"))
            }
            Judged::Violation {
                key, explanation, ..
            } => Verdict::No(format!("key {key}: {explanation}")),
            unknown => Verdict::Unchecked(format!("{unknown:?}")),
        }
    }
}

impl Ended<'_> {
    fn issued(&self) -> Issued {
        Issued {
            site: self.site,
            is_read: self.ask.kind == OpKind::Read,
            key: self.ask.key,
            measured: self.ask.measured,
        }
    }

    /// How it ended, and by which path it was served.
    fn end(&self) -> (End, Path) {
        match self.answer {
            Some((path, outcome)) if !matches!(outcome.result, Some(Answer::Error(_)) | None) => {
                (End::Ok, path)
            }
            Some(_) => (End::Failed, Path::Unspecified),
            None => (End::TimedOut, Path::Unspecified),
        }
    }

    fn sample(&self) -> Sample {
        let (end, path) = self.end();
        Sample {
            site: self.site as u8,
            kind: self.ask.kind,
            path,
            end,
            start_ns: self.began_ns,
            latency_ns: self.now_ns - self.began_ns,
        }
    }

    fn event(&self) -> Event {
        let value = self.ask.value;
        let action = match self.ask.kind {
            OpKind::Read => Action::Read {
                value: self.answer.and_then(|(_, outcome)| read_value(outcome)),
            },
            _ => Action::Write { value },
        };
        let (end, _) = self.end();
        Event {
            process: self.process,
            key: self.ask.key,
            action,
            invoke_ns: self.began_ns,
            return_ns: (end == End::Ok).then_some(self.now_ns),
        }
    }
}

fn read_value(outcome: &Outcome) -> Option<ValueId> {
    match &outcome.result {
        Some(Answer::Value(value)) => ValueId::from_value(&value.value),
        _ => None,
    }
}
