//! Virtual time: the same replicas without sockets, exact and in seconds.

use std::time::Instant;

use client::wire::{Command, StatusReply, command::Op};
use leases::ReplicaId;
use server::replica::action::{ClientHandle, Event as Note};
use server::replica::{Event as ReplicaEvent, Settings};
use server::sim::network::Faults;
use server::sim::world::{Happened, Reply, World, WorldSettings};
use ycsb::sample::OpKind;

use super::{Ask, ClosedLoop, Plan, Progress, Ran, Recorder, key_name, value};
use crate::experiment::Experiment;
use crate::report::{Event, StrategyRun};

/// How long the cluster has to elect its leader and establish leases, in ns.
const SETTLE_NS: u64 = 5_000_000_000;
/// How long a sync takes, in ns.
const SYNC_NS: u64 = 100_000;
/// The longest extra delay of a reordered message, in ns.
const REORDER_NS: u64 = 300_000_000;
/// A client whose request is not answered after this, in ns, gives it up.
const PATIENCE_NS: u64 = 30_000_000_000;

/// Runs every strategy of an experiment, as many at a time as there are cores.
///
/// # Errors
/// If the experiment names a strategy that replicas do not know.
pub fn run(experiment: &Experiment, progress: Progress<'_>) -> anyhow::Result<Vec<Ran>> {
    let plans = experiment.strategies.iter().map(|strategy| Plan {
        experiment,
        strategy,
    });
    let plans: Vec<Plan<'_>> = plans.collect();
    for plan in &plans {
        plan.spec()?;
    }
    let next = std::sync::atomic::AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(plan) = plans.get(index) else {
                return done;
            };
            done.push((index, run_plan(plan, progress)));
        }
    };
    let mut all: Vec<(usize, anyhow::Result<Ran>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(plans.len()))
            .map(|_| scope.spawn(worker))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, ran)| ran).collect()
}

fn world_settings(plan: &Plan<'_>) -> anyhow::Result<WorldSettings> {
    let topology = plan.topology();
    let n = topology.len();
    let mut replica = Settings::new(ReplicaId(0), n);
    replica.strategy = plan.spec()?;
    replica.params = plan.params();
    replica.preferred_leader = Some(ReplicaId(plan.experiment.leader_index() as u8));
    replica.timing.reconfigure =
        std::time::Duration::from_millis(plan.experiment.lease.reconfigure_ms);
    let one_way = |a: usize, b: usize| (topology.rtt_ms(a, b) / 2.0 * 1e6).round() as u64;
    let network = &plan.experiment.network;
    let faults = Faults {
        loss: network.loss,
        duplication: network.duplication,
        reordering: network.reorder,
        delay_max_ns: if network.reorder + network.duplication > 0.0 {
            REORDER_NS
        } else {
            0
        },
        ..Faults::default()
    };
    Ok(WorldSettings {
        replica,
        one_way_ns: (0..n)
            .map(|a| (0..n).map(|b| one_way(a, b)).collect())
            .collect(),
        client_one_way_ns: (topology.local_rtt_ms() / 2.0 * 1e6).round() as u64,
        sync_ns: SYNC_NS,
        faults,
        drift_ppm: (plan.experiment.lease.rho * 1e6 / 2.0) as u32,
        disks_remember: faults != Faults::default(),
        watched: false,
    })
}

struct Running {
    client: ClosedLoop,
    sequence: u64,
    attempt: u64,
    busy: Option<(Ask, u64)>,
}

struct Sim<'a> {
    plan: &'a Plan<'a>,
    world: World,
    clients: Vec<Running>,
    recorder: Recorder,
    active: usize,
}

fn run_plan(plan: &Plan<'_>, progress: Progress<'_>) -> anyhow::Result<Ran> {
    let started = Instant::now();
    let world = World::new(world_settings(plan)?, plan.experiment.seed);
    let clients: Vec<Running> = ClosedLoop::all(plan)
        .into_iter()
        .map(|client| Running {
            client,
            sequence: 0,
            attempt: 0,
            busy: None,
        })
        .collect();
    let active = clients.len();
    let mut sim = Sim {
        plan,
        world,
        clients,
        recorder: Recorder::new(plan),
        active,
    };
    sim.drive(progress);
    Ok(sim.finish(started))
}

