//! Encoder and decoder of the checkpoint of configurations.

use std::sync::Arc;

use bytes::Bytes;
use leasehold_leases::config::{FRAMES_SAVED, KeyVersions, RANGES_MAX, SavedFrame, SavedPolicy};
use leasehold_leases::{ConfigId, ReplicaSet};
use prost::Message as _;

use super::check::{CodecResult, REPLICA_MAX, at_most, consistent, number, present};
use super::proto;
use super::value::{KEY_MAX, get_params, get_strategy, put_params, put_strategy};
use crate::action::ConfigFrames;

/// Encodes the newest configurations for the disk. Policies that a configuration shares with the
/// one before it are encoded only once.
pub fn encode_frames(saved: &ConfigFrames, out: &mut Vec<u8>) {
    let mut frames = Vec::new();
    let mut before: Option<&Arc<Vec<SavedPolicy>>> = None;
    for frame in &saved.frames {
        let repeats = before.is_some_and(|before| *before == frame.policies);
        let policies = frame.policies.iter().filter(|_| !repeats);
        frames.push(proto::ConfigFrame {
            id: frame.id.0,
            policies: policies.map(put_policy).collect(),
            excluded: frame.excluded.0,
            params: Some(put_params(&frame.params)),
            oldest: frame.oldest.iter().map(|id| id.0).collect(),
        });
        before = Some(&frame.policies);
    }
    let encoded = proto::ConfigFrames {
        configured: saved.configured,
        frames,
    };
    encoded.encode_raw(out);
}

/// Decodes the newest configurations: the inverse of [`encode_frames`]. Whether they fit together
/// is not checked here.
///
/// # Errors
/// Any [`CodecError`](super::CodecError) except `TooLong`. The error names the field at fault.
pub fn decode_frames(encoded: Bytes) -> CodecResult<ConfigFrames> {
    let found = proto::ConfigFrames::decode(encoded)?;
    at_most("frames", found.frames.len() as u64, FRAMES_SAVED as u64)?;
    let mut frames: Vec<SavedFrame> = Vec::new();
    for frame in found.frames {
        let mut next = get_frame(frame)?;
        if next.policies.is_empty() {
            let before = frames.last().map(|before| before.policies.clone());
            next.policies = present("frames[].policies", before)?;
        }
        frames.push(next);
    }
    Ok(ConfigFrames {
        configured: found.configured,
        frames,
    })
}

fn get_frame(frame: proto::ConfigFrame) -> CodecResult<SavedFrame> {
    let ranges = frame.policies.len() as u64;
    at_most("frames[].policies", ranges, RANGES_MAX as u64)?;
    let policies = frame.policies.into_iter().map(get_policy);
    let replicas = frame.oldest.len() as u64;
    at_most("frames[].oldest", replicas, REPLICA_MAX + 1)?;
    let oldest = frame.oldest.into_iter();
    let oldest = oldest.map(|id| number("frames[].oldest[]", id).map(ConfigId));
    Ok(SavedFrame {
        id: ConfigId(number("frames[].id", frame.id)?),
        policies: Arc::new(policies.collect::<CodecResult<_>>()?),
        excluded: ReplicaSet(frame.excluded),
        params: get_params(present("frames[].params", frame.params)?)?,
        oldest: oldest.collect::<CodecResult<_>>()?,
    })
}

fn put_policy(policy: &SavedPolicy) -> proto::RangePolicy {
    proto::RangePolicy {
        from: policy.from.clone(),
        strategy: Some(put_strategy(&policy.strategy)),
        defaults: policy.defaults.0,
        cleared: policy.cleared.0,
    }
}

fn get_policy(policy: proto::RangePolicy) -> CodecResult<SavedPolicy> {
    at_most("policies[].from", policy.from.len() as u64, KEY_MAX)?;
    Ok(SavedPolicy {
        from: policy.from,
        strategy: get_strategy(present("policies[].strategy", policy.strategy)?)?,
        defaults: ReplicaSet(policy.defaults),
        cleared: ConfigId(number("policies[].cleared", policy.cleared)?),
    })
}

/// Encodes the holders of a listed key for the disk.
pub fn encode_listed(versions: &KeyVersions, out: &mut Vec<u8>) {
    let version = |(since, holders): &(ConfigId, ReplicaSet)| proto::KeyVersion {
        since: since.0,
        holders: holders.0,
    };
    let encoded = proto::ListedKey {
        versions: versions.iter().map(version).collect(),
    };
    encoded.encode_raw(out);
}

/// Decodes the holders of a listed key: the inverse of [`encode_listed`].
///
/// # Errors
/// Any [`CodecError`](super::CodecError) except `TooLong`. The error names the field at fault.
pub fn decode_listed(encoded: Bytes) -> CodecResult<KeyVersions> {
    let found = proto::ListedKey::decode(encoded)?;
    consistent(
        !found.versions.is_empty(),
        "listed.versions",
        "there are none",
    )?;
    let version = |version: proto::KeyVersion| {
        let since = ConfigId(number("listed.versions[].since", version.since)?);
        Ok((since, ReplicaSet(version.holders)))
    };
    found.versions.into_iter().map(version).collect()
}
