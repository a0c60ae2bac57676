//! Writing of checkpoints. A large checkpoint is written in parts, and other writes proceed between
//! them.

use bytes::Bytes;
use leasehold_leases::{Key, Slot, StrategySpec};
use leasehold_replica::Settings;
use leasehold_replica::action::{Checkpoint, Record, StoredValue};
use leasehold_wire::command::Op;
use leasehold_wire::{Field, Version};

use super::backlog::{VALUE_BYTES, fields, nothing_held};
use super::cluster::{Cluster, write};

const PIECE_BYTES: usize = 1 << 20;
/// Size of each large record, in bytes.
const RECORD_BYTES: usize = 200_000;
/// Number of large records. Together they are as large as several pieces of a checkpoint.
const RECORDS: u64 = 20;

/// Returns a cluster with large records, which the checkpoints of all replicas contain. Merges can
/// change the records later.
fn with_records() -> Cluster {
    let settings = Settings {
        checkpoint_piece_bytes: PIECE_BYTES,
        ..nothing_held()
    };
    let mut cluster = Cluster::with(settings);
    for client in 1..=RECORDS {
        let record = fields(1, RECORD_BYTES);
        cluster.ask(0, write(client, 1, Op::put_fields(key(client), record)));
    }
    cluster.pass(2000);
    cluster
}

fn key(client: u64) -> String {
    format!("record {client}")
}

/// Changes a few bytes of every large record.
fn merge_into_all(cluster: &mut Cluster, sequence: u64) {
    for client in 1..=RECORDS {
        let field = Field {
            name: "short".into(),
            value: sequence.to_string().into(),
        };
        let merge = Op::put_fields(key(client), vec![field]);
        cluster.ask(0, write(client, sequence, merge));
    }
}

/// Returns the parts of the state that `node` has handed to its disk since `cluster.written` had
/// the length `since`: values written in advance, and checkpoints.
fn handed_over(
    cluster: &Cluster,
    node: usize,
    since: usize,
) -> (Vec<StagedEntries>, Vec<Checkpoint>) {
    let records = cluster.written[since..].iter();
    let (mut staged, mut checkpoints) = (Vec::new(), Vec::new());
    for (_, record) in records.filter(|(at, _)| *at == node) {
        match record {
            Record::Staged(values) => staged.push(values.clone()),
            Record::Checkpoint(checkpoint) => checkpoints.push(checkpoint.clone()),
            _ => {}
        }
    }
    (staged, checkpoints)
}

type StagedEntries = Vec<(Key, StoredValue)>;

/// Whether `node` is in the middle of a checkpoint. This is so if the newest state that it handed
/// to its disk is a part written in advance.
fn is_staging(cluster: &Cluster, node: usize) -> bool {
    let of_node = cluster.written.iter().filter(|(at, _)| *at == node);
    let newest = of_node.rev().find_map(|(_, record)| match record {
        Record::Staged(_) => Some(true),
        Record::Checkpoint(_) => Some(false),
        _ => None,
    });
    newest == Some(true)
}

/// Returns a cluster in which replica 2 has handed the first part of a checkpoint to its disk, and
/// the disk accepts no writes. The returned function counts the parts of this checkpoint that
/// replica 2 has handed over so far.
fn with_a_part_on_its_way() -> (Cluster, impl Fn(&Cluster) -> usize) {
    let mut cluster = with_records();
    cluster.pass(1000);
    let since = cluster.written.len();
    merge_into_all(&mut cluster, 2);
    cluster.stall(2);
    let parts = move |cluster: &Cluster| handed_over(cluster, 2, since).0.len();
    cluster.pass_until(2000, "a checkpoint is begun", |cluster| parts(cluster) == 1);
    (cluster, parts)
}

fn bytes<'a>(values: impl IntoIterator<Item = &'a StoredValue>) -> usize {
    values.into_iter().map(|stored| stored.value.len()).sum()
}

/// An entry that is accepted during a checkpoint waits for the write of one part, not for the
/// entire checkpoint.
#[test]
fn a_large_checkpoint_is_written_in_parts() {
    let mut cluster = with_records();
    let since = cluster.written.len();
    merge_into_all(&mut cluster, 2);
    cluster.pass(2000);
    for node in 0..3 {
        let (staged, checkpoints) = handed_over(&cluster, node, since);
        let changed = |checkpoint: &&Checkpoint| checkpoint.entries.len() as u64 == RECORDS;
        let checkpoint = checkpoints.iter().find(changed).expect("all have changed");
        for part in &staged {
            let bytes = bytes(part.iter().map(|(_, stored)| stored));
            assert!(bytes <= PIECE_BYTES, "{bytes} in a part");
        }
        let ahead: Vec<_> = staged.iter().flatten().collect();
        let entries = checkpoint.entries.iter();
        let entries = entries.map(|(key, stored)| (key.clone(), stored.clone().unwrap()));
        let mut rest: Vec<_> = entries.collect();
        for value in ahead {
            let at = rest.iter().position(|entry| entry == value);
            rest.remove(at.expect("each is of the checkpoint, once"));
        }
        let rest = bytes(rest.iter().map(|(_, stored)| stored));
        assert!(rest <= PIECE_BYTES, "{rest} beside the parts");
    }
}

