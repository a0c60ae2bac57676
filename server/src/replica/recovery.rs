//! A replica's start, the first or after a crash: from what is durable.

use leases::demand::{Demand, Tally};
use leases::mutants::{Rule, off};
use leases::{Ballot, ConfigId, Configs, Grantor, Holder, Slot, Time};
use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::action::Recovered;
use super::joining::Joining;
use super::kv::Kv;
use super::learner::Pending;
use super::log::{Accepted, Log};
use super::marks::Marks;
use super::message::{LogId, Reported, Value};
use super::persist::Persister;
use super::settings::Settings;
use super::status::Counters;
use super::timers::{Timer, Timers};
use super::{Peer, Replica, Role};

impl Replica {
    /// A replica that continues from what an earlier run made durable, or begins.
    ///
    /// It has forgotten its grants, so it votes with tag = everyone until the
    /// longest of them has ended (§3.7); and it rebuilds the marks of all
    /// accepted, unexecuted slots before anything is read.
    ///
    /// # Panics
    /// If `recovered` contradicts itself: it is then no state this code wrote.
    pub fn new(now: Time, settings: Settings, recovered: Recovered, seed: u64) -> Replica {
        let (me, n) = (settings.me, settings.n);
        assert!(
            (1..=64).contains(&n) && me.index() < n,
            "1 to 64 replicas, this one among them"
        );
        assert!(recovered.incarnation.0 > 0, "every run has an incarnation");
        assert!(settings.log_window >= 4, "a window has four quarters");
        let mut configs = Configs::new(n);
        let logs = [
            restore_commands(&recovered, settings.log_window),
            restore_configs(&recovered, settings.log_window, &mut configs),
        ];
        let mut marks = Marks::default();
        for (slot, cell) in logs[0].unexecuted() {
            if let Some(accepted) = &cell.accepted
                && !off(Rule::H30Marks)
            {
                marks.mark(slot, &accepted.value);
            }
        }
        let configured = recovered.accepted.iter().any(|entry| {
            let executed = entry.slot.0 <= recovered.state.config.0;
            executed && matches!(entry.value, Value::Config(_))
        });
        let ttl_ms = settings.session_ttl.as_millis() as u64;
        let counters = Counters {
            checkpointed: (recovered.state.executed, recovered.state.config),
            restart_wait_asked: recovered.restart_wait.unwrap_or_default(),
            ..Counters::default()
        };
        let executed = [logs[0].executed, logs[1].executed];
        let mut replica = Replica {
            incarnation: recovered.incarnation,
            restart_wait_until: recovered.restart_wait.map_or(Time::ZERO, |wait| now + wait),
            joining: Joining::new(me, n, recovered.life, recovered.joined, &recovered.lives),
            rng: Pcg64Mcg::seed_from_u64(seed),
            peers: vec![
                Peer {
                    heard: now,
                    ..Peer::default()
                };
                n
            ],
            role: Role::Follower,
            promised: recovered.promised,
            round_seen: recovered.promised.round,
            leader: Ballot::ZERO,
            logs,
            marks,
            kv: Kv::restore(ttl_ms, recovered.state),
            persister: Persister::begin(executed),
            votes_due: Vec::new(),
            fetching: [None; 2],
            pending: Pending::default(),
            reader: Default::default(),
            configs,
            grantor: Grantor::new(me, n, now, recovered.restart_wait),
            holder: Holder::new(me, n),
            suspicions: Default::default(),
            config_lag_since: None,
            tally: Tally::new(settings.demand_keys_max),
            demand: Demand::new(n, settings.demand_keys_max),
            timers: Timers::new(now),
            storage_writable: true,
            clock_trusted: true,
            configured,
            next_request: 0,
            last_answer: 0,
            counters,
            settings,
        };
        replica.first_election(now);
        replica
    }

    /// Who is preferred campaigns soon; the others give it a head start.
    pub(super) fn first_election(&mut self, now: Time) {
        let base = self.settings.timing.election_timeout;
        let waits = self.grantor.in_restart_wait(now);
        let head_start = match self.settings.preferred_leader {
            Some(preferred) if preferred == self.me() && !waits => base / 10,
            Some(_) => base * 2,
            None => base / 4,
        };
        let jitter = base.mul_f64(self.rng.random::<f64>() / 4.0);
        self.timers.set(Timer::Election, now + head_start + jitter);
    }
}

fn restore_commands(recovered: &Recovered, window: u64) -> Log {
    let executed = recovered.state.executed;
    let log = Log::restored(executed, window);
    let mut log = restore(recovered, LogId::Commands, log);
    log.highest = log.highest.max(executed);
    log
}

/// Configurations are executed again, up to where they were.
fn restore_configs(recovered: &Recovered, window: u64, configs: &mut Configs) -> Log {
    let executed = recovered.state.config;
    let mut entries: Vec<&Reported> = recovered
        .accepted
        .iter()
        .filter(|entry| entry.log == LogId::Configs)
        .collect();
    entries.sort_by_key(|entry| entry.slot);
    let none = leases::ConfigChange::default();
    for entry in entries
        .iter()
        .take_while(|entry| entry.slot.0 <= executed.0)
    {
        let change = match &entry.value {
            Value::Config(change) => change,
            _ => &none,
        };
        configs.apply(ConfigId(entry.slot.0), change);
    }
    assert_eq!(
        configs.newest(),
        executed,
        "the configuration log on disk has a hole"
    );
    let log = Log::restored(Slot(executed.0), window);
    restore(recovered, LogId::Configs, log)
}

/// The accepted entries above what is executed: all of them, however far above, for
/// others may count on each (hazard 78). What was committed is learnt anew.
fn restore(recovered: &Recovered, id: LogId, mut log: Log) -> Log {
    for (_, ballot, slot) in recovered.log_starts.iter().filter(|(of, ..)| *of == id) {
        log.log_starts.insert(*ballot, *slot);
    }
    if let Some((ballot, start)) = log.log_starts.last_key_value() {
        log.adopted = (*ballot, *start);
    }
    let (executed, end) = (log.executed, log.end());
    let unexecuted = |entry: &&Reported| entry.log == id && entry.slot > executed;
    for entry in recovered.accepted.iter().filter(unexecuted) {
        if entry.slot > end && off(Rule::H78Durable) {
            continue;
        }
        log.restored_cell(entry.slot).accepted = Some(Accepted {
            ballot: entry.ballot,
            value: entry.value.clone(),
            durable: true,
            last_multi: Slot::ZERO,
            sure: std::sync::Arc::from([]),
            origins: super::acceptor::origins(&entry.value),
            early_tag: None,
            proposed: Time::ZERO,
            sent: Time::ZERO,
        });
        if !off(Rule::H30Highest) {
            log.highest = log.highest.max(entry.slot);
        }
    }
    log
}
