//! Reads of several keys that go through the log. In the log, such reads take no more space than
//! other commands.

use leasehold_leases::{Key, StrategySpec};
use leasehold_replica::action::Record;
use leasehold_replica::message::{Message, Value};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, KeyValue, Path};

use super::cluster::{Cluster, RequestToken, accept, put, votes_on, write};

/// Returns the commands of a value that write nothing.
fn reads(value: &Value) -> impl Iterator<Item = &Command> {
    let commands = value.commands().iter().map(|proposed| &proposed.command);
    commands.filter(|command| !command.is_write())
}

/// The list of keys in a read is not written to the log. So a client that may only read cannot fill
/// disks, and other clients do not wait for such lists.
#[test]
fn what_a_read_names_stays_where_it_was_asked() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.ask(0, put(1, 1, "a", "1"));
    let key = |number: usize| Key::from(format!("{number:0>1024}"));
    let keys = (0..1000).map(key).chain(["a".into()]).collect();
    let many = cluster.ask(1, Op::multi_get(keys).into());
    let scan = cluster.ask(1, Op::scan("a", "b", 7).into());
    cluster.pass(100);
    for read in [many, scan] {
        let (_, path, outcome) = cluster.answer(read).expect("it is answered");
        assert_eq!(*path, Path::Log);
        let Some(Answer::Entries(found)) = &outcome.result else {
            panic!("{outcome:?}");
        };
        let keys: Vec<_> = found.entries.iter().map(|entry| &entry.key[..]).collect();
        assert_eq!(keys, [b"a"]);
    }
    let mut in_log = Vec::new();
    for (envelope, _) in &cluster.sent {
        match &envelope.message {
            Message::Forward { commands } => {
                let commands = commands.iter().map(|(_, command)| command);
                in_log.extend(commands.filter(|command| !command.is_write()));
            }
            Message::Accept(accept) => in_log.extend(reads(&accept.value)),
            _ => {}
        }
    }
    for (_, record) in &cluster.written {
        if let Record::Accepted { value, .. } = record {
            in_log.extend(reads(value));
        }
    }
    assert!(in_log.len() >= 8, "they went through the log");
    for command in in_log {
        assert_eq!(command.keys().count(), 0);
        // It has the same work as the read that it stands for, by number or by bytes, so that a
        // slot holds no more of them.
        let limit = match &command.op {
            Some(Op::Scan(scan)) if scan.from.is_empty() && scan.to.is_empty() => scan.limit,
            other => panic!("{other:?} in the log"),
        };
        assert!((4900..5100).contains(&limit) || limit == 7, "{limit}");
    }
}

/// A read includes the effects of everything before it in the log, and no effects of entries that
/// are executed together with it but come after it.
#[test]
fn a_read_through_the_log_is_executed_at_its_place() {
    let mut cluster = Cluster::new(3, StrategySpec::None);
    cluster.hold(|packet| accept(packet).is_some());
    let mut asked = Vec::new();
    for number in 0..5 {
        let value = if number % 2 == 0 { "even" } else { "odd" };
        cluster.ask(1, put(1, number + 1, "k", value));
        asked.push(cluster.ask(1, Op::scan("k", "l", 5).into()));
    }
    cluster.release();
    cluster.pass(2000);
    for (number, read) in asked.into_iter().enumerate() {
        let (_, _, outcome) = cluster.answer(read).expect("it is answered");
        let Some(Answer::Entries(found)) = &outcome.result else {
            panic!("{outcome:?}");
        };
        let value = if number % 2 == 0 { "even" } else { "odd" };
        assert_eq!(found.entries[0].value, value, "{number}");
    }
}

fn mark_many(cluster: &mut Cluster, client: u64) -> RequestToken {
    let entry = |number: u64| KeyValue {
        key: format!("z {client} {number}").into(),
        value: "v".into(),
    };
    let entries = (0..10_000).map(entry).collect();
    cluster.ask(0, write(client, 1, Op::multi_put(entries)))
}

/// The time to check a range for marks is proportional to the number of marks.
#[test]
fn scans_look_at_some_marks_and_else_go_through_the_log() {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    cluster.hold(|packet| votes_on(packet, None));
    let scan = || Command::from(Op::scan("a", "b", 1));
    let writes: Vec<_> = (1..=3)
        .map(|client| mark_many(&mut cluster, client))
        .collect();
    let local = cluster.ask(0, scan());
    assert_eq!(cluster.path(local), Some(Path::Local));
    // All of them together would check more marks than is allowed.
    let together = cluster.ask_together(0, vec![scan(); 4]);
    let at_once = together.iter().filter(|asked| cluster.answered(**asked));
    assert_eq!(at_once.count(), 2);
    cluster.release();
    cluster.pass_until(2000, "all", |cluster| {
        let mut all = together.iter().chain(&writes);
        all.all(|asked| cluster.answered(*asked))
    });
    assert_eq!(cluster.path(together[3]), Some(Path::Log));
    let after = cluster.ask_together(0, vec![scan(); 4]);
    let local = |asked: &RequestToken| cluster.path(*asked) == Some(Path::Local);
    assert!(after.iter().all(local));
}