impl Sim<'_> {
    fn drive(&mut self, progress: Progress<'_>) {
        let total = self.plan.requests();
        // Clients of real sites do not start in step.
        for token in 0..self.clients.len() as u64 {
            self.world.alarm(SETTLE_NS + token * 1_370_000, token << 32);
        }
        let mut shown = 0;
        while self.active > 0 {
            match self.world.advance() {
                Some(Happened::Replied(replies)) => {
                    replies.into_iter().for_each(|reply| self.replied(reply));
                }
                Some(Happened::Alarm(token)) => {
                    self.alarm((token >> 32) as usize, token & 0xffff_ffff)
                }
                Some(Happened::Nothing) => {}
                None => return,
            }
            if self.recorder.ended > shown + total / 200 {
                shown = self.recorder.ended;
                progress(&self.plan.strategy.label, shown, total);
            }
        }
        progress(&self.plan.strategy.label, total, total);
    }

    fn alarm(&mut self, index: usize, attempt: u64) {
        if attempt == 0 {
            return self.ask(index);
        }
        let client = &mut self.clients[index];
        if client.attempt & 0xffff_ffff == attempt
            && let Some((ask, began_ns)) = client.busy.take()
        {
            let now_ns = self.world.now_ns();
            let (site, process) = (client.client.site, client.client.process);
            self.recorder
                .ended(site, process, ask, began_ns, now_ns, None);
            self.ask(index);
        }
    }

    fn ask(&mut self, index: usize) {
        let now_ns = self.world.now_ns();
        let client = &mut self.clients[index];
        let Some(ask) = client.client.next() else {
            self.active -= 1;
            return;
        };
        client.busy = Some((ask, now_ns));
        client.attempt += 1;
        let command = match ask.kind {
            OpKind::Read => Command {
                op: Some(Op::get(key_name(ask.key))),
                ..Command::default()
            },
            _ => {
                client.sequence += 1;
                let op = Op::put(key_name(ask.key), value(ask.value, 8));
                let id = u64::from(client.client.process) + 1;
                Command::session(id, client.sequence, client.sequence, op)
            }
        };
        let from = ClientHandle {
            connection: index as u64,
            request: client.attempt,
        };
        let late = (index as u64) << 32 | client.attempt & 0xffff_ffff;
        self.world
            .request(client.client.site, vec![(from, command)]);
        if self.plan.experiment.network.loss > 0.0 {
            self.world.alarm(now_ns + PATIENCE_NS, late);
        }
    }

    fn replied(&mut self, reply: Reply) {
        let index = reply.to.connection as usize;
        let client = &mut self.clients[index];
        if client.attempt != reply.to.request {
            return;
        }
        let Some((ask, began_ns)) = client.busy.take() else {
            return;
        };
        let now_ns = self.world.now_ns();
        let answer = Some((reply.path, &reply.outcome));
        let (site, process) = (client.client.site, client.client.process);
        self.recorder
            .ended(site, process, ask, began_ns, now_ns, answer);
        self.ask(index);
    }

    fn finish(mut self, started: Instant) -> Ran {
        let attainable = self.recorder.attainable(self.plan);
        let statuses = (0..self.plan.topology().len()).filter_map(|node| {
            self.world
                .replica(node)
                .map(|replica| replica.status(self.world.clock(node)))
        });
        let counters = sum_counters(statuses);
        let linearizable = self.recorder.judge();
        let label = self.plan.strategy.label.clone();
        let events = self.world.notes.iter();
        let events = events
            .filter_map(|(at_ns, site, note)| event(self.plan, *at_ns as f64 / 1e9, *site, note))
            .collect();
        let run = StrategyRun {
            label,
            strategy: self.plan.strategy.strategy.clone(),
            workload: self.plan.words(),
            samples: self.recorder.samples,
            wall_s: started.elapsed().as_secs_f64(),
            virtual_s: Some(self.world.now_ns() as f64 / 1e9),
            linearizable,
            attainable_local: attainable.as_ref().map(|a| a.local_reads.clone()),
            attainable_minimum: attainable.map(|a| a.writes_at_minimum),
            notes: Vec::new(),
            counters,
            measured_rtt_ms: None,
        };
        Ran {
            run,
            events,
            history: self.recorder.history,
        }
    }
}

/// Counters of several replicas, summed by name.
pub(crate) fn sum_counters(
    statuses: impl Iterator<Item = StatusReply>,
) -> std::collections::BTreeMap<String, u64> {
    let mut sum = std::collections::BTreeMap::new();
    for counter in statuses.flat_map(|status| status.counters) {
        *sum.entry(counter.name).or_insert(0) += counter.value;
    }
    sum
}

fn event(plan: &Plan<'_>, at_s: f64, site: ReplicaId, note: &Note) -> Option<Event> {
    let names = plan.topology().names();
    let (kind, text) = match note {
        ReplicaEvent::Leading(ballot) => ("election", format!("leads in round {}", ballot.round)),
        ReplicaEvent::Campaigning(ballot) => {
            ("election", format!("campaigns in round {}", ballot.round))
        }
        // Every replica knows every configuration: the leader's word is enough.
        ReplicaEvent::Configured {
            id, keys, strategy, ..
        } if site.index() == plan.experiment.leader_index() => (
            "configuration",
            format!("{} ({strategy}): {keys} keys changed", id.0),
        ),
        _ => return None,
    };
    Some(Event {
        run: Some(plan.strategy.label.clone()),
        at_s,
        kind: kind.to_string(),
        site: names.get(site.index()).map(|name| name.to_string()),
        text,
    })
}
