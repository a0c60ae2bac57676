//! Connects the lease engine to the replica. This module determines which replicas a vote must
//! name, and whether and until when a key may be read here. It also decides which configuration a
//! leader should propose. It does not use ballots. It knows only the keys that clients request, and
//! nothing else about clients.

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

use leasehold_leases::config::{CheckpointChanges, KeyVersions};
use leasehold_leases::mutants::{Rule, mutated, off};
use leasehold_leases::promise::LiveGrants;
use leasehold_leases::{
    ConfigChange, ConfigId, Configs, Grantor, Holder, Incarnation, Key, LeaseMessage, NoPermit,
    Permit, PollContext, ReplicaId, ReplicaSet, Slot, Time,
};
use leasehold_wire::Command;

use super::action::{ConfigFrames, Event, Record, RecoveredState, StateChanges};
use super::message::{Message, Value};
use super::persist::Continuation;
use super::settings::Settings;
use super::step::Step;
use super::timers::Timer;

pub(super) use reconfigure::NextConfig;
pub(super) use tags::Tags;

use demand::DemandTracker;
use leave::LeaveProgress;
use reconfigure::LeaderState;

/// Number of old configurations that are kept although no promise is in force under them. They are
/// kept for peers that have executed fewer configurations. Such a peer receives promises under the
/// newest configuration that it knows.
const CONFIGS_KEPT: u64 = 3;

/// Number of unanswered renewals after which a grantor pauses. The holder then receives no promises
/// until it answers.
const QUIET_RENEWALS: u32 = 2;

/// Delay between two steps of a pass over all keys in configurations. The pass finds the keys that
/// may be forgotten.
const SWEEP_ON: Duration = Duration::from_millis(5);

/// Wait after a restart. It lasts until all grants of the earlier run have ended, because this run
/// does not know them (§3.7).
#[derive(Clone, Copy, Debug, Hash)]
struct RestartWait {
    /// Time until which forgotten grants may still be valid.
    until: Time,
    /// Longest restart wait that was recorded. The record may not be durable yet.
    requested: Duration,
    /// Whether the end of the wait was announced.
    announced: bool,
}

/// Changes of configurations, and of the holders of listed keys, as they are stored.
pub(super) type SavedConfigs = (ConfigFrames, Vec<(Key, Option<KeyVersions>)>);

/// Leases that this replica grants and holds.
#[derive(Clone, Debug)]
pub(super) struct Leasing {
    configs: Configs,
    /// Whether any configuration was ever put in force. The value is the same on all replicas at
    /// the same slot, because it follows from the log.
    configured: bool,
    /// Time since which this replica's configuration log has lagged behind the leader's log; `None`
    /// if the log does not lag.
    lags_since: Option<Time>,
    grantor: Grantor,
    holder: Holder,
    restart_wait: RestartWait,
    demand_tracker: DemandTracker,
    leader_state: LeaderState,
    leaving: Option<LeaveProgress>,
}

impl std::hash::Hash for Leasing {
    /// Hashes this value, except the demand and `lags_since`. While a fingerprint is valid, these
    /// parts have no effect (`Replica::fingerprint`).
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.configs, self.configured, &self.grantor, &self.holder).hash(state);
        (self.restart_wait, &self.leader_state, &self.leaving).hash(state);
    }
}

/// Returns the configurations of the flushed state.
///
/// # Panics
/// If they contradict each other or the position of the state.
fn restore_configs(
    n: usize,
    state: &StateChanges,
    listed: Vec<(Key, Option<KeyVersions>)>,
) -> Configs {
    let configs = match &state.configs {
        Some(saved) => {
            let listed = listed.into_iter();
            let listed = listed.filter_map(|(key, versions)| Some((key, versions?)));
            let restored = Configs::restore(n, &saved.frames, listed);
            restored.expect("the storage has checked the configurations")
        }
        None => Configs::new(n),
    };
    assert_eq!(
        configs.newest(),
        state.config,
        "the state contains its newest configuration"
    );
    configs
}

