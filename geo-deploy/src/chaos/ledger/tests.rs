//! Each kind of violation is caught, and a right history is accepted.

use leasehold_histories::history::ValueId;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::{Growth, GrowthLedger, Growths, LedgerVerdict, Span};

const LIST: u64 = 1;
const OTHER: u64 = 2;
const COUNTER: u64 = 3;

fn span(process: u32, began_ns: u64, ended_ns: u64) -> Span {
    Span {
        process,
        began_ns,
        ended_ns: Some(ended_ns),
    }
}

fn open(process: u32, began_ns: u64) -> Span {
    Span {
        process,
        began_ns,
        ended_ns: None,
    }
}

fn append(key: u64, token: u64, length: Option<usize>) -> (u64, Growth) {
    let token = ValueId(token);
    (key, Growth::Append { token, length })
}

fn list(key: u64, tokens: &[u64]) -> (u64, Growth) {
    let tokens = tokens.iter().copied().map(ValueId).collect();
    (key, Growth::List(tokens))
}

fn add(delta: i64, sum: Option<i64>) -> (u64, Growth) {
    (COUNTER, Growth::Add { delta, sum })
}

fn counter(value: i64) -> (u64, Growth) {
    (COUNTER, Growth::Counter(value))
}

/// Judges operations. Those without an end were not answered.
fn judge(operations: &[(Span, Growths)]) -> LedgerVerdict {
    let mut ledger = GrowthLedger::default();
    for (span, growths) in operations {
        match span.ended_ns {
            Some(_) => ledger.add(*span, growths),
            None => ledger.add_unanswered(*span, [growths]),
        }
    }
    ledger.judge()
}

fn assert_right(operations: &[(Span, Growths)]) {
    let verdict = judge(operations);
    assert_eq!(verdict.violations, [""; 0]);
    assert_eq!(verdict.undecided, [""; 0]);
}

fn assert_wrong(operations: &[(Span, Growths)], what: &str) {
    let verdict = judge(operations);
    let [violation] = &verdict.violations[..] else {
        panic!("{verdict:?}");
    };
    assert!(violation.contains(what), "{violation}");
}

#[test]
fn reads_of_a_list_extend_each_other() {
    let appends = |read: &[u64], later: &[u64]| {
        [
            (span(1, 0, 10), vec![append(LIST, 7, Some(1))]),
            (span(2, 5, 15), vec![append(LIST, 8, Some(2))]),
            (open(3, 6), vec![append(LIST, 9, None)]),
            (span(4, 20, 30), vec![list(LIST, read)]),
            (span(5, 40, 50), vec![list(LIST, later)]),
        ]
    };
    assert_right(&appends(&[7, 8], &[7, 8]));
    assert_right(&appends(&[7, 8], &[7, 8, 9]));
    assert_wrong(&appends(&[7, 8, 9], &[7, 8]), "comes after a read of 3");
    assert_wrong(&appends(&[7], &[7, 8]), "should have found it");
    assert_wrong(&appends(&[7, 9], &[7, 8, 9]), "position 2 has token");
    assert_wrong(
        &appends(&[7, 8], &[7, 8, 8]),
        "token 8 is in the list twice",
    );
    assert_wrong(
        &appends(&[7, 8], &[7, 8, 9, 9]),
        "token 9 is in the list twice",
    );
    assert_wrong(&appends(&[7, 8], &[7, 8, 6]), "token 6 was never appended");
    assert_wrong(&appends(&[8, 7], &[8, 7]), "answered with length 1");
}

#[test]
fn an_acknowledged_append_is_never_lost() {
    for length in [None, Some(2)] {
        let operations = [
            (span(1, 0, 10), vec![append(LIST, 7, Some(1))]),
            (span(2, 11, 12), vec![append(LIST, 8, length)]),
            (span(5, 40, 50), vec![list(LIST, &[7])]),
        ];
        assert_wrong(&operations, "acknowledged and is lost");
    }
}

#[test]
fn an_append_is_not_seen_before_it_began() {
    let early = |read_ends| {
        [
            (span(1, 0, 10), vec![append(LIST, 7, Some(1))]),
            (span(4, 1, read_ends), vec![list(LIST, &[7, 8])]),
            (open(2, 20), vec![append(LIST, 8, None)]),
        ]
    };
    assert_right(&early(20));
    assert_wrong(&early(19), "comes after a read of 2");
}

#[test]
fn a_transaction_without_an_answer_has_all_its_appends_or_none() {
    let both = |one: &[u64], two: &[u64]| {
        [
            (
                open(1, 0),
                vec![append(LIST, 7, None), append(OTHER, 8, None)],
            ),
            (span(2, 30, 40), vec![list(LIST, one), list(OTHER, two)]),
        ]
    };
    assert_right(&both(&[], &[]));
    assert_right(&both(&[7], &[8]));
    assert_wrong(&both(&[7], &[]), "list 1 has token 7, list 2 lacks token 8");
}

#[test]
fn only_one_branch_of_a_transaction_is_executed() {
    let judge = |tokens: &[u64]| {
        let mut ledger = GrowthLedger::default();
        let branches = [vec![append(LIST, 7, None)], vec![append(LIST, 8, None)]];
        ledger.add_unanswered(open(1, 0), &branches);
        ledger.add(span(2, 30, 40), &vec![list(LIST, tokens)]);
        ledger.judge().violations
    };
    for tokens in [&[][..], &[7], &[8]] {
        assert_eq!(judge(tokens), [""; 0]);
    }
    let found = judge(&[7, 8]);
    assert!(found[0].contains("both of its branches"), "{found:?}");
}

