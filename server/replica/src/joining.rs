//! Joining: a replica takes part only once enough others know the *life* of its data directory. So
//! a replica with a wiped disk is detected (hazard 33).
//!
//! A life is a random number that is chosen when a data directory is made. A replica that starts on
//! a new directory reports its life to all others ([`Message::Join`]). A peer durably remembers the
//! first life that it ever received from a replica, and only then answers with the life that it
//! remembers ([`Message::Joined`]). The replica has *joined* once [`witnesses`] others have
//! answered with its own life. It makes this fact durable before it acts on it, and no later run
//! has to join again. Before it has joined, it neither votes nor promises, accepts, grants,
//! campaigns, confirms or serves. An answer with another life means that this replica ran before,
//! on a directory that is lost: it sends nothing from then on.
//!
//! # Why this is sound
//! Assumption: of n replicas at most f = (n-1)/2 ever lose the contents of their disks. (A
//! directory is not lost if it is restored from a copy made since its replica last ran.) Then no
//! replica takes part with two lives.
//!
//! Suppose that r took part with a first life, lost its disk, and joined with a second. For each
//! life there is a set of q = ceil((n-1 + f)/2) others that answered with that life. Two such sets
//! share at least 2q - (n-1) >= f of the n-1 others, and never fewer than one. Each replica in both
//! sets had durably remembered the first life when it answered with it. Only the loss of its disk
//! can make it answer with another life. So all replicas in both sets lost their disks. Together
//! with r they are more than f: a contradiction. A peer may therefore answer even if it has not
//! joined itself, or was wiped and does not know it yet: q includes f replicas to allow for lost
//! memories. If a replica could answer only after it has joined, no replica could be the first to
//! join.
//!
//! With more losses than f there is no guarantee. But one peer among the first q that answer is
//! enough to detect the replica, if this peer did not lose its disk.
//!
//! The price is paid when a cluster starts for the first time: q other replicas must be running,
//! although a majority is enough later. With 3 replicas, q is 2. With 5 replicas, q is 3. With 3 or
//! more replicas, q cannot be lower: two sets of q-1 others may share fewer than f replicas. The
//! shared replicas and r are then at most f replicas, so all of them may have lost their disks.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot};

use super::action::{Event, Record};
use super::message::{Message, PerLog};
use super::persist::Continuation;
use super::step::Step;
use super::timers::Timer;

/// Returns the number of other replicas that must know a replica's data directory before the
/// replica takes part in a cluster of `n` replicas.
pub fn witnesses(n: usize) -> usize {
    let lost_max = n.saturating_sub(1) / 2;
    (n.saturating_sub(1) + lost_max).div_ceil(2)
}

/// Progress of a replica that joins the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum JoinState {
    /// Too few other replicas have confirmed that they remember this replica's data directory.
    Asking,
    /// Enough other replicas have confirmed that they remember this replica's data directory. The
    /// record of this fact is not durable yet.
    Sealing,
    /// The replica takes part.
    Joined,
    /// Another replica remembers a different data directory of this replica.
    Wiped,
}

/// Random numbers that identify data directories (lives). One is this replica's own number, and the
/// others are the numbers of other replicas.
#[derive(Clone, Debug, Hash)]
pub(super) struct Joining {
    life: u64,
    state: JoinState,
    /// Replicas that have not confirmed that they remember this replica's data directory. This
    /// replica still sends its number to them.
    unconfirmed: ReplicaSet,
    /// Replicas that have confirmed in this run that they remember this replica's data directory.
    witnesses: ReplicaSet,
    /// First number that each replica has sent for its data directory (its life); 0 if none has
    /// arrived.
    lives: Vec<u64>,
    /// Phase 1 request with the highest ballot among those that arrived before this replica joined.
    /// The replica answers this request once it has joined.
    prepare: Option<(Ballot, PerLog<Slot>)>,
    /// Whether the election timer ran out before this replica joined.
    campaign_due: bool,
}

impl Joining {
    /// # Panics
    /// If `life` is 0, because no data directory has this number.
    pub(super) fn new(
        me: ReplicaId,
        n: usize,
        life: u64,
        joined: bool,
        known: &[(ReplicaId, u64)],
    ) -> Joining {
        assert!(life != 0, "every data directory has a life");
        let mut lives = vec![0; n];
        for (replica, life) in known {
            lives[replica.index()] = *life;
        }
        let alone = witnesses(n) == 0;
        let (state, unconfirmed) = if joined || alone || off(Rule::H33Wiped) {
            (JoinState::Joined, ReplicaSet::EMPTY)
        } else {
            let mut others = ReplicaSet::all(n);
            others.remove(me);
            (JoinState::Asking, others)
        };
        Joining {
            life,
            state,
            unconfirmed,
            witnesses: ReplicaSet::EMPTY,
            lives,
            prepare: None,
            campaign_due: false,
        }
    }

