//! Links of the WAN with faults. A link may have several faults at the same time, and each of them
//! ends independently of the others.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;

use crate::fault::LinkState;
use crate::wan::{LinkSettings, Wan};

/// An emulated WAN, and the current faults of the links.
#[derive(Debug)]
pub(super) struct WanLinks {
    wan: Wan,
    failing: BTreeMap<(usize, usize), FailingLink>,
}

#[derive(Debug)]
struct FailingLink {
    /// Settings of the link without faults.
    sound: LinkSettings,
    faults: Vec<LinkState>,
}

impl WanLinks {
    pub fn new(wan: Wan) -> WanLinks {
        WanLinks {
            wan,
            failing: BTreeMap::new(),
        }
    }

    pub fn wan(&self) -> &Wan {
        &self.wan
    }

    /// Adds a fault to the link from one site to another. Does nothing if both are the same site.
    pub fn fail(&mut self, from: usize, to: usize, how: LinkState) {
        let Some(link) = self.wan.link(from, to) else {
            return;
        };
        let failing = self.failing.entry((from, to));
        let failing = failing.or_insert_with(|| FailingLink {
            sound: link.settings(),
            faults: Vec::new(),
        });
        failing.faults.push(how);
        link.change(|settings| *settings = failing.settings());
    }

    /// Removes a fault from a link.
    ///
    /// # Errors
    /// If the link does not have this fault.
    pub fn heal(&mut self, from: usize, to: usize, how: LinkState) -> anyhow::Result<()> {
        let Some(link) = self.wan.link(from, to) else {
            return Ok(());
        };
        let failing = self.failing.get_mut(&(from, to));
        let place = |failing: &FailingLink| failing.faults.iter().position(|fault| *fault == how);
        let found = failing.and_then(|failing| Some((place(failing)?, failing)));
        let Some((place, failing)) = found else {
            bail!("the link does not fail so, and there is nothing to mend");
        };
        failing.faults.remove(place);
        link.change(|settings| *settings = failing.settings());
        if failing.faults.is_empty() {
            self.failing.remove(&(from, to));
        }
        Ok(())
    }
}

impl FailingLink {
    /// Returns the settings of the link with all its faults.
    fn settings(&self) -> LinkSettings {
        let all = LinkState::of(self.faults.iter().copied());
        let sound = &self.sound;
        LinkSettings {
            cut: sound.cut || all.cut,
            delay: sound.delay + Duration::from_secs_f64(all.delay_ms.max(0.0) / 1e3),
            loss: 1.0 - (1.0 - sound.loss) * (1.0 - all.loss),
            ..sound.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    fn links() -> WanLinks {
        let topology = Topology::paper();
        let nobody = ([127, 0, 0, 1], 9).into();
        let settings = |rtt_ms| LinkSettings {
            loss: 0.5,
            ..LinkSettings::of_round_trip_ms(rtt_ms)
        };
        WanLinks::new(Wan::start_with(&topology, &vec![nobody; topology.len()], settings).unwrap())
    }

    fn settings(links: &WanLinks, from: usize, to: usize) -> LinkSettings {
        links.wan().link(from, to).unwrap().settings()
    }

    #[test]
    fn faults_of_a_link_add_up_and_each_is_mended_by_itself() {
        let mut links = links();
        let (sound, back) = (settings(&links, 0, 1), settings(&links, 1, 0));
        let cut = LinkState {
            cut: true,
            ..LinkState::default()
        };
        let slow = LinkState {
            delay_ms: 40.0,
            ..LinkState::default()
        };
        let lossy = LinkState {
            loss: 0.5,
            ..LinkState::default()
        };
        for fault in [cut, cut, slow, slow, lossy] {
            links.fail(0, 1, fault);
        }
        let failing = settings(&links, 0, 1);
        assert!(failing.cut);
        assert_eq!(failing.delay, sound.delay + Duration::from_millis(80));
        assert_eq!(failing.loss, 0.75, "its own, and that of the fault");
        links.heal(0, 1, cut).unwrap();
        assert!(settings(&links, 0, 1).cut, "the other cut is still there");
        links.heal(0, 1, cut).unwrap();
        assert!(!settings(&links, 0, 1).cut);
        links.heal(0, 1, slow).unwrap();
        links.heal(0, 1, lossy).unwrap();
        links.heal(0, 1, slow).unwrap();
        assert_eq!(settings(&links, 0, 1), sound, "as it was");
        assert_eq!(
            settings(&links, 1, 0),
            back,
            "the other way was never touched"
        );
    }

    #[test]
    fn what_did_not_fail_cannot_be_mended() {
        let mut links = links();
        let cut = LinkState {
            cut: true,
            ..LinkState::default()
        };
        assert!(links.heal(0, 1, cut).is_err());
        links.fail(0, 1, cut);
        assert!(links.heal(1, 0, cut).is_err());
        links.heal(0, 1, cut).unwrap();
        assert!(links.heal(0, 1, cut).is_err());
    }
}
