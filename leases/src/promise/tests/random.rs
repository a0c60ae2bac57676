//! Random schedules. Messages are dropped, repeated, reordered and delayed. Clocks run at the ends
//! of the bound. Replicas restart and give back promises, and configurations of all kinds are made.
//! After each step, two invariants are checked for every pair of replicas:
//!
//! - *containment*: in true time, under each configuration, the promises on which a holder relies
//!   end before the grants that its grantor keeps;
//! - *barrier*: if a grantor accepted a slot with a tag that omits a holder of the slot's key, and
//!   the holder may read under this grantor, then the slot is not above the barrier of the holder's
//!   chain.
//!
//! In addition, forgetting never changes which reads are permitted.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::config::{Key, KeyRange, RangeChange};

const REPLICAS: usize = 3;
const STEPS: usize = 1500;
const SEEDS: u64 = 500;
const KEYS: [&[u8]; 3] = [b"a", b"b", b"c"];
const CHANGES_MAX: usize = 10;

/// An accepted slot, and the replicas that are missing from the tag of at least one reply about
/// this slot.
struct Accepted {
    slot: Slot,
    key: usize,
    left_out: ReplicaSet,
}

struct Schedule {
    random: Pcg64,
    world: World,
    network: Vec<Envelope>,
    accepted: Vec<Vec<Accepted>>,
    /// Number of times that one invariant was actually tested. The next fields are such numbers for
    /// other invariants. These numbers ensure that the test cannot pass without testing an
    /// invariant.
    believed: u64,
    barriers: u64,
    forgotten: u64,
    forgotten_living: u64,
}

