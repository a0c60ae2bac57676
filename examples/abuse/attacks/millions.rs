//! Attacks with millions of keys. The keys increase everything that a replica stores, counts or
//! sorts for each key.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leasehold_wire::command::Op;
use leasehold_wire::{KeyValue, Response};
use tokio::time::sleep_until;

use super::Target;
use crate::figures::{Figures, figures};
use crate::wire::{Session, Wire, read, session_number, write};

/// Number of keys of one multi-put.
const KEYS_AT_ONCE: u64 = 500;
/// Number of keys that are loaded per second.
const KEYS_A_SECOND: u64 = 100_000;
/// Maximum number of unanswered multi-puts. The maximum is low, so that puts of other clients do
/// not wait for a long queue of multi-puts.
const UNANSWERED_MAX: u64 = 4;
/// Number of reads per second at each replica after the keys are loaded.
const READS_A_SECOND: u64 = 20_000;
/// Number of keys that are requested at each replica, one after another. After the last key, the
/// first key is requested again. Until its next report to the leader, a replica stores the demand
/// in limited space (16 MiB by default). This space is too small for the demand for all of these
/// keys. So after a few seconds, the space is full before every report.
pub(super) const ASKED_KEYS: u64 = 262_144;
/// Number of keys per second that are requested at each replica. Each report of the replica frees
/// space for only 4,000 to 8,000 keys.
const ASKED_A_SECOND: u64 = 100_000;
/// Number of keys of one multi-get.
pub(super) const ASKED_AT_ONCE: u64 = 500;
const STEP: Duration = Duration::from_millis(10);
/// Time for which all keys are read after they are loaded.
const READING: Duration = Duration::from_secs(12);
/// Time without requests after the reads. During this time, only the choice of lease holders causes
/// costs.
const SILENCE: Duration = Duration::from_secs(10);

fn key(number: u64) -> String {
    format!("many-{number:08}")
}

/// Loads keys at a fixed rate.
pub async fn grow(target: &Target) -> anyhow::Result<Figures> {
    let begun = Instant::now();
    let loaded = load(target, target.end()).await?;
    Ok(figures([
        ("keys_loaded", loaded as f64),
        ("load_s", begun.elapsed().as_secs_f64()),
    ]))
}

async fn load(target: &Target, end: Instant) -> anyhow::Result<u64> {
    let wire = Wire::connect(&target.clients[0]).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let (mut reader, mut writer) = (wire.reader, wire.writer);
    let pause = Duration::from_secs_f64(KEYS_AT_ONCE as f64 / KEYS_A_SECOND as f64);
    let mut due = tokio::time::Instant::now();
    let (mut sent, mut answered) = (0, 0);
    while answered * KEYS_AT_ONCE < target.keys && Instant::now() < end {
        if sent * KEYS_AT_ONCE < target.keys && sent - answered < UNANSWERED_MAX {
            let first = sent * KEYS_AT_ONCE;
            let entries = (first..first + KEYS_AT_ONCE).map(|number| KeyValue {
                key: key(number).into(),
                value: "v".into(),
            });
            sent += 1;
            let session = Session {
                client: session_number(5, 0),
                sequence: sent,
                opened_ms,
            };
            let op = Op::multi_put(entries.collect());
            writer.feed(&write(sent, session, op))?;
            writer.flush().await?;
            due += pause;
        } else {
            due = tokio::time::Instant::now() + pause;
        }
        tokio::select! {
            () = sleep_until(due), if sent - answered < UNANSWERED_MAX => {}
            answer = reader.next::<Response>() => {
                anyhow::ensure!(answer?.is_some(), "closed while keys were loaded");
                answered += 1;
            }
        }
    }
    Ok(answered * KEYS_AT_ONCE)
}

/// Reads many keys at every replica. Each second, every replica reports demand to the leader. For
/// this report, the replica searches all keys for which it has stored demand. The leader continues
/// to choose lease holders for these keys.
pub async fn demand(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let answered = Rc::new(Cell::new(0));
    let one = |(number, address): (usize, &String)| {
        let (address, answered) = (address.clone(), answered.clone());
        let first = number as u64 * ASKED_KEYS / target.clients.len() as u64;
        tokio::task::spawn_local(async move { ask_many(&address, first, end, &answered).await })
    };
    let tasks: Vec<_> = target.clients.iter().enumerate().map(one).collect();
    for task in tasks {
        task.await??;
    }
    let a_second = answered.get() as f64 / target.seconds as f64;
    Ok(figures([("keys_read_a_second", a_second)]))
}

