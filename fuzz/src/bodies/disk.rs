//! Data that a replica reads from its disk when it starts: sealed rows, and their contents.

use bytes::Bytes;
use leasehold_node::store::records::{Column, meta, seal, unseal};
use leasehold_node::store::staged;
use leasehold_replica::codec::{
    CodecError, decode_ballot, decode_entry, decode_frames, decode_listed, decode_position,
    decode_session, decode_stored, encode_ballot, encode_entry, encode_frames, encode_listed,
    encode_position, encode_session, encode_stored, proto,
};
use leasehold_wire::Entry;

use super::{decode_round_trip, peer};
use crate::memory::{self, per_byte};

/// Maximum memory for each byte of a row, in bytes. The limit is the sum of two limits, because the
/// row of a slot contains an envelope's value, and the row of a session contains outcomes.
const PER_BYTE: usize = peer::PER_BYTE + per_byte::<Entry>();

/// Decodes the input as the contents of each kind of row.
pub fn disk_values(input: &[u8]) {
    assert_round_trip(input, decode_entry, |(ballot, value), out| {
        encode_entry(*ballot, value, out);
    });
    assert_round_trip(input, decode_stored, |(stored, staged), out| {
        encode_stored(stored, *staged, out);
    });
    assert_round_trip(input, decode_session, encode_session);
    assert_round_trip(input, decode_position, encode_position);
    assert_round_trip(input, decode_frames, encode_frames);
    assert_round_trip(input, decode_listed, encode_listed);
    assert_round_trip(input, decode_ballot, |ballot, out| {
        encode_ballot(*ballot, out);
    });
    decode_round_trip::<proto::Identity>(input, PER_BYTE);
}

fn assert_round_trip<T: PartialEq + std::fmt::Debug>(
    input: &[u8],
    decode: impl Fn(Bytes) -> Result<T, CodecError>,
    encode: impl Fn(&T, &mut Vec<u8>),
) {
    let Ok(decoded) = memory::sharing(input, PER_BYTE, &decode) else {
        return;
    };
    let mut encoded = Vec::new();
    encode(&decoded, &mut encoded);
    let again = decode(encoded.into()).expect("what was encoded is decoded");
    assert_eq!(again, decoded);
}

/// Decodes a row. The first byte of the input is the length of the row's key. The second byte
/// selects a bit of the row. The body inverts this bit, in order to imitate a faulty disk.
pub fn disk_rows(input: &[u8]) {
    let [length, lost, rest @ ..] = input else {
        return;
    };
    let (key, value) = rest.split_at(rest.len().min(usize::from(*length)));
    for column in Column::ALL {
        let _ = memory::sharing(value, 1, |sealed| unseal(column, key, sealed));
        let sealed = seal(column, key, value);
        let opened = unseal(column, key, Bytes::copy_from_slice(&sealed));
        assert_eq!(opened.as_deref(), Ok(value));
        assert_damage_is_noticed(column, key, sealed, usize::from(*lost));
    }
    if let Some((log, ballot)) = meta::parse_log_start(key) {
        assert_eq!(meta::log_start(log, ballot), key);
    }
    if let Some((staged, version)) = staged::parse_row(key) {
        assert_eq!(staged::row(&staged, version), key);
    }
    if let Some(listed) = meta::parse_listed(key) {
        assert_eq!(meta::listed(listed), key);
    }
    if let Some(replica) = meta::parse_life(key) {
        assert_eq!(meta::life(replica), key);
    }
}

/// Asserts that a damaged row is recognized as damaged. A row is damaged if one of its bits has
/// changed, or if it is in the place of another row.
fn assert_damage_is_noticed(column: Column, key: &[u8], mut sealed: Vec<u8>, lost: usize) {
    let elsewhere = Column::ALL.into_iter().find(|other| *other != column);
    let moved = elsewhere.map(|other| unseal(other, key, Bytes::copy_from_slice(&sealed)));
    assert!(moved.is_none_or(|moved| moved.is_err()));
    let mut renamed = key.to_vec();
    renamed.push(0);
    assert!(unseal(column, &renamed, Bytes::copy_from_slice(&sealed)).is_err());
    let bits = sealed.len() * 8;
    let lost = lost * 257 % bits;
    sealed[lost / 8] ^= 1 << (lost % 8);
    assert!(unseal(column, key, sealed.into()).is_err());
}

pub mod seeds {
    use leasehold_leases::{Ballot, ConfigId, ReplicaId, Slot};
    use leasehold_node::store::records::{Column, meta, seal};
    use leasehold_node::store::staged;
    use leasehold_replica::action::{SessionImage, StoredValue};
    use leasehold_replica::codec::{
        Position, encode_ballot, encode_entry, encode_frames, encode_listed, encode_position,
        encode_session, encode_stored, proto,
    };
    use leasehold_replica::message::LogId;
    use leasehold_wire::Version;
    use prost::Message as _;

    use crate::bodies::samples;

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    const BALLOT: Ballot = Ballot {
        round: 12,
        replica: ReplicaId(3),
    };

    fn version(slot: u64) -> Version {
        Version { slot, index: 5 }
    }

    pub fn disk_values() -> Vec<Vec<u8>> {
        let values = samples::values().into_iter();
        let mut seeds: Vec<Vec<u8>> = values
            .map(|value| encoded(|out| encode_entry(BALLOT, &value, out)))
            .collect();
        let stored = StoredValue {
            value: "value".into(),
            version: version(9),
            created: version(1 << 50),
        };
        for staged in [true, false] {
            seeds.push(encoded(|out| encode_stored(&stored, staged, out)));
        }
        let session = SessionImage {
            acked_below: 3,
            active_ms: 1 << 40,
            results: (3..).zip(samples::outcomes()).collect(),
        };
        seeds.push(encoded(|out| encode_session(&session, out)));
        let position = Position {
            executed: Slot(77),
            config: ConfigId(3),
            log_time_ms: 123_456,
            opens_from_ms: 98_765,
        };
        seeds.push(encoded(|out| encode_position(&position, out)));
        let (frames, rows) = samples::checkpoint();
        seeds.push(encoded(|out| encode_frames(&frames, out)));
        for versions in rows {
            seeds.push(encoded(|out| encode_listed(&versions, out)));
        }
        seeds.push(encoded(|out| encode_ballot(BALLOT, out)));
        let identity = proto::Identity {
            format: 1,
            cluster: "cluster".into(),
            name: "CA".into(),
            replica: 1,
            life: 1 << 60,
            members: ["JP", "CA", "OR"].map(String::from).into(),
        };
        seeds.push(identity.encode_to_vec());
        seeds
    }

    pub fn disk_rows() -> Vec<Vec<u8>> {
        let row = |column, key: &[u8], value: &[u8]| {
            let head = [key.len() as u8, 40];
            [&head, key, &seal(column, key, value)].concat()
        };
        let start = meta::log_start(LogId::Commands, BALLOT);
        let slot = Slot(9).0.to_be_bytes();
        vec![
            row(Column::Meta, &start, &slot),
            row(
                Column::Meta,
                &meta::log_start(LogId::Configs, BALLOT),
                &slot,
            ),
            row(Column::Meta, &meta::life(ReplicaId(63)), &slot),
            row(Column::Meta, &meta::listed(b"key"), b""),
            row(Column::Meta, b"identity", b""),
            row(Column::Log, &slot, &disk_values()[1]),
            row(Column::State, b"key", b"value"),
            row(Column::Staged, &staged::row(b"key", version(9)), b"value"),
            row(Column::Sessions, &[0xFF; 8], b""),
        ]
    }
}
