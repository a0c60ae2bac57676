//! Connections that always have the same number of requests in flight: when one request is
//! answered, the next one is sent.

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

/// Tally of the answers on all connections of an attack.
#[derive(Default)]
pub struct Answers {
    answered: Cell<u64>,
    refused: Cell<u64>,
    /// Description of the last refusal; empty if nothing was refused.
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

    /// Returns the number of answers, and the number of refusals among these answers.
    pub fn counts(&self) -> (u64, u64) {
        (self.answered.get(), self.refused.get())
    }

    /// Returns the counts as figures. Returns an error if every request was refused, because then
    /// the attack did not take place.
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

/// Returns the reason if the answer is a refusal; otherwise `None`.
pub fn refusal(answer: &Response) -> Option<String> {
    let outcome = answer.outcome.as_ref();
    match outcome.and_then(|outcome| outcome.result.as_ref()) {
        Some(Answer::Error(error)) => Some(error.message.clone()),
        _ => None,
    }
}

/// Parameters for the next request of a lane. A lane has one request in flight at a time.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// Index of the lane on its connection. Each lane has one request in flight at a time.
    pub lane: u64,
    /// Id of the request. It is greater than the ids of all earlier requests.
    pub id: u64,
    /// Replicated clock that the replica reported when the connection was opened, in ms.
    pub opened_ms: u64,
}

/// Keeps requests in flight on one connection at all times until `end`.
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

/// Waits for the tasks of all connections. The attack fails if one of the tasks fails.
pub async fn all(
    tasks: impl IntoIterator<Item = tokio::task::JoinHandle<anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    for task in tasks {
        task.await??;
    }
    Ok(())
}
