//! Changes of strategies and lease durations that operators make while a cluster runs. Clients must
//! not notice these changes.

use std::time::Duration;

use leasehold_leases::{
    Configs, Key, KeyRange, ReplicaId, ReplicaSet, StrategySpec, UnlistedHolders,
};
use leasehold_replica::lease_set::{Durations, InForce, LeaseAnswer, LeaseSet, Refusal};
use leasehold_replica::message::{LogId, Message};
use leasehold_replica::{Input, OperatorRequest};

use super::cluster::{Cluster, Packet, read};

fn strategy(range: KeyRange, spec: StrategySpec) -> LeaseSet {
    LeaseSet {
        strategies: vec![(range, spec)],
        ..LeaseSet::default()
    }
}

fn quorum() -> StrategySpec {
    let unlisted = UnlistedHolders::Nearest;
    StrategySpec::Quorum { unlisted }
}

fn ask(cluster: &mut Cluster, node: usize, ask: u64, set: &LeaseSet) {
    let set = set.clone();
    cluster.input(node, Input::Operator(OperatorRequest::Lease { ask, set }));
}

/// Waits for the answer to request `ask` at `node`, and returns it.
fn answer(cluster: &mut Cluster, node: usize, ask: u64) -> LeaseAnswer {
    let find = |cluster: &Cluster| {
        let mut answers = cluster.lease_answers.iter().rev();
        answers
            .find(|(at, to, _)| (*at, *to) == (node, ask))
            .cloned()
    };
    cluster.pass_until(5_000, "an answer", |cluster| find(cluster).is_some());
    find(cluster).expect("it is there").2
}

fn configs(cluster: &Cluster, node: usize) -> &Configs {
    cluster.node(node).configs()
}

fn is_answer(packet: &Packet) -> bool {
    matches!(packet.0.message, Message::LeaseAnswer { .. })
}

fn proposes_configuration(packet: &Packet) -> bool {
    matches!(&packet.0.message, Message::Accept(accept) if accept.log == LogId::Configs)
}

#[test]
fn any_replica_takes_a_change_and_says_when_it_is_in_force() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let range = KeyRange::new(Key::from("m"), None).expect("some keys");
    let set = strategy(range, StrategySpec::All);
    cluster.lose(is_answer);
    ask(&mut cluster, 2, 1, &set);
    cluster.pass(1_000);
    assert!(cluster.lease_answers.is_empty(), "the answer is lost");
    cluster.heal();
    // The operator repeats the request with the same number, and gets the same answer.
    let before = configs(&cluster, 0).newest();
    ask(&mut cluster, 2, 1, &set);
    let InForce { config, already } = answer(&mut cluster, 2, 1).expect("in force");
    assert!(!already && config == before);
    cluster.pass(1_000);
    assert_eq!(configs(&cluster, 0).newest(), before);
    for node in 0..3 {
        let configs = configs(&cluster, node);
        assert_eq!(configs.holders(b"z"), ReplicaSet::all(3));
        assert_eq!(configs.holders(b"a"), ReplicaSet::one(ReplicaId(0)));
    }
    // Another request is sent to the leader itself.
    let set = strategy(KeyRange::all(), StrategySpec::None);
    ask(&mut cluster, 0, 1, &set);
    let in_force = answer(&mut cluster, 0, 1).expect("in force");
    assert!(!in_force.already && in_force.config > before);
    assert!(configs(&cluster, 0).holders(b"z").is_empty());
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let before = configs(&cluster, 0).newest();
    let fixed = |bits| StrategySpec::Fixed {
        holders: Some(ReplicaSet(bits)),
    };
    let lease = |ms| LeaseSet {
        durations: Durations {
            t_lease: Some(Duration::from_millis(ms)),
            ..Durations::default()
        },
        ..LeaseSet::default()
    };
    let many = (0..1025).map(|i| {
        let from = Key::from(format!("{i:04}"));
        let spec = [StrategySpec::All, StrategySpec::None][i % 2].clone();
        (KeyRange::new(from, None).expect("some keys"), spec)
    });
    let many = LeaseSet {
        strategies: many.collect(),
        ..LeaseSet::default()
    };
    for (nth, (set, part)) in (1..).zip([
        (strategy(KeyRange::all(), fixed(0b1000)), "holders"),
        (strategy(KeyRange::all(), fixed(0)), "at least one"),
        (lease(500), "t_lease_ms: 500 ms is shorter than renew_ms"),
        (lease(61_000), "--force"),
        (many, "1024 ranges at most"),
    ]) {
        for node in [0, 1] {
            ask(&mut cluster, node, nth, &set);
            let refusal = answer(&mut cluster, node, nth).expect_err("refused");
            let refusal = refusal.reason();
            assert!(refusal.contains(part), "{part:?} is not in {refusal:?}");
        }
    }
    let forced = LeaseSet {
        force: true,
        ..lease(61_000)
    };
    assert_eq!(configs(&cluster, 0).newest(), before);
    ask(&mut cluster, 1, 9, &forced);
    assert!(answer(&mut cluster, 1, 9).is_ok());
}

