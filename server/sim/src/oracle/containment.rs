//! Containment (oracle 1; §3.5, §3.7): in true time, what a holder believes ends
//! before its grantor's grant does; what it believes of an earlier run of the
//! grantor ends before that one's restart wait does.

use leasehold_leases::{ConfigId, Time};
use smallvec::SmallVec;

use super::super::clock::Clock;
use super::{Sight, Verdict, ensure, id};
use leasehold_replica::Replica;

pub(super) const NAME: &str = "containment";

/// Clocks tick in ns: two of them round a reading away from true time.
const TICKS_NS: u64 = 2;

/// Number of configurations for which judgements are kept: those of older ones are forgotten.
const CONFIGS_KEPT: u64 = 8;

/// One of two replicas that are compared.
struct Side<'a> {
    node: usize,
    replica: &'a Replica,
    clock: Clock,
    /// By its clock.
    now: Time,
}

/// A promise and the grant behind it, each by the clock of the replica that keeps it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    config: ConfigId,
    until: Time,
    kept: Time,
}

/// Oracle that judges containment: beliefs end before grants. A grantor and a holder that were
/// judged need not be judged again, as long as their clocks run as they did.
#[derive(Debug)]
pub struct Containment {
    n: usize,
    /// By replica, as it ran when what is judged was judged.
    clocks: Vec<Option<Clock>>,
    /// By grantor and holder.
    judged: Vec<SmallVec<[Pair; 2]>>,
    /// Promises compared.
    pub checks: u64,
}

impl Containment {
    pub(super) fn new(n: usize) -> Containment {
        Containment {
            n,
            clocks: vec![None; n],
            judged: vec![SmallVec::new(); n * n],
            checks: 0,
        }
    }

    /// Checks what `node` was promised and what it promised.
    pub(super) fn stepped(&mut self, sight: &Sight<'_>, node: usize) -> Verdict {
        let Some(here) = self.side(sight, node) else {
            return Ok(());
        };
        for other in (0..sight.n()).filter(|other| *other != node) {
            if let Some(there) = self.side(sight, other) {
                self.check(sight, &there, &here)?;
                self.check(sight, &here, &there)?;
            }
        }
        Ok(())
    }

    fn side<'a>(&mut self, sight: &Sight<'a>, node: usize) -> Option<Side<'a>> {
        let replica = sight.replica(node)?;
        let clock = *sight.clock(node);
        if self.clocks[node] != Some(clock) {
            self.clocks[node] = Some(clock);
            for other in 0..self.n {
                self.judged[node * self.n + other].clear();
                self.judged[other * self.n + node].clear();
            }
        }
        Some(Side {
            node,
            replica,
            clock,
            now: clock.read(sight.now_ns),
        })
    }

    fn check(&mut self, sight: &Sight<'_>, grantor: &Side<'_>, holder: &Side<'_>) -> Verdict {
        if !grantor.replica.has_joined() {
            return Ok(()); // it casts no vote at all
        }
        let (g, h) = (grantor.node, holder.node);
        let believed = holder.replica.promised_by(id(g));
        for (config, until) in believed.filter(|(_, until)| holder.now < *until) {
            // What an earlier run promised has been forgotten: until it has ended
            // every vote must demand everyone, which is as good as a grant.
            let current = holder.replica.honours(id(g), grantor.replica.incarnation());
            let granted = grantor.replica.granted_to(id(h), config);
            let granted = granted.filter(|_| current).unwrap_or(Time::ZERO);
            let pair = Pair {
                config,
                until,
                kept: granted.max(grantor.replica.outwaits_until()),
            };
            let judged = &mut self.judged[g * self.n + h];
            if judged.contains(&pair) {
                continue;
            }
            remember(judged, pair);
            self.checks += 1;
            compare(sight, grantor, holder, pair)?;
        }
        Ok(())
    }
}

fn remember(judged: &mut SmallVec<[Pair; 2]>, pair: Pair) {
    judged.retain(|other| {
        other.config != pair.config && other.config.0 + CONFIGS_KEPT > pair.config.0
    });
    judged.push(pair);
}

fn compare(sight: &Sight<'_>, grantor: &Side<'_>, holder: &Side<'_>, pair: Pair) -> Verdict {
    let ends_ns = holder.clock.when(pair.until);
    let kept_ns = grantor.clock.when(pair.kept);
    ensure!(
        NAME,
        kept_ns + TICKS_NS >= ends_ns,
        "{:?} believes {:?} under {:?} until {ends_ns} ns, but the grant ends at {kept_ns} ns \
         (now {} ns)",
        id(holder.node),
        id(grantor.node),
        pair.config,
        sight.now_ns
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::bench::{Has, LEASE, World};
    use super::*;

    /// Everybody has promised everybody.
    fn promised() -> World {
        let mut world = World::new(Default::default());
        world.talk();
        world
    }

    /// Returns the verdict on replica 1, and the number of promises compared.
    fn judge(world: &World) -> (bool, u64) {
        let mut containment = Containment::new(3);
        let verdict = containment.stepped(&world.sight(), 1);
        (verdict.is_ok(), containment.checks)
    }

    #[test]
    fn a_promise_ends_before_its_grant_while_clocks_keep_their_bound() {
        for (grantor, holder, good) in [
            (0, 0, true),
            (1000, -1000, true),
            (10_000, 0, false),
            (0, -10_000, false),
        ] {
            let mut world = promised();
            world.nodes[0].clock.set_rate(0, grantor);
            world.nodes[1].clock.set_rate(0, holder);
            assert_eq!(judge(&world).0, good, "{grantor} {holder}");
        }
        assert_eq!(judge(&promised()), (true, 4));
    }

    #[test]
    fn a_promise_has_a_grant_behind_it_while_it_lasts() {
        let mut world = promised();
        world.restart(0, Has::default());
        assert!(!judge(&world).0);
        world.later(LEASE);
        assert!(judge(&world).0);
    }

    #[test]
    fn who_casts_no_vote_need_not_grant() {
        let mut world = promised();
        let joined = false;
        world.restart(
            0,
            Has {
                joined,
                ..Has::default()
            },
        );
        assert!(judge(&world).0);
    }

    #[test]
    fn what_an_earlier_run_promised_ends_before_the_restart_wait() {
        for (wait, good) in [(LEASE, true), (LEASE - Duration::from_millis(1), false)] {
            let mut world = promised();
            let second = Has {
                run: 2,
                restart_wait: Some(wait),
                ..Has::default()
            };
            world.restart(0, second);
            assert_eq!(judge(&world).0, good, "{wait:?}");
        }
    }

    #[test]
    fn what_was_judged_is_judged_again_when_a_clock_changes_its_rate() {
        let mut world = promised();
        let mut containment = Containment::new(3);
        for (rate, checks) in [(0, 4), (0, 4), (1000, 6)] {
            world.nodes[0].clock.set_rate(0, rate);
            assert!(containment.stepped(&world.sight(), 1).is_ok());
            assert_eq!(containment.checks, checks);
        }
    }
}
