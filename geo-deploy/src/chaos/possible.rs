//! Chooses those effects of a fault that are possible now. Roles may mean a replica to which
//! something happens already.

use std::time::{Duration, SystemTime};

use super::conductor::Active;
use crate::backend::local::{Condition, Life};
use crate::fault::Effect;

/// A replica has opened its data this long after its start, also on a busy machine. It
/// cannot start on a full disk, and says so and ends.
const OPENED: Duration = Duration::from_secs(3);

/// Filter that keeps those effects of a fault that are possible now.
pub(super) struct Possible<'a> {
    conditions: &'a [Condition],
    active: &'a [Active],
    /// When the fault is to end.
    until_s: Option<f64>,
}

impl Possible<'_> {
    /// For a fault that ends at `until_s`, beside those that last.
    pub fn new<'a>(
        conditions: &'a [Condition],
        active: &'a [Active],
        until_s: Option<f64>,
    ) -> Possible<'a> {
        Possible {
            conditions,
            active,
            until_s,
        }
    }

    /// Nothing happens to processes that do not run, nobody starts on a full disk, and no
    /// majority is down, unless all fall at once.
    pub fn of(&self, effects: Vec<Effect>) -> Vec<Effect> {
        let mut may_fall = self.may_fall(effects.len());
        let mut fall = |site: usize| {
            let may = self.is_up(site) && self.will_have_room(site) && may_fall > 0;
            may_fall -= usize::from(may);
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

    fn may_fall(&self, effects: usize) -> usize {
        let n = self.conditions.len();
        let is_down = |found: &&Condition| matches!(found.life, Life::Down(_) | Life::Ending);
        let down = self.conditions.iter().filter(is_down).count();
        match effects == n {
            true => n,
            false => (n - (n / 2 + 1)).saturating_sub(down),
        }
    }

    fn is_up(&self, site: usize) -> bool {
        self.conditions[site].life == Life::Up
    }

    fn has_opened(&self, site: usize) -> bool {
        let since = SystemTime::now().duration_since(self.conditions[site].since);
        self.is_up(site) && since.is_ok_and(|since| since >= OPENED)
    }

    /// Whether the disk has room when the replica starts again.
    fn will_have_room(&self, site: usize) -> bool {
        let full_until_s = self.full_until(site);
        full_until_s.is_none_or(|full_until_s| self.until_s > Some(full_until_s))
    }

    /// Until when the disk is full, in seconds; `None` if it is not.
    fn full_until(&self, site: usize) -> Option<f64> {
        let full = |fault: &&Active| fault.undo.contains(&Effect::FreeDisk(site));
        self.active.iter().find(full).map(|fault| fault.until_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::local::Why;

    fn conditions(lives: [Life; 5]) -> Vec<Condition> {
        let condition = |life| Condition {
            life,
            since: SystemTime::now() - OPENED,
            process: None,
        };
        lives.into_iter().map(condition).collect()
    }

    fn all_up() -> [Life; 5] {
        [const { Life::Up }; 5]
    }

    #[test]
    fn a_minority_falls_or_all_at_once() {
        let killed = || Life::Down(Why::Killed);
        let mut lives = all_up();
        lives[3] = killed();
        let one_down = conditions(lives);
        let kill = |sites: &[usize]| sites.iter().map(|site| Effect::Kill(*site)).collect();
        let of = |found: &[Condition], sites: &[usize]| {
            Possible::new(found, &[], Some(9.0)).of(kill(sites)).len()
        };
        assert_eq!(of(&one_down, &[0]), 1);
        assert_eq!(of(&one_down, &[3]), 0, "it is down already");
        assert_eq!(of(&one_down, &[0, 1]), 1);
        assert_eq!(of(&one_down, &[0, 1, 2, 3, 4]), 4);
        let mut lives = all_up();
        (lives[3], lives[4]) = (killed(), Life::Ending);
        assert_eq!(of(&conditions(lives), &[0]), 0);
    }

    #[test]
    fn nobody_starts_on_a_full_disk() {
        let up = conditions(all_up());
        let full = [Active::new(5.0, vec![Effect::FreeDisk(2)])];
        let of = |until_s, effect| Possible::new(&up, &full, until_s).of(vec![effect]).len();
        assert_eq!(of(Some(4.0), Effect::Kill(2)), 0);
        assert_eq!(of(Some(6.0), Effect::Kill(2)), 1);
        assert_eq!(of(Some(4.0), Effect::Kill(1)), 1);
        assert_eq!(of(None, Effect::Restart(2)), 0);
        assert_eq!(of(None, Effect::Restart(1)), 1);
        assert_eq!(of(Some(9.0), Effect::FillDisk(2)), 0, "it is full already");
        assert_eq!(of(Some(9.0), Effect::FillDisk(1)), 1);
        let mut starting = conditions(all_up());
        starting[1].since = SystemTime::now();
        let fill = Possible::new(&starting, &[], Some(9.0)).of(vec![Effect::FillDisk(1)]);
        assert_eq!(fill, []);
    }
}
