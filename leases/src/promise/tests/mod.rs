//! Directed and random schedules for the promise engine.
//!
//! A [`World`] contains a few replicas with clocks of their own, a log of configurations that each
//! replica executes at its own pace, and messages that are delivered only when a test delivers
//! them. Each directed test is named after a rule. It is a schedule that makes the engine fail if
//! this rule is disabled.

mod barrier;
mod configuration;
#[cfg(feature = "mutants")]
mod mutants;
mod order;
mod random;
mod restart;
mod timing;

use std::time::Duration;

use super::{Grantor, Holder, LeaseMessage, NoPermit, Permit, PollContext, Promise};
use crate::config::{ConfigChange, Configs, LeaseParams};
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, ReplicaId, ReplicaSet, Slot};

/// The grantor of most tests. The holder is `H`.
const G: ReplicaId = ReplicaId(0);
const H: ReplicaId = ReplicaId(1);
const KEY: &[u8] = b"key";

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn set(ids: &[u8]) -> ReplicaSet {
    ids.iter().copied().map(ReplicaId).collect()
}

/// A clock that starts with any reading and runs slightly fast or slow.
#[derive(Clone, Copy)]
struct Clock {
    epoch_ns: u64,
    /// Excess of the clock's rate over that of true time, in parts per million.
    rate_ppm: i64,
}

impl Clock {
    const MILLION: i128 = 1_000_000;

    fn read(self, true_ns: u64) -> Time {
        let rate = Self::MILLION + i128::from(self.rate_ppm);
        let elapsed = i128::from(true_ns) * rate / Self::MILLION;
        Time(self.epoch_ns + elapsed as u64)
    }

    /// Returns the true time, in ns, at which this clock reads `reading`.
    fn true_ns(self, reading: Time) -> u64 {
        let rate = Self::MILLION + i128::from(self.rate_ppm);
        let elapsed = i128::from(reading.0) - i128::from(self.epoch_ns);
        (elapsed * Self::MILLION / rate) as u64
    }
}

/// A message with the incarnations of its sender and its receiver, as every message between
/// replicas has.
#[derive(Clone, Debug)]
struct Envelope {
    from: (ReplicaId, Incarnation),
    to: (ReplicaId, Incarnation),
    message: LeaseMessage,
}

impl Envelope {
    fn promise(&self) -> Promise {
        match &self.message {
            LeaseMessage::Promise(promise) => *promise,
            other => panic!("not a promise: {other:?}"),
        }
    }
}

struct Party {
    clock: Clock,
    incarnation: Incarnation,
    /// The latest incarnation of each other replica that this replica knows.
    met: Vec<Incarnation>,
    grantor: Grantor,
    holder: Holder,
    configs: Configs,
    /// Restart wait that survives a restart; `None` before it was first made durable.
    durable_wait: Option<Duration>,
    highest_accepted: Slot,
    executed: Slot,
    may_promise: bool,
}

struct World {
    true_ns: u64,
    changes: Vec<ConfigChange>,
    parties: Vec<Party>,
}

impl World {
    /// Creates `n` replicas that know each other's incarnations and have perfect clocks. No
    /// configuration is agreed yet.
    fn new(n: usize) -> World {
        World::with_rates(&vec![0; n])
    }

    fn with_rates(rates_ppm: &[i64]) -> World {
        let n = rates_ppm.len();
        let party = |index: usize| {
            let id = ReplicaId(index as u8);
            let clock = Clock {
                epoch_ns: 1_000_000_007 * (index as u64 + 1),
                rate_ppm: rates_ppm[index],
            };
            let now = clock.read(0);
            let mut party = Party {
                clock,
                incarnation: Incarnation(1),
                met: vec![Incarnation(1); n],
                grantor: Grantor::new(id, n, now, None),
                holder: Holder::new(id, n),
                configs: Configs::new(n),
                durable_wait: None,
                highest_accepted: Slot::ZERO,
                executed: Slot::ZERO,
                may_promise: true,
            };
            for other in ReplicaSet::all(n).minus(ReplicaSet::one(id)).iter() {
                party
                    .grantor
                    .observe_incarnation(now, other, Incarnation(1));
                party.holder.observe_incarnation(other, Incarnation(1));
            }
            party
        };
        World {
            true_ns: 0,
            changes: Vec::new(),
            parties: (0..n).map(party).collect(),
        }
    }

