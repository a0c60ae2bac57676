//! Model checking with stateright: every state of small scopes is visited and judged. The members are
//! those of `leasehold-lock-core`, not a model of them.
//!
//! # What is explored
//! There are three members and one resource. All members are acceptors. The programs of m0 and m1
//! make requests. Every possible next event is explored, in every order: a packet arrives, a clock
//! ticks, a member handles a deadline, a program makes its next request, or a member crashes and
//! restarts without its memory. The loss of a packet needs no event of its own: it is the same as a
//! packet that is late for ever. `scopes.rs` lists how many of these events are combined.
//!
//! # What is judged
//! In every state: at most one member holds the resource by its own clock; fence tokens rise with
//! each owner; no member acquires the resource in spite of an owner that another member was told of;
//! no assertion of a member is broken. At the end: every milestone was reached, because a check that
//! is never exercised finds nothing.
//!
//! # What bounds it
//! - The term is three ticks. Clocks tick until a lease has ended, was taken by the other member, and
//!   a restarted member speaks again. No clock ticks before the first request.
//! - With timers, all clocks tick at the same moment. They run at the same rate. In the scopes with
//!   drift, the clock of m0 is as slow as a bound of a quarter allows, and the others are as fast.
//! - With synchronised clocks, each clock ticks by itself, and `epsilon` is a tick. In the scopes with
//!   equal clocks, all tick together, and `epsilon` is a tenth of a tick.
//! - In most scopes with ticks, a member handles a deadline as soon as its clock reaches it.
//! - A restart takes no time. A later restart is the same as a later crash.
//! - In some scopes, a packet is lost when the next one is sent between the same members. In the
//!   others, packets are late without a limit. Equal packets in flight count as one.
//! - Messages that one step sends to one member arrive together. Packets that certainly have no
//!   effect are left out ([`MemberMachine::can_use`], [`MemberMachine::may_accept`]).
//! - The clock in a packet is that of the receiver, so the watch on clocks has no effect.
//! - Random delays have a fixed length, and end at the next tick.
//! - A member has reserved all rounds that it needs, and its disk keeps their number. With timers, a
//!   member that may crash has reserved fewer rounds than the others.
//! - Nothing is explored after the last request to acquire the resource has its result, and at most
//!   one member has a lease or an attempt.
//! - States are distinguished by 64-bit fingerprints ([`MemberMachine::fingerprint`]).
//!
//! [`MemberMachine::can_use`]: leasehold_lock_core::MemberMachine::can_use
//! [`MemberMachine::may_accept`]: leasehold_lock_core::MemberMachine::may_accept
//! [`MemberMachine::fingerprint`]: leasehold_lock_core::MemberMachine::fingerprint

#![allow(clippy::print_stdout)] // output of a report

mod explore;
mod model;
mod scenario;
mod scopes;
mod world;

use explore::explore;
use model::{MILESTONES, Milestone};
use scenario::Scenario;
use scopes::{synchronised, timers};

/// Explores scopes, and checks that they reach every milestone except for `unreached`.
fn judge(scenarios: Vec<Scenario>, unreached: &[Milestone]) {
    let reached = explore(scenarios);
    for seen in MILESTONES {
        let is_reached = reached[&seen] > 0;
        assert_eq!(is_reached, !unreached.contains(&seen), "{seen:?}");
    }
}

#[test]
fn members_with_timers_are_safe() {
    judge(timers::short(), &[Milestone::RestartedAcquires]);
}

#[test]
fn members_with_synchronised_clocks_are_safe() {
    judge(synchronised::short(), &[Milestone::RestartedAcquires]);
}

#[test]
#[ignore = "takes minutes"]
fn members_with_timers_are_safe_at_length() {
    judge(timers::long(), &[]);
}

#[test]
#[ignore = "takes minutes"]
fn members_with_synchronised_clocks_are_safe_at_length() {
    judge(synchronised::long(), &[]);
}

#[cfg(feature = "mutants")]
mod mutants {
    use leasehold_lock_core::mutants::LockRule;

    use super::world::Violation::{self, Exclusion, Fences, Told};
    use super::*;

    /// A scope in which members without a rule break a property.
    type Noticed = Option<(Scenario, Violation)>;

    /// Returns where the rule is noticed in groups with timers. The rest are rules that these groups
    /// do not have, or that only a directed schedule notices.
    fn with_timers(rule: LockRule) -> Noticed {
        Some(match rule {
            LockRule::Term => (timers::long_attempt(), Exclusion),
            LockRule::RestartWait => (timers::drift_and_crash(), Exclusion),
            LockRule::Timer => (timers::drift(), Exclusion),
            LockRule::OneLease => (timers::release(), Exclusion),
            LockRule::EpsilonStrict => (timers::end(), Exclusion),
            LockRule::Acks => (timers::duplicate(), Fences),
            LockRule::ReleaseBallot => (timers::again(), Exclusion),
            LockRule::ReleaseStops => (timers::release(), Exclusion),
            _ => return None,
        })
    }

    /// Returns where the rule is noticed in groups with synchronised clocks. The rest are rules that
    /// these groups do not have, or that only a directed schedule notices.
    fn with_synchronised_clocks(rule: LockRule) -> Noticed {
        Some(match rule {
            LockRule::Term | LockRule::AttemptEnd => (synchronised::late_read(), Fences),
            LockRule::RestartWait => (synchronised::crash_apart(), Exclusion),
            LockRule::Epsilon | LockRule::EpsilonStrict => (synchronised::apart(), Exclusion),
            LockRule::WriteBack => (synchronised::told(), Told),
            LockRule::Acks => (synchronised::duplicate(), Exclusion),
            LockRule::AckBallot => (synchronised::again(), Exclusion),
            LockRule::ReleaseBallot => (synchronised::again(), Exclusion),
            LockRule::ReleaseStops => (synchronised::release(), Exclusion),
            _ => return None,
        })
    }

    /// Hunts for members without each rule, except for the `skipped` ones. A rule that is noticed
    /// nowhere is hunted in the scope `otherwise`.
    fn hunt(noticed: fn(LockRule) -> Noticed, otherwise: fn() -> Scenario, skipped: &[LockRule]) {
        let rules = LockRule::ALL.iter().filter(|it| !skipped.contains(it));
        for rule in rules {
            let (scenario, expected) = match noticed(*rule) {
                Some((scenario, violation)) => (scenario, Some(violation)),
                None => (otherwise(), None),
            };
            let name = scenario.name.clone();
            let found = explore::hunt(scenario, *rule);
            println!("{rule:?}: {name}: {found:?}");
            assert_eq!(found.map(|(violation, _)| violation), expected, "{rule:?}");
        }
    }

    #[test]
    fn mutants_with_timers_are_caught() {
        // Without this rule, no answer is without effect, so that there are too many states.
        let skipped = [LockRule::AckBallot];
        hunt(with_timers, timers::release, &skipped);
    }

    #[test]
    fn mutants_with_synchronised_clocks_are_caught() {
        hunt(with_synchronised_clocks, synchronised::release, &[]);
    }
}
