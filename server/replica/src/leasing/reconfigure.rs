//! Choice of the configuration that a leader proposes next (§3.4).

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use leasehold_leases::latency::{Replies, RoundTrips};
use leasehold_leases::strategy::{Costs, bytes_of_keys};
use leasehold_leases::{
    ConfigChange, Key, RangeChange, RemainingChanges, ReplicaId, ReplicaSet, Situation, Survey,
    Time,
};

use super::Leasing;
use super::lease_set_requests::LeaseSetRequests;
use super::suspicion::{ExclusionRule, Suspicions};
use crate::context::ReplicaContext;
use crate::settings::AcceptReplies;
use crate::step::Step;

/// Factor by which the usual period between two passes is divided after clients have begun to
/// request other keys. The factor applies for [`HURRIED_PERIODS`] usual periods.
const HURRY: u32 = 4;

/// Number of usual periods for which passes follow each other faster.
const HURRIED_PERIODS: u32 = 2;

/// Delay before the next configuration if some changed keys did not fit into the last one.
const BRING_AGAIN: Duration = Duration::from_secs(1);

/// Interval for which the number of bytes of keys in configurations is limited.
const SECOND: Duration = Duration::from_secs(1);

/// Delay before the next pass over the keys if the last pass found more changes than the leader
/// could keep.
const SURVEY_AGAIN: Duration = Duration::from_secs(2);

/// Returns the number of keys to examine in one step. Examining this many keys takes about a
/// millisecond. A cluster with many replicas has no table of all sets of holders, so each key takes
/// about forty times as long.
fn keys_a_step(n: usize) -> usize {
    if Costs::tabulates(n) { 4096 } else { 128 }
}

/// State that a leader keeps for the configurations that it proposes.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaderState {
    pub(super) suspicions: Suspicions,
    /// Requests of operators.
    pub(super) requests: LeaseSetRequests,
    /// Pass over all keys with known demand; `None` if no pass is in progress.
    pub(super) survey: Option<Survey>,
    /// Changes that the last pass found and that no configuration includes yet.
    pub(super) remaining: Option<RemainingChanges>,
    /// Whether the last pass has findings that are not in any configuration yet.
    unfinished: bool,
    /// Key at which the last configuration stopped. Waiting keys are taken in round-robin order, so
    /// the next configuration continues after this key.
    round_robin_key: Option<Key>,
    /// Time at which the next pass begins.
    pass_due: Time,
    /// Time at which the next part of `remaining` may be proposed.
    part_due: Time,
    /// Configurations of the last second that contained keys. Each entry is (time of the proposal,
    /// bytes of the keys).
    brought: VecDeque<(Time, usize)>,
    /// Time at which the faster passes end.
    hurried_until: Time,
    /// Round trips between replicas, as strategies use them at present.
    rtts: Option<RoundTrips>,
}

impl Hash for LeaderState {
    /// Hashes the suspicions, the requests of operators, and `unfinished`. The other fields have no
    /// effect in the period for which a fingerprint is valid (`Replica::fingerprint`).
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.suspicions, &self.requests, self.unfinished).hash(state);
    }
}

/// Next action by which a leader prepares or proposes a configuration.
#[derive(Debug)]
pub enum NextConfig {
    /// Propose this configuration immediately, because it excludes a different set of replicas than
    /// the newest configuration.
    Exclude(ConfigChange),
    /// Examine further keys in a later step: the pass over the keys is not complete.
    LookOn,
    /// The choice of holders is complete for now.
    Chosen {
        /// Change to be proposed; `None` if nothing should change.
        change: Option<ConfigChange>,
        /// Time at which to call [`Leasing::next_change`] again.
        again: Time,
    },
}

impl Leasing {
    /// Notes that a leadership of this replica begins.
    pub fn become_leader(&mut self, now: Time) {
        let suspicions = std::mem::take(&mut self.leader_state.suspicions);
        self.leader_state = LeaderState {
            suspicions: suspicions.begin(now, self.configs.excluded()),
            ..LeaderState::default()
        };
        self.demand_tracker.forget_reports(now);
    }

    /// Notes that a leadership of this replica ends. The suspicions are kept until the next
    /// leadership of this replica begins.
    pub fn step_down(&mut self, now: Time) {
        self.leader_state.requests.clear();
        self.leader_state.survey = None;
        self.leader_state.remaining = None;
        self.leader_state.unfinished = false;
        self.leader_state.rtts = None;
        self.demand_tracker.forget_reports(now);
    }

