//! Admin requests of operators (§11): the leader checks one before it proposes it, and answers it
//! once it is in force.

use std::collections::VecDeque;

use leasehold_leases::config::{RANGES_MAX, STARTS_BYTES_MAX};
use leasehold_leases::{
    ConfigChange, ConfigId, KeyRange, LeaseParams, Policy, RangeChange, RangeMap, ReplicaId,
    StrategySpec,
};

use super::super::action::Event;
use super::super::handles::Asker;
use super::super::lease_set::{Durations, InForce, LeaseAnswer, LeaseSet, Refusal};
use super::super::message::Message;
use super::super::step::Step;
use super::super::us::Us;
use super::{Leasing, durations};

/// Most wishes that a leader keeps at a time.
const WISHES_MAX: usize = 64;

/// Answers that a leader remembers.
const ANSWERED_MAX: usize = 256;

/// A wish that is not answered yet.
#[derive(Clone, Debug, Hash)]
struct Wish {
    /// Replica that passed the request on; `ask` is the request's number there.
    from: Asker,
    ask: u64,
    set: LeaseSet,
    /// A configuration that brings it is proposed.
    proposed: bool,
}

/// Wishes of operators.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Wishes {
    /// Those that are not answered yet, in the order in which they came.
    waiting: Vec<Wish>,
    /// The outcome of all that wait, so that the next need not merge them again.
    merged: Option<Merged>,
    /// Those that change nothing that this leader knows.
    found: Vec<Found>,
    /// Those that were answered, the newest last.
    answered: VecDeque<Answered>,
}

/// Leases after a configuration that brings what operators want.
#[derive(Clone, Debug, Hash)]
struct Merged {
    /// The newest configuration when they were merged: it comes before them.
    after: ConfigId,
    policies: RangeMap<Policy>,
    params: LeaseParams,
}

/// A wish that was answered for good. Another copy of it may come late: it must not undo what
/// was put in force since, nor bring what was refused.
#[derive(Clone, Debug, Hash)]
struct Answered {
    from: Asker,
    ask: u64,
    set: LeaseSet,
    answer: LeaseAnswer,
}

/// A wish that was in force when the leader looked. It is said only after a majority has
/// answered a probe sent later: another leader may have changed it meanwhile.
#[derive(Clone, Debug, Hash)]
struct Found {
    wish: Wish,
    /// The newest configuration when the leader looked.
    config: ConfigId,
    /// The probe to be answered; `None`: it is not sent yet.
    probe: Option<u64>,
}

impl Wishes {
    pub(super) fn clear(&mut self) {
        *self = Wishes::default();
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.found.len()
    }

    /// Whether it is here already.
    fn knows(&self, from: Asker, ask: u64, set: &LeaseSet) -> bool {
        let same = |wish: &Wish| wish.from == from && wish.ask == ask && wish.set == *set;
        let found = self.found.iter().map(|found| &found.wish);
        self.waiting.iter().chain(found).any(same)
    }

    /// Returns the answer to an admin request, if it was answered.
    fn answer_to(&self, from: Asker, ask: u64, set: &LeaseSet) -> Option<LeaseAnswer> {
        let same = |it: &&Answered| it.from == from && it.ask == ask && it.set == *set;
        self.answered.iter().find(same).map(|it| it.answer.clone())
    }

    fn note_answered(&mut self, answered: Answered) {
        if self.answered.len() >= ANSWERED_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back(answered);
    }

    /// The next configuration is proposed, with all of them in it.
    pub(super) fn are_proposed(&mut self) {
        self.waiting
            .iter_mut()
            .for_each(|wish| wish.proposed = true);
    }

    /// Adds a request, unless it is here already: a replica that passes it on may repeat it.
    /// `merged` is the outcome of all that wait and of this one. Returns whether it is new.
    fn add(&mut self, wish: Wish, merged: Merged) -> bool {
        if self.knows(wish.from, wish.ask, &wish.set) {
            return false;
        }
        let (from, ask) = (wish.from.replica, wish.ask);
        let same = |other: &Wish| other.from.replica == from && other.ask == ask;
        // An earlier run of the replica that passes it on used the same number.
        self.found.retain(|found| !same(&found.wish));
        match self.waiting.iter_mut().find(|other| same(other)) {
            Some(known) => {
                *known = wish;
                self.merged = None;
            }
            None => {
                self.waiting.push(wish);
                self.merged = Some(merged);
            }
        }
        assert!(self.len() <= WISHES_MAX, "no more are kept than may be");
        true
    }
}

