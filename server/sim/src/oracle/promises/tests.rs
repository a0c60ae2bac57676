use super::*;
use crate::oracle::test_world::{LEASE, TestWorld, ack, promise, says};

/// Replica 1, which receives messages of replica 0. Both are in their first run unless stated
/// otherwise.
struct TwoReplicas(TestWorld, Promises);

impl TwoReplicas {
    fn new() -> TwoReplicas {
        TwoReplicas(TestWorld::new(Default::default()), Promises::new(3))
    }

    fn says(&mut self, from: (usize, u64), to: (usize, u64), message: Message) -> Verdict {
        let (node, to, envelope) = says(from, to, message);
        self.1.sent(&self.0.snapshot(), node, to, &envelope)
    }

    fn promised(&mut self, sequence: u64, highest: u64) -> Verdict {
        self.promised_under(1, sequence, highest)
    }

    fn promised_under(&mut self, config: u64, sequence: u64, highest: u64) -> Verdict {
        let mut message = promise(sequence, highest);
        if let Message::Lease(LeaseMessage::Promise(promise)) = &mut message {
            promise.config = ConfigId(config);
        }
        self.says((0, 1), (1, 1), message)?;
        self.says((1, 1), (0, 1), ack(sequence))
    }

    /// Whether replica 1 may read if it has executed all slots up to `upto`.
    fn may_read(&self, upto: u64) -> bool {
        let now = self.0.snapshot().time(1);
        let permit = self.1.permit(1, Slot(upto), |_| true);
        permit.is_some_and(|until| now < until)
    }
}

#[test]
fn only_what_was_promised_can_be_taken() {
    let mut replicas = TwoReplicas::new();
    assert!(replicas.promised(1, 5).is_ok());
    assert!(
        replicas.says((1, 1), (0, 1), ack(1)).is_err(),
        "taken twice"
    );
    assert!(replicas.says((1, 1), (0, 1), ack(2)).is_err(), "never made");
    let mut replicas = TwoReplicas::new();
    assert!(replicas.says((0, 1), (1, 1), promise(1, 5)).is_ok());
    assert!(
        replicas.says((1, 2), (0, 1), ack(1)).is_err(),
        "made to another run"
    );
    let mut replicas = TwoReplicas::new();
    assert!(replicas.promised(2, 5).is_ok());
    assert!(
        replicas.says((0, 1), (1, 1), promise(1, 5)).is_err(),
        "sequences rise"
    );
}

#[test]
fn a_lease_lasts_from_its_receipt_and_is_renewed() {
    let mut replicas = TwoReplicas::new();
    assert!(!replicas.may_read(9));
    replicas.promised(1, 5).unwrap();
    replicas.0.later(LEASE / 2);
    replicas.promised(2, 9).unwrap();
    replicas.0.later(LEASE - Duration::from_nanos(1));
    // The barrier of a chain is the lowest barrier of its promises.
    assert!(replicas.may_read(5) && !replicas.may_read(4));
    replicas.0.later(Duration::from_nanos(1));
    assert!(!replicas.may_read(9));
    replicas.promised(3, 9).unwrap();
    assert!(
        replicas.may_read(9) && !replicas.may_read(8),
        "a lapse begins a new chain"
    );
}

#[test]
fn a_chain_ends_with_a_run_and_a_relinquish() {
    let mut replicas = TwoReplicas::new();
    replicas.promised(1, 5).unwrap();
    let relinquish = Message::Lease(LeaseMessage::Relinquish { up_to: 1 });
    replicas.says((1, 1), (0, 1), relinquish).unwrap();
    assert!(!replicas.may_read(5));
    replicas.promised(2, 5).unwrap();
    replicas
        .says(
            (1, 1),
            (0, 2),
            Message::Ping {
                stamp: 0,
                cost_ms: 0,
                flushed: Default::default(),
            },
        )
        .unwrap();
    assert!(!replicas.may_read(5), "the grantor's run has ended");
    let mut replicas = TwoReplicas::new();
    replicas.promised(1, 5).unwrap();
    replicas.1.started(1);
    assert!(!replicas.may_read(5), "the holder's has");
}

#[test]
fn a_chain_ends_where_a_configuration_did_not_give_the_key() {
    let mut replicas = TwoReplicas::new();
    replicas.promised_under(1, 1, 5).unwrap();
    replicas.promised_under(3, 2, 9).unwrap();
    let until = replicas.0.snapshot().time(1) + LEASE;
    let permit = |replicas: &TwoReplicas, upto, without| {
        let holds = |config| config != ConfigId(without);
        replicas.1.permit(1, Slot(upto), holds)
    };
    assert_eq!(permit(&replicas, 5, 4), Some(until), "one chain");
    replicas.0.later(LEASE / 2);
    replicas.promised_under(3, 3, 9).unwrap();
    assert_eq!(permit(&replicas, 5, 4), Some(until + LEASE / 2));
    assert_eq!(permit(&replicas, 5, 2), Some(until), "the first of two");
    assert_eq!(permit(&replicas, 9, 2), Some(until + LEASE / 2));
    assert_eq!(permit(&replicas, 5, 3), Some(until));
    assert_eq!(permit(&replicas, 5, 1), None);
    assert!(replicas.promised_under(2, 4, 9).is_err(), "they rise");
}

#[test]
fn an_ended_belief_lends_its_barrier_to_the_next_of_its_chain() {
    let mut replicas = TwoReplicas::new();
    replicas.promised_under(1, 1, 5).unwrap();
    replicas.0.later(LEASE / 2);
    replicas.promised_under(2, 2, 9).unwrap();
    replicas.0.later(LEASE / 2);
    replicas.promised_under(2, 3, 9).unwrap();
    assert!(replicas.may_read(5), "no lapse");
    replicas.0.later(LEASE);
    replicas.promised_under(2, 4, 9).unwrap();
    assert!(replicas.may_read(9) && !replicas.may_read(8), "a lapse");
}

#[test]
fn what_is_reached_makes_what_is_before_it_needless() {
    // Replica 1 has executed five slots.
    let mut replicas = TwoReplicas::new();
    let kept = |replicas: &TwoReplicas| replicas.1.pair(0, 1).beliefs.len();
    replicas.promised_under(1, 1, 3).unwrap();
    replicas.0.later(LEASE / 2);
    replicas.promised_under(2, 2, 9).unwrap();
    replicas.0.later(LEASE / 2);
    replicas.promised_under(3, 3, 6).unwrap();
    assert_eq!(kept(&replicas), 3);
    replicas.0.later(LEASE / 2);
    replicas.promised_under(4, 4, 5).unwrap();
    assert!(
        kept(&replicas) == 4 && replicas.may_read(3),
        "one of them lives"
    );
    replicas.0.later(LEASE / 2);
    replicas.promised_under(4, 5, 5).unwrap();
    assert!(kept(&replicas) == 1 && replicas.may_read(5));
}

#[test]
fn what_an_earlier_run_promised_is_believed_until_it_ends() {
    let mut replicas = TwoReplicas::new();
    replicas.promised(1, 5).unwrap();
    let now = replicas.0.snapshot().time(1);
    assert_eq!(replicas.1.forgotten(0, 1, Incarnation(2)), now + LEASE);
    assert_eq!(replicas.1.forgotten(0, 1, Incarnation(1)), Time::ZERO);
}
