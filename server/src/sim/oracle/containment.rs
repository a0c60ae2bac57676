//! Containment (oracle 1; §3.5, §3.7): in true time, what a holder believes ends
//! before its grantor's grant does; what it believes of an earlier run of the
//! grantor ends before that one's restart wait does.

use leases::{ConfigId, Time};

use super::super::clock::Clock;
use super::{Sight, Verdict, ensure, id};

pub(super) const NAME: &str = "containment";

/// Clocks tick in ns: two of them round a reading away from true time.
const TICKS_NS: u64 = 2;

/// What was judged of configurations older than these is forgotten.
const CONFIGS_KEPT: u64 = 8;

/// A promise and the grant behind it, each by the clock of whoever keeps it. One
/// that was judged, by clocks that run as they did, need not be judged again.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pair {
    config: ConfigId,
    until: Time,
    kept: Time,
    clocks: [Clock; 2],
}

/// See the module.
#[derive(Debug)]
pub struct Containment {
    n: usize,
    /// By grantor and holder.
    judged: Vec<Vec<Pair>>,
    /// Promises compared.
    pub checks: u64,
}

impl Containment {
    pub(super) fn new(n: usize) -> Containment {
        Containment {
            n,
            judged: vec![Vec::new(); n * n],
            checks: 0,
        }
    }

    /// Checks what `node` was promised and what it promised.
    pub(super) fn stepped(&mut self, sight: &Sight<'_>, node: usize) -> Verdict {
        for other in (0..sight.n()).filter(|other| *other != node) {
            self.check(sight, other, node)?;
            self.check(sight, node, other)?;
        }
        Ok(())
    }

    fn check(&mut self, sight: &Sight<'_>, g: usize, h: usize) -> Verdict {
        let (Some(grantor), Some(holder)) = (sight.replica(g), sight.replica(h)) else {
            return Ok(());
        };
        if !grantor.has_joined() {
            return Ok(()); // it casts no vote at all
        }
        let current = holder.honours(id(g), grantor.incarnation());
        let now = sight.time(h);
        for (config, until) in holder.promised_by(id(g)).filter(|(_, until)| now < *until) {
            // What an earlier run promised has been forgotten: until it has ended
            // every vote must demand everyone, which is as good as a grant.
            let granted = grantor.granted_to(id(h), config).filter(|_| current);
            let kept = granted.unwrap_or(Time::ZERO).max(grantor.outwaits_until());
            let pair = Pair {
                config,
                until,
                kept,
                clocks: [*sight.clock(g), *sight.clock(h)],
            };
            self.compare(sight, g, h, pair)?;
        }
        Ok(())
    }

    fn compare(&mut self, sight: &Sight<'_>, g: usize, h: usize, pair: Pair) -> Verdict {
        let judged = &mut self.judged[g * self.n + h];
        match judged.iter_mut().find(|other| other.config == pair.config) {
            Some(same) if *same == pair => return Ok(()),
            Some(other) => *other = pair,
            None => {
                judged.retain(|other| other.config.0 + CONFIGS_KEPT > pair.config.0);
                judged.push(pair);
            }
        }
        self.checks += 1;
        let ends_ns = pair.clocks[1].when(pair.until);
        let kept_ns = pair.clocks[0].when(pair.kept);
        ensure!(
            NAME,
            kept_ns + TICKS_NS >= ends_ns,
            "{:?} believes {:?} under {:?} until {ends_ns} ns, but the grant ends at {kept_ns} ns \
             (now {} ns)",
            id(h),
            id(g),
            pair.config,
            sight.now_ns
        );
        Ok(())
    }
}