impl Leasing {
    /// Restores the configurations and the restart wait that an earlier run made durable, if there
    /// was an earlier run. The grants of that run are forgotten. `listed` are the listed keys of
    /// the flushed state.
    ///
    /// Rule H71: a leader puts the strategy of its configuration file in force only if no
    /// configuration was ever in force. Otherwise a restart would replace the choice of an operator.
    ///
    /// # Panics
    /// If the configurations in the flushed state contradict each other or the position of this state.
    pub(super) fn restore(
        now: Time,
        settings: &Settings,
        recovered: &RecoveredState,
        listed: Vec<(Key, Option<KeyVersions>)>,
    ) -> Leasing {
        let (me, n) = (settings.me, settings.n);
        let wait = recovered.restart_wait;
        let saved = recovered.state.configs.as_ref();
        Leasing {
            configs: restore_configs(n, &recovered.state, listed),
            configured: saved.is_some_and(|saved| saved.configured) && !off(Rule::H71Configured),
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
        }
    }

    /// Returns the changes of the configurations since the last call, in the form in which they are
    /// stored.
    pub(super) fn take_unsaved(&mut self) -> Option<SavedConfigs> {
        let configured = self.configured;
        let CheckpointChanges { frames, keys } = self.configs.take_unsaved()?;
        Some((ConfigFrames { configured, frames }, keys))
    }

    /// Executes a slot of the configuration log. Returns the number of keys that this configuration
    /// lists as changed.
    pub(super) fn execute(&mut self, id: ConfigId, value: &Value) -> usize {
        let (change, none) = (value.config_change(), ConfigChange::default());
        self.configured |= change.is_some();
        let change = change.unwrap_or(&none);
        self.configs.apply(id, change);
        assert_eq!(
            self.configs.newest(),
            id,
            "configurations are executed in order"
        );
        change.keys.iter().map(|(_, keys)| keys.len()).sum()
    }

    /// Configurations that this replica has executed.
    pub(super) fn configs(&self) -> &Configs {
        &self.configs
    }

    pub(super) fn grantor(&self) -> &Grantor {
        &self.grantor
    }

    pub(super) fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Time until which forgotten grants may still be valid; zero if none can be.
    pub(super) fn outwaits_until(&self) -> Time {
        self.restart_wait.until
    }

    /// Time for which a replica may be silent before it is suspected (t_grace).
    pub(super) fn grace(&self) -> Duration {
        self.configs.params(self.configs.newest()).t_grace
    }

    pub(super) fn in_restart_wait(&self, now: Time) -> bool {
        self.grantor.in_restart_wait(now)
    }

    /// Peers that have not answered this replica's promises for t_grace. Empty if this replica
    /// leaves.
    pub(super) fn suspects(&self) -> ReplicaSet {
        match self.leaving {
            // A replica that leaves sends no promises that a peer could answer.
            Some(_) => ReplicaSet::EMPTY,
            None => self.grantor.suspects(),
        }
    }

    /// Returns the promises that this replica has made and that are in force at `now`.
    pub(super) fn live(&self, now: Time) -> LiveGrants {
        self.grantor.live(now)
    }

