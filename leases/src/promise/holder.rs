//! The holder's side: what this replica has been promised, and what it may
//! read because of it.

use smallvec::SmallVec;

use super::chain::Chain;
use super::message::LeaseMessage;
use super::rules;
use crate::config::{Configs, KeyView};
use crate::membership::Membership;
use crate::mutants::mutated;
use crate::time::Time;
use crate::types::{ConfigId, Incarnation, ReplicaId, ReplicaSet, Slot};

/// Leave to read one key locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The permit ends here: compare with the clock after reading.
    pub until: Time,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPermit {
    /// Under the newest configuration this replica does not hold the key.
    NotHolder,
    /// It holds the key, but too few grantors' promises are unexpired.
    Uncovered,
    /// Covered, but this slot must be executed first.
    Barrier(Slot),
}

/// Promises that this replica has received from the others.
#[derive(Clone, Debug, Hash)]
pub struct Holder {
    me: ReplicaId,
    members: Membership,
    /// By grantor; the entry of this replica stays as it began.
    chains: Vec<Chain>,
    /// This replica has given its promises back, and takes none.
    refusing: bool,
}

impl Holder {
    /// A holder among `n` replicas.
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

    /// A message of `incarnation` came from `grantor`. Promises of an earlier run of
    /// it end here.
    pub fn observe_incarnation(&mut self, grantor: ReplicaId, incarnation: Incarnation) {
        self.chains[grantor.index()].observe_incarnation(incarnation);
    }

    /// Takes a grantor's guard or promise; returns the ack, or `None` if refused.
    /// `known` is the newest configuration known here. The caller has checked
    /// that the message names the present incarnations of both.
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

    /// Erases every promise, refuses new ones, and says so to each grantor:
    /// this replica cannot make acceptances durable and would only block writes.
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

    /// A grantor that ends wants its promises back: they are erased, and those up to this
    /// sequence are refused from now on, also if they are still on their way.
    pub fn handle_recall(&mut self, grantor: ReplicaId, up_to: u64) -> LeaseMessage {
        self.chains[grantor.index()].recall(up_to);
        LeaseMessage::Relinquish { up_to }
    }

    /// Takes promises again.
    pub fn accept_again(&mut self) {
        self.refusing = false;
    }

    /// May this replica read the key locally at `now`, having executed up to
    /// `executed`? Covered by at least N/2 others, and past the barrier of each
    /// that is counted (§3.6, case 2).
    ///
    /// # Errors
    /// [`NoPermit`]: the condition that is not met.
    pub fn permit(
        &self,
        now: Time,
        key: KeyView<'_>,
        newest: ConfigId,
        executed: Slot,
    ) -> Result<Permit, NoPermit> {
        let holds = |config| key.holders(config).contains(self.me);
        // Almost every promise is under the newest one.
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

    /// The same for every key there is or could be.
    ///
    /// # Errors
    /// [`NoPermit`]: the condition that is not met.
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

    /// Until when `grantor` covers the key here, and the barrier of that chain.
    pub fn covered_by(
        &self,
        now: Time,
        grantor: ReplicaId,
        key: KeyView<'_>,
    ) -> Option<(Time, Slot)> {
        let holds = |config| key.holders(config).contains(self.me);
        self.chains[grantor.index()].coverage(now, holds)
    }

    /// Grantors with an unexpired promise here, whatever it covers.
    pub fn grantors(&self, now: Time) -> ReplicaSet {
        let chains = self.chains.iter().enumerate();
        let live = chains.filter(|(_, chain)| chain.is_live(now));
        live.map(|(index, _)| ReplicaId(index as u8)).collect()
    }

    /// Forgets promises that make no difference any more to a replica that has
    /// executed up to `executed`.
    pub fn forget(&mut self, now: Time, executed: Slot) {
        for chain in &mut self.chains {
            chain.forget(now, executed);
        }
    }

    /// The oldest configuration that an unexpired promise, or one before it in its
    /// chain, is under.
    pub fn oldest_config(&self, now: Time) -> Option<ConfigId> {
        let live = self.chains.iter().filter(|chain| chain.is_live(now));
        live.filter_map(Chain::oldest_config).min()
    }

    /// Until when this replica may believe `grantor`, by this clock, and under
    /// which configurations; also what has expired, if it is remembered.
    #[inline]
    pub fn promised_by(&self, grantor: ReplicaId) -> impl Iterator<Item = (ConfigId, Time)> + '_ {
        self.chains[grantor.index()].promises()
    }

    /// Panics if the state is invalid: windows and records must be rising and bounded, and a
    /// holder that has given its promises back must believe nothing. Cost: a few comparisons
    /// for each grantor and each configuration that it is remembered under: rarely more than
    /// four.
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

/// `covered` yields, for each grantor that covers the key, the end of its promise and the
/// barrier of its chain. The permit is that of the `needed` best grantors with a passed
/// barrier.
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
    /// Number of windows of `grantor` that are remembered.
    pub(super) fn windows(&self, grantor: ReplicaId) -> usize {
        self.chains[grantor.index()].windows()
    }

    /// Number of configurations that `grantor` is remembered under.
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
        // (ends and barriers of those that cover the key, needed, executed, permit)
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
