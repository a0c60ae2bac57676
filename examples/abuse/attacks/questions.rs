//! Requests that are meant for operators, sent at a far higher rate than operators send them. The
//! requests are changes of leases, and status requests with results that take long to find or to
//! encode.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{LeaseRequest, Request, Response, StatusReply, StatusRequest};

use super::Target;
use super::millions::{ASKED_AT_ONCE, ASKED_KEYS, demand_key};
use super::pipeline::{Answers, Lane, all, pipeline, refusal};
use crate::figures::{Figures, figures};
use crate::wire::{Wire, read};

/// Number of connections.
const CONNECTIONS: u64 = 4;
/// Number of requests that are in flight on each connection.
const IN_FLIGHT: u64 = 16;
/// Number of lease changes that wait at the same time. A replica accepts no more.
const CHANGES: u64 = 64;
/// Number of key ranges. This is nearly the maximum number. The first keys of the ranges are about
/// as long as the limit on their total length allows.
const RANGES: u64 = 1_023;
const BOUND_BYTES: usize = 500;
/// Number of ranges to which the lease changes apply in turn. This number is so low that all
/// changes are accepted.
const CHANGED_RANGES: u64 = 400;
/// Longest time to wait until the leader knows the demand. The leader learns the demand slowly,
/// because each replica reports only a few thousand keys per second.
const DEMAND_WITHIN: Duration = Duration::from_secs(90);
/// Percentage of the requested keys for which the leader must know the demand before the attack
/// begins.
const DEMAND_KNOWN: u64 = 95;

/// Reads keys until the leader knows the demand for enough of them. The reads are divided among the
/// replicas, because each replica reports only a limited number of keys per second.
pub async fn make_demand(target: &Target) -> anyhow::Result<Figures> {
    let deadline = Instant::now() + DEMAND_WITHIN;
    loop {
        let part = ASKED_KEYS.div_ceil(target.clients.len() as u64);
        for (address, begin) in target.clients.iter().zip((0..).step_by(part as usize)) {
            let mut wire = Wire::connect(address).await?;
            let end = ASKED_KEYS.min(begin + part);
            for (id, first) in (1..).zip((begin..end).step_by(ASKED_AT_ONCE as usize)) {
                let keys = first..end.min(first + ASKED_AT_ONCE);
                let keys = keys.map(|number| demand_key(number).into());
                wire.ask(&read(id, Op::multi_get(keys.collect()))).await?;
            }
        }
        let counters = status(target, StatusRequest::default()).await?.counters;
        let known = counters.into_iter().find(|it| it.name == "demand_keys");
        let known = known.map_or(0, |counter| counter.value);
        if known * 100 >= ASKED_KEYS * DEMAND_KNOWN {
            return Ok(figures([("keys_with_demand", known as f64)]));
        }
        if Instant::now() > deadline {
            bail!("demand is known for {known} of {ASKED_KEYS} keys after {DEMAND_WITHIN:?}");
        }
    }
}

/// Requests the status repeatedly, including the lease holders of the hottest key.
pub async fn status_holders(target: &Target) -> anyhow::Result<Figures> {
    let holders = true;
    let request = StatusRequest {
        holders,
        ..StatusRequest::default()
    };
    ask_often(target, Body::Status(request)).await
}

/// Creates nearly as many key ranges as are allowed.
pub async fn make_ranges(target: &Target) -> anyhow::Result<Figures> {
    let mut wire = Wire::connect(&target.clients[0]).await?;
    for (id, number) in (1..).zip(0..RANGES / 2) {
        let change = Body::Lease(range(number, BOUND_BYTES, "all"));
        let answer = wire.ask(&Request::new(id, Some(change))).await?;
        if let Some(refusal) = refusal(&answer) {
            bail!("a range was refused: {refusal}");
        }
    }
    let leases = true;
    let found = status(
        target,
        StatusRequest {
            leases,
            ..StatusRequest::default()
        },
    )
    .await?;
    let found = found.leases.map_or(0, |leases| leases.ranges.len() as u64);
    anyhow::ensure!(
        found == RANGES,
        "{RANGES} ranges were wanted, {found} are there"
    );
    Ok(Figures::new())
}

/// Requests the status repeatedly, including the settings of each of many key ranges.
pub async fn status_ranges(target: &Target) -> anyhow::Result<Figures> {
    let leases = true;
    let request = StatusRequest {
        leases,
        ..StatusRequest::default()
    };
    ask_often(target, Body::Status(request)).await
}

/// Changes the leases of small key ranges. The number of changes that wait at the same time is the
/// maximum that a replica accepts.
pub async fn lease_sets(target: &Target) -> anyhow::Result<Figures> {
    let make = |connection: u64, lane: &Lane| {
        let number = (connection + lane.id * CONNECTIONS) % CHANGED_RANGES;
        let turn = lane.id * CONNECTIONS / CHANGED_RANGES;
        let strategy = ["all", "quorum"][turn as usize % 2];
        Body::Lease(range(number, 0, strategy))
    };
    ask(target, CHANGES / CONNECTIONS, make).await
}

async fn ask_often(target: &Target, body: Body) -> anyhow::Result<Figures> {
    ask(target, IN_FLIGHT, move |_, _| body.clone()).await
}

/// Sends requests to the leader on several connections.
async fn ask(
    target: &Target,
    in_flight: u64,
    body: impl Fn(u64, &Lane) -> Body + Clone + 'static,
) -> anyhow::Result<Figures> {
    let answers = Rc::new(Answers::default());
    let end = target.end();
    let one = |connection: u64| {
        let (address, body) = (target.clients[0].clone(), body.clone());
        let make = move |lane: Lane| Request::new(lane.id, Some(body(connection, &lane)));
        tokio::task::spawn_local(pipeline(address, end, in_flight, answers.clone(), make))
    };
    all((0..CONNECTIONS).map(one).collect::<Vec<_>>()).await?;
    answers.figures()
}

/// Builds a lease change for one small key range. The change does not affect other ranges.
fn range(number: u64, bound_bytes: usize, strategy: &str) -> LeaseRequest {
    let bound = |number: u64| {
        let mut bound = format!("range-{number:04}").into_bytes();
        bound.resize(bound_bytes.max(bound.len()), b'.');
        bound.into()
    };
    LeaseRequest {
        from: bound(2 * number),
        to: bound(2 * number + 1),
        strategy: strategy.to_owned(),
        ..LeaseRequest::default()
    }
}

async fn status(target: &Target, request: StatusRequest) -> anyhow::Result<StatusReply> {
    let mut wire = Wire::connect(&target.clients[0]).await?;
    let answer: Response = wire
        .ask(&Request::new(1, Some(Body::Status(request))))
        .await?;
    Ok(*answer.status.context("no status in the answer")?)
}
