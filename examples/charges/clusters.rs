//! The clusters that the cases need, and the preparation of each cluster.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, KeyValue, Request, Response, StatusReply, StatusRequest};

use crate::cases::{Case, KEYS, Stage, key, ranges};
use crate::cluster::{Cluster, LEADER, Recipe, Setting};
use crate::wire::{Wire, read, session_number};

/// Number of keys in each multi-put that writes keys, and in each multi-get that creates demand.
const KEYS_AT_ONCE: usize = 500;
/// Number of lease changes that wait for their answers at the same time.
const CHANGES_AT_ONCE: usize = 16;
/// Longest time to wait until the leader knows the demand. The leader learns the demand slowly,
/// because each replica reports only a few thousand keys per second.
const DEMAND_WITHIN: Duration = Duration::from_secs(120);
/// Percentage of the requested keys for which the leader must know the demand. The percentage is
/// below 100, because a report of a replica has limited space. If keys with many reads fill the
/// report, other keys are omitted.
const DEMAND_KNOWN: usize = 95;

/// A cluster that has been prepared for some of the cases.
pub struct PreparedCluster {
    pub stage: Stage,
    pub cluster: Cluster,
}

impl PreparedCluster {
    /// Starts a cluster, and prepares it as `stage` requires.
    pub async fn start(recipe: &Recipe, stage: Stage) -> anyhow::Result<PreparedCluster> {
        let (strategy, name) = match stage {
            Stage::Plain => ("leader", "plain".to_owned()),
            Stage::Ranges(ranges) => ("leader", format!("ranges-{ranges}")),
            Stage::Demand(keys) => ("quorum", format!("demand-{keys}")),
        };
        let setting = Setting {
            strategy,
            ..Setting::USUAL
        };
        let mut cluster = Cluster::start(recipe, setting, &name)?;
        cluster.ready().await?;
        let this = PreparedCluster { stage, cluster };
        match stage {
            Stage::Plain => this.load().await?,
            Stage::Ranges(count) => this.divide(count).await?,
            Stage::Demand(_) => this.refresh().await?,
        }
        Ok(this)
    }

    fn leader(&self) -> &str {
        &self.cluster.clients[LEADER]
    }

    /// Writes the data that a case needs.
    pub async fn write(&self, case: &Case, connection: u64) -> anyhow::Result<()> {
        write_all(self.leader(), case.prepared.iter().cloned(), connection).await
    }

    async fn load(&self) -> anyhow::Result<()> {
        let entry = |number| KeyValue {
            key: key(number),
            value: Bytes::from_static(b"v0123456"),
        };
        let firsts = (0..KEYS).step_by(KEYS_AT_ONCE);
        let ops =
            firsts.map(|first| Op::multi_put((first..first + KEYS_AT_ONCE).map(entry).collect()));
        write_all(self.leader(), ops, 0).await
    }

    async fn divide(&self, count: usize) -> anyhow::Result<()> {
        let mut wire = Wire::connect(self.leader()).await?;
        let (mut id, mut waiting) = (0, 0);
        let mut changes = ranges(count).into_iter();
        loop {
            while let Some(change) = (waiting < CHANGES_AT_ONCE)
                .then(|| changes.next())
                .flatten()
            {
                id += 1;
                waiting += 1;
                wire.writer
                    .feed(&Request::new(id, Some(Body::Lease(change))))?;
            }
            if waiting == 0 {
                break;
            }
            wire.writer.flush().await?;
            let answer = wire
                .reader
                .next::<Response>()
                .await?
                .context("closed amid changes")?;
            waiting -= 1;
            not_refused(&answer)?;
        }
        let found = self
            .status(StatusRequest {
                leases: true,
                ..StatusRequest::default()
            })
            .await?;
        let found = found.leases.map_or(0, |leases| leases.ranges.len());
        ensure!(
            found == count,
            "{count} ranges were wanted, {found} are there"
        );
        Ok(())
    }

    /// Reads keys until the leader knows the demand for enough of them. The reads are divided among
    /// the replicas, because each replica reports only a limited number of keys per second.
    pub async fn refresh(&self) -> anyhow::Result<()> {
        let Stage::Demand(keys) = self.stage else {
            return Ok(());
        };
        let deadline = Instant::now() + DEMAND_WITHIN;
        loop {
            let counters = self.status(StatusRequest::default()).await?.counters;
            let mut counters = counters.into_iter();
            let known = counters.find(|counter| counter.name == "demand_keys");
            let known = known.map_or(0, |counter| counter.value as usize);
            if known * 100 >= keys * DEMAND_KNOWN {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("demand is known for {known} of {keys} keys after {DEMAND_WITHIN:?}");
            }
            self.ask_for(keys).await?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn ask_for(&self, keys: usize) -> anyhow::Result<()> {
        let part = keys.div_ceil(self.cluster.clients.len());
        for (address, begin) in self.cluster.clients.iter().zip((0..).step_by(part)) {
            let mut wire = Wire::connect(address).await?;
            let end = keys.min(begin + part);
            for (id, first) in (1..).zip((begin..end).step_by(KEYS_AT_ONCE)) {
                let asked = first..end.min(first + KEYS_AT_ONCE);
                let asked = asked.map(|number| format!("{number:x}").into());
                not_refused(&wire.ask(&read(id, Op::multi_get(asked.collect()))).await?)?;
            }
        }
        Ok(())
    }

    async fn status(&self, asked: StatusRequest) -> anyhow::Result<StatusReply> {
        let mut wire = Wire::connect(self.leader()).await?;
        let answer = wire
            .ask(&Request::new(1, Some(Body::Status(asked))))
            .await?;
        let status = answer.status.context("no status in the answer")?;
        Ok(*status)
    }

    /// Returns the ballot round. If two calls return different rounds, there was an election
    /// between them.
    pub async fn ballot_round(&self) -> anyhow::Result<u64> {
        Ok(self.status(StatusRequest::default()).await?.ballot_round)
    }

    /// Returns an error if a replica has ended.
    pub fn ensure_whole(&mut self) -> anyhow::Result<()> {
        let words = self.cluster.last_log_lines();
        ensure!(words.is_empty(), "{words}");
        Ok(())
    }
}

async fn write_all(
    address: &str,
    ops: impl Iterator<Item = Op>,
    connection: u64,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(address).await?;
    for (id, op) in (1..).zip(ops) {
        let command = Command::session(session_number(2, connection), id, id, op);
        let command = command.opened(wire.welcome.log_time_ms);
        wire.ask(&Request::new(id, Some(Body::Command(command))))
            .await?;
    }
    Ok(())
}

fn not_refused(answer: &Response) -> anyhow::Result<()> {
    let result = answer.outcome.as_ref().and_then(|it| it.result.as_ref());
    match result {
        Some(Answer::Error(error)) => bail!("refused: {}", error.message),
        _ => Ok(()),
    }
}
