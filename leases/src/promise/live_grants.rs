//! The grants in force at one moment, and the tags that follow from them (§3.4).

use smallvec::SmallVec;

use crate::config::KeyView;
use crate::membership::Membership;
use crate::types::{ConfigId, ReplicaId, ReplicaSet};

/// The grants in force at one moment, by configuration.
#[derive(Clone, Debug)]
pub struct LiveGrants {
    /// All replicas during the restart wait, because unknown grants may be in force. `None` at
    /// other times.
    everyone: Option<ReplicaSet>,
    by_config: SmallVec<[(ConfigId, ReplicaSet); 2]>,
}

impl LiveGrants {
    /// Returns the state during the restart wait, in which unknown grants may be in force.
    pub(super) fn unknown(members: Membership) -> LiveGrants {
        LiveGrants {
            everyone: Some(members.voters()),
            by_config: SmallVec::new(),
        }
    }

    /// Collects the grants in force, given as pairs of a holder and a configuration.
    pub(super) fn of(grants: impl Iterator<Item = (ReplicaId, ConfigId)>) -> LiveGrants {
        let mut by_config: SmallVec<[(ConfigId, ReplicaSet); 2]> = SmallVec::new();
        for (holder, granted) in grants {
            match by_config.iter_mut().find(|(config, _)| *config == granted) {
                Some((_, holders)) => holders.insert(holder),
                None => by_config.push((granted, ReplicaSet::one(holder))),
            }
        }
        LiveGrants {
            everyone: None,
            by_config,
        }
    }

    /// Returns the tag with which this replica accepts a batch that writes `keys`: all holders that
    /// must be notified because of a grant in force. The tag covers all configurations, so old and
    /// new grants are respected. During the restart wait (§3.7), the tag contains all replicas. If
    /// a batch writes no key (a no-op, a configuration), its tag is always empty.
    pub fn tag<'a>(&self, mut keys: impl Iterator<Item = KeyView<'a>>) -> ReplicaSet {
        if let Some(everyone) = self.everyone {
            return keys.next().map_or(ReplicaSet::EMPTY, |_| everyone);
        }
        let most = self.most();
        let mut tag = ReplicaSet::EMPTY;
        while tag != most {
            let Some(key) = keys.next() else { break };
            for (config, granted) in &self.by_config {
                tag = tag.union(protected(key, *config, *granted));
            }
        }
        assert!(tag.is_subset(most), "a tag names holders of grants");
        tag
    }

    /// Returns the largest tag that a batch can have.
    fn most(&self) -> ReplicaSet {
        let granted = self.by_config.iter().map(|(_, granted)| *granted);
        granted.fold(ReplicaSet::EMPTY, ReplicaSet::union)
    }
}

/// Returns the replicas in `granted` that hold `key` under `config`. If this replica has forgotten
/// the contents of `config`, returns all of `granted`, because the grants may then cover any key
/// (H14).
fn protected(key: KeyView<'_>, config: ConfigId, granted: ReplicaSet) -> ReplicaSet {
    if key.knows(config) {
        key.holders(config).intersection(granted)
    } else {
        granted
    }
}
