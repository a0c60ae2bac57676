//! Tests of a round without replicas: the operations of the clients are executed on a store that is
//! correct by construction. The judge must accept the answers of this store, and must refuse a
//! falsified record.

mod store;

use leasehold_histories::history::{HistoryAction, ValueId};
use leasehold_wire::TxnResult;
use leasehold_wire::outcome::Result as Answer;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::chooser::{Chooser, KeyGroups, KeyPool};
use super::falsification::{Falsification, falsify};
use super::judge::judge;
use super::keys::{COUNTERS, LISTS, group_of};
use super::load::versions;
use super::record::{CompletedOperation, OperationOutcome, RoundRecord};
use super::request::{OperationKind, OperationRequest};
use store::Store;

/// Eight clients with concurrent operations. Some operations are never answered. Of the unanswered
/// operations, some are executed immediately, some much later, and some never.
struct World {
    store: Store,
    record: RoundRecord,
    groups: KeyGroups,
    choosers: Vec<Chooser>,
    rng: Pcg64Mcg,
    late: Vec<OperationRequest>,
    /// Number of operations that the store refused.
    refused: u32,
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
            refused: 0,
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
        let mut answer = outcome.result.expect("an answer");
        if let Answer::Error(error) = &answer {
            assert!(request.may_be_refused(), "{request:?}: {error:?}");
            self.refused += 1;
            return OperationOutcome::Failed;
        }
        if let Answer::Txn(result) = &mut answer
            && self.rng.random_bool(0.1)
        {
            abridge(result, &mut self.rng);
        }
        let effects = request.effects_of(&answer).expect("a right answer");
        self.choosers[client as usize].learn(&effects.parts, &versions(request, &answer));
        OperationOutcome::Answered(effects)
    }
}

/// Clears the values in a result, like the answer to a repetition. Sometimes also removes the
/// results of all operations.
fn abridge(result: &mut TxnResult, rng: &mut Pcg64Mcg) {
    use leasehold_wire::op_result::Result as OpAnswer;
    result.abridged = true;
    let found = result.failed.iter_mut().filter_map(|it| it.found.as_mut());
    let read = result
        .results
        .iter_mut()
        .filter_map(|it| match &mut it.result {
            Some(OpAnswer::Value(value)) => Some(value),
            _ => None,
        });
    found.chain(read).for_each(|it| it.value.clear());
    if rng.random_bool(0.5) {
        result.results.clear();
    }
}

/// Returns the record of such a world. At the end, each list and counter is read.
fn world(seed: u64) -> RoundRecord {
    let mut world = World::new(seed);
    (0..1200).for_each(|_| world.step());
    assert!(world.refused > 3, "{} refusals", world.refused);
    let keys: Vec<u64> = (LISTS.start..COUNTERS.end).collect();
    let read = OperationRequest::read(OperationKind::MultiGet, keys);
    let answer = world.store.execute(&read.op()).result.expect("an answer");
    world.record.add_final_read(&CompletedOperation {
        client: CLIENTS,
        site: 0,
        roams: false,
        kind: read.kind,
        began_ns: world.now_ns + 1,
        now_ns: world.now_ns + 2,
        end: OperationOutcome::Answered(read.effects_of(&answer).expect("a right answer")),
    });
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
        assert!(
            judged.growths > 1000 && judged.growing_keys == 12,
            "{judged:?}"
        );
        assert!(record.counts.values().all(|counts| counts.answered > 0));
        assert!(record.total().unknown > 100);
    }
}

#[test]
fn each_falsification_is_noticed() {
    for falsification in [
        Falsification::StaleRead,
        Falsification::LostWrite,
        Falsification::RepeatedAppend,
        Falsification::RepeatedAdd,
    ] {
        for seed in 0..3 {
            let mut record = world(seed);
            assert!(falsify(falsification, &mut record));
            let judged = judge(&record);
            assert_eq!(judged.violations.len(), 1, "{falsification:?}, seed {seed}");
            let kind = match falsification {
                Falsification::StaleRead | Falsification::LostWrite => "key ",
                Falsification::RepeatedAppend => "list ",
                Falsification::RepeatedAdd => "counter ",
            };
            assert!(judged.violations[0].starts_with(kind), "{judged:?}");
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
