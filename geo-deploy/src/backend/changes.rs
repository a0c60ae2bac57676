//! Changes of strategy in a run, and the reads that were not local because of a change.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;
use leasehold_leases::{Key, KeyRange, StrategySpec};
use leasehold_wire::Path;
use leasehold_ycsb::sample::{OpKind, OpOutcome, Sample};

use super::{RunPlan, key_name};
use crate::experiment::StrategyChange;
use crate::run::{MeasuredInterval, RunEvent, SwitchReads};

impl RunPlan<'_> {
    /// Returns the changes of strategy. Each change is paired with its time in ns. The measured
    /// interval begins at `begin_ns`.
    pub(crate) fn changes(&self, begin_ns: u64) -> impl Iterator<Item = (u64, &StrategyChange)> {
        let changes = self.strategy.change.iter();
        changes.map(move |change| {
            let at_ns = begin_ns as f64 + change.at_s * 1e9;
            (at_ns.max(0.0) as u64, change)
        })
    }

    /// Returns the key range of a change, in the form that replicas use.
    pub(crate) fn range(&self, change: &StrategyChange) -> KeyRange {
        let keys = self.experiment.workload.keys;
        let (from, to) = change.key_bounds(keys);
        let from = if from == 0 {
            Key::new()
        } else {
            key_name(from)
        };
        let to = (to < keys).then(|| key_name(to));
        KeyRange::new(from, to).unwrap_or_else(KeyRange::all)
    }

    /// Returns the strategy that is in force after a change.
    ///
    /// # Errors
    /// If replicas do not know the strategy's name.
    pub(crate) fn changed_to(&self, change: &StrategyChange) -> anyhow::Result<StrategySpec> {
        self.spec_named(&change.strategy)
    }

    /// Returns the changes within the measured interval as events.
    pub(super) fn change_events(&self, measured: MeasuredInterval) -> Vec<RunEvent> {
        let event = |change: &StrategyChange| RunEvent {
            run: Some(self.strategy.label.clone()),
            at_s: measured.start_s + change.at_s,
            kind: RunEvent::SWITCH.to_owned(),
            sites: Vec::new(),
            text: change.words(),
        };
        let changes = self.strategy.change.iter();
        changes.filter(|c| c.at_s >= 0.0).map(event).collect()
    }

    /// Divides the key space at the bounds of the key ranges of all strategy changes in the
    /// experiment. Returns the first key of each part. The first part begins at key 0.
    pub(super) fn parts(&self) -> Vec<u64> {
        let keys = self.experiment.workload.keys;
        let plans = self.experiment.strategies.iter();
        let changes = plans.flat_map(|plan| &plan.change);
        let starts =
            changes.flat_map(|change| [change.key_bounds(keys).0, change.key_bounds(keys).1]);
        let starts: BTreeSet<u64> = starts.chain([0]).filter(|start| *start < keys).collect();
        starts.into_iter().collect()
    }
}

/// Returns the outcome of certain reads for each change within the measured interval: the reads
/// that the change should not have affected. `operations` are all operations of a run, in order of
/// their starts. `events` are the events that replicas announced.
///
/// Reads of *kept* keys should not be affected. A site keeps a key if it holds the key both before
/// and after the change. Before the change, the site must hold the key under the last
/// configuration. After the change, the site must hold the key under the configurations of the next
/// reconfiguration period. This period may be cut short by the next change. Within one period,
/// replicas choose the holders for the new strategy once.
///
/// On every backend, kept keys are inferred from reads. Two reads of the key by the site must be
/// local: the last read before the change, and the last read in the period after the change. Reads
/// soon after a new configuration are ignored here, because a promise of the previous configuration
/// may still have permitted these reads.
pub(super) fn switch_reads(
    plan: &RunPlan<'_>,
    operations: &[(Sample, u64)],
    events: &[RunEvent],
    measured: MeasuredInterval,
) -> Vec<SwitchReads> {
    let lease = &plan.experiment.lease;
    let promised_s = (lease.t_lease_ms + lease.t_guard_ms) as f64 / 1e3;
    let period_s = lease.reconfigure().as_secs_f64();
    let changes: Vec<&StrategyChange> = {
        let all = plan.strategy.change.iter();
        all.filter(|change| change.at_s >= 0.0).collect()
    };
    let starts = changes.iter().map(|change| measured.start_s + change.at_s);
    let starts: Vec<f64> = starts.chain([measured.end_s]).collect();
    let configured = events.iter().filter(|e| e.kind == RunEvent::CONFIGURATION);
    let configured: Vec<f64> = configured.map(|event| event.at_s).collect();
    let of = |(change, span): (&&StrategyChange, &[f64])| {
        let at_s = span[0];
        let earlier = configured.iter().copied().filter(|at| *at < at_s);
        let times_s = [
            earlier.fold(0.0, f64::max) + promised_s,
            at_s,
            at_s + promised_s,
            (at_s + period_s).min(span[1]),
        ];
        of_change(change, operations, times_s.map(|s| (s * 1e9) as u64))
    };
    changes.iter().zip(starts.windows(2)).map(of).collect()
}

