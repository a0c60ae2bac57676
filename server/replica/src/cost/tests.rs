use leasehold_leases::Ballot;
use leasehold_wire::{COMMAND_PARTS_MAX, Entry, KeyValue, MoveRequest};

use super::*;
use crate::message::{Accept, Batch, LogId, LogNews, RequestId};

fn multi_put(entries: usize) -> Command {
    let entry = |number: usize| KeyValue {
        key: number.to_string().into(),
        value: "v".into(),
    };
    Command::session(1, 1, 1, Op::multi_put((0..entries).map(entry).collect()))
}

fn units(op: Op) -> usize {
    of(Request::Command(&Command::session(1, 1, 1, op))).units()
}

#[test]
fn a_multi_put_costs_about_what_its_entries_cost_and_not_what_its_bytes_do() {
    let one = of(Request::Command(&multi_put(1)));
    let many = of(Request::Command(&multi_put(COMMAND_PARTS_MAX)));
    assert!(many.executing() >= COMMAND_PARTS_MAX * one.executing());
    let value = vec![b'v'; many.bytes_written];
    assert!(many.units() > 10 * units(Op::put("k", value)));
}

#[test]
fn absent_keys_cost_as_much_as_those_that_are_found() {
    let keys: Vec<_> = (0..1000).map(|i: usize| i.to_string().into()).collect();
    let read = Command::from(Op::multi_get(keys));
    let none = executed(&read, &Outcome::entries(Vec::new()));
    assert_eq!(none, BATCHED + of_command(&read).executing());
    assert!(none > 50 * units(Op::get("k")));
}

#[test]
fn a_scan_costs_what_it_may_find_before_and_what_it_found_after() {
    let scan = Command::from(Op::scan("", "", 10_000));
    let found = Outcome::entries(vec![Entry::default(); 3]);
    let before = of(Request::Command(&scan)).executing();
    let after = executed(&scan, &found);
    assert!(before > 100 * after, "{before} {after}");
}

/// A placeholder costs as much as the read that it represents. Otherwise a slot would have capacity
/// for more placeholders than reads.
#[test]
fn a_scan_in_the_place_of_a_read_costs_as_much() {
    let keys = |bytes: usize| (0..500).map(|_| vec![b'k'; bytes].into()).collect();
    for read in [
        Op::scan("", "", 700),
        Op::multi_get(keys(1)),
        Op::multi_get(keys(1000)),
    ] {
        let read = Command::from(read);
        let scan = Command::from(Op::scan("", "", scanned_instead(&read) as u32));
        let units = |command: &Command| of_command(command).executing();
        let (cost, instead) = (units(&read), units(&scan));
        assert!(
            (cost..=cost + SCANNED).contains(&instead),
            "{cost} {instead}"
        );
    }
}

#[test]
fn a_status_costs_what_it_describes() {
    let sizes = Sizes {
        ranges: 1023,
        starts_bytes: 512 << 10,
        demand_keys: 100_000,
    };
    let request = |leases| StatusRequest {
        leases,
        ..StatusRequest::default()
    };
    let plain = of(Request::Status(&request(false), sizes));
    let described = of(Request::Status(&request(true), sizes));
    assert_eq!(plain.units(), STATUS);
    assert!(described.units() > 50 * STATUS);
    let change = |changes| {
        let request = &LeaseRequest::default();
        of(Request::Lease {
            request,
            sizes,
            changes,
        })
        .units()
    };
    assert!(change(true) > change(false) && change(false) > described.units());
    let demand = StatusRequest {
        demand: true,
        ..StatusRequest::default()
    };
    assert!(of(Request::Status(&demand, sizes)).units() > 500_000);
    let moved = Body::Move(MoveRequest::default());
    assert_eq!(of_body(&moved).units(), STATUS);
}

/// A peer's message causes as much work as the commands in it, even if the message is short.
#[test]
fn messages_of_peers_cost_what_their_commands_do() {
    let command = multi_put(1000);
    let executing = of_command(&command).executing();
    let forward = Message::Forward {
        commands: vec![(RequestId(1), command.clone())],
    };
    let value = Value::Commands(std::sync::Arc::new(Batch {
        commands: vec![Proposal {
            origin: leasehold_leases::ReplicaId(0),
            request: RequestId(1),
            command,
        }],
        ..Batch::default()
    }));
    assert!(super::executing(&value) >= executing);
    let accept = Message::Accept(Accept {
        ballot: Ballot::ZERO,
        log: LogId::Commands,
        slot: leasehold_leases::Slot(1),
        value,
        vote: Some(leasehold_leases::ReplicaSet::EMPTY),
        news: LogNews::default(),
        last_multi: leasehold_leases::Slot::ZERO,
        infallible: std::sync::Arc::default(),
    });
    for message in [forward, accept] {
        let units = of_message(&message, 15_000);
        assert!(units > executing, "{}", message.name());
    }
}
