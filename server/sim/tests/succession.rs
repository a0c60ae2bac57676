//! Succession of leaders, and the time that clients wait until a new leader serves them. Faults are
//! injected in virtual time.

use std::time::Duration;

use leasehold_kernel::network::Faults;
use leasehold_leases::{ReplicaId, ReplicaSet, StrategySpec, UnlistedHolders};
use leasehold_replica::Settings;
use leasehold_sim::fault_injection::{FaultImpact, FaultInjection, InjectedFault};

const MS: u64 = 1_000_000;
/// Round-trip times in ms between CA, VA, IRL, OR and JP.
const RTT_MS: [[u64; 5]; 5] = [
    [0, 61, 134, 24, 108],
    [61, 0, 75, 68, 150],
    [134, 75, 0, 130, 212],
    [24, 68, 130, 0, 97],
    [108, 150, 212, 97, 0],
];

/// Returns settings with short durations: a heartbeat every 50 ms, an election timeout of 250 ms,
/// and guard and lease of 500 ms together.
fn fast(strategy: StrategySpec) -> Settings {
    let ms = Duration::from_millis;
    let mut settings = Settings::new(ReplicaId(0), 5);
    settings.strategies = strategy.into();
    settings.params.t_lease = ms(250);
    settings.params.t_guard = ms(250);
    settings.params.renew = ms(50);
    settings.params.t_grace = ms(500);
    settings.params.t0_cap = ms(400);
    settings.timing.heartbeat = ms(50);
    settings.timing.election_timeout = ms(250);
    settings.timing.retransmit = ms(250);
    settings.timing.ping = ms(100);
    settings
}

fn injection(settings: &Settings, fault: InjectedFault) -> FaultInjection {
    let one_way_ns = RTT_MS.map(|row| row.map(|rtt| (rtt * MS / 2).max(50_000)).to_vec());
    FaultInjection {
        settings: settings.clone(),
        one_way_ns: one_way_ns.to_vec(),
        faults: Faults::default(),
        bytes_per_s: 0,
        every_ns: 25 * MS,
        fault: Some((fault, None)),
        inject_after_ns: 0,
        repeat_after_ns: Vec::new(),
        lasts_ns: 2000 * MS,
        watch_ns: 4000 * MS,
    }
}

fn strategies() -> [StrategySpec; 4] {
    let unlisted = UnlistedHolders::Nearest;
    [
        StrategySpec::None,
        StrategySpec::Leader,
        StrategySpec::All,
        StrategySpec::Quorum { unlisted },
    ]
}

/// Checks that no rule was broken, and that no write failed at a site where the replica did not
/// end.
fn sound(after: &FaultImpact) {
    assert_eq!(after.violation, None);
    let failed = after.writes.iter().filter(|write| write.failed).count();
    assert_eq!(failed, 0, "no write fails");
}

/// Returns the maximum outage in ns after a leader is killed, paused or cut off. It is the sum of
/// max(election timeout, t_guard + t_lease) (1 + rho), two round trips, and 100 ms.
fn bound_ns(settings: &Settings) -> u64 {
    let params = &settings.params;
    let leases = params.t_guard + params.t_lease;
    let span = settings.timing.election_timeout.max(leases);
    let rtt = RTT_MS.iter().flatten().max().copied().unwrap_or(0);
    span.mul_f64(1.001).as_nanos() as u64 + (2 * rtt + 100) * MS
}

/// Injects a fault at many times, and returns the outages in rising order. Checks that the next
/// leader is the replica that serves the sites best, and that the old leader causes no election
/// when it is back.
fn outages(fault: InjectedFault, seeds: u64) -> Vec<u64> {
    let outage = |seed: u64| {
        let settings = fast(strategies()[(seed % 4) as usize].clone());
        let mut injection = injection(&settings, fault);
        injection.inject_after_ns = seed * 7 * MS;
        let after = injection.run(seed);
        sound(&after);
        let campaigns = after.campaigned.iter();
        let campaigns = campaigns.filter(|(at, _)| *at >= after.injected_ns).count();
        assert_eq!((after.elections(), campaigns), (1, 1), "seed {seed}");
        assert_eq!(after.leader(), Some(best_but(after.victim)), "seed {seed}");
        let outage_ns = after.outage_ns(5).expect("every site writes again");
        assert!(
            outage_ns <= bound_ns(&settings),
            "{fault:?} {seed}: {outage_ns} ns"
        );
        outage_ns
    };
    let mut outages: Vec<u64> = (0..seeds).map(outage).collect();
    outages.sort_unstable();
    outages
}