/// Returns the number of reads of kept keys after a change, and the number of these reads that were
/// not local. `times_ns` contains four points in time; the second is the time of the change. Reads
/// between the first two points show whether a site held the key before the change. Reads between
/// the last two points show whether a site held the key after the change.
fn of_change(
    change: &StrategyChange,
    operations: &[(Sample, u64)],
    times_ns: [u64; 4],
) -> SwitchReads {
    let started = |ns: u64| operations.partition_point(|(sample, _)| sample.start_ns < ns);
    let [before, changed, after, settled] = times_ns.map(started);
    let was_local = last_reads(&operations[before.min(changed)..changed]);
    let is_local = last_reads(&operations[after.min(settled)..settled]);
    let kept = |of: &(u8, u64)| was_local.get(of) == Some(&true) && is_local.get(of) == Some(&true);
    let mut found = SwitchReads {
        at_s: change.at_s,
        to: change.words(),
        ..SwitchReads::default()
    };
    for (sample, key) in reads(&operations[changed..settled]) {
        if kept(&(sample.site, *key)) {
            found.reads += 1;
            found.lost += u64::from(!is_local_read(sample));
        }
    }
    found
}

fn reads(operations: &[(Sample, u64)]) -> impl Iterator<Item = &(Sample, u64)> {
    operations
        .iter()
        .filter(|(sample, _)| sample.kind == OpKind::Read)
}

fn is_local_read(sample: &Sample) -> bool {
    sample.end == OpOutcome::Ok && matches!(sample.path, Path::Local | Path::Held)
}

/// For each pair of a site and a key, returns whether the site's last read of the key was local.
fn last_reads(operations: &[(Sample, u64)]) -> HashMap<(u8, u64), bool, FixedState> {
    let local = |(sample, key): &(Sample, u64)| ((sample.site, *key), is_local_read(sample));
    reads(operations).map(local).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(at_s: u64, site: u8, key: u64, path: Path) -> (Sample, u64) {
        let sample = Sample {
            site,
            kind: OpKind::Read,
            path,
            end: OpOutcome::Ok,
            start_ns: at_s * 1_000_000_000,
            latency_ns: 1,
        };
        (sample, key)
    }

    fn judged(operations: &[(Sample, u64)]) -> (u64, u64) {
        let change = StrategyChange {
            at_s: 20.0,
            strategy: "all".to_owned(),
            keys: [0.0, 1.0],
        };
        let times_ns = [3, 20, 22, 30].map(|s| s * 1_000_000_000);
        let found = of_change(&change, operations, times_ns);
        assert_eq!((found.at_s, found.to.as_str()), (20.0, "all"));
        (found.reads, found.lost)
    }

    #[test]
    fn a_read_is_lost_if_its_key_was_local_before_and_is_again() {
        use Path::{Forwarded, Held, Local};
        let kept = [
            read(1, 0, 7, Forwarded),
            read(5, 0, 7, Local),
            read(20, 0, 7, Held),
            read(25, 0, 7, Local),
        ];
        assert_eq!(judged(&kept), (2, 0));
        let lost = [
            read(5, 0, 7, Local),
            read(21, 0, 7, Forwarded),
            read(25, 0, 7, Local),
            // This read comes after the settling time.
            read(31, 0, 7, Forwarded),
        ];
        assert_eq!(judged(&lost), (2, 1));
        // The reads before the change are not local, or those after it are not: the other strategy
        // has other holders.
        for (before, after) in [(Forwarded, Local), (Local, Forwarded)] {
            let other = [
                read(5, 0, 7, before),
                read(21, 0, 7, Forwarded),
                read(25, 0, 7, after),
            ];
            assert_eq!(judged(&other), (0, 0));
        }
        // The reads may have been served by promises of earlier configurations.
        for (before, after) in [(2, 25), (5, 21)] {
            let early = [
                read(before, 0, 7, Local),
                read(20, 0, 7, Forwarded),
                read(after, 0, 7, Local),
            ];
            assert_eq!(judged(&early), (0, 0));
        }
        // Reads of other sites or other keys are independent.
        let apart = [
            read(5, 0, 7, Local),
            read(6, 1, 8, Local),
            read(21, 1, 7, Forwarded),
            read(22, 0, 8, Forwarded),
            read(25, 0, 7, Local),
        ];
        assert_eq!(judged(&apart), (1, 0));
    }
}
