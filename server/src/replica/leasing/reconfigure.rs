//! Which configuration a leader proposes next (§3.4).

use std::time::Duration;

use leases::strategy::gather;
use leases::{ConfigChange, RangeChange, ReplicaId, ReplicaSet, Situation, Time};

use super::super::step::Step;
use super::super::us::Us;
use super::Leasing;
use super::suspicion::{Exclusion, Suspicions};
use super::wishes::Wishes;

/// What a leader keeps for the configurations that it proposes.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Office {
    pub(super) suspicions: Suspicions,
    /// What operators want.
    pub(super) wishes: Wishes,
    /// The configuration proposed last had no room for all that should change.
    unfinished: bool,
    /// The other replicas, nearest first.
    nearest: Vec<ReplicaId>,
}

impl Leasing {
    /// A leadership begins.
    pub fn take_office(&mut self, now: Time) {
        self.office = Office {
            suspicions: Suspicions::begin(now, self.configs.excluded()),
            ..Office::default()
        };
        self.counted.demand.touch_all();
    }

    /// A leadership ends. Whom it suspected is remembered until the next begins.
    pub fn leave_office(&mut self) {
        self.office.wishes.clear();
        self.office.nearest.clear();
        self.office.unfinished = false;
    }

    /// A peer says whom it suspects.
    pub fn note_report(&mut self, now: Time, from: ReplicaId, suspects: ReplicaSet) {
        self.office.suspicions.report(now, from, suspects);
    }

    /// Replicas whose missing acceptance has blocked a slot for t_grace. Returns whether
    /// the next configuration should exclude others than the newest.
    pub fn note_blockers(&mut self, step: &Step<'_>, blockers: ReplicaSet) -> bool {
        self.office.suspicions.set_blockers(step.now, blockers);
        self.wanted_exclusions(step) != self.configs.excluded()
    }

    fn wanted_exclusions(&mut self, step: &Step<'_>) -> ReplicaSet {
        let rule = Exclusion {
            me: step.me(),
            members: step.us.members,
            grace: self.grace(),
        };
        let mine = self.suspects();
        let excluded = self.configs.excluded();
        let suspicions = &mut self.office.suspicions;
        suspicions.exclusions(step.now, mine, excluded, rule)
    }

    /// The next configuration, if it should differ from the newest.
    pub fn next_change(&mut self, step: &mut Step<'_>) -> Option<ConfigChange> {
        let situation = self.situation(step.us);
        let excluded = self.wanted_exclusions(step);
        let wanted = self.wanted_change(step);
        let demand = &mut self.counted.demand;
        let gathered = gather(wanted, &situation, demand, &self.configs);
        self.office.unfinished = gathered.more;
        let mut change = gathered.change;
        change.excluded = (excluded != self.configs.excluded()).then_some(excluded);
        (change != ConfigChange::default()).then_some(change)
    }

    /// Whether the configuration proposed last had no room for all that should change: the
    /// next should follow as soon as it may.
    pub fn is_unfinished(&self) -> bool {
        self.office.unfinished
    }

    /// The first configuration puts the strategies and durations of the settings in
    /// force; from then on the log says what they are, not one node's settings, and
    /// only the operator changes them.
    fn wanted_change(&mut self, step: &mut Step<'_>) -> ConfigChange {
        let newest = self.configs.newest();
        let mut params = *self.configs.params(newest);
        let mut change = ConfigChange::default();
        if !self.configured {
            let settings = &step.us.settings;
            let differ = settings.strategies != self.configs.policies().strategies();
            let ranges = settings.strategies.iter().filter(|_| differ);
            let ranges = ranges.map(|(range, spec)| RangeChange::strategy(range, spec.clone()));
            change.ranges = ranges.collect();
            params = settings.params;
        }
        let already = self.add_wishes(&mut change, &mut params);
        self.propose_wishes(step, already);
        if self.configured && !change.ranges.is_empty() {
            // Another strategy looks at all keys.
            self.counted.demand.touch_all();
        }
        change.params = (params != *self.configs.params(newest)).then_some(params);
        change
    }

    /// The others by distance. The order of before is kept unless it is clearly wrong,
    /// or equal distances would reorder, and reconfigure, for ever.
    fn situation(&mut self, us: &Us) -> Situation {
        let far = Duration::from_secs(3600);
        let rtt = |replica: ReplicaId| us.rtt(replica).unwrap_or(far);
        let wrong =
            |pair: &[ReplicaId]| rtt(pair[0]) > rtt(pair[1]) * 5 / 4 + Duration::from_millis(1);
        let nearest = &mut self.office.nearest;
        if nearest.is_empty() || nearest.windows(2).any(wrong) {
            *nearest = us.others().collect();
            nearest.sort_by_key(|replica| rtt(*replica));
        }
        Situation {
            leader: us.me(),
            n: us.settings.n,
            nearest: nearest.clone(),
        }
    }
}
