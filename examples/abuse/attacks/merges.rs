//! Merges of one field into large records: requests of a few bytes, for each of which every
//! replica looks through a quarter of a megabyte and copies it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use client::wire::command::Op;
use client::wire::outcome::Result as Answer;
use client::wire::{Field, Response};
use tokio::time::timeout_at;

use super::Target;
use crate::figures::{Figures, figures};
use crate::wire::{Session, Wire, session_number, write};

/// Connections to each replica, and merges in flight on each: what the limits of one
/// connection allow (16 MiB, of which the least request counts for 4 KiB).
const CONNECTIONS: u64 = 4;
const IN_FLIGHT: u64 = 4_000;
/// Records of each shape: some, and so many that all together are much to write down.
pub const FEW: u64 = 4;
pub const MANY: u64 = 64;

/// What a record consists of. Both shapes stay, with the field that is merged, within the
/// limits of records that take merges: 256 KiB and 1,024 fields.
struct Shape {
    name: &'static str,
    fields: usize,
    value_bytes: usize,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "many",
        fields: 1_020,
        value_bytes: 240,
    },
    Shape {
        name: "long",
        fields: 250,
        value_bytes: 1_000,
    },
];

/// Shapes take turns, and so do as many records of each.
fn key(number: u64, records: u64) -> String {
    let shape = &SHAPES[number as usize % SHAPES.len()];
    let record = number / SHAPES.len() as u64 % records;
    format!("record-{}-{record}", shape.name)
}

pub(super) fn field(name: String, value: Bytes) -> Field {
    let name = name.into();
    Field { name, value }
}

/// Writes the records.
pub async fn prepare(target: &Target, records: u64) -> anyhow::Result<Figures> {
    let mut wire = Wire::connect(&target.clients[0]).await?;
    for number in 0..records * SHAPES.len() as u64 {
        let shape = &SHAPES[number as usize % SHAPES.len()];
        let value = Bytes::from(vec![b'r'; shape.value_bytes]);
        let fields = (0..shape.fields).map(|i| field(format!("f{i:04}"), value.clone()));
        let session = Session {
            client: session_number(6, 0),
            sequence: number + 1,
            opened_ms: wire.welcome.log_time_ms,
        };
        let op = Op::put_fields(key(number, records), fields.collect());
        let answer = wire.ask(&write(number + 1, session, op)).await?;
        anyhow::ensure!(!is_refusal(&answer), "a record was refused: {answer:?}");
    }
    Ok(Figures::new())
}

/// What clients were answered.
#[derive(Default)]
pub(super) struct Counts {
    pub answered: Cell<u64>,
    pub refused: Cell<u64>,
}

impl Counts {
    pub fn count(&self, answer: &Response) {
        self.answered.set(self.answered.get() + 1);
        let refused = u64::from(is_refusal(answer));
        self.refused.set(self.refused.get() + refused);
    }
}

/// Merges without a pause, at every replica: each that is answered is followed by another.
pub async fn merge(target: &Target, records: u64) -> anyhow::Result<Figures> {
    let end = target.end();
    let counts = Rc::new(Counts::default());
    let connections = CONNECTIONS * target.clients.len() as u64;
    let one = |number: u64| {
        let address = target.clients[number as usize % target.clients.len()].clone();
        let counts = counts.clone();
        tokio::task::spawn_local(async move {
            closed_loop(number, &address, end, records, &counts).await
        })
    };
    let tasks: Vec<_> = (0..connections).map(one).collect();
    let mut broken = 0.0;
    for task in tasks {
        broken += f64::from(u8::from(task.await?.is_err()));
    }
    Ok(figures([
        ("merges_in_flight", (connections * IN_FLIGHT) as f64),
        ("merges_answered", counts.answered.get() as f64),
        ("merges_refused", counts.refused.get() as f64),
        ("broken_connections", broken),
    ]))
}

async fn closed_loop(
    number: u64,
    address: &str,
    end: Instant,
    records: u64,
    counts: &Counts,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(address).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let request = |sequence: u64| {
        let session = Session {
            client: session_number(number, 7),
            sequence,
            opened_ms,
        };
        let fields = vec![field("merged".to_owned(), "m".into())];
        let op = Op::put_fields(key(number + sequence, records), fields);
        write(sequence, session, op)
    };
    let mut next = 0;
    while next < IN_FLIGHT {
        next += 1;
        wire.writer.feed(&request(next))?;
    }
    loop {
        let turn = async {
            wire.writer.flush().await?;
            wire.reader.next::<Response>().await
        };
        let Ok(answer) = timeout_at(end.into(), turn).await else {
            return Ok(());
        };
        let mut answer = answer?;
        anyhow::ensure!(answer.is_some(), "closed amid merges");
        while let Some(answered) = &answer {
            counts.count(answered);
            next += 1;
            wire.writer.feed(&request(next))?;
            answer = wire.reader.next_buffered::<Response>()?;
        }
    }
}

fn is_refusal(answer: &Response) -> bool {
    let outcome = answer.outcome.as_ref();
    let result = outcome.and_then(|outcome| outcome.result.as_ref());
    matches!(result, Some(Answer::Error(_)))
}
