//! Fingerprints of replicas. The model checker visits each state once, and recognizes a visited
//! state by its fingerprint.
//!
//! A fingerprint covers everything that decides what a replica does up to a given time, the
//! horizon. It omits the times at which messages were sent, received or requested: these times only
//! decide, later than the horizon, which replicas to suspect and what to repeat. It also omits
//! random delays, demand, and counters. Assertions check that the omitted parts have no effect
//! before the horizon.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::FixedState;
use leasehold_leases::Time;

use super::Replica;
use super::flow::Parts;
use super::timers::Timer;

/// Timers that must not be due before the horizon of [`Replica::fingerprint`].
const RESTING: [Timer; 7] = [
    Timer::Election,
    Timer::Heartbeat,
    Timer::Ping,
    Timer::Retransmit,
    Timer::Report,
    Timer::Flush,
    Timer::Changes,
];

impl Replica {
    /// Returns the fingerprint of this replica. Replicas with the same fingerprint and settings
    /// give the same answers to the same inputs, as long as their clocks show times up to
    /// `horizon`. `start` is the time at which the first of these replicas began.
    ///
    /// # Panics
    /// Panics if an omitted part of the state could have an effect before `horizon`. This is
    /// possible if a long timer is due by then, or if a peer could be regarded as silent by then.
    pub fn fingerprint(&self, start: Time, horizon: Time) -> u64 {
        self.assert_rests(start, horizon);
        let mut hasher = FixedState::default().build_hasher();
        let state = &mut hasher;
        // All fields are named, so that a new field does not compile until it is handled here.
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
            compaction,
            machine,
            leasing,
            session_opens: _, // A model opens fewer sessions than the limit.
            writes,
            reads,
            disconnected,
            awaits_successor_until,
            execution: _,       // Before the horizon it has an effect only by a timer.
            marks_looked_at: _, // It is reset after each group of inputs.
            left,
        } = parts;
        (ctx, joining, consensus, compaction, machine.kv()).hash(state);
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

    /// Makes the election timeout end at the next [`super::Input::Tick`]. A model may do this at
    /// any time, because the timeout is random.
    pub fn expire_election(&mut self, now: Time) {
        self.timers.set(Timer::Election, now);
    }

    /// Lets the timer for flushes expire at the next [`super::Input::Tick`]. A model may do this at
    /// any time, because many executed writes can also make a flush due early.
    pub fn expire_flush(&mut self, now: Time) {
        self.timers.set(Timer::Flush, now);
    }

    /// Makes a ping due after the next input. A model may do this at any time, because pings are
    /// due at intervals, independent of inputs.
    pub fn expire_ping(&mut self, now: Time) {
        self.timers.set(Timer::Ping, now);
    }
}
