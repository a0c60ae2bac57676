//! Scopes that are explored, for groups with timers and for groups with synchronised clocks.

use super::scenario::Request::{Acquire, Release, Wait};
use super::scenario::{N, Request, Scenario};

/// A request to acquire the resource.
const ONE: &[Request] = &[Acquire];
/// Requests to acquire the resource again after its release.
const AGAIN: &[Request] = &[Acquire, Release, Acquire];

/// Rates of clocks: the owner's clock is as slow as possible, and the others are as fast as possible.
const SLOW_OWNER: [u16; N] = [75, 125, 125];

/// Durations of groups with timers, in tenths of ticks: the term, an attempt, and the time before a
/// renewal. An attempt ends at the next tick.
const TIMERS: [u32; 3] = [30, 10, 19];
/// The same with clocks that drift. On a slow clock, an attempt ends at the next tick.
const DRIFTING: [u32; 3] = [30, 7, 22];
/// The same with synchronised clocks.
const SYNCHRONISED: [u32; 3] = [30, 9, 19];

/// Durations with an attempt of two ticks.
const LONG_ATTEMPT: [u32; 3] = [30, 20, 9];

/// Scopes of groups with timers.
pub mod timers {
    use super::*;

    /// Returns a scope in which no clock ticks.
    pub fn release() -> Scenario {
        Scenario::with_timers("release", TIMERS).requests(&[Acquire, Release], ONE, 0)
    }

    /// Returns a scope in which a member acquires the resource again, and no clock ticks.
    pub fn again() -> Scenario {
        Scenario::with_timers("release and acquire again", TIMERS).requests(AGAIN, ONE, 0)
    }

    /// Returns a scope with a packet that arrives twice, in which no clock ticks.
    pub fn duplicate() -> Scenario {
        let scenario = Scenario::with_timers("a packet arrives twice", TIMERS);
        scenario.requests(ONE, ONE, 0).duplicate(1)
    }

    /// Returns a scope with the end of a lease. Members handle deadlines in time.
    pub fn end() -> Scenario {
        let scenario = Scenario::with_timers("end of a lease", TIMERS);
        scenario.requests(ONE, ONE, 4).prompt()
    }

    /// Returns a scope with the end of a lease. Members may handle deadlines late.
    pub fn pauses() -> Scenario {
        let scenario = Scenario::with_timers("end of a lease, pauses", TIMERS);
        scenario.requests(ONE, ONE, 4)
    }

    /// Returns a scope with attempts of two ticks.
    pub fn long_attempt() -> Scenario {
        let scenario = Scenario::with_timers("attempts of two ticks", LONG_ATTEMPT);
        scenario.requests(ONE, ONE, 4).prompt().link(1)
    }

    /// Returns a scope with a member that waits, and makes several attempts.
    pub fn wait() -> Scenario {
        let scenario = Scenario::with_timers("a request that waits", TIMERS);
        scenario.requests(ONE, &[Wait(4)], 4).prompt().link(1)
    }

    /// Returns a scope in which an acceptor crashes.
    pub fn crash() -> Scenario {
        let scenario = Scenario::with_timers("crash of an acceptor", TIMERS);
        scenario.requests(ONE, ONE, 4).prompt().crash(&[2])
    }

    /// Returns a scope in which any member crashes.
    pub fn any_crash() -> Scenario {
        let scenario = Scenario::with_timers("crash of any member", TIMERS);
        scenario.requests(ONE, ONE, 6).prompt().crash(&[0, 1, 2])
    }

    /// Returns a scope in which the first proposer crashes, and then acquires the resource again.
    pub fn owner_crash() -> Scenario {
        let scenario = Scenario::with_timers("crash of a proposer", TIMERS);
        let scenario = scenario.requests(&[Acquire, Acquire], ONE, 5);
        scenario.prompt().crash(&[0]).link(1)
    }

    /// Returns a scope with clocks that drift apart.
    pub fn drift() -> Scenario {
        let scenario = Scenario::with_drift("slow owner", SLOW_OWNER, DRIFTING);
        scenario.requests(ONE, ONE, 5).prompt()
    }

    /// Returns a scope with clocks that drift apart, and an acceptor that crashes.
    pub fn drift_and_crash() -> Scenario {
        let name = "slow owner, crash of an acceptor";
        let scenario = Scenario::with_drift(name, SLOW_OWNER, DRIFTING);
        scenario.requests(ONE, ONE, 7).prompt().crash(&[2])
    }

