//! Freshness (oracle 5; §3.6): a read is at least as new as anything that was
//! acknowledged to, or read by, anyone before it began.

use std::collections::{BTreeMap, HashMap};

use client::wire::Outcome;
use client::wire::outcome::Result as Answer;
use foldhash::fast::FixedState;
use leases::Key;

use super::{Verdict, ensure};

pub(super) const NAME: &str = "freshness";

type Version = (u64, u32);

/// See the module. Deletes have no version: keys that were ever deleted are
/// left to the linearizability checker.
#[derive(Debug, Default)]
pub struct Freshness {
    newest: HashMap<Key, Version, FixedState>,
    floors: BTreeMap<u64, (Key, Version)>,
    deleted: std::collections::BTreeSet<Key>,
    /// Answers compared.
    pub checks: u64,
}

impl Freshness {
    /// A read of `key` begins, under a token of the caller's.
    pub fn began(&mut self, token: u64, key: &Key) {
        let floor = self.newest.get(key).copied().unwrap_or_default();
        self.floors.insert(token, (key.clone(), floor));
    }

    /// A delete of `key` begins.
    pub fn deletes(&mut self, key: &Key) {
        self.deleted.insert(key.clone());
    }

    /// A write of `key` was acknowledged.
    pub fn wrote(&mut self, key: &Key, outcome: &Outcome) {
        if let Some(Answer::Written(version)) = &outcome.result {
            self.raise(key, (version.slot, version.index));
        }
    }

    /// The read under `token` was answered.
    ///
    /// # Errors
    /// It is older than what was known before it began.
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
