//! The judge: reads all keys through each replica after a loss of power, and compares the values
//! with the acknowledged writes and with each other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold_client::{Client, Error, LeaseChange, Operation, OperationResult, ReadPath};

use crate::cluster::NAMES;
use crate::fleet::{FailedStart, Fleet, PAUSE};
use crate::history::{FoundValue, Loss, LossKind, WriteHistory};

/// Number of keys in one read. The values of these keys must fit into one answer.
const KEYS_AT_ONCE: usize = 32;
/// Time within which an operation must succeed.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Maximum time to wait until a replica has the leases that it needs for local reads.
const LEASES_WITHIN: Duration = Duration::from_secs(10);

/// Values of all keys, as one replica returned them.
type Values = BTreeMap<String, FoundValue>;

/// Result of judging: the losses that were found, and the number of judged reads.
#[derive(Clone, Debug, Default)]
pub struct Judgement {
    pub losses: Vec<Loss>,
    pub reads: u64,
    /// Number of reads that a replica served from its own state.
    pub local_reads: u64,
}

impl Judgement {
    /// Reads all keys through each of the replicas, and judges the values by the writes before
    /// `at_ns`.
    pub async fn read(
        &mut self,
        fleet: &Fleet,
        replicas: &[usize],
        history: &WriteHistory,
        at_ns: u64,
    ) -> Result<(), FailedStart> {
        for &replica in replicas {
            let values = self.values(fleet, replica, history, false).await?;
            for key in history.keys() {
                if let Err(loss) = history.judge(key, values.get(key), at_ns) {
                    self.note(replica, loss);
                }
            }
        }
        Ok(())
    }

    /// Compares the states of all replicas. For this purpose all replicas get leases on all keys,
    /// so that each replica reads its own state.
    pub async fn compare(
        &mut self,
        fleet: &Fleet,
        history: &WriteHistory,
    ) -> Result<(), FailedStart> {
        let all = async |client: Client| {
            let changed = client
                .admin()
                .set_leases(LeaseChange::strategy("all"))
                .await;
            changed.map(drop)
        };
        repeat(fleet, 0, "giving leases to all replicas", all).await?;
        let first = self.values(fleet, 0, history, true).await?;
        for (replica, name) in NAMES.iter().enumerate().take(fleet.clients.len()).skip(1) {
            let values = self.values(fleet, replica, history, true).await?;
            for key in history.keys() {
                if values.get(key) != first.get(key) {
                    let words = format!("key {key}: {} and {name} have different values", NAMES[0]);
                    let kind = LossKind::Wrong;
                    self.losses.push(Loss { kind, words });
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, replica: usize, loss: Loss) {
        let words = format!("{} (read through {})", loss.words, NAMES[replica]);
        self.losses.push(Loss { words, ..loss });
    }

    /// Reads all keys through one replica. If `waits` is true, this function waits until the
    /// replica can read its own state.
    async fn values(
        &mut self,
        fleet: &Fleet,
        replica: usize,
        history: &WriteHistory,
        waits: bool,
    ) -> Result<Values, FailedStart> {
        let keys: Vec<&String> = history.keys().collect();
        let mut values = Values::new();
        let deadline = Instant::now() + LEASES_WITHIN;
        for keys in keys.chunks(KEYS_AT_ONCE) {
            loop {
                let (found, is_local) = read(fleet, replica, keys).await?;
                if is_local || !waits || Instant::now() > deadline {
                    self.reads += 1;
                    self.local_reads += u64::from(is_local);
                    values.extend(found);
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(values)
    }
}

/// Reads some keys at one moment. Returns their values, and whether the replica served the read
/// from its own state.
async fn read(
    fleet: &Fleet,
    replica: usize,
    keys: &[&String],
) -> Result<(Values, bool), FailedStart> {
    let get = async |client: Client| {
        let keys = keys.iter().map(|key| (*key).clone().into()).collect();
        client.execute(Operation::MultiGet { keys }).await
    };
    let reply = repeat(fleet, replica, "reading", get).await?;
    let entries = match reply.result {
        OperationResult::Entries(entries) => entries,
        _ => Vec::new(),
    };
    let values = entries.into_iter().map(|entry| {
        let key = String::from_utf8_lossy(&entry.key).into_owned();
        let (value, version) = (entry.value, entry.version);
        (key, FoundValue { value, version })
    });
    let is_local = matches!(reply.path, ReadPath::Local | ReadPath::Held);
    Ok((values.collect(), is_local))
}

/// Repeats an operation at one replica until it succeeds.
async fn repeat<T>(
    fleet: &Fleet,
    replica: usize,
    what: &str,
    attempt: impl AsyncFn(Client) -> Result<T, Error>,
) -> Result<T, FailedStart> {
    let deadline = Instant::now() + ANSWER_WITHIN;
    loop {
        let error = match once(fleet, replica, &attempt).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if Instant::now() > deadline {
            let (name, within) = (NAMES[replica], ANSWER_WITHIN.as_secs());
            return Err(FailedStart {
                is_refused: false,
                words: format!("{what} through {name} fails for {within} s: {error}"),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn once<T>(
    fleet: &Fleet,
    replica: usize,
    attempt: &impl AsyncFn(Client) -> Result<T, Error>,
) -> Result<T, Error> {
    let client = fleet.client(replica).await?;
    let done = attempt(client.clone()).await;
    client.close();
    done
}
