//! Tests that a restart finds the configurations as they were.

use std::collections::BTreeMap;
use std::ops::Range;

use super::*;
use crate::config::{ConfigChange, KeyRange, RangeChange, sweep};
use crate::types::ReplicaId;

fn set(bits: u64) -> ReplicaSet {
    ReplicaSet(bits)
}

fn key(at: usize) -> Key {
    Key::from(format!("{at:06}"))
}

fn listing(bits: u64, keys: Range<usize>) -> ConfigChange {
    ConfigChange {
        keys: vec![(set(bits), keys.map(key).collect())],
        ..ConfigChange::default()
    }
}

/// Returns a change that removes the listed keys from `from` on. It also makes `bits` the default
/// holders.
fn clearing(from: usize, bits: u64) -> ConfigChange {
    let range = KeyRange::new(key(from), None).expect("some keys");
    ConfigChange {
        ranges: vec![RangeChange {
            defaults: Some(set(bits)),
            clear: true,
            ..RangeChange::nothing(range)
        }],
        ..ConfigChange::default()
    }
}

fn excluding(bits: u64) -> ConfigChange {
    ConfigChange {
        excluded: Some(set(bits)),
        ..ConfigChange::default()
    }
}

/// Configurations of three replicas, with the checkpoint that a disk holds.
#[derive(Clone)]
struct Saved {
    configs: Configs,
    /// All changes so far: the configuration log.
    log: Vec<ConfigChange>,
    frames: Vec<SavedFrame>,
    rows: BTreeMap<Key, KeyVersions>,
}

impl Saved {
    fn new() -> Saved {
        Saved {
            configs: Configs::new(3),
            log: Vec::new(),
            frames: Vec::new(),
            rows: BTreeMap::new(),
        }
    }

    fn with<const N: usize>(changes: [ConfigChange; N]) -> Saved {
        let mut saved = Saved::new();
        changes
            .into_iter()
            .for_each(|change| saved.execute(&change));
        saved
    }

    fn execute(&mut self, change: &ConfigChange) {
        self.log.push(change.clone());
        self.configs.apply(ConfigId(self.log.len() as u64), change);
    }

    /// Brings the checkpoint up to date. Returns the number of rows that were written or removed.
    fn save(&mut self) -> usize {
        let Some(changes) = self.configs.take_unsaved() else {
            return 0;
        };
        self.frames = changes.frames;
        let rows = changes.keys.len();
        for (key, versions) in changes.keys {
            match versions {
                Some(versions) => self.rows.insert(key, versions),
                None => self.rows.remove(&key),
            };
        }
        rows
    }

    /// Restores the checkpoint, and executes the rest of the log.
    fn restart(&mut self) {
        let mut restored = Configs::new(3);
        if !self.frames.is_empty() {
            let rows = self.rows.clone();
            restored = Configs::restore(3, &self.frames, rows).expect("it fits together");
        }
        for (id, change) in (1..).map(ConfigId).zip(&self.log) {
            if id > restored.newest() {
                restored.apply(id, change);
            }
        }
        self.configs = restored;
    }
}

/// Asserts that `restored` gives the same answers as `original`, for every key below `keys`, and
/// for every configuration that both keep.
fn assert_same(original: &Configs, restored: &Configs, keys: usize) {
    restored.check();
    assert_eq!(restored.newest(), original.newest());
    assert_eq!(restored.excluded(), original.excluded());
    assert_eq!(restored.wants_demand(), original.wants_demand());
    for replica in (0..3).map(ReplicaId) {
        assert_eq!(
            restored.oldest_promisable(replica),
            original.oldest_promisable(replica)
        );
    }
    let policies = |configs: &Configs| {
        configs
            .policies()
            .map(|it| (it.strategy.clone(), it.defaults, it.cleared))
    };
    assert_eq!(policies(restored), policies(original));
    let first = restored.oldest_kept().max(original.oldest_kept());
    for id in (first.0..=original.newest().0).map(ConfigId) {
        assert_eq!(restored.params(id), original.params(id));
        let universal = restored.universal(id);
        assert!(original.universal(id).is_subset(universal));
        for key in (0..keys).map(key) {
            let holders = restored.view(&key).holders(id);
            assert_eq!(holders, original.view(&key).holders(id), "{key:?}, {id:?}");
            assert!(universal.is_subset(holders), "{key:?}, {id:?}");
        }
    }
    for key in (0..keys).map(key) {
        assert_eq!(restored.listed(&key), original.listed(&key), "{key:?}");
    }
}