#[test]
fn each_addition_counts_once() {
    let operations = |middle: i64, last: i64| {
        [
            (span(1, 0, 10), vec![add(100, Some(100))]),
            (open(2, 5), vec![add(30, None)]),
            (open(2, 5), vec![add(7, None)]),
            (span(3, 20, 30), vec![counter(middle)]),
            (span(4, 40, 50), vec![add(1000, Some(middle + 1000))]),
            (span(5, 60, 70), vec![counter(last)]),
        ]
    };
    assert_right(&operations(100, 1100));
    assert_right(&operations(130, 1130));
    assert_right(&operations(107, 1137));
    assert_right(&operations(137, 1137));
    // Twice: one that was acknowledged, and one that was not.
    assert_wrong(&operations(200, 1200), "from 100 to 200");
    assert_wrong(&operations(160, 1160), "from 100 to 160");
    assert_wrong(&operations(130, 1160), "from 1130 to 1160");
    assert_wrong(&operations(130, 2130), "from 1130 to 2130");
    // Something that was never added.
    assert_wrong(
        &operations(101, 1101),
        "no additions that may have happened",
    );
    // A loss.
    assert_wrong(&operations(100, 1000), "is within");
    assert_wrong(&operations(100, 100), "should have found it");
    assert_wrong(&operations(0, 1000), "overlaps");
    assert_wrong(&operations(50, 1050), "overlaps");
}

#[test]
fn two_additions_never_leave_the_same_sum() {
    let operations = [
        (span(1, 0, 10), vec![add(100, Some(100))]),
        (span(2, 0, 10), vec![add(30, Some(100))]),
    ];
    assert_wrong(&operations, "overlaps");
    let below = [(span(1, 0, 10), vec![add(100, Some(70))])];
    assert_wrong(&below, "below zero");
}

#[test]
fn an_acknowledged_addition_is_never_lost() {
    let operations = |value| {
        [
            (span(1, 0, 10), vec![add(100, None)]),
            (span(2, 20, 30), vec![counter(value)]),
        ]
    };
    assert_right(&operations(100));
    assert_wrong(&operations(0), "addition of 100");
}

#[test]
fn an_addition_explains_no_step_before_it_began_or_after_it_ended() {
    let late = |began_ns| {
        [
            (span(1, 0, 10), vec![counter(30)]),
            (open(2, began_ns), vec![add(30, None)]),
        ]
    };
    assert_right(&late(10));
    assert_wrong(&late(11), "from 0 to 30");
    let early = |ended_ns| {
        [
            (span(1, 0, ended_ns), vec![add(30, None)]),
            (span(2, 10, 20), vec![counter(0)]),
            (span(3, 30, 40), vec![counter(30)]),
        ]
    };
    assert_right(&early(10));
    assert_wrong(&early(9), "from 0 to 30");
}

#[test]
fn a_step_of_too_many_additions_is_undecided() {
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut operations: Vec<(Span, Growths)> = (0..60)
        .map(|process| {
            (
                open(process, 0),
                vec![add(rng.random_range(1..1 << 45), None)],
            )
        })
        .collect();
    operations.push((span(99, 10, 20), vec![counter((1 << 45) + 12_345)]));
    let verdict = judge(&operations);
    assert_eq!(verdict.violations, [""; 0]);
    assert!(verdict.undecided[0].contains("too many"), "{verdict:?}");
}

/// Executes random operations on a list and a counter in a random order. The judge accepts what
/// they find, and refuses it if one token or number is counted twice.
#[test]
fn random_histories_are_accepted_and_falsified_ones_are_refused() {
    for seed in 0..300 {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let (mut ledger, mut tokens, mut sum) = (GrowthLedger::default(), Vec::new(), 0);
        let mut order: Vec<u64> = (0..80).collect();
        order.shuffle(&mut rng);
        for (at, id) in order.into_iter().enumerate() {
            // Each operation takes effect at its own time, and overlaps its neighbours.
            let effect_ns = 100 * at as u64 + 1000;
            let began_ns = effect_ns - rng.random_range(0..400);
            let ended_ns = effect_ns + rng.random_range(0..400);
            let delta = rng.random_range(1..1 << 45);
            match rng.random_range(0..10) {
                0 => {
                    let happens = rng.random_bool(0.5);
                    if happens {
                        tokens.push(id);
                        sum += delta;
                    }
                    let growths = vec![append(LIST, id, None), add(delta, None)];
                    ledger.add_unanswered(open(id as u32, began_ns), [&growths]);
                }
                1..6 => {
                    tokens.push(id);
                    sum += delta;
                    let says = rng.random_bool(0.9);
                    let length = says.then_some(tokens.len());
                    let growths = vec![append(LIST, id, length), add(delta, says.then_some(sum))];
                    ledger.add(span(id as u32, began_ns, ended_ns), &growths);
                }
                _ => {
                    let growths = vec![list(LIST, &tokens), counter(sum)];
                    ledger.add(span(id as u32, began_ns, ended_ns), &growths);
                }
            }
        }
        let last = vec![list(LIST, &tokens), counter(sum)];
        ledger.add(span(100, 100_000, 100_001), &last);
        let verdict = ledger.judge();
        assert_eq!(verdict.violations, [""; 0], "seed {seed}");
        assert_eq!(verdict.undecided, [""; 0], "seed {seed}");
        let mut twice = ledger.clone();
        assert!(twice.repeat_append());
        assert_eq!(twice.judge().violations.len(), 1, "seed {seed}");
        assert!(ledger.repeat_addition());
        assert_eq!(ledger.judge().violations.len(), 1, "seed {seed}");
    }
}
