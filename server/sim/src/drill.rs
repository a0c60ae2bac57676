//! Drills: one thing goes wrong at known times, and clients at every site report how long they
//! waited. The writes are open loops, so that a client that waits hides nothing.

use std::collections::BTreeMap;

use leasehold_leases::{ConfigId, ReplicaId, ReplicaSet};
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use super::network::Faults;
use super::world::{Happened, Reply, World, WorldSettings};
use leasehold_replica::action::{ClientHandle, Event};
use leasehold_replica::{Operator, Settings};

const MS: u64 = 1_000_000;
/// Time for the cluster to elect its leader and establish leases, in ns.
const SETTLE_NS: u64 = 4000 * MS;
/// Alarms below this are the sites' own.
const BLOW: u64 = 1 << 32;
const MEND: u64 = BLOW + 1;

/// Kind of fault that strikes in a drill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The process is killed, and started again at the end.
    Kill,
    /// It stands still.
    Pause,
    /// It is cut off from all others.
    Cut,
    /// Nobody hears it.
    Mute,
    /// It hears nobody.
    Deaf,
    /// It is told to end, and started again at the end.
    Leave,
    /// This one is killed, and when that has lasted the leader is told to end.
    LeaveAfter(ReplicaId),
    /// Killed and started again. From 0.9 s later on it does not hear which replica leads.
    KillUnheard,
    /// An operator moves leadership to this replica.
    Move(ReplicaId),
    /// It hears nobody while a client writes so many values of so many bytes there. So they
    /// stay open at all others. It is killed at the end.
    Flood(u64, usize),
}

/// A drill.
#[derive(Clone, Debug)]
pub struct Drill {
    /// For every replica.
    pub settings: Settings,
    /// One-way delay in ns, by sender and receiver.
    pub one_way_ns: Vec<Vec<u64>>,
    /// Faults between replicas throughout the drill.
    pub faults: Faults,
    /// Number of bytes that a link takes in a second; 0: any number.
    pub bytes_per_s: u64,
    /// Interval between two writes of a site, in ns; 0: no site writes.
    pub every_ns: u64,
    /// Fault, and the replica that it strikes; no replica named: the one that leads.
    pub blow: Option<(Blow, Option<ReplicaId>)>,
    /// Time between the cluster's settling and the fault, in ns.
    pub blow_ns: u64,
    /// Times at which it goes wrong again, in ns after the first time.
    pub again_ns: Vec<u64>,
    /// Time for which it lasts each time, in ns.
    pub lasts_ns: u64,
    /// Time for which clients write after the fault has begun, in ns.
    pub watch_ns: u64,
}

/// A write of a client.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Where it was asked.
    pub site: usize,
    /// When, in ns.
    pub asked_ns: u64,
    /// When it was answered, in ns.
    pub answered_ns: Option<u64>,
    /// Whether the answer was an error.
    pub failed: bool,
}

/// Outcome of a drill.
#[derive(Clone, Debug)]
pub struct Aftermath {
    /// When it went wrong, in ns.
    pub struck_ns: u64,
    /// Replica that the fault struck.
    pub victim: ReplicaId,
    /// Every write, in the order in which they were asked.
    pub writes: Vec<Write>,
    /// Replicas that began to lead, and when, in ns.
    pub led: Vec<(u64, ReplicaId)>,
    /// Replicas that campaigned, and when, in ns.
    pub campaigned: Vec<(u64, ReplicaId)>,
    /// The replicas that may hold no leases, each time that they changed, and when, in ns.
    pub excluded: Vec<(u64, ReplicaSet)>,
    /// Replicas that left after they were asked to end, and when, in ns.
    pub left: Vec<(u64, ReplicaId)>,
    /// The rule that was seen broken.
    pub violation: Option<String>,
}

impl Aftermath {
    /// Writes asked at sites other than the victim's.
    fn elsewhere(&self) -> impl Iterator<Item = &Write> {
        let victim = self.victim.index();
        self.writes.iter().filter(move |write| write.site != victim)
    }

    /// Time from the blow until each of the other sites has had a write answered that it asked
    /// after the blow, in ns; `None` if one never had.
    pub fn outage_ns(&self, sites: usize) -> Option<u64> {
        let first = |site: usize| {
            let since = self.elsewhere().filter(|write| write.site == site);
            let since = since.filter(|write| write.asked_ns >= self.struck_ns && !write.failed);
            since.filter_map(|write| write.answered_ns).min()
        };
        let others = (0..sites).filter(|site| *site != self.victim.index());
        let last = others.map(first).collect::<Option<Vec<u64>>>()?;
        Some(last.into_iter().max()? - self.struck_ns)
    }