impl Leasing {
    /// An operator wants something of this leader; `from` passes it on. Returns whether
    /// the next configuration should bring it. Before the leader has executed what others
    /// proposed (`has_begun`), it cannot tell what is in force.
    pub fn take_wish(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        (ask, set): (u64, LeaseSet),
        has_begun: bool,
    ) -> bool {
        let from = asker(step, from);
        if self.office.wishes.knows(from, ask, &set) {
            return false;
        }
        if let Some(before) = self.office.wishes.answer_to(from, ask, &set) {
            tell(step, from.replica, ask, before);
            return false;
        }
        let merged = match self.merge(step, &set, has_begun) {
            Ok(merged) => merged,
            Err(refusal) => {
                self.answer(step, from, (ask, set), Err(refusal));
                return false;
            }
        };
        let wish = Wish {
            from,
            ask,
            set,
            proposed: false,
        };
        let fresh = self.office.wishes.add(wish, merged);
        if fresh {
            // The pass under way does not know of it. One that is only repeated must not
            // begin it anew: a pass may take longer than until the next repetition.
            self.office.survey = None;
            self.office.remaining = None;
        }
        fresh
    }

    /// Merges a request with those that wait.
    ///
    /// # Errors
    /// If the request is not taken.
    fn merge(&self, step: &Step<'_>, set: &LeaseSet, has_begun: bool) -> Result<Merged, Refusal> {
        if let Some(reason) = self.invalid(step.us, set) {
            return Err(Refusal::Invalid(reason));
        }
        if let Some(reason) = self.busy(step, set, has_begun) {
            return Err(Refusal::Busy(reason));
        }
        self.merge_if_fit(step.us, set).map_err(Refusal::Invalid)
    }

    /// Why this could not be in any configuration, if so.
    fn invalid(&self, us: &Us, set: &LeaseSet) -> Option<String> {
        let voters = us.members.voters();
        let unknown = |(_, spec): &(KeyRange, StrategySpec)| match spec {
            StrategySpec::Fixed { holders } => {
                holders.is_some_and(|holders| holders.is_empty() || !holders.is_subset(voters))
            }
            _ => false,
        };
        let holders = || "holders: must be replicas of this cluster, at least one".to_owned();
        set.strategies.iter().any(unknown).then(holders)
    }

    /// Why this cannot be judged or taken now, if so.
    fn busy(&self, step: &Step<'_>, set: &LeaseSet, has_begun: bool) -> Option<String> {
        let heard = step
            .us
            .others()
            .filter(|other| step.us.is_heard(step.now, *other));
        let lives = heard.chain([step.me()]).collect();
        let measured = || self.counted.matrix.is_known(step.us, lives);
        if !has_begun {
            return Some("the leader has just begun: ask again".to_owned());
        }
        if set.durations != Durations::default() && !measured() {
            let reason =
                "the leader does not know the round trips between all nodes yet: ask again";
            return Some(reason.to_owned());
        }
        let full = self.office.wishes.len() >= WISHES_MAX;
        full.then(|| {
            format!("{WISHES_MAX} changes of leases wait for an answer at the leader: ask again")
        })
    }

    /// Merges a request with what is in force once all that is under way is.
    ///
    /// # Errors
    /// If they do not go together: the reason, and what would do.
    fn merge_if_fit(&self, us: &Us, set: &LeaseSet) -> Result<Merged, String> {
        let mut merged = self.waiting_merged();
        let mut change = ConfigChange::default();
        self.add(&mut change, &set.strategies, &mut merged.policies);
        if !merged.policies.fits() {
            return Err(format!(
                "range: there are {RANGES_MAX} ranges at most, which begin with {STARTS_BYTES_MAX} bytes of keys at \
                 most, together; set one strategy for a range that covers several of them first"
            ));
        }
        if set.durations == Durations::default() {
            return Ok(merged);
        }
        merged.params = set.durations.in_place(&merged.params);
        let distance = self.counted.matrix.longest(us);
        match durations::unfit(&merged.params, distance, set.force) {
            Some(reason) => Err(reason),
            None => Ok(merged),
        }
    }

    /// The outcome of all that wait.
    fn waiting_merged(&self) -> Merged {
        let after = self.configs.newest();
        let known = self.office.wishes.merged.as_ref();
        if let Some(merged) = known.filter(|merged| merged.after == after) {
            return merged.clone();
        }
        let mut change = ConfigChange::default();
        let mut params = *self.configs.params(after);
        let (policies, _) = self.add_wishes(&mut change, &mut params);
        Merged {
            after,
            policies,
            params,
        }
    }

