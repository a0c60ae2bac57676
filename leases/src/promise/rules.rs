//! The hazard rules of the lease engine. There is one predicate for each rule, named after the
//! property that the rule preserves. A mutant disables a rule (see [`crate::mutants`]). Only these
//! predicates ask [`off`] whether a rule is disabled. The code that calls them need not ask.

use std::time::Duration;

use super::message::Promise;
use crate::mutants::{Rule, off};
use crate::time::Time;
use crate::types::{ConfigId, Slot};

/// Rule H01: only the ack of the latest promise shortens the promise's grant. An older ack says
/// nothing about the newer promise, which may still be on its way.
pub(super) fn only_latest_ack_shortens(latest: u64, acknowledged: u64) -> bool {
    latest == acknowledged || off(Rule::H01OldAck)
}

/// Rule H17: the ack of a promise shortens only the grant under the promise's configuration.
pub(super) fn only_own_grant_is_shortened(grant: ConfigId, acknowledged: ConfigId) -> bool {
    grant == acknowledged || off(Rule::H17Shortening)
}

/// Rule H17: a holder has one grant for each configuration. A promise extends the grant under its
/// own configuration, and replaces no other grant.
pub(super) fn same_grant(grant: ConfigId, promised: ConfigId) -> bool {
    grant == promised || off(Rule::H17PerConfig)
}

/// Rule H08: a grant ends when its time has passed, regardless of whether its holder answers.
pub(super) fn kept_for(keep: Duration) -> Duration {
    if off(Rule::H08Lapse) {
        keep * 1000
    } else {
        keep
    }
}

/// Rule H68: the restart wait of a replica is the longest restart wait that any of its promises
/// required. The durations of a promise determine the restart wait that it requires. If durations
/// become shorter, earlier grants still need the longer wait.
pub(super) fn raises_restart_wait(wait: Duration, durable: Duration) -> bool {
    wait > durable || off(Rule::H68Longest) && wait != durable
}

/// Rule H32: a Relinquish contains a sequence number. It ends the grants up to this number, and no
/// later grants.
pub(super) fn outlives_relinquish(grant: u64, up_to: u64) -> bool {
    grant > up_to && !off(Rule::H32UpTo)
}

/// Rule H14 at the grantor: a promise is made under the newest configuration that *both* replicas
/// know. If the log of one replica lags, the promise is made under an older configuration. The
/// lagging replica therefore does not lose its leases.
pub(super) fn both_know(holder: ConfigId, here: ConfigId) -> ConfigId {
    if off(Rule::H14UnknownConfig) {
        here
    } else {
        holder.min(here)
    }
}

/// Rule H14 at the holder: returns the configuration under which a promise is recorded; `None` if
/// the promise is refused. A promise is refused if this replica does not know its configuration,
/// because the keys that this configuration assigns are not known either.
pub(super) fn understood(promised: ConfigId, known: ConfigId) -> Option<ConfigId> {
    let counted = promised.min(known); // differs for that mutant only
    (promised <= known || off(Rule::H14UnknownConfig)).then_some(counted)
}

/// Rule H41: a suspect receives no promises under configurations older than its exclusion.
pub(super) fn not_before_exclusion(config: ConfigId, oldest: ConfigId) -> bool {
    config >= oldest || off(Rule::H41Oldest)
}

/// Rule H15: a grantor that has just restarted requires that all replicas are notified of writes,
/// because the grantor has forgotten its grants.
pub(super) fn tags_everyone(in_restart_wait: bool) -> bool {
    in_restart_wait && !off(Rule::H15RestartWait)
}

/// Rule H02: a holder accepts each sequence number at most once. After a sequence number, it
/// accepts no lower number.
pub(super) fn is_new(sequence: u64, taken: u64) -> bool {
    sequence > taken || off(Rule::H02Repeats)
}

/// Rule H35: the window of a promise is measured from the ack to which the promise refers. A mutant
/// measures it from the newest ack.
pub(super) fn counts_from_newest_ack() -> bool {
    off(Rule::H35NamedAck)
}

/// Rule H16: a promise is refused if its window is not remembered. Either an earlier run sent the
/// ack to which the promise refers, or the window was erased. A mutant acts as if the ack had been
/// sent at `now`.
pub(super) fn opened_if_unknown(now: Time) -> Option<Time> {
    off(Rule::H16OldPromise).then_some(now)
}

/// Rule H04: a promise is accepted only within the window of its ack. The window begins when this
/// replica sends the ack. A promise that stays in a buffer until the window has ended is late.
pub(super) fn is_in_time(now: Time, opened: Time, promise: &Promise) -> bool {
    now < opened + promise.t0 + promise.t_guard || off(Rule::H04LatePromise)
}

/// Rule H40: a holder that gives back its promises erases them.
pub(super) fn relinquishing_erases() -> bool {
    !off(Rule::H40Chain)
}

/// Rule H05: the chain ends when its promises lapse. The reason is that the holder may not have
/// been notified of writes that the grantor accepted after the lapse.
pub(super) fn has_lapsed(now: Time, expires: Time) -> bool {
    expires <= now && !off(Rule::H05Lapse)
}

