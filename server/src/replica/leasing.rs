//! Joins the lease engine to the replica: when it promises, what it attaches to
//! acceptances, and which configurations a leader proposes.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use leases::mutants::{Rule, off};
use leases::promise::Live;
use leases::{
    ConfigChange, ConfigId, Configs, KeyRange, LeaseMessage, PollContext, ReplicaId, ReplicaSet,
    Situation, Slot, Time,
};

use super::action::{Action, Event, Record};
use super::log::Accepted;
use super::message::{LogId, Message, Value};
use super::persist::After;
use super::timers::Timer;
use super::{Replica, Role};

/// The demand that one report may carry: with one report a second, the paper's
/// bound of 100 KB/s a replica (§3.4).
const REPORT_BYTES_MAX: usize = 100_000;

/// The tag of an acceptance of `value`, with the grants in force.
pub(super) fn tag_of(live: &Live, configs: &Configs, value: &Value) -> ReplicaSet {
    let writes = value
        .commands()
        .iter()
        .filter(|proposed| proposed.command.is_write());
    let keys = writes.flat_map(|proposed| proposed.command.keys());
    live.tag(keys.map(|key| configs.view(key)))
}

/// The tag of the vote on `accepted` that leaves now (hazard 7): a promise made
/// while the entry went to disk is in it.
pub(super) fn vote_tag(live: &Live, configs: &Configs, accepted: &mut Accepted) -> ReplicaSet {
    match accepted.early_tag.take() {
        Some(early) => early,
        None => tag_of(live, configs, &accepted.value),
    }
}

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
    pub(super) fn begin(&mut self, now: Time, excluded: ReplicaSet) {
        *self = Suspicions::default();
        self.last = excluded.iter().map(|suspect| (suspect, now)).collect();
    }

    pub(super) fn report(&mut self, now: Time, from: ReplicaId, suspects: ReplicaSet) {
        self.reports.insert(from, suspects);
        for suspect in suspects.iter() {
            self.last.insert(suspect, now);
        }
    }

    fn reporters(&self, suspect: ReplicaId) -> usize {
        self.reports
            .values()
            .filter(|suspects| suspects.contains(suspect))
            .count()
    }
}

impl Replica {
    /// The tag of `value`, now.
    pub(super) fn tag(&self, now: Time, value: &Value) -> ReplicaSet {
        tag_of(&self.grantor.live(now), &self.configs, value)
    }

    /// Promises what is due, and lets what has expired lapse.
    pub(super) fn poll_leases(&mut self, now: Time, out: &mut Vec<Action>) {
        let waited = self.grantor.in_restart_wait(now);
        self.persist_restart_wait();
        let context = PollContext {
            configs: &self.configs,
            highest_accepted: self.barrier(),
            may_promise: self.may_promise(now),
        };
        let mut messages = Vec::new();
        let lapsed = self.grantor.poll(now, &context, &mut messages);
        for (to, message) in messages {
            self.send(to, Message::Lease(message), out);
        }
        if lapsed {
            self.vote_again();
        }
        if self.restart_wait_ended(now, waited) {
            self.announce(Event::RestartWaitOver, out);
        }
        self.forget_configs(now);
        self.timers.set(Timer::Lease, self.grantor.next_deadline());
    }

    /// What a holder must have executed (hazards 5, 7 and 30): everything accepted
    /// here, entries on their way to disk included, and never less than what is executed.
    fn barrier(&self) -> Slot {
        let commands = self.commands();
        if off(Rule::H07Pending) {
            let durable = commands.unexecuted().filter(|(_, cell)| {
                let accepted = cell.accepted.as_ref();
                accepted.is_some_and(|accepted| accepted.durable)
            });
            return durable.last().map_or(commands.executed, |(slot, _)| slot);
        }
        if off(Rule::H19Holes) {
            return commands.commit_point;
        }
        commands.highest.max(commands.executed)
    }

    fn restart_wait_ended(&mut self, now: Time, waited: bool) -> bool {
        let over = !waited && !self.counters.restart_wait_over;
        self.counters.restart_wait_over |= over;
        over && !self.grantor.in_restart_wait(now)
    }

    /// What a restart must outwait is durable before the first promise under it.
    fn persist_restart_wait(&mut self) {
        let params = self.configs.params(self.configs.newest());
        if self.configs.newest() == ConfigId(0) {
            return;
        }
        if let Some(wait) = self.grantor.wait_to_persist(params)
            && self.counters.restart_wait_asked < wait
        {
            self.counters.restart_wait_asked = wait;
            if !off(Rule::H23DurableWait) {
                self.persister.record(Record::RestartWait(wait));
            }
            self.persister.after(After::RestartWait(wait));
        }
    }

    /// A replica that cannot make acceptances durable, whose clock is not to be
    /// believed, or whose configurations lag the leader's by t_grace, stops promising.
    fn may_promise(&self, now: Time) -> bool {
        let grace = self.configs.params(self.configs.newest()).t_grace;
        let lags = self
            .config_lag_since
            .is_some_and(|since| now.since(since) >= grace);
        self.storage_writable && self.clock_trusted && !lags
    }