/// Asserts that a restart finds the configurations as they are.
fn assert_restored(saved: &mut Saved, keys: usize) {
    let original = saved.configs.clone();
    saved.save();
    saved.restart();
    assert_same(&original, &saved.configs, keys);
}

fn h41_a_restart_remembers_the_exclusion_of_a_suspect() {
    let mut saved = Saved::with([ConfigChange::default(), excluding(0b100), excluding(0)]);
    assert_restored(&mut saved, 1);
    let oldest = saved.configs.oldest_promisable(ReplicaId(2));
    assert_eq!(oldest, ConfigId(2));
}

/// A grant under an older configuration covers a key that a newer one has given to another replica.
fn h65_a_restart_knows_the_holders_under_each_configuration_that_it_keeps() {
    let mut saved = Saved::with([listing(0b001, 0..2), listing(0b010, 0..1)]);
    assert_restored(&mut saved, 2);
    let view = saved.configs.view(b"000000");
    assert_eq!(view.holders(ConfigId(1)), set(0b001));
    assert_eq!(view.holders(ConfigId(2)), set(0b010));
}

/// The rows of keys that a configuration has removed stay until no kept configuration sees them.
fn h69_a_restart_remembers_which_keys_were_removed() {
    let mut saved = Saved::with([
        ConfigChange::everywhere(set(0b001)),
        listing(0b110, 0..4),
        clearing(2, 0b001),
    ]);
    assert_restored(&mut saved, 4);
    assert_eq!(saved.configs.holders(b"000002"), set(0b001));
    assert_eq!(saved.configs.listed_by_range(), [2, 0]);
}

fn h90_a_restart_counts_the_listed_keys() {
    let mut saved = Saved::with([
        ConfigChange::everywhere(set(0b111)),
        listing(0b011, 0..5),
        listing(0b111, 5..7),
    ]);
    assert_restored(&mut saved, 8);
    assert_eq!(saved.configs.universal(ConfigId(3)), set(0b011));
    assert_eq!(saved.configs.listed_by_range(), [7]);
}

/// More keys are forgotten than one batch removes. One of them is listed again before its row is
/// removed.
fn h126_a_key_that_is_listed_again_keeps_its_row() {
    let keys = 2 * REMOVALS_MAX + 10;
    let mut saved = Saved::with([
        ConfigChange::everywhere(set(0b001)),
        listing(0b011, 0..keys),
        clearing(0, 0b001),
    ]);
    saved.save();
    saved.configs.forget_before(ConfigId(3));
    while saved.configs.is_sweeping() {
        saved.configs.forget_before(ConfigId(3));
    }
    assert_eq!(saved.configs.listed_len(), 0);
    saved.execute(&listing(0b101, 0..keys));
    let rows = saved.save();
    assert_eq!(rows, keys);
    // The rest of the rows that were to be removed.
    while saved.save() > 0 {}
    assert_restored(&mut saved, keys);
    assert_eq!(saved.configs.listed_len(), keys);
}

#[test]
fn a_restart_finds_what_was_saved() {
    for (_, test, _) in DIRECTED {
        test();
    }
}

/// A batch has only the rows of the keys that configurations have changed since the last batch.
#[test]
fn a_batch_has_what_has_changed() {
    let mut saved = Saved::with([listing(0b001, 0..100)]);
    assert_eq!(saved.save(), 100);
    saved.execute(&ConfigChange::default());
    assert_eq!(saved.save(), 0);
    saved.execute(&listing(0b010, 7..9));
    saved.execute(&listing(0b100, 8..10));
    assert_eq!(saved.configs.unsaved_len(), 3);
    assert_eq!(saved.save(), 3);
    assert_eq!(saved.configs.take_unsaved(), None);
    assert_eq!(saved.frames.len(), FRAMES_SAVED);
    assert_eq!(saved.rows.len(), 100);
}