/// Rule H05: a chain of promises for a key continues across configurations only if each of these
/// configurations assigns the key to the holder. If a configuration newly assigns the key, a new
/// chain begins.
pub(super) fn chain_goes_on(gave: bool) -> bool {
    gave || off(Rule::H05NewlyGiven)
}

/// Rule H05: a holder reads only after it has executed all slots up to the barriers of its
/// grantors. Otherwise, a read could miss writes that a grantor had accepted before its promises.
#[inline]
pub(super) fn is_past(executed: Slot, barrier: Slot) -> bool {
    barrier <= executed || off(Rule::H05Barrier)
}

/// Rule H06: a grantor is counted for a permit only after the holder has passed the barrier of this
/// grantor. A mutant counts a grantor once the barrier of another grantor is passed.
#[inline]
pub(super) fn is_passed_by_another(any_passed: bool) -> bool {
    any_passed && off(Rule::H06OneBarrier)
}

/// Rule H24: the barrier of a chain is the lowest barrier of its promises. A later promise may have
/// a lower barrier, because a new leader's log drops dead entries. The slots of dead entries may
/// never be executed.
pub(super) fn renewed_barrier(barrier: Slot, renewed: Slot) -> Slot {
    if off(Rule::H24Falls) {
        barrier
    } else {
        barrier.min(renewed)
    }
}

/// Rule H24 across configurations: the barrier of a chain is the lower one of `barrier` and
/// `older`. `older` is the barrier of the preceding part of the chain.
pub(super) fn joined_barrier(barrier: Slot, older: Slot) -> Slot {
    if off(Rule::H24Falls) {
        older
    } else {
        barrier.min(older)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: fn(u64) -> ConfigId = ConfigId;

    #[test]
    fn acks_and_grants() {
        for (latest, acknowledged, shortens) in [(7, 7, true), (7, 6, false), (7, 8, false)] {
            assert_eq!(only_latest_ack_shortens(latest, acknowledged), shortens);
        }
        for (grant, up_to, outlives) in [(7, 6, true), (7, 7, false), (7, 8, false)] {
            assert_eq!(outlives_relinquish(grant, up_to), outlives);
        }
        assert!(same_grant(C(2), C(2)) && !same_grant(C(2), C(3)));
        assert!(only_own_grant_is_shortened(C(2), C(2)));
        assert!(!only_own_grant_is_shortened(C(3), C(2)));
        assert_eq!(kept_for(Duration::from_secs(4)), Duration::from_secs(4));
    }

    #[test]
    fn configurations() {
        // (the newest configuration that the holder knows, the grantor's, that of the promise)
        for (holder, here, under) in [(1, 3, 1), (3, 1, 1), (2, 2, 2)] {
            assert_eq!(both_know(C(holder), C(here)), C(under));
        }
        for (promised, known, counted) in [(1, 3, Some(1)), (3, 3, Some(3)), (4, 3, None)] {
            assert_eq!(understood(C(promised), C(known)), counted.map(C));
        }
        for (config, oldest, may) in [(1, 2, false), (2, 2, true), (3, 2, true)] {
            assert_eq!(not_before_exclusion(C(config), C(oldest)), may);
        }
    }

    #[test]
    fn windows() {
        for (sequence, taken, new) in [(1, 0, true), (5, 5, false), (4, 5, false)] {
            assert_eq!(is_new(sequence, taken), new);
        }
        let promise = Promise {
            sequence: 2,
            base: 1,
            t0: Duration::from_nanos(10),
            t_guard: Duration::from_nanos(20),
            t_lease: Duration::from_nanos(40),
            config: C(1),
            highest_accepted: Slot::ZERO,
        };
        for (now, in_time) in [(100, true), (129, true), (130, false), (u64::MAX, false)] {
            assert_eq!(is_in_time(Time(now), Time(100), &promise), in_time, "{now}");
        }
        assert_eq!(opened_if_unknown(Time(5)), None);
        assert!(!counts_from_newest_ack() && relinquishing_erases());
    }

    #[test]
    fn barriers() {
        let s = Slot;
        for (executed, barrier, past) in [(5, 5, true), (6, 5, true), (4, 5, false)] {
            assert_eq!(is_past(s(executed), s(barrier)), past);
        }
        for (barrier, other, least) in [(5, 9, 5), (9, 5, 5)] {
            assert_eq!(renewed_barrier(s(barrier), s(other)), s(least));
            assert_eq!(joined_barrier(s(barrier), s(other)), s(least));
        }
        for (now, expires, lapsed) in [(5, 6, false), (5, 5, true), (6, 5, true)] {
            assert_eq!(has_lapsed(Time(now), Time(expires)), lapsed);
        }
        assert!(chain_goes_on(true) && !chain_goes_on(false));
        assert!(!is_passed_by_another(true) && !is_passed_by_another(false));
        assert!(tags_everyone(true) && !tags_everyone(false));
    }
}
