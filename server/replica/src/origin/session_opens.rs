//! Limit on the rate at which this replica's clients open sessions. Sessions are part of the
//! replicated state. Without a limit, a client that opens sessions as fast as it can would take the
//! capacity of other clients on every replica.
//!
//! A refused write that would open a session is not sent to any other replica, and leaves no trace.

use std::collections::HashSet;
use std::mem;
use std::time::Duration;

use leasehold_leases::Time;
use leasehold_leases::hashing::SeededState;

use crate::settings::SessionLimits;

const SECOND: Duration = Duration::from_secs(1);

/// Limit on the rate at which clients may open sessions: `per_s` sessions a second. After a pause,
/// clients may open several sessions at once. Their maximum number is the number that this rate
/// allows in the time for which a new session is protected. A protected session is not ended to
/// make room for others.
#[derive(Clone, Debug)]
pub struct SessionOpenLimiter {
    per_s: u32,
    /// Present credit for opening sessions, in ns. Each new session uses up one second divided by
    /// `per_s`.
    credit_ns: u64,
    /// Maximum credit, in ns.
    saved_ns: u64,
    /// Time at which the credit was last updated.
    counted: Time,
    /// Clients that were admitted lately. One set is for the present interval of one second, and
    /// the other is for the interval before it. Further writes of such a client are not counted,
    /// because its session is being opened already.
    lately: [HashSet<u64, SeededState>; 2],
    forgotten: Time,
}

impl SessionOpenLimiter {
    /// Returns a limiter with the rate and burst of `limits`.
    pub fn new(now: Time, limits: &SessionLimits) -> SessionOpenLimiter {
        let saved_ns = limits.busy().as_nanos() as u64;
        SessionOpenLimiter {
            per_s: limits.opened_per_s,
            credit_ns: saved_ns,
            saved_ns,
            counted: now,
            lately: Default::default(),
            forgotten: now,
        }
    }

    /// Whether a client without a session here may send a write.
    pub fn may_open(&mut self, now: Time, client: u64) -> bool {
        if self.per_s == 0 {
            return true;
        }
        self.forget(now);
        if self.lately.iter().any(|some| some.contains(&client)) {
            return true;
        }
        let gained_ns = now.since(self.counted).as_nanos() as u64;
        self.counted = self.counted.max(now);
        let credit_ns = self.credit_ns.saturating_add(gained_ns);
        self.credit_ns = credit_ns.min(self.saved_ns);
        let price_ns = (SECOND.as_nanos() as u64).div_ceil(u64::from(self.per_s));
        if self.credit_ns < price_ns {
            return false;
        }
        self.credit_ns -= price_ns;
        self.lately[0].insert(client);
        true
    }

    /// Forgets clients that were admitted between one and two seconds ago. A forgotten client that
    /// still has no session must be admitted again.
    fn forget(&mut self, now: Time) {
        if now.since(self.forgotten) >= SECOND {
            self.forgotten = now;
            self.lately[1] = mem::take(&mut self.lately[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// Returns a limiter that admits `per_s` sessions a second. A session that was silent for two
    /// seconds may be ended to make room. So a burst may open as many sessions as two seconds allow.
    fn openings(per_s: u32) -> SessionOpenLimiter {
        let limits = SessionLimits {
            stay: SECOND,
            opened_per_s: per_s,
            ..SessionLimits::default()
        };
        SessionOpenLimiter::new(ms(0), &limits)
    }

    #[test]
    fn a_second_brings_so_many_sessions_and_no_more() {
        let mut openings = openings(10);
        let mut opened = |now, clients: std::ops::Range<u64>| {
            clients.filter(|c| openings.may_open(now, *c)).count()
        };
        assert_eq!(opened(ms(0), 0..100), 20);
        assert_eq!(opened(ms(100), 100..200), 1);
        assert_eq!(opened(ms(60_000), 200..300), 20, "silence saves no more");
        assert_eq!(opened(ms(59_000), 300..400), 0, "a clock that goes back");
    }

    #[test]
    fn a_client_that_was_let_in_opens_one_session() {
        let mut openings = openings(1);
        assert!(openings.may_open(ms(0), 6));
        assert!(openings.may_open(ms(0), 7));
        assert!(openings.may_open(ms(1), 7) && openings.may_open(ms(999), 7));
        assert!(!openings.may_open(ms(999), 8));
        assert!(openings.may_open(ms(1000), 8) && openings.may_open(ms(1999), 7));
        assert!(!openings.may_open(ms(1999), 9));
        assert!(openings.may_open(ms(2000), 9));
        assert!(!openings.may_open(ms(2001), 7), "it pays once more");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut openings = openings(100);
        for client in 0..100_000 {
            openings.may_open(ms(client), client);
            let lately: usize = openings.lately.iter().map(HashSet::len).sum();
            assert!(lately <= 400, "{lately} clients at {client} ms");
        }
    }

    /// With the default limits there is always room for the sessions that the clients of all
    /// replicas open.
    #[test]
    fn what_is_opened_while_a_session_makes_no_room_is_less_than_there_is() {
        for n in [1, 3, 5, 7, 64] {
            let limits = SessionLimits::of(n);
            let mut one = SessionOpenLimiter::new(ms(0), &limits);
            let busy_ms = limits.busy().as_millis() as u64;
            let mut opened = 0;
            for at in 0..=busy_ms {
                while one.may_open(ms(at), opened) {
                    opened += 1;
                }
            }
            let (all, max) = (opened * n as u64, u64::from(limits.max));
            assert!(all <= max && all > max * 9 / 10, "{all} with {n} replicas");
        }
    }

    #[test]
    fn without_a_bound_everybody_opens_and_nothing_is_remembered() {
        let mut openings = openings(0);
        assert!((0..100_000).all(|client| openings.may_open(ms(0), client)));
        assert!(openings.lately.iter().all(HashSet::is_empty));
    }
}
