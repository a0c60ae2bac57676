//! Joins the lease engine to the replica. It answers two questions: which replicas must a vote
//! name, and may this key be read, until when? It also says which configuration a leader should
//! propose. It knows nothing of ballots, and of clients only which keys they ask for.

mod demand;
mod durations;
mod lease_set_requests;
mod leave;
mod reconfigure;
mod rtt_matrix;
mod suspicion;
mod tags;

use std::iter;
use std::time::Duration;

use leasehold_leases::mutants::{Rule, mutated, off};
use leasehold_leases::promise::LiveGrants;
use leasehold_leases::{
    ConfigChange, ConfigId, Configs, Grantor, Holder, Incarnation, Key, LeaseMessage, NoPermit,
    Permit, PollContext, ReplicaId, ReplicaSet, Slot, Time,
};
use leasehold_wire::Command;

use super::action::{Event, Record, RecoveredState};
use super::message::{LogId, Message, ReportedEntry, Value};
use super::persist::Continuation;
use super::settings::Settings;
use super::step::Step;
use super::timers::Timer;

pub(super) use reconfigure::NextConfig;
pub(super) use tags::Tags;

use demand::DemandTracker;
use leave::LeaveProgress;
use reconfigure::LeaderState;

/// Configurations that are kept although nothing is promised under them: for peers that
/// have not executed as far, and are promised under what they know.
const CONFIGS_KEPT: u64 = 3;

/// A holder that has not answered for so many renewals is promised nothing until it does.
const QUIET_RENEWALS: u32 = 2;

/// Delay before further listed keys are looked at, of those that may be forgotten.
const SWEEP_ON: Duration = Duration::from_millis(5);

/// Waiting for the grants that an earlier run has forgotten (§3.7).
#[derive(Clone, Copy, Debug, Hash)]
struct RestartWait {
    /// They may be alive until then.
    until: Time,
    /// The longest wait that was asked to be made durable.
    requested: Duration,
    /// That it is over has been said.
    announced: bool,
}

/// Leases, as this replica grants and holds them.
#[derive(Clone, Debug)]
pub(super) struct Leasing {
    configs: Configs,
    /// Whether any configuration was ever put in force; replicated, as it follows from
    /// the log.
    configured: bool,
    /// Since when this replica's configuration log lags the leader's.
    lags_since: Option<Time>,
    grantor: Grantor,
    holder: Holder,
    restart_wait: RestartWait,
    demand_tracker: DemandTracker,
    leader_state: LeaderState,
    leaving: Option<LeaveProgress>,
}

impl std::hash::Hash for Leasing {
    /// Demand decides what is proposed, and since when a log lags decides what is
    /// promised, but neither before the horizon.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.configs, self.configured, &self.grantor, &self.holder).hash(state);
        (self.restart_wait, &self.leader_state, &self.leaving).hash(state);
    }
}

impl Leasing {
    /// Restores what an earlier run made durable, or nothing: it has forgotten its grants.
    ///
    /// # Panics
    /// If the configuration log on disk has a hole.
    pub(super) fn restore(now: Time, settings: &Settings, recovered: &RecoveredState) -> Leasing {
        let (me, n) = (settings.me, settings.n);
        let wait = recovered.restart_wait;
        let mut leasing = Leasing {
            configs: Configs::new(n),
            configured: false,
            lags_since: None,
            grantor: Grantor::new(me, n, now, wait),
            holder: Holder::new(me, n),
            restart_wait: RestartWait {
                until: wait.map_or(Time::ZERO, |wait| now + wait),
                requested: wait.unwrap_or_default(),
                announced: false,
            },
            demand_tracker: DemandTracker::new(now, n, settings.demand_bytes_max),
            leader_state: LeaderState::default(),
            leaving: None,
        };
        leasing.execute_again(recovered);
        leasing
    }

    /// Configurations are executed again, up to where they were.
    fn execute_again(&mut self, recovered: &RecoveredState) {
        let executed = recovered.state.config;
        let of_log =
            |entry: &&ReportedEntry| entry.log == LogId::Configs && entry.slot.0 <= executed.0;
        let mut entries: Vec<&ReportedEntry> = recovered.accepted.iter().filter(of_log).collect();
        entries.sort_by_key(|entry| entry.slot);
        for entry in entries {
            self.execute(ConfigId(entry.slot.0), &entry.value);
        }
        assert_eq!(
            self.configs.newest(),
            executed,
            "the configuration log on disk has a hole"
        );
    }

    /// A slot of the configuration log is executed. Returns how many keys it changed.
    pub(super) fn execute(&mut self, id: ConfigId, value: &Value) -> usize {
        let none = ConfigChange::default();
        let change = match value {
            Value::Config(change) => change,
            _ => &none,
        };
        self.configured |= matches!(value, Value::Config(_));
        self.configs.apply(id, change);
        assert_eq!(
            self.configs.newest(),
            id,
            "configurations are executed in order"
        );
        change.keys.iter().map(|(_, keys)| keys.len()).sum()
    }

