//! Work that waits for execution, or for a disk that accepts no writes. The amount of such work is
//! bounded, and none of it is lost.

use bytes::Bytes;
use leasehold_leases::{Ballot, ReplicaId, StrategySpec};
use leasehold_replica::action::{ClientHandle, Record};
use leasehold_replica::message::{Message, PerLog, Value};
use leasehold_replica::{BACKLOG_BYTES_MAX, Input, OperatorRequest, Settings};
use leasehold_wire::command::Op;
use leasehold_wire::{Command, Field, KeyValue};

use super::cluster::{Cluster, Packet, RequestToken, accept, between, settings, votes_on, write};

pub const VALUE_BYTES: usize = 1 << 20;
/// Number of writes that the tests send. It is above the maximum number of writes that may wait.
const WRITES: u64 = (BACKLOG_BYTES_MAX / VALUE_BYTES) as u64 + 20;

/// Sends writes with values of a mebibyte, each to a different key.
fn write_much(cluster: &mut Cluster) -> Vec<RequestToken> {
    let value = Bytes::from(vec![b'v'; VALUE_BYTES]);
    let put = |client: u64| Op::put(format!("k{client}"), value.clone());
    let writes = (1..=WRITES).map(|client| cluster.ask(0, write(client, 1, put(client))));
    writes.collect()
}

fn all_done(cluster: &Cluster, writes: &[RequestToken]) -> bool {
    writes.iter().all(|asked| cluster.done(*asked))
}

/// Returns the number of values that `node` has handed to its disk since `cluster.written` had the
/// length `since`.
fn handed_to_disk(cluster: &Cluster, node: usize, since: usize) -> usize {
    let records = cluster.written[since..].iter();
    let of_node = records.filter(|(at, _)| *at == node);
    let large = |record: &Record| match record {
        Record::Accepted { value, .. } => {
            matches!(value, Value::Commands(it) if !it.commands.is_empty())
        }
        _ => false,
    };
    of_node.filter(|(_, record)| large(record)).count()
}

fn refused(cluster: &Cluster, node: usize) -> u64 {
    cluster.counter(node, "refused_backlog")
}

/// Checks that a replica has taken as many values as it may while its disk accepts none: all that
/// fit within the limit, and the one that exceeds it.
fn assert_bounded(values: usize) {
    let fit = BACKLOG_BYTES_MAX / VALUE_BYTES;
    assert!((fit - 1..=fit + 1).contains(&values), "{values} of {fit}");
}

#[test]
fn a_follower_whose_disk_takes_nothing_keeps_a_bounded_backlog_and_fetches_the_rest() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.stall(2);
    let since = cluster.written.len();
    let writes = write_much(&mut cluster);
    cluster.pass_until(20_000, "others commit", |cluster| {
        all_done(cluster, &writes)
    });
    cluster.pass(5000);
    assert_bounded(handed_to_disk(&cluster, 2, since));
    assert!(refused(&cluster, 2) > 0);
    assert!(cluster.node(2).executed() < cluster.node(0).executed());
    let while_full = cluster.sent.len();
    cluster.pass(5000);
    let fetches = cluster.sent[while_full..].iter();
    let fetches = fetches.filter(|(envelope, _)| envelope.message.name() == "Fetch");
    assert_eq!(fetches.count(), 0, "nothing is fetched to be refused");

    cluster.unstall(2);
    let caught_up = |cluster: &Cluster| cluster.node(2).executed() == cluster.node(0).executed();
    cluster.pass_until(20_000, "it has caught up", caught_up);
    cluster.assert_agreement();
    let last = cluster.ask(2, write(WRITES + 1, 1, Op::put("last", "v")));
    cluster.pass_until(20_000, "it takes part", |cluster| cluster.done(last));
}

#[test]
fn a_leader_whose_disk_takes_nothing_proposes_a_bounded_backlog_and_goes_on() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.stall(0);
    let since = cluster.written.len();
    let writes = write_much(&mut cluster);
    cluster.pass(500);
    assert_bounded(handed_to_disk(&cluster, 0, since));
    // The others commit what it proposes, without its vote.
    assert!(writes.iter().any(|asked| cluster.done(*asked)));
    assert!(!all_done(&cluster, &writes));
    cluster.unstall(0);
    cluster.pass_until(20_000, "all are written", |cluster| {
        all_done(cluster, &writes)
    });
}