/// Returns the replica, other than `failed`, that would serve the sites best as the leader. A write
/// waits for the round trip from its site to the leader, and for the round trip from the leader to
/// the nearest majority. For the best leader, the average of this wait over all sites is lowest.
fn best_but(failed: ReplicaId) -> ReplicaId {
    let cost = |site: &usize| {
        let mut row = RTT_MS[*site];
        row.sort_unstable();
        row.iter().sum::<u64>() + 5 * row[2]
    };
    let others = (0..5).filter(|site| *site != failed.index());
    ReplicaId(others.min_by_key(cost).expect("others") as u8)
}

#[test]
fn a_killed_leader_costs_at_most_a_second() {
    let outages = outages(InjectedFault::Kill, 200);
    let p99 = outages[outages.len() * 99 / 100 - 1];
    assert!(p99 <= 1000 * MS, "p99 of {} ms", p99 / MS);
}

#[test]
fn a_leader_that_stands_still_or_is_cut_off_costs_no_more_and_returns_quietly() {
    for fault in [
        InjectedFault::Pause,
        InjectedFault::Cut,
        InjectedFault::Mute,
        InjectedFault::Deaf,
    ] {
        outages(fault, 12);
    }
}

#[test]
fn a_follower_that_was_away_deposes_nobody() {
    for fault in [
        InjectedFault::Kill,
        InjectedFault::Pause,
        InjectedFault::Cut,
        InjectedFault::Mute,
        InjectedFault::Deaf,
    ] {
        for follower in 2..5 {
            let settings = fast(StrategySpec::None);
            let mut injection = injection(&settings, fault);
            injection.fault = Some((fault, Some(ReplicaId(follower))));
            let after = injection.run(u64::from(follower));
            sound(&after);
            assert_eq!(after.elections(), 0, "{fault:?} of r{follower}");
            let longest = after.longest_ns().expect("all is answered");
            assert!(
                longest <= 450 * MS,
                "{fault:?} of r{follower}: {longest} ns"
            );
        }
    }
}

#[test]
fn who_is_preferred_leads_again_once_it_is_back() {
    for seed in 0..8 {
        let mut settings = fast(strategies()[seed as usize % 4].clone());
        settings.elections.preferred = Some(ReplicaId(2));
        let mut injection = injection(&settings, InjectedFault::Kill);
        // The leader has led for less than ten minutes, so it must first be healthy for ten
        // seconds.
        injection.watch_ns = 16_000 * MS;
        let after = injection.run(seed);
        sound(&after);
        assert_eq!(after.victim, ReplicaId(2));
        assert_eq!((after.elections(), after.leader()), (2, Some(ReplicaId(2))));
    }
}

#[test]
fn an_operators_move_wins_over_preference_and_fails_nothing() {
    for seed in 0..8 {
        let mut settings = fast(strategies()[seed as usize % 4].clone());
        settings.elections.preferred = Some(ReplicaId(2));
        let injection = injection(&settings, InjectedFault::Transfer(ReplicaId(4)));
        let after = injection.run(seed);
        sound(&after);
        assert_eq!((after.elections(), after.leader()), (1, Some(ReplicaId(4))));
        let longest = after.longest_ns().expect("all is answered");
        assert!(longest <= 1000 * MS, "{longest} ns");
    }
}

