//! Connections that keep a number of requests in flight: each that is answered is followed by another.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use anyhow::Context as _;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Request, Response};
use tokio::time::timeout_at;

use crate::figures::{Figures, figures};
use crate::wire::Wire;

/// Answers of all connections of an attack.
#[derive(Default)]
pub struct Answers {
    answered: Cell<u64>,
    refused: Cell<u64>,
    /// The last refusal, in words.
    refusal: RefCell<String>,
}

impl Answers {
    pub fn count(&self, answer: &Response) {
        self.answered.set(self.answered.get() + 1);
        if let Some(refusal) = refusal(answer) {
            self.refused.set(self.refused.get() + 1);
            self.refusal.replace(refusal);
        }
    }

    /// Number of answers, and of refusals among them.
    pub fn counts(&self) -> (u64, u64) {
        (self.answered.get(), self.refused.get())
    }

    /// Fails if every request was refused: then nothing was attacked.
    pub fn figures(&self) -> anyhow::Result<Figures> {
        let (answered, refused) = self.counts();
        anyhow::ensure!(
            refused < answered || answered == 0,
            "all requests were refused: {}",
            self.refusal.borrow()
        );
        Ok(figures([
            ("answered", answered as f64),
            ("refused", refused as f64),
        ]))
    }
}

/// Returns why a request was refused, if it was.
pub fn refusal(answer: &Response) -> Option<String> {
    let outcome = answer.outcome.as_ref();
    match outcome.and_then(|outcome| outcome.result.as_ref()) {
        Some(Answer::Error(error)) => Some(error.message.clone()),
        _ => None,
    }
}

/// One request in flight.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// Each lane of a connection has one request in flight.
    pub lane: u64,
    /// The number of the request, which rises.
    pub id: u64,
    /// The replicated clock that the replica reported at the start, in ms.
    pub opened_ms: u64,
}

/// Keeps requests in flight on one connection until `end`.
pub async fn pipeline(
    address: String,
    end: Instant,
    in_flight: u64,
    answers: Rc<Answers>,
    make: impl Fn(Lane) -> Request,
) -> anyhow::Result<()> {
    let mut wire = Wire::connect(&address).await?;
    let opened_ms = wire.welcome.log_time_ms;
    let mut lanes = BTreeMap::new();
    let mut id = 0;
    let mut request = |lane: u64, lanes: &mut BTreeMap<u64, u64>| {
        id += 1;
        lanes.insert(id, lane);
        make(Lane {
            lane,
            id,
            opened_ms,
        })
    };
    for lane in 0..in_flight {
        wire.writer.feed(&request(lane, &mut lanes))?;
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
        anyhow::ensure!(answer.is_some(), "closed amid requests");
        while let Some(answered) = &answer {
            answers.count(answered);
            let lane = lanes.remove(&answered.id);
            let lane = lane.context("an answer to nothing that was asked")?;
            wire.writer.feed(&request(lane, &mut lanes))?;
            answer = wire.reader.next_buffered::<Response>()?;
        }
    }
}

/// Waits for the tasks of all connections. If one of them fails, the attack fails.
pub async fn all(
    tasks: impl IntoIterator<Item = tokio::task::JoinHandle<anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    for task in tasks {
        task.await??;
    }
    Ok(())
}