/// If entries are sent repeatedly, the copies that wait for the disk stay within the limit, too.
#[test]
fn a_majority_whose_disks_take_nothing_keeps_a_bounded_backlog() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    (1..3).for_each(|node| cluster.stall(node));
    let since = cluster.written.len();
    let writes = write_much(&mut cluster);
    cluster.pass(20_000);
    (1..3).for_each(|node| assert_bounded(handed_to_disk(&cluster, node, since)));
    (1..3).for_each(|node| cluster.unstall(node));
    cluster.pass_until(20_000, "all are written", |cluster| {
        all_done(cluster, &writes)
    });
    cluster.pass(3000);
    cluster.assert_agreement();
}

/// Commits all of `writes` in one step, by delivering the missing votes for the first write.
/// Returns the number of slots that the leader executes in this step.
fn execute_at_once(cluster: &mut Cluster, writes: Vec<Command>) -> (Vec<RequestToken>, u64) {
    let before = cluster.node(0).executed();
    let stuck = before.next();
    cluster.hold(move |packet| votes_on(packet, Some(stuck)));
    let asked = writes.into_iter().map(|command| cluster.ask(0, command));
    let asked: Vec<RequestToken> = asked.collect();
    assert_eq!(cluster.node(0).executed(), before);
    let votes = std::mem::take(&mut cluster.held);
    cluster.forget_held();
    let to_leader = votes.into_iter().find(|packet| packet.1.index() == 0);
    cluster.deliver(to_leader.expect("a follower voted"));
    (asked, cluster.node(0).executed().0 - before.0)
}

pub fn fields(count: usize, bytes: usize) -> Vec<Field> {
    let field = |number: usize| Field {
        name: number.to_string().into(),
        value: vec![b'v'; bytes].into(),
    };
    (0..count).map(field).collect()
}

/// Returns settings with which no merge waits at its origin.
pub fn nothing_held() -> Settings {
    let mut settings = settings(3, StrategySpec::None);
    settings.merge_work_max = usize::MAX;
    settings
}

/// Puts a record with `count` fields, and then merges `merged` into it `merges` times. All merges
/// commit in one step. Returns the number of merges that are executed in this step. Checks that the
/// other merges are executed soon afterwards.
fn merged_at_once(count: usize, bytes: usize, merges: u64, merged: &[Field]) -> u64 {
    let mut cluster = Cluster::with(nothing_held());
    let record = fields(count, bytes);
    let put = cluster.ask(0, write(1, 1, Op::put_fields("k", record)));
    cluster.pass(100);
    assert!(cluster.done(put));
    let before = cluster.node(0).executed();
    let merge = |client| write(client, 1, Op::put_fields("k", merged.to_vec()));
    let merges_asked = (2..2 + merges).map(merge).collect();
    let (asked, at_once) = execute_at_once(&mut cluster, merges_asked);
    cluster.pass(1000);
    assert_eq!(cluster.node(0).executed().0 - before.0, merges);
    assert!(asked.iter().all(|asked| cluster.answered(*asked)));
    cluster.assert_agreement();
    at_once
}

/// The time of a merge is proportional to the number of fields and bytes in the record. A group of
/// inputs may use about 1.2 ms for execution.
#[test]
fn a_group_of_inputs_executes_only_so_much_and_the_next_goes_on() {
    let one = fields(1, 1);
    let many_fields = merged_at_once(1000, 240, 200, &one);
    assert!((40..50).contains(&many_fields), "{many_fields} at once");
    let many_bytes = merged_at_once(250, 1000, 200, &one);
    assert!((50..65).contains(&many_bytes), "{many_bytes} at once");
    assert_eq!(merged_at_once(10, 100, 200, &one), 200);
}

/// Merges leave a replica idle for most of the time, even if only a few merges arrive at a time.
#[test]
fn many_merges_into_large_records_are_executed_in_a_part_of_the_time() {
    let together = |cluster: &mut Cluster, merges| {
        execute_at_once(cluster, merges);
    };
    let one_by_one = |cluster: &mut Cluster, merges: Vec<Command>| {
        for merge in merges {
            cluster.ask(0, merge);
        }
    };
    assert_merged_in_a_part_of_the_time(together);
    assert_merged_in_a_part_of_the_time(one_by_one);
}