/// Several requests arrive together. Each is answered, even if all of them together change nothing.
#[test]
fn changes_that_come_together_are_all_answered() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let before = configs(&cluster, 0).newest();
    let all = |spec| strategy(KeyRange::all(), spec);
    let lease = |ms| LeaseSet {
        durations: Durations {
            t_lease: Some(Duration::from_millis(ms)),
            ..Durations::default()
        },
        ..LeaseSet::default()
    };
    // While one request is being applied, others wait.
    let together = |cluster: &mut Cluster, first: LeaseSet, sets: [LeaseSet; 3]| {
        cluster.hold(proposes_configuration);
        ask(cluster, 0, 9, &first);
        for (nth, set) in (10..).zip(&sets) {
            ask(cluster, 0, nth, set);
        }
        cluster.pass(200);
        assert_eq!(cluster.lease_answers, [], "nothing is in force yet");
        cluster.release();
        let answers = [9, 10, 11, 12].map(|nth| answer(cluster, 0, nth).expect("in force"));
        cluster.lease_answers.clear();
        answers.map(|it| it.already)
    };
    // The durations change and change back, so that no change remains.
    let sets = [lease(3_000), lease(5_000), lease(4_000)];
    let back = together(&mut cluster, lease(4_000), sets);
    assert_eq!(back, [false, true, true, true]);
    assert_eq!(configs(&cluster, 0).newest().0, before.0 + 1);
    let sets = [
        all(StrategySpec::Leader),
        all(StrategySpec::All),
        lease(3_000),
    ];
    let news = together(&mut cluster, lease(2_000), sets);
    assert_eq!(news, [false, true, false, false]);
    assert_eq!(configs(&cluster, 0).newest().0, before.0 + 3);
    assert_eq!(configs(&cluster, 0).holders(b"k"), ReplicaSet::all(3));
}

fn durations(durations: Durations) -> LeaseSet {
    LeaseSet {
        durations,
        ..LeaseSet::default()
    }
}

/// Returns the reason with which a request was refused for now.
fn busy(cluster: &mut Cluster, node: usize, nth: u64) -> String {
    match answer(cluster, node, nth) {
        Err(Refusal::Busy(reason)) => reason,
        other => panic!("not busy: {other:?}"),
    }
}

/// Each of two requests is compatible with the durations in force, but both requests together are
/// not.
#[test]
fn a_change_is_judged_with_those_that_are_under_way() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let before = configs(&cluster, 0).newest();
    let ms = |ms| Some(Duration::from_millis(ms));
    let lease = durations(Durations {
        t_lease: ms(1_000),
        ..Durations::default()
    });
    let renew = durations(Durations {
        renew: ms(1_500),
        ..Durations::default()
    });
    cluster.hold(proposes_configuration);
    ask(&mut cluster, 0, 1, &lease);
    ask(&mut cluster, 1, 2, &renew);
    let refusal = answer(&mut cluster, 1, 2).expect_err("both cannot be");
    assert!(refusal.reason().contains("renew_ms, 1500 ms"));
    // The same holds while the first request only waits for another.
    let guard = durations(Durations {
        t_guard: ms(1_900),
        ..Durations::default()
    });
    ask(&mut cluster, 0, 3, &guard);
    let shorter = durations(Durations {
        t_guard: ms(1_800),
        t_lease: ms(501),
        ..Durations::default()
    });
    ask(&mut cluster, 0, 4, &shorter);
    let renew = durations(Durations {
        renew: ms(600),
        ..Durations::default()
    });
    ask(&mut cluster, 0, 5, &renew);
    assert!(answer(&mut cluster, 0, 5).is_err());
    cluster.release();
    for nth in [1, 3, 4] {
        assert!(answer(&mut cluster, 0, nth).is_ok());
    }
    let configs = configs(&cluster, 0);
    assert_eq!(configs.newest().0, before.0 + 2);
    assert_eq!(
        configs.params(configs.newest()).renew,
        Duration::from_millis(500)
    );
}

