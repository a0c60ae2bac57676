//! Final checks of a round. After all faults have ended, each replica must serve. Then all replicas
//! are killed and started again, and all keys are read through each of them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use leasehold_client::Client;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Entry, Version};
use tokio::time::sleep;

use super::effects::Effects;
use super::keys::{COUNTERS, HOT, LISTS, group_keys, group_of};
use super::record::{CompletedOperation, OperationOutcome, RoundRecord};
use super::request::{OperationKind, OperationRequest};
use crate::backend::key_name;
use crate::backend::local::LocalCluster;
use crate::topology::Topology;

/// Maximum time from the end of all faults until each replica serves requests again.
const RECOVERY_MAX: Duration = Duration::from_secs(60);
/// Timeout of one attempt of a read or write.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Pause between two attempts, and between two checks of the processes.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of keys that one scan reads. The values of these keys must fit into one answer.
const SCAN_KEYS: u64 = 1000;
/// Key that is written to see whether a replica accepts writes. No client uses this key.
const PROBE: u64 = 9_999;
/// Lowest ID of the clients that read at the end of a round. The clients that send requests during
/// the round have lower IDs.
const READERS_FROM: u32 = 1 << 16;

/// All entries that were read through one replica: keys, values and versions.
type Dump = Vec<(Bytes, Bytes, Option<Version>)>;

/// Final check of a round. This check requires that every replica serves requests, and that all
/// replicas have the same data.
pub struct FinalCheck<'a> {
    /// Cluster of the round. All faults have ended.
    pub cluster: &'a mut LocalCluster,
    /// Sites of the replicas.
    pub sites: &'a Topology,
    /// Time at which the round began.
    pub began: Instant,
    /// Number of groups of keys that clients have begun to use.
    pub groups: u64,
}

/// Violations by replicas, such as different data at two replicas. Each violation is described by
/// one message.
pub type ReplicaViolations = Vec<String>;