fn assert_merged_in_a_part_of_the_time(ask: impl FnOnce(&mut Cluster, Vec<Command>)) {
    let mut cluster = Cluster::with(nothing_held());
    let put = write(1, 1, Op::put_fields("k", fields(1000, 240)));
    let put = cluster.ask(0, put);
    cluster.pass(100);
    assert!(cluster.done(put));
    let before = cluster.node(0).executed().0;
    let merge = |client| write(client, 1, Op::put_fields("k", fields(1, 1)));
    ask(&mut cluster, (2..602).map(merge).collect());
    let at_once = cluster.node(0).executed().0 - before;
    assert!((40..90).contains(&at_once), "{at_once} at once");
    cluster.pass(100);
    // Each merge takes about 60 us.
    let executed = cluster.node(0).executed().0 - before;
    assert!((350..550).contains(&executed), "{executed} in 100 ms");
    cluster.pass(1000);
    assert_eq!(cluster.node(0).executed().0 - before, 600);
}

/// A lagging replica that also paused between merges would never catch up with other replicas,
/// which execute as fast as clients merge.
#[test]
fn a_replica_that_is_behind_merges_all_of_the_time() {
    for (left_max, executed_in_time) in [(64 << 20, 200..400), (400 << 10, 590..601)] {
        let mut settings = nothing_held();
        settings.to_execute_work_max = left_max;
        let mut cluster = Cluster::with(settings);
        let put = write(1, 1, Op::put_fields("k", fields(1000, 240)));
        let put = cluster.ask(0, put);
        cluster.pass(100);
        assert!(cluster.done(put));
        let before = cluster.node(0).executed().0;
        let merge = |client| write(client, 1, Op::put_fields("k", fields(1, 1)));
        execute_at_once(&mut cluster, (2..602).map(merge).collect());
        cluster.pass(60);
        let executed = cluster.node(0).executed().0 - before;
        assert!(executed_in_time.contains(&executed), "{executed} in 60 ms");
        cluster.pass(1000);
        assert_eq!(cluster.node(0).executed().0 - before, 600);
    }
}

/// If a replica with a long backlog became the leader, commands that need execution would wait
/// until it has executed this backlog, although other replicas have executed it already.
#[test]
fn who_has_much_to_execute_does_not_take_over() {
    let mut cluster = Cluster::with(slow_to_execute());
    let ballot = accept_of_leader(&cluster);
    let hand_over = |cluster: &mut Cluster| {
        let message = Message::Transfer {
            ballot,
            by_operator: true,
        };
        let envelope = cluster.node(0).envelope(ReplicaId(2), message);
        cluster.deliver((envelope, ReplicaId(2)));
    };
    let campaigns = |cluster: &Cluster| {
        let prepares = cluster.sent.iter();
        let prepares = prepares.filter(|(envelope, _)| envelope.from == ReplicaId(2));
        prepares
            .filter(|(envelope, _)| envelope.message.name() == "Prepare")
            .count()
    };
    let (first, others) = withheld_accepts(&mut cluster);
    others
        .into_iter()
        .for_each(|packet| cluster.deliver(packet));
    cluster.deliver(first);
    assert!(cluster.node(2).executed() < cluster.node(0).executed());
    hand_over(&mut cluster);
    assert_eq!(campaigns(&cluster), 0);
    // Nor does the leader wait for this replica if an operator requests a transfer to it.
    let ping = Message::Ping {
        stamp: 0,
        cost_ms: 0,
        flushed: PerLog::default(),
    };
    let ping = cluster.node(2).envelope(ReplicaId(0), ping);
    cluster.deliver((ping, ReplicaId(0)));
    let wish = OperatorRequest::Transfer(ReplicaId(2));
    cluster.input(0, Input::Operator(wish));
    let written = cluster.ask(0, write(100, 1, Op::put("k", "v")));
    cluster.pass(50);
    assert!(cluster.done(written), "the leader goes on");
    assert!(cluster.leads(0));
    let caught_up = |cluster: &Cluster| cluster.node(2).executed() == cluster.node(0).executed();
    cluster.pass_until(20_000, "it has caught up", caught_up);
    cluster.pass_until(1000, "it takes over at last", |cluster| cluster.leads(2));
    assert!(campaigns(&cluster) > 0);
}

