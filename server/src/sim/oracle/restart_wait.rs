//! The restart wait (oracle 6; §3.7): a replica that has started again has
//! forgotten whom it promised what. Until all of that has ended it votes with
//! tag = everyone, or not at all.
//!
//! The wait is recomputed: from the promises that earlier runs sent, and from
//! what holders still believe of them, by their clocks.

use std::time::Duration;

use leases::promise::Promise;
use leases::{LeaseMessage, ReplicaSet, Slot};

use super::promises::Promises;
use super::{Sight, Verdict, ensure, id};
use crate::replica::Replica;
use crate::replica::message::{Envelope, LogId, Message};

pub(super) const NAME: &str = "restart wait";

/// See the module.
#[derive(Debug)]
pub struct RestartWait {
    /// By replica: the longest that any promise of its could still be believed
    /// after it was sent, in ns of any clock within the bound.
    longest_ns: Vec<u64>,
    /// Starts and votes looked at.
    pub checks: u64,
}

impl RestartWait {
    pub(super) fn new(n: usize) -> RestartWait {
        RestartWait {
            longest_ns: vec![0; n],
            checks: 0,
        }
    }

    /// `node` has started.
    pub(super) fn started(&mut self, sight: &Sight<'_>, node: usize) -> Verdict {
        let (longest_ns, Some(replica)) = (self.longest_ns[node], sight.replica(node)) else {
            return Ok(());
        };
        if longest_ns == 0 || !replica.has_joined() {
            return Ok(()); // nothing was promised, or nothing will ever be voted for
        }
        self.checks += 1;
        let waits = replica.outwaits_until().since(sight.time(node));
        ensure!(
            NAME,
            waits >= Duration::from_nanos(longest_ns),
            "{:?} waits for {waits:?} after its start, but promises of earlier runs may last for \
             {longest_ns} ns",
            id(node)
        );
        Ok(())
    }

    /// `node` is about to send a message.
    pub(super) fn sent(
        &mut self,
        sight: &Sight<'_>,
        promises: &Promises,
        node: usize,
        envelope: &Envelope,
    ) -> Verdict {
        let Some(replica) = sight.replica(node) else {
            return Ok(());
        };
        match &envelope.message {
            Message::Lease(LeaseMessage::Promise(promise)) => {
                let rho_ppm = replica.configs().params(promise.config).clock.rho_ppm;
                let longest = &mut self.longest_ns[node];
                *longest = (*longest).max(lasts_ns(promise, rho_ppm));
                Ok(())
            }
            // A first run has forgotten nothing.
            _ if replica.incarnation().0 <= 1 => Ok(()),
            Message::Accept(accept) if accept.log == LogId::Commands => {
                self.vote(sight, promises, node, replica, accept.slot, accept.tag)
            }
            Message::Accepted { log, votes, .. } if *log == LogId::Commands => {
                for (slot, tag) in votes {
                    self.vote(sight, promises, node, replica, *slot, *tag)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn vote(
        &mut self,
        sight: &Sight<'_>,
        promises: &Promises,
        node: usize,
        replica: &Replica,
        slot: Slot,
        tag: ReplicaSet,
    ) -> Verdict {
        let owed = self.owed(sight, promises, node, replica);
        if owed.is_empty() || slot <= replica.executed() {
            return Ok(());
        }
        let value = replica.entry(LogId::Commands, slot);
        let mut commands = value.map_or(&[][..], |value| value.commands()).iter();
        if !commands.any(|proposed| proposed.command.is_write()) {
            return Ok(());
        }
        self.checks += 1;
        ensure!(
            NAME,
            owed.is_subset(tag),
            "{:?} {:?} votes for {slot:?} with tag {tag:?}, but {owed:?} may believe an earlier \
             run of its",
            id(node),
            replica.incarnation()
        );
        Ok(())
    }

    /// Whom votes of `node` must demand for what it may have forgotten.
    fn owed(
        &self,
        sight: &Sight<'_>,
        promises: &Promises,
        node: usize,
        replica: &Replica,
    ) -> ReplicaSet {
        if sight.time(node) < replica.outwaits_until() {
            return ReplicaSet::all(sight.n());
        }
        let run = replica.incarnation();
        let believes = |other: &usize| {
            *other != node
                && sight.replica(*other).is_some()
                && sight.time(*other) < promises.forgotten(node, *other, run)
        };
        (0..sight.n()).filter(believes).map(id).collect()
    }
}

/// How long after it was sent a promise may be believed, in ns of any clock
/// within the bound: it is taken within `t0 + t_guard` of the ack it names, which
/// was received `t0` ago by a clock that may run as much slower as the holder's
/// runs faster, and lasts `t_lease` from then.
fn lasts_ns(promise: &Promise, rho_ppm: u32) -> u64 {
    let rho = u128::from(rho_ppm);
    let aged = promise.t0.as_nanos() * 2 * rho / 1_000_000;
    let span = (promise.t_guard + promise.t_lease).as_nanos() + aged;
    let stretched = span * (1_000_000 + rho) / (1_000_000 - rho);
    u64::try_from(stretched).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leases::ConfigId;

    #[test]
    fn a_promise_lasts_for_guard_and_lease_stretched_by_both_clocks() {
        let promise = Promise {
            sequence: 1,
            base: 1,
            t0: Duration::ZERO,
            t_guard: Duration::from_secs(1),
            t_lease: Duration::from_secs(2),
            config: ConfigId(1),
            highest_accepted: Slot::ZERO,
        };
        assert_eq!(lasts_ns(&promise, 0), 3_000_000_000);
        assert_eq!(lasts_ns(&promise, 1000), 3_006_006_006);
        let aged = Promise {
            t0: Duration::from_secs(4),
            ..promise
        };
        assert_eq!(lasts_ns(&aged, 1000), 3_014_022_022);
    }
}