    /// Returns the tags for votes that are sent at `now`: the replicas that each vote must name.
    pub(super) fn tags(&self, now: Time) -> Tags<'_> {
        Tags {
            live: self.live(now),
            configs: &self.configs,
        }
    }

    /// Returns the replicas that a vote for a write of `key` must name if the vote is sent at
    /// `now`.
    pub(super) fn promised_to(&self, now: Time, key: &[u8]) -> ReplicaSet {
        let view = self.configs.view(key);
        self.live(now).tag(iter::once(view))
    }

    /// Returns the class of a command (§3.9): the holders of all keys that it writes. A holder
    /// under an older configuration is included as long as it has a promise of this replica. A
    /// write that waits for such a holder would otherwise delay all commands in the same batch.
    /// `live` are the promises in force.
    pub(super) fn class(&self, live: &LiveGrants, command: &Command) -> ReplicaSet {
        let newest = self.configs.newest();
        let written = command.written_keys();
        let views = written.map(|key| self.configs.view(key));
        views.fold(ReplicaSet::EMPTY, |class, view| {
            let promised = live.tag(iter::once(view));
            class.union(promised).union(view.holders(newest))
        })
    }

    /// Returns a permit to read `key` here at `now`, or the reason why there is none. Slots up to
    /// `executed` are executed here.
    pub(super) fn permit(&self, now: Time, key: &[u8], executed: Slot) -> Result<Permit, NoPermit> {
        let newest = self.configs.newest();
        self.holder
            .permit(now, self.configs.view(key), newest, executed)
    }

    /// Returns a permit to read every possible key, or the reason why there is none.
    pub(super) fn permit_all(&self, now: Time, executed: Slot) -> Result<Permit, NoPermit> {
        self.holder.permit_all(now, &self.configs, executed)
    }

    /// Returns a permit to read all of `keys`, or `None` if one of them may not be read here. The
    /// permit ends when the first of the permits for the single keys ends.
    pub(super) fn permit_each(&self, now: Time, keys: &[Key], executed: Slot) -> Option<Permit> {
        let permits = keys.iter().map(|key| self.permit(now, key, executed).ok());
        let permits = permits.collect::<Option<Vec<Permit>>>()?;
        let until = permits.into_iter().map(|permit| permit.until).min()?;
        Some(Permit { until })
    }

    /// Notes that a peer runs with `incarnation`. A later run of a peer has forgotten the promises
    /// that its earlier run made, and does not use promises that were made to the earlier run.
    pub(super) fn peer_restarted(&mut self, now: Time, from: ReplicaId, incarnation: Incarnation) {
        self.grantor.observe_incarnation(now, from, incarnation);
        self.holder.observe_incarnation(from, incarnation);
    }

    /// Sends the promises that are due, and drops those that have expired. Returns true if a grant
    /// has ended; accepted slots may then wait for fewer replicas. A holder must have executed the
    /// log up to `barrier` before it reads under these promises. `executed` is the last slot
    /// executed here.
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
        // A replica that leaves promises nothing, so it need not establish guards either.
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

    /// Makes a longer restart wait durable before the first promise that requires it. A later run
    /// must then wait that long (hazard 23).
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

    /// Notes that the restart wait `wait` is durable. Promises that require this restart wait may
    /// be made now.
    pub(super) fn restart_wait_durable(&mut self, step: &mut Step<'_>, wait: Duration) {
        self.grantor.wait_persisted(wait);
        step.set_timer(Timer::Lease, step.now);
    }

    /// Whether this replica may make promises. Each of these reasons forbids promises: the replica
    /// cannot make acceptances durable, its clock is not trusted, or it leaves. Configurations that
    /// have lagged behind the leader's for t_grace forbid promises, too.
    fn may_promise(&self, step: &Step<'_>) -> bool {
        let grace = self.grace();
        let lags = self
            .lags_since
            .is_some_and(|since| step.now.since(since) >= grace);
        let stays = self.leaving.is_none();
        step.ctx.writable && step.ctx.clock_trusted && stays && !lags
    }

    /// Notes whether the configuration log of this replica lags behind the log of the leader.
    pub(super) fn note_lag(&mut self, now: Time, lags: bool) {
        self.lags_since = lags.then(|| self.lags_since.unwrap_or(now));
    }

    /// Drops the contents of old configurations. A configuration is kept while a grant under it is
    /// in force, and while the barrier of a chain of promises that began under it is still needed.
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

    /// Handles a lease message from a peer. Returns true if a grant was given back; accepted slots
    /// may then wait for fewer replicas.
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

    /// Checks the invariants of this part.
    ///
    /// # Panics
    /// If an invariant is broken.
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

    /// Gives every lease back, because this replica could only block writes (hazard 36).
    pub(super) fn relinquish(&mut self, step: &mut Step<'_>) {
        for (to, message) in self.holder.relinquish() {
            step.send(to, Message::Lease(message));
        }
    }

    /// Notes that the clock is trusted again, or is no longer trusted (hazard 80). While the clock
    /// is not trusted, this replica cannot know when its promises end. So each of its votes on a
    /// write demands that all replicas accept the write. This continues for the longest restart
    /// wait after the clock is trusted again.
    pub fn on_clock_trusted(&mut self, step: &mut Step<'_>) {
        if step.ctx.clock_trusted {
            self.grantor.trust(step.now)
        } else {
            self.grantor.distrust();
            self.take_back_leaving(step);
        }
        step.set_timer(Timer::Lease, step.now);
    }

    /// Accepts leases again, unless this replica leaves.
    pub(super) fn accept_again(&mut self) {
        if self.leaving.is_none() {
            self.holder.accept_again();
        }
    }
}
