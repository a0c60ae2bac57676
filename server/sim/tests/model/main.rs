//! Model checking with stateright: every state of small clusters is visited, and
//! judged. The replicas are the ones that serve, not a model of them.
//!
//! # What is explored
//! Three replicas, one key, a client that writes and one that reads. A fixed
//! schedule elects r0, puts the configuration in force and makes promises; from
//! there everything that may happen next does, in every order: a packet arrives, a
//! write becomes durable, a clock ticks, a replica crashes and restarts, another
//! campaigns, a client sends its next command. A message that never arrives is one
//! that is late for ever. `scopes.rs` says how much of it happens together, for
//! each strategy.
//!
//! # What is judged
//! In every state: one value per slot; answers linearizable; a holder's belief ends before its
//! grantor's grant; a replica that may read has executed, or marked, every write that any replica
//! knows to be committed; no assertion of the core broken. And at the end, that what should happen
//! did: a check that looks at nothing finds nothing.
//!
//! # What bounds it
//! - Lease and guard last one tick. Clocks tick until all promises made before have
//!   ended at their grantors, and no further: no restart wait ends, nothing is
//!   renewed on a timer, and no heartbeat, retransmission, fetch, suspicion,
//!   checkpoint or reconfiguration falls due. A restarted replica is promised anew,
//!   and promises anew; a new leader has the configuration of the old one.
//! - Packets of one pair of replicas keep their order, but for the scopes that say
//!   otherwise; what one step sends to one peer arrives together. Nothing is
//!   duplicated.
//! - With a crash or ballot change the reader's clock may lag a tick behind the two
//!   others; without, each drifts by itself. Only the replica that may crash has a
//!   disk that takes time. Anyone may crash, but with a ballot change only r0, which
//!   leads at first; under leases the ballot changes after that crash, without any
//!   also before and during it. One certain replica campaigns, once. With both,
//!   nobody is promised anything anew.
//! - A client of a crashed replica does not ask again elsewhere. Answers reach
//!   clients, and commands replicas, at once. Reads leave no trace in the logs, so
//!   nothing is explored behind the last read's answer.
//! - Lease messages are delivered only to and from holders that are read at: nobody
//!   else's lease is used. An ack of a probe that no read can wait for is dropped.
//! - An answer of Paxos that has come too late to change anything arrives at once. A
//!   read's refusal reaches its origin only when it has heard of another leader.
//! - States are told apart by 64-bit fingerprints (`Replica::fingerprint`).

#![allow(clippy::print_stdout)] // output of a report

mod clients;
mod explore;
mod model;
mod node;
mod scenario;
mod scopes;
mod world;

use explore::exhaust;
use scopes::Strategy;

#[test]
fn none_is_safe() {
    exhaust(&Strategy::none(), Strategy::none().short(), false);
}

#[test]
fn leader_is_safe() {
    exhaust(&Strategy::leader(), Strategy::leader().short(), false);
}

#[test]
fn all_is_safe() {
    exhaust(&Strategy::all(), Strategy::all().short(), false);
}

#[test]
fn quorum_is_safe() {
    exhaust(&Strategy::quorum(), Strategy::quorum().short(), false);
}

#[test]
fn fixed_is_safe() {
    exhaust(&Strategy::fixed(), Strategy::fixed().short(), false);
}

#[test]
#[ignore = "takes minutes: make model"]
fn every_strategy_is_safe_at_length() {
    let only = std::env::var("MODEL_STRATEGY").unwrap_or_default();
    let all = [
        Strategy::none(),
        Strategy::leader(),
        Strategy::fixed(),
        Strategy::quorum(),
        Strategy::all(),
    ];
    for strategy in all {
        if only.is_empty() || only == strategy.name() {
            exhaust(&strategy, strategy.long(), true);
        }
    }
}

/// A model that finds nothing wrong with wrong replicas proves nothing.
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
        (H11Tags, quorum.any_order()),
        (H15RestartWait, fixed.crash(1)),
        (H26Proposed, none.any_order()),
        (H26Probe, none.ballot()),
        (H05Barrier, fixed.crash(2)),
        (H13Phase1, fixed.ballot()),
        (H19Holes, fixed.crash(2)),
        (H27Ahead, none.ballot()),
    ] {
        let name = scenario.name.clone();
        let found = explore::hunt(scenario, rule);
        println!("{rule:?}: {name}: {found:?}");
        assert!(found.is_some(), "{rule:?} was not noticed");
    }
}