fn accept_of_leader(cluster: &Cluster) -> Ballot {
    let accepts = cluster.accepts(0);
    accepts.last().expect("the leader proposed").ballot
}

/// A refused merge also takes time: the entire record is read before the merge can be refused.
#[test]
fn refused_merges_count_as_work() {
    let one_too_many = [Field {
        name: "new".into(),
        value: "v".into(),
    }];
    let refused = merged_at_once(1024, 10, 200, &one_too_many);
    assert!((105..120).contains(&refused), "{refused} at once");
}

/// A slot must not have more merges than one step may execute, because a slot is always executed in
/// one step.
#[test]
fn a_slot_has_no_more_merges_than_a_group_of_inputs_executes() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let mut largest_batch = |client: u64, record: Vec<Field>| {
        let key = format!("k{client}");
        let put = cluster.ask(0, write(client, 1, Op::put_fields(key.clone(), record)));
        cluster.pass(100);
        assert!(cluster.done(put));
        let before = cluster.accepts(0).len();
        let merge = |number| {
            let op = Op::put_fields(key.clone(), fields(1, 1));
            write(client + number, 1, op)
        };
        let merges = cluster.ask_together(0, (1..=600).map(merge).collect());
        cluster.pass(1000);
        assert!(all_done(&cluster, &merges));
        let accepts = cluster.accepts(0).split_off(before);
        let batches = accepts.iter().map(|accept| accept.value.commands().len());
        batches.max()
    };
    let small = largest_batch(1000, fields(10, 100)).expect("they were proposed");
    assert!((110..135).contains(&small), "{small} in a slot");
    let large = largest_batch(2000, fields(1000, 240)).expect("they were proposed");
    assert!((35..50).contains(&large), "{large} in a slot");
}

/// An earlier command in the same slot may make the record of a merge large.
#[test]
fn a_slot_has_few_merges_into_a_record_that_is_not_known_yet() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let put = write(1, 1, Op::put_fields("k", fields(1000, 240)));
    let merge = |client| write(client, 1, Op::put_fields("k", fields(1, 1)));
    let merges = (2..1000).map(merge);
    let asked = cluster.ask_together(0, std::iter::once(put).chain(merges).collect());
    let accepts = cluster.accepts(0);
    let largest = accepts.iter().map(|it| it.value.commands().len()).max();
    assert!(largest < Some(135), "{largest:?} in a slot");
    cluster.pass(5000);
    assert!(all_done(&cluster, &asked));
}

/// Merges into large records wait at their origin. So other commands do not wait for merges,
/// neither in the leader's queue nor in the log.
#[test]
fn merges_into_large_records_wait_at_their_origin_and_others_pass_them() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let put = write(1, 1, Op::put_fields("large", fields(1000, 240)));
    let put = cluster.ask(0, put);
    cluster.pass(100);
    assert!(cluster.done(put));
    let merge = |key: String, client| write(client, 1, Op::put_fields(key, fields(1, 1)));
    cluster.hold(|packet| between(packet, 1, 0) && forwarded(packet) > 0);
    let dear = (1000..2000).map(|client| merge("large".into(), client));
    let dear: Vec<Command> = dear.collect();
    let mut asked = cluster.ask_together(1, dear.clone());
    let dear_sent = sent(&cluster);
    assert!((165..180).contains(&dear_sent), "{dear_sent} at once");
    let held = cluster.counter(1, "writes_held");
    assert_eq!(held, 1000 - dear_sent as u64);

    let others = (2000..3000).map(|client| match client % 2 {
        0 => merge(format!("small{}", client % 16), client),
        _ => write(client, 1, Op::put("other", "v")),
    });
    asked.extend(cluster.ask_together(1, others.collect()));
    assert_eq!(sent(&cluster), dear_sent + 1000);

    // A copy of a merge that is held here may reach the log another way.
    let last = cluster.ask(0, dear.last().expect("there are some").clone());
    // Long merges would keep other large writes waiting at the node.
    let long = |client| write(client, 1, Op::put_fields("large", fields(1, 4000)));
    let long: Vec<RequestToken> = (3000..3100)
        .map(|client| cluster.ask(1, long(client)))
        .collect();
    let refused = long.iter().filter(|asked| cluster.answered(**asked));
    let refused = refused.count();
    assert!(
        (50..60).contains(&refused),
        "{refused} of 100: some may leave"
    );
    cluster.release();
    cluster.pass(1000);
    assert!(all_done(&cluster, &asked) && cluster.done(last));
    cluster.assert_agreement();
}

