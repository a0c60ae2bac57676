//! Model checking with stateright: every state of small clusters is visited and judged. The
//! replicas are the ones that serve clients, not a model of them.
//!
//! # What is explored
//! There are three replicas, one key, one client that writes, and one that reads. In one scope, the
//! write is a transaction that compares a second key, which the reading client writes. A fixed schedule
//! elects r0, puts the configuration in force and makes promises. From there, every possible next
//! event is explored, in every order: a packet arrives, a write becomes durable, a state is
//! flushed, a clock ticks, a replica crashes and restarts, another replica campaigns, or a client
//! sends its next command. The loss of a message needs no event of its own: it is the same as a
//! message that is late for ever. `scopes.rs` lists, for each strategy, how many of these events
//! are combined.
//!
//! # What is judged
//! In every state: there is one value per slot; answers are linearizable; a holder's belief ends
//! before the grant from which it follows; a vote on a write names every holder to which the voter
//! has an unexpired grant; a replica that may read has executed, or marked, every write that any
//! replica knows to be committed; every replica can still learn every executed slot, although logs
//! are truncated; no assertion of the core is broken. At the end: every milestone that should be
//! reached was reached, because a check that is never exercised finds nothing.
//!
//! # What bounds it
//! - Lease and guard last one tick. Clocks tick until all promises from the preparation have ended
//!   at their grantors, and no further: no restart wait ends, no heartbeat, retransmission, fetch,
//!   suspicion or reconfiguration falls due, and nothing is renewed on a timer, except in the scope
//!   in which r0 renews a promise. After a restart, the replica receives and makes promises anew; a
//!   new leader keeps the configuration of the old one.
//! - Only in the scope of truncation, each replica may flush its state once, before the ballot
//!   changes. (In every scope, a restarted replica flushes what it executes at its start.) A flush
//!   takes no time, makes durable everything that was persisted before it, and is reported by a
//!   ping immediately. If the addressee cannot crash any more, the ping is delivered as soon as it
//!   is the first packet of its link. In this scope, one client writes and then reads, the ballot
//!   changes after the crash, and no clock ticks.
//! - Every log is truncated when exploration begins. Pings do not report how well their senders
//!   would lead, so a replica campaigns without waiting for its turn.
//! - Packets between two replicas keep their order, except in the scopes that say
//!   otherwise. Messages that one step sends to one peer arrive together. Nothing is
//!   duplicated.
//! - With a crash or a ballot change, the reader's clock may lag a tick behind the two
//!   others. Without them, each clock drifts independently.
//! - Only the disk of the replica that may crash takes time, and that of r0 in the scope in which
//!   r0 renews a promise during exploration. Any replica may crash. In scopes with
//!   a ballot change, only r0, the first leader, may crash. Under leases, the ballot changes after
//!   that crash; without leases, also before or during it. One fixed replica campaigns, once. In
//!   scopes with both a crash and a ballot change, no promises are made after the preparation.
//! - A client of a crashed replica does not retry elsewhere. Answers reach clients, and
//!   commands reach replicas, without delay. Reads leave no trace in the logs, so nothing
//!   is explored after the answer to the last read.
//! - Lease messages are delivered only to and from holders that receive reads, because no
//!   other replica's lease is used. An ack of a probe for which no read can wait is dropped.
//! - An answer of Paxos that is too late to change anything arrives without delay. The
//!   refusal of a read reaches its origin only after the origin has learned of another leader.
//! - States are distinguished by 64-bit fingerprints (`Replica::fingerprint`).

#![allow(clippy::print_stdout)] // output of a report

mod clients;
mod explore;
mod model;
mod node;
mod scenario;
mod scopes;
mod world;

use explore::explore;
use scopes::Strategy;

/// Explores the short scenarios of a strategy.
fn explore_short(strategy: &Strategy) {
    let reached = explore(strategy.short());
    strategy.judge_milestones(&reached, false);
}

#[test]
fn none_is_safe() {
    explore_short(&Strategy::none());
}

#[test]
fn leader_is_safe() {
    explore_short(&Strategy::leader());
}

#[test]
fn all_is_safe() {
    explore_short(&Strategy::all());
}

#[test]
fn quorum_is_safe() {
    explore_short(&Strategy::quorum());
}

#[test]
fn fixed_is_safe() {
    explore_short(&Strategy::fixed());
}

/// Explores the strategy that `MODEL_STRATEGY` names, or all. If `MODEL_SCOPE` is set, explores only
/// the scopes with this text in their names. The milestones are then not judged.
#[test]
#[ignore = "takes hours: make model"]
fn every_strategy_is_safe_at_length() {
    let only = std::env::var("MODEL_STRATEGY").unwrap_or_default();
    let scope = std::env::var("MODEL_SCOPE").unwrap_or_default();
    let all = [
        Strategy::none(),
        Strategy::leader(),
        Strategy::fixed(),
        Strategy::quorum(),
        Strategy::all(),
    ];
    let mut explored = 0;
    for strategy in all {
        if only.is_empty() || only == strategy.name() {
            let mut scenarios = strategy.long();
            scenarios.retain(|scenario| scenario.name.contains(&scope));
            explored += scenarios.len();
            let reached = explore(scenarios);
            if scope.is_empty() {
                strategy.judge_milestones(&reached, true);
            }
        }
    }
    assert_ne!(
        explored, 0,
        "MODEL_STRATEGY {only:?} and MODEL_SCOPE {scope:?} name no scope"
    );
}

/// If the model found nothing wrong with replicas that lack a rule, it would prove nothing.
#[test]
#[cfg(feature = "mutants")]
fn mutants_are_caught() {
    use leasehold_leases::mutants::Rule::*;
    let (none, leader, fixed) = (Strategy::none(), Strategy::leader(), Strategy::fixed());
    let (quorum, all) = (Strategy::quorum(), Strategy::all());
    for (rule, scenario) in [
        (H03Drift, all.any_order()),
        (H09LeaderTag, fixed.one_grantor()),
        (H10LeaderMarks, leader.any_order()),
        (H34TxnReads, all.txn()),
        (H34TxnReads, quorum.txn()),
        (H130Lists, fixed.txn()),
        (H11Tags, quorum.any_order()),
        (H15RestartWait, fixed.crash(1)),
        (H26Proposed, none.any_order()),
        (H26Probe, none.ballot()),
        (H05Barrier, fixed.crash(2)),
        (H13Phase1, fixed.ballot()),
        (H19Holes, fixed.crash(2)),
        (H27Ahead, none.ballot()),
        (H113Accept, none.unsynced()),
        (H113Accept, leader.unsynced()),
        (H113Durable, none.unsynced()),
        (H07Pending, all.late_promise()),
        (H113Tag, fixed.late_promise()),
        (H113Tag, all.late_promise()),
        (H107Committed, none.truncation()),
        (H107Committed, leader.truncation()),
        (H125Members, none.truncation()),
        (H125Members, leader.truncation()),
    ] {
        let name = scenario.name.clone();
        let found = explore::hunt(scenario, rule);
        println!("{rule:?}: {name}: {found:?}");
        assert!(found.is_some(), "{rule:?} was not noticed");
    }
}
