//! One run in two phases. In the safety phase, faults are injected. Then all faults are healed. In
//! the liveness phase, every request must be answered, and every replica with an intact disk must
//! catch up.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use leasehold_leases::{LeaseParams, Slot};
use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::disk::READ_MAX;
use super::fault::FaultCounts;
use super::oracle::Violation;
use super::scenario::Scenario;
use super::swarm::{self, Swarm};
use super::workload::{ClientWorkload, RETRY_TIMEOUT_GROWTH, TOGETHER_MAX};
use super::world::{World, WorldEvent};
use leasehold_kernel::trace::Trace;

/// Interval, in virtual ns, at which the run checks whether all requests are answered.
const CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Token of the alarm at which the run checks its progress.
const CHECK: u64 = 1 << 61;

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct ScenarioOutcome {
    /// Seed of the run.
    pub seed: u64,
    /// The first violation that was seen, if any.
    pub violation: Option<Violation>,
    /// Virtual time in ns at which the last request was answered, or at which a violation was seen.
    pub ended_ns: u64,
    /// Number of operations that clients began.
    pub requested: u64,
    /// Number of operations that were answered.
    pub answered: u64,
    /// Number of operations with an unknown outcome.
    pub unknown: u64,
    /// Whether a checker could not judge the history, because too many operations overlap.
    pub undecided: bool,
    /// Number of answered operations, by the path that served them.
    pub paths: BTreeMap<&'static str, u64>,
    /// Number of times that each fault fired.
    pub fired: FaultCounts,
    /// Name of each oracle, and the number of checks that the oracle made.
    pub checks: Vec<(&'static str, u64)>,
    /// Number of local reads that were answered in the last 10 ms before the end of their permits.
    pub near_end: u64,
    /// Time between the end of all faults and the answer to the last request, in ns.
    pub healing_ns: u64,
    /// Digest of everything that happened until `ended_ns`.
    pub hash: u64,
    /// Trace of the run, if one was requested.
    pub trace: Option<Trace>,
}

/// Runs a scenario to its end, or to the first violation. A failed assertion of a replica also ends
/// the run. The failure is reported as a violation of the oracle `assertion`.
pub fn run(scenario: &Scenario, trace: Option<Trace>) -> ScenarioOutcome {
    let mut run = ScenarioRun::begin(scenario, trace);
    let driven = catch_unwind(AssertUnwindSafe(|| run.drive()));
    let panicked = driven.err().map(|panic| Violation {
        oracle: "assertion",
        what: message(&*panic),
    });
    run.finish(panicked)
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

struct ScenarioRun<'a> {
    scenario: &'a Scenario,
    world: World,
    workload: ClientWorkload,
    swarm: Swarm,
    healed_ns: Option<u64>,
    /// Highest slot that a replica had executed when all faults were healed.
    target: Slot,
    /// Time in ns at which the last request was answered, and the digest of the run at that time.
    answered: Option<(u64, u64)>,
}

impl<'a> ScenarioRun<'a> {
    fn begin(scenario: &'a Scenario, trace: Option<Trace>) -> ScenarioRun<'a> {
        let seed = scenario.seed;
        let mut world = World::new(scenario.world.clone(), seed);
        world.trace = trace;
        let rng = |salt: u64| Pcg64Mcg::seed_from_u64(seed ^ salt);
        let swarm = Swarm::begin(scenario.plan.clone(), rng(0x5a_4f17), &mut world);
        let workload =
            ClientWorkload::begin(scenario.load, rng(0x5eed), scenario.run_ns, &mut world);
        world.alarm(scenario.run_ns, CHECK);
        ScenarioRun {
            scenario,
            world,
            workload,
            swarm,
            healed_ns: None,
            target: Slot::ZERO,
            answered: None,
        }
    }

    fn drive(&mut self) {
        while self.world.violation().is_none() && self.advance() {}
    }

    /// Processes the next event. Returns whether the run continues.
    fn advance(&mut self) -> bool {
        match self.world.advance() {
            Some(WorldEvent::Nothing | WorldEvent::Ended(..)) => {}
            Some(WorldEvent::Replied(replies)) => {
                for reply in &replies {
                    self.workload.replied(reply, &mut self.world);
                }
            }
            Some(WorldEvent::Alarm(CHECK)) => return !self.check(),
            Some(WorldEvent::Alarm(token)) if token & swarm::ALARM != 0 => {
                if self.healed_ns.is_none() {
                    self.swarm.alarm(token, &mut self.world);
                }
            }
            Some(WorldEvent::Alarm(token)) => self.workload.alarm(token, &mut self.world),
            None => return false,
        }
        true
    }

    /// Heals all faults at the end of the safety phase. In the liveness phase, checks whether every
    /// request is answered and every replica has caught up. Returns whether the run is over.
    fn check(&mut self) -> bool {
        let now = self.world.now_ns();
        if self.healed_ns.is_none() {
            self.healed_ns = Some(now);
            swarm::heal(&mut self.world);
            let (params, timing) = (self.longest(), self.scenario.world.replica.timing);
            let allowance =
                Duration::from_nanos(self.scenario.load.retry_timeout_ns) * RETRY_TIMEOUT_GROWTH;
            let allowance = allowance + self.catch_up();
            self.target = self.executed().max().unwrap_or_default();
            let liveness = &mut self.world.oracles.liveness;
            liveness.healed(now, &params, &timing, allowance);
        }
        let behind = self.executed().filter(|slot| *slot < self.target).count();
        if self.workload.under_way() == 0 {
            self.answered.get_or_insert((now, self.world.trace_hash()));
            if behind == 0 && self.waiting().next().is_none() {
                return true;
            }
        }
        if let Some((node, since_ns)) = self.waiting().min_by_key(|(_, since_ns)| *since_ns) {
            let verdict = self.world.oracles.liveness.answers(now, node, since_ns);
            self.world.judge(verdict);
        }
        let liveness = &self.world.oracles.liveness;
        let verdict = liveness.caught_up(now, behind);
        self.world.judge(verdict);
        let verdict = self.world.oracles.liveness.check(now);
        self.world.judge(verdict);
        self.world.alarm(now + CHECK_INTERVAL_NS, CHECK);
        false
    }

    /// Returns the longest lease durations in the newest configurations that the replicas know.
    fn longest(&self) -> LeaseParams {
        let newest = |node| {
            let replica = self.world.replica(node)?;
            let configs = replica.configs();
            Some(*configs.params(configs.newest()))
        };
        let known = (0..self.world.n()).filter_map(newest);
        let duration = |params: &LeaseParams| params.t_grace + params.restart_wait();
        known.max_by_key(duration).unwrap_or_default()
    }

    /// Returns the last executed slot of each running replica with an intact disk.
    fn executed(&self) -> impl Iterator<Item = Slot> {
        let whole = (0..self.world.n()).filter(|node| !self.swarm.has_lost(*node));
        let replicas = whole.filter_map(|node| self.world.replica(node));
        replicas.map(|replica| replica.executed())
    }

    /// Returns each replica that has unanswered writes, and the arrival time in ns of its oldest
    /// unanswered write. A replica that has lost its disk is omitted, because it answers no client.
    fn waiting(&self) -> impl Iterator<Item = (usize, u64)> {
        let whole = (0..self.world.n()).filter(|node| !self.swarm.has_lost(*node));
        whole.filter_map(|node| Some((node, self.world.oracles.unsent.waiting(node)?)))
    }

    /// Returns the time in which all replicas must catch up. The replica that lags most determines
    /// this time: in each round trip, this replica fetches only a few entries from another
    /// replica's disk. Replicas that have lost their disks fetch nothing, so they are not
    /// considered.
    fn catch_up(&self) -> Duration {
        let (most, least) = (self.executed().max(), self.executed().min());
        let lag = most.zip(least).map_or(0, |(most, least)| most.0 - least.0);
        let world = &self.scenario.world;
        let farthest_ns = world.one_way_ns.iter().flatten().max();
        let read_ns = farthest_ns.map_or(0, |one_way_ns| 2 * one_way_ns) + world.sync_ns;
        Duration::from_nanos(read_ns * lag.div_ceil(READ_MAX as u64))
    }

    fn finish(mut self, panicked: Option<Violation>) -> ScenarioOutcome {
        self.workload.finish();
        let seen = panicked.or_else(|| self.world.violation().cloned());
        let violation = seen.or_else(|| self.judge_history());
        let now = (self.world.now_ns(), self.world.trace_hash());
        let answered = self.answered.filter(|_| violation.is_none());
        let (ended_ns, hash) = answered.unwrap_or(now);
        let paths = self.workload.recorder.paths.iter();
        ScenarioOutcome {
            seed: self.scenario.seed,
            violation,
            ended_ns,
            requested: self.workload.requested(),
            answered: self.workload.recorder.answered,
            unknown: self.workload.recorder.unknown,
            undecided: self.world.oracles.histories.unknown > 0,
            paths: paths
                .map(|(path, count)| (path.as_str_name(), *count))
                .collect(),
            fired: self.world.fired(),
            checks: self.world.oracles.checks(),
            near_end: self.world.near_end(),
            healing_ns: self.healed_ns.map_or(0, |healed| ended_ns - healed),
            hash,
            trace: self.world.trace.take(),
        }
    }

    fn judge_history(&mut self) -> Option<Violation> {
        let histories = &mut self.world.oracles.histories;
        let mut verdict = histories.judge(&self.workload.recorder.history);
        if verdict.is_ok() && self.workload.recorder.transactions.len() <= TOGETHER_MAX {
            verdict = histories.judge_together(&self.workload.recorder.transactions);
        }
        verdict.err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Choices;
    use crate::swarm::{FaultPlan, Isolation};

    const SECOND: u64 = 1_000_000_000;

    /// Runs a scenario until all faults are healed. Then calls `check` on the run and returns the
    /// result of `check`.
    fn healed<T>(scenario: &Scenario, check: impl FnOnce(ScenarioRun<'_>) -> T) -> T {
        let mut run = ScenarioRun::begin(scenario, None);
        while run.healed_ns.is_none() {
            assert!(run.advance());
        }
        check(run)
    }

    /// Returns a scenario in which a replica is cut off until it lags by thousands of slots. Then
    /// all faults are healed.
    fn left_far_behind(seed: u64) -> Scenario {
        let choices = Choices {
            run_ns: 90 * SECOND,
            rate: 1200,
            faults: false,
            replicas: Some(3),
            ..Choices::default()
        };
        let mut scenario = Scenario::draw(seed, &choices);
        // All replicas are equally far apart, so any helper is as slow as the bound on catching up
        // assumes.
        for one_way_ns in scenario.world.one_way_ns.iter_mut().flatten() {
            *one_way_ns = (*one_way_ns).min(1) * 30 * SECOND / 1000;
        }
        scenario.plan = FaultPlan::isolating(Isolation {
            mute_ns: SECOND,
            apart_ns: 200 * SECOND,
            well_ns: SECOND,
        });
        scenario
    }

    /// Runs `scenario`. After all faults are healed, each read of a disk returns at most `read_max`
    /// entries. Returns the name of the oracle that sees a violation, if there is one.
    fn catching_up(scenario: &Scenario, read_max: usize) -> Option<&'static str> {
        healed(scenario, |mut run| {
            for node in 0..run.world.n() {
                run.world.set_read_max(node, read_max);
            }
            run.drive();
            run.finish(None).violation.map(|violation| violation.oracle)
        })
    }

    #[test]
    fn who_is_far_behind_has_the_time_to_catch_up_and_no_more() {
        // The missing entries are more than other replicas keep in memory, so they are read from a
        // disk.
        let is_far = |scenario: &Scenario| {
            healed(scenario, |run| {
                let (most, least) = (run.executed().max(), run.executed().min());
                let lag = most.zip(least).map_or(0, |(most, least)| most.0 - least.0);
                run.catch_up().as_secs() > 50 && lag > 15_000
            })
        };
        let found = (0..60).map(left_far_behind).find(is_far);
        let scenario = &found.expect("in some of these seeds it is far behind");
        assert_eq!(catching_up(scenario, READ_MAX), None);
        let slow = READ_MAX * 3 / 8;
        assert_eq!(catching_up(scenario, slow), Some("liveness"), "it crawls");
        assert_eq!(catching_up(scenario, 0), Some("liveness"), "it is stuck");
    }

    #[test]
    fn nobody_waits_for_a_replica_that_has_lost_its_disk() {
        let choices = Choices {
            run_ns: 60 * SECOND,
            ..Choices::default()
        };
        // In some of these seeds a replica has lost its disk, and lacks thousands of slots.
        let is_lost = |scenario: &Scenario| {
            healed(scenario, |run| {
                let any_lost = (0..run.world.n()).any(|node| run.swarm.has_lost(node));
                let most = run.executed().max().map_or(0, |slot| slot.0);
                any_lost && most > 3000
            })
        };
        let drawn = |seed| Scenario::draw(seed, &choices);
        let found = (31_000_000..31_000_100).map(drawn).find(is_lost);
        healed(&found.expect("a replica has lost its disk"), |run| {
            assert!(run.catch_up() < Duration::from_secs(2));
        });
    }
}
