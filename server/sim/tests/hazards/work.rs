//! Processor time of requests that one client can send repeatedly. The time must not grow faster
//! than the amount of data that a request concerns. The tests compare processor times of this
//! thread.

use std::time::Duration;

use leasehold_leases::demand::{Delta, TallyReport};
use leasehold_leases::{Key, KeyRange, RangeMap, ReplicaId, StrategySpec, UnlistedHolders};
use leasehold_replica::lease_set::LeaseSet;
use leasehold_replica::message::{DemandReport, Envelope, LogId, Message};
use leasehold_replica::{Input, OperatorRequest};
use leasehold_wire::StatusReply;
use rustix::time::{ClockId, clock_gettime};

use super::cluster::{Cluster, settings};

/// Returns the processor time of this thread.
#[allow(clippy::disallowed_methods)] // measures the test, and decides nothing in it
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Runs `does` several times, and returns the shortest processor time: that run was disturbed
/// least.
fn least(runs: usize, mut does: impl FnMut()) -> Duration {
    let each = (0..runs).map(|_| {
        let began = cpu();
        does();
        cpu() - began
    });
    each.min().expect("it runs at least once")
}

/// Returns the processor time that the leader needs to answer 100 status requests. Each answer
/// contains the holders of the hottest key. Before the status requests, clients have read `keys`
/// different keys.
fn hundred_statuses(keys: u32) -> Duration {
    let unlisted = UnlistedHolders::Nearest;
    let mut cluster = Cluster::new(3, StrategySpec::Quorum { unlisted });
    let deltas = (0..keys).map(|key| Delta {
        key: Key::copy_from_slice(format!("{key:08}").as_bytes()),
        reads: 1 + key % 3,
        writes: 0,
    });
    let report = TallyReport {
        deltas: deltas.collect(),
        ..TallyReport::default()
    };
    let message = Message::Demand(DemandReport {
        report,
        rtts_us: vec![1_000; 3],
    });
    let envelope = Envelope {
        from: ReplicaId(1),
        from_incarnation: cluster.node(1).incarnation(),
        to_incarnation: cluster.node(0).incarnation(),
        message,
    };
    cluster.input(0, Input::Peer(envelope));
    let counted = cluster.counter(0, "demand_keys");
    assert!(counted >= u64::from(keys), "{counted} keys were counted");
    let now = cluster.clock(0);
    let leader = cluster.node(0);
    least(20, || {
        for _ in 0..100 {
            let mut status = StatusReply::default();
            leader.describe_holders(now, b"", &mut status);
            assert!(!status.holders_of.is_empty());
        }
    })
}

/// In an earlier version, the leader searched all keys for the hottest one. A status request then
/// took 4 to 9 ms at 600,000 keys, and up to 16 such requests were served in one round.
#[test]
fn the_hottest_key_is_found_without_a_pass_over_all_keys() {
    let (few, many) = (hundred_statuses(200), hundred_statuses(100_000));
    assert!(many < few * 20, "{few:?} at 200 keys, {many:?} at 100,000");
}

/// Returns a map of 600 ranges, above those of [`small_range`]. So many ranges make the number of
/// ranges that a change passes over nearly independent of the number of waiting changes.
fn many_ranges() -> RangeMap<StrategySpec> {
    let ranges = (0..600).map(|nth| {
        let spec = [StrategySpec::Leader, StrategySpec::None][nth % 2].clone();
        (Key::from(format!("z{nth:04}")), spec)
    });
    let begin = [(Key::new(), StrategySpec::Leader)];
    RangeMap::from_starts(begin.into_iter().chain(ranges).collect()).expect("in order")
}

/// Returns a change that gives a small range another strategy than the neighboring ranges have.
fn small_range(nth: usize) -> LeaseSet {
    let key = |nth: usize| Key::from(format!("{nth:06}"));
    let range = KeyRange::new(key(2 * nth), Some(key(2 * nth + 1))).expect("some keys");
    LeaseSet {
        strategies: vec![(range, StrategySpec::All)],
        ..LeaseSet::default()
    }
}

/// Returns the processor time in which a leader accepts one more change of leases while `waiting`
/// changes wait.
fn one_more_change(waiting: usize) -> Duration {
    let again = (0..5).map(|_| {
        let mut cluster = Cluster::with(settings(3, many_ranges()));
        // The configuration with these changes is never accepted, so all of them wait.
        cluster.hold(|(envelope, _)| {
            matches!(&envelope.message, Message::Accept(accept) if accept.log == LogId::Configs)
        });
        for ask in 0..waiting {
            let set = small_range(ask);
            let ask = ask as u64 + 1;
            cluster.input(0, Input::Operator(OperatorRequest::Lease { ask, set }));
        }
        let (ask, set) = (1_000, small_range(waiting));
        let began = cpu();
        cluster.input(0, Input::Operator(OperatorRequest::Lease { ask, set }));
        let took = cpu() - began;
        assert!(cluster.lease_answers.is_empty(), "all of them wait");
        took
    });
    again.min().expect("it runs at least once")
}

/// Waiting changes are merged once, and not again for each new change. In an earlier version, they
/// were merged again, and a change cost five times as much with 60 changes ahead of it as with 8.
#[test]
fn changes_of_leases_that_wait_are_not_merged_again() {
    let (few, many) = (one_more_change(8), one_more_change(60));
    assert!(many < few * 3, "{few:?} behind 8, {many:?} behind 60");
}
