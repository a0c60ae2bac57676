//! Containment (oracle 1; §3.5, §3.7): in true time, what a holder believes ends
//! before its grantor's grant does; what it believes of an earlier run of the
//! grantor ends before that one's restart wait does.

use leases::Time;

use super::{Sight, Verdict, ensure, id};

pub(super) const NAME: &str = "containment";

/// Clocks tick in ns: two of them round a reading away from true time.
const TICKS_NS: u64 = 2;

/// See the module.
#[derive(Debug, Default)]
pub struct Containment {
    /// Promises compared.
    pub checks: u64,
}

impl Containment {
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
        let outwaits_ns = sight.clock(g).when(grantor.outwaits_until());
        for (config, until) in holder.promised_by(id(g)) {
            let ends_ns = sight.clock(h).when(until);
            if ends_ns <= sight.now_ns {
                continue;
            }
            self.checks += 1;
            // What an earlier run promised has been forgotten: until it has ended
            // every vote must demand everyone, which is as good as a grant.
            let granted = grantor
                .granted_to(id(h), config)
                .filter(|_| current)
                .unwrap_or(Time::ZERO);
            let kept_ns = sight.clock(g).when(granted).max(outwaits_ns);
            ensure!(
                NAME,
                kept_ns + TICKS_NS >= ends_ns,
                "{:?} believes {:?} under {config:?} until {ends_ns} ns, but the grant ends at \
                 {kept_ns} ns (now {} ns)",
                id(h),
                id(g),
                sight.now_ns
            );
        }
        Ok(())
    }
}
