use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use smallvec::SmallVec;

use super::*;

fn conditions(rtts: RoundTrips) -> Conditions {
    Conditions {
        rtts,
        replies: Replies::LeaderAndOrigin,
        client_ms: 0.4,
        sync_ms: 0.0,
        unlisted: UnlistedHolders::Nearest,
        preference: Preference {
            read_weight: 0.5,
            spare: 0,
        },
    }
}

/// Returns a key with these rates of reads and writes for each origin, in operations a second.
fn group(reads: [f32; 5], writes: [f32; 5]) -> KeyGroup {
    KeyGroup {
        keys: 1.0,
        rates: reads.into_iter().chain(writes).collect(),
        reads: SmallVec::from_slice(&reads),
        holders: set(&[4]),
    }
}

fn set(ids: &[u8]) -> ReplicaSet {
    ids.iter().copied().map(ReplicaId).collect()
}

/// Returns a profile of these keys. Clients have requested every key of the profile.
fn profile(keys: Vec<KeyGroup>) -> Profile {
    let unrequested = KeyGroup {
        keys: 0.0,
        ..group([0.0; 5], [0.0; 5])
    };
    Profile::new(5, keys, unrequested, 1000.0).expect("five replicas")
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-3, "{found}, not {expected}");
}

#[test]
fn one_key_costs_what_its_holders_cost() {
    let conditions = conditions(RoundTrips::paper());
    // JP reads the key and VA writes it, so rarely that no read waits for a write.
    let one = profile(vec![group(
        [3e-6, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 1e-6, 0.0],
    )]);
    for (plan, read_ms, write_ms) in [
        (HolderPlan::None, 120.0 + 85.0, 90.0),
        (HolderPlan::Leader, 120.0, 90.0),
        (HolderPlan::All, 0.0, 192.5),
        // CA, JP and OR hold the key.
        (HolderPlan::Quorum, 0.0, 192.5),
        // JP reads three times as often as VA writes, so JP holds the key.
        (HolderPlan::Cost, 0.0, 192.5),
        (HolderPlan::AsNow, 270.0, 163.5),
    ] {
        let found = forecast(&conditions, &one, plan, ReplicaId(1));
        close(found.read_ms, read_ms + 0.4);
        close(found.write_ms, write_ms + 0.4);
        close(found.mean_ms, (3.0 * read_ms + write_ms) / 4.0 + 0.4);
        close(found.sites[0].read_ms, read_ms + 0.4);
        close(found.sites[3].write_ms, write_ms + 0.4);
        assert_eq!(found.local, if read_ms == 0.0 { 1.0 } else { 0.0 });
        let least = if write_ms == 90.0 { 1.0 } else { 0.0 };
        assert_eq!(found.at_minimum, least, "{plan:?}");
    }
}

#[test]
fn keys_count_as_many_as_they_stand_for() {
    let conditions = conditions(RoundTrips::paper());
    let read = |site: usize, keys: f32| {
        let mut reads = [0.0; 5];
        reads[site] = 1.0;
        KeyGroup {
            keys,
            ..group(reads, [0.0; 5])
        }
    };
    let both = profile(vec![read(0, 3.0), read(4, 1.0)]);
    let found = forecast(&conditions, &both, HolderPlan::Leader, ReplicaId(1));
    close(found.mean_ms, (3.0 * 120.0 + 150.0) / 4.0 + 0.4);
    close(found.sites[0].reads, 3.0);
}

#[test]
fn keys_that_nobody_has_read_have_default_holders() {
    let unrequested = KeyGroup {
        keys: 10.0,
        reads: SmallVec::from_elem(0.0, 5),
        ..group([0.0, 0.0, 0.0, 1e-6, 0.0], [0.0; 5])
    };
    let profile = Profile::new(5, Vec::new(), unrequested, 0.0).unwrap();
    let mut conditions = conditions(RoundTrips::paper());
    let read_ms =
        |conditions: &Conditions, plan| forecast(conditions, &profile, plan, ReplicaId(1)).read_ms;
    close(read_ms(&conditions, HolderPlan::Quorum), 0.4);
    close(read_ms(&conditions, HolderPlan::Cost), 0.4);
    conditions.unlisted = UnlistedHolders::Leader;
    close(read_ms(&conditions, HolderPlan::Quorum), 85.4);
}

