//! Tests of a round without replicas: the operations of the clients are executed on a store that is
//! correct by construction. The judge must accept the answers of this store, and must refuse a
//! falsified record.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_wire::command::Op;
use leasehold_wire::{Entry, Outcome, Version};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::chooser::{Chooser, KeyGroups, KeyPool, group_of};
use super::falsification::{Falsification, falsify};
use super::judge::judge;
use super::load::versions;
use super::record::{CompletedOperation, OperationOutcome, RoundRecord};
use super::request::OperationRequest;

/// Store that executes one operation after the other.
#[derive(Default)]
struct Store {
    keys: BTreeMap<Bytes, (Bytes, Version)>,
    slot: u64,
}

impl Store {
    fn execute(&mut self, op: &Op) -> Outcome {
        self.slot += 1;
        let version = Version {
            slot: self.slot,
            index: 0,
        };
        match op {
            Op::Get(get) => match self.keys.get(&get.key) {
                Some((value, version)) => Outcome::value(value.clone(), *version),
                None => Outcome::missing(),
            },
            Op::Put(put) => self.write(&put.key, &put.value, version),
            Op::Delete(delete) => {
                self.keys.remove(&delete.key);
                Outcome::written(version)
            }
            Op::Cas(cas) => {
                let actual = self.keys.get(&cas.key).map(|(_, version)| *version);
                if actual == cas.expected {
                    self.write(&cas.key, &cas.value, version)
                } else {
                    Outcome::mismatch(actual)
                }
            }
            Op::MultiGet(get) => self.found(get.keys.iter()),
            Op::MultiPut(put) => {
                for entry in &put.entries {
                    self.write(&entry.key, &entry.value, version);
                }
                Outcome::written(version)
            }
            Op::Scan(scan) => {
                let range = scan.from.clone()..scan.to.clone();
                let keys: Vec<Bytes> = self.keys.range(range).map(|(key, _)| key.clone()).collect();
                self.found(keys.iter())
            }
            Op::PutFields(_) => unreachable!("clients do not ask for it"),
        }
    }

    fn write(&mut self, key: &Bytes, value: &Bytes, version: Version) -> Outcome {
        self.keys.insert(key.clone(), (value.clone(), version));
        Outcome::written(version)
    }

    fn found<'a>(&self, keys: impl Iterator<Item = &'a Bytes>) -> Outcome {
        let entry = |key: &Bytes| {
            let (value, version) = self.keys.get(key)?;
            Some(Entry {
                key: key.clone(),
                value: value.clone(),
                version: Some(*version),
            })
        };
        Outcome::entries(keys.filter_map(entry).collect())
    }
}

/// Eight clients with concurrent operations. Some operations are never answered. Of the unanswered
/// operations, some are executed immediately, some much later, and some never.
struct World {
    store: Store,
    record: RoundRecord,
    groups: KeyGroups,
    choosers: Vec<Chooser>,
    rng: Pcg64Mcg,
    late: Vec<OperationRequest>,
    now_ns: u64,
}

const CLIENTS: u32 = 8;

impl World {
    fn new(seed: u64) -> World {
        let pool = |client| match client % 4 {
            3 => KeyPool::Grouped,
            _ => KeyPool::Single,
        };
        let chooser = |client| Chooser::new(pool(client), client, seed);
        World {
            store: Store::default(),
            record: RoundRecord::new(1, 0),
            groups: KeyGroups::new(2, 60),
            choosers: (0..CLIENTS).map(chooser).collect(),
            rng: Pcg64Mcg::seed_from_u64(seed),
            late: Vec::new(),
            now_ns: 0,
        }
    }

    /// Lets each client begin an operation. The operations are then executed in random order, and
    /// end.
    fn step(&mut self) {
        let mut requests: Vec<(u32, u64, OperationRequest)> = Vec::new();
        for client in 0..CLIENTS {
            self.now_ns += self.rng.random_range(1..50);
            let request = self.choosers[client as usize].next(&mut self.groups);
            requests.push((client, self.now_ns, request));
        }
        while !requests.is_empty() {
            if self.rng.random_bool(0.02) && !self.late.is_empty() {
                let late = self.late.swap_remove(0);
                self.store.execute(&late.op());
            }
            let any = self.rng.random_range(0..requests.len());
            let (client, began_ns, request) = requests.swap_remove(any);
            let end = self.end(client, &request);
            self.now_ns += self.rng.random_range(1..50);
            self.record.add(&CompletedOperation {
                client,
                site: 0,
                roams: false,
                kind: request.kind,
                began_ns,
                now_ns: self.now_ns,
                end,
            });
        }
    }

