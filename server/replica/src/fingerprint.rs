//! Fingerprints of replicas: the model checker visits a state once, and knows it
//! again by this.
//!
//! Everything that decides what a replica does is in it, but for what cannot matter before a
//! horizon: when things were sent, heard or asked, which decides which replicas to suspect and what
//! to say again; random delays; demand; and what is only counted. That it cannot matter is checked.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::FixedState;
use leasehold_leases::Time;

use super::Replica;
use super::flow::Parts;
use super::timers::Timer;

/// Work that no replica may have before the horizon: its timers.
const RESTING: [Timer; 7] = [
    Timer::Election,
    Timer::Heartbeat,
    Timer::Ping,
    Timer::Retransmit,
    Timer::Report,
    Timer::Checkpoint,
    Timer::Stage,
];

impl Replica {
    /// Replicas of one fingerprint, with the same settings, answer the same inputs
    /// alike, at every reading of their clocks up to `horizon`. `start` is when the
    /// first of them began.
    ///
    /// # Panics
    /// If what the fingerprint leaves out could matter until then: one of the
    /// long timers is due, or a span of silence that counts could have passed.
    pub fn fingerprint(&self, start: Time, horizon: Time) -> u64 {
        self.assert_rests(start, horizon);
        let mut hasher = FixedState::default().build_hasher();
        let state = &mut hasher;
        // Named one by one: a new field must be thought about here.
        let Replica {
            ctx,
            parts,
            persister,
            timers,
            metrics: _,
            requests,
        } = self;
        let Parts {
            joining,
            consensus,
            machine,
            leasing,
            session_opens: _, // more than a model asks
            writes,
            reads,
            disconnected,
            awaits_successor_until,
            execution: _, // when to go on matters before the horizon only as a timer
            marks_looked_at: _, // of one group of inputs
            left,
        } = parts;
        (ctx, joining, consensus, machine.kv()).hash(state);
        (
            leasing,
            writes,
            reads,
            disconnected,
            awaits_successor_until,
            left,
            persister,
            requests,
        )
            .hash(state);
        timers.until(horizon).hash(state);
        hasher.finish()
    }

    fn assert_rests(&self, start: Time, horizon: Time) {
        let span = horizon.since(start);
        let timing = &self.ctx.settings.timing;
        let grace = self.parts.leasing.grace();
        assert!(
            !self.parts.machine.is_staging(),
            "a model's checkpoints are small"
        );
        for timer in RESTING {
            assert!(
                self.timers.rests(timer, horizon),
                "{timer:?} is due before the horizon"
            );
        }
        for silence in [timing.election_timeout, timing.retransmit, grace] {
            assert!(span < silence, "no silence counts before the horizon");
        }
    }

    /// Lets the election timeout pass at the next [`super::Input::Tick`]: it is
    /// drawn at random, so it may be any.
    pub fn expire_election(&mut self, now: Time) {
        self.timers.set(Timer::Election, now);
    }
}