    /// Whether this replica takes part.
    pub(super) fn has_joined(&self) -> bool {
        self.state == JoinState::Joined
    }

    /// Whether this replica must never take part, because it has lost its disk.
    pub(super) fn is_wiped(&self) -> bool {
        self.state == JoinState::Wiped
    }

    /// Sends the number of this replica's data directory (its life) to all replicas that have not
    /// confirmed that they remember it.
    pub(super) fn retransmit(&self, step: &mut Step<'_>) {
        let life = self.life;
        for to in self.unconfirmed.iter() {
            step.send(to, Message::Join { life });
        }
    }

    /// Handles a message of a peer that starts with a new data directory. This replica remembers
    /// only the first life that it has received from the peer.
    pub(super) fn on_join(&mut self, step: &mut Step<'_>, from: ReplicaId, life: u64) {
        let known = &mut self.lives[from.index()];
        if *known == 0 {
            if life == 0 {
                step.metrics.refused_messages += 1;
                return;
            }
            *known = life;
            assert!(from != step.me(), "a replica remembers the lives of others");
            step.record(Record::Life {
                replica: from,
                life,
            });
        }
        step.when_durable(Continuation::Joined { to: from });
    }

    /// Tells the replica `to` the life that is remembered here for the data directory of `to`. The
    /// record of this life is durable now.
    pub(super) fn answer_join(&self, step: &mut Step<'_>, to: ReplicaId) {
        let life = self.lives[to.index()];
        assert!(life != 0, "only a known life is confirmed");
        step.send(to, Message::Joined { life });
    }

    /// Handles a peer's answer. The peer remembers `life` as the life of this replica's data
    /// directory.
    pub(super) fn on_joined(&mut self, step: &mut Step<'_>, from: ReplicaId, life: u64) {
        if life == 0 {
            step.metrics.refused_messages += 1;
            return;
        }
        if life == self.life {
            self.witnesses.insert(from);
            self.unconfirmed.remove(from);
        }
        if self.state != JoinState::Asking {
            // This replica takes part already, or is about to. So a different life that another
            // replica remembers never took part.
            self.unconfirmed.remove(from);
            return;
        }
        if life != self.life {
            self.state = JoinState::Wiped;
            self.unconfirmed = ReplicaSet::EMPTY;
            step.timers.stop_all();
            return step.announce(Event::Wiped { witness: from });
        }
        if self.witnesses.len() >= witnesses(step.ctx.settings.n) {
            self.state = JoinState::Sealing;
            step.record(Record::Joined);
            step.when_durable(Continuation::TakePart);
        }
    }

    /// Keeps a Phase 1 request that arrived before this replica joined. The request is answered as
    /// soon as this replica has joined.
    pub(super) fn postpone_prepare(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        commits: PerLog<Slot>,
    ) {
        let later = |(known, _): &(Ballot, _)| *known <= ballot;
        if ballot.replica == from && self.prepare.as_ref().is_none_or(later) {
            self.prepare = Some((ballot, commits));
        }
    }

    /// Notes that the election timer ran out before this replica was allowed to campaign.
    pub(super) fn postpone_campaign(&mut self, step: &mut Step<'_>) {
        self.campaign_due = true;
        step.timers.stop(Timer::Election);
    }

    /// Makes this replica take part, because the record that it has joined is durable. Returns the
    /// work that was postponed until then.
    pub(super) fn take_part(&mut self) -> PostponedWork {
        assert_eq!(
            self.state,
            JoinState::Sealing,
            "only a recorded joining becomes durable"
        );
        self.state = JoinState::Joined;
        PostponedWork {
            campaign: std::mem::take(&mut self.campaign_due),
            prepare: self.prepare.take(),
        }
    }
}

/// Work that became due before a replica took part, and was postponed.
#[derive(Debug)]
pub(super) struct PostponedWork {
    pub(super) campaign: bool,
    pub(super) prepare: Option<(Ballot, PerLog<Slot>)>,
}

#[cfg(test)]
mod tests {
    use super::witnesses;

    #[test]
    fn two_sets_of_witnesses_share_more_than_a_minority_can_lose() {
        for n in 1..=64usize {
            let lost_max = (n - 1) / 2;
            let q = witnesses(n);
            assert!(q < n, "{n}: there are so many others");
            // One of the lost disks is the wiped replica's own.
            let others_lost_max = lost_max.saturating_sub(1);
            let shared_min = (2 * q).saturating_sub(n - 1);
            assert!(n < 3 || shared_min > others_lost_max, "{n}");
        }
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(witnesses), [0, 1, 2, 2, 3, 4, 5]);
    }
}
