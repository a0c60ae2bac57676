//! Selects the effects of a fault that are possible now. Some effects may be impossible, because a
//! role may be resolved to a replica that already has a fault.

use std::time::{Duration, SystemTime};

use super::fault_injector::ActiveFault;
use crate::backend::local::{ProcessState, ProcessStatus};
use crate::fault::Effect;

/// Maximum time that a replica needs to open its data after its start, even on a busy machine.
/// Before this time has passed, the disk must not become full, because a replica on a full disk
/// cannot start.
const OPENED: Duration = Duration::from_secs(3);

/// Filter that keeps only the effects of a fault that are possible now.
pub(super) struct EffectFilter<'a> {
    statuses: &'a [ProcessStatus],
    active: &'a [ActiveFault],
    /// Time at which the fault ends, in seconds; `None` if it has no end.
    until_s: Option<f64>,
}

impl EffectFilter<'_> {
    /// Creates a filter for a fault that ends at `until_s`. The faults in `active` are in effect at
    /// the same time.
    pub fn new<'a>(
        statuses: &'a [ProcessStatus],
        active: &'a [ActiveFault],
        until_s: Option<f64>,
    ) -> EffectFilter<'a> {
        EffectFilter {
            statuses,
            active,
            until_s,
        }
    }

    /// Returns the possible effects. Omits effects on processes that do not run. Omits effects
    /// after which a replica would be started on a full disk. Omits effects after which no majority
    /// of the replicas would be left. The last rule does not apply to a fault that takes down all
    /// replicas together.
    pub fn apply(&self, effects: Vec<Effect>) -> Vec<Effect> {
        let mut failures_allowed = self.failures_allowed(effects.len());
        let mut fall = |site: usize| {
            let may = self.is_up(site) && self.will_have_room(site) && failures_allowed > 0;
            failures_allowed -= usize::from(may);
            may
        };
        let can = |effect: &Effect| match *effect {
            Effect::Kill(site) | Effect::Stop(site) | Effect::Restart(site) => fall(site),
            Effect::Pause(site) => self.is_up(site),
            Effect::FillDisk(site) => self.has_opened(site) && self.full_until(site).is_none(),
            _ => true,
        };
        effects.into_iter().filter(can).collect()
    }

    fn failures_allowed(&self, effects: usize) -> usize {
        let n = self.statuses.len();
        let is_down = |found: &&ProcessStatus| {
            matches!(found.state, ProcessState::Down(_) | ProcessState::Ending)
        };
        let down = self.statuses.iter().filter(is_down).count();
        if effects == n {
            n
        } else {
            (n - (n / 2 + 1)).saturating_sub(down)
        }
    }

    fn is_up(&self, site: usize) -> bool {
        self.statuses[site].state == ProcessState::Up
    }

    fn has_opened(&self, site: usize) -> bool {
        let since = SystemTime::now().duration_since(self.statuses[site].since);
        self.is_up(site) && since.is_ok_and(|since| since >= OPENED)
    }

    /// Whether the replica's disk will have room when the fault ends and the replica is started
    /// again.
    fn will_have_room(&self, site: usize) -> bool {
        let full_until_s = self.full_until(site);
        full_until_s.is_none_or(|full_until_s| self.until_s > Some(full_until_s))
    }

    /// Returns the time, in seconds, until which the replica's disk is full; `None` if the disk is
    /// not full.
    fn full_until(&self, site: usize) -> Option<f64> {
        let full = |fault: &&ActiveFault| fault.undo.contains(&Effect::FreeDisk(site));
        self.active.iter().find(full).map(|fault| fault.until_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::local::DownReason;

    fn statuses(states: [ProcessState; 5]) -> Vec<ProcessStatus> {
        let status = |state| ProcessStatus {
            state,
            since: SystemTime::now() - OPENED,
            process: None,
        };
        states.into_iter().map(status).collect()
    }

    fn all_up() -> [ProcessState; 5] {
        [const { ProcessState::Up }; 5]
    }

    #[test]
    fn a_minority_falls_or_all_at_once() {
        let killed = || ProcessState::Down(DownReason::Killed);
        let mut states = all_up();
        states[3] = killed();
        let one_down = statuses(states);
        let kill = |sites: &[usize]| sites.iter().map(|site| Effect::Kill(*site)).collect();
        let of = |found: &[ProcessStatus], sites: &[usize]| {
            EffectFilter::new(found, &[], Some(9.0))
                .apply(kill(sites))
                .len()
        };
        assert_eq!(of(&one_down, &[0]), 1);
        assert_eq!(of(&one_down, &[3]), 0, "it is down already");
        assert_eq!(of(&one_down, &[0, 1]), 1);
        assert_eq!(of(&one_down, &[0, 1, 2, 3, 4]), 4);
        let mut states = all_up();
        (states[3], states[4]) = (killed(), ProcessState::Ending);
        assert_eq!(of(&statuses(states), &[0]), 0);
    }

    #[test]
    fn nobody_starts_on_a_full_disk() {
        let up = statuses(all_up());
        let full = [ActiveFault::new(5.0, vec![Effect::FreeDisk(2)])];
        let of = |until_s, effect| {
            EffectFilter::new(&up, &full, until_s)
                .apply(vec![effect])
                .len()
        };
        assert_eq!(of(Some(4.0), Effect::Kill(2)), 0);
        assert_eq!(of(Some(6.0), Effect::Kill(2)), 1);
        assert_eq!(of(Some(4.0), Effect::Kill(1)), 1);
        assert_eq!(of(None, Effect::Restart(2)), 0);
        assert_eq!(of(None, Effect::Restart(1)), 1);
        assert_eq!(of(Some(9.0), Effect::FillDisk(2)), 0, "it is full already");
        assert_eq!(of(Some(9.0), Effect::FillDisk(1)), 1);
        let mut starting = statuses(all_up());
        starting[1].since = SystemTime::now();
        let fill = EffectFilter::new(&starting, &[], Some(9.0)).apply(vec![Effect::FillDisk(1)]);
        assert_eq!(fill, []);
    }
}
