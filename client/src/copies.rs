//! Sends one request to one replica after another, until a final answer arrives: one that another
//! attempt could not change.
//!
//! **Why the same write may be sent to several replicas.** A write is identified by its (client,
//! sequence), and all copies are equal: they name the same low-water mark and the same reading of
//! the replicated clock at which the session was opened. Results are part of the replicated state.
//! So it does not matter through which replica a copy reaches the log, which replica leads, or
//! whether copies are under way through several replicas at the same time:
//!
//! - The first copy in the log decides. A later copy finds the stored result and is answered with
//!   this result (hazard 21). The result is kept until the session expires or the session's
//!   low-water mark is above the sequence. The mark does not pass the sequence while the write is
//!   being sent, because the write's ticket is released only afterwards. From then on, a late copy
//!   is refused (hazard 39).
//! - The replica that reported the replicated clock as `opened_ms` had executed the log up to this
//!   reading of the clock. The replicated clock never falls, and requests that are sent afterwards,
//!   through any replica, are placed in the log after this reading. So the session is not older
//!   than `opened_ms` says, and is not opened again once it may have expired.
//! - All replicas belong to one cluster; otherwise there would be two states. [`Replicas`] connects
//!   only to the cluster of the first connection.
//!
//! **Meaning of a refusal.** After a write is refused, no copy that follows the refused one in the
//! log is executed at any replica (hazard 77). If the refused copy was the only copy that ever left
//! this client, there is no copy before the refused one either. Then the write has not taken effect
//! and never will, and may be sent under another identity. If there were other copies, one of them
//! may have been executed earlier, and its result forgotten when the session expired. So the client
//! assumes that every copy has left, unless the copy's connection reports that the copy did not
//! leave ([`CallError::Unreachable`]). A copy may have left even if its replica is dead, silent or
//! unavailable.
//!
//! Reads have no identity. Each copy is a separate read, which begins after the caller made the
//! request.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use smallvec::SmallVec;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, sleep_until};

use crate::backoff::Backoff;
use crate::connection::{Call, CallError, Connection, ConnectionState};
use crate::error::{Error, FailedAttempt};
use crate::replicas::Replicas;
use crate::routing::Route;
use crate::types::RefusalKind;
use leasehold_wire::request::Body;
use leasehold_wire::{ErrorCode, Outcome, Response, outcome};

/// A response, with the replica that sent it.
pub(crate) struct Answer<'a> {
    pub response: Response,
    pub from: &'a Connection,
}

/// Replicas to which an operation was sent. A replica is given as the index of its address in the
/// options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationTrace {
    /// Replica that gave the result; `None` if no replica gave a result. A refusal is also a
    /// result.
    pub answered: Option<usize>,
    /// Replicas that gave no result, in the order in which the operation was sent to them.
    pub silent: Vec<usize>,
}

/// A caller's operation. The operation usually consists of one request. A second request is
/// possible only if the first request was refused and certainly never takes effect.
pub(crate) struct OperationAttempts<'a> {
    replicas: &'a Replicas,
    deadline: Instant,
    /// Whether a copy may have reached a replica.
    sent: AtomicBool,
    trace: Mutex<OperationTrace>,
}

impl<'a> OperationAttempts<'a> {
    pub fn new(replicas: &'a Replicas) -> OperationAttempts<'a> {
        OperationAttempts {
            replicas,
            deadline: Instant::now() + replicas.options.request_timeout,
            sent: AtomicBool::new(false),
            trace: Mutex::default(),
        }
    }

    /// Returns the replicas to which the operation was sent so far.
    pub fn trace(&self) -> OperationTrace {
        self.lock_trace().clone()
    }

    fn lock_trace(&self) -> MutexGuard<'_, OperationTrace> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_request(&self, index: usize) {
        let mut trace = self.lock_trace();
        trace.silent.retain(|silent| *silent != index);
        trace.silent.push(index);
    }

    fn record_answer(&self, index: usize) {
        let mut trace = self.lock_trace();
        trace.silent.retain(|silent| *silent != index);
        trace.answered = Some(index);
    }

