//! One thread of a run: one operation after another, each measured.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::pace::{Pacer, Schedule};
use super::transaction::{Transaction, perform};
use super::{Phase, RunOptions, Shared, SiteStore};
use crate::generator::Random;
use crate::measurement::{Measured, Return};
use crate::sample::OpKind;
use crate::store::Store;
use crate::workload::{CoreWorkload, Operation, ThreadWorkload};

pub(super) struct Worker<S> {
    pub thread: u64,
    pub threads: u64,
    /// How many it carries out; `None` without end.
    pub operations: Option<u64>,
    pub workload: CoreWorkload,
    pub store: SiteStore<S>,
    pub options: RunOptions,
    pub pacer: Option<Pacer>,
    pub shared: Arc<Shared>,
}

impl<S: Store> Worker<S> {
    pub async fn work(self) {
        let mut stream = self.workload.thread(self.store.site_number, self.thread);
        let mut number = 0;
        while self.operations.is_none_or(|all| number < all) && !self.shared.stop.is_cancelled() {
            let Some(intended) = self.wait_until_due(number).await else {
                return;
            };
            let operation = match self.options.phase {
                Phase::Load => Some(stream.next_load()),
                Phase::Run => stream.next(),
            };
            let Some(operation) = operation else { return };
            let transaction = self.carry_out(&operation, &mut stream).await;
            self.measure(&transaction, intended);
            number += 1;
        }
    }

    /// Waits for the intended start of an operation and returns it; without a
    /// target it is now. `None` if the run has to stop before.
    async fn wait_until_due(&self, number: u64) -> Option<Instant> {
        let (Some(rate), Some(pacer)) = (self.options.target, &self.pacer) else {
            return Some(Instant::now());
        };
        let due = Schedule::new(rate, self.threads, self.thread).due(number);
        let Some(due) = self.shared.start.checked_add(due) else {
            self.shared.stop.cancelled().await;
            return None;
        };
        tokio::select! {
            () = pacer.sleep_until(due) => Some(due),
            () = self.shared.stop.cancelled() => None,
        }
    }

    async fn carry_out(&self, operation: &Operation, stream: &mut ThreadWorkload) -> Transaction {
        let store = &self.store.store;
        let mut transaction = perform(store, &self.workload, operation).await;
        if self.options.phase == Phase::Load {
            for _ in 0..self.options.insert_retries {
                if succeeded(&transaction) || self.shared.stop.is_cancelled() {
                    break;
                }
                tokio::time::sleep(self.retry_pause(stream.random())).await;
                let again = perform(store, &self.workload, operation).await;
                transaction.steps.extend(again.steps);
            }
        } else if operation.kind == OpKind::Insert
            && let Err(error) = self.workload.acknowledge(operation.record)
        {
            tracing::warn!(%error, record = operation.record, "the newest records are not asked for");
        }
        transaction
    }

    fn retry_pause(&self, random: &mut Random) -> Duration {
        self.options
            .insert_retry_pause
            .mul_f64(0.8 + 0.4 * random.unit())
    }

    /// Records what came of an operation, unless it belongs to the warm-up.
    fn measure(&self, transaction: &Transaction, intended: Instant) {
        self.shared.done.fetch_add(1, Ordering::Relaxed);
        let measured_from = self.shared.start + self.options.warmup;
        let Some(last) = transaction.steps.last() else {
            return;
        };
        if intended < measured_from {
            return;
        }
        let since_start = last.ended.saturating_duration_since(self.shared.start);
        let since_start_ns = u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX);
        self.shared.measured.fetch_add(1, Ordering::Relaxed);
        self.shared
            .last_end_ns
            .fetch_max(since_start_ns, Ordering::Relaxed);
        let mut measurements = self.shared.measurements();
        for step in &transaction.steps {
            measurements.record(&Measured {
                site: self.store.site,
                kind: step.kind,
                path: step.path,
                returned: step.returned,
                service: step.ended - step.started,
                intended: step.ended.saturating_duration_since(intended),
            });
        }
        if let Some((returned, took)) = transaction.check {
            measurements.record_check(self.store.site, returned, took);
        }
    }
}

fn succeeded(transaction: &Transaction) -> bool {
    let last = transaction.steps.last();
    last.is_some_and(|step| step.returned == Return::Ok)
}
