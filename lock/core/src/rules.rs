//! Rules that keep leases exclusive. Each has a mutant, a member without this rule, and tests that
//! fail for the mutant.
//!
//! The two algorithms ([`ClockModel`]) have most rules in common. Flease gives two owners if the paper
//! is taken literally. The functions marked *paper* deviate from it.
//!
//! Each member of the group is one process. A copy of a machine with the same member would be a
//! second acceptor of this member. The members cannot exclude two owners then.

use std::time::Duration;

use leasehold_leases::Time;

use crate::ballot::{AttemptBallot, Proposer, ROUND_MAX};
use crate::message::{Lease, LeaseEnd};
use crate::mutants::{LockRule, off};
use crate::settings::{ClockModel, GroupSettings};

/// Rule Term (*paper*): the end of a lease counts from `began`, the moment before READ was sent. With
/// synchronised clocks, this end is written with the lease.
///
/// In the paper, the term counts from the answer to READ, and an attempt has no end. During a slow
/// attempt, an acceptor can restart, wait, and forget its promise. The lease then outlasts this wait.
/// So there can be two owners, however long the wait is.
pub fn lease_end(settings: &GroupSettings, began: Time, now: Time) -> Time {
    let from = if off(LockRule::Term) { now } else { began };
    from + settings.term
}

/// The same rule when a majority has acked WRITE. Returns the last moment at which the owner may use
/// the lease. The lease does not count from the acks: with clocks of bounded rates, the timers of the
/// acceptors have been running since they accepted it.
pub fn owned_until(settings: &GroupSettings, until: Time, now: Time) -> Time {
    if settings.has_timers() && off(LockRule::Term) {
        now + settings.term
    } else {
        until
    }
}

/// Rule AttemptEnd (*paper*): an attempt ends after [`GroupSettings::attempt`], also if its member was paused
/// meanwhile. Returns this moment. Acks are compared with it when they are used.
///
/// With synchronised clocks, the restart wait relies on it. An acceptor that has restarted could otherwise ack an old READ
/// with a ballot below the ballots that the acceptor has forgotten.
pub fn attempt_end(settings: &GroupSettings, began: Time) -> Time {
    if off(LockRule::AttemptEnd) || off(LockRule::Term) {
        return Time::MAX;
    }
    began + settings.attempt
}

/// Rule RestartWait (*paper*): for this duration a member is silent after its start, both as an
/// acceptor and as a proposer. Afterwards, every lease that it accepted before has ended by all
/// clocks. Every attempt to which it promised something has ended, too.
///
/// With clocks of bounded rates, the wait is the term, stretched so that it has passed on every
/// clock. An attempt is shorter than the term.
///
/// With synchronised clocks, new ballots must also be above the ballots that the member has
/// forgotten. The paper waits for the term only. That is too short if clocks differ. It is also too
/// short for ballots: the wait must be at least the length of an interval plus
/// [`GroupSettings::attempt`] plus two `epsilon`. An interval is shorter than the term, so this wait
/// covers both.
pub fn restart_wait(settings: &GroupSettings) -> Duration {
    if off(LockRule::RestartWait) {
        return settings.term;
    }
    match settings.clocks {
        ClockModel::Bounded(bound) => bound.outwait(settings.term),
        ClockModel::Synchronised { epsilon } => settings.term + settings.attempt + epsilon * 2,
    }
}

/// Whether the owner of a lease may still use it: its own clock has not passed the end.
pub fn is_valid(until: Time, now: Time) -> bool {
    now <= until
}

/// Rules Epsilon (*paper*) and Timer: returns the last moment, by this member's clock, at which a
/// lease may be valid for its owner. `now` is the moment at which this member has accepted it.
///
/// With synchronised clocks, this is the end of the lease plus `epsilon`, which bounds the
/// difference between any two clocks.
///
/// With clocks of bounded rates, the lease began before it was accepted. So it has ended when the
/// term has passed on every clock, counted from `now`.
pub fn kept_until(settings: &GroupSettings, lease: Lease, now: Time) -> Time {
    match settings.clocks {
        ClockModel::Synchronised { .. } if off(LockRule::Epsilon) => lease.until(now),
        ClockModel::Synchronised { epsilon } => lease.until(now) + epsilon,
        ClockModel::Bounded(_) if off(LockRule::Timer) => now + settings.term,
        ClockModel::Bounded(bound) => now + bound.outwait(settings.term),
    }
}

/// Rule EpsilonStrict (*paper*): a member may take the lease of another member only after the moment
/// that [`kept_until`] returns. The lease may still be valid for its owner at this moment itself.
pub fn has_ended(kept_until: Time, now: Time) -> bool {
    now > kept_until || (now == kept_until && off(LockRule::EpsilonStrict))
}

