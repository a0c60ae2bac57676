//! What a run leaves: samples, the history, and the order of its operations.

use client::history::{Action, Event, History, ValueId};
use client::linearizability::{Verdict as Judged, check};
use client::wire::outcome::Result as Answer;
use client::wire::{Outcome, Path};
use ycsb::sample::{End, OpKind, Sample};

use super::{Ask, Plan};
use crate::attainable::{Attainable, Issued, attainable};
use crate::report::Verdict;

/// Gathers what clients of one run asked and were answered.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Of the measured phase.
    pub samples: Vec<Sample>,
    /// All of it, warm-up included.
    pub history: History,
    issued: Vec<(u64, Issued)>,
    /// Operations answered or given up.
    pub ended: u64,
}

impl Recorder {
    /// A recorder for a plan.
    pub fn new(plan: &Plan<'_>) -> Recorder {
        let mut recorder = Recorder::default();
        recorder.issued.reserve(plan.requests() as usize);
        recorder.samples.reserve(plan.requests() as usize);
        recorder
    }

    /// An operation ended: with an answer, or (`None`) without.
    pub(crate) fn ended(
        &mut self,
        site: usize,
        process: u32,
        ask: Ask,
        began_ns: u64,
        now_ns: u64,
        answer: Option<(Path, &Outcome)>,
    ) {
        self.ended += 1;
        let is_read = ask.kind == OpKind::Read;
        let issued = Issued {
            site,
            is_read,
            key: ask.key,
            measured: ask.measured,
        };
        self.issued.push((began_ns, issued));
        let (end, path) = match answer {
            Some((path, outcome)) if !matches!(outcome.result, Some(Answer::Error(_)) | None) => {
                (End::Ok, path)
            }
            Some(_) => (End::Failed, Path::Unspecified),
            None => (End::TimedOut, Path::Unspecified),
        };
        if ask.measured {
            self.samples.push(Sample {
                site: site as u8,
                kind: ask.kind,
                path,
                end,
                start_ns: began_ns,
                latency_ns: now_ns - began_ns,
            });
        }
        let answered = (end == End::Ok).then_some(now_ns);
        let action = match answer {
            _ if !is_read => Action::Write { value: ask.value },
            Some((_, outcome)) => Action::Read {
                value: read_value(outcome),
            },
            None => Action::Read { value: None },
        };
        self.history.push(Event {
            process,
            key: ask.key,
            action,
            invoke_ns: began_ns,
            return_ns: answered,
        });
    }

    /// Adds another recorder's.
    pub fn merge(&mut self, other: Recorder) {
        self.samples.extend(other.samples);
        self.history.merge(other.history);
        self.issued.extend(other.issued);
        self.ended += other.ended;
    }

    /// What perfect bookkeeping would have reached on these operations; `None` for
    /// a strategy that does not learn.
    pub fn attainable(&mut self, plan: &Plan<'_>) -> Option<Attainable> {
        if plan.strategy.strategy != "quorum" {
            return None;
        }
        self.issued.sort_by_key(|(began_ns, _)| *began_ns);
        let stream = self.issued.iter().map(|(_, issued)| *issued);
        let leader = plan.experiment.leader_index();
        Some(attainable(plan.topology(), leader, stream))
    }

    /// Whether the history, warm-up included, is linearizable.
    pub fn judge(&self) -> Verdict {
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

fn read_value(outcome: &Outcome) -> Option<ValueId> {
    match &outcome.result {
        Some(Answer::Value(value)) => ValueId::from_value(&value.value),
        _ => None,
    }
}
