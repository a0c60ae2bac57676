//! Fingerprints of members. A model checker visits each state once, and recognizes a visited state
//! by its fingerprint.
//!
//! A fingerprint covers everything that decides what a member does, except for two fields. The
//! settings are the same in all states of a model. The highest known round only limits leaps
//! ([`rules::LEAP_MAX`]), and the fingerprint asserts that all rounds are below this limit.
//! Times are hashed as they are, so a model must bound them.
//!
//! The state of the random number generator is hashed, too. A model sets it after each step
//! ([`MemberMachine::set_random`]). Otherwise the number of earlier draws would make states
//! different.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

use leasehold_leases::{Time, fingerprint};

use super::MemberMachine;
use crate::attempt::AttemptPhase;
use crate::message::{Body, Resource};
use crate::rules;

/// A map, hashed without regard to its order.
struct Unordered<'a, V, S>(&'a HashMap<Resource, V, S>);

impl<V: Hash, S: BuildHasher> Hash for Unordered<'_, V, S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        fingerprint::unordered(self.0, state);
    }
}

impl MemberMachine {
    /// Returns the fingerprint of this member. Members with the same fingerprint and settings give
    /// the same answers to the same inputs.
    ///
    /// # Panics
    /// With clocks of bounded rates, if this member knows a round that could be a leap for a member.
    pub fn fingerprint(&self) -> u64 {
        // All fields are named, so that a new field does not compile until it is handled here.
        let MemberMachine {
            settings, // They are the same in all states.
            me,
            silent_until,
            is_clock_wrong,
            random,
            floor,
            reserved,
            is_reserving,
            highest_round, // It has no effect as long as no round is a leap.
            registers,
            claims,
            agenda,
            outbox,
            events,
        } = self;
        assert!(
            !settings.has_timers() || *highest_round <= rules::LEAP_MAX,
            "a round may be a leap"
        );
        let identity = (me, silent_until, is_clock_wrong, random);
        let rounds = (floor, reserved, is_reserving);
        let maps = (Unordered(registers), Unordered(claims), agenda);
        fingerprint::of(&(identity, rounds, maps, outbox, events))
    }

    /// Sets the state of the random number generator.
    pub fn set_random(&mut self, random: u64) {
        self.random = random;
    }

    /// Whether a request can change the register of this member, now or after any time without a
    /// restart. If it cannot, its answer may still have an effect on its sender.
    pub fn may_accept(&self, resource: &Resource, body: Body) -> bool {
        let register = self.registers.get(resource);
        let claim = self.claims.get(resource);
        // A release wakes a program that waits.
        let is_waiting = claim.is_some_and(|it| it.request.is_some());
        is_waiting || register.is_none_or(|it| it.may_accept(body))
    }

    /// Whether an answer can have an effect on this member, at `now` or later. The highest known round
    /// is not regarded as an effect. A model need not deliver other answers. Returns `true` for
    /// requests.
    pub fn can_use(&self, now: Time, resource: &Resource, body: Body) -> bool {
        let claim = self.claims.get(resource);
        let attempt = |ballot| {
            let attempt = claim.and_then(|it| it.attempt);
            attempt.filter(|it| rules::answers(ballot, it.ballot))
        };
        // An attempt that has ended stays ended.
        let runs = |ballot| {
            attempt(ballot).filter(|it| now < rules::attempt_end(&self.settings, it.began))
        };
        match body {
            Body::Read { .. } | Body::Write { .. } | Body::Release { .. } | Body::Query { .. } => {
                true
            }
            Body::Report { number, .. } => {
                let query = claim.and_then(|it| it.query);
                query.is_some_and(|it| it.number == number)
            }
            Body::ReadAck { ballot, .. } => {
                runs(ballot).is_some_and(|it| matches!(it.phase, AttemptPhase::Reading(_)))
            }
            // It may arrive before READ has been answered by others.
            Body::Taken { ballot, .. } => runs(ballot).is_some(),
            Body::WriteAck { ballot } => {
                runs(ballot).is_some_and(|it| matches!(it.phase, AttemptPhase::Writing { .. }))
            }
            Body::Nack { ballot, promised } => promised > ballot && attempt(ballot).is_some(),
            Body::ReleaseAck { acquired } => {
                let release = claim.and_then(|it| it.release);
                release.is_some_and(|it| it.acquired == acquired)
            }
        }
    }
}