/// More requests wait than a leader keeps. The request above the limit is refused as one that may
/// be retried, not as an impossible change.
#[test]
fn a_leader_that_keeps_as_many_changes_as_it_may_is_busy() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let nth_set = |nth: u64| {
        let (from, to) = (format!("{nth:02}"), format!("{:02}", nth + 1));
        let range = KeyRange::new(Key::from(from), Some(Key::from(to)));
        strategy(range.expect("some keys"), StrategySpec::All)
    };
    cluster.hold(proposes_configuration);
    for nth in 1..=64 {
        ask(&mut cluster, 0, nth, &nth_set(nth));
    }
    for node in [0, 1] {
        ask(&mut cluster, node, 65, &nth_set(65));
        assert!(busy(&mut cluster, node, 65).contains("64 changes"));
    }
    cluster.release();
    for nth in 1..=64 {
        assert!(answer(&mut cluster, 0, nth).is_ok());
    }
    cluster.lease_answers.clear();
    ask(&mut cluster, 1, 65, &nth_set(65));
    assert!(answer(&mut cluster, 1, 65).is_ok());
}

/// A new leader cannot judge durations until it knows all round-trip times, and cannot judge any
/// request until it has executed the proposals of the last leader.
#[test]
fn a_leader_that_does_not_know_enough_yet_is_busy() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let lease = durations(Durations {
        t_lease: Some(Duration::from_secs(3)),
        ..Durations::default()
    });
    cluster.lose(|(envelope, _)| matches!(envelope.message, Message::Demand(_)));
    cluster.hold(proposes_configuration);
    cluster.elect(1);
    assert!(cluster.leads(1));
    let all = strategy(KeyRange::all(), StrategySpec::All);
    ask(&mut cluster, 1, 1, &all);
    assert!(busy(&mut cluster, 1, 1).contains("has just begun"));
    cluster.release();
    cluster.lease_answers.clear();
    cluster.pass(500);
    ask(&mut cluster, 1, 2, &lease);
    assert!(busy(&mut cluster, 1, 2).contains("round trips"));
    // Strategies are judged without round-trip times.
    ask(&mut cluster, 1, 1, &all);
    assert!(answer(&mut cluster, 1, 1).is_ok());
    cluster.heal();
    cluster.pass(1_500);
    cluster.lease_answers.clear();
    ask(&mut cluster, 1, 2, &lease);
    assert!(answer(&mut cluster, 1, 2).is_ok());
}

/// A new leader does not know the requests that the old one received. Every requester sends its
/// request again.
#[test]
fn a_change_that_a_leader_took_with_it_is_asked_for_again() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let set = strategy(KeyRange::all(), StrategySpec::All);
    cluster.isolate(0);
    ask(&mut cluster, 1, 1, &set);
    cluster.crash(0);
    cluster.heal();
    cluster.elect(1);
    cluster.pass(2_000);
    assert!(cluster.lease_answers.is_empty());
    ask(&mut cluster, 1, 1, &set);
    assert!(answer(&mut cluster, 1, 1).is_ok());
}

/// The first copy of a request arrives after the second was answered, and after another request has
/// changed the same settings.
#[test]
fn a_late_copy_of_a_change_that_was_answered_undoes_no_later_one() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let all = strategy(KeyRange::all(), StrategySpec::All);
    let none = strategy(KeyRange::all(), StrategySpec::None);
    cluster.hold(|(envelope, _)| matches!(envelope.message, Message::SetLease { .. }));
    ask(&mut cluster, 2, 1, &all);
    let late = cluster.held[0].clone();
    cluster.forget_held();
    cluster.pass(1_000);
    ask(&mut cluster, 2, 1, &all);
    assert!(answer(&mut cluster, 2, 1).is_ok());
    ask(&mut cluster, 1, 1, &none);
    assert!(answer(&mut cluster, 1, 1).is_ok());
    assert!(configs(&cluster, 0).holders(b"k").is_empty());
    cluster.deliver(late);
    cluster.pass(2_000);
    assert!(configs(&cluster, 0).holders(b"k").is_empty());
}