/// Demand comes from both sides of the Atlantic while Japan leads, so another replica should lead.
/// Trying every leader with every set of holders of every key finds the best leader and its
/// latencies.
#[test]
fn the_best_leader_is_found_whoever_leads_now() {
    let conditions = conditions(RoundTrips::paper());
    let local = |site: usize| {
        let mut rates = [0.0; 5];
        rates[site] = 1e-6;
        (site as u8, group(rates, rates))
    };
    let keys = [local(4), local(4), local(3), local(3), local(2), local(0)];
    let replies = conditions.replies;
    let tried = |leader: u8| -> f64 {
        let distance = Distance::new(conditions.rtts.clone(), ReplicaId(leader));
        let least = |site: u8| {
            let sets = (0..32).map(ReplicaSet);
            let sets = sets.filter(|set| set.contains(ReplicaId(leader)));
            let (site, distance) = (ReplicaId(site), &distance);
            let both =
                sets.map(|set| distance.read_ms(site, set) + distance.write_ms(site, set, replies));
            both.fold(f64::INFINITY, f64::min) / 2.0
        };
        keys.iter().map(|(site, _)| least(*site)).sum::<f64>() / 6.0 + 0.4
    };
    let expected = (0..5).min_by(|a, b| tried(*a).total_cmp(&tried(*b)));
    let all = profile(keys.iter().map(|(_, group)| group.clone()).collect());
    let found = forecasts(&conditions, &all, &[HolderPlan::Cost]);
    let leader = best(&found).map(|best| best.leader.0);
    assert_eq!(leader, expected);
    assert_ne!(leader, Some(0), "Japan leads");
    for one in &found {
        close(one.mean_ms, tried(one.leader.0));
    }
    let more = forecasts(&conditions, &all, &HolderPlan::STRATEGIES);
    assert_eq!(more.len(), 25);
    let mean_ms = |all| best(all).map(|best| best.mean_ms);
    assert_eq!(mean_ms(&more), mean_ms(&found));
}

/// `cost` chooses the best holders of every key, so no other plan has a lower mean latency.
#[test]
fn no_plan_beats_cost_where_reads_wait_for_nobody() {
    let conditions = conditions(RoundTrips::paper());
    let mut random = Pcg64Mcg::seed_from_u64(7);
    let mut rates = || std::array::from_fn(|_| random.random::<f32>() * 1e-6);
    let keys = (0..200).map(|_| group(rates(), rates())).collect();
    let profile = profile(keys);
    for leader in (0..5).map(ReplicaId) {
        let mean = |plan| forecast(&conditions, &profile, plan, leader).mean_ms;
        let cost = mean(HolderPlan::Cost);
        for plan in [HolderPlan::Leader, HolderPlan::All, HolderPlan::Quorum] {
            assert!(cost <= mean(plan) + 1e-6, "{plan:?} under {leader:?}");
        }
    }
}

/// Writes at CA hold back CA's own reads until OR and VA have answered, which takes 85 ms.
#[test]
fn reads_wait_for_writes_in_flight_as_long_as_clients_see() {
    let conditions = conditions(RoundTrips::paper());
    let (reads, writes) = ([0.0, 1.0, 0.0, 0.0, 0.0], [0.0, 8.0, 0.0, 0.0, 0.0]);
    let busy = profile(vec![group(reads, writes)]);
    let found = forecast(&conditions, &busy, HolderPlan::Leader, ReplicaId(1)).read_ms - 0.4;
    // A read waits for the rest of the 85 ms that the newest write takes. Draw the write's age at
    // random:
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let mut draw = || {
        let age_ms = -random.random::<f64>().ln() / 8.0 * 1e3;
        (85.0 - age_ms).max(0.0)
    };
    let drawn: f64 = (0..200_000).map(|_| draw()).sum::<f64>() / 200_000.0;
    assert!((found - drawn).abs() < 0.5, "{found}, drawn {drawn}");
    assert!(found > 20.0, "{found}");
}

#[test]
fn holders_that_fail_stall_the_writes_of_their_keys() {
    let conditions = conditions(RoundTrips::paper());
    let rates = |site: usize| {
        let mut rates = [0.0; 5];
        rates[site] = 1.0;
        rates
    };
    // JP reads one key, OR reads two, and CA writes all of them.
    let keys = vec![
        group(rates(0), rates(1)),
        group(rates(2), rates(1)),
        group(rates(2), rates(1)),
    ];
    let profile = profile(keys);
    let of = |plan| forecast(&conditions, &profile, plan, ReplicaId(1));
    for plan in [HolderPlan::None, HolderPlan::Leader] {
        assert_eq!((of(plan).worst_stall(), of(plan).spare()), (None, 4));
    }
    assert_eq!(of(HolderPlan::All).worst_stall(), Some((ReplicaId(0), 1.0)));
    assert_eq!(of(HolderPlan::All).spare(), 0);
    let cost = of(HolderPlan::Cost);
    close(cost.stalled[0], 1.0 / 3.0);
    assert_eq!(cost.stalled[1], 0.0, "it leads");
    assert_eq!(cost.stalled[4], 0.0);
}

#[test]
fn nothing_asked_is_no_latency() {
    let conditions = conditions(RoundTrips::paper());
    let none = profile(Vec::new());
    let found = forecast(&conditions, &none, HolderPlan::Cost, ReplicaId(0));
    assert_eq!((found.mean_ms, found.local), (0.0, 0.0));
    assert_eq!(found.worst_stall(), None);
}