/// Returns the first moment at which another member can take a lease that its owner may use until
/// `until`. With clocks of bounded rates, this is an estimate: acceptors may have accepted the lease
/// up to [`GroupSettings::attempt`] after its beginning.
pub fn takeable_from(settings: &GroupSettings, until: Time) -> Time {
    let end = match settings.clocks {
        ClockModel::Synchronised { epsilon } => until + epsilon,
        ClockModel::Bounded(bound) => {
            until + (bound.outwait(settings.term) - settings.term) + settings.attempt
        }
    };
    end + Duration::from_nanos(1)
}

/// Returns the first moment at which a member can take a lease of which an acceptor has told it at
/// `now`.
pub fn told_takeable_from(settings: &GroupSettings, told: Lease, now: Time) -> Time {
    match told.end {
        LeaseEnd::At(until) => takeable_from(settings, until),
        LeaseEnd::Left(left) => now + left + Duration::from_nanos(1),
    }
}

/// Returns the last moment, by this member's clock, at which the lease of an owner may be valid. The
/// owner has told this member of it at `now`.
pub fn ends_by(settings: &GroupSettings, told: Lease, now: Time) -> Time {
    match (settings.clocks, told.end) {
        (ClockModel::Synchronised { epsilon }, LeaseEnd::At(until)) => until + epsilon,
        (ClockModel::Bounded(bound), LeaseEnd::Left(left)) => now + bound.outwait(left),
        // No member sends these: `is_sane` refuses them.
        (_, end) => Lease { end, ..told }.until(now),
    }
}

/// Rule FreeReport: an acceptor reports a resource as free only if its last lease has been over for as
/// long as a query may last, or was released. `kept_until` is the end of this lease, and
/// `silent_until` the end of the wait after the start.
///
/// So the lease had ended when the query began. Otherwise the owner may have renewed it since, with
/// acceptors that answered the query before. The resource then has an owner all the time, but every
/// acceptor reports it as free. The same holds for an acceptor that has just been restarted.
pub fn may_report_free(
    settings: &GroupSettings,
    kept_until: Time,
    silent_until: Time,
    now: Time,
) -> bool {
    let query = match settings.clocks {
        ClockModel::Synchronised { epsilon } => settings.attempt + epsilon,
        ClockModel::Bounded(bound) => bound.outwait(settings.attempt),
    };
    let ended = kept_until.max(silent_until);
    has_ended(ended + query, now) || (off(LockRule::FreeReport) && has_ended(ended, now))
}

/// Rule OneLease: with clocks of bounded rates, an acceptor that holds a lease accepts no other one
/// until its timer has ended, or until the owner has released the lease. Returns whether a lease that
/// was acquired with the ballot `acquired` may replace the lease that the acceptor holds. Only a
/// renewal may: it names the ballot of the same acquisition.
///
/// So two owners at the same time are impossible, because their majorities have an acceptor in
/// common. READ alone does not ensure this: an acceptor that was restarted has forgotten its
/// promises, and a WRITE may be older than the restart.
pub fn may_replace(held: Lease, acquired: AttemptBallot) -> bool {
    held.acquired == acquired || off(LockRule::OneLease)
}

/// Whether a lease that an acceptor holds blocks the READ of a member that waits. With clocks of bounded rates,
/// it blocks READs and WRITEs alike.
pub fn blocks(
    settings: &GroupSettings,
    held: Lease,
    reader: Proposer,
    renews: Option<AttemptBallot>,
) -> bool {
    if settings.has_timers() {
        !may_replace(held, renews.unwrap_or(AttemptBallot::ZERO))
    } else {
        held.owner() != reader
    }
}

/// Rule WriteBack: with synchronised clocks, a lease that was read is written to a majority before anybody is told of it. A
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

/// Rule ClockWatch: with synchronised clocks, a member compares its clock with the sender's clock when
/// a packet arrives. `now` is the time of arrival, and `sent` is the sender's reading in the packet.
/// If the packet answers a request, `since` is a reading of this member's clock before it sent the
/// request. Returns whether the clocks certainly differ by more than `epsilon`.
pub fn clocks_differ(settings: &GroupSettings, since: Option<Time>, sent: Time, now: Time) -> bool {
    let ClockModel::Synchronised { epsilon } = settings.clocks else {
        return false;
    };
    let ahead = sent > now + epsilon;
    let behind = since.is_some_and(|since| sent + epsilon < since);
    (ahead || behind) && !off(LockRule::ClockWatch)
}

/// Number of bits of a round that number the attempts in an interval.
const ATTEMPT_BITS: u32 = 20;

/// Maximum number of rounds by which a ballot may exceed the known rounds. A member that lies cannot
/// use up all rounds with a few messages. It is far above [`ROUNDS_RESERVED`], so that a member that
/// was restarted often is understood at once.
pub const LEAP_MAX: u64 = 1 << 40;

/// Number of rounds that a member reserves on its disk at a time.
pub const ROUNDS_RESERVED: u64 = 1 << ATTEMPT_BITS;