    /// The longest that a client of another site waited, in ns; `None` if for ever.
    pub fn longest_ns(&self) -> Option<u64> {
        let waits = self.elsewhere();
        let waits = waits.map(|write| Some(write.answered_ns? - write.asked_ns));
        waits.collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// Elections since the blow.
    pub fn elections(&self) -> usize {
        let since = self.led.iter().filter(|(at, _)| *at >= self.struck_ns);
        since.count()
    }

    /// Returns the replica that leads at the end.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.led.last().map(|(_, leader)| *leader)
    }
}

struct Run<'a> {
    drill: &'a Drill,
    world: World,
    writes: Vec<Write>,
    /// By site: sequences without an answer, and the write of each.
    open: Vec<BTreeMap<u64, usize>>,
    next: Vec<u64>,
    victim: ReplicaId,
    /// When clients write no more.
    ends_ns: u64,
}

impl Drill {
    /// Runs it. The same drill and seed give the same aftermath.
    pub fn run(&self, seed: u64) -> Aftermath {
        let n = self.settings.n;
        let mut world = World::new(
            WorldSettings {
                replica: self.settings.clone(),
                one_way_ns: self.one_way_ns.clone(),
                client_one_way_ns: MS / 10,
                sync_ns: MS / 5,
                faults: self.faults,
                drift_ppm: 100,
                encoded: false,
                disks_remember: true,
                odd: None,
                watched: true,
            },
            seed,
        );
        world.set_bandwidth(self.bytes_per_s);
        let strike_ns = SETTLE_NS + self.blow_ns;
        let run = Run {
            drill: self,
            world,
            writes: Vec::new(),
            open: vec![BTreeMap::new(); n],
            next: vec![1; n],
            victim: ReplicaId(0),
            ends_ns: strike_ns + self.watch_ns,
        };
        run.run(strike_ns)
    }
}