/// A dead holder blocks the writes of its keys until the last promise to it has ended. Then the
/// writes commit. The last promise is sent at most two renewals after the holder's last answer. Its
/// grantor keeps it for t_guard + t_lease, stretched for drift.
#[test]
fn a_dead_holder_stalls_its_keys_for_its_last_promise_only() {
    for (fault, holder) in [
        (InjectedFault::Kill, 4),
        (InjectedFault::Pause, 3),
        (InjectedFault::Cut, 2),
        (InjectedFault::Deaf, 4),
    ] {
        let settings = fast(StrategySpec::All);
        let mut injection = injection(&settings, fault);
        injection.fault = Some((fault, Some(ReplicaId(holder))));
        let after = injection.run(1);
        sound(&after);
        let params = &settings.params;
        let stall = params.renew * 2 + params.restart_wait();
        // The last answer of the holder was in transit, and the commit takes at most one round
        // trip.
        let bound_ns = stall.mul_f64(1.001).as_nanos() as u64 + 2 * 212 * MS;
        let longest_ns = after.longest_ns().expect("all is answered");
        assert!(longest_ns <= bound_ns, "{fault:?}: {} ms", longest_ns / MS);
        assert!(longest_ns >= 250 * MS, "{fault:?}: nothing was held");
    }
}

/// Each replica in turn is told to end and is started again, including the leader. No write fails,
/// and none waits for longer than an election. The replica leaves within three round trips and the
/// duration of an election.
#[test]
fn a_planned_restart_stalls_nobody() {
    for (seed, strategy) in (0..).zip(strategies()) {
        for victim in 0..5 {
            let settings = fast(strategy.clone());
            let mut injection = injection(&settings, InjectedFault::Leave);
            injection.fault = Some((InjectedFault::Leave, Some(ReplicaId(victim))));
            injection.lasts_ns = 500 * MS;
            let after = injection.run(seed);
            sound(&after);
            let longest_ns = after.longest_ns().expect("all is answered");
            let name = strategy.name();
            assert!(
                longest_ns <= 700 * MS,
                "{name}, r{victim}: {} ms",
                longest_ns / MS
            );
            let [(left_ns, _)] = after.left[..] else {
                panic!("{name}, r{victim} never left");
            };
            let took_ns = left_ns - after.injected_ns;
            assert!(took_ns <= 3 * 212 * MS, "{name}, r{victim}: {took_ns} ns");
        }
    }
}

/// The best successor dies just before the leader is told to end. Another replica takes over, and
/// no client has to wait until the election timeout reveals that the old leader has ended.
#[test]
fn a_leader_that_ends_hands_over_to_whoever_lives() {
    for (seed, lasts_ms) in (0..).zip([50, 150, 300]) {
        let mut settings = Settings::new(ReplicaId(0), 5);
        settings.strategies = StrategySpec::None.into();
        let quiet = injection(&settings, InjectedFault::Pause);
        let leader = FaultInjection {
            fault: None,
            ..quiet
        }
        .run(seed)
        .leader();
        let dead = best_but(leader.expect("somebody leads"));
        let mut injection = injection(&settings, InjectedFault::LeaveAfter(dead));
        injection.lasts_ns = lasts_ms * MS;
        let after = injection.run(seed);
        assert_eq!(after.violation, None);
        assert_eq!(after.elections(), 1);
        let stop_ns = after.injected_ns + injection.lasts_ns;
        let (led_ns, _) = *after.led.last().expect("somebody leads");
        // Two round trips and two heartbeats are for the dead successor, then another replica is
        // elected.
        assert!(
            led_ns - stop_ns <= 1250 * MS,
            "{} ms",
            (led_ns - stop_ns) / MS
        );
        assert_eq!(after.left.len(), 1, "it left before its time was over");
    }
}

/// Round trips are as long as the election timeout, or longer. A leader is elected nevertheless, as
/// soon as replicas have measured the round trips.
#[test]
fn replicas_far_apart_elect_a_leader() {
    for rtt_ms in [200, 240, 270, 300, 400, 800] {
        let settings = fast(StrategySpec::None);
        let mut injection = injection(&settings, InjectedFault::Pause);
        injection.fault = None;
        injection.every_ns = 0;
        for (from, delays) in (0..).zip(&mut injection.one_way_ns) {
            for (to, delay) in (0..).zip(delays) {
                *delay = if from == to { 50_000 } else { rtt_ms * MS / 2 };
            }
        }
        injection.watch_ns = 20_000 * MS;
        let after = injection.run(1);
        assert_eq!(after.violation, None);
        let settled = after
            .led
            .iter()
            .filter(|(at, _)| *at >= 4 * rtt_ms * MS + 4000 * MS);
        assert!(!after.led.is_empty(), "{rtt_ms} ms: nobody leads");
        assert_eq!(settled.count(), 0, "{rtt_ms} ms: {:?}", after.led);
    }
}