/// A leader that was replaced may not know this yet. It must not answer that a change is already in
/// force, because the new leader may already have replaced that change by another.
#[test]
fn who_was_replaced_does_not_say_that_a_change_is_in_force_already() {
    let mut cluster = Cluster::new(3, StrategySpec::Leader);
    let leader = strategy(KeyRange::all(), StrategySpec::Leader);
    let all = strategy(KeyRange::all(), StrategySpec::All);
    let before = configs(&cluster, 0).newest();
    cluster.isolate(0);
    cluster.elect(1);
    cluster.pass_until(1_000, "another leads", |cluster| cluster.leads(1));
    ask(&mut cluster, 2, 1, &all);
    assert!(!answer(&mut cluster, 2, 1).expect("in force").already);
    assert!(cluster.leads(0), "it does not know");
    assert_eq!(configs(&cluster, 0).newest(), before);
    cluster.lease_answers.clear();
    ask(&mut cluster, 0, 1, &leader);
    cluster.pass(300);
    assert_eq!(cluster.lease_answers, [], "it cannot know what is in force");
    cluster.heal();
    cluster.pass_until(5_000, "it follows", |cluster| !cluster.leads(0));
    cluster.pass(500);
    ask(&mut cluster, 0, 1, &leader);
    assert!(!answer(&mut cluster, 0, 1).expect("in force").already);
    let holders = configs(&cluster, 1).holders(b"k");
    assert_eq!(holders, ReplicaSet::one(ReplicaId(1)));
}

/// Puts `spec` in force. Checks at every moment that `key` can be read locally by each replica that
/// holds the key both before and after the change.
fn switch(cluster: &mut Cluster, nth: u64, spec: &StrategySpec, key: &[u8]) {
    let holders = |cluster: &Cluster| configs(cluster, 0).holders(key);
    let before = holders(cluster);
    ask(cluster, 3, nth, &strategy(KeyRange::all(), spec.clone()));
    let mut denied = Vec::new();
    let mut after = before;
    for tick in 0..400 {
        cluster.pass(20);
        after = holders(cluster);
        let may = |node: &ReplicaId| {
            let node = node.index();
            cluster.node(node).may_read(cluster.clock(node), key)
        };
        denied.extend(
            before
                .iter()
                .filter(|node| !may(node))
                .map(|node| (tick, node)),
        );
    }
    assert!(answer(cluster, 3, nth).is_ok());
    denied.retain(|(_, node)| after.contains(*node));
    assert_eq!(denied, [], "{}: from {before:?} to {after:?}", spec.name());
}

/// §11: old grants are obeyed while they last, new ones begin immediately, and a strategy that
/// lists keys changes the default holders last. So a read that is local under both strategies is
/// local at every moment. There are more keys than one log entry may list.
#[test]
fn who_holds_a_key_under_both_strategies_holds_it_all_the_time() {
    let mut cluster = Cluster::new(5, quorum());
    let key = "z";
    for _ in 0..8 {
        cluster.ask(4, read(key));
    }
    for i in 0..600 {
        let name = format!("{i:04}{}", "x".repeat(4_000));
        cluster.ask(4, read(String::leak(name)));
    }
    let far = |cluster: &Cluster| {
        configs(cluster, 0)
            .holders(key.as_bytes())
            .contains(ReplicaId(4))
    };
    cluster.pass_until(10_000, "the reader holds the key", far);
    cluster.pass(3_000);
    let strategies = [
        StrategySpec::All,
        quorum(),
        StrategySpec::Leader,
        quorum(),
        StrategySpec::Fixed {
            holders: Some([0, 3, 4].map(ReplicaId).into_iter().collect()),
        },
        quorum(),
        StrategySpec::None,
        StrategySpec::All,
        quorum(),
    ];
    for (nth, spec) in (1..).zip(&strategies) {
        switch(&mut cluster, nth, spec, key.as_bytes());
        let lists = matches!(spec, StrategySpec::Quorum { .. });
        assert!(far(&cluster) || !lists, "the reader holds it under quorum");
    }
}

/// A leader that loses leadership forgets the reports of demand that it received. A pass over these
/// reports ends at the same time. When the replica leads again, it does not continue the pass with
/// new reports.
#[test]
fn a_pass_over_the_demand_ends_with_the_leadership() {
    let mut cluster = Cluster::new(3, quorum());
    cluster.pass(1_000);
    for _ in 0..3 {
        cluster.read(0, "k");
    }
    let mut pass = cluster.node(0).begin_demand_pass().expect("it leads");
    assert!(cluster.node(1).begin_demand_pass().is_none(), "it does not");
    assert!(cluster.node(0).may_go_on(&pass));
    cluster.node(0).look_at_demand(&mut pass, 1);
    cluster.elect(1);
    cluster.pass_until(5_000, "another leads", |cluster| cluster.leads(1));
    cluster.pass(100);
    assert!(!cluster.node(0).may_go_on(&pass));
    assert!(cluster.node(0).begin_demand_pass().is_none());
    cluster.elect(0);
    cluster.pass_until(5_000, "it leads again", |cluster| cluster.leads(0));
    assert!(!cluster.node(0).may_go_on(&pass), "a later leadership");
    assert!(cluster.node(0).begin_demand_pass().is_some());
}
