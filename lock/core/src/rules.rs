//! Rules that keep leases exclusive. Each has a mutant, a member without this rule, and tests that
//! fail for the mutant.
//!
//! The algorithm of the paper gives two owners if it is taken literally. The functions marked
//! *paper* deviate from it.
//!
//! Each member of the group is one process. A copy of a machine with the same member would be a
//! second acceptor of this member. The members cannot exclude two owners then.

use std::time::Duration;

use leasehold_leases::Time;

use crate::ballot::{AttemptBallot, Proposer};
use crate::message::Lease;
use crate::mutants::{LockRule, off};
use crate::settings::GroupSettings;

/// Rule Term (*paper*): the end of a lease counts from `began`, the moment before READ was sent. It
/// is written with the lease, and compared when acks are used.
///
/// The paper adds the term after READ has returned, and its attempts have no end. If READ is delayed
/// for longer than the restart wait of an acceptor, the lease outlives everything that the acceptor
/// has forgotten. So there are two owners, whatever the wait is.
pub fn lease_end(settings: &GroupSettings, began: Time, now: Time) -> Time {
    let from = if off(LockRule::Term) { now } else { began };
    from + settings.term
}

/// Rule AttemptEnd (*paper*): an attempt ends after [`GroupSettings::attempt`], also if its member was paused
/// meanwhile. Returns this moment. Acks are compared with it when they are used.
///
/// The restart wait relies on it. An acceptor that has restarted could otherwise ack an old READ
/// with a ballot below the ballots that the acceptor has forgotten.
pub fn attempt_end(settings: &GroupSettings, began: Time) -> Time {
    if off(LockRule::AttemptEnd) || off(LockRule::Term) {
        return Time::MAX;
    }
    began + settings.attempt
}

/// Rule RestartWait (*paper*): for this duration a member is silent after its start, both as an
/// acceptor and as a proposer. Afterwards, every lease that it accepted before has ended by all
/// clocks. Every attempt to which it promised something has ended, too, and new ballots are above
/// the ballots that it has forgotten.
///
/// The paper waits for the term only. That is too short if clocks differ. It is also too short for
/// ballots: the wait must be at least the length of an interval plus [`GroupSettings::attempt`] plus two
/// `epsilon`. An interval is shorter than the term, so this wait covers both.
pub fn restart_wait(settings: &GroupSettings) -> Duration {
    if off(LockRule::RestartWait) {
        return settings.term;
    }
    settings.term + settings.attempt + settings.epsilon * 2
}

/// Whether the owner of a lease may still use it: its own clock has not passed the end.
pub fn is_valid(lease: Lease, now: Time) -> bool {
    now <= lease.until
}

/// Rules Epsilon and EpsilonStrict (*paper*): a member may take the lease of another member only
/// after its end plus `epsilon`. `epsilon` bounds the difference between any two clocks. At the
/// last moment of a lease by the clock of the owner, another clock may read exactly `epsilon` more,
/// so this moment is excluded.
pub fn has_ended_everywhere(settings: &GroupSettings, lease: Lease, now: Time) -> bool {
    if off(LockRule::Epsilon) {
        return now > lease.until;
    }
    let end = lease.until + settings.epsilon;
    now > end || (now == end && off(LockRule::EpsilonStrict))
}

/// Returns the first moment at which [`has_ended_everywhere`] is true for a lease that is valid
/// until `until`.
pub fn takeable_from(settings: &GroupSettings, until: Time) -> Time {
    until + settings.epsilon + Duration::from_nanos(1)
}

/// Rule WriteBack: a lease that was read is written to a majority before anybody is told of it. A
/// lease may be half written, so another READ could miss it and take the resource.
pub fn writes_back() -> bool {
    !off(LockRule::WriteBack)
}

/// Rule Run: a lease is a member's own only if the same process acquired it. A copy of the machine
/// has the same member, but another run.
pub fn is_own(lease: Lease, me: Proposer) -> bool {
    lease.owner() == me || (lease.owner().member == me.member && off(LockRule::Run))
}

/// Rule AckBallot: an ack counts only for the attempt that it answers.
pub fn answers(ballot: AttemptBallot, attempt: AttemptBallot) -> bool {
    ballot == attempt || off(LockRule::AckBallot)
}