/// Entries that a replica executes while the parts of a checkpoint are written are not in this
/// checkpoint. The replica ends, and starts from the checkpoint and the log above it.
#[test]
pub fn h86_a_checkpoint_in_parts_holds_the_state_of_one_slot() {
    let mut cluster = with_records();
    cluster.pass(1000);
    let since = cluster.written.len();
    merge_into_all(&mut cluster, 2);
    cluster.stall(2);
    let parts = |cluster: &Cluster| handed_over(cluster, 2, since);
    cluster.pass_until(2000, "it is begun", |cluster| !parts(cluster).0.is_empty());
    let begun = cluster.node(2).executed();
    merge_into_all(&mut cluster, 3);
    assert!(cluster.node(2).executed() > begun);
    cluster.unstall(2);
    cluster.pass_until(2000, "it is written", |cluster| {
        !parts(cluster).1.is_empty()
    });
    let (_, checkpoints) = parts(&cluster);
    for (key, stored) in &checkpoints[0].entries {
        let Version { slot, .. } = stored.as_ref().expect("nothing is deleted").version;
        assert!(Slot(slot) <= begun, "{key:?} of slot {slot}");
    }
    cluster.crash(2);
    cluster.start(2);
    cluster.pass(5000);
    cluster.assert_agreement();
}

/// After a crash between the parts, the previous checkpoint is in force.
#[test]
fn a_replica_that_ends_within_a_checkpoint_begins_with_the_one_before() {
    let mut cluster = with_records();
    cluster.pass(1000);
    merge_into_all(&mut cluster, 2);
    cluster.stall(2);
    cluster.pass_until(2000, "a checkpoint is begun", |cluster| {
        is_staging(cluster, 2)
    });
    // The disk rests for as long before the next part.
    cluster.pass(10);
    cluster.unstall(2);
    assert!(is_staging(&cluster, 2));
    cluster.crash(2);
    cluster.start(2);
    cluster.pass(5000);
    cluster.assert_agreement();
}

/// Other writes can proceed between two parts.
#[test]
fn the_disk_rests_between_parts_for_twice_as_long_as_each_took() {
    let (mut cluster, parts) = with_a_part_on_its_way();
    cluster.pass(10);
    cluster.unstall(2);
    cluster.pass(19);
    assert_eq!(parts(&cluster), 1);
    cluster.pass(1);
    assert!(parts(&cluster) > 1);
}

/// With pauses between the parts, the values that change in the meantime would make the next
/// checkpoint long.
#[test]
fn parts_of_a_checkpoint_follow_at_once_if_much_has_changed() {
    let (mut cluster, parts) = with_a_part_on_its_way();
    let small = (100..1200).map(|client| write(client, 1, Op::put(format!("k{client}"), "v")));
    cluster.ask_together(0, small.collect());
    cluster.pass(10);
    cluster.unstall(2);
    cluster.pass(1);
    assert!(parts(&cluster) > 2, "{} parts", parts(&cluster));
}

/// Values that are replaced within a second are mostly written only once.
#[test]
fn a_value_that_is_soon_replaced_is_in_no_checkpoint() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.pass(1000);
    let since = cluster.written.len();
    write_large(&mut cluster, |_| "k".into());
    cluster.pass(2000);
    for node in 0..3 {
        let (staged, _) = handed_over(&cluster, node, since);
        let values = staged.iter().flatten().count();
        assert!((1..=4).contains(&values), "{values} at replica {node}");
    }
}

/// Writes 20 MiB within 20 ms.
fn write_large(cluster: &mut Cluster, key: impl Fn(u64) -> String) {
    for client in 1..=20 {
        let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
        cluster.ask(0, write(client, 1, Op::put(key(client), value)));
        cluster.pass(1);
    }
}

/// A replica that restarts keeps all entries above the checkpoint in memory, and a leader that
/// restarts proposes them again.
#[test]
fn little_is_above_a_checkpoint_however_fast_large_values_are_written() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.pass(1000);
    let since = cluster.written.len();
    write_large(&mut cluster, |client| format!("k{client}"));
    for node in 0..3 {
        let (_, checkpoints) = handed_over(&cluster, node, since);
        let newest = checkpoints.last().expect("one is written").executed;
        let above = cluster.node(node).executed().0 - newest.0;
        assert!(above <= 8, "{above} MiB at replica {node}");
    }
}

/// While a part waits for a slow disk, many entries are written above the last checkpoint. So the
/// next parts follow without a pause.
#[test]
fn the_disk_rests_less_the_more_is_above_the_last_checkpoint() {
    let (mut cluster, parts) = with_a_part_on_its_way();
    for client in 100..108 {
        let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
        cluster.ask(0, write(client, 1, Op::put("k", value)));
    }
    cluster.pass(10);
    cluster.unstall(2);
    cluster.pass(11);
    assert!(parts(&cluster) > 1, "half of 20 ms");
}

/// A slow disk receives as much of the checkpoint as of the log. With smaller parts, the checkpoint
/// would never catch up with the log.
#[test]
fn a_part_is_as_large_as_what_waits_for_the_disk() {
    let mut cluster = with_records();
    cluster.pass(1000);
    let since = cluster.written.len();
    merge_into_all(&mut cluster, 2);
    cluster.stall(2);
    let parts = |cluster: &Cluster| -> Vec<usize> {
        let (staged, _) = handed_over(cluster, 2, since);
        let of_part = |part: &StagedEntries| bytes(part.iter().map(|(_, stored)| stored));
        staged.iter().map(of_part).collect()
    };
    cluster.pass_until(2000, "a checkpoint is begun", |cluster| {
        parts(cluster).len() == 1
    });
    cluster.pass(10);
    cluster.unstall(2);
    cluster.stall(2);
    for client in 100..102 {
        let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
        cluster.ask(0, write(client, 1, Op::put("k", value)));
    }
    cluster.pass_until(20, "the next part", |cluster| parts(cluster).len() == 2);
    let parts = parts(&cluster);
    let most = 2 * VALUE_BYTES;
    assert!(parts[0] <= PIECE_BYTES, "{parts:?}");
    assert!(
        (most - RECORD_BYTES..=most).contains(&parts[1]),
        "{parts:?}"
    );
}
