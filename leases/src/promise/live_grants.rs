//! The grants in force at one moment, and the tags that follow from them (§3.4).

use smallvec::SmallVec;

use crate::config::KeyView;
use crate::membership::Membership;
use crate::types::{ConfigId, ReplicaId, ReplicaSet};

/// The grants in force at one moment.
#[derive(Clone, Debug)]
pub struct LiveGrants {
    /// In the restart wait: grants that nobody remembers may be in force.
    everyone: Option<ReplicaSet>,
    by_config: SmallVec<[(ConfigId, ReplicaSet); 2]>,
}

impl LiveGrants {
    /// State in which earlier promises are not known.
    pub(super) fn unknown(members: Membership) -> LiveGrants {
        LiveGrants {
            everyone: Some(members.voters()),
            by_config: SmallVec::new(),
        }
    }

    /// The grants in force, one by one.
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

    /// The tag of an acceptance of a batch that writes `keys`: every holder that a grant in
    /// force entitles to be notified. Old and new configurations are both obeyed: the tag is
    /// the union. During the restart wait (§3.7) it is all replicas. A batch that writes no key
    /// (a no-op, a configuration) always has an empty tag.
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

    /// The largest tag that any batch can have.
    fn most(&self) -> ReplicaSet {
        let granted = self.by_config.iter().map(|(_, granted)| *granted);
        granted.fold(ReplicaSet::EMPTY, ReplicaSet::union)
    }
}

/// Returns those of the `granted` that hold `key` under `config`. A grant may cover any key if
/// its configuration is forgotten here (H14).
fn protected(key: KeyView<'_>, config: ConfigId, granted: ReplicaSet) -> ReplicaSet {
    if key.knows(config) {
        key.holders(config).intersection(granted)
    } else {
        granted
    }
}
