//! Attack with merges that are sent before the write that makes the merged record large. A replica
//! that receives such a merge cannot know how large the record will be.

use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::{Bytes, BytesMut};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, Record, Request, Response, Version, encode_frame};
use tokio::time::{MissedTickBehavior, timeout_at};

use super::Target;
use super::merges::field;
use super::pipeline::Answers;
use crate::figures::{Figures, figures, percentile};
use crate::wire::{Session, Wire, session_number, write};

/// Number of pairs of connections for each replica. In each pair, the first connection is opened to
/// this replica, and the second one to the next replica.
const PAIRS: u64 = 2;
/// Sequence number of the last command in a round. Each connection sends two merges fewer than this
/// number.
const MERGES: u64 = 2_000;
/// Minimum duration of a round. Without pauses between rounds, even small merges would keep the
/// machine busy.
const ROUND: Duration = Duration::from_secs(2);
/// Number of fields of the record that each round writes.
const FIELDS: u64 = 1_000;
const VALUE_BYTES: usize = 240;
/// Bit that is set in the session numbers of calm clients, which send only compare-and-swaps. The
/// bit is not set in the session numbers of the pairs of connections, which send merges.
const CALM: u64 = 1 << 7;
/// Size of the length prefix of a frame, in bytes.
const LENGTH_BYTES: usize = 4;
/// Interval between two compare-and-swaps of a calm client.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs a round every two seconds, or less often if rounds take longer. At the same time, a calm
/// client at each replica sends compare-and-swaps. A replica answers a compare-and-swap only after
/// it has executed all earlier commands of the log.
pub async fn merge(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let calm = target.clients.clone().into_iter().zip(0..);
    let calm: Vec<_> = calm
        .map(|(address, number)| thread::spawn(move || swaps(&address, number, end)))
        .collect();
    let answers = Rc::new(Answers::default());
    let replicas = target.clients.len();
    let pair = |number: u64| {
        let address = |next: usize| target.clients[(number as usize + next) % replicas].clone();
        let (addresses, answers) = ([address(0), address(1)], answers.clone());
        tokio::task::spawn_local(async move { rounds(number, &addresses, end, &answers).await })
    };
    let pairs: Vec<_> = (0..PAIRS * replicas as u64).map(pair).collect();
    let mut broken = 0.0;
    for pair in pairs {
        broken += f64::from(u8::from(pair.await?.is_err()));
    }
    let mut swaps = Vec::new();
    for calm in calm {
        swaps.extend(calm.join().expect("no client panicked")?);
    }
    let (answered, refused) = answers.counts();
    Ok(figures([
        ("merges_answered", answered as f64),
        ("merges_refused", refused as f64),
        ("broken_connections", broken),
        ("calm_cas", swaps.len() as f64),
        ("calm_cas_p99_ms", percentile(&mut swaps, 0.99) as f64),
        ("calm_cas_longest_ms", percentile(&mut swaps, 1.0) as f64),
    ]))
}

/// Runs rounds on one pair of connections. In each round, the first connection writes a record,
/// sends half of the merges, and deletes the record. The second connection sends the other half of
/// the merges.
async fn rounds(
    number: u64,
    addresses: &[String; 2],
    end: Instant,
    answers: &Answers,
) -> anyhow::Result<()> {
    let [first, second] = addresses;
    let mut wires = [Wire::connect(first).await?, Wire::connect(second).await?];
    let record = record()?;
    let mut due = tokio::time::interval(ROUND);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 1.. {
        if timeout_at(end.into(), due.tick()).await.is_err() {
            break;
        }
        let key = format!("ahead-{number}-{round}");
        for (which, wire) in (0..).zip(&mut wires) {
            let session = session_number(number * 2 + which, round);
            let opened_ms = wire.welcome.log_time_ms;
            let write = |sequence, op| {
                let command = Command::session(session, sequence, 1, op).opened(opened_ms);
                Request::new(round * MERGES + sequence, Some(Body::Command(command)))
            };
            if which == 0 {
                wire.writer
                    .feed(&write(1, Op::put(key.clone(), record.clone())))?;
            }
            for sequence in 2..MERGES {
                let fields = vec![field("f0007".to_owned(), "m".into())];
                let op = Op::put_fields(key.clone(), fields);
                wire.writer.feed(&write(sequence, op))?;
            }
            if which == 0 {
                wire.writer.feed(&write(MERGES, Op::delete(key.clone())))?;
            }
            wire.writer.flush().await?;
        }
        for (which, wire) in (0..).zip(&mut wires) {
            for _ in 2 * which..MERGES {
                let answer = timeout_at(end.into(), wire.reader.next::<Response>()).await;
                let Ok(answer) = answer else {
                    return Ok(());
                };
                answers.count(&answer?.context("closed amid merges")?);
            }
        }
    }
    Ok(())
}

/// Returns the record that a round writes in one put. The fields are not merged into the record,
/// because such merges would be so large that they would have to wait at the replica.
fn record() -> anyhow::Result<Bytes> {
    let value = Bytes::from(vec![b'r'; VALUE_BYTES]);
    let fields = (0..FIELDS).map(|number| field(format!("f{number:04}"), value.clone()));
    let record = Record {
        fields: fields.collect(),
    };
    let mut frame = BytesMut::new();
    encode_frame(&record, &mut frame)?;
    Ok(frame.freeze().split_off(LENGTH_BYTES))
}

/// Sends compare-and-swaps until `end`, and returns the duration of each compare-and-swap, in ms.
/// This function needs a thread of its own, because the attackers keep the main thread busy.
fn swaps(address: &str, number: u64, end: Instant) -> anyhow::Result<Vec<u64>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut wire = Wire::connect(address).await?;
        let mut took_ms = Vec::new();
        while Instant::now() < end {
            let sequence = took_ms.len() as u64 + 1;
            let session = Session {
                client: session_number(CALM, number),
                sequence,
                opened_ms: wire.welcome.log_time_ms,
            };
            // The key never has this version, so nothing is swapped.
            let never = Version { slot: 1, index: 7 };
            let op = Op::cas("calm", "c", Some(never));
            let begun = Instant::now();
            wire.ask(&write(sequence, session, op)).await?;
            took_ms.push(begun.elapsed().as_millis() as u64);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(took_ms)
    })
}