    /// Adds to `change` and `params` what operators want. Returns what ranges will say then, and how
    /// many wishes, of the first, add nothing: they are in force already.
    pub(super) fn add_wishes(
        &self,
        change: &mut ConfigChange,
        params: &mut LeaseParams,
    ) -> (RangeMap<Policy>, usize) {
        let newest = *self.configs.params(self.configs.newest());
        let wishes = &self.office.wishes.waiting;
        let mut policies = self.configs.policies_after(&change.ranges);
        let mut already = 0;
        let mut nothing = true;
        for (index, wish) in wishes.iter().enumerate() {
            self.add(change, &wish.set.strategies, &mut policies);
            *params = wish.set.durations.in_place(params);
            nothing = *change == ConfigChange::default() && *params == newest;
            already += usize::from(nothing && already == index);
        }
        assert!(already <= wishes.len(), "only what is wished is in force");
        // The last may take back what one before it adds: then nothing is proposed.
        let already = if nothing { wishes.len() } else { already };
        (policies, already)
    }

    /// Adds to `change` the strategies that are not in force in all of their range after it.
    /// `policies` is what ranges say after `change`, before and afterwards.
    fn add(
        &self,
        change: &mut ConfigChange,
        wanted: &[(KeyRange, StrategySpec)],
        policies: &mut RangeMap<Policy>,
    ) {
        let before = change.ranges.len();
        for (range, spec) in wanted {
            let within = || policies.overlapping(range);
            if within().all(|(_, policy)| policy.strategy == *spec) {
                continue;
            }
            change.ranges.push(RangeChange {
                // A strategy that lists no keys clears all parts at once: they become one range.
                clear: !spec.wants_demand() && within().count() > 1,
                ..RangeChange::strategy(range.clone(), spec.clone())
            });
        }
        self.configs
            .change_further(policies, &change.ranges[before..]);
    }

    /// The first `already` wishes are in force, if this leader still leads.
    pub(super) fn found_in_force(&mut self, already: usize) {
        let config = self.configs.newest();
        let wishes = &mut self.office.wishes;
        wishes.merged = None;
        let found = wishes.waiting.drain(..already).map(|wish| Found {
            wish,
            config,
            probe: None,
        });
        wishes.found.extend(found);
    }

    /// `probe` is the next to be sent. Returns whether wishes wait for it.
    pub fn await_probe(&mut self, probe: u64) -> bool {
        let found = self.office.wishes.found.iter_mut();
        let fresh = found.filter(|found| found.probe.is_none());
        fresh.map(|found| found.probe = Some(probe)).count() > 0
    }

    /// A majority has answered all probes up to `confirmed`: this leader led when it found
    /// those wishes in force that wait for them.
    pub fn answer_found(&mut self, step: &mut Step<'_>, confirmed: u64) {
        let may_say = |found: &mut Found| found.probe.is_some_and(|probe| probe <= confirmed);
        let found = &mut self.office.wishes.found;
        let ended: Vec<Found> = found.extract_if(.., may_say).collect();
        for Found { wish, config, .. } in ended {
            let already = true;
            let asked = (wish.ask, wish.set);
            self.answer(step, wish.from, asked, Ok(InForce { config, already }));
        }
    }

    /// Configuration `config` is executed: what it brings is in force.
    pub fn answer_wishes(&mut self, step: &mut Step<'_>, config: ConfigId) {
        assert_eq!(
            config,
            self.configs.newest(),
            "what was just executed is in force"
        );
        self.office.wishes.merged = None;
        let waiting = &mut self.office.wishes.waiting;
        let proposed: Vec<Wish> = waiting.extract_if(.., |wish| wish.proposed).collect();
        for wish in proposed {
            let already = false;
            let asked = (wish.ask, wish.set);
            self.answer(step, wish.from, asked, Ok(InForce { config, already }));
        }
    }

    /// Reports to the replica that passed a request on how it ended, and remembers the answer,
    /// unless the request may be made again.
    fn answer(
        &mut self,
        step: &mut Step<'_>,
        from: Asker,
        (ask, set): (u64, LeaseSet),
        answer: LeaseAnswer,
    ) {
        if !matches!(answer, Err(Refusal::Busy(_))) {
            self.office.wishes.note_answered(Answered {
                from,
                ask,
                set,
                answer: answer.clone(),
            });
        }
        tell(step, from.replica, ask, answer);
    }
}

/// The run of the replica that passes a wish on.
fn asker(step: &Step<'_>, replica: ReplicaId) -> Asker {
    let incarnation = match replica == step.me() {
        true => step.us.incarnation,
        false => step.us.incarnation_of(replica),
    };
    Asker {
        replica,
        incarnation,
    }
}

fn tell(step: &mut Step<'_>, to: ReplicaId, ask: u64, answer: LeaseAnswer) {
    match to == step.me() {
        true => step.announce(Event::LeaseAnswered { ask, answer }),
        false => step.send(to, Message::LeaseAnswer { ask, answer }),
    }
}
