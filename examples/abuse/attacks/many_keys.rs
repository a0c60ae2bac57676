//! Commands with ten thousand keys. They have few bytes, but need many lookups.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::{KeyValue, Request};

use super::Target;
use super::pipeline::{Answers, Lane, all, pipeline, refusal};
use crate::figures::Figures;
use crate::wire::{Session, Wire, read, session_number, write};

/// Number of keys in a command. If the program accepts fewer keys in a command, the keys are
/// divided among several commands.
const KEYS: u64 = 10_000;
/// Number of clients in the second half of an attack with multi-puts.
const WRITERS: u64 = 4;
/// Number of multi-puts that each client has in flight in the second half of an attack.
const WRITTEN_AT_ONCE: u64 = 8;
/// Number of connections that read absent keys.
const READERS: u64 = 4;
/// Number of multi-gets that are in flight on each connection.
const READ_AT_ONCE: u64 = 2;

/// The maximum number of keys in a command, and the resulting number of commands for all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    keys: u64,
    commands: u64,
}

impl Parts {
    /// Sends a command with all keys to a replica. If the replica refuses the command, the maximum
    /// number of keys is read from the refusal.
    async fn allowed(address: &str) -> anyhow::Result<Parts> {
        let mut wire = Wire::connect(address).await?;
        let answer = wire.ask(&read(1, absent(0, 0, KEYS))).await?;
        match refusal(&answer) {
            None => Ok(Parts::of(KEYS)),
            Some(refusal) => most(&refusal)
                .map(Parts::of)
                .ok_or_else(|| anyhow::anyhow!("refused: {refusal}")),
        }
    }

    fn of(keys: u64) -> Parts {
        Parts {
            keys,
            commands: KEYS.div_ceil(keys),
        }
    }
}

/// Returns the number at the end of a refusal, after the words "allowed are 1 to".
fn most(refusal: &str) -> Option<u64> {
    let (_, number) = refusal.split_once("allowed are 1 to ")?;
    let number = number.split(|c: char| !c.is_ascii_digit()).next()?;
    number.parse().ok().filter(|most| (1..KEYS).contains(most))
}

/// Sends multi-puts of tiny keys. In the first half of the attack, one multi-put is in flight at a
/// time. In the second half, many multi-puts are in flight at the same time.
pub async fn multi_puts(target: &Target) -> anyhow::Result<Figures> {
    let parts = Parts::allowed(&target.clients[0]).await?;
    let answers = Rc::new(Answers::default());
    let half = Duration::from_secs(target.seconds) / 2;
    let begun = Instant::now();
    let phases = [
        (begun + half, 1, 1),
        (begun + 2 * half, WRITERS, WRITTEN_AT_ONCE),
    ];
    for (phase, (end, writers, at_once)) in (0..).zip(phases) {
        let one = |writer: u64| {
            let (address, in_flight) = (target.clients[0].clone(), at_once * parts.commands);
            let client = phase * WRITERS + writer;
            let make = move |lane: Lane| multi_put(client, &lane, parts.keys);
            let answers = answers.clone();
            tokio::task::spawn_local(pipeline(address, end, in_flight, answers, make))
        };
        all((0..writers).map(one).collect::<Vec<_>>()).await?;
    }
    answers.figures()
}

/// Builds a multi-put. Each lane has keys and a session of its own.
fn multi_put(client: u64, lane: &Lane, keys: u64) -> Request {
    let session = Session {
        client: session_number(8 + client, lane.lane),
        sequence: lane.id,
        opened_ms: lane.opened_ms,
    };
    let first = lane.lane * keys;
    let entries = (first..first + keys).map(|number| KeyValue {
        key: format!("{client}-{number:x}").into(),
        value: Bytes::from_static(b"v"),
    });
    write(lane.id, session, Op::multi_put(entries.collect()))
}

/// Sends multi-gets of absent keys to the replica that holds all keys.
pub async fn multi_gets_absent(target: &Target) -> anyhow::Result<Figures> {
    let parts = Parts::allowed(&target.clients[0]).await?;
    let answers = Rc::new(Answers::default());
    let end = target.end();
    let one = |reader: u64| {
        let (address, in_flight) = (target.clients[0].clone(), READ_AT_ONCE * parts.commands);
        let make = move |lane: Lane| read(lane.id, absent(reader, lane.lane, parts.keys));
        tokio::task::spawn_local(pipeline(address, end, in_flight, answers.clone(), make))
    };
    all((0..READERS).map(one).collect::<Vec<_>>()).await?;
    answers.figures()
}

fn absent(reader: u64, lane: u64, keys: u64) -> Op {
    let first = lane * keys;
    let keys = (first..first + keys).map(|number| format!("absent-{reader}-{number:x}").into());
    Op::multi_get(keys.collect())
}

#[cfg(test)]
mod tests {
    use leasehold_wire::{COMMAND_PARTS_MAX, validate_op};

    use super::*;

    #[test]
    fn the_refusal_of_todays_program_says_how_many_keys_may_be() {
        let too_many = Op::multi_get(vec!["k".into(); COMMAND_PARTS_MAX + 1]);
        let refusal = validate_op(&too_many).expect_err("too many").message;
        assert_eq!(most(&refusal), Some(COMMAND_PARTS_MAX as u64));
    }

    #[test]
    fn fewer_keys_in_a_command_make_more_commands() {
        let of = |refusal: &str| most(refusal).map(Parts::of);
        let parts = |keys, commands| Some(Parts { keys, commands });
        assert_eq!(
            of("keys has 10000 entries, allowed are 1 to 512"),
            parts(512, 20)
        );
        assert_eq!(of("allowed are 1 to 1000; send several"), parts(1000, 10));
        assert_eq!(of("allowed are 1 to 20000"), None);
        assert_eq!(of("try again"), None);
        assert_eq!(Parts::of(KEYS).commands, 1);
    }
}