impl Schedule {
    fn new(seed: u64) -> Schedule {
        let mut random = Pcg64::seed_from_u64(seed);
        let rho = i64::from(LeaseParams::default().clock.rho_ppm);
        let rates: Vec<i64> = (0..REPLICAS)
            .map(|_| match random.random_range(0..4) {
                0 => -rho,
                1 => rho,
                _ => random.random_range(-rho..=rho),
            })
            .collect();
        let mut world = World::with_rates(&rates);
        world.agree_all(ConfigChange::everywhere(ReplicaSet::all(REPLICAS)));
        Schedule {
            random,
            world,
            network: Vec::new(),
            accepted: (0..REPLICAS).map(|_| Vec::new()).collect(),
            believed: 0,
            barriers: 0,
            forgotten: 0,
            forgotten_living: 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.random_range(0..end)
    }

    fn someone(&mut self) -> ReplicaId {
        ReplicaId(self.below(REPLICAS) as u8)
    }

    fn some_set(&mut self) -> ReplicaSet {
        ReplicaSet(self.below(1 << REPLICAS) as u64)
    }

    fn step(&mut self) {
        match self.below(1000) {
            0..200 => {
                let span = self.below(60) as u64;
                self.world.pass(ms(span));
            }
            200..210 => {
                let span = self.below(3000) as u64;
                self.world.pass(ms(span));
            }
            210..420 => {
                let who = self.someone();
                let sent = self.world.poll(who).0;
                self.network.extend(sent);
            }
            420..780 => self.deliver(),
            780..800 => {
                // One of the oldest messages is lost.
                if !self.network.is_empty() {
                    self.network.swap_remove(0);
                }
            }
            800..870 => self.accept(),
            870..920 => self.reply(),
            920..930 => self.truncate(),
            930..940 => self.reconfigure(),
            940..960 => self.learn(),
            960..970 => self.forget(),
            970..975 => self.execute(),
            975..990 => self.world.meet_all(),
            990..993 => {
                let who = self.someone();
                self.world.restart(who);
            }
            993..995 => self.relinquish(),
            _ => {
                let who = self.someone();
                self.world.party(who).holder.accept_again();
            }
        }
    }

    fn deliver(&mut self) {
        if self.network.is_empty() {
            return;
        }
        // Messages are mostly delivered in order. Sometimes a message overtakes all others.
        let any = self.below(5) == 0;
        let index = if any {
            self.below(self.network.len())
        } else {
            0
        };
        let repeat = self.below(10) == 0;
        let envelope = if repeat {
            self.network[index].clone()
        } else {
            self.network.remove(index)
        };
        if let Some(answer) = self.world.deliver(&envelope) {
            self.network.push(answer);
        }
    }

    /// Accepts a slot while its entry is still being written to disk: `highest_accepted` includes
    /// the slot, but there is no reply yet.
    fn accept(&mut self) {
        let (who, key) = (self.someone(), self.below(KEYS.len()));
        let party = self.world.party(who);
        let slot = Slot(party.highest_accepted.0.saturating_sub(2));
        let slot = Slot(slot.0 + 1 + self.random.random_range(0..5));
        let party = self.world.party(who);
        party.highest_accepted = party.highest_accepted.max(slot);
        self.accepted[who.index()].retain(|entry| entry.slot != slot);
        self.accepted[who.index()].push(Accepted {
            slot,
            key,
            left_out: ReplicaSet::EMPTY,
        });
        if self.below(2) == 0 {
            self.tag(who, self.accepted[who.index()].len() - 1);
        }
    }

    /// Replies to an acceptance, for the first time or again.
    fn reply(&mut self) {
        let who = self.someone();
        let count = self.accepted[who.index()].len();
        if count > 0 {
            let index = count - 1 - self.below(count.min(4));
            self.tag(who, index);
        }
    }

    fn tag(&mut self, who: ReplicaId, index: usize) {
        let entry = &mut self.accepted[who.index()][index];
        let tag = self.world.tag(who, KEYS[entry.key]);
        let left_out = ReplicaSet::all(REPLICAS).minus(tag);
        entry.left_out = entry.left_out.union(left_out);
    }

    /// Drops the dead entries of an older ballot, as a new leader's log does.
    fn truncate(&mut self) {
        let who = self.someone();
        let party = self.world.party(who);
        let end = Slot(party.highest_accepted.0.saturating_sub(3));
        party.highest_accepted = party.highest_accepted.min(end);
        self.accepted[who.index()].retain(|entry| entry.slot <= end);
    }

    /// Returns changes of ranges: every key, or the keys before or after some key, get other
    /// holders or are cleared.
    fn some_ranges(&mut self) -> Vec<RangeChange> {
        let change = |random: &mut Schedule| {
            let key = Key::copy_from_slice(KEYS[random.below(KEYS.len())]);
            let range = match random.below(3) {
                0 => KeyRange::new(Key::new(), Some(key)),
                1 => KeyRange::new(key, None),
                _ => None,
            };
            RangeChange {
                range: range.unwrap_or_else(KeyRange::all),
                strategy: None,
                defaults: (random.below(2) == 0).then(|| random.some_set()),
                clear: random.below(4) == 0,
            }
        };
        (0..self.below(3)).map(|_| change(self)).collect()
    }

    fn reconfigure(&mut self) {
        if self.world.changes.len() >= CHANGES_MAX {
            return;
        }
        let mut change = ConfigChange {
            ranges: self.some_ranges(),
            ..Default::default()
        };
        for key in KEYS {
            if self.below(2) == 0 {
                let keys = vec![Key::copy_from_slice(key)];
                change.keys.push((self.some_set(), keys));
            }
        }
        if self.below(3) == 0 {
            let suspect = self.someone();
            let excluded = [ReplicaSet::EMPTY, ReplicaSet::one(suspect)];
            change.excluded = Some(excluded[self.below(2)]);
        }
        if self.below(2) == 0 {
            let long = LeaseParams {
                t_guard: ms(3000),
                t0_cap: ms(8000),
                ..LeaseParams::default()
            };
            let params = [short_lease(), LeaseParams::default(), long];
            change.params = Some(params[self.below(3)]);
        }
        self.world.agree(change);
    }

    fn learn(&mut self) {
        let who = self.someone();
        let next = self.world.party(who).configs.newest().0 + 1;
        if next <= self.world.changes.len() as u64 {
            self.world.learn(who, ConfigId(next));
        }
    }

    /// Forgets contents of configurations, except those under which a grant is in force or a
    /// promise is needed.
    fn forget(&mut self) {
        let who = self.someone();
        let now = self.world.now(who);
        let party = self.world.party(who);
        let permits = |party: &Party| {
            let keys = KEYS.map(|key| {
                let (view, newest) = (party.configs.view(key), party.configs.newest());
                party.holder.permit(now, view, newest, party.executed)
            });
            let every = party.holder.permit_all(now, &party.configs, party.executed);
            (keys, every)
        };
        // Numbers of remembered records: (of all chains, of live chains). If no promise of a
        // grantor is unexpired, all its records may be dropped.
        let remembered = |party: &Party| -> [u64; 2] {
            let lives = |peer: &ReplicaId| party.holder.promised_by(*peer).any(|(_, t)| now < t);
            let ended = |peer| party.holder.promised_by(peer).filter(|(_, t)| *t <= now);
            let count = |peer| ended(peer).count() as u64;
            let peers = || (0..REPLICAS as u8).map(ReplicaId);
            let living = peers().filter(lives).map(count).sum();
            [peers().map(count).sum(), living]
        };
        // Complete the pass over keys that are included twice in counts, so that the holders of
        // every key are exact.
        party.configs.forget_before(ConfigId(0));
        let (before, ended) = (permits(party), remembered(party));
        party.holder.forget(now, party.executed);
        let left = remembered(party);
        self.forgotten += ended[0] - left[0];
        self.forgotten_living += ended[1] - left[1];
        assert_eq!(permits(party), before, "promises were still of use");
        let needed = party.grantor.oldest_config(now);
        let believed = party.holder.oldest_config(now);
        let newest = party.configs.newest();
        let oldest = needed.into_iter().chain(believed).min().unwrap_or(newest);
        party.configs.forget_before(oldest);
        assert_eq!(permits(party), before, "contents were still of use");
    }

    fn execute(&mut self) {
        let who = self.someone();
        let accepted = self.world.parties.iter().map(|p| p.highest_accepted.0);
        let highest = accepted.max().unwrap_or_default();
        let slot = Slot(self.random.random_range(0..=highest));
        let party = self.world.party(who);
        party.executed = party.executed.max(slot);
    }

    fn relinquish(&mut self) {
        let who = self.someone();
        let party = self.world.party(who);
        for (to, message) in party.holder.relinquish() {
            self.network.push(Envelope {
                from: (who, party.incarnation),
                to: (to, party.met[to.index()]),
                message,
            });
        }
    }

    fn check(&mut self) {
        for party in &self.world.parties {
            party.grantor.check();
            party.holder.check();
            party.configs.check();
        }
        for grantor in (0..REPLICAS as u8).map(ReplicaId) {
            for holder in (0..REPLICAS as u8).map(ReplicaId) {
                if grantor != holder {
                    self.world.check_contained(grantor, holder);
                    self.believed += u64::from(!self.world.believed(grantor, holder).is_empty());
                    self.check_barrier(grantor, holder);
                }
            }
        }
    }

    fn check_barrier(&mut self, grantor: ReplicaId, holder: ReplicaId) {
        let now = self.world.now(holder);
        let party = &self.world.parties[holder.index()];
        for (index, key) in KEYS.iter().enumerate() {
            let view = party.configs.view(key);
            let Some((_, barrier)) = party.holder.covered_by(now, grantor, view) else {
                continue;
            };
            let unasked = self.accepted[grantor.index()]
                .iter()
                .filter(|entry| entry.key == index && entry.left_out.contains(holder));
            for entry in unasked {
                self.barriers += 1;
                assert!(
                    entry.slot <= barrier,
                    "{holder:?} reads {key:?} under {grantor:?} from {barrier:?} on, \
                     and was not asked about {:?}",
                    entry.slot
                );
            }
        }
    }
}

#[test]
fn promises_are_contained_and_barriers_cover_what_was_not_asked() {
    let (mut believed, mut barriers) = (0, 0);
    let (mut forgotten, mut living) = (0, 0);
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut schedule = Schedule::new(seed);
            for _ in 0..STEPS {
                schedule.step();
                schedule.check();
            }
            schedule
        });
        let schedule = run.unwrap_or_else(|_| panic!("seed {seed}"));
        believed += schedule.believed;
        barriers += schedule.barriers;
        forgotten += schedule.forgotten;
        living += schedule.forgotten_living;
    }
    let pairs = SEEDS * STEPS as u64 * (REPLICAS * (REPLICAS - 1)) as u64;
    assert!(believed > pairs / 10, "believed in {believed} of {pairs}");
    assert!(barriers > pairs / 10, "only {barriers} barriers mattered");
    assert!(forgotten > 2 * SEEDS, "only {forgotten} were forgotten");
    assert!(living > 100, "only {living} were, of chains that live");
}