    /// Notes which replicas a peer suspects.
    pub fn note_report(&mut self, now: Time, from: ReplicaId, suspects: ReplicaSet) {
        self.leader_state.suspicions.report(now, from, suspects);
    }

    /// Notes the replicas that have not accepted a slot for t_grace, and so block it. Returns
    /// whether the set of replicas to exclude differs from the set that the newest configuration
    /// excludes.
    pub fn note_blockers(&mut self, step: &Step<'_>, blockers: ReplicaSet) -> bool {
        self.leader_state
            .suspicions
            .set_blockers(step.now, blockers);
        self.wanted_exclusions(step) != self.configs.excluded()
    }

    fn wanted_exclusions(&mut self, step: &Step<'_>) -> ReplicaSet {
        let rule = ExclusionRule {
            me: step.me(),
            members: step.ctx.members,
            grace: self.grace(),
        };
        let mine = self.suspects();
        let excluded = self.configs.excluded();
        let suspicions = &mut self.leader_state.suspicions;
        suspicions.exclusions(step.now, mine, excluded, rule)
    }

    /// Returns the next action by which this leader prepares or proposes a configuration.
    pub fn next_change(&mut self, step: &mut Step<'_>) -> NextConfig {
        let excluded = self.wanted_exclusions(step);
        let excluded = (excluded != self.configs.excluded()).then_some(excluded);
        if excluded.is_some() && self.configured {
            return NextConfig::Exclude(ConfigChange {
                excluded,
                ..ConfigChange::default()
            });
        }
        if let Some(next) = self.next_part(step) {
            return next;
        }
        let newest = self.configs.newest();
        let begun = self.leader_state.survey.take();
        let mut survey = match begun.filter(|survey| survey.of() == newest) {
            Some(survey) => survey,
            None => self.begin_survey(step),
        };
        assert_eq!(
            survey.of(),
            newest,
            "a pass changes the newest configuration"
        );
        if !survey.look(
            &self.demand_tracker.demand,
            &self.configs,
            keys_a_step(step.ctx.settings.n),
        ) {
            self.leader_state.survey = Some(survey);
            return NextConfig::LookOn;
        }
        self.demand_tracker.demand.age(step.now, survey.census());
        self.finish_survey(step, survey, excluded)
    }

    /// Returns the change that a completed pass has found. The change is limited to the keys that
    /// one configuration may contain.
    fn finish_survey(
        &mut self,
        step: &Step<'_>,
        survey: Survey,
        excluded: Option<ReplicaSet>,
    ) -> NextConfig {
        let room = self.room_for_keys(step);
        let surveyed = survey.finish(&self.configs, room);
        let (mut change, remaining) = (surveyed.change, surveyed.remaining);
        self.note_keys(step.now, &change);
        change.excluded = excluded;
        self.leader_state.unfinished = remaining.is_some();
        self.leader_state.pass_due = step.now + self.period(step);
        let changes = change != ConfigChange::default();
        if changes {
            self.leader_state.requests.mark_proposed();
        }
        let again = match remaining {
            Some(remaining) => self.bring_later(step, remaining, changes),
            None => self.leader_state.pass_due,
        };
        NextConfig::Chosen {
            change: changes.then_some(change),
            again,
        }
    }

    /// Returns the next part of the findings of the last pass; `None` if another pass is needed
    /// first.
    fn next_part(&mut self, step: &Step<'_>) -> Option<NextConfig> {
        let (newest, now) = (self.configs.newest(), step.now);
        let remaining = self.leader_state.remaining.take();
        let counts = |remaining: &RemainingChanges| remaining.of() == newest;
        let mut remaining = remaining.filter(counts)?;
        if now >= self.leader_state.pass_due {
            return None;
        }
        if now < self.leader_state.part_due {
            self.leader_state.remaining = Some(remaining);
            let again = self.leader_state.part_due.min(self.leader_state.pass_due);
            return Some(NextConfig::Chosen {
                change: None,
                again,
            });
        }
        let room = self.room_for_keys(step);
        let change = remaining.next(&self.configs, room);
        self.note_keys(now, &change);
        let changes = change != ConfigChange::default();
        let again = self.bring_later(step, remaining, changes);
        Some(NextConfig::Chosen {
            change: changes.then_some(change),
            again,
        })
    }

