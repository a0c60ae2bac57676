//! Containment (oracle 1; §3.5, §3.7): in true time, what a holder believes ends
//! before its grantor's grant does; what it believes of an earlier run of the
//! grantor ends before that one's restart wait does.

use leases::{ReplicaId, Time};

use super::super::clock::Clock;
use crate::replica::Replica;

/// Clocks tick in ns: two of them round a reading away from true time.
const TICKS_NS: u64 = 2;

/// See the module.
#[derive(Debug)]
pub struct Containment {
    n: usize,
    /// Promises compared.
    pub checks: u64,
}

impl Containment {
    pub(super) fn new(n: usize) -> Containment {
        Containment { n, checks: 0 }
    }

    /// Checks what `node` was promised and what it promised.
    pub(super) fn watch(&mut self, now_ns: u64, node: usize, all: &[(Option<&Replica>, &Clock)]) {
        for other in (0..self.n).filter(|other| *other != node) {
            self.check(now_ns, other, node, all);
            self.check(now_ns, node, other, all);
        }
    }

    fn check(&mut self, now_ns: u64, g: usize, h: usize, all: &[(Option<&Replica>, &Clock)]) {
        let ((Some(grantor), grantor_clock), (Some(holder), holder_clock)) = (all[g], all[h])
        else {
            return;
        };
        let current = holder.honours(ReplicaId(g as u8), grantor.incarnation());
        let outwaits_ns = grantor_clock.when(grantor.outwaits_until());
        for (config, until) in holder.promised_by(ReplicaId(g as u8)) {
            let ends_ns = holder_clock.when(until);
            if ends_ns <= now_ns {
                continue;
            }
            self.checks += 1;
            // What an earlier run promised has been forgotten: until it has ended
            // every vote must demand everyone, which is as good as a grant.
            let granted = grantor
                .granted_to(ReplicaId(h as u8), config)
                .filter(|_| current)
                .unwrap_or(Time::ZERO);
            let kept_ns = grantor_clock.when(granted).max(outwaits_ns);
            assert!(
                kept_ns + TICKS_NS >= ends_ns,
                "r{h} believes r{g} under {config:?} until {ends_ns} ns, but the grant ends at \
                 {kept_ns} ns (now {now_ns} ns)"
            );
        }
    }
}
