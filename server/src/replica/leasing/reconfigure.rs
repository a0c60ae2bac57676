//! Which configuration a leader proposes next (§3.4).

use std::hash::{Hash, Hasher};

use leases::latency::{Replies, RoundTrips};
use leases::strategy::Costs;
use leases::{ConfigChange, RangeChange, ReplicaId, ReplicaSet, Situation, Survey, Time};

use super::super::settings::AcceptReplies;
use super::super::step::Step;
use super::super::us::Us;
use super::Leasing;
use super::suspicion::{Exclusion, Suspicions};
use super::wishes::Wishes;

/// How many keys are looked at in one step: about a millisecond. Where there are too many
/// replicas to tabulate all sets of holders, a key takes forty times as long.
fn keys_a_step(n: usize) -> usize {
    match Costs::tabulates(n) {
        true => 4096,
        false => 128,
    }
}

/// What a leader keeps for the configurations that it proposes.
#[derive(Clone, Debug, Default)]
pub(super) struct Office {
    pub(super) suspicions: Suspicions,
    /// What operators want.
    pub(super) wishes: Wishes,
    /// The pass over all keys in demand that is under way.
    pub(super) survey: Option<Survey>,
    /// The configuration proposed last had no room for all that should change.
    unfinished: bool,
    /// Until then holders are chosen more often.
    hurried_until: Time,
    /// Round trips, as strategies go by them.
    rtts: Option<RoundTrips>,
}

impl Hash for Office {
    /// How far a pass has come, and round trips, decide what is proposed, but not before
    /// the horizon.
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.suspicions, &self.wishes, self.unfinished).hash(state);
    }
}

/// What a leader should do for the next configuration.
#[derive(Debug)]
pub enum Next {
    /// Propose one that differs in who is excluded: that cannot wait.
    Exclude(ConfigChange),
    /// Look at further keys, in another step.
    LookOn,
    /// The pass is over.
    Surveyed {
        /// To be proposed, if anything should change.
        change: Option<ConfigChange>,
        /// Whether one entry had no room for all that should change.
        more: bool,
    },
}

impl Leasing {
    /// A leadership begins.
    pub fn take_office(&mut self, now: Time) {
        self.office = Office {
            suspicions: Suspicions::begin(now, self.configs.excluded()),
            ..Office::default()
        };
        self.counted.forget_reports(now);
    }

    /// A leadership ends. Whom it suspected is remembered until the next begins.
    pub fn leave_office(&mut self, now: Time) {
        self.office.wishes.clear();
        self.office.survey = None;
        self.office.unfinished = false;
        self.office.rtts = None;
        self.counted.forget_reports(now);
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

    /// What to do for the next configuration.
    pub fn next_change(&mut self, step: &mut Step<'_>) -> Next {
        let excluded = self.wanted_exclusions(step);
        let excluded = (excluded != self.configs.excluded()).then_some(excluded);
        if excluded.is_some() && self.configured {
            return Next::Exclude(ConfigChange {
                excluded,
                ..ConfigChange::default()
            });
        }
        let newest = self.configs.newest();
        let begun = self.office.survey.take();
        let mut survey = match begun.filter(|survey| survey.of() == newest) {
            Some(survey) => survey,
            None => self.begin_survey(step),
        };
        assert_eq!(survey.of(), newest, "a pass changes the newest");
        if !survey.look(
            &self.counted.demand,
            &self.configs,
            keys_a_step(step.us.settings.n),
        ) {
            self.office.survey = Some(survey);
            return Next::LookOn;
        }
        self.counted.demand.age(step.now, survey.census());
        let surveyed = survey.finish();
        self.office.unfinished = surveyed.more;
        let mut change = surveyed.change;
        change.excluded = excluded;
        let changes = change != ConfigChange::default();
        if changes {
            self.office.wishes.are_proposed();
        }
        Next::Surveyed {
            change: changes.then_some(change),
            more: surveyed.more,
        }
    }

    /// Holders are to be chosen more often until then.
    pub fn hurry_until(&mut self, until: Time) {
        self.office.hurried_until = until;
    }

    /// Whether holders are chosen more often than usual.
    pub fn is_hurried(&self, now: Time) -> bool {
        now < self.office.hurried_until
    }

    /// Whether the configuration proposed last had no room for all that should change.
    pub fn is_unfinished(&self) -> bool {
        self.office.unfinished
    }

    fn begin_survey(&mut self, step: &mut Step<'_>) -> Survey {
        let wanted = self.wanted_change(step);
        let mut situation = self.situation(step.us);
        let silent = |other: &ReplicaId| !step.us.is_heard(step.now, *other);
        situation.silent = step.us.others().filter(silent).collect();
        Survey::begin(wanted, situation, &self.counted.demand, &self.configs)
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
        self.found_in_force(already);
        change.params = (params != *self.configs.params(newest)).then_some(params);
        change
    }

    /// What strategies go by. Round trips of before are kept unless they are clearly wrong,
    /// or small differences would reconfigure for ever.
    fn situation(&mut self, us: &Us) -> Situation {
        let measured = self.counted.matrix.round_trips(us);
        let known = self.office.rtts.take();
        let kept = known.filter(|known| !known.is_far_from(&measured));
        let rtts = self.office.rtts.insert(kept.unwrap_or(measured));
        let replies = match us.settings.accept_replies {
            AcceptReplies::Leader => Replies::LeaderOnly,
            AcceptReplies::Origin | AcceptReplies::All => Replies::LeaderAndOrigin,
        };
        Situation::new(us.me(), rtts.clone(), replies)
    }
}
