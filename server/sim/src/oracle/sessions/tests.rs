use std::sync::Arc;
use std::time::Duration;

use leasehold_leases::ReplicaId;

use super::*;
use leasehold_replica::message::{Batch, RequestId};

fn at(slot: u64) -> Outcome {
    Outcome::written(Version { slot, index: 0 })
}

fn handle(request: u64) -> ClientHandle {
    ClientHandle {
        connection: 1,
        request,
    }
}

/// Returns a put with this sequence number. The first command to arrive opens its session.
fn put(sequence: u64, acked_below: u64) -> Command {
    Command::session(7, sequence, acked_below, Op::put("k", "v")).opened(LONG)
}

/// Chosen commands, one in each slot, at intervals of a minute of log time.
struct Log(ChosenValues, u64);

impl Log {
    fn choose(&mut self, sessions: &mut SessionOracle, command: Command) -> Verdict {
        self.1 += 1;
        let proposed = Proposal {
            origin: ReplicaId(0),
            request: RequestId(self.1),
            command,
        };
        let batch = Batch {
            log_time_ms: self.1 * 60_000,
            commands: vec![proposed],
            ..Batch::default()
        };
        let value = Value::Commands(Arc::new(batch));
        self.0.committed(LogId::Commands, Slot(self.1), &value);
        sessions.advance(&self.0)
    }
}

fn world(ttl_ms: u64) -> (SessionOracle, Log) {
    let limits = SessionLimits {
        ttl: Duration::from_millis(ttl_ms),
        ..SessionLimits::default()
    };
    (
        SessionOracle::new(2, &limits),
        Log(ChosenValues::default(), 0),
    )
}

const LONG: u64 = 3_600_000;

#[test]
fn every_answer_to_a_sequence_is_its_result() {
    let (mut sessions, mut log) = world(LONG);
    sessions.requested(0, handle(1), &put(1, 1));
    sessions.requested(1, handle(2), &put(1, 1));
    sessions.requested(1, handle(3), &put(1, 1));
    assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
    assert!(sessions.replied(&log.0, 0, handle(1), &at(1)).is_ok());
    assert!(sessions.replied(&log.0, 1, handle(2), &at(1)).is_ok());
    assert!(sessions.replied(&log.0, 1, handle(3), &at(2)).is_err());
    assert_eq!(sessions.checks, 3);
}

#[test]
fn an_answer_at_commit_is_held_against_the_execution() {
    let (mut sessions, mut log) = world(LONG);
    for request in 1..4 {
        sessions.requested(0, handle(request), &put(1, 1));
    }
    assert!(sessions.replied(&log.0, 0, handle(1), &at(1)).is_ok());
    assert!(
        sessions.replied(&log.0, 0, handle(2), &at(2)).is_err(),
        "another answer"
    );
    assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
    sessions.requested(0, handle(4), &put(2, 2));
    assert!(sessions.replied(&log.0, 0, handle(4), &at(3)).is_ok());
    assert!(
        log.choose(&mut sessions, put(2, 2)).is_err(),
        "it is in slot 2"
    );
}

#[test]
fn what_is_answered_at_commit_needs_nothing_that_is_not_chosen() {
    // Slots are a minute apart; slot 1 opens the session, slot 2 is open.
    for (ttl_ms, sequence, good) in [(LONG, 2, true), (90_000, 2, false), (90_000, 1, true)] {
        let (mut sessions, mut log) = world(ttl_ms);
        let opens = |command: Command| command.opened(0);
        assert!(log.choose(&mut sessions, opens(put(1, 1))).is_ok());
        log.1 += 1;
        // Slot 3: judged only by what was executed, its session may have ended.
        let next = opens(put(sequence, sequence));
        sessions.requested(0, handle(1), &next);
        assert!(log.choose(&mut sessions, next).is_ok());
        let told = match sequence {
            1 => at(1),
            _ => at(3),
        };
        let verdict = sessions.replied(&log.0, 0, handle(1), &told);
        assert_eq!(verdict.is_ok(), good, "{ttl_ms} {sequence}: {verdict:?}");
    }
    // A chosen slot in between keeps the session alive, whether it is executed or not.
    let (mut sessions, mut log) = world(130_000);
    for (sequence, skip) in [(1, 0), (2, 1), (3, 0)] {
        log.1 += skip;
        let next = put(sequence, sequence).opened(0);
        sessions.requested(0, handle(sequence), &next);
        let slot = log.1 + 1;
        assert!(log.choose(&mut sessions, next).is_ok());
        if sequence == 3 {
            let verdict = sessions.replied(&log.0, 0, handle(3), &at(slot));
            assert_eq!(verdict, Ok(()));
        }
    }
}

