//! Freshness (oracle 5; §3.6). A read returns a value that is at least as new as every write
//! acknowledged before the read began. The value is also at least as new as every value that any
//! client had received by then.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use leasehold_leases::Key;
use leasehold_wire::Outcome;
use leasehold_wire::outcome::Result as Answer;

use super::{Verdict, ensure};

pub(super) const NAME: &str = "freshness";

type Version = (u64, u32);

/// Oracle that judges the freshness of reads. This oracle does not judge keys that were ever
/// deleted, because deletes have no version. Only the linearizability checker judges these keys.
#[derive(Debug, Default)]
pub struct FreshnessOracle {
    newest: HashMap<Key, Version, FixedState>,
    floors: HashMap<u64, (Key, Version), FixedState>,
    deleted: HashSet<Key, FixedState>,
    /// Number of answers compared.
    pub checks: u64,
}

impl FreshnessOracle {
    /// Records that a read of `key` begins. The caller later identifies the read by `token`.
    pub fn began(&mut self, token: u64, key: &Key) {
        let floor = self.newest.get(key).copied().unwrap_or_default();
        self.floors.insert(token, (key.clone(), floor));
    }

    /// Records that a delete of `key` begins.
    pub fn deletes(&mut self, key: &Key) {
        self.deleted.insert(key.clone());
    }

    /// Records that a write of `key` was acknowledged.
    pub fn wrote(&mut self, key: &Key, outcome: &Outcome) {
        if let Some(Answer::Written(version)) = &outcome.result {
            self.raise(key, (version.slot, version.index));
        }
    }

    /// Judges the answer to the read that the caller identified by `token`.
    ///
    /// # Errors
    /// The answer is older than a version that was known before the read began.
    pub fn read(&mut self, token: u64, outcome: &Outcome, how: &str) -> Verdict {
        let Some((key, floor)) = self.floors.remove(&token) else {
            return Ok(());
        };
        let version = match &outcome.result {
            Some(Answer::Value(value)) => value
                .version
                .map(|version| (version.slot, version.index))
                .unwrap_or_default(),
            Some(Answer::Missing(_)) => Version::default(),
            _ => return Ok(()),
        };
        if self.deleted.contains(&key) {
            return Ok(());
        }
        self.checks += 1;
        ensure!(
            NAME,
            version >= floor,
            "stale read ({how}) of {key:?}: version {version:?}, but {floor:?} was known before \
             it began"
        );
        self.raise(&key, version);
        Ok(())
    }

    fn raise(&mut self, key: &Key, version: Version) {
        match self.newest.get_mut(key) {
            Some(newest) => *newest = version.max(*newest),
            None => {
                self.newest.insert(key.clone(), version);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_wire::Version as Written;

    use super::*;
    use crate::oracle::test_world::key;

    fn at(slot: u64, index: u32) -> Written {
        Written { slot, index }
    }

    fn value(slot: u64, index: u32) -> Outcome {
        Outcome::value("v", at(slot, index))
    }

    /// Returns an oracle for which a write of `a` in slot 7 was acknowledged.
    fn written() -> FreshnessOracle {
        let mut freshness = FreshnessOracle::default();
        freshness.wrote(&key("a"), &Outcome::written(at(7, 1)));
        freshness
    }

    fn reads(freshness: &mut FreshnessOracle, name: &'static str, outcome: &Outcome) -> bool {
        freshness.began(1, &key(name));
        freshness.read(1, outcome, "").is_ok()
    }

    #[test]
    fn a_read_is_as_new_as_what_was_acknowledged_before_it_began() {
        let mut freshness = written();
        for (outcome, good) in [
            (value(6, 9), false),
            (value(7, 0), false),
            (Outcome::missing(), false),
            (value(7, 1), true),
            (value(8, 0), true),
        ] {
            assert_eq!(reads(&mut freshness, "a", &outcome), good, "{outcome:?}");
        }
        assert!(reads(&mut freshness, "b", &Outcome::missing()));
        assert_eq!(freshness.checks, 6);
    }

    #[test]
    fn a_read_is_as_new_as_what_was_read_before_it_began() {
        let mut freshness = written();
        freshness.began(2, &key("a"));
        assert!(reads(&mut freshness, "a", &value(9, 0)));
        assert!(!reads(&mut freshness, "a", &value(8, 0)));
        let beside = freshness.read(2, &value(8, 0), "");
        assert!(beside.is_ok(), "it began before that was known");
    }

    #[test]
    fn keys_that_were_deleted_are_left_to_others() {
        let mut freshness = written();
        freshness.deletes(&key("a"));
        assert!(reads(&mut freshness, "a", &Outcome::missing()));
        assert_eq!(freshness.checks, 0);
    }
}
