//! Sends requests of one kind to a replica, one batch after another. Each batch is written to the
//! socket in one step. So the number of requests that share a system call, for example, is always
//! the same, even on a busy machine.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::BytesMut;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::request::Body;
use leasehold_wire::{Command, ErrorCode, Request, Response, encode_frame};
use tokio::time::timeout;

use crate::cases::{Case, CaseRequest, LaneTurn};
use crate::wire::{Wire, session_number};

/// Longest time to wait for an answer. After this time, the measurement fails.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Number of requests that were answered, together with the last request and its answer.
#[derive(Clone, Debug, Default)]
pub struct AnsweredRequests {
    pub requests: u64,
    /// Number of bytes in the frame of `request`, which is the last request.
    pub bytes_in: usize,
    /// Number of bytes in the frame of `answer`.
    pub bytes_out: usize,
    pub request: Request,
    pub answer: Response,
    /// Reason for a refusal that the case does not expect; `None` if there was no such refusal.
    pub refusal: Option<String>,
}

/// A connection, and its requests in flight.
pub struct Load<'a> {
    case: &'a Case,
    wire: Wire,
    client: u64,
    last_id: u64,
    /// Lanes of the requests in flight, by the ids of the requests.
    in_flight: BTreeMap<u64, usize>,
    /// Number of requests that each lane has sent so far.
    numbers: Vec<u64>,
    answered: AnsweredRequests,
    last_request: Request,
    last_answer: Response,
}

impl<'a> Load<'a> {
    /// Connects to a replica. `connection` is a number that no other connection of the run has.
    pub async fn connect(
        case: &'a Case,
        address: &str,
        connection: u64,
    ) -> anyhow::Result<Load<'a>> {
        Ok(Load {
            case,
            wire: Wire::connect(address).await?,
            client: session_number(1, connection),
            last_id: 0,
            in_flight: BTreeMap::new(),
            numbers: vec![0; case.batch],
            answered: AnsweredRequests::default(),
            last_request: Request::default(),
            last_answer: Response::default(),
        })
    }

    /// Sends batches for the given time. Each batch is sent after the previous batch is answered.
    /// Stops after a refusal that the case does not expect.
    pub async fn run(&mut self, length: Duration) -> anyhow::Result<AnsweredRequests> {
        self.answered = AnsweredRequests::default();
        let end = Instant::now() + length;
        let mut last: Vec<Option<Response>> = vec![None; self.case.batch];
        while self.answered.requests == 0
            || (Instant::now() < end && self.answered.refusal.is_none())
        {
            for (lane, last) in last.iter().enumerate() {
                self.send(lane, last.as_ref())?;
            }
            self.wire.writer.flush().await?;
            while !self.in_flight.is_empty() {
                let answer = timeout(ANSWER_WITHIN, self.wire.reader.next::<Response>()).await;
                let answer = answer.context("no answer came")??;
                let answer = answer.context("closed instead of an answer")?;
                let lane = self.in_flight.remove(&answer.id);
                self.count(&answer);
                last[lane.context("an answer to nothing that was asked")?] = Some(answer);
            }
        }
        self.last_answer = last.pop().flatten().unwrap_or_default();
        let (mut request, mut answer) = (BytesMut::new(), BytesMut::new());
        encode_frame(&self.last_request, &mut request)?;
        encode_frame(&self.last_answer, &mut answer)?;
        Ok(AnsweredRequests {
            bytes_in: request.len(),
            bytes_out: answer.len(),
            request: self.last_request.clone(),
            answer: self.last_answer.clone(),
            ..self.answered.clone()
        })
    }

    fn send(&mut self, lane: usize, last: Option<&Response>) -> anyhow::Result<()> {
        let number = self.numbers[lane];
        self.numbers[lane] += 1;
        self.last_id += 1;
        let id = self.last_id;
        let turn = LaneTurn { lane, number, last };
        let body = match (self.case.ask)(&turn) {
            CaseRequest::Op(op) => {
                let command = if op.is_write() {
                    let oldest = self.in_flight.keys().next().copied().unwrap_or(id);
                    Command::session(self.client, id, oldest, op)
                        .opened(self.wire.welcome.log_time_ms)
                } else {
                    op.into()
                };
                Body::Command(command)
            }
            CaseRequest::Operator(body) => body,
        };
        self.in_flight.insert(id, lane);
        self.last_request = Request::new(id, Some(body));
        self.wire.writer.feed(&self.last_request)?;
        Ok(())
    }

    fn count(&mut self, response: &Response) {
        self.answered.requests += 1;
        let outcome = response.outcome.as_ref();
        let Some(Answer::Error(error)) = outcome.and_then(|outcome| outcome.result.as_ref()) else {
            return;
        };
        let expected = self.case.refused == Some(error.code());
        if !expected {
            self.answered.refusal = Some(error.message.clone());
        }
    }
}

/// Returns the name for this kind of answer in the report.
pub fn name(response: &Response) -> String {
    let result = response.outcome.as_ref().and_then(|it| it.result.as_ref());
    match result {
        Some(Answer::Written(_)) => "written".to_owned(),
        Some(Answer::Value(_)) => "value".to_owned(),
        Some(Answer::Missing(_)) => "missing".to_owned(),
        Some(Answer::Mismatch(_)) => "mismatch".to_owned(),
        Some(Answer::Entries(_)) => "entries".to_owned(),
        Some(Answer::Txn(result)) if result.failed.is_some() => "or_else".to_owned(),
        Some(Answer::Txn(_)) => "then".to_owned(),
        Some(Answer::Error(error)) => {
            let code = ErrorCode::try_from(error.code).unwrap_or(ErrorCode::Internal);
            code.as_str_name().to_lowercase()
        }
        None => "status".to_owned(),
    }
}