    /// Records that all copies sent so far were refused. None of these copies has taken effect, and
    /// none of them ever will.
    pub fn mark_unsent(&self) {
        self.sent.store(false, Ordering::Relaxed);
    }

    /// Sends a request, and sends it again if necessary, until a final answer arrives. An answer is
    /// final if another attempt could not change it.
    pub async fn request(&self, body: Body) -> Result<Answer<'_>, Error> {
        let mut copies = Copies::new(self, body);
        let result = copies.run().await;
        result.map_err(|failure| copies.error(failure))
    }
}

/// Reason why there is no answer.
enum Failure {
    Refused {
        error: leasehold_wire::Error,
        /// Whether other copies were sent before the refusal. They may have taken effect.
        resent: bool,
    },
    Timeout,
    Lost,
    Closed,
}

/// A request, with its copies under way.
struct Copies<'a> {
    operation: &'a OperationAttempts<'a>,
    replicas: &'a Replicas,
    body: Body,
    /// Replica to use first, and whether the request should ask for a hint.
    route: Route,
    /// Copies that may still be answered, and the replicas to which these copies were sent. The
    /// first answer is final.
    in_flight: SmallVec<[(usize, Call<'a>); 1]>,
    /// Replica from which an answer is expected now, and the moment at which its time to answer
    /// began. When this time is over, the request is sent to another replica.
    active: Option<(usize, Instant)>,
    /// Replicas that gave no result within their time to answer.
    timed_out: SmallVec<[usize; 2]>,
    /// Replica to which the request was sent first.
    first: Option<usize>,
    /// Number of copies that have left this client, or may have left it.
    attempts: u32,
    /// Back-off for the attempts at the active replica, while this replica is unavailable. Also
    /// contains the time at which the replica became unavailable.
    unavailable: Option<(Backoff, Instant)>,
    /// Time before which no copy is sent.
    not_before: Option<Instant>,
    /// Latest reply or latest failure of each replica that gave no result, as text.
    reasons: BTreeMap<usize, String>,
}

impl<'a> Copies<'a> {
    fn new(operation: &'a OperationAttempts<'a>, body: Body) -> Copies<'a> {
        let replicas = operation.replicas;
        let route = replicas.router.as_ref();
        let route = route.map(|router| router.route(&body, replicas.all()));
        Copies {
            operation,
            replicas,
            body,
            route: route.unwrap_or_default(),
            in_flight: SmallVec::new(),
            active: None,
            timed_out: SmallVec::new(),
            first: None,
            attempts: 0,
            unavailable: None,
            not_before: None,
            reasons: BTreeMap::new(),
        }
    }

    async fn run(&mut self) -> Result<Answer<'a>, Failure> {
        loop {
            // No change is missed after this line.
            let changed = self.replicas.notifier.changed.notified();
            self.send_next()?;
            match self.event(changed).await {
                None => self.check_deadlines()?,
                Some((place, result)) => {
                    let (index, _call) = self.in_flight.remove(place);
                    match result {
                        Err(error) => self.handle_failure(index, error)?,
                        Ok(response) => {
                            if let Some(answer) = self.handle_response(index, response)? {
                                return Ok(answer);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Sends a copy to the nearest replica that has not used up its time to answer. Sends nothing
    /// while another replica still has time to answer, or if no replica can be used. In the second
    /// case, the request is notified when a replica sends a greeting again.
    fn send_next(&mut self) -> Result<(), Failure> {
        if self.active.is_some() || self.not_before.is_some() || !self.may_send() {
            return Ok(());
        }
        let Some(index) = self.next_replica() else {
            return match self.replicas.refusal() {
                Some(error) if self.in_flight.is_empty() => Err(Failure::Refused {
                    error,
                    resent: self.attempts > 0,
                }),
                _ => Ok(()),
            };
        };
        let connection = &self.replicas.all()[index];
        let call = connection.enqueue(self.body.clone(), self.route.hint, &self.operation.sent);
        let call = call.map_err(|_| Failure::Closed)?;
        self.first.get_or_insert(index);
        self.active = Some((index, Instant::now()));
        self.attempts += 1;
        self.operation.record_request(index);
        self.in_flight.push((index, call));
        Ok(())
    }

    fn may_send(&self) -> bool {
        self.attempts <= self.replicas.options.retries
    }

    fn next_replica(&self) -> Option<usize> {
        if self.first.is_none() && self.route.first.is_some() {
            return self.route.first;
        }
        self.replicas.choose(|index| {
            self.timed_out.contains(&index)
                || self.in_flight.iter().any(|(other, _)| *other == index)
        })
    }

    /// Returns the time of the next check. The next check is at the end of the current pause, or at
    /// the end of the active replica's time to answer. It is never later than the deadline.
    fn wake_at(&self) -> Instant {
        let silence_timeout = self.replicas.options.silence_timeout();
        let wake = match (self.active, self.not_before) {
            (Some((_, since)), _) if self.may_ask_another() => Some(since + silence_timeout),
            (None, Some(at)) => Some(at),
            _ => None,
        };
        wake.map_or(self.operation.deadline, |wake| {
            wake.min(self.operation.deadline)
        })
    }

    fn may_ask_another(&self) -> bool {
        self.replicas.are_several() && self.may_send()
    }

    /// Waits until a copy has ended, or until it is time to check again. Returns the index of the
    /// ended copy in `in_flight`, and its result; `None` if it is time to check again.
    async fn event(
        &mut self,
        changed: Notified<'_>,
    ) -> Option<(usize, Result<Response, CallError>)> {
        let wake = sleep_until(self.wake_at());
        let is_looking = self.active.is_none();
        let in_flight = &mut self.in_flight;
        let ended = poll_fn(|context| {
            for (place, (_, call)) in in_flight.iter_mut().enumerate() {
                if let Poll::Ready(result) = Pin::new(call).poll(context) {
                    return Poll::Ready((place, result));
                }
            }
            Poll::Pending
        });
        tokio::select! {
            biased;
            ended = ended => Some(ended),
            () = changed, if is_looking => None,
            () = wake => None,
        }
    }

    fn check_deadlines(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        let silence_timeout = self.replicas.options.silence_timeout();
        if now >= self.operation.deadline {
            return Err(Failure::Timeout);
        }
        if self.not_before.is_some_and(|at| at <= now) {
            self.not_before = None;
        }
        let is_late = |since: Instant| now >= since + silence_timeout;
        if let Some((index, since)) = self.active
            && is_late(since)
            && self.may_ask_another()
        {
            self.active = None;
            self.timed_out.push(index);
        }
        Ok(())
    }

    fn handle_response(
        &mut self,
        index: usize,
        response: Response,
    ) -> Result<Option<Answer<'a>>, Failure> {
        match refusal(response) {
            Err(error) if error.code() == ErrorCode::Unavailable && self.may_send() => {
                self.reasons.insert(index, error.message);
                self.handle_unavailable(index);
                Ok(None)
            }
            result => {
                self.operation.record_answer(index);
                self.update_health(index);
                let resent = self.attempts > 1;
                let response = result.map_err(|error| Failure::Refused { error, resent })?;
                if let Some(router) = &self.replicas.router {
                    router.learn(&self.body, &response);
                }
                let from = &self.replicas.all()[index];
                Ok(Some(Answer { response, from }))
            }
        }
    }

    /// Schedules another attempt at the unavailable replica after a pause, unless the replica has
    /// used up its time.
    fn handle_unavailable(&mut self, index: usize) {
        if self.active.is_none_or(|(active, _)| active != index) {
            return;
        }
        self.active = None;
        let now = Instant::now();
        let (backoff, since) = self.unavailable.get_or_insert((Backoff::new(), now));
        if now < *since + self.replicas.options.silence_timeout() {
            self.not_before = Some(now + backoff.pause());
            return;
        }
        let pause = backoff.pause();
        self.timed_out.push(index);
        if self.next_replica().is_some() {
            self.unavailable = None;
        } else {
            self.timed_out.clear();
            self.not_before = Some(now + pause);
        }
    }

    /// Handles a copy that has ended without a response.
    fn handle_failure(&mut self, index: usize, error: CallError) -> Result<(), Failure> {
        if self.active.is_some_and(|(active, _)| active == index) {
            self.active = None;
        }
        self.timed_out.retain(|timed_out| *timed_out != index);
        match error {
            CallError::Closed => return Err(Failure::Closed),
            CallError::Refused(error) => {
                let resent = self.attempts > 1;
                return Err(Failure::Refused { error, resent });
            }
            CallError::Unreachable(reason) => {
                self.attempts -= 1;
                self.reasons.insert(index, reason);
            }
            CallError::Lost(reason) => {
                self.reasons.insert(index, reason);
                if !self.may_send() && self.in_flight.is_empty() {
                    return Err(Failure::Lost);
                }
            }
        }
        Ok(())
    }

    /// Records that the replica `index` has answered. Other replicas may have used up their time
    /// before this answer arrived. These replicas are suspected, so that other requests avoid them
    /// for now.
    fn update_health(&self, index: usize) {
        if self.first != Some(index) {
            self.replicas.failovers.fetch_add(1, Ordering::Relaxed);
        }
        let is_write = matches!(&self.body, Body::Command(command) if command.is_write());
        let answered = &self.replicas.all()[index];
        answered.reset_missed(is_write);
        if self.timed_out.contains(&index) {
            return;
        }
        for &timed_out in &self.timed_out {
            let connection = &self.replicas.all()[timed_out];
            let call = self.in_flight.iter().find(|(other, _)| *other == timed_out);
            match call.map(|(_, call)| call) {
                // The replica is unavailable.
                None => {
                    connection.suspect(self.reasons.get(&timed_out).cloned().unwrap_or_default())
                }
                Some(call)
                    if call.is_under_way()
                        && connection.record_missed(is_write, call.requested_at) =>
                {
                    let (time, other) = (call.requested_at.elapsed(), &answered.address);
                    let reason = format!("no answer within {time:.1?}, while {other} gave one");
                    connection.suspect(reason);
                }
                Some(_) => {}
            }
        }
    }

    /// Ends all copies and returns the error that the caller gets.
    fn error(mut self, failure: Failure) -> Error {
        let tried = self.tried();
        if matches!(failure, Failure::Timeout) {
            for (index, call) in &self.in_flight {
                self.replicas.all()[*index].suspect_silence(call.requested_at.elapsed());
            }
        }
        self.in_flight.clear();
        let sent = self.operation.sent.load(Ordering::Relaxed);
        match failure {
            Failure::Refused { error, resent } => refused(&error, resent),
            Failure::Timeout => Error::Timeout {
                after: self.replicas.options.request_timeout,
                tried,
                sent,
                is_change: self.body.is_change(),
            },
            Failure::Lost => Error::Lost {
                tried,
                attempts: self.attempts,
            },
            Failure::Closed => Error::Closed,
        }
    }

    /// Returns all replicas that were tried or could not be used. For each replica, also returns
    /// the reason why it gave no result.
    fn tried(&self) -> Vec<FailedAttempt> {
        let reason = |(index, connection): (usize, &Connection)| {
            let is_in_flight = self.in_flight.iter().any(|(other, _)| *other == index);
            let reason = match (is_in_flight, connection.state()) {
                (true, ConnectionState::Connecting) => "no connection yet".to_owned(),
                (true, _) => "no answer".to_owned(),
                (false, ConnectionState::Dead(dead)) => dead.reason,
                (false, _) => self.reasons.get(&index)?.clone(),
            };
            let address = connection.address.clone();
            Some(FailedAttempt { address, reason })
        };
        let all = self.replicas.all().iter().enumerate();
        all.filter_map(reason).collect()
    }
}

/// Returns the response if it answers the request. If the response is a refusal, returns its error.
fn refusal(response: Response) -> Result<Response, leasehold_wire::Error> {
    match response.outcome {
        Some(Outcome {
            result: Some(outcome::Result::Error(error)),
        }) => Err(error),
        _ => Ok(response),
    }
}

/// Builds the error that reports a refusal to the caller. `resent` is true if other copies may have
/// left this client earlier.
pub(crate) fn refused(error: &leasehold_wire::Error, resent: bool) -> Error {
    Error::Refused {
        kind: RefusalKind::from_wire(error.code()),
        message: error.message.clone(),
        resent,
        log_time_ms: error.log_time_ms,
    }
}
