//! Checkpoint of the configurations: the part of [`Configs`] that a replica stores on its disk, and
//! from which it starts again.
//!
//! A checkpoint has one part for the newest configurations, and one row for each listed key. A
//! batch of changes rewrites the first part, and only the rows of keys that have changed. So
//! neither the size of a checkpoint nor the time of a restart depends on the number of
//! configurations ever made.
//!
//! # Configurations that a restart needs
//! A checkpoint keeps only the newest [`FRAMES_SAVED`] configurations, although older ones may be
//! in use when it is made. This is safe, because a restarted replica has forgotten everything that
//! used an older configuration (hazard 65):
//! - Its own grants. Until the longest of them has ended, each of its votes names all replicas.
//! - The promises that it held. It holds no lease until it receives new ones.
//!
//! A new promise may still be under an older configuration, because its grantor lags. A grantor
//! makes no promise under a configuration that it does not keep. If a holder does not keep the
//! configuration of a promise, it assumes that it holds no key under this promise.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::counts::HolderCounts;
use super::frame::Frame;
use super::params::LeaseParams;
use super::policy::Policy;
use super::ranges::RangeMap;
use super::spec::StrategySpec;
use super::{Configs, KeyVersions};
use crate::growing::GrowingIndexMap;
use crate::membership::Membership;
use crate::mutants::{Rule, off};
use crate::types::{ConfigId, Key, ReplicaSet};

/// Maximum number of configurations in a checkpoint. A running replica keeps at least one more. So
/// after a restart, a peer that is three configurations behind gets no promise until it has caught
/// up.
pub const FRAMES_SAVED: usize = 3;

/// Maximum number of rows of forgotten keys that one batch of changes removes. Further rows are
/// removed by later batches, so that the pass that forgets keys causes no large batch. Tests remove
/// few rows at a time, so that restarts find rows that are left.
const REMOVALS_MAX: usize = if cfg!(test) { 3 } else { 4096 };

/// A configuration in a checkpoint, without the holders of listed keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SavedFrame {
    /// Id of the configuration.
    pub id: ConfigId,
    /// Policies of all ranges, in ascending order. Successive configurations with equal policies
    /// share them.
    pub policies: Arc<Vec<SavedPolicy>>,
    /// Replicas that hold no key.
    pub excluded: ReplicaSet,
    /// Durations and drift bound.
    pub params: LeaseParams,
    /// For each replica, the oldest configuration under which it may still receive promises.
    pub oldest: Vec<ConfigId>,
}

/// Policy of a range in a checkpoint. The counts of its listed keys are not stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SavedPolicy {
    /// First key of the range. The range ends where the next one begins.
    pub from: Key,
    /// Strategy of the range.
    pub strategy: StrategySpec,
    /// Holders of keys that are not listed.
    pub defaults: ReplicaSet,
    /// The newest configuration that removed the listed keys of the range.
    pub cleared: ConfigId,
}

/// Changes of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CheckpointChanges {
    /// The newest configurations, in ascending order. They replace those of the checkpoint.
    pub frames: Vec<SavedFrame>,
    /// Rows of keys that replace (`Some`) earlier rows, or that are removed (`None`). Each key
    /// occurs once.
    pub keys: Vec<(Key, Option<KeyVersions>)>,
}

/// Keys for which the rows in the checkpoint differ from the configurations.
#[derive(Clone, Debug, Default)]
pub(super) struct Unsaved {
    /// The newest configuration in the checkpoint.
    saved: ConfigId,
    /// Keys that configurations after `saved` have listed, each with the value false.
    /// [`Configs::take_unsaved`] adds forgotten keys with the value true.
    touched: GrowingIndexMap<Key, bool>,
    /// Keys that were forgotten. Their rows may still be in the checkpoint, and may stay for any
    /// time, because no configuration of the checkpoint sees them.
    forgotten: Vec<Key>,
}

impl Unsaved {
    /// Notes that a configuration lists `key`.
    pub(super) fn touch(&mut self, key: &Key) {
        self.touched.insert_full(key.clone(), false);
    }

    /// Notes that `key` was forgotten.
    pub(super) fn forget(&mut self, key: Key) {
        self.forgotten.push(key);
    }
}

/// Reason why a checkpoint is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CheckpointError(&'static str);