/// Sends multi-gets at a fixed rate. Multi-gets are used because a replica counts every key of a
/// multi-get as demand, although a multi-get costs the machine little.
async fn ask_many(
    address: &str,
    first: u64,
    end: Instant,
    answered: &Cell<u64>,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(address).await?;
    let pause = Duration::from_secs_f64(ASKED_AT_ONCE as f64 / ASKED_A_SECOND as f64);
    let mut due = tokio::time::Instant::now();
    let mut turn = 0;
    while Instant::now() < end {
        sleep_until(due).await;
        due = (due + pause).max(tokio::time::Instant::now() - pause);
        let begin = first + turn * ASKED_AT_ONCE;
        turn += 1;
        let keys =
            (begin..begin + ASKED_AT_ONCE).map(|number| demand_key(number % ASKED_KEYS).into());
        wire.ask(&read(turn, Op::multi_get(keys.collect()))).await?;
        answered.set(answered.get() + ASKED_AT_ONCE);
    }
    Ok(())
}

/// Returns the key with this number. It is as short as possible, so that a replica can store many
/// keys.
pub(super) fn demand_key(number: u64) -> String {
    format!("{number:x}")
}

async fn read_everywhere(target: &Target, keys: u64, end: Instant) -> anyhow::Result<u64> {
    let answered = Rc::new(Cell::new(0));
    let one = |(number, address): (usize, &String)| {
        let (address, answered) = (address.clone(), answered.clone());
        // Each replica begins with a different key, so that at any time it has keys that only it
        // reads.
        let first = number as u64 * keys / target.clients.len() as u64;
        tokio::task::spawn_local(async move {
            read_in_turn(&address, first, keys, end, &answered).await
        })
    };
    let tasks: Vec<_> = target.clients.iter().enumerate().map(one).collect();
    for task in tasks {
        task.await??;
    }
    Ok(answered.get())
}

async fn read_in_turn(
    address: &str,
    first: u64,
    keys: u64,
    end: Instant,
    answered: &Rc<Cell<u64>>,
) -> anyhow::Result<()> {
    let wire = Wire::connect(address).await?;
    let (mut reader, mut writer) = (wire.reader, wire.writer);
    let mine = Rc::new(Cell::new(0_u64));
    let (counted, all) = (mine.clone(), answered.clone());
    tokio::task::spawn_local(async move {
        while let Ok(Some(_)) = reader.next_frame().await {
            counted.set(counted.get() + 1);
            all.set(all.get() + 1);
        }
    });
    let begun = Instant::now();
    let mut due = tokio::time::Instant::now();
    let mut sent = 0;
    while Instant::now() < end {
        due += STEP;
        sleep_until(due).await;
        let wanted = (begun.elapsed().as_secs_f64() * READS_A_SECOND as f64) as u64;
        let room = (mine.get() + READS_A_SECOND / 20).saturating_sub(sent);
        for _ in 0..wanted.saturating_sub(sent).min(room) {
            let asked = key((first + sent) % keys);
            sent += 1;
            writer.feed(&read(sent, Op::get(asked)))?;
        }
        writer.flush().await?;
    }
    Ok(())
}

/// Loads keys and reads all of them. Then sends no requests while the cluster chooses the lease
/// holders.
pub async fn holders(target: &Target) -> anyhow::Result<Figures> {
    let end = target.end();
    let begun = Instant::now();
    let loaded = load(target, end - SILENCE - READING).await?;
    let load_s = begun.elapsed().as_secs_f64();
    let reads = read_everywhere(target, loaded.max(1), end - SILENCE).await?;
    sleep_until(end.into()).await;
    Ok(figures([
        ("keys_loaded", loaded as f64),
        ("load_s", load_s),
        ("reads", reads as f64),
    ]))
}
