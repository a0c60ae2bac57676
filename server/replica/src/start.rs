//! Construction of a replica when it starts, for the first time or after a crash.

use leasehold_leases::Time;

use super::Replica;
use super::action::RecoveredState;
use super::compaction::Compaction;
use super::consensus::Consensus;
use super::context::ReplicaContext;
use super::flow::Parts;
use super::joining::Joining;
use super::leasing::Leasing;
use super::machine::StateMachine;
use super::metrics::Metrics;
use super::origin::SessionOpenLimiter;
use super::persist::{LogProgress, Persister};
use super::settings::Settings;
use super::step::RequestNames;
use super::timers::Timers;

impl Replica {
    /// Returns a replica that continues from the durable state `recovered`. At the first start,
    /// there is no earlier run to continue.
    ///
    /// The replica has forgotten the grants of earlier runs. Therefore the tag of each of its votes
    /// contains all replicas until the longest of these grants has ended (§3.7). The marks of all
    /// accepted, unexecuted slots are rebuilt before any key is read.
    ///
    /// # Panics
    /// If `recovered` contradicts itself. This code never writes such a state.
    pub fn new(now: Time, settings: Settings, mut recovered: RecoveredState, seed: u64) -> Replica {
        let (me, n) = (settings.me, settings.n);
        assert!(
            (1..=64).contains(&n) && me.index() < n,
            "1 to 64 replicas, this one among them"
        );
        assert!(recovered.incarnation.0 > 0, "every run has an incarnation");
        assert!(
            settings.in_flight_max > 0,
            "a leader may have a slot in flight"
        );
        assert!(settings.log_window >= 4, "a window has four quarters");
        let sessions = settings.sessions;
        let consensus = Consensus::restore(now, &recovered, &settings, seed);
        let listed = std::mem::take(&mut recovered.state.listed);
        let leasing = Leasing::restore(now, &settings, &recovered, listed);
        let (life, joined) = (recovered.life, recovered.joined);
        let mut replica = Replica {
            ctx: ReplicaContext::new(now, settings, recovered.incarnation),
            persister: Persister::begin(LogProgress {
                committed: recovered.committed,
                executed: consensus.executed(),
            }),
            timers: Timers::new(now),
            metrics: Metrics::default(),
            requests: RequestNames::default(),
            parts: Parts {
                joining: Joining::new(me, n, life, joined, &recovered.lives),
                compaction: Compaction::begin(me, n, consensus.executed()),
                consensus,
                leasing,
                machine: StateMachine::restore(&sessions, recovered.state),
                session_opens: SessionOpenLimiter::new(now, &sessions),
                writes: Default::default(),
                reads: Default::default(),
                disconnected: Default::default(),
                awaits_successor_until: Time::ZERO,
                execution: Default::default(),
                marks_looked_at: 0,
                left: false,
            },
        };
        replica.with(now, &mut Vec::new(), Parts::begin_run);
        replica
    }
}