    fn end(&mut self, client: u32, request: &OperationRequest) -> OperationOutcome {
        if self.rng.random_bool(0.03) {
            match self.rng.random_range(0..3) {
                0 => drop(self.store.execute(&request.op())),
                1 => self.late.push(request.clone()),
                _ => {}
            }
            self.choosers[client as usize].forget(&request.keys);
            return OperationOutcome::Unknown(request.possible_effects());
        }
        let outcome = self.store.execute(&request.op());
        let answer = outcome.result.expect("an answer");
        let parts = request.effects_of(&answer).expect("a right answer");
        self.choosers[client as usize].learn(&parts, &versions(request, &answer));
        OperationOutcome::Answered(parts)
    }
}

fn world(seed: u64) -> RoundRecord {
    let mut world = World::new(seed);
    (0..1200).for_each(|_| world.step());
    world.record
}

#[test]
fn what_a_right_store_answers_is_accepted() {
    for seed in 0..3 {
        let record = world(seed);
        let judged = judge(&record);
        assert_eq!(judged.violations, [""; 0]);
        assert_eq!(judged.undecided, [""; 0]);
        assert!(judged.operations > 7000 && judged.groups > 20, "{judged:?}");
        assert!(record.counts.values().all(|counts| counts.answered > 0));
        assert!(record.total().unknown > 100);
    }
}

#[test]
fn a_stale_read_and_a_lost_write_are_noticed() {
    for falsification in [Falsification::StaleRead, Falsification::LostWrite] {
        for seed in 0..3 {
            let mut record = world(seed);
            assert!(falsify(falsification, &mut record));
            let judged = judge(&record);
            assert_eq!(judged.violations.len(), 1, "{falsification:?}, seed {seed}");
            assert!(judged.violations[0].contains("key "), "{judged:?}");
        }
    }
}

#[test]
fn an_acknowledged_write_that_the_history_lacks_is_noticed_when_it_was_read() {
    let record = world(1);
    let events = record.history.events();
    let read = events.iter().find_map(|event| match event.action {
        HistoryAction::Read { value } => Some((event.key, value?)),
        _ => None,
    });
    let (key, value) = read.expect("something was found");
    let wrote = |action| match action {
        HistoryAction::Write { value } => Some(value),
        HistoryAction::Cas { new, .. } => Some(new),
        _ => None,
    };
    let others = events
        .iter()
        .filter(|event| event.key != key || wrote(event.action) != Some(value));
    let lacking = RoundRecord {
        history: others.copied().collect(),
        ..RoundRecord::new(1, 0)
    };
    assert_eq!(judge(&lacking).violations.len(), 1);
}

#[test]
fn half_of_a_write_of_several_keys_is_noticed_in_a_group() {
    let mut record = world(2);
    let torn = record.groups.values_mut().any(|transactions| {
        let written = transactions.iter().find_map(|one| match one.parts[..] {
            [
                (a, HistoryAction::Write { value }),
                (b, HistoryAction::Write { .. }),
                ..,
            ] if one.return_ns.is_some() => Some((a, value, b, one.return_ns?)),
            _ => None,
        });
        let Some((a, value, b, end_ns)) = written else {
            return false;
        };
        // A read right after the write finds one half of it, and not the other.
        let mut torn = transactions[0].clone();
        torn.parts = vec![
            (a, HistoryAction::Read { value: Some(value) }),
            (
                b,
                HistoryAction::Read {
                    value: Some(ValueId(u64::MAX)),
                },
            ),
        ];
        torn.invoke_ns = end_ns;
        torn.return_ns = Some(end_ns + 1);
        let group = group_of(a);
        transactions.push(torn);
        group.is_some()
    });
    assert!(torn, "a group has a write of two keys");
    assert_eq!(judge(&record).violations.len(), 1);
}
