//! Merges of one field into large records. Each request has only a few bytes, but it makes every
//! replica search and copy a quarter of a megabyte.

use std::rc::Rc;

use bytes::Bytes;
use leasehold_wire::Field;
use leasehold_wire::command::Op;

use super::Target;
use super::pipeline::{Answers, Lane, pipeline, refusal};
use crate::figures::{Figures, figures};
use crate::wire::{Session, Wire, session_number, write};

/// Number of connections to each replica.
const CONNECTIONS: u64 = 4;
/// Number of merges that are in flight on each connection. The limits allow no more merges: a
/// connection may have 16 MiB in flight, and each request is charged with at least 4 KiB.
const IN_FLIGHT: u64 = 4_000;
/// Small number of records of each shape.
pub const FEW: u64 = 4;
/// Large number of records of each shape. A replica needs a long time to write all of them.
pub const MANY: u64 = 64;

/// Number and size of the fields of a record. A record accepts merges only up to 256 KiB and 1,024
/// fields. The records of both shapes stay within these limits after the merges.
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

/// Returns the key of the record that `number` selects. Successive numbers select the two shapes
/// alternately. The numbers of one shape select the `records` records of this shape in turn.
fn key(number: u64, records: u64) -> String {
    let shape = &SHAPES[number as usize % SHAPES.len()];
    let record = number / SHAPES.len() as u64 % records;
    format!("record-{}-{record}", shape.name)
}

pub(super) fn field(name: String, value: Bytes) -> Field {
    let name = name.into();
    Field { name, value }
}

/// Writes `records` records of each shape.
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
        if let Some(refusal) = refusal(&answer) {
            anyhow::bail!("a record was refused: {refusal}");
        }
    }
    Ok(Figures::new())
}

/// Sends merges to every replica without a pause. When a merge is answered, the next one is sent.
pub async fn merge(target: &Target, records: u64) -> anyhow::Result<Figures> {
    let end = target.end();
    let answers = Rc::new(Answers::default());
    let connections = CONNECTIONS * target.clients.len() as u64;
    let one = |number: u64| {
        let address = target.clients[number as usize % target.clients.len()].clone();
        let make = move |lane: Lane| {
            let session = Session {
                client: session_number(number, 7),
                sequence: lane.id,
                opened_ms: lane.opened_ms,
            };
            let fields = vec![field("merged".to_owned(), "m".into())];
            let op = Op::put_fields(key(number + lane.id, records), fields);
            write(lane.id, session, op)
        };
        tokio::task::spawn_local(pipeline(address, end, IN_FLIGHT, answers.clone(), make))
    };
    let tasks: Vec<_> = (0..connections).map(one).collect();
    let mut broken = 0.0;
    for task in tasks {
        broken += f64::from(u8::from(task.await?.is_err()));
    }
    let (answered, refused) = answers.counts();
    Ok(figures([
        ("merges_in_flight", (connections * IN_FLIGHT) as f64),
        ("merges_answered", answered as f64),
        ("merges_refused", refused as f64),
        ("broken_connections", broken),
    ]))
}