    /// Creates a world as [`new`](Self::new) does, in which all replicas know a configuration under
    /// which `defaults` hold every key.
    fn held_by(n: usize, defaults: ReplicaSet) -> World {
        let mut world = World::new(n);
        world.agree_all(ConfigChange::everywhere(defaults));
        world
    }

    fn party(&mut self, id: ReplicaId) -> &mut Party {
        &mut self.parties[id.index()]
    }

    fn now(&self, id: ReplicaId) -> Time {
        self.parties[id.index()].clock.read(self.true_ns)
    }

    /// Lets true time pass.
    fn pass(&mut self, span: Duration) {
        self.true_ns += span.as_nanos() as u64;
    }

    /// Appends a configuration to the log. No replica has executed it yet.
    fn agree(&mut self, change: ConfigChange) -> ConfigId {
        self.changes.push(change);
        ConfigId(self.changes.len() as u64)
    }

    fn agree_all(&mut self, change: ConfigChange) -> ConfigId {
        let id = self.agree(change);
        for index in 0..self.parties.len() {
            self.learn(ReplicaId(index as u8), id);
        }
        id
    }

    /// Lets `id` execute the configuration log up to `upto`.
    fn learn(&mut self, id: ReplicaId, upto: ConfigId) {
        let changes = self.changes.clone();
        let configs = &mut self.party(id).configs;
        for slot in configs.newest().0 + 1..=upto.0 {
            configs.apply(ConfigId(slot), &changes[slot as usize - 1]);
        }
    }

    /// Makes durable the restart wait that the grantor `id` requires, and polls the grantor.
    /// Returns its messages, and whether a grant has ended.
    fn poll(&mut self, id: ReplicaId) -> (Vec<Envelope>, bool) {
        let now = self.now(id);
        let party = self.party(id);
        let params = *party.configs.params(party.configs.newest());
        if let Some(wait) = party.grantor.wait_to_persist(&params) {
            party.durable_wait = Some(wait);
            party.grantor.wait_persisted(wait);
        }
        let mut out = Vec::new();
        let context = PollContext {
            configs: &party.configs,
            highest_accepted: party.highest_accepted,
            may_promise: party.may_promise,
            quiet_after: Duration::MAX,
        };
        let ended = party.grantor.poll(now, &context, &mut out);
        let sealed = out.into_iter().map(|(to, message)| Envelope {
            from: (id, party.incarnation),
            to: (to, party.met[to.index()]),
            message,
        });
        (sealed.collect(), ended)
    }

    /// Polls the grantor `from`. Returns the grantor's message to `to`. The grantor's other
    /// messages are lost.
    fn send(&mut self, from: ReplicaId, to: ReplicaId) -> Envelope {
        let sent = self.poll(from).0.into_iter().find(|e| e.to.0 == to);
        sent.expect("something is due")
    }

    /// Delivers a message, and returns the answer. The incarnations are checked before the engine
    /// handles the message, as a replica does.
    fn deliver(&mut self, envelope: &Envelope) -> Option<Envelope> {
        let (from, to) = (envelope.from, envelope.to);
        self.meet(to.0, from.0, from.1);
        let now = self.now(to.0);
        let party = self.party(to.0);
        if from.1 != party.met[from.0.index()] || to.1 != party.incarnation {
            return None;
        }
        let known = party.configs.newest();
        party.grantor.handle(now, from.0, &envelope.message);
        let answer = party.holder.handle(now, from.0, &envelope.message, known)?;
        Some(Envelope {
            from: (to.0, party.incarnation),
            to: (from.0, from.1),
            message: answer,
        })
    }

    /// Lets `id` learn the incarnation of `other`.
    fn meet(&mut self, id: ReplicaId, other: ReplicaId, incarnation: Incarnation) {
        let now = self.now(id);
        let party = self.party(id);
        if incarnation > party.met[other.index()] {
            party.met[other.index()] = incarnation;
            party.grantor.observe_incarnation(now, other, incarnation);
            party.holder.observe_incarnation(other, incarnation);
        }
    }

    /// Exchanges guard, ack and promise without delay. Returns the ack of the promise.
    fn establish(&mut self, from: ReplicaId, to: ReplicaId) -> Envelope {
        let guard = self.send(from, to);
        let ack = self.deliver(&guard).expect("the guard is taken");
        self.deliver(&ack);
        let promise = self.send(from, to);
        self.deliver(&promise).expect("the promise is taken")
    }

