//! Tests in which many keys need other holders at the same time. Reports and configurations must
//! stay within their share of the traffic. The keys with the largest gain must be listed first, and
//! all keys must be listed eventually.

use leasehold_leases::{Key, ReplicaId, StrategySpec, UnlistedHolders};
use leasehold_wire::Command;
use leasehold_wire::command::Op;

use super::scenario::{Choices, Scenario};
use super::world::{World, WorldSettings};
use leasehold_replica::Settings;
use leasehold_replica::action::{ClientHandle, Event};

const MS: u64 = 1_000_000;
const SITES: usize = 5;
const LEADER: usize = 0;
/// Site of the clients that read everything.
const READER: usize = 4;
const KEYS: usize = 10_000;
/// Number of keys that are read more often than the others. These are the last keys in key order.
const BUSY: usize = 500;
/// Maximum number of bytes of reports in a second. The same maximum applies to configurations.
const A_SECOND: usize = 20_000;

fn settings(seed: u64) -> WorldSettings {
    let choices = Choices {
        faults: false,
        replicas: Some(SITES),
        ..Choices::default()
    };
    let mut world = Scenario::draw(seed, &choices).world;
    let unlisted = UnlistedHolders::Leader;
    world.replica = Settings::new(ReplicaId(0), SITES);
    world.replica.strategies = StrategySpec::Quorum { unlisted }.into();
    world.replica.elections.preferred = Some(ReplicaId(LEADER as u8));
    world.replica.holders_bytes_s = 2 * A_SECOND;
    world
}

fn key(nth: usize) -> Key {
    Key::from(format!("user{nth:08}"))
}

fn read(world: &mut World, keys: impl Iterator<Item = usize>) {
    let command = |nth| Command {
        op: Some(Op::get(key(nth))),
        ..Command::default()
    };
    let from = |request| ClientHandle {
        connection: 1,
        request,
    };
    let requests = keys.enumerate();
    let requests = requests.map(|(request, nth)| (from(request as u64), command(nth)));
    world.request(READER, requests.collect());
}

/// Returns how many of `keys` the leader's configuration lists. A listed key has its own holders.
fn listed(world: &World, keys: impl Iterator<Item = usize>) -> usize {
    let leader = world.replica(LEADER).expect("all run");
    let is_listed = |nth: &usize| leader.configs().listed(&key(*nth)).is_some();
    keys.filter(is_listed).count()
}

/// Returns the size of the last report of the reader's site, in bytes.
fn reported(world: &World) -> usize {
    let replica = world.replica(READER).expect("all run");
    let status = replica.status(world.clock(READER));
    let mut counters = status.counters.iter();
    let bytes = counters.find(|counter| counter.name == "demand_report_bytes");
    bytes.expect("it is counted").value as usize
}

/// Runs the world until `until_ms`. Returns the size of the largest report, in bytes.
fn run(world: &mut World, until_ms: u64) -> usize {
    let mut largest = 0;
    while world.now_ns() < until_ms * MS {
        world.advance();
        largest = largest.max(reported(world));
    }
    largest
}

#[test]
fn holders_of_many_keys_change_by_gain_and_within_their_part_of_the_traffic() {
    let mut world = World::new(settings(1), 1);
    run(&mut world, 10_000);
    read(&mut world, 0..KEYS);
    (0..4).for_each(|_| read(&mut world, KEYS - BUSY..KEYS));
    let report = run(&mut world, 12_000);
    assert!(A_SECOND / 2 < report && report <= A_SECOND, "{report}");
    while world
        .replica(LEADER)
        .expect("all run")
        .configs()
        .listed_len()
        == 0
    {
        world.advance();
    }
    let busy = listed(&world, KEYS - BUSY..KEYS);
    assert_eq!(busy, BUSY, "what gains most comes first");
    let report = run(&mut world, 60_000);
    assert!(report <= A_SECOND, "{report}");
    assert_eq!(listed(&world, 0..KEYS), KEYS, "nothing is left out");
    let leader = ReplicaId(LEADER as u8);
    let brought = world
        .notes
        .iter()
        .filter_map(|(at_ns, who, note)| match note {
            Event::Configured { keys, .. } if *who == leader && *keys > 0 => {
                Some((at_ns / MS, *keys))
            }
            _ => None,
        });
    let brought: Vec<(u64, usize)> = brought.collect();
    for (_, keys) in &brought {
        assert!(keys * key(0).len() <= A_SECOND, "{keys} keys at once");
    }
    // Commits take different times, but the difference is less than a second.
    for (i, (from_ms, _)) in brought.iter().enumerate() {
        let mut bytes = 0;
        for (at_ms, keys) in &brought[i..] {
            bytes += keys * key(0).len();
            let most = A_SECOND as u64 * (at_ms - from_ms + 2000) / 1000;
            assert!(bytes as u64 <= most, "{brought:?}");
        }
    }
    assert!(brought.len() >= 8, "{brought:?}");
}