    /// Keeps `remaining` for later configurations. `remaining` does not contain the changes of the
    /// next configuration. `changes` is true if the next configuration changes something, and so is
    /// proposed. Returns the time at which to continue.
    fn bring_later(
        &mut self,
        step: &Step<'_>,
        mut remaining: RemainingChanges,
        changes: bool,
    ) -> Time {
        let leader_state = &mut self.leader_state;
        if changes {
            remaining.proposed();
        }
        leader_state.round_robin_key = remaining.round_robin_after();
        leader_state.part_due = step.now + BRING_AGAIN;
        if !remaining.is_empty() {
            leader_state.remaining = Some(remaining);
            return leader_state.part_due.min(leader_state.pass_due);
        }
        leader_state.unfinished = remaining.has_more();
        if remaining.has_more() {
            leader_state.pass_due = leader_state.pass_due.min(step.now + SURVEY_AGAIN);
        }
        leader_state.pass_due
    }

    /// Returns the number of bytes of keys that the next configuration may include.
    fn room_for_keys(&mut self, step: &Step<'_>) -> usize {
        let brought = &mut self.leader_state.brought;
        brought.retain(|(at, _)| step.now.since(*at) < SECOND);
        let taken: usize = brought.iter().map(|(_, bytes)| bytes).sum();
        let a_second = step.ctx.settings.configuration_bytes_s();
        a_second.saturating_sub(taken)
    }

    fn note_keys(&mut self, now: Time, change: &ConfigChange) {
        if !change.keys.is_empty() {
            let bytes = bytes_of_keys(change);
            self.leader_state.brought.push_back((now, bytes));
        }
    }

    /// Time from one pass to the next.
    fn period(&self, step: &Step<'_>) -> Duration {
        let usual = step.ctx.settings.timing.reconfigure;
        if step.now < self.leader_state.hurried_until {
            usual / HURRY
        } else {
            usual
        }
    }

    /// Makes this leader choose holders more often for a while, because clients have begun to
    /// request other keys. Returns the time by which the next pass is due.
    pub fn hurry(&mut self, step: &Step<'_>) -> Time {
        let usual = step.ctx.settings.timing.reconfigure;
        self.leader_state.hurried_until = step.now + usual * HURRIED_PERIODS;
        let soon = step.now + usual / HURRY;
        self.leader_state.pass_due = self.leader_state.pass_due.min(soon);
        soon
    }

    /// Returns whether the last pass has findings that are not in any configuration yet.
    pub fn is_unfinished(&self) -> bool {
        self.leader_state.unfinished
    }

    fn begin_survey(&mut self, step: &mut Step<'_>) -> Survey {
        let wanted = self.wanted_change(step);
        let mut situation = self.situation(step.ctx);
        let silent = |other: &ReplicaId| !step.ctx.is_heard(step.now, *other);
        situation.silent = step.ctx.others().filter(silent).collect();
        Survey::begin(
            wanted,
            situation,
            &self.demand_tracker.demand,
            &self.configs,
            self.leader_state.round_robin_key.clone(),
        )
    }

    /// Returns the change that operators and settings require. Settings determine the strategies
    /// and durations only until the first configuration exists. From then on, the log contains the
    /// strategies and durations, and only an operator changes them.
    fn wanted_change(&mut self, step: &mut Step<'_>) -> ConfigChange {
        let newest = self.configs.newest();
        let mut params = *self.configs.params(newest);
        let mut change = ConfigChange::default();
        if !self.configured {
            let settings = &step.ctx.settings;
            let differ = settings.strategies != self.configs.policies().strategies();
            let ranges = settings.strategies.iter().filter(|_| differ);
            let ranges = ranges.map(|(range, spec)| RangeChange::strategy(range, spec.clone()));
            change.ranges = ranges.collect();
            params = settings.params;
        }
        let (_, already) = self.add_requests(&mut change, &mut params);
        self.note_in_force(already);
        change.params = (params != *self.configs.params(newest)).then_some(params);
        change
    }

    /// Returns the input of the strategies. The earlier round trips are used again if the measured
    /// round trips are similar. So small differences do not cause a new configuration each time.
    fn situation(&mut self, ctx: &ReplicaContext) -> Situation {
        let measured = self.demand_tracker.matrix.round_trips(ctx);
        let known = self.leader_state.rtts.take();
        let kept = known.filter(|known| !known.is_far_from(&measured));
        let rtts = self.leader_state.rtts.insert(kept.unwrap_or(measured));
        let replies = match ctx.settings.accept_replies {
            AcceptReplies::Leader => Replies::LeaderOnly,
            AcceptReplies::Origin | AcceptReplies::All => Replies::LeaderAndOrigin,
        };
        Situation::new(ctx.me(), rtts.clone(), replies)
    }
}