/// A leader dies with 30 MB of open slots. Its successor must receive them and propose them again
/// over links of 25 MB/s, and each of these two transfers takes longer than an election timeout.
/// There is only one election nevertheless.
#[test]
fn promises_that_take_longer_than_an_election_timeout_elect_a_leader() {
    for (seed, fast_one) in (0..).zip([true, false, true, false]) {
        let mut settings = if fast_one {
            fast(StrategySpec::None)
        } else {
            Settings::new(ReplicaId(0), 5)
        };
        settings.strategies = StrategySpec::None.into();
        let mut injection = injection(&settings, InjectedFault::Flood(30, 1_000_000));
        injection.bytes_per_s = 25_000_000;
        injection.every_ns = 100 * MS;
        // The fault lasts until all of the values have reached the other replicas.
        injection.lasts_ns = 1500 * MS;
        injection.watch_ns = 15_000 * MS;
        let after = injection.run(seed);
        sound(&after);
        assert_eq!(after.elections(), 1, "seed {seed}: {:?}", after.led);
        let transfer_ns = 30 * 1000 * MS / 25;
        let timeout_ns = settings.timing.election_timeout.as_nanos() as u64;
        let (led_ns, _) = *after.led.last().expect("somebody leads");
        let led_ns = led_ns - after.injected_ns;
        assert!(led_ns > 2 * transfer_ns, "the promises were large");
        let bound_ns = 2 * (transfer_ns + timeout_ns) + 500 * MS;
        assert!(led_ns <= bound_ns, "seed {seed}: {} ms", led_ns / MS);
        // Then the open slots commit. Their Accepts are sent again meanwhile.
        let outage_ns = after.outage_ns(5).expect("every site writes again");
        let bound_ns = bound_ns + 3 * transfer_ns;
        assert!(outage_ns <= bound_ns, "seed {seed}: {} ms", outage_ns / MS);
    }
}

/// The preferred leader is back. Before it may request leadership, messages of the current leader
/// no longer arrive at it. The current leader continues to lead, and no client waits for a replica
/// that cannot take over.
#[test]
fn a_preferred_leader_that_does_not_hear_stalls_nobody() {
    for seed in 0..4 {
        let mut settings = Settings::new(ReplicaId(0), 5);
        settings.strategies = StrategySpec::None.into();
        settings.elections.preferred = Some(ReplicaId(2));
        let mut injection = injection(&settings, InjectedFault::KillUnheard);
        injection.watch_ns = 20_000 * MS;
        let after = injection.run(seed);
        assert_eq!(after.violation, None);
        let back_ns = after.injected_ns + injection.lasts_ns;
        let since = after
            .writes
            .iter()
            .filter(|w| w.site != 2 && w.requested_ns >= back_ns);
        let waits = since.map(|write| write.answered_ns.map(|at| at - write.requested_ns));
        let waits = waits
            .collect::<Option<Vec<u64>>>()
            .expect("all is answered");
        let longest_ns = waits.into_iter().max().expect("there are writes");
        assert!(longest_ns <= 500 * MS, "{} ms", longest_ns / MS);
        assert_eq!(after.elections(), 1, "seed {seed}");
    }
}

/// Returns an injection at three sites with default durations, in which replica 0 is the preferred
/// leader. Replica 0 fails repeatedly: each failure lasts `lasts_ms`, and a failure begins every
/// `period_ms`.
fn flapping(fault: InjectedFault, lasts_ms: u64, period_ms: u64) -> FaultInjection {
    let mut settings = Settings::new(ReplicaId(0), 3);
    settings.elections.preferred = Some(ReplicaId(0));
    let mut injection = injection(&settings, fault);
    let three = injection.one_way_ns.iter().take(3);
    injection.one_way_ns = three.map(|row| row[..3].to_vec()).collect();
    injection.fault = Some((fault, Some(ReplicaId(0))));
    injection.repeat_after_ns = (1..30).map(|time| time * period_ms * MS).collect();
    injection.lasts_ns = lasts_ms * MS;
    injection.watch_ns = 30 * period_ms * MS;
    injection
}