/// The pass over the listed keys and the removals of rows end, also if a restart interrupts them.
#[test]
fn rows_of_forgotten_keys_are_removed_in_parts() {
    let keys = 2 * sweep::KEYS_A_STEP + 10;
    let mut saved = Saved::with([listing(0b001, 0..keys)]);
    saved.save();
    saved.execute(&clearing(10, 0b111));
    for _ in 0..FRAMES_SAVED {
        saved.execute(&ConfigChange::default());
    }
    saved.configs.forget_before(ConfigId(2));
    assert!(saved.configs.is_sweeping());
    assert!(saved.save() <= REMOVALS_MAX);
    saved.restart();
    assert_eq!(saved.configs.listed_len(), 10);
    loop {
        let before = saved.rows.len();
        let written = saved.save();
        assert!(written <= REMOVALS_MAX);
        assert_eq!(saved.rows.len(), before - written);
        if written == 0 {
            break;
        }
    }
    assert_eq!(saved.rows.len(), 10);
}

#[test]
fn a_checkpoint_that_contradicts_itself_is_refused() {
    let mut saved = Saved::with([listing(0b001, 0..3), excluding(0b100), clearing(1, 0b011)]);
    saved.save();
    type Change = fn(&mut Vec<SavedFrame>);
    fn policies(frame: &mut SavedFrame) -> &mut Vec<SavedPolicy> {
        Arc::make_mut(&mut frame.policies)
    }
    let changes: [(Change, &str); 12] = [
        (|frames| frames.clear(), "no configuration"),
        (|frames| frames.extend(frames.clone()), "too many"),
        (|frames| frames[1].id.0 += 1, "is missing"),
        (|frames| frames[2].id.0 = u64::MAX, "is missing"),
        (|frames| policies(&mut frames[0]).clear(), "ranges"),
        (|frames| policies(&mut frames[2]).reverse(), "ranges"),
        (
            |frames| policies(&mut frames[2])[0].defaults = set(8),
            "no member",
        ),
        (|frames| frames[0].excluded = set(16), "no member"),
        (|frames| policies(&mut frames[0])[0].cleared.0 = 9, "later"),
        (
            |frames| policies(&mut frames[0])[0].cleared.0 = 1,
            "was forgotten",
        ),
        (|frames| frames[2].oldest = vec![], "number of replicas"),
        (
            |frames| frames[1].oldest[0].0 = 1,
            "exclusion was forgotten",
        ),
    ];
    let restore = |frames: &[SavedFrame], rows: &BTreeMap<Key, KeyVersions>| {
        Configs::restore(3, frames, rows.clone())
    };
    assert!(restore(&saved.frames, &saved.rows).is_ok());
    for (nth, (change, expected)) in changes.into_iter().enumerate() {
        let mut frames = saved.frames.clone();
        change(&mut frames);
        let error = restore(&frames, &saved.rows).expect_err("refused");
        assert!(error.to_string().contains(expected), "{nth}: {error}");
    }
    let rows: [(&[(u64, u64)], &str); 5] = [
        (&[], "no holders"),
        (&[(0, 1)], "do not rise"),
        (&[(2, 1), (2, 1)], "do not rise"),
        (&[(4, 1)], "later"),
        (&[(1, 8)], "no member"),
    ];
    for (versions, expected) in rows {
        let versions = versions.iter();
        let versions = versions.map(|(since, bits)| (ConfigId(*since), set(*bits)));
        let rows = [(key(0), versions.collect())].into();
        let error = restore(&saved.frames, &rows).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// One event in the life of a replica.
#[derive(Clone, Debug)]
enum Event {
    Execute(ConfigChange),
    /// Forgets the configurations that are older than the newest one by more than this number. Also
    /// takes one further step of the pass over the listed keys.
    Forget(u64),
    Save,
    Restart,
}

fn event() -> impl proptest::strategy::Strategy<Value = Event> {
    use proptest::prelude::*;
    let keys = || (0..12usize, 0..6usize);
    let range = move || {
        (keys(), any::<bool>()).prop_map(|((from, length), ends)| {
            let to = ends.then(|| key(from + length + 1));
            KeyRange::new(key(from), to).expect("some keys")
        })
    };
    let strategies = prop_oneof![
        Just(None),
        Just(Some(StrategySpec::All)),
        Just(Some(StrategySpec::Cost(Default::default()))),
    ];
    let of_range = (
        range(),
        strategies,
        proptest::option::of(0..8u64),
        any::<bool>(),
    );
    let of_range = of_range.prop_map(|(range, strategy, defaults, clear)| RangeChange {
        range,
        strategy,
        defaults: defaults.map(set),
        clear,
    });
    let listed = (0..8u64, keys()).prop_map(|(bits, (from, length))| {
        (
            set(bits),
            (from..from + length).map(key).collect::<Vec<_>>(),
        )
    });
    let millis = (1..9u64).prop_map(|seconds| LeaseParams {
        t_lease: std::time::Duration::from_secs(seconds),
        ..LeaseParams::default()
    });
    let change = (
        proptest::collection::vec(of_range, 0..2),
        proptest::collection::vec(listed, 0..3),
        proptest::option::weighted(0.2, 0..8u64),
        proptest::option::weighted(0.2, millis),
    );
    let change = change.prop_map(|(ranges, keys, excluded, params)| ConfigChange {
        ranges,
        keys,
        excluded: excluded.map(set),
        params,
    });
    prop_oneof![
        5 => change.prop_map(Event::Execute),
        3 => (0..6u64).prop_map(Event::Forget),
        3 => Just(Event::Save),
        2 => Just(Event::Restart),
    ]
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(512))]

    /// Compares two replicas: one saves its configurations and restarts at any time, the other never
    /// restarts.
    #[test]
    fn restarts_change_no_answer(events in proptest::collection::vec(event(), 1..80)) {
        let mut original = Configs::new(3);
        let mut saved = Saved::new();
        for event in events {
            match event {
                Event::Execute(change) => {
                    saved.execute(&change);
                    original.apply(saved.configs.newest(), &change);
                }
                Event::Forget(kept) => {
                    let newest = original.newest().0;
                    original.forget_before(ConfigId(newest.saturating_sub(8)));
                    saved.configs.forget_before(ConfigId(newest.saturating_sub(kept)));
                }
                Event::Save => {
                    saved.save();
                    let mut other = saved.clone();
                    other.restart();
                    let kept = other.configs.newest().0 + 1 - other.configs.oldest_kept().0;
                    let before = saved.configs.newest().0 + 1 - saved.configs.oldest_kept().0;
                    proptest::prop_assert!(kept >= before.min(FRAMES_SAVED as u64));
                }
                Event::Restart => saved.restart(),
            }
            assert_same(&original, &saved.configs, 20);
        }
        // In the end, the checkpoint has no row that nobody needs.
        let newest = saved.configs.newest();
        saved.configs.forget_before(newest);
        while saved.configs.is_sweeping() {
            saved.configs.forget_before(newest);
        }
        while saved.save() > 0 {}
        let keys = saved.configs.keys.iter().map(|(key, _)| key.clone());
        let keys: std::collections::BTreeSet<Key> = keys.collect();
        proptest::prop_assert!(saved.rows.keys().eq(keys.iter()));
    }
}