impl Configs {
    /// Restores the configurations of `n` replicas from a checkpoint. Rows that no configuration of
    /// the checkpoint sees are ignored, and later changes of the checkpoint remove them.
    ///
    /// # Errors
    /// Parts of the checkpoint contradict each other.
    pub fn restore(
        n: usize,
        frames: &[SavedFrame],
        keys: impl IntoIterator<Item = (Key, KeyVersions)>,
    ) -> Result<Configs, CheckpointError> {
        check_frames(n, frames)?;
        let mut frames = frames
            .iter()
            .map(Frame::restored)
            .collect::<Result<Vec<_>, _>>()?;
        let newest = frames[frames.len() - 1].id;
        let mut configs = Configs::new(n);
        configs.unsaved.saved = newest;
        let mut changed: Vec<(ConfigId, Vec<Key>)> = frames[1..]
            .iter()
            .map(|frame| (frame.id, Vec::new()))
            .collect();
        for (key, versions) in keys {
            check_versions(n, newest, &versions)?;
            let Some(versions) = frames[0].visible(&key, &versions) else {
                configs.unsaved.forget(key);
                continue;
            };
            for frame in &mut frames {
                frame.count(&key, &versions);
            }
            for (since, _) in &versions[1..] {
                // Each version but the first is of a later configuration than the first frame.
                let at = (since.0 - frames[0].id.0 - 1) as usize;
                changed[at].1.push(key.clone());
            }
            configs.keys.insert_full(key, versions);
        }
        frames.iter_mut().for_each(Frame::derive_universal);
        configs.frames = frames.into();
        configs.changed = changed.into();
        Ok(configs)
    }

    /// Returns the changes that bring a checkpoint up to date; `None` if there are none. The
    /// checkpoint must contain everything that earlier calls have returned.
    ///
    /// Rule H126: a row gets the holders that its key has at the moment of the call. A forgotten
    /// key may be listed again before its row is removed. The row must then stay.
    pub fn take_unsaved(&mut self) -> Option<CheckpointChanges> {
        let newest = self.newest();
        let Unsaved {
            saved,
            touched,
            forgotten,
        } = &mut self.unsaved;
        if *saved == newest && forgotten.is_empty() {
            return None;
        }
        *saved = newest;
        let mut rows = std::mem::take(touched);
        for key in forgotten.drain(forgotten.len().saturating_sub(REMOVALS_MAX)..) {
            rows.insert_full(key, true);
        }
        let first = self.frames.len().saturating_sub(FRAMES_SAVED);
        let oldest = &self.frames[first];
        let row = |(key, was_forgotten): (Key, bool)| {
            let is_removed = was_forgotten && off(Rule::H126Relisted);
            let versions = self.keys.get(&key).filter(|_| !is_removed);
            let visible = versions.and_then(|versions| oldest.visible(&key, versions));
            (key, visible)
        };
        Some(CheckpointChanges {
            frames: saved_frames(self.frames.range(first..)),
            keys: rows.into_entries().into_iter().map(row).collect(),
        })
    }

    /// Returns the number of rows that configurations have changed since the last call of
    /// [`take_unsaved`](Self::take_unsaved).
    pub fn unsaved_len(&self) -> usize {
        self.unsaved.touched.len()
    }
}

fn saved_frames<'a>(frames: impl Iterator<Item = &'a Frame>) -> Vec<SavedFrame> {
    let mut saved: Vec<SavedFrame> = Vec::new();
    for frame in frames {
        let mut frame = frame.saved();
        if let Some(before) = saved.last()
            && before.policies == frame.policies
        {
            frame.policies = before.policies.clone();
        }
        saved.push(frame);
    }
    saved
}

impl Frame {
    fn saved(&self) -> SavedFrame {
        let policies = self.policies.iter().map(|(range, policy)| SavedPolicy {
            from: range.from().clone(),
            strategy: policy.strategy.clone(),
            defaults: policy.defaults,
            cleared: policy.cleared,
        });
        SavedFrame {
            id: self.id,
            policies: Arc::new(policies.collect()),
            excluded: self.excluded,
            params: self.params,
            oldest: self.oldest.to_vec(),
        }
    }

    /// Returns the configuration of a checkpoint. The caller must count the listed keys, and then
    /// derive the replicas that hold every key.
    fn restored(saved: &SavedFrame) -> Result<Frame, CheckpointError> {
        let policies = restored_policies(&saved.policies)?;
        let cleared = policies.iter().map(|(_, policy)| policy.cleared).max();
        let wants_demand = policies
            .iter()
            .any(|(_, policy)| policy.strategy.wants_demand());
        // Rule H41 also holds after a restart.
        let oldest = |id: &ConfigId| {
            if off(Rule::H41Restored) {
                ConfigId(0)
            } else {
                *id
            }
        };
        Ok(Frame {
            id: saved.id,
            cleared: cleared.unwrap_or_default(),
            policies: Arc::new(policies),
            wants_demand,
            counted_twice: false,
            universal: ReplicaSet::EMPTY,
            excluded: saved.excluded,
            params: saved.params,
            oldest: saved.oldest.iter().map(oldest).collect(),
        })
    }

    /// Includes a key in the counts of listed keys, if this configuration lists the key.
    ///
    /// Rule H90: the counts include all listed keys before they are used. Otherwise a replica would
    /// take itself for a holder of every possible key, although it does not hold this one.
    fn count(&mut self, key: &[u8], versions: &[(ConfigId, ReplicaSet)]) {
        let holders = self.listed(key, versions);
        if let Some(holders) = holders
            && !off(Rule::H90Counts)
        {
            let policy = Arc::make_mut(&mut self.policies).get_mut(key);
            policy.listed.add(holders);
        }
    }