/// When the merges are sent, their origin cannot know how large the record will be.
#[test]
fn merges_that_are_sent_with_the_write_that_makes_their_record_large_are_held_too() {
    for put_at in [0, 1] {
        let mut cluster = Cluster::new(3, StrategySpec::None);
        let put = write(1, 1, Op::put_fields("k", fields(1000, 240)));
        let merge = |client| write(client, 1, Op::put_fields("k", fields(1, 1)));
        cluster
            .hold(|packet| between(packet, 1, 0) && forwarded(packet) > 0 || between(packet, 0, 1));
        let mut asked = vec![cluster.ask(put_at, put)];
        asked.extend(cluster.ask_together(1, (2..2002).map(merge).collect()));
        let merges_sent = sent(&cluster) - put_at;
        assert!((1080..1095).contains(&merges_sent), "{merges_sent} at once");
        cluster.release();
        cluster.pass(1000);
        assert!(all_done(&cluster, &asked));
        cluster.assert_agreement();
    }
}

/// There are so many keys that the origin cannot know the size of every record.
#[test]
fn of_merges_into_many_records_only_so_many_are_in_the_log() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.hold(|packet| between(packet, 1, 0) && forwarded(packet) > 0);
    let record = [0x0A, 0].repeat(1000);
    let put = |key: u64| write(key, 1, Op::put(format!("k{key}"), record.clone()));
    let merge = |client: u64| {
        let key = format!("k{}", client % 1000);
        write(client, 1, Op::put_fields(key, fields(1, 1)))
    };
    let commands = (1000..2000).map(put).chain((2000..22_000).map(merge));
    let mut asked = cluster.ask_together(1, commands.collect());
    assert_eq!(sent(&cluster), 1000 + 8192);
    // Merges of large records do not wait for any of these.
    let put = cluster.ask(0, write(1, 1, Op::put_fields("large", fields(1000, 240))));
    cluster.pass(50);
    assert!(cluster.done(put));
    let large = write(2, 1, Op::put_fields("large", fields(1, 4000)));
    asked.push(cluster.ask(1, large));
    assert_eq!(sent(&cluster), 1000 + 8192 + 1);

    cluster.release();
    let swap = cluster.ask(0, write(3, 1, Op::cas("k", "v", None)));
    cluster.pass_until(500, "what follows is executed", |cluster| {
        cluster.done(swap)
    });
    cluster.pass(2500);
    assert!(all_done(&cluster, &asked));
    cluster.assert_agreement();
}

/// When the merges leave their origin, the puts for which they had to wait are executed, so the
/// size of each record is known.
#[test]
fn merges_that_were_held_count_by_what_is_known_when_they_leave() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let to_leader = |packet: &Packet| between(packet, 1, 0) && forwarded(packet) > 0;
    cluster.hold(to_leader);
    let merge = |client: u64| {
        let key = format!("k{}", client % 1000);
        write(client, 1, Op::put_fields(key, fields(1, 1)))
    };
    let asked = cluster.ask_together(1, (2000..22_000).map(merge).collect());
    assert_eq!(sent(&cluster), 8192);
    let record = [0x0A, 0].repeat(1000);
    let put = |key: u64| write(30_000 + key, 1, Op::put(format!("k{key}"), record.clone()));
    let puts = cluster.ask_together(0, (0..1000).map(put).collect());
    cluster.pass(100);
    assert!(all_done(&cluster, &puts));

    let first = std::mem::take(&mut cluster.held);
    cluster.forget_held();
    cluster.hold(to_leader);
    first.into_iter().for_each(|packet| cluster.deliver(packet));
    cluster.pass(1000);
    let done = asked.iter().filter(|asked| cluster.done(**asked)).count();
    assert_eq!(done, 8192);
    // If each merged into the largest possible record, there would be 170 of them.
    let next = sent(&cluster);
    assert!((500..520).contains(&next), "{next} at once");
    cluster.release();
    cluster.pass(5000);
    assert!(all_done(&cluster, &asked));
    cluster.assert_agreement();
}

