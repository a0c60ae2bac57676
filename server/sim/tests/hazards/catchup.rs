//! Catching up: how a lagging replica fetches the entries that it missed.

use std::collections::VecDeque;

use leasehold_leases::{Slot, StrategySpec};
use leasehold_replica::message::Message;

use super::cluster::{Cluster, Packet, put};

const FAR_MS: u64 = 50;

fn is_catchup(packet: &Packet) -> bool {
    matches!(
        packet.0.message,
        Message::Fetch { .. } | Message::Fetched { .. }
    )
}

/// Lets time pass until `node` has executed slot `goal`. Fetched entries arrive late, and one at a
/// time. Returns the number of fetches that were needed.
fn catch_up(cluster: &mut Cluster, node: usize, goal: Slot) -> usize {
    let mut on_its_way: VecDeque<(u64, Packet)> = VecDeque::new();
    let mut fetches = 0;
    for now in 0..60_000 {
        if cluster.node(node).executed() >= goal {
            return fetches;
        }
        cluster.pass(1);
        for mut packet in std::mem::take(&mut cluster.held) {
            match &mut packet.0.message {
                Message::Fetched { entries, .. } => entries.truncate(1),
                _ => fetches += 1,
            }
            on_its_way.push_back((now + FAR_MS, packet));
        }
        while on_its_way.front().is_some_and(|(at, _)| *at <= now) {
            let (_, packet) = on_its_way.pop_front().expect("it is there");
            cluster.deliver(packet);
        }
    }
    panic!("it never catches up");
}

#[test]
fn a_laggard_asks_for_nothing_that_is_on_its_way() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.isolate(2);
    let slots = 50;
    for sequence in 1..=slots {
        let write = cluster.ask(0, put(1, sequence, "k", "v"));
        assert!(cluster.done(write));
    }
    cluster.pass(2000);
    cluster.hold(is_catchup);
    cluster.heal();
    let goal = cluster.node(0).executed();
    let fetches = catch_up(&mut cluster, 2, goal);
    // One fetch for each entry, and few more.
    assert!(fetches < 2 * slots as usize, "{fetches} fetches");
}

#[test]
fn a_candidate_that_lags_asks_for_nothing_that_is_on_its_way() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.isolate(2);
    for sequence in 1..=20 {
        let write = cluster.ask(0, put(1, sequence, "k", "v"));
        assert!(cluster.done(write));
    }
    let goal = cluster.node(0).executed();
    cluster.heal();
    cluster.crash(0);
    cluster.hold(is_catchup);
    cluster.elect(2);
    let fetches = catch_up(&mut cluster, 2, goal);
    assert!(fetches < 40, "{fetches} fetches");
}