/// Rule Acks: each acceptor counts once, however often its ack arrives.
pub fn counts_again() -> bool {
    off(LockRule::Acks)
}

/// Rule ReleaseBallot: a release names the lease that it frees. So a late release does not free a
/// later lease of the same owner.
pub fn is_released(lease: Lease, acquired: AttemptBallot) -> bool {
    lease.acquired == acquired
        || (lease.owner() == acquired.proposer && off(LockRule::ReleaseBallot))
}

/// Rule ReleaseStops: an owner stops before it sends a release.
pub fn stops_before_release() -> bool {
    !off(LockRule::ReleaseStops)
}

/// Rule NackBallot: an attempt after a nack is above the ballot that the acceptor named.
pub fn heeds_nack() -> bool {
    !off(LockRule::NackBallot)
}

/// Rule ClockWatch: a member checks the clock of another member when a packet arrives at `now`. The
/// packet was stamped with `sent` by the other clock. `since` is a moment before this, by this
/// clock, if one is known: when the request was sent that the packet answers. Returns whether
/// `epsilon` certainly is exceeded.
pub fn clocks_differ(settings: &GroupSettings, since: Option<Time>, sent: Time, now: Time) -> bool {
    let ahead = sent > now + settings.epsilon;
    let behind = since.is_some_and(|since| sent + settings.epsilon < since);
    (ahead || behind) && !off(LockRule::ClockWatch)
}

/// Number of bits of a round that number the attempts in an interval.
const ATTEMPT_BITS: u32 = 20;

/// Returns the number of the interval that contains `now`. An interval is as long as the term minus
/// `epsilon` (Flease §II.I), so a member that waited after a restart is in a later interval than
/// all attempts from before.
fn interval(settings: &GroupSettings, now: Time) -> u64 {
    let length = (settings.term - settings.epsilon).as_nanos();
    u64::try_from(u128::from(now.0) / length).expect("a quotient of 64 bits")
}

/// Returns the round of the next attempt, above `last`. A round consists of the interval and a
/// number in it, so that members have equal chances although their clocks differ (Flease §II.I).
pub fn next_round(settings: &GroupSettings, now: Time, last: u64) -> u64 {
    (interval(settings, now) << ATTEMPT_BITS).max(last + 1)
}

/// Whether the round of a received ballot is possible at `now`. A member with a
/// right clock chooses no round beyond the interval that any right clock has reached.
pub fn is_round_possible(settings: &GroupSettings, now: Time, round: u64) -> bool {
    round >> ATTEMPT_BITS <= interval(settings, now + settings.epsilon)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> GroupSettings {
        GroupSettings::new(3, Duration::from_secs(10), Duration::from_millis(100))
    }

    #[test]
    fn the_restart_wait_ends_in_a_later_interval() {
        let settings = settings();
        let wait = restart_wait(&settings);
        for ms in (0..60_000).step_by(7) {
            // The fastest clock chose a round when the member crashed; the slowest one chooses next.
            let crashed = Time(ms * 1_000_000) + settings.epsilon;
            let next = crashed + wait - settings.epsilon - settings.epsilon - settings.attempt;
            assert!(next_round(&settings, next, 0) > next_round(&settings, crashed, 0));
        }
    }

    #[test]
    fn rounds_rise_within_an_interval_and_leaps_are_refused() {
        let settings = settings();
        let now = Time(1_800_000_000_000_000_000);
        let first = next_round(&settings, now, 0);
        assert_eq!(next_round(&settings, now, first), first + 1);
        assert!(is_round_possible(&settings, now, first + 9));
        assert!(!is_round_possible(
            &settings,
            now,
            first + (2 << ATTEMPT_BITS)
        ));
        assert!(
            first <= crate::ballot::ROUND_MAX >> 8,
            "there is room for ages"
        );
    }

    #[test]
    fn a_lease_can_be_taken_only_after_its_end_by_all_clocks() {
        let settings = settings();
        let until = Time(1_000_000_000_000);
        let acquired = AttemptBallot::ZERO;
        let lease = Lease { acquired, until };
        assert!(is_valid(lease, until) && !is_valid(lease, Time(until.0 + 1)));
        let last = until + settings.epsilon;
        assert!(!has_ended_everywhere(&settings, lease, last));
        assert!(has_ended_everywhere(
            &settings,
            lease,
            takeable_from(&settings, until)
        ));
    }
}
