//! The holder's side of the engine: promises that this replica has received, and the local reads
//! that these promises permit.

use smallvec::SmallVec;

use super::chain::Chain;
use super::message::LeaseMessage;
use super::rules;
use crate::config::{Configs, KeyView};
use crate::membership::Membership;
use crate::mutants::mutated;
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, ReplicaId, ReplicaSet, Slot};

/// Permission to read one key locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// Time at which the permit ends. After the read, the caller must compare this time with the
    /// clock.
    pub until: Time,
}

/// Reason why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    /// Under the newest configuration, this replica does not hold the key.
    NotHolder,
    /// This replica holds the key, but has unexpired promises from too few grantors.
    Uncovered,
    /// The key is covered, but this slot must be executed first.
    Barrier(Slot),
}

/// Promises that this replica has received from the other replicas.
#[derive(Clone, Debug, Hash)]
pub struct Holder {
    me: ReplicaId,
    members: Membership,
    /// The chain of promises of each grantor. The entry of this replica is unused.
    chains: Vec<Chain>,
    /// Whether this replica has given back its promises and accepts no new promises.
    refusing: bool,
}

impl Holder {
    /// Creates a holder among `n` replicas.
    pub fn new(me: ReplicaId, n: usize) -> Holder {
        let members = Membership::fixed(n);
        assert!(members.is_member(me), "a holder is a member");
        Holder {
            me,
            members,
            chains: vec![Chain::default(); n],
            refusing: false,
        }
    }

    /// Handles a message from the run `incarnation` of `grantor`. If the run is new, promises of
    /// earlier runs of the grantor end.
    pub fn observe_incarnation(&mut self, grantor: ReplicaId, incarnation: Incarnation) {
        self.chains[grantor.index()].observe_incarnation(incarnation);
    }

    /// Handles a guard or promise of a grantor. Returns the ack; `None` if the message is refused.
    /// `known` is the newest configuration known on this replica. The caller must have checked that
    /// the message contains the current incarnations of both replicas.
    pub fn handle(
        &mut self,
        now: Time,
        grantor: ReplicaId,
        message: &LeaseMessage,
        known: ConfigId,
    ) -> Option<LeaseMessage> {
        if self.refusing {
            return None;
        }
        let chain = &mut self.chains[grantor.index()];
        match *message {
            LeaseMessage::Guard { sequence } => {
                chain.take(sequence, now)?;
                Some(LeaseMessage::GuardAck { sequence, known })
            }
            LeaseMessage::Promise(promise) => {
                chain.take_promise(now, &promise, known)?;
                let sequence = promise.sequence;
                Some(LeaseMessage::PromiseAck { sequence, known })
            }
            _ => None,
        }
    }

    /// Erases all promises, and refuses new promises from now on. Returns the messages that notify
    /// the grantors. A replica calls this function when it cannot make acceptances durable. As a
    /// holder, such a replica would only make writes wait.
    pub fn relinquish(&mut self) -> Vec<(ReplicaId, LeaseMessage)> {
        self.refusing = true;
        let mut out = Vec::new();
        for grantor in self.members.others(self.me).iter() {
            let up_to = self.chains[grantor.index()].erase();
            if up_to > 0 {
                out.push((grantor, LeaseMessage::Relinquish { up_to }));
            }
        }
        out
    }

    /// Erases the promises of a grantor that is about to stop, and returns the answer to this
    /// grantor. Promises of the grantor with sequence numbers up to `up_to` are refused from now
    /// on. This includes promises that are still on their way.
    pub fn handle_recall(&mut self, grantor: ReplicaId, up_to: u64) -> LeaseMessage {
        self.chains[grantor.index()].recall(up_to);
        LeaseMessage::Relinquish { up_to }
    }

    /// Accepts promises again, after [`relinquish`](Self::relinquish).
    pub fn accept_again(&mut self) {
        self.refusing = false;
    }

    /// Returns the permit to read the key locally at `now`. This replica has executed all slots up
    /// to `executed`. Two conditions must hold (§3.6, case 2). At least N/2 other replicas must
    /// cover the key. This replica must have executed all slots up to the barriers of these
    /// replicas.
    ///
    /// # Errors
    /// [`NoPermit`]: the condition that is not satisfied.
    pub fn permit(
        &self,
        now: Time,
        key: KeyView<'_>,
        newest: ConfigId,
        executed: Slot,
    ) -> Result<Permit, NoPermit> {
        let holds = |config| key.holders(config).contains(self.me);
        // Almost every promise is under the newest configuration.
        let holds_now = holds(newest);
        let permit = self.permit_where(now, executed, |config| {
            if config == newest {
                holds_now
            } else {
                holds(config)
            }
        });
        permit.map_err(|missing| match missing {
            NoPermit::Uncovered if !holds_now => NoPermit::NotHolder,
            other => other,
        })
    }

    /// Returns the permit to read all possible keys. The conditions are the same as those of
    /// [`permit`](Self::permit) for one key.
    ///
    /// # Errors
    /// [`NoPermit`]: the condition that is not satisfied.
    pub fn permit_all(
        &self,
        now: Time,
        configs: &Configs,
        executed: Slot,
    ) -> Result<Permit, NoPermit> {
        self.permit_where(now, executed, |config| {
            configs.universal(config).contains(self.me)
        })
    }

    fn permit_where(
        &self,
        now: Time,
        executed: Slot,
        holds: impl Fn(ConfigId) -> bool,
    ) -> Result<Permit, NoPermit> {
        let needed = self.members.grantors_needed();
        if needed == 0 {
            return Ok(Permit { until: Time::MAX });
        }
        let covered = || self.chains.iter().filter_map(|c| c.coverage(now, &holds));
        let permit = judge(covered, needed, executed);
        assert!(
            permit.is_ok_and(|p| now < p.until) || permit.is_err(),
            "a permit has not expired"
        );
        permit
    }