    /// Returns scopes that take seconds.
    pub fn short() -> Vec<Scenario> {
        vec![release(), duplicate(), end(), crash(), drift()]
    }

    /// Returns scopes that take minutes.
    pub fn long() -> Vec<Scenario> {
        let ends = [pauses(), long_attempt(), wait(), drift_and_crash()];
        let crashes = [any_crash(), owner_crash()];
        std::iter::once(again())
            .chain(ends)
            .chain(crashes)
            .collect()
    }
}

/// Scopes of groups with synchronised clocks.
pub mod synchronised {
    use super::*;

    /// Returns a scope in which no clock ticks.
    pub fn release() -> Scenario {
        Scenario::synchronised("release", SYNCHRONISED).requests(&[Acquire, Release], ONE, 0)
    }

    /// Returns a scope in which a member acquires the resource again, and no clock ticks.
    pub fn again() -> Scenario {
        Scenario::synchronised("release and acquire again", SYNCHRONISED).requests(AGAIN, ONE, 0)
    }

    /// Returns a scope with a packet that arrives twice, in which no clock ticks. A request waits, so
    /// that its READ may not disturb an owner.
    pub fn duplicate() -> Scenario {
        let scenario = Scenario::synchronised("a packet arrives twice", SYNCHRONISED);
        scenario.requests(ONE, &[Wait(1)], 0).duplicate(1)
    }

    /// Returns a scope with a program that is told of an owner, and asks again.
    pub fn told() -> Scenario {
        let scenario = Scenario::synchronised("told of an owner", SYNCHRONISED);
        scenario.requests(ONE, &[Acquire, Acquire], 0)
    }

    /// Returns a scope with the end of a lease, in which all clocks show the same.
    pub fn end() -> Scenario {
        let scenario = Scenario::synchronised("end of a lease, equal clocks", SYNCHRONISED);
        scenario.requests(ONE, ONE, 4).prompt().equal()
    }

    /// Returns a scope with the end of a lease.
    pub fn apart() -> Scenario {
        let scenario = Scenario::synchronised("end of a lease", SYNCHRONISED);
        scenario.requests(ONE, ONE, 5).prompt().link(1)
    }

    /// Returns a scope in which an acceptor crashes, and all clocks show the same.
    pub fn crash() -> Scenario {
        let name = "crash of an acceptor, equal clocks";
        let scenario = Scenario::synchronised(name, SYNCHRONISED);
        scenario
            .requests(ONE, ONE, 6)
            .prompt()
            .equal()
            .crash(&[2])
            .link(1)
    }

    /// Returns a scope in which an acceptor crashes, a READ reaches it after its wait, and a member
    /// acquires the resource again.
    pub fn late_read() -> Scenario {
        let mut scenario = synchronised::crash();
        scenario.name += ", acquired again";
        scenario.requests(ONE, &[Acquire, Acquire], 5)
    }

    /// Returns a scope in which an acceptor crashes.
    pub fn crash_apart() -> Scenario {
        let scenario = Scenario::synchronised("crash of an acceptor", SYNCHRONISED);
        scenario.requests(ONE, ONE, 7).prompt().crash(&[2]).link(1)
    }

    /// Returns a scope in which the first proposer crashes, and then acquires the resource again. All
    /// clocks show the same.
    pub fn owner_crash() -> Scenario {
        let name = "crash of a proposer, equal clocks";
        let scenario = Scenario::synchronised(name, SYNCHRONISED);
        let scenario = scenario.requests(&[Acquire, Acquire], ONE, 5);
        scenario.prompt().equal().crash(&[0]).link(1)
    }

    /// Returns a scope with a member that waits, and makes several attempts. All clocks show the same.
    pub fn wait() -> Scenario {
        let name = "a request that waits, equal clocks";
        let scenario = Scenario::synchronised(name, SYNCHRONISED);
        let scenario = scenario.requests(ONE, &[Wait(4)], 4);
        scenario.prompt().equal().link(1)
    }

    /// Returns scopes that take seconds.
    pub fn short() -> Vec<Scenario> {
        vec![release(), duplicate(), told(), end(), crash()]
    }

    /// Returns scopes that take minutes.
    pub fn long() -> Vec<Scenario> {
        let crashes = [crash_apart(), late_read(), owner_crash()];
        [again(), apart(), wait()]
            .into_iter()
            .chain(crashes)
            .collect()
    }
}
