//! Replicas that a leader suspects, and therefore excludes from the next configuration (§3.7).

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_backoff::FlapBackoff;
use leasehold_leases::{Membership, ReplicaId, ReplicaSet, Time};

/// Minimum time, in grace periods, that must pass without suspicion before an excluded replica is
/// included again.
const QUIET_GRACES: u32 = 2;

/// Replicas that a leader suspects, and the time at which each replica was last suspected.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspicions {
    /// Map from each reporting replica to the replicas that it suspects.
    reports: BTreeMap<ReplicaId, ReplicaSet>,
    /// Back-off of each replica that was ever suspected. A back-off stores the time of the last
    /// suspicion. It also counts the suspicions that came soon after the replica was included
    /// again.
    backoffs: BTreeMap<ReplicaId, FlapBackoff>,
    /// Replicas that have blocked a slot for too long, because they have not accepted it.
    blockers: ReplicaSet,
    /// Replicas that were excluded at the last call of [`Suspicions::exclusions`].
    excluded: ReplicaSet,
}

impl Hash for Suspicions {
    /// Hashes the suspicions. A report without suspects does not change the hash.
    fn hash<H: Hasher>(&self, state: &mut H) {
        for report in self.reports.iter().filter(|(_, who)| !who.is_empty()) {
            report.hash(state);
        }
        (&self.backoffs, self.blockers, self.excluded).hash(state);
    }
}

impl Suspicions {
    /// Begins a new leadership. Forgets the reports from earlier leaderships, but keeps the
    /// back-offs. A replica that is excluded now stays excluded at first, so that the replica has
    /// time to show that it works.
    pub(super) fn begin(self, now: Time, excluded: ReplicaSet) -> Suspicions {
        let mut suspicions = Suspicions {
            backoffs: self.backoffs,
            excluded: self.excluded,
            ..Suspicions::default()
        };
        suspicions.note(now, excluded);
        suspicions
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
        let now = now.since(Time::ZERO);
        for suspect in suspects.iter() {
            self.backoff(suspect, now).interrupted(now, now);
        }
    }

    fn backoff(&mut self, replica: ReplicaId, now: Duration) -> &mut FlapBackoff {
        let backoffs = self.backoffs.entry(replica);
        backoffs.or_insert_with(|| FlapBackoff::new(now))
    }

    /// Compares the replicas that are excluded now (`excluded`) with those that were excluded at
    /// the last call. Notes the newly excluded replicas, and the replicas that have returned.
    fn note_excluded(&mut self, now: Time, excluded: ReplicaSet) {
        let before = std::mem::replace(&mut self.excluded, excluded);
        let now = now.since(Time::ZERO);
        for suspect in excluded.minus(before).iter() {
            let backoff = self.backoff(suspect, now);
            backoff.failed(now - backoff.healthy_for(now)); // when it was last suspected
        }
        for returned in before.minus(excluded).iter() {
            self.backoff(returned, now).chosen(now);
        }
    }

    /// Returns the replicas that the next configuration should exclude: blockers, and replicas that
    /// the leader (`mine`) or a majority suspects. `excluded` replicas are excluded now. Each of
    /// them stays excluded until it has been free of suspicion for at least two grace periods. This
    /// time is longer for a replica that was suspected soon after an earlier return.
    pub(super) fn exclusions(
        &mut self,
        now: Time,
        mine: ReplicaSet,
        excluded: ReplicaSet,
        rule: ExclusionRule,
    ) -> ReplicaSet {
        self.note_excluded(now, excluded);
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
        let (least, now) = (rule.grace * QUIET_GRACES, now.since(Time::ZERO));
        let still = excluded.iter().filter(|suspect| {
            let backoff = self.backoffs.get(suspect);
            backoff.is_some_and(|it| it.healthy_for(now) < it.wait().max(least))
        });
        // Peers may report the leader, or a replica that is no member.
        let exclusions = still.collect::<ReplicaSet>().union(fresh);
        let exclusions = exclusions.intersection(rule.members.others(rule.me));
        assert!(
            !exclusions.contains(rule.me),
            "a leader does not exclude itself"
        );
        assert!(
            exclusions.is_subset(rule.members.voters()),
            "an excluded replica is a member"
        );
        exclusions
    }
}

/// Further inputs of the decision to exclude replicas, in addition to the suspicions.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExclusionRule {
    /// The leader. It is never excluded.
    pub(super) me: ReplicaId,
    pub(super) members: Membership,
    pub(super) grace: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the set that `text` describes: `024` for replicas 0, 2 and 4, and `-` for none.
    fn set(text: &str) -> ReplicaSet {
        let digits = text.chars().filter_map(|digit| digit.to_digit(10));
        digits.map(|digit| ReplicaId(digit as u8)).collect()
    }

    #[test]
    fn every_case_of_the_table() {
        let rule = ExclusionRule {
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
            let mut suspicions = Suspicions::default().begin(Time::ZERO, set(excluded));
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

    /// A replica is suspected several times, for one second each time. After each suspicion, it
    /// takes longer until the replica is included again.
    #[test]
    fn a_replica_that_flaps_returns_less_and_less_often() {
        let rule = ExclusionRule {
            me: ReplicaId(0),
            members: Membership::fixed(3),
            grace: Duration::from_secs(1),
        };
        let mut suspicions = Suspicions::default().begin(Time::ZERO, set(""));
        let (mut excluded, mut changes) = (set(""), Vec::new());
        let mut look = |second: u64, mine: ReplicaSet| {
            let now = Time::ZERO + Duration::from_secs(second);
            let wanted = suspicions.exclusions(now, mine, excluded, rule);
            if wanted != excluded {
                changes.push(second);
            }
            excluded = wanted;
        };
        for second in 0..300 {
            look(second, if second % 5 == 0 { set("2") } else { set("") });
        }
        for second in 300..4000 {
            look(second, set(""));
        }
        for second in 4000..4004 {
            look(second, if second == 4000 { set("2") } else { set("") });
        }
        // The replica is suspected at 0, returns after two grace periods, and is suspected again at
        // 5. From 295 on it is not suspected, but must be quiet for 10 s.
        assert_eq!(changes, [0, 2, 5, 305, 4000, 4002]);
    }
}