impl FinalCheck<'_> {
    /// Waits until each replica has served a write and a read.
    ///
    /// # Errors
    /// If a replica does not serve within a minute, or a process has ended by itself.
    pub async fn wait_until_serving(&mut self) -> anyhow::Result<()> {
        for site in 0..self.cluster.client_addresses().len() {
            let client = self.client(site).await?;
            let value = Bytes::copy_from_slice(&(site as u64).to_be_bytes());
            self.retry(site, || client.put(key_name(PROBE), value.clone()))
                .await?;
            self.retry(site, || client.get(key_name(PROBE))).await?;
        }
        Ok(())
    }

    /// Reads all keys through each replica, and adds the reads to the record. Returns the
    /// differences between replicas.
    ///
    /// # Errors
    /// If a replica does not serve within a minute, or a process has ended by itself.
    pub async fn read_everything(
        &mut self,
        record: &mut RoundRecord,
    ) -> anyhow::Result<ReplicaViolations> {
        let mut dumps: Vec<Dump> = Vec::new();
        for site in 0..self.cluster.client_addresses().len() {
            let client = self.client(site).await?;
            let mut dump = Dump::new();
            for request in self.scans() {
                let entries = self.read(site, &client, &request, record).await?;
                dump.extend(
                    entries
                        .into_iter()
                        .map(|entry| (entry.key, entry.value, entry.version)),
                );
            }
            for key in HOT.chain(LISTS.start..COUNTERS.end) {
                let get = OperationRequest::read(OperationKind::Get, vec![key]);
                self.read(site, &client, &get, record).await?;
            }
            dumps.push(dump);
        }
        Ok(differences(&dumps, &self.sites.names()))
    }

    /// Returns scans that together cover every key that clients may have written.
    fn scans(&self) -> Vec<OperationRequest> {
        let grouped = group_keys(0).start..group_keys(self.groups).start;
        let all = [HOT.start..COUNTERS.end, grouped];
        let chunk = |from: u64, end: u64| {
            let keys = from..(from + SCAN_KEYS).min(end);
            OperationRequest::read(OperationKind::Scan, keys.collect())
        };
        let chunks = |range: std::ops::Range<u64>| {
            let end = range.end;
            range
                .step_by(SCAN_KEYS as usize)
                .map(move |from| chunk(from, end))
        };
        all.into_iter().flat_map(chunks).collect()
    }

    async fn client(&mut self, site: usize) -> anyhow::Result<Client> {
        let address = self.cluster.client_addresses()[site];
        let mut options = self.cluster.client_access().options([address]);
        options.connect_timeout = ATTEMPT;
        options.request_timeout = ATTEMPT;
        self.retry(site, || Client::connect(options.clone())).await
    }

    async fn read(
        &mut self,
        site: usize,
        client: &Client,
        request: &OperationRequest,
        record: &mut RoundRecord,
    ) -> anyhow::Result<Vec<Entry>> {
        // The read begins with the attempt that is answered, not with the first one.
        let began = self.began;
        let attempt = || async {
            let began_ns = began.elapsed().as_nanos() as u64;
            client
                .raw()
                .execute(request.op())
                .await
                .map(|reply| (began_ns, reply))
        };
        let (began_ns, reply) = self.retry(site, attempt).await?;
        let now_ns = began.elapsed().as_nanos() as u64;
        let answer = reply.outcome.result.context("an answer without a result")?;
        match request.effects_of(&answer) {
            Ok(effects) => by_group(effects).into_iter().for_each(|effects| {
                record.add_final_read(&CompletedOperation {
                    client: READERS_FROM + site as u32,
                    site,
                    roams: false,
                    kind: request.kind,
                    began_ns,
                    now_ns,
                    end: OperationOutcome::Answered(effects),
                });
            }),
            Err(wrong) => record.wrong(wrong.0),
        }
        Ok(match answer {
            Answer::Entries(entries) => entries.entries,
            _ => Vec::new(),
        })
    }

    /// Repeats `attempt` until it succeeds, or [`RECOVERY_MAX`] has passed.
    async fn retry<T, F>(
        &mut self,
        site: usize,
        mut attempt: impl FnMut() -> F,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, leasehold_client::Error>>,
    {
        let deadline = Instant::now() + RECOVERY_MAX;
        loop {
            super::check_processes(self.cluster, self.sites)?;
            let error = match attempt().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                bail!(
                    "the replica of {} does not serve, {} s after everything was well again: {error}",
                    self.sites.sites()[site].name,
                    RECOVERY_MAX.as_secs()
                );
            }
            sleep(PAUSE).await;
        }
    }
}

/// Splits the effects of an operation: those on lists and counters, those on all hot and cold keys,
/// and those on each group of keys.
fn by_group(effects: Effects) -> Vec<Effects> {
    let Effects { parts, growths } = effects;
    let of = |(key, _): &(u64, _)| group_of(*key);
    let of_groups = parts.chunk_by(|a, b| of(a) == of(b));
    let mut split: Vec<Effects> = of_groups.map(|of_group| of_group.to_vec().into()).collect();
    let parts = Vec::new();
    split.push(Effects { parts, growths });
    split
}

/// Compares the entries and versions of all replicas with those of the first replica. Returns a
/// message for each replica that differs.
fn differences(dumps: &[Dump], names: &[&str]) -> ReplicaViolations {
    let mut violations = ReplicaViolations::new();
    let others = dumps.iter().enumerate().skip(1);
    for (site, dump) in others.filter(|(_, dump)| **dump != dumps[0]) {
        let differs = |(a, b): &(&_, &_)| a != b;
        let first = dumps[0].iter().zip(dump).find(differs);
        let key = first.map(|((key, ..), _)| String::from_utf8_lossy(key).into_owned());
        violations.push(format!(
            "the replicas of {} and {} hold different states: {} and {} keys, the first difference at {}",
            names[0],
            names[site],
            dumps[0].len(),
            dump.len(),
            key.unwrap_or("the end of one".to_owned())
        ));
    }
    violations
}