/// Rule Reserve: with clocks of bounded rates, a member promises only rounds that it has reserved.
/// After a restart, its rounds begin above all reserved rounds. So fence tokens rise although the
/// member has forgotten its promises.
pub fn may_promise(reserved: u64, round: u64) -> bool {
    round < reserved || off(LockRule::Reserve)
}

/// Returns the number of the interval that contains `now`. An interval is as long as the term minus
/// `epsilon` (Flease §II.I), so a member that waited after a restart is in a later interval than
/// all attempts from before.
fn interval(term: Duration, epsilon: Duration, now: Time) -> u64 {
    let length = (term - epsilon).as_nanos();
    u64::try_from(u128::from(now.0) / length).expect("a quotient of 64 bits")
}

/// Returns the round of the next attempt, above `last`. With synchronised clocks, a round consists
/// of the interval and a number in it, so that members have equal chances although their clocks
/// differ (Flease §II.I).
pub fn next_round(settings: &GroupSettings, now: Time, last: u64) -> u64 {
    match settings.clocks {
        ClockModel::Synchronised { epsilon } => {
            (interval(settings.term, epsilon, now) << ATTEMPT_BITS).max(last + 1)
        }
        ClockModel::Bounded(_) => last + 1,
    }
}

/// Whether the round of a received ballot is possible at `now`. With synchronised clocks, a member
/// with a right clock chooses no round beyond the interval that any right clock has reached.
/// Otherwise, a round is possible if it is at most [`LEAP_MAX`] above `known`, the highest round that
/// this member knows.
pub fn is_round_possible(settings: &GroupSettings, now: Time, known: u64, round: u64) -> bool {
    match settings.clocks {
        ClockModel::Synchronised { epsilon } => {
            round >> ATTEMPT_BITS <= interval(settings.term, epsilon, now + epsilon)
        }
        ClockModel::Bounded(_) => round <= known.saturating_add(LEAP_MAX).min(ROUND_MAX),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::time::ClockBound;

    use super::*;

    const TERM: Duration = Duration::from_secs(10);
    const EPSILON: Duration = Duration::from_millis(100);

    fn settings() -> GroupSettings {
        GroupSettings::new(3, TERM, ClockModel::Synchronised { epsilon: EPSILON })
    }

    fn with_timers() -> GroupSettings {
        let rho_ppm = 1000;
        GroupSettings::new(3, TERM, ClockModel::Bounded(ClockBound { rho_ppm }))
    }

    #[test]
    fn the_restart_wait_ends_in_a_later_interval() {
        let settings = settings();
        let wait = restart_wait(&settings);
        for ms in (0..60_000).step_by(7) {
            // The fastest clock chose a round when the member crashed; the slowest one chooses next.
            let crashed = Time(ms * 1_000_000) + EPSILON;
            let next = crashed + wait - EPSILON - EPSILON - settings.attempt;
            assert!(next_round(&settings, next, 0) > next_round(&settings, crashed, 0));
        }
    }

    #[test]
    fn rounds_rise_within_an_interval_and_leaps_are_refused() {
        let settings = settings();
        let now = Time(1_800_000_000_000_000_000);
        let first = next_round(&settings, now, 0);
        assert_eq!(next_round(&settings, now, first), first + 1);
        let is_possible = |round| is_round_possible(&settings, now, 0, round);
        assert!(is_possible(first + 9) && !is_possible(first + (2 << ATTEMPT_BITS)));
        assert!(first <= ROUND_MAX >> 8, "there is room for ages");
        let settings = with_timers();
        assert_eq!(next_round(&settings, now, 7), 8);
        let is_possible = |round| is_round_possible(&settings, now, 5, round);
        assert!(is_possible(5 + LEAP_MAX) && !is_possible(6 + LEAP_MAX));
        assert!(!is_round_possible(&settings, now, ROUND_MAX, ROUND_MAX + 1));
    }

    #[test]
    fn a_lease_can_be_taken_only_after_its_end_by_all_clocks() {
        let (accepted, until) = (Time(990_000_000_000), Time(1_000_000_000_000));
        let acquired = AttemptBallot::ZERO;
        let lease = |end| Lease { acquired, end };
        let kept = kept_until(&settings(), lease(LeaseEnd::At(until)), accepted);
        assert_eq!(kept, until + EPSILON);
        assert!(is_valid(until, until) && !is_valid(until, Time(until.0 + 1)));
        assert!(!has_ended(kept, kept));
        assert!(has_ended(kept, takeable_from(&settings(), until)));

        // The timer of an acceptor starts when it accepts the lease, and allows for drift.
        let kept = kept_until(&with_timers(), lease(LeaseEnd::Left(TERM)), accepted);
        let drift = kept.since(accepted + TERM);
        assert!(drift >= TERM / 500 && drift < TERM / 499, "{drift:?}");
        let told = told_takeable_from(&with_timers(), lease(LeaseEnd::Left(TERM)), until);
        assert_eq!(told, Time((until + TERM).0 + 1));
    }
}