#[test]
fn what_was_acknowledged_must_not_be_refused() {
    // The session is opened in slot 1, and has ended a minute later in slot 2.
    let (mut sessions, mut log) = world(1000);
    let put = |sequence| put(sequence, sequence).opened(60_000);
    assert!(log.choose(&mut sessions, put(1)).is_ok());
    sessions.requested(0, handle(1), &put(2));
    assert!(sessions.replied(&log.0, 0, handle(1), &at(2)).is_ok());
    assert!(log.choose(&mut sessions, put(2)).is_err());
}

#[test]
fn a_refusal_needs_a_reason() {
    let refused = Outcome::error(ErrorCode::SessionExpired, "gone");
    // The session is opened in slot 1, and has ended a minute later in slot 2.
    let (mut sessions, mut log) = world(1000);
    let put = |sequence| put(sequence, sequence).opened(60_000);
    assert!(log.choose(&mut sessions, put(1)).is_ok());
    assert!(log.choose(&mut sessions, put(2)).is_ok());
    sessions.requested(0, handle(1), &put(2));
    sessions.requested(0, handle(2), &put(1));
    assert!(sessions.replied(&log.0, 0, handle(1), &refused).is_ok());
    assert!(sessions.replied(&log.0, 0, handle(2), &refused).is_err());
}

#[test]
fn a_result_that_was_forgotten_is_not_held_against_a_laggard() {
    let (mut sessions, mut log) = world(LONG * 1000);
    for request in 1..4 {
        sessions.requested(0, handle(request), &put(1, 1));
    }
    let last = RESULTS_MAX as u64;
    for sequence in 1..=last {
        let verdict = log.choose(&mut sessions, put(sequence, sequence));
        assert!(verdict.is_ok());
    }
    assert!(sessions.replied(&log.0, 0, handle(1), &at(2)).is_err());
    let next = put(last + 1, last + 1);
    assert!(log.choose(&mut sessions, next).is_ok());
    assert!(sessions.replied(&log.0, 0, handle(2), &at(1)).is_ok());
    assert!(log.choose(&mut sessions, put(1, 1)).is_ok(), "refused");
    assert!(sessions.replied(&log.0, 0, handle(3), &at(1)).is_ok());
}

#[test]
fn nothing_takes_effect_twice() {
    let (mut sessions, mut log) = world(1000);
    assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
    assert!(log.choose(&mut sessions, put(1, 1)).is_err());
    let mut client = ClientResults::default();
    let taken = [3, 1, 2, 2, 5, 4, 3].map(|sequence| client.take_effect(sequence));
    assert_eq!(taken, [true, true, true, false, true, true, false]);
    assert_eq!(client.executed.len(), 1);
}

#[test]
fn nothing_takes_effect_after_it_was_refused() {
    let (mut sessions, mut log) = world(1000);
    assert!(log.choose(&mut sessions, put(1, 1).opened(0)).is_ok());
    // Only a command that names another opening time than its copy can cause this.
    assert!(log.choose(&mut sessions, put(1, 1)).is_err());
}

#[test]
fn a_read_in_the_log_sees_what_is_before_it() {
    let (mut sessions, mut log) = world(LONG);
    let scan = || Command::from(Op::scan("", "", 10));
    for request in 1..4 {
        sessions.requested(0, handle(request), &scan());
    }
    let logged = || placeholder(&scan());
    assert!(log.choose(&mut sessions, logged()).is_ok());
    assert!(log.choose(&mut sessions, put(1, 1)).is_ok());
    let nothing = Outcome::entries(Vec::new());
    assert!(sessions.replied(&log.0, 0, handle(1), &nothing).is_ok());
    sessions.step_ends(0, Slot(1));
    assert!(sessions.replied(&log.0, 0, handle(2), &nothing).is_err());
    assert!(log.choose(&mut sessions, logged()).is_ok());
    assert!(sessions.replied(&log.0, 0, handle(3), &nothing).is_err());
}