/// Hundreds of merges into one small record are sent at the same time.
#[test]
fn merges_into_a_small_record_hardly_wait_for_each_other() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.hold(|packet| between(packet, 1, 0) && forwarded(packet) > 0);
    let merge = |client| write(client, 1, Op::put_fields("k", fields(1, 1)));
    cluster.ask_together(1, (1..1001).map(merge).collect());
    assert_eq!(sent(&cluster), 1000);
}

/// Connections take turns, and a connection that has ended has no turn.
#[test]
fn held_merges_of_a_client_wait_for_none_of_clients_that_have_gone() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    let put = cluster.ask(0, write(1, 1, Op::put_fields("k", fields(1000, 240))));
    cluster.pass(100);
    assert!(cluster.done(put));
    let merge = |client| write(client, 1, Op::put_fields("k", fields(1, 1)));
    let client = |connection, client: u64| Input::Client {
        from: ClientHandle {
            connection,
            request: client,
        },
        command: merge(client),
    };
    cluster.hold(|packet| between(packet, 1, 0) && forwarded(packet) > 0);
    cluster.inputs(1, (2..3002).map(|number| client(77, number)).collect());
    cluster.inputs(1, vec![client(78, 4000)]);
    assert!(cluster.replies_to(78).is_empty());
    cluster.input(1, Input::ClientDisconnected { connection: 77 });
    cluster.pass(200);
    // All of them that were held are reported as unsent; others may have been sent.
    assert!(cluster.replies_to(77).len() > 2000);
    // One of them is requested again on another connection, which ends first.
    cluster.inputs(1, vec![client(79, 5000), client(80, 5000)]);
    assert_eq!(cluster.replies_to(79).len(), 1, "it was asked again");
    cluster.input(1, Input::ClientDisconnected { connection: 80 });
    cluster.pass(200);
    assert_eq!(cluster.replies_to(80).len(), 1, "it was given up");
    cluster.input(1, Input::ClientDisconnected { connection: 79 });
    cluster.release();
    cluster.pass_until(800, "its turn comes", |cluster| {
        cluster.replies_to(78).len() == 1
    });
    cluster.pass(1000);
    cluster.assert_agreement();
}

/// Each group of inputs executes at least a share of the backlog. If it executed only a fixed
/// minimum, and puts arrived faster than that, the backlog would grow for ever.
#[test]
fn a_group_of_inputs_executes_a_share_of_what_is_left() {
    let mut settings = settings(3, StrategySpec::None);
    settings.executed_work_max = 1000;
    for (writes, shares) in [(8, 2..=8), (100, 9..=30), (1000, 20..=30)] {
        let mut cluster = Cluster::with(settings.clone());
        let (_, at_once) = execute_at_once(&mut cluster, small_writes(1..1 + writes));
        assert!(shares.contains(&at_once), "{at_once} of {writes}");
        cluster.pass(100);
        cluster.assert_agreement();
    }
}

/// A multi-put of a thousand short keys takes as long as hundreds of puts, but has few bytes.
#[test]
fn a_group_of_inputs_executes_few_commands_of_many_keys() {
    let mut cluster = Cluster::with(settings(3, StrategySpec::None));
    let entries = |client: u64| {
        let entry = |number: u64| KeyValue {
            key: format!("{client}-{number}").into(),
            value: "v".into(),
        };
        (0..1000).map(entry).collect()
    };
    let puts = |client| write(client, 1, Op::multi_put(entries(client)));
    let (asked, at_once) = execute_at_once(&mut cluster, (1..21).map(puts).collect());
    assert!(at_once <= 4, "{at_once} slots at once");
    let first = cluster.node(0).status(cluster.clock(0)).keys;
    assert!((1000..=4000).contains(&first), "{first} keys at once");
    cluster.pass(1000);
    assert!(all_done(&cluster, &asked));
    cluster.assert_agreement();
}