    /// Returns the versions of a key that this configuration or a later one may see; `None` if
    /// there are none.
    ///
    /// Rule H65: each configuration of a checkpoint keeps its contents. A promise under an older
    /// one covers the keys as they were assigned then.
    fn visible(&self, key: &[u8], versions: &[(ConfigId, ReplicaSet)]) -> Option<KeyVersions> {
        let at = |id| versions.iter().rposition(|(since, _)| *since <= id);
        let first = if off(Rule::H65Versions) {
            versions.len().saturating_sub(1)
        } else {
            at(self.id).unwrap_or(0)
        };
        let cleared = self.policy(key).cleared;
        let seen = versions[first..].iter().copied();
        let seen: KeyVersions = seen.filter(|(since, _)| *since >= cleared).collect();
        (!seen.is_empty()).then_some(seen)
    }
}

/// Rule H69 also holds after a restart: listed keys that a configuration removed stay removed. The
/// rows of these keys may still be in the checkpoint.
fn restored_policies(saved: &[SavedPolicy]) -> Result<RangeMap<Policy>, CheckpointError> {
    let policy = |saved: &SavedPolicy| {
        let cleared = if off(Rule::H69Restored) {
            ConfigId(0)
        } else {
            saved.cleared
        };
        let policy = Policy {
            strategy: saved.strategy.clone(),
            defaults: saved.defaults,
            cleared,
            listed: HolderCounts::default(),
        };
        (saved.from.clone(), policy)
    };
    RangeMap::from_starts(saved.iter().map(policy).collect())
        .map_err(|_| CheckpointError("its ranges do not cover each key once"))
}

fn ensure(holds: bool, problem: &'static str) -> Result<(), CheckpointError> {
    if holds {
        Ok(())
    } else {
        Err(CheckpointError(problem))
    }
}

/// Checks the configurations of a checkpoint of `n` replicas.
///
/// # Errors
/// They contradict each other, or the configuration log cannot lead to them.
pub fn check_frames(n: usize, frames: &[SavedFrame]) -> Result<(), CheckpointError> {
    ensure(!frames.is_empty(), "it has no configuration")?;
    ensure(
        frames.len() <= FRAMES_SAVED,
        "it has too many configurations",
    )?;
    let voters = Membership::fixed(n).voters();
    for frame in frames {
        let policies = restored_policies(&frame.policies)?;
        ensure(policies.fits(), "it has too many ranges")?;
        let mut sets = policies.iter().map(|(_, policy)| policy.defaults);
        let are_members = sets.all(|set| set.is_subset(voters)) && frame.excluded.is_subset(voters);
        ensure(are_members, "a replica is no member")?;
        let mut cleared = policies.iter().map(|(_, policy)| policy.cleared);
        ensure(
            cleared.all(|cleared| cleared <= frame.id),
            "a range was cleared by a later configuration",
        )?;
        ensure(
            frame.oldest.len() == n,
            "it is of another number of replicas",
        )?;
        ensure(
            frame.oldest.iter().all(|oldest| *oldest <= frame.id),
            "a replica was excluded by a later configuration",
        )?;
        ensure(frame.params.is_usable(), "the durations cannot work")?;
    }
    for (before, after) in frames.iter().zip(&frames[1..]) {
        check_follows(before, after)?;
    }
    Ok(())
}

fn check_follows(before: &SavedFrame, after: &SavedFrame) -> Result<(), CheckpointError> {
    let is_next = before.id.0.checked_add(1) == Some(after.id.0);
    ensure(is_next, "a configuration is missing")?;
    let mut oldest = before.oldest.iter().zip(&after.oldest);
    ensure(
        oldest.all(|(then, now)| then <= now),
        "an exclusion was forgotten",
    )?;
    let (then, now) = (
        restored_policies(&before.policies)?,
        restored_policies(&after.policies)?,
    );
    let mut starts = then.starts().chain(now.starts());
    ensure(
        starts.all(|key| then.get(key).cleared <= now.get(key).cleared),
        "a cleared range was forgotten",
    )
}

/// Checks the row of a listed key in a checkpoint of `n` replicas. `newest` is the newest
/// configuration of the checkpoint.
///
/// # Errors
/// No configuration up to `newest` can have listed the key in this way.
pub fn check_versions(
    n: usize,
    newest: ConfigId,
    versions: &[(ConfigId, ReplicaSet)],
) -> Result<(), CheckpointError> {
    ensure(!versions.is_empty(), "it names no holders")?;
    let rises = versions.is_sorted_by(|a, b| a.0 < b.0) && versions[0].0 > ConfigId(0);
    ensure(rises, "its configurations do not rise")?;
    let is_known = versions.iter().all(|(since, _)| *since <= newest);
    ensure(is_known, "it is of a later configuration")?;
    let voters = Membership::fixed(n).voters();
    let mut holders = versions.iter().map(|(_, holders)| holders);
    ensure(
        holders.all(|holders| holders.is_subset(voters)),
        "a holder is no member",
    )
}