    /// The configurations known here.
    pub(super) fn configs(&self) -> &Configs {
        &self.configs
    }

    pub(super) fn grantor(&self) -> &Grantor {
        &self.grantor
    }

    pub(super) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Until when forgotten grants may be alive; zero if none may.
    pub(super) fn outwaits_until(&self) -> Time {
        self.restart_wait.until
    }

    /// Time for which a silent replica is trusted.
    pub(super) fn grace(&self) -> Duration {
        self.configs.params(self.configs.newest()).t_grace
    }

    pub(super) fn in_restart_wait(&self, now: Time) -> bool {
        self.grantor.in_restart_wait(now)
    }

    /// Peers that have not answered this replica's promises for t_grace.
    pub(super) fn suspects(&self) -> ReplicaSet {
        match self.leaving {
            // It asks nobody any more.
            Some(_) => ReplicaSet::EMPTY,
            None => self.grantor.suspects(),
        }
    }

    /// The promises in force at `now`.
    pub(super) fn live(&self, now: Time) -> LiveGrants {
        self.grantor.live(now)
    }

    /// Tags of a vote that leaves at `now`: the replicas that it must name.
    pub(super) fn tags(&self, now: Time) -> Tags<'_> {
        Tags {
            live: self.live(now),
            configs: &self.configs,
        }
    }

    /// Replicas that a vote for a write of `key` must name if it leaves at `now`.
    pub(super) fn promised_to(&self, now: Time, key: &[u8]) -> ReplicaSet {
        let view = self.configs.view(key);
        self.live(now).tag(iter::once(view))
    }

    /// The holders of all keys that a command writes: its class (§3.9). Also those that hold them
    /// under an older configuration, as far as promises of this replica last: a write that waits
    /// for one of these would hold up all commands in the same batch. `live` are the promises in
    /// force.
    pub(super) fn class(&self, live: &LiveGrants, command: &Command) -> ReplicaSet {
        let newest = self.configs.newest();
        let written = command.keys().filter(|_| command.is_write());
        let views = written.map(|key| self.configs.view(key));
        views.fold(ReplicaSet::EMPTY, |class, view| {
            let promised = live.tag(iter::once(view));
            class.union(promised).union(view.holders(newest))
        })
    }

    /// Leave to read `key` here at `now`, with this much executed.
    pub(super) fn permit(&self, now: Time, key: &[u8], executed: Slot) -> Result<Permit, NoPermit> {
        let newest = self.configs.newest();
        self.holder
            .permit(now, self.configs.view(key), newest, executed)
    }

    /// Leave to read every key there could be.
    pub(super) fn permit_all(&self, now: Time, executed: Slot) -> Result<Permit, NoPermit> {
        self.holder.permit_all(now, &self.configs, executed)
    }

    /// Leave to read all of `keys`, until the first permit ends.
    pub(super) fn permit_each(&self, now: Time, keys: &[Key], executed: Slot) -> Option<Permit> {
        let permits = keys.iter().map(|key| self.permit(now, key, executed).ok());
        let permits = permits.collect::<Option<Vec<Permit>>>()?;
        let until = permits.into_iter().map(|permit| permit.until).min()?;
        Some(Permit { until })
    }

    /// A later run of a peer has forgotten its promises, and honours none made to the
    /// earlier one.
    pub(super) fn peer_restarted(&mut self, now: Time, from: ReplicaId, incarnation: Incarnation) {
        self.grantor.observe_incarnation(now, from, incarnation);
        self.holder.observe_incarnation(from, incarnation);
    }

    /// Promises what is due, and lets what has expired lapse. Returns whether a grant
    /// has ended: accepted slots may wait for fewer replicas. `barrier` is what a holder
    /// must have executed, `executed` what is executed here.
    pub(super) fn poll(&mut self, step: &mut Step<'_>, barrier: Slot, executed: Slot) -> bool {
        assert!(
            barrier >= executed || mutated(),
            "a barrier is not below the executed slot"
        );
        let waited = self.in_restart_wait(step.now);
        self.persist_restart_wait(step);
        let context = PollContext {
            configs: &self.configs,
            highest_accepted: barrier,
            may_promise: self.may_promise(step),
            quiet_after: self.configs.params(self.configs.newest()).renew * QUIET_RENEWALS,
        };
        let mut messages = Vec::new();
        let lapsed = self.grantor.poll(step.now, &context, &mut messages);
        // A replica that leaves promises nothing, and a guard would be for nothing.
        let stays = self.leaving.is_none();
        for (to, message) in messages.into_iter().filter(|_| stays) {
            step.send(to, Message::Lease(message));
        }
        if !waited && !std::mem::replace(&mut self.restart_wait.announced, true) {
            step.announce(Event::RestartWaitOver);
        }
        self.forget_configs(step.now, executed);
        let mut next = self.grantor.next_deadline();
        if self.configs.is_sweeping() {
            next = next.min(step.now + SWEEP_ON);
        }
        step.set_timer(Timer::Lease, next);
        lapsed
    }

    /// Makes durable what a restart must outwait, before the first promise under it (hazard 23).
    fn persist_restart_wait(&mut self, step: &mut Step<'_>) {
        let newest = self.configs.newest();
        if newest == ConfigId(0) {
            return;
        }
        let wait = self.grantor.wait_to_persist(self.configs.params(newest));
        let requested = self.restart_wait.requested;
        let is_new =
            |wait: &Duration| requested < *wait || off(Rule::H68Longest) && requested != *wait;
        if let Some(wait) = wait.filter(is_new) {
            self.restart_wait.requested = wait;
            if !off(Rule::H23DurableWait) {
                step.record(Record::RestartWait(wait));
            }
            step.when_durable(Continuation::RestartWait(wait));
        }
    }

    /// The restart wait `wait` is durable: promises may be made that need it.
    pub(super) fn restart_wait_durable(&mut self, step: &mut Step<'_>, wait: Duration) {
        self.grantor.wait_persisted(wait);
        step.set_timer(Timer::Lease, step.now);
    }

    /// Whether this replica may promise. It stops if it cannot make acceptances durable, if its
    /// clock is not to be believed, or if its configurations have been behind the leader's for
    /// t_grace.
    fn may_promise(&self, step: &Step<'_>) -> bool {
        let grace = self.grace();
        let lags = self
            .lags_since
            .is_some_and(|since| step.now.since(since) >= grace);
        let stays = self.leaving.is_none();
        step.ctx.writable && step.ctx.clock_trusted && stays && !lags
    }

    /// Notes whether the configuration log lags the leader's.
    pub(super) fn note_lag(&mut self, now: Time, lags: bool) {
        self.lags_since = lags.then(|| self.lags_since.unwrap_or(now));
    }

    /// Contents of configurations are kept while any grant under them lives, and while a
    /// chain of promises that began under them has a barrier of use.
    fn forget_configs(&mut self, now: Time, executed: Slot) {
        self.holder.forget(now, executed);
        let newest = self.configs.newest();
        let granted = self.grantor.oldest_config(now).unwrap_or(newest);
        let promised = self.holder.oldest_config(now).unwrap_or(newest);
        let lagging = ConfigId(newest.0.saturating_sub(CONFIGS_KEPT));
        self.configs
            .forget_before(granted.min(promised).min(lagging));
        assert_eq!(
            self.configs.newest(),
            newest,
            "the newest configuration is kept"
        );
    }

    /// Grantor and holder talk. Returns whether a grant was given back: accepted slots
    /// may wait for fewer replicas.
    pub(super) fn on_message(
        &mut self,
        step: &mut Step<'_>,
        from: ReplicaId,
        message: &LeaseMessage,
    ) -> bool {
        if let LeaseMessage::Guard { .. } | LeaseMessage::Promise(_) = message {
            let known = self.configs.newest();
            if let Some(ack) = self.holder.handle(step.now, from, message, known) {
                step.send(from, Message::Lease(ack));
            }
            return false;
        }
        let ended = self.grantor.handle(step.now, from, message);
        step.set_timer(Timer::Lease, self.grantor.next_deadline());
        match message {
            LeaseMessage::Relinquish { up_to } => self.note_recalled(from, *up_to),
            LeaseMessage::Leave { recalls } => {
                let given_back = self.holder.handle_recall(from, *recalls);
                step.send(from, Message::Lease(given_back));
            }
            _ => return false,
        }
        ended
    }

    /// # Panics
    /// If what is granted, held or known contradicts itself.
    pub fn check(&self) {
        assert!(
            !self.configured || self.configs.newest() > ConfigId(0),
            "a configured replica has executed a configuration"
        );
        if let Some(leaving) = &self.leaving {
            leaving.check(self.grantor.last_sequence());
        }
        self.configs.check();
        self.grantor.check();
        self.holder.check();
        self.demand_tracker.demand.check();
    }

    /// Gives every lease back: this replica could only block writes (hazard 36).
    pub(super) fn relinquish(&mut self, step: &mut Step<'_>) {
        for (to, message) in self.holder.relinquish() {
            step.send(to, Message::Lease(message));
        }
    }

    /// The clock is believed again, or no longer (hazard 80). A replica with a promise of this
    /// replica must be notified until the clock here, trusted again, has outwaited all of it.
    pub fn on_clock_trusted(&mut self, step: &mut Step<'_>) {
        if step.ctx.clock_trusted {
            self.grantor.trust(step.now)
        } else {
            self.grantor.distrust();
            self.take_back_leaving(step);
        }
        step.set_timer(Timer::Lease, step.now);
    }

    /// Takes leases again.
    pub(super) fn accept_again(&mut self) {
        if self.leaving.is_none() {
            self.holder.accept_again();
        }
    }
}
