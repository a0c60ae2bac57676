use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::ConfigChange;

use super::*;
use crate::oracle::test_world::{BALLOT, ReplicaState, TestWorld, promise, puts, says};
use leasehold_replica::Input;
use leasehold_replica::action::{Record, Sequence};
use leasehold_replica::message::LogNews;

/// A world in which replica 0 leads, and slot 6 is on every disk.
struct SlotSix {
    world: TestWorld,
    quorums: QuorumOracle,
    ballot: Ballot,
    rest: Vec<Action>,
}

impl SlotSix {
    fn new() -> SlotSix {
        SlotSix::accepted_at(BALLOT)
    }

    /// Returns a world in which slot 6 is accepted in memory at `ballot`, and at the first ballot
    /// on disk.
    fn accepted_at(ballot: Ballot) -> SlotSix {
        let has = || ReplicaState {
            accepted: vec![(6, puts(&["a"]))],
            ballot,
            ..ReplicaState::default()
        };
        let mut world = TestWorld::new([has(), has(), has()]);
        for node in &mut world.nodes {
            node.disk.persist(Sequence(1), vec![accepted()]);
            node.disk.synced();
        }
        SlotSix {
            world,
            quorums: QuorumOracle::new(3),
            ballot: BALLOT,
            rest: Vec::new(),
        }
    }

    /// Lets `node` send a message in a new step.
    fn says(&mut self, node: usize, message: Message) -> Verdict {
        self.quorums.judge_again();
        self.adds(node, message)
    }

    /// Lets `node` send a message in the same step as the previous message.
    fn adds(&mut self, node: usize, message: Message) -> Verdict {
        let (node, _, envelope) = says((node, 1), (0, 1), message);
        let ctx = StepContext {
            snapshot: &self.world.snapshot(),
            node,
            rest: &self.rest,
        };
        self.quorums.sent(ctx, &envelope)
    }

    fn proposes(&mut self, key: &'static str, tag: u64) -> Verdict {
        self.proposes_with(key, Some(ReplicaSet(tag)))
    }

    /// Lets the leader propose a put of `key`, with or without its own vote.
    fn proposes_with(&mut self, key: &'static str, vote: Option<ReplicaSet>) -> Verdict {
        let accept = Accept {
            ballot: self.ballot,
            log: LogId::Commands,
            slot: Slot(6),
            value: puts(&[key]),
            vote,
            news: LogNews::default(),
            last_multi: Slot::ZERO,
            infallible: Arc::from([]),
        };
        self.says(0, Message::Accept(accept))
    }

    fn votes(&mut self, node: usize, tag: u64) -> Verdict {
        let vote = self.vote(tag);
        self.says(node, vote)
    }

    fn vote(&self, tag: u64) -> Message {
        let (ballot, log) = (self.ballot, LogId::Commands);
        let votes = vec![(Slot(6), ReplicaSet(tag))].into();
        Message::Accepted { ballot, log, votes }
    }

    fn chosen(&mut self) -> bool {
        let ctx = StepContext {
            snapshot: &self.world.snapshot(),
            node: 0,
            rest: &self.rest,
        };
        let entry = Entry {
            log: LogId::Commands,
            slot: Slot(6),
            value: &puts(&["a"]),
        };
        self.quorums.chosen(ctx, entry).is_ok()
    }
}

fn accepted() -> Record {
    accepted_at(BALLOT)
}

fn accepted_at(ballot: Ballot) -> Record {
    Record::Accepted {
        log: LogId::Commands,
        slot: Slot(6),
        ballot,
        value: puts(&["a"]),
    }
}

/// Whether a write of `key` is chosen by these votes, given as (voter, tag) in the order in which
/// they are sent.
fn chosen(key: &'static str, votes: &[(usize, u64)]) -> bool {
    let mut slot_six = SlotSix::new();
    for (node, tag) in votes {
        let sent = match node {
            0 => slot_six.proposes(key, *tag),
            _ => slot_six.votes(*node, *tag),
        };
        assert!(sent.is_ok());
    }
    slot_six.chosen()
}

#[test]
fn what_is_chosen_has_a_majority_whose_tags_have_accepted() {
    for (votes, good) in [
        (&[(0, 0)][..], false),
        (&[(0, 0), (1, 0)], true),
        (&[(0, 0b010), (1, 0b001)], true),
        (&[(0, 0b100), (1, 0)], false),
        (&[(0, 0), (1, 0b100)], false),
        (&[(0, 0), (1, 0b100), (1, 0)], true),
        (&[(0, 0b100), (1, 0b111), (2, 0)], true),
    ] {
        assert_eq!(chosen("a", votes), good, "{votes:?}");
    }
    assert!(!chosen("b", &[(0, 0), (1, 0)]), "for another value");
    assert!(!chosen("a", &[(1, 0), (2, 0)]), "nobody proposed it");
}