/// Returns the number of commands that are in transit to the leader.
fn sent(cluster: &Cluster) -> usize {
    cluster.held.iter().map(forwarded).sum()
}

/// Returns the number of commands that a packet forwards to the leader.
fn forwarded(packet: &Packet) -> usize {
    match &packet.0.message {
        Message::Forward { commands } => commands.len(),
        _ => 0,
    }
}

/// Returns settings with a low limit of entries that wait for execution: a few of [`small_writes`]
/// exceed it.
fn slow_to_execute() -> Settings {
    let mut settings = settings(3, StrategySpec::None);
    settings.executed_work_max = 1;
    settings.to_execute_work_max = 4 << 10;
    settings
}

/// Returns far more writes than may wait for execution.
fn small_writes(clients: std::ops::Range<u64>) -> Vec<Command> {
    let put = |client| write(client, 1, Op::put(format!("k{client}"), "v".repeat(100)));
    clients.map(put).collect()
}

#[test]
fn a_leader_with_much_to_execute_proposes_nothing_more_until_it_is_executed() {
    let mut cluster = Cluster::with(slow_to_execute());
    let (asked, at_once) = execute_at_once(&mut cluster, small_writes(1..60));
    assert_eq!(at_once, 1);
    let proposed = cluster.accepts(0).len();
    let more = cluster.ask(0, write(60, 1, Op::put("more", "v")));
    assert_eq!(cluster.accepts(0).len(), proposed);
    cluster.pass(100);
    assert!(all_done(&cluster, &asked) && cluster.done(more));
    assert_eq!(refused(&cluster, 0), 0);
    cluster.assert_agreement();
}

/// Returns Accepts for replica 2 that it has not received, with far more writes than may wait for
/// execution. The first Accept is returned separately: without it, replica 2 can execute none of
/// the others.
fn withheld_accepts(cluster: &mut Cluster) -> (Packet, Vec<Packet>) {
    cluster.hold(|(_, to)| *to == ReplicaId(2));
    for command in small_writes(1..60) {
        cluster.ask(0, command);
    }
    cluster.pass(100);
    let held = std::mem::take(&mut cluster.held);
    cluster.forget_held();
    let mut accepts = held.into_iter().filter(|packet| accept(packet).is_some());
    let first = accepts.next().expect("the leader proposed");
    (first, accepts.collect())
}

#[test]
fn a_follower_with_much_to_execute_accepts_nothing_more_and_fetches_it_later() {
    let mut cluster = Cluster::with(slow_to_execute());
    let (first, others) = withheld_accepts(&mut cluster);
    let before = cluster.node(2).executed();
    let last = others.last().expect("there are many").clone();
    others
        .into_iter()
        .for_each(|packet| cluster.deliver(packet));
    assert_eq!(cluster.node(2).executed(), before);
    assert_eq!(refused(&cluster, 2), 0);
    cluster.deliver(first);
    cluster.deliver(last); // It reports the first slot as committed.
    assert_eq!(cluster.node(2).executed(), before.next());

    let more = cluster.ask(0, write(60, 1, Op::put("more", "v")));
    assert!(cluster.done(more), "the others are a majority");
    assert_eq!(refused(&cluster, 2), 1);
    let caught_up = |cluster: &Cluster| cluster.node(2).executed() == cluster.node(0).executed();
    cluster.pass_until(20_000, "it has caught up", caught_up);
    cluster.assert_agreement();
}

/// Many entries have waited for long and are sent again. The entries are distributed over several
/// steps, so that no step takes long.
#[test]
fn what_waits_long_is_sent_again_in_parts() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.isolate(1);
    let asked = cluster.ask_together(1, small_writes(1..10_001));
    let again = |cluster: &Cluster| cluster.counter(1, "forwarded_again");
    cluster.pass_until(2000, "some are sent again", |cluster| again(cluster) > 0);
    assert_eq!(again(&cluster), 4096);
    cluster.pass_until(2000, "more are", |cluster| again(cluster) > 4096);
    assert_eq!(again(&cluster), 8192);
    cluster.heal();
    cluster.pass_until(20_000, "all are written", |cluster| {
        all_done(cluster, &asked)
    });
}
