//! Joining: a replica takes part only once enough others know its directory's *life*, so that a
//! replica with a wiped disk is found out (hazard 33).
//!
//! A data directory draws its life, a number, when it is made. A replica that starts on a new one
//! reports the life to all others ([`Message::Join`]). A peer durably remembers the first life that
//! it ever heard of a replica, and only then answers with the life that it remembers
//! ([`Message::Joined`]). The replica has *joined* once [`witnesses`] others have answered with its
//! own life; it makes that durable before it acts on it, and no later run asks again. Until then it
//! neither votes nor promises, accepts, grants, campaigns, confirms or serves. An answer with
//! another life means that this replica ran before, on a directory that is gone: it stays mute for
//! good.
//!
//! # Why this is sound
//! Assumption: of n replicas at most f = (n-1)/2 ever lose what their disks held
//! (a directory that is brought back, from a copy made since its replica last
//! ran, was not lost). Then no replica takes part in two lives.
//!
//! Suppose that r took part in a first life, lost its disk, and joined in a second. For each there
//! is a set of q = ceil((n-1 + f)/2) others that answered with that life.
//! Two such sets share 2q - (n-1) >= f of the n-1 others, and one at least. Each of those had
//! durably remembered the first life when it answered with it, and nothing but the loss of its disk
//! makes it answer with another. So all of them lost their disks, and with r these are more than f:
//! a contradiction. A peer that has not joined itself, or was wiped and does not know it yet, may
//! therefore answer: that its memory may be a new one is what the f in q pays for. If only replicas
//! that have joined answered, no replica could be the first.
//!
//! With more losses than f nothing is promised; but one survivor among the first q
//! that answer finds the replica out.
//!
//! The price: at the first start of all, q others must be there (both of 3, three
//! of the other four), where a majority would do later. It cannot be less: if a
//! replica began without asking someone, that one, asked alone later, would know
//! nothing of it.

use leasehold_leases::mutants::{Rule, off};
use leasehold_leases::{Ballot, ReplicaId, ReplicaSet, Slot};

use super::action::{Event, Record};
use super::message::{Message, PerLog};
use super::persist::Continuation;
use super::step::Step;
use super::timers::Timer;

/// Number of others that must know a replica's life before it takes part.
pub fn witnesses(n: usize) -> usize {
    let lost_max = n.saturating_sub(1) / 2;
    (n.saturating_sub(1) + lost_max).div_ceil(2)
}

/// Progress of a replica with joining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum JoinState {
    /// Not enough others have answered with its life.
    Asking,
    /// They have, and that is on its way to disk.
    Sealing,
    /// It takes part.
    Joined,
    /// Somebody remembers another life.
    Wiped,
}

/// Lives that a replica knows, its own and those of others.
#[derive(Clone, Debug, Hash)]
pub(super) struct Joining {
    life: u64,
    state: JoinState,
    /// Replicas that are not known to remember this life, and are still notified of it.
    unconfirmed: ReplicaSet,
    /// Replicas that have answered with this life, in this run.
    witnesses: ReplicaSet,
    /// By replica: the first life ever heard of it; 0 if none.
    lives: Vec<u64>,
    /// The highest Phase 1 that waits for an answer until this replica has joined.
    prepare: Option<(Ballot, PerLog<Slot>)>,
    /// A campaign fell due meanwhile.
    campaign_due: bool,
}

impl Joining {
    /// # Panics
    /// If `life` is 0: no directory has that.
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

    /// Whether it may never take part.
    pub(super) fn is_wiped(&self) -> bool {
        self.state == JoinState::Wiped
    }

    /// Reports its life to all replicas that may not know it.
    pub(super) fn retransmit(&self, step: &mut Step<'_>) {
        let life = self.life;
        for to in self.unconfirmed.iter() {
            step.send(to, Message::Join { life });
        }
    }

    /// A peer starts on a new directory. The first life it ever had counts.
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

    /// Answers `to`: the life that is remembered of it is durable.
    pub(super) fn answer_join(&self, step: &mut Step<'_>, to: ReplicaId) {
        let life = self.lives[to.index()];
        assert!(life != 0, "only a known life is confirmed");
        step.send(to, Message::Joined { life });
    }

    /// A peer remembers this life of this replica.
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
            // It takes part already, or is about to: another life that somebody
            // remembers was one that never did.
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

    /// Phase 1 of a replica that joined earlier: it is answered as soon as may be.
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

    /// The election timer has run out before this replica may campaign.
    pub(super) fn postpone_campaign(&mut self, step: &mut Step<'_>) {
        self.campaign_due = true;
        step.timers.stop(Timer::Election);
    }

    /// That this replica has joined is durable. Returns what was postponed until now.
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

/// Work that fell due before a replica took part.
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