#[test]
fn what_is_chosen_was_received_at_the_ballot_of_the_votes() {
    let mut slot_six = SlotSix::new();
    slot_six.ballot.round += 1;
    for node in &mut slot_six.world.nodes {
        let record = accepted_at(slot_six.ballot);
        node.disk.persist(Sequence(2), vec![record]);
        node.disk.synced();
    }
    assert!(slot_six.proposes("a", 0).is_ok());
    assert!(slot_six.votes(1, 0).is_ok());
    assert!(!slot_six.chosen());
}

#[test]
fn the_vote_of_a_deposed_leader_is_remembered_with_its_tag() {
    // Replica 0 leads, and receives no votes. No replica holds a key, so the tags of replica 0's
    // own votes are empty.
    let has = || ReplicaState {
        accepted: vec![(6, puts(&["a"]))],
        change: ConfigChange::everywhere(ReplicaSet::EMPTY),
        ..ReplicaState::default()
    };
    let mut world = TestWorld::new([has(), has(), has()]);
    let leads = |world: &TestWorld| world.snapshot().replica(0).and_then(Replica::leads_at);
    let is_vote = |message: &Message| matches!(message, Message::Accepted { .. });
    // Only replica 0 receives ticks, so only its timers expire.
    for _ in 0..100 {
        world.later(Duration::from_millis(100));
        world.deliver(vec![(0, Input::Tick)], is_vote);
        if leads(&world).is_some() {
            break;
        }
    }
    let ballot = leads(&world).expect("nobody else has campaigned");
    let next = Ballot {
        round: ballot.round + 1,
        replica: ReplicaId(1),
    };
    for (remembered, good) in [(true, true), (false, false)] {
        let mut slot_six = SlotSix::accepted_at(next);
        slot_six.ballot = ballot;
        for node in [&mut world.nodes[0]]
            .into_iter()
            .chain(&mut slot_six.world.nodes)
        {
            node.disk.persist(Sequence(2), vec![accepted_at(ballot)]);
            node.disk.synced();
        }
        assert!(slot_six.proposes_with("a", None).is_ok());
        if remembered {
            let ctx = StepContext {
                snapshot: &world.snapshot(),
                node: 0,
                rest: &[],
            };
            assert!(slot_six.quorums.step_ends(ctx).is_ok());
        }
        // In one step, replica 0 commits and is deposed.
        assert!(slot_six.votes(1, 0b001).is_ok());
        assert_eq!(slot_six.chosen(), good, "{remembered}");
    }
}

#[test]
fn a_ballot_proposes_one_value() {
    let mut slot_six = SlotSix::new();
    assert!(slot_six.proposes("a", 0).is_ok());
    assert!(slot_six.proposes("a", 0).is_ok());
    assert!(slot_six.proposes("b", 0).is_err());
}

#[test]
fn who_votes_has_it_on_its_disk() {
    let mut slot_six = SlotSix::new();
    assert!(slot_six.votes(1, 0).is_ok());
    slot_six.ballot.round += 1;
    assert!(slot_six.votes(1, 0).is_err());
}

#[test]
fn a_vote_on_an_executed_slot_is_on_the_disk_too() {
    let mut slot_six = SlotSix::new();
    let executed = ReplicaState {
        executed: 6,
        ..ReplicaState::default()
    };
    slot_six.world.restart(1, executed);
    assert!(slot_six.votes(1, 0).is_err());
    let disk = &mut slot_six.world.nodes[1].disk;
    disk.persist(Sequence(1), vec![accepted()]);
    disk.synced();
    assert!(slot_six.votes(1, 0).is_ok());
}

#[test]
fn a_vote_that_leaves_after_a_promise_is_judged_again() {
    let mut slot_six = SlotSix::new();
    let vote = slot_six.vote(0b001);
    assert!(slot_six.says(1, vote.clone()).is_ok());
    slot_six.world.talk();
    assert!(slot_six.adds(1, vote.clone()).is_ok(), "it was judged");
    assert!(slot_six.adds(1, promise(9, 6)).is_ok());
    assert!(slot_six.adds(1, vote).is_err());
}

#[test]
fn who_votes_demands_everyone_whom_it_has_promised() {
    let mut slot_six = SlotSix::new();
    slot_six.world.talk();
    assert!(slot_six.votes(1, 0b101).is_ok());
    assert!(slot_six.votes(1, 0b001).is_err());
    for (barrier, good) in [(6, true), (5, false)] {
        let (_, to, envelope) = says((1, 1), (2, 1), promise(9, barrier));
        slot_six.rest = vec![Action::Send { to, envelope }];
        assert_eq!(slot_six.votes(1, 0b001).is_ok(), good, "{barrier}");
    }
    slot_six.rest = vec![Action::Persist {
        sequence: Sequence(3),
        records: vec![Record::Erased {
            log: LogId::Commands,
            slot: Slot(6),
        }],
    }];
    assert!(
        slot_six.votes(1, 0).is_ok(),
        "of a value that is dead by now"
    );
}