impl Run<'_> {
    fn run(mut self, strike_ns: u64) -> Aftermath {
        if self.drill.every_ns > 0 {
            let n = self.world.n() as u64;
            // The sites begin at different times.
            (0..n).for_each(|site| {
                let begin = SETTLE_NS * 3 / 4 + site * self.drill.every_ns / n;
                self.world.alarm(begin, site);
            });
        }
        for after_ns in [0].iter().chain(&self.drill.again_ns) {
            let blow_ns = strike_ns + after_ns;
            self.world.alarm(blow_ns, BLOW);
            self.world.alarm(blow_ns + self.drill.lasts_ns, MEND);
        }
        // What was asked last has as long again.
        let end_ns = self.ends_ns + self.drill.watch_ns;
        while !self.is_over(end_ns) {
            match self.world.advance() {
                Some(Happened::Nothing | Happened::Ended(..)) => {}
                Some(Happened::Replied(replies)) => {
                    replies.iter().for_each(|reply| self.replied(reply))
                }
                Some(Happened::Alarm(BLOW)) => self.strike(),
                Some(Happened::Alarm(MEND)) => self.mend(),
                Some(Happened::Alarm(site)) => self.write(site as usize),
                None => break,
            }
        }
        self.aftermath(strike_ns)
    }

    fn is_over(&self, end_ns: u64) -> bool {
        let now_ns = self.world.now_ns();
        let answered = now_ns >= self.ends_ns && self.open.iter().all(BTreeMap::is_empty);
        answered || now_ns >= end_ns || self.world.violation().is_some()
    }

    /// A client of `site` writes, if its replica takes connections.
    fn write(&mut self, site: usize) {
        let now_ns = self.world.now_ns();
        if now_ns >= self.ends_ns {
            return;
        }
        self.world.alarm(now_ns + self.drill.every_ns, site as u64);
        if !self.world.refuses(site) {
            self.ask(site, 5);
        }
    }

    /// A client of `site` asks for a value of so many bytes to be written.
    fn ask(&mut self, site: usize, bytes: usize) {
        let sequence = self.next[site];
        self.next[site] += 1;
        self.open[site].insert(sequence, self.writes.len());
        let acked_below = self.open[site].keys().next().copied().unwrap_or(sequence);
        let key = format!("key{}", sequence % 16);
        let client = 1 + site as u64;
        let command = Command::session(
            client,
            sequence,
            acked_below,
            Op::put(key, vec![b'v'; bytes]),
        );
        self.writes.push(Write {
            site,
            asked_ns: self.world.now_ns(),
            answered_ns: None,
            failed: false,
        });
        let from = ClientHandle {
            connection: site as u64,
            request: sequence,
        };
        self.world.request(site, vec![(from, command)]);
    }

    fn replied(&mut self, reply: &Reply) {
        let site = reply.to.connection as usize;
        if let Some(write) = self.open[site].remove(&reply.to.request) {
            self.writes[write].answered_ns = Some(self.world.now_ns());
            let result = reply.outcome.result.as_ref();
            let written = matches!(result, Some(leasehold_wire::outcome::Result::Written(_)));
            self.writes[write].failed = !written;
        }
    }

    fn leader(&self) -> Option<ReplicaId> {
        let leads = |node: &usize| {
            let replica = self.world.replica(*node);
            replica.is_some_and(|replica| replica.leads_at().is_some())
        };
        let leader = (0..self.world.n()).find(leads)?;
        Some(ReplicaId(leader as u8))
    }

    fn strike(&mut self) {
        let Some((blow, whom)) = self.drill.blow else {
            return;
        };
        self.victim = whom.or(self.leader()).expect("somebody leads");
        let victim = self.victim.index();
        match blow {
            Blow::Kill | Blow::KillUnheard => self.world.crash(victim),
            Blow::LeaveAfter(dead) => self.world.crash(dead.index()),
            Blow::Leave => self.world.leave(victim, Some(self.drill.lasts_ns)),
            Blow::Pause => self.world.pause(victim, self.drill.lasts_ns),
            Blow::Cut | Blow::Mute | Blow::Deaf => self.cut(blow, true),
            Blow::Flood(values, bytes) => {
                self.cut(Blow::Deaf, true);
                (0..values).for_each(|_| self.ask(victim, bytes));
            }
            Blow::Move(to) => self.world.operate(victim, Operator::Transfer(to)),
        }
    }

    fn cut(&mut self, blow: Blow, cut: bool) {
        let victim = self.victim.index();
        for other in (0..self.world.n()).filter(|other| *other != victim) {
            if blow != Blow::Deaf {
                self.world.set_cut(victim, other, cut);
            }
            if blow != Blow::Mute {
                self.world.set_cut(other, victim, cut);
            }
        }
    }

    fn mend(&mut self) {
        match self.drill.blow {
            Some((Blow::LeaveAfter(_), _)) => self.world.leave(self.victim.index(), None),
            Some((Blow::KillUnheard, _)) if self.world.replica(self.victim.index()).is_some() => {
                let leader = self.leader().expect("somebody leads");
                self.world
                    .set_cut(leader.index(), self.victim.index(), true);
            }
            Some((Blow::KillUnheard, _)) => {
                self.world.start(self.victim.index());
                self.world.alarm(self.world.now_ns() + 900 * MS, MEND);
            }
            Some((Blow::Flood(..), _)) => self.world.crash(self.victim.index()),
            Some((Blow::Kill, _)) => self.world.start(self.victim.index()),
            Some((blow @ (Blow::Cut | Blow::Mute | Blow::Deaf), _)) => self.cut(blow, false),
            _ => {}
        }
    }

    fn aftermath(self, struck_ns: u64) -> Aftermath {
        let notes = &self.world.notes;
        let noted = |wanted: fn(&Event) -> bool| {
            let notes = notes.iter().filter(move |(.., note)| wanted(note));
            notes.map(|(at, replica, _)| (*at, *replica)).collect()
        };
        let mut newest = (ConfigId(0), ReplicaSet::EMPTY);
        let excluded = notes.iter().filter_map(|(at, _, note)| {
            let Event::Configured { id, excluded, .. } = note else {
                return None;
            };
            if *id <= newest.0 {
                return None; // another replica has told of it
            }
            let before = std::mem::replace(&mut newest, (*id, *excluded));
            (before.1 != *excluded).then_some((*at, *excluded))
        });
        Aftermath {
            struck_ns,
            victim: self.victim,
            led: noted(|note| matches!(note, Event::Leading(_))),
            campaigned: noted(|note| matches!(note, Event::Campaigning(_))),
            left: noted(|note| matches!(note, Event::Left)),
            excluded: excluded.collect(),
            violation: self.world.violation().map(|seen| format!("{seen:?}")),
            writes: self.writes,
        }
    }
}