/// A preferred leader that fails repeatedly must not lead each time it is back, because every
/// change of leadership delays all writes.
#[test]
fn a_preferred_leader_that_flaps_leads_seldom() {
    for (fault, lasts_ms, period_ms) in [
        (InjectedFault::Pause, 1500, 3500),
        (InjectedFault::Cut, 1800, 4500),
        (InjectedFault::Mute, 1800, 4500),
        (InjectedFault::Deaf, 1800, 4500),
        (InjectedFault::Kill, 500, 6000),
    ] {
        for seed in 0..4 {
            let after = flapping(fault, lasts_ms, period_ms).run(seed);
            assert_eq!(after.violation, None, "{fault:?}, seed {seed}");
            let changes = after.elections();
            assert!(
                (1..=6).contains(&changes),
                "{fault:?}, seed {seed}: {changes} changes of leadership: {:?}",
                after.led
            );
        }
    }
}

/// The preferred leader flaps 30 times, and then works normally for more than an hour. When it then
/// fails once, it leads again as soon as it is back, because it had led for long. When it fails
/// again soon afterwards, it leads again ten seconds after it is back, as if it had never flapped.
#[test]
fn a_preferred_leader_leads_again_once_it_is_healthy() {
    let mut injection = flapping(InjectedFault::Pause, 1500, 3500);
    let late_ms = [30 * 3500 + 3_700_000, 30 * 3500 + 3_730_000];
    injection.every_ns = 0;
    injection
        .repeat_after_ns
        .extend(late_ms.map(|late| late * MS));
    injection.watch_ns = (late_ms[1] + 60_000) * MS;
    let after = injection.run(1);
    assert_eq!(after.violation, None);
    let strikes_ns = late_ms.map(|late| after.injected_ns + late * MS);
    let mut early = after.led.iter().filter(|(at, _)| *at < strikes_ns[0]);
    let leader = early.next_back().map(|(_, leader)| *leader);
    assert_eq!(
        leader,
        Some(ReplicaId(0)),
        "an hour of health brings it back"
    );
    for (strike_ns, least_ms, most_ms) in [(strikes_ns[0], 0, 2500), (strikes_ns[1], 9900, 13_000)]
    {
        let mut since = after.led.iter().filter(|(at, _)| *at >= strike_ns);
        let another = since.next().expect("another takes over");
        assert_ne!(another.1, ReplicaId(0));
        let (led_ns, leader) = *since.next().expect("one change of leadership follows");
        assert_eq!(leader, ReplicaId(0));
        let waited_ms = (led_ns - strike_ns - injection.lasts_ns) / MS;
        assert!((least_ms..most_ms).contains(&waited_ms), "{waited_ms} ms");
    }
}

/// A planned restart does not count as a failure: the preferred leader leads again as soon as it is
/// back and up to date.
#[test]
fn a_preferred_leader_that_ends_as_it_was_told_leads_again_at_once() {
    for seed in 0..4 {
        let mut injection = flapping(InjectedFault::Leave, 500, 10_000);
        injection.repeat_after_ns.truncate(4);
        injection.watch_ns = 50_000 * MS;
        let after = injection.run(seed);
        assert_eq!(after.violation, None);
        assert_eq!(after.elections(), 10, "seed {seed}: {:?}", after.led);
        assert_eq!(after.leader(), Some(ReplicaId(0)));
    }
}

/// A follower is paused again and again, each time for longer than t_grace, and each time it is
/// excluded from leases. If it became a holder again after every pause, each pause would block the
/// writes of the keys that it holds.
#[test]
fn a_holder_that_flaps_returns_seldom() {
    for seed in 0..4 {
        let mut injection = flapping(InjectedFault::Pause, 3000, 9000);
        injection.settings.strategies = StrategySpec::All.into();
        injection.fault = Some((InjectedFault::Pause, Some(ReplicaId(2))));
        injection.watch_ns += 30_000 * MS;
        let after = injection.run(seed);
        sound(&after);
        let changes = after.excluded.len();
        assert!(
            (1..=6).contains(&changes),
            "{changes}: {:?}",
            after.excluded
        );
        let last = after.excluded.last().expect("it was excluded");
        assert_eq!(
            last.1,
            ReplicaSet::EMPTY,
            "it holds leases again in the end"
        );
    }
}