    /// Stops and starts a replica, which keeps its logs and its durable state.
    fn restart(&mut self, id: ReplicaId) {
        let n = self.parties.len();
        let now = self.now(id);
        let party = self.party(id);
        party.incarnation.0 += 1;
        party.grantor = Grantor::new(id, n, now, party.durable_wait);
        party.holder = Holder::new(id, n);
        party.met = vec![Incarnation(0); n];
    }

    /// Lets all replicas learn each other's current incarnations.
    fn meet_all(&mut self) {
        for id in 0..self.parties.len() as u8 {
            for other in (0..self.parties.len() as u8).filter(|other| *other != id) {
                let incarnation = self.party(ReplicaId(other)).incarnation;
                self.meet(ReplicaId(id), ReplicaId(other), incarnation);
            }
        }
    }

    /// Accepts a batch at the replica `id` in `slot`. The batch has one write of `key`. Returns the
    /// tag of the acceptance.
    fn accept(&mut self, id: ReplicaId, slot: u64, key: &[u8]) -> ReplicaSet {
        let party = self.party(id);
        party.highest_accepted = party.highest_accepted.max(Slot(slot));
        self.tag(id, key)
    }

    fn tag(&self, id: ReplicaId, key: &[u8]) -> ReplicaSet {
        let party = &self.parties[id.index()];
        let live = party.grantor.live(self.now(id));
        live.tag([party.configs.view(key)].into_iter())
    }

    fn permit(&self, id: ReplicaId, key: &[u8]) -> Result<Permit, NoPermit> {
        let now = self.now(id);
        let party = &self.parties[id.index()];
        let view = party.configs.view(key);
        let newest = party.configs.newest();
        party.holder.permit(now, view, newest, party.executed)
    }

    /// Returns the configuration of each promise of `from` to `to`, and the true time, in ns, at
    /// which the promise ends.
    fn believed(&self, from: ReplicaId, to: ReplicaId) -> Vec<(ConfigId, u64)> {
        let party = &self.parties[to.index()];
        let now = self.now(to);
        let records = party.holder.promised_by(from);
        let alive = records.filter(|(_, expires)| now < *expires);
        alive.map(|(c, t)| (c, party.clock.true_ns(t))).collect()
    }

    /// Returns the configuration of each grant of `from` to `to`, and the true time, in ns, until
    /// which the grant is kept.
    fn kept(&self, from: ReplicaId, to: ReplicaId) -> Vec<(ConfigId, u64)> {
        let party = &self.parties[from.index()];
        let grants = party.grantor.granted_to(to);
        grants.map(|(c, t)| (c, party.clock.true_ns(t))).collect()
    }

    /// Checks that the grants of `from` end later than the promises of `from` on which `to` relies
    /// (the first rule of time).
    fn check_contained(&self, from: ReplicaId, to: ReplicaId) {
        let waits = self.parties[from.index()].restart_wait_ends(self.true_ns);
        let kept = self.kept(from, to);
        for (config, end) in self.believed(from, to) {
            let grant = kept.iter().find(|(c, _)| *c == config);
            let outlived = grant.map_or(0, |(_, until)| *until).max(waits);
            // Clocks read whole nanoseconds.
            assert!(
                end <= outlived + 2,
                "{to:?} believes {from:?} under {config:?} until {end}, granted until {outlived}"
            );
        }
    }
}

impl Party {
    /// Returns the true time, in ns, at which the restart wait ends; 0 if the replica is not in a
    /// restart wait.
    fn restart_wait_ends(&self, true_ns: u64) -> u64 {
        let now = self.clock.read(true_ns);
        if !self.grantor.in_restart_wait(now) {
            return 0;
        }
        // The end of the wait cannot be read, so find it by bisection.
        let (mut low, mut high) = (now.0, now.0 + 1_000_000_000_000);
        while low + 1 < high {
            let middle = low.midpoint(high);
            if self.grantor.in_restart_wait(Time(middle)) {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.clock.true_ns(Time(high))
    }
}

/// Returns the default durations with a lease of 500 ms instead of the paper's 2 s, and more
/// frequent renewals.
fn short_lease() -> LeaseParams {
    LeaseParams {
        t_lease: ms(500),
        renew: ms(100),
        ..LeaseParams::default()
    }
}
