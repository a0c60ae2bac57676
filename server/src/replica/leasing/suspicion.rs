//! Whom a leader suspects, and so excludes from the next configuration (§3.7).

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leases::{ReplicaId, ReplicaSet, Time};

/// Quiet grace periods after which a suspect is included again.
const QUIET_GRACES: u32 = 2;

/// Whom a leader suspects, and since when nobody has.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspicions {
    /// By reporter: whom it suspects.
    reports: BTreeMap<ReplicaId, ReplicaSet>,
    /// When each replica last gave reason for suspicion.
    last: BTreeMap<ReplicaId, Time>,
    /// Replicas whose missing acceptance has blocked a slot for too long.
    blockers: ReplicaSet,
}

impl Hash for Suspicions {
    /// To have reported nobody is to have reported nothing.
    fn hash<H: Hasher>(&self, state: &mut H) {
        for report in self.reports.iter().filter(|(_, who)| !who.is_empty()) {
            report.hash(state);
        }
        (&self.last, self.blockers).hash(state);
    }
}

impl Suspicions {
    /// A leadership begins: what was reported to an earlier one is old, and who is
    /// excluded stays so until it has had time to show that it lives.
    pub(super) fn begin(now: Time, excluded: ReplicaSet) -> Suspicions {
        Suspicions {
            last: excluded.iter().map(|suspect| (suspect, now)).collect(),
            ..Suspicions::default()
        }
    }

    pub(super) fn report(&mut self, now: Time, from: ReplicaId, suspects: ReplicaSet) {
        self.reports.insert(from, suspects);
        self.note(now, suspects);
    }

    pub(super) fn set_blockers(&mut self, now: Time, blockers: ReplicaSet) {
        self.blockers = blockers;
        self.note(now, blockers);
    }

    fn note(&mut self, now: Time, suspects: ReplicaSet) {
        self.last
            .extend(suspects.iter().map(|suspect| (suspect, now)));
    }

    /// Whom the next configuration should exclude: suspects of the leader (`mine`) or
    /// of a majority, and blockers. Who is `excluded` returns after two quiet grace
    /// periods.
    pub(super) fn exclusions(
        &mut self,
        now: Time,
        mine: ReplicaSet,
        excluded: ReplicaSet,
        rule: Exclusion,
    ) -> ReplicaSet {
        self.note(now, mine);
        let everyone = self
            .reports
            .values()
            .fold(ReplicaSet::EMPTY, |all, s| all.union(*s));
        let reporters = |suspect| self.reports.values().filter(move |s| s.contains(suspect));
        let by_many = everyone
            .iter()
            .filter(|suspect| reporters(*suspect).count() >= rule.majority);
        let fresh = by_many
            .collect::<ReplicaSet>()
            .union(mine)
            .union(self.blockers);
        let still = excluded.iter().filter(|suspect| {
            let last = self.last.get(suspect);
            last.is_some_and(|last| now.since(*last) < rule.grace * QUIET_GRACES)
        });
        // What peers report may name the leader, or who is no member.
        let exclusions = still.collect::<ReplicaSet>().union(fresh);
        let exclusions = exclusions.intersection(rule.others);
        assert!(
            mine.intersection(rule.others).is_subset(exclusions),
            "whom the leader suspects is excluded"
        );
        exclusions
    }
}

/// What decides about exclusions besides what is suspected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exclusion {
    /// The members but the leader, who is never excluded.
    pub(super) others: ReplicaSet,
    pub(super) majority: usize,
    pub(super) grace: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(replicas: &[u8]) -> ReplicaSet {
        replicas.iter().copied().map(ReplicaId).collect()
    }

    /// Among five, led by 0: suspects of the leader, reports (by, whom), blockers,
    /// excluded, how many ms after the last reason, and who is to be excluded.
    #[test]
    fn suspects_are_excluded_until_they_have_been_quiet() {
        type Case = (
            &'static str,
            &'static [u8],
            &'static [(u8, &'static [u8])],
            &'static [u8],
            &'static [u8],
            u64,
            &'static [u8],
        );
        let cases: [Case; 9] = [
            ("nobody is suspected", &[], &[], &[], &[], 0, &[]),
            ("the leader suspects", &[3], &[], &[], &[], 0, &[3]),
            (
                "a minority reports",
                &[],
                &[(1, &[4]), (2, &[4])],
                &[],
                &[],
                0,
                &[],
            ),
            (
                "a majority reports",
                &[],
                &[(1, &[4]), (2, &[4]), (3, &[4])],
                &[],
                &[],
                0,
                &[4],
            ),
            (
                "a majority reports the leader",
                &[],
                &[(1, &[0]), (2, &[0]), (3, &[0])],
                &[],
                &[],
                0,
                &[],
            ),
            ("it blocks a slot", &[], &[], &[2], &[], 0, &[2]),
            (
                "excluded, and quiet for less than two graces",
                &[],
                &[],
                &[],
                &[4],
                1999,
                &[4],
            ),
            (
                "excluded, and quiet for two graces",
                &[],
                &[],
                &[],
                &[4],
                2000,
                &[],
            ),
            (
                "excluded, and reported by one",
                &[],
                &[(1, &[4])],
                &[],
                &[4],
                0,
                &[4],
            ),
        ];
        let rule = Exclusion {
            others: set(&[1, 2, 3, 4]),
            majority: 3,
            grace: Duration::from_secs(1),
        };
        for (case, mine, reports, blockers, excluded, later_ms, expected) in cases {
            let mut suspicions = Suspicions::begin(Time::ZERO, set(excluded));
            for (by, whom) in reports {
                suspicions.report(Time::ZERO, ReplicaId(*by), set(whom));
            }
            suspicions.set_blockers(Time::ZERO, set(blockers));
            let now = Time::ZERO + Duration::from_millis(later_ms);
            let exclusions = suspicions.exclusions(now, set(mine), set(excluded), rule);
            assert_eq!(exclusions, set(expected), "{case}");
        }
    }
}
