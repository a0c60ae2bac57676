//! Reads at the leader, which holds leases on all keys, and reads at a replica without leases.
//! Reads at a replica without leases go through another replica or through the log.

use leasehold_wire::command::Op;
use leasehold_wire::{
    COMMAND_BYTES_MAX, COMMAND_PARTS_MAX, ErrorCode, KEY_BYTES_MAX, SCAN_ENTRIES_MAX,
    VALUE_BYTES_MAX,
};

use super::{BATCH, Case, FOLLOWER, KEYS, bytes, key, long_key, sizes};
use crate::cluster::LEADER;

/// Size of each value in scans with large entries.
const SCANNED_BYTES: usize = 4 << 10;
/// Maximum number of bytes of an entry in addition to the bytes of its key and its value.
const ENTRY_BYTES: usize = 32;

pub(super) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for replica in [LEADER, FOLLOWER] {
        all.extend(
            sizes(VALUE_BYTES_MAX)
                .into_iter()
                .map(|size| get(size, replica)),
        );
        all.extend(
            sizes(KEY_BYTES_MAX)
                .into_iter()
                .map(|size| get_absent(size, replica)),
        );
        for size in sizes(COMMAND_PARTS_MAX) {
            all.push(multi_get(size, replica, true));
            all.push(multi_get(size, replica, false));
        }
        let longest = COMMAND_BYTES_MAX / (KEY_BYTES_MAX + ENTRY_BYTES);
        let longest = longest.min(COMMAND_PARTS_MAX);
        all.extend(
            sizes(longest)
                .into_iter()
                .map(|size| multi_get_long_keys(size, replica)),
        );
        all.extend(
            sizes(SCAN_ENTRIES_MAX as usize)
                .into_iter()
                .map(|size| scan(size, replica)),
        );
        // Answers leave the same part of a frame unused as commands do.
        let most = COMMAND_BYTES_MAX / (SCANNED_BYTES + 4 * ENTRY_BYTES);
        all.extend(
            sizes(most)
                .into_iter()
                .map(|size| scan_bytes(size, replica)),
        );
        all.push(scan_nothing(replica));
    }
    all.extend([refused_get(), refused_multi_get(), refused_put()]);
    all
}

/// Returns the name for reads at `replica`: `at_the_leader` if the replica is the leader, otherwise
/// `elsewhere`.
fn named(replica: usize, at_the_leader: &'static str, elsewhere: &'static str) -> &'static str {
    if replica == LEADER {
        at_the_leader
    } else {
        elsewhere
    }
}

fn get(size: usize, replica: usize) -> Case {
    let key = |number| format!("get-{size}-{number}");
    let values = (0..BATCH).map(|number| Op::put(key(number), bytes(size)));
    let ops = (0..BATCH).map(|number| Op::get(key(number)));
    let kind = named(replica, "get", "elsewhere-get");
    Case::new(kind, size, "bytes of the value", 1, size)
        .round_robin(ops.collect())
        .prepared(values.collect())
        .at(replica)
}

fn get_absent(size: usize, replica: usize) -> Case {
    let ops = (0..BATCH).map(|number| Op::get(long_key("none", number, size)));
    let kind = named(replica, "get-absent", "elsewhere-get-absent");
    Case::new(kind, size, "bytes of the key", 1, size)
        .round_robin(ops.collect())
        .at(replica)
}

fn multi_get(size: usize, replica: usize, are_present: bool) -> Case {
    let ops = (0..BATCH).map(|number| {
        let one = |entry: usize| {
            if are_present {
                key(number * size + entry * 7919)
            } else {
                format!("none-{:06}", number * size + entry * 7919 % KEYS).into()
            }
        };
        Op::multi_get((0..size).map(one).collect())
    });
    let kind = if are_present {
        named(replica, "multi_get", "elsewhere-multi_get")
    } else {
        named(replica, "multi_get-absent", "elsewhere-multi_get-absent")
    };
    Case::new(kind, size, "keys", size, size * 64)
        .round_robin(ops.collect())
        .at(replica)
}

fn multi_get_long_keys(size: usize, replica: usize) -> Case {
    let ops = (0..2).map(|number| {
        let one = |entry| long_key("none", number * size + entry, KEY_BYTES_MAX);
        Op::multi_get((0..size).map(one).collect())
    });
    let kind = named(
        replica,
        "multi_get-long-keys",
        "elsewhere-multi_get-long-keys",
    );
    Case::new(kind, size, "absent keys", size, size * KEY_BYTES_MAX)
        .round_robin(ops.collect())
        .at(replica)
}

fn scan(size: usize, replica: usize) -> Case {
    let from = |number: usize| key(number * (KEYS / BATCH));
    let ops = (0..BATCH).map(|number| Op::scan(from(number), "tiny.", size as u32));
    let kind = named(replica, "scan", "elsewhere-scan");
    Case::new(kind, size, "entries", size, size * 64)
        .round_robin(ops.collect())
        .at(replica)
}

fn scan_bytes(size: usize, replica: usize) -> Case {
    let key = |number: usize| format!("scanned-{size}-{number:04}");
    let entries = (0..size).map(|number| Op::put(key(number), bytes(SCANNED_BYTES)));
    let op = Op::scan(key(0), format!("scanned-{size}."), size as u32);
    let kind = named(replica, "scan-bytes", "elsewhere-scan-bytes");
    Case::new(kind, size, "entries of 4 KiB", size, size * SCANNED_BYTES)
        .round_robin(vec![op])
        .prepared(entries.collect())
        .at(replica)
}

fn scan_nothing(replica: usize) -> Case {
    let kind = named(replica, "scan-nothing", "elsewhere-scan-nothing");
    let op = Op::scan("none-", "none.", SCAN_ENTRIES_MAX);
    Case::new(
        kind,
        SCAN_ENTRIES_MAX as usize,
        "entries allowed, none there",
        1,
        1,
    )
    .round_robin(vec![op])
    .at(replica)
}

fn refused_get() -> Case {
    Case::new("refused-get", 0, "bytes of the key", 1, 1)
        .round_robin(vec![Op::get("")])
        .refused(ErrorCode::BadRequest)
}

fn refused_multi_get() -> Case {
    let size = COMMAND_PARTS_MAX + 1;
    let op = Op::multi_get((0..size).map(key).collect());
    Case::new("refused-multi_get", size, "keys", size, size * 16)
        .round_robin(vec![op])
        .refused(ErrorCode::BadRequest)
}

fn refused_put() -> Case {
    let size = VALUE_BYTES_MAX + 1;
    let op = Op::put("k", bytes(size));
    let mut case = Case::new("refused-put", size, "bytes of the value", 1, size)
        .round_robin(vec![op])
        .refused(ErrorCode::TooLarge);
    case.writes = false;
    case
}
