//! Whom a leader suspects, and so excludes from the next configuration (§3.7).

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leases::{Membership, ReplicaId, ReplicaSet, Time};

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
        let reporters = |suspect: ReplicaId| -> ReplicaSet {
            let reports = self.reports.iter();
            let of_it = reports.filter(|(_, whom)| whom.contains(suspect));
            of_it.map(|(by, _)| *by).collect()
        };
        let by_many = everyone
            .iter()
            .filter(|suspect| rule.members.is_quorum(reporters(*suspect)));
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
        let exclusions = exclusions.intersection(rule.members.others(rule.me));
        assert!(
            !exclusions.contains(rule.me),
            "a leader does not exclude itself"
        );
        assert!(
            exclusions.is_subset(rule.members.voters()),
            "who is excluded exists"
        );
        exclusions
    }
}

/// What decides about exclusions besides what is suspected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exclusion {
    /// The leader, who is never excluded.
    pub(super) me: ReplicaId,
    pub(super) members: Membership,
    pub(super) grace: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `024`: those three; `-`: nobody.
    fn set(text: &str) -> ReplicaSet {
        let digits = text.chars().filter_map(|digit| digit.to_digit(10));
        digits.map(|digit| ReplicaId(digit as u8)).collect()
    }

    #[test]
    fn every_case_of_the_table() {
        let rule = Exclusion {
            me: ReplicaId(0),
            members: Membership::fixed(5),
            grace: Duration::from_secs(1),
        };
        let mut cases = 0;
        let text = include_str!("testdata/exclusions.txt");
        let lines = text.lines();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let columns: Vec<&str> = line.split('|').map(str::trim).collect();
            let [name, mine, reports, blockers, excluded, later_ms, expected] = columns[..] else {
                panic!("seven columns: {line}");
            };
            let mut suspicions = Suspicions::begin(Time::ZERO, set(excluded));
            for report in reports.split_whitespace() {
                let (by, whom) = report.split_once(':').expect("by:whom");
                let by = set(by).iter().next().expect("a reporter");
                suspicions.report(Time::ZERO, by, set(whom));
            }
            suspicions.set_blockers(Time::ZERO, set(blockers));
            let later = Duration::from_millis(later_ms.parse().expect("a number of ms"));
            let now = Time::ZERO + later;
            let exclusions = suspicions.exclusions(now, set(mine), set(excluded), rule);
            assert_eq!(exclusions, set(expected), "{name}");
            cases += 1;
        }
        assert!(cases >= 10, "the table was read");
    }
}