/// Returns any message that a peer could send, correct or not.
fn any_message(random: &mut Pcg64) -> LeaseMessage {
    let number = |random: &mut Pcg64| match random.random_range(0..4) {
        0 => random.random_range(0..=1 << 56),
        1 => 0,
        _ => random.random_range(0..20),
    };
    let sequence = number(random);
    let known = ConfigId(number(random));
    match random.random_range(0..5) {
        0 => LeaseMessage::Guard { sequence },
        1 => LeaseMessage::GuardAck { sequence, known },
        2 => LeaseMessage::PromiseAck { sequence, known },
        3 => LeaseMessage::Relinquish { up_to: sequence },
        _ => LeaseMessage::Promise(Promise {
            sequence,
            base: number(random),
            t0: Duration::from_nanos(number(random)),
            t_guard: Duration::from_nanos(number(random) << 6),
            t_lease: Duration::from_nanos(number(random)),
            config: known,
            highest_accepted: Slot(number(random)),
        }),
    }
}

/// The invariants concern only this replica's own state, so no message from a peer violates one.
#[test]
fn whatever_a_peer_sends_trips_no_assertion() {
    let mut taken = 0u64;
    for seed in 0..300 {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut w = World::held_by(3, set(&[0, 1, 2]));
        for _ in 0..300 {
            let message = any_message(&mut random);
            let from = ReplicaId(random.random_range(1..3));
            let now = w.now(G);
            let party = w.party(G);
            let known = party.configs.newest();
            let ended = party.grantor.handle(now, from, &message);
            let answer = party.holder.handle(now, from, &message, known);
            taken += u64::from(ended) + u64::from(answer.is_some());
            match random.random_range(0..40) {
                0 => drop(party.holder.relinquish()),
                1 => party.holder.accept_again(),
                2 => drop(w.agree_all(ConfigChange::default())),
                3 => w.pass(ms(random.random_range(0..3000))),
                _ => drop(w.poll(G)),
            }
            let party = w.party(G);
            party.holder.forget(now, Slot(5));
            party.grantor.check();
            party.holder.check();
        }
    }
    assert!(taken > 1000, "only {taken} messages changed anything");
}