    /// Returns the time until which `grantor` covers the key on this replica, and the barrier of
    /// the grantor's chain; `None` if `grantor` does not cover the key.
    pub fn covered_by(
        &self,
        now: Time,
        grantor: ReplicaId,
        key: KeyView<'_>,
    ) -> Option<(Time, Slot)> {
        let holds = |config| key.holders(config).contains(self.me);
        self.chains[grantor.index()].coverage(now, holds)
    }

    /// Returns the grantors that have made an unexpired promise, regardless of its keys.
    pub fn grantors(&self, now: Time) -> ReplicaSet {
        let chains = self.chains.iter().enumerate();
        let live = chains.filter(|(_, chain)| chain.is_live(now));
        live.map(|(index, _)| ReplicaId(index as u8)).collect()
    }

    /// Forgets promises that are no longer needed if this replica has executed all slots up to
    /// `executed`.
    pub fn forget(&mut self, now: Time, executed: Slot) {
        for chain in &mut self.chains {
            chain.forget(now, executed);
        }
    }

    /// Returns the oldest configuration in the chains that contain an unexpired promise. The
    /// promise under this configuration may have expired.
    pub fn oldest_config(&self, now: Time) -> Option<ConfigId> {
        let live = self.chains.iter().filter(|chain| chain.is_live(now));
        live.filter_map(Chain::oldest_config).min()
    }

    /// Iterates over the configurations and the end times of the remembered promises of `grantor`.
    /// Expired promises may be among them. The end times are times of this replica's clock.
    #[inline]
    pub fn promised_by(&self, grantor: ReplicaId) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.chains[grantor.index()].promises()
    }

    /// Panics if the state is invalid. Windows and records must be in ascending order and bounded
    /// in number. A holder that has given back its promises must not rely on any promise. Cost: a
    /// few comparisons for each pair of a grantor and a configuration under which its promises are
    /// remembered. There are rarely more than four such configurations for a grantor.
    pub fn check(&self) {
        if mutated() {
            return; // for the oracles to catch
        }
        assert_eq!(
            self.chains.len(),
            self.members.len(),
            "there is one chain for each member"
        );
        for chain in &self.chains {
            chain.check();
            assert!(
                !self.refusing || chain.is_erased(),
                "a holder that refuses has given back its leases"
            );
        }
        let own = &self.chains[self.me.index()];
        assert!(own.is_erased(), "a replica promises nothing to itself");
    }
}

/// Returns the permit that results from the coverage of a key. `covered` yields, for each grantor
/// that covers the key, the end of the promise and the barrier of the chain. Grantors are ignored
/// if this replica has not passed their barriers. The permit ends when fewer than `needed` of the
/// other grantors have unexpired promises.
#[inline]
fn judge<I: Iterator<Item = (Time, Slot)>>(
    covered: impl Fn() -> I,
    needed: usize,
    executed: Slot,
) -> Result<Permit, NoPermit> {
    let mut ready: SmallVec<[Time; 8]> = SmallVec::new();
    for (expires, barrier) in covered() {
        let passed =
            rules::is_past(executed, barrier) || rules::is_passed_by_another(!ready.is_empty());
        if passed {
            ready.push(expires);
        }
    }
    ready.sort_unstable_by(|a, b| b.cmp(a));
    if let Some(&until) = ready.get(needed - 1) {
        return Ok(Permit { until });
    }
    let mut barriers: SmallVec<[Slot; 8]> = covered().map(|(_, barrier)| barrier).collect();
    barriers.sort_unstable();
    let barrier = barriers.get(needed - 1);
    Err(barrier.map_or(NoPermit::Uncovered, |slot| NoPermit::Barrier(*slot)))
}

#[cfg(test)]
impl Holder {
    /// Returns the number of windows of `grantor` that are remembered.
    pub(super) fn windows(&self, grantor: ReplicaId) -> usize {
        self.chains[grantor.index()].windows()
    }

    /// Returns the number of configurations under which promises of `grantor` are remembered.
    pub(super) fn records(&self, grantor: ReplicaId) -> usize {
        self.chains[grantor.index()].records()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_needs_enough_grantors_whose_barriers_are_passed() {
        let until = |t| Ok(Permit { until: Time(t) });
        let barrier = |slot| Err(NoPermit::Barrier(Slot(slot)));
        // (ends and barriers of the promises that cover the key, grantors needed, slot executed,
        // permit)
        for (covered, needed, executed, expected) in [
            (&[][..], 1, 9, Err(NoPermit::Uncovered)),
            (&[(50, 0)], 1, 0, until(50)),
            (&[(50, 0)], 2, 0, Err(NoPermit::Uncovered)),
            (&[(50, 0), (70, 0)], 1, 0, until(70)),
            (&[(50, 0), (70, 0)], 2, 0, until(50)),
            (&[(50, 0), (70, 3)], 1, 2, until(50)),
            (&[(50, 0), (70, 3)], 2, 2, barrier(3)),
            (&[(50, 0), (70, 3)], 2, 3, until(50)),
            (&[(50, 8), (70, 3), (60, 5)], 2, 0, barrier(5)),
            (&[(50, 8), (70, 3), (60, 5)], 2, 5, until(60)),
        ] {
            let grantors: Vec<(Time, Slot)> =
                covered.iter().map(|&(t, s)| (Time(t), Slot(s))).collect();
            let found = judge(|| grantors.iter().copied(), needed, Slot(executed));
            assert_eq!(found, expected, "{covered:?}, {needed}, {executed}");
        }
    }
}