    /// Notes whether the configuration log lags the leader's.
    pub(super) fn note_config_lag(&mut self, now: Time) {
        let configs = &self.logs[LogId::Configs.index()];
        if configs.executed >= configs.heard_commit {
            self.config_lag_since = None;
        } else {
            self.config_lag_since.get_or_insert(now);
        }
    }

    /// Contents of configurations are kept while any grant under them lives, and
    /// while a chain of promises that began under them has a barrier of use.
    fn forget_configs(&mut self, now: Time) {
        self.holder.forget(now, self.executed());
        let newest = self.configs.newest();
        let granted = self.grantor.oldest_config(now).unwrap_or(newest);
        let promised = self.holder.oldest_config(now).unwrap_or(newest);
        // A few more, for peers that have not executed as far and are promised
        // under what they know.
        let lagging = ConfigId(newest.0.saturating_sub(3));
        self.configs
            .forget_before(granted.min(promised).min(lagging));
    }

    pub(super) fn on_lease(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: &LeaseMessage,
        out: &mut Vec<Action>,
    ) {
        match message {
            LeaseMessage::Guard { .. } | LeaseMessage::Promise(_) => {
                let known = self.configs.newest();
                if let Some(ack) = self.holder.handle(now, from, message, known) {
                    self.send(from, Message::Lease(ack), out);
                }
            }
            _ => {
                let ended = self.grantor.handle(now, from, message);
                if ended && matches!(message, LeaseMessage::Relinquish { .. }) {
                    self.vote_again();
                }
                self.timers.set(Timer::Lease, self.grantor.next_deadline());
            }
        }
    }

    /// A replica that cannot persist gives its leases back and its leadership up
    /// (hazard 36): it would only block writes.
    pub(super) fn on_storage_writable(&mut self, now: Time, writable: bool, out: &mut Vec<Action>) {
        if self.storage_writable == writable {
            return;
        }
        self.storage_writable = writable;
        self.hold_if_fit(now, out);
        let blocks = !writable && !off(Rule::H36Blockers);
        if blocks && !matches!(self.role, Role::Follower) {
            self.step_down(now, out);
        }
    }

    /// A replica whose clock is not to be believed (hazard 80) gives its leases back, for
    /// it cannot tell when they end, and promises nothing. Whom it had promised must be
    /// notified until its clock, trusted again, has outwaited all of it. It may lead: no
    /// rule of ballots rests on time.
    pub(super) fn on_clock_trusted(&mut self, now: Time, trusted: bool, out: &mut Vec<Action>) {
        if self.clock_trusted == trusted || off(Rule::H80Slew) {
            return;
        }
        self.clock_trusted = trusted;
        match trusted {
            true => self.grantor.trust(now),
            false => self.grantor.distrust(),
        }
        self.counters.clock_distrusted += u64::from(!trusted);
        self.announce(Event::ClockTrusted(trusted), out);
        self.hold_if_fit(now, out);
        self.timers.set(Timer::Lease, now);
    }

    /// Takes promises, or gives all back: what is held without a disk blocks writes, and
    /// without a clock does not end.
    fn hold_if_fit(&mut self, now: Time, out: &mut Vec<Action>) {
        let durable = self.storage_writable || off(Rule::H36Blockers);
        if durable && self.clock_trusted {
            return self.holder.accept_again();
        }
        let keys = self.reader.held_keys();
        for (to, message) in self.holder.relinquish() {
            self.send(to, Message::Lease(message), out);
        }
        self.look_again(now, keys, out);
    }

    pub(super) fn report_demand(&mut self, out: &mut Vec<Action>) {
        if !self.configs.strategy().wants_demand() {
            return;
        }
        let Some(leader) = self.leader() else {
            return;
        };
        let deltas = self.tally.report(REPORT_BYTES_MAX);
        if deltas.is_empty() {
            return;
        }
        if leader == self.me() {
            for delta in deltas {
                self.demand
                    .add(&delta.key, leader, delta.reads, delta.writes);
            }
        } else {
            self.send(leader, Message::Demand(deltas), out);
        }
    }

    /// Suspects replicas whose missing acceptance has blocked a slot for t_grace,
    /// even if they answer promises (§3.7, hazard 36).
    pub(super) fn suspect_blockers(&mut self, now: Time, out: &mut Vec<Action>) {
        let Some(ballot) = self.leads().map(|leadership| leadership.ballot) else {
            return;
        };
        let grace = self.configs.params(self.configs.newest()).t_grace;
        let commands = &self.logs[LogId::Commands.index()];
        let stuck = commands.uncommitted().take(64).filter(|(_, accepted)| {
            accepted.ballot == ballot
                && now.since(accepted.proposed) >= grace
                && !off(Rule::H36Blockers)
        });
        let missing = stuck.filter_map(|(slot, _)| commands.get(slot));
        let blockers = missing.fold(ReplicaSet::EMPTY, |all, c| all.union(c.votes.missing()));
        self.suspicions.blockers = blockers;
        for blocker in blockers.iter() {
            self.suspicions.last.insert(blocker, now);
        }
        if self.wanted_exclusions(now) != self.configs.excluded() {
            self.reconfigure(now, out);
        }
    }

