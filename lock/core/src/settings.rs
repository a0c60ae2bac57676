//! Settings that all members of a group share.

use std::time::Duration;

use leasehold_leases::time::ClockBound;

/// Assumption about the clocks of the members. It decides on which algorithm a group relies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClockModel {
    /// The rates of all clocks are bounded. The members never compare readings of different clocks.
    /// The algorithm is that of PaxosLease (Trencseni, Gazso and Reinhardt, 2012): each acceptor has
    /// a timer of its own for a lease.
    Bounded(ClockBound),
    /// All clocks are synchronised: at any moment, the readings of any two of them differ by at
    /// most `epsilon`. The algorithm is Flease: a lease has the same end for all members.
    Synchronised {
        /// Maximum difference between the clocks of any two members.
        epsilon: Duration,
    },
}

/// Settings of a group. All members have the same settings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupSettings {
    /// Number of members, from 3 to 15.
    pub members: u8,
    /// Duration of a lease (`t_max` of the paper).
    pub term: Duration,
    /// Assumption about the clocks.
    pub clocks: ClockModel,
    /// Maximum duration of an attempt, which consists of a READ and a WRITE. Later acks are
    /// ignored.
    pub attempt: Duration,
    /// Time after which an owner renews a lease.
    pub renew: Duration,
}

/// Error in [`GroupSettings`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Too few or too many members.
    #[error(
        "`members` are {0}, but a group has 3 to 15 members; for more programs, use several groups"
    )]
    Members(usize),
    /// An attempt or the time before a renewal is too short.
    #[error("`{0}` is below 1 ms; give a longer duration")]
    Brief(&'static str),
    /// The term is too long or too short.
    #[error("`t_max_ms` is {0:?}, but must be between 100 ms and one day")]
    Term(Duration),
    /// The term is too short for an attempt, or for the difference between clocks.
    #[error(
        "`t_max_ms` is {term:?}, but must be above `attempt_ms` + 2 `epsilon_ms` = {least:?}; increase \
         `t_max_ms`, or decrease the others"
    )]
    Short {
        /// The term.
        term: Duration,
        /// The sum that the term must exceed.
        least: Duration,
    },
    /// The bound on the rates of clocks is too large.
    #[error("`rho` is {0} parts per million, but must be at most 250000, a quarter")]
    Rho(u32),
    /// A renewal would come too late.
    #[error(
        "`renew_ms` is {renew:?}, but `renew_ms` + `attempt_ms` must be below `t_max_ms` = {term:?}; \
         decrease `renew_ms`"
    )]
    Renew {
        /// Time after which an owner renews.
        renew: Duration,
        /// The term.
        term: Duration,
    },
}

/// Maximum error of a clock's rate. With a larger error, waits would be much longer than the term.
const RHO_PPM_MAX: u32 = 250_000;
/// Minimum term. With shorter terms, the numbers of intervals would not fit into rounds.
const TERM_MIN: Duration = Duration::from_millis(100);
/// Maximum term. It keeps all sums of times far below the end of the clock.
const TERM_MAX: Duration = Duration::from_secs(24 * 60 * 60);

impl GroupSettings {
    /// Returns settings with the defaults for `renew` (a third of the term) and `attempt` (a
    /// quarter of the term).
    pub fn new(members: u8, term: Duration, clocks: ClockModel) -> GroupSettings {
        GroupSettings {
            members,
            term,
            clocks,
            attempt: term / 4,
            renew: term / 3,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The field that is wrong, and how to correct it.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let &GroupSettings {
            members,
            term,
            clocks,
            attempt,
            renew,
        } = self;
        if !(3..=15).contains(&members) {
            return Err(SettingsError::Members(members.into()));
        }
        let durations = [("attempt_ms", attempt), ("renew_ms", renew)];
        let is_brief = |(_, it): &(&str, Duration)| *it < Duration::from_millis(1);
        if let Some((name, _)) = durations.into_iter().find(is_brief) {
            return Err(SettingsError::Brief(name));
        }
        if !(TERM_MIN..=TERM_MAX).contains(&term) {
            return Err(SettingsError::Term(term));
        }
        let slack = match clocks {
            ClockModel::Synchronised { epsilon } => epsilon.saturating_mul(2),
            ClockModel::Bounded(ClockBound { rho_ppm }) if rho_ppm > RHO_PPM_MAX => {
                return Err(SettingsError::Rho(rho_ppm));
            }
            ClockModel::Bounded(_) => Duration::ZERO,
        };
        let least = attempt.saturating_add(slack);
        if term <= least {
            return Err(SettingsError::Short { term, least });
        }
        if renew.saturating_add(attempt) >= term {
            return Err(SettingsError::Renew { renew, term });
        }
        Ok(())
    }

    /// Whether each acceptor has a timer of its own for a lease.
    pub fn has_timers(&self) -> bool {
        matches!(self.clocks, ClockModel::Bounded(_))
    }

    /// Returns the number of members that form a majority.
    pub fn majority(&self) -> usize {
        usize::from(self.members) / 2 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epsilon(it: &mut GroupSettings, epsilon: Duration) {
        it.clocks = ClockModel::Synchronised { epsilon };
    }

    #[test]
    fn each_wrong_field_is_named() {
        let ms = Duration::from_millis;
        let clocks = ClockModel::Synchronised { epsilon: ms(100) };
        let good = GroupSettings::new(3, ms(10_000), clocks);
        assert_eq!(good.validate(), Ok(()));
        let wrong = |change: fn(&mut GroupSettings)| {
            let mut settings = good.clone();
            change(&mut settings);
            settings.validate().unwrap_err().to_string()
        };
        assert!(wrong(|it| it.members = 2).contains("`members`"));
        assert!(wrong(|it| it.members = 16).contains("`members`"));
        assert!(wrong(|it| it.attempt = Duration::ZERO).contains("`attempt_ms`"));
        assert!(wrong(|it| it.term = Duration::MAX).contains("`t_max_ms`"));
        assert!(wrong(|it| epsilon(it, it.term / 2)).contains("`epsilon_ms`"));
        assert!(wrong(|it| epsilon(it, Duration::MAX)).contains("`epsilon_ms`"));
        let bounded = |rho_ppm| ClockModel::Bounded(ClockBound { rho_ppm });
        let drift = |it: &mut GroupSettings| {
            it.clocks = ClockModel::Bounded(ClockBound { rho_ppm: 300_000 });
        };
        assert!(wrong(drift).contains("`rho` is 300000"));
        assert_eq!(
            GroupSettings::new(3, ms(10_000), bounded(1000)).validate(),
            Ok(())
        );
        assert!(wrong(|it| it.renew = it.term).contains("`renew_ms`"));
    }

    #[test]
    fn two_majorities_have_a_common_member() {
        for members in 3..=15_u8 {
            let clocks = ClockModel::Bounded(ClockBound { rho_ppm: 0 });
            let settings = GroupSettings::new(members, Duration::from_secs(1), clocks);
            assert!(2 * settings.majority() > usize::from(members));
        }
    }
}
