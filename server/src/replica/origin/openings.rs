//! How fast this replica's clients open sessions. Sessions are part of the replicated state:
//! whoever opens them as fast as it can takes the room of others on every replica.
//!
//! What is refused here has not left this replica, and nothing is known of it anywhere.

use std::collections::HashSet;
use std::mem;
use std::time::Duration;

use foldhash::fast::FixedState;
use leases::Time;

const SECOND: Duration = Duration::from_secs(1);

/// A bucket of what may be opened at once: what a second brings, at most.
#[derive(Clone, Debug)]
pub struct Openings {
    per_s: u32,
    /// What may be opened now, in ns: each session takes its share of a second.
    credit_ns: u64,
    /// When the credit was counted last.
    counted: Time,
    /// Whose sessions are on their way, since when they were forgotten last, and before:
    /// their next writes open nothing more.
    lately: [HashSet<u64, FixedState>; 2],
    forgotten: Time,
}

impl Openings {
    /// At most `per_s` a second; 0: any number.
    pub fn new(now: Time, per_s: u32) -> Openings {
        Openings {
            per_s,
            credit_ns: SECOND.as_nanos() as u64,
            counted: now,
            lately: Default::default(),
            forgotten: now,
        }
    }

    /// Whether a client that has no session here may send a write.
    pub fn may_open(&mut self, now: Time, client: u64) -> bool {
        if self.per_s == 0 {
            return true;
        }
        self.forget(now);
        if self.lately.iter().any(|some| some.contains(&client)) {
            return true;
        }
        let all_ns = SECOND.as_nanos() as u64;
        let gained_ns = now.since(self.counted).as_nanos() as u64;
        self.counted = self.counted.max(now);
        self.credit_ns = self.credit_ns.saturating_add(gained_ns).min(all_ns);
        let price_ns = (all_ns / u64::from(self.per_s)).max(1);
        if self.credit_ns < price_ns {
            return false;
        }
        self.credit_ns -= price_ns;
        self.lately[0].insert(client);
        true
    }

    /// Whoever was let in a second ago, or two, has its session, or asks for it again.
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

    #[test]
    fn a_second_brings_so_many_sessions_and_no_more() {
        let mut openings = Openings::new(ms(0), 10);
        let mut opened = |now, clients: std::ops::Range<u64>| {
            clients.filter(|c| openings.may_open(now, *c)).count()
        };
        assert_eq!(opened(ms(0), 0..100), 10);
        assert_eq!(opened(ms(100), 100..200), 1);
        assert_eq!(opened(ms(60_000), 200..300), 10, "silence saves no more");
        assert_eq!(opened(ms(59_000), 300..400), 0, "a clock that goes back");
    }

    #[test]
    fn a_client_that_was_let_in_opens_one_session() {
        let mut openings = Openings::new(ms(0), 1);
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
        let mut openings = Openings::new(ms(0), 100);
        for client in 0..100_000 {
            openings.may_open(ms(client), client);
            let lately: usize = openings.lately.iter().map(HashSet::len).sum();
            assert!(lately <= 300, "{lately} clients at {client} ms");
        }
    }

    #[test]
    fn without_a_bound_everybody_opens_and_nothing_is_remembered() {
        let mut openings = Openings::new(ms(0), 0);
        assert!((0..100_000).all(|client| openings.may_open(ms(0), client)));
        assert!(openings.lately.iter().all(HashSet::is_empty));
    }
}