macro_rules! directed {
    ($($rule:ident: $test:ident;)*) => {
        /// Directed tests: (rule, test that must fail without the rule, name of the test).
        const DIRECTED: &[(Rule, fn(), &str)] = &[
            $((Rule::$rule, $test, stringify!($test)),)*
        ];
    };
}

directed! {
    H41Restored: h41_a_restart_remembers_the_exclusion_of_a_suspect;
    H65Versions: h65_a_restart_knows_the_holders_under_each_configuration_that_it_keeps;
    H69Restored: h69_a_restart_remembers_which_keys_were_removed;
    H90Counts: h90_a_restart_counts_the_listed_keys;
    H126Relisted: h126_a_key_that_is_listed_again_keeps_its_row;
}

#[test]
#[cfg(feature = "mutants")]
fn each_directed_test_of_mutants_fails_without_its_rule() {
    use crate::mutants::with;
    let passes = |rule: Rule, test: fn()| std::panic::catch_unwind(|| with(rule, test)).is_ok();
    let blind = DIRECTED
        .iter()
        .filter(|(rule, test, _)| passes(*rule, *test));
    let blind: Vec<_> = blind.map(|(rule, _, name)| (rule, name)).collect();
    assert!(blind.is_empty(), "passes without its rule: {blind:#?}");
}