    /// Whom the next configuration should exclude: suspects of the leader or of a
    /// majority, and blockers; they return after two quiet grace periods.
    fn wanted_exclusions(&mut self, now: Time) -> ReplicaSet {
        let grace = self.configs.params(self.configs.newest()).t_grace;
        let me = self.me();
        let mine = self.suspects();
        for suspect in mine.iter() {
            self.suspicions.last.insert(suspect, now);
        }
        let suspected = |replica: &ReplicaId| {
            mine.contains(*replica)
                || self.suspicions.blockers.contains(*replica)
                || self.suspicions.reporters(*replica) >= self.majority()
        };
        let fresh: ReplicaSet = self.others().filter(suspected).collect();
        let excluded = self.configs.excluded();
        let still = excluded.iter().filter(|replica| {
            let last = self.suspicions.last.get(replica);
            *replica != me && last.is_some_and(|last| now.since(*last) < grace * 2)
        });
        still.collect::<ReplicaSet>().union(fresh)
    }

    /// Proposes the next configuration, if it should differ from the newest.
    pub(super) fn reconfigure(&mut self, now: Time, _out: &mut Vec<Action>) {
        let configs = LogId::Configs.index();
        let Some(leadership) = self.leads() else {
            return self.timers.stop(Timer::Reconfigure);
        };
        // One at a time, and none before the opening no-op is committed.
        let next = leadership.next[configs];
        let open = next != self.logs[configs].executed.next();
        let room = self.logs[configs].may_propose(next) || off(Rule::H79Room);
        let since = leadership.since;
        if open || !room || !self.round_trips_known(now, since) {
            return self
                .timers
                .set(Timer::Reconfigure, now + Duration::from_millis(50));
        }
        let situation = self.situation();
        let excluded = self.wanted_exclusions(now);
        let mut change = self.wanted_change();
        let spec = change
            .strategy
            .clone()
            .unwrap_or_else(|| self.configs.strategy().clone());
        let every = KeyRange::all();
        let wish = spec
            .build()
            .propose(&every, &situation, &mut self.demand, &self.configs);
        if let Some(wish) = wish {
            let (strategy, params) = (change.strategy.take(), change.params.take());
            change = ConfigChange {
                strategy,
                params,
                clear: change.clear,
                ..wish
            };
        }
        if excluded != self.configs.excluded() {
            change.excluded = Some(excluded);
        }
        if change != ConfigChange::default() {
            self.propose(now, LogId::Configs, Value::Config(Arc::new(change)));
        }
    }

    /// The first configuration puts the strategy and durations of the settings in
    /// force; from then on the log says what they are, not one node's settings, and
    /// only the operator changes them.
    fn wanted_change(&mut self) -> ConfigChange {
        let switch = match &mut self.role {
            Role::Leader(leadership) => leadership.switch.take(),
            _ => None,
        };
        let first = self.configs.params(self.configs.newest());
        let (strategy, params) = match &switch {
            Some((strategy, params)) => (strategy, params),
            None if self.configured => return ConfigChange::default(),
            None => (&self.settings.strategy, &self.settings.params),
        };
        ConfigChange {
            strategy: (strategy != self.configs.strategy()).then(|| strategy.clone()),
            params: (params != first).then_some(*params),
            ..ConfigChange::default()
        }
    }

    /// Whether distances may be judged: all measured, or waited long enough for.
    fn round_trips_known(&self, now: Time, since: Time) -> bool {
        let patience = self.settings.timing.election_timeout * 2;
        let known = self
            .others()
            .all(|peer| self.peers[peer.index()].rtt.is_some());
        known || now.since(since) >= patience
    }

    /// The others by distance. The order of before is kept unless it is clearly
    /// wrong, or equal distances would reorder, and reconfigure, for ever.
    fn situation(&mut self) -> Situation {
        let far = Duration::from_secs(3600);
        let rtts: Vec<Duration> = self
            .peers
            .iter()
            .map(|peer| peer.rtt.unwrap_or(far))
            .collect();
        let others: Vec<ReplicaId> = self.others().collect();
        let (leader, n) = (self.me(), self.settings.n);
        let Role::Leader(leadership) = &mut self.role else {
            return Situation {
                leader,
                n,
                nearest: others,
            };
        };
        let rtt = |replica: ReplicaId| rtts[replica.index()];
        let wrong =
            |pair: &[ReplicaId]| rtt(pair[0]) > rtt(pair[1]) * 5 / 4 + Duration::from_millis(1);
        if leadership.nearest.is_empty() || leadership.nearest.windows(2).any(wrong) {
            leadership.nearest = others;
            leadership.nearest.sort_by_key(|replica| rtt(*replica));
        }
        Situation {
            leader,
            n,
            nearest: leadership.nearest.clone(),
        }
    }

    /// Slots that this replica has accepted, up to the highest.
    pub fn highest_accepted(&self) -> Slot {
        self.logs[0].highest
    }
}
