//! Virtual time: the same replicas without sockets. Exact, and done in seconds.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use client::wire::{Command, Outcome, Path, command::Op};
use leases::ReplicaId;
use server::replica::action::{ClientHandle, Event as Note};
use server::replica::{Event as ReplicaEvent, Settings};
use server::sim::network::Faults;
use server::sim::world::{Happened, Reply, World, WorldSettings};
use ycsb::sample::OpKind;

use super::counters::sum_counters;
use super::{Around, Ask, ClosedLoop, Ended, Plan, Progress, Ran, Recorder, key_name, value};
use crate::experiment::{Experiment, Network};
use crate::report::Event;

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
    let mut all = in_parallel(&plans, progress);
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, ran)| ran).collect()
}

/// Every plan's run beside its index, in the order in which they ended.
fn in_parallel(plans: &[Plan<'_>], progress: Progress<'_>) -> Vec<(usize, anyhow::Result<Ran>)> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|i| *i < plans.len());
        let mut done = Vec::new();
        while let Some(index) = take() {
            done.push((index, run_plan(&plans[index], progress)));
        }
        done
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.min(plans.len()))
            .map(|_| scope.spawn(worker))
            .collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended
            .flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn world_settings(plan: &Plan<'_>) -> anyhow::Result<WorldSettings> {
    let topology = plan.topology();
    let n = topology.len();
    let mut replica = Settings::new(ReplicaId(0), n);
    replica.strategy = plan.spec()?;
    replica.params = plan.params();
    replica.preferred_leader = Some(ReplicaId(plan.experiment.leader_index() as u8));
    replica.timing.reconfigure = plan.experiment.lease.reconfigure();
    let one_way = |a: usize, b: usize| (topology.rtt_ms(a, b) / 2.0 * 1e6).round() as u64;
    let faults = faults(&plan.experiment.network);
    Ok(WorldSettings {
        replica,
        one_way_ns: (0..n)
            .map(|a| (0..n).map(|b| one_way(a, b)).collect())
            .collect(),
        client_one_way_ns: (topology.local_rtt_ms() / 2.0 * 1e6).round() as u64,
        sync_ns: SYNC_NS,
        faults,
        drift_ppm: (plan.experiment.lease.rho * 1e6 / 2.0) as u32,
        encoded: false,
        disks_remember: faults != Faults::default(),
        watched: false,
    })
}

fn faults(network: &Network) -> Faults {
    let delays = network.reorder + network.duplication > 0.0;
    Faults {
        loss: network.loss,
        duplication: network.duplication,
        reordering: network.reorder,
        delay_max_ns: if delays { REORDER_NS } else { 0 },
        ..Faults::default()
    }
}

struct Running {
    client: ClosedLoop,
    sequence: u64,
    attempt: u64,
    busy: Option<(Ask, u64)>,
}

impl Running {
    fn command(&mut self, ask: Ask) -> Command {
        if ask.kind == OpKind::Read {
            return Op::get(key_name(ask.key)).into();
        }
        self.sequence += 1;
        let op = Op::put(key_name(ask.key), value(ask.value, 8));
        let session = u64::from(self.client.process) + 1;
        Command::session(session, self.sequence, self.sequence, op)
    }
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
        // Clients start one after the other, as those of real sites would.
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
        if self.clients[index].attempt & 0xffff_ffff == attempt {
            self.ended(index, None);
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
        let command = client.command(ask);
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
        if self.clients[index].attempt == reply.to.request {
            self.ended(index, Some((reply.path, &reply.outcome)));
        }
    }

    /// Notes the end of what a client waits for, if it does, and lets it ask again.
    fn ended(&mut self, index: usize, answer: Option<(Path, &Outcome)>) {
        let running = &mut self.clients[index];
        let Some((ask, began_ns)) = running.busy.take() else {
            return;
        };
        self.recorder.ended(&Ended {
            site: running.client.site,
            process: running.client.process,
            ask,
            began_ns,
            now_ns: self.world.now_ns(),
            answer,
        });
        self.ask(index);
    }

    fn finish(self, started: Instant) -> Ran {
        let replicas = (0..self.plan.topology().len())
            .filter_map(|node| Some((self.world.replica(node)?, self.world.clock(node))));
        let counters = sum_counters(replicas.map(|(replica, clock)| replica.status(clock)));
        let notes = self.world.notes.iter();
        let events = notes
            .filter_map(|(at_ns, site, note)| event(self.plan, *at_ns as f64 / 1e9, *site, note));
        let around = Around {
            started,
            virtual_s: Some(self.world.now_ns() as f64 / 1e9),
            events: events.collect(),
            notes: Vec::new(),
            counters,
            measured_rtt_ms: None,
        };
        self.recorder.finish(self.plan, around)
    }
}

fn event(plan: &Plan<'_>, at_s: f64, site: ReplicaId, note: &Note) -> Option<Event> {
    let names = plan.topology().names();
    let (kind, text) = match note {
        ReplicaEvent::Leading(ballot) => {
            (Event::ELECTION, format!("leads in round {}", ballot.round))
        }
        ReplicaEvent::Campaigning(ballot) => (
            Event::ELECTION,
            format!("campaigns in round {}", ballot.round),
        ),
        // Every replica reports every configuration. The leader's report is enough.
        ReplicaEvent::Configured {
            id, keys, strategy, ..
        } if site.index() == plan.experiment.leader_index() => (
            Event::CONFIGURATION,
            format!("{} ({strategy}): {keys} keys changed", id.0),
        ),
        _ => return None,
    };
    Some(Event {
        run: Some(plan.strategy.label.clone()),
        at_s,
        kind: kind.to_string(),
        sites: names
            .get(site.index())
            .map(|name| name.to_string())
            .into_iter()
            .collect(),
        text,
    })
}
