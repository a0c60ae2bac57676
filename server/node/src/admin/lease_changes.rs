//! Changes of leases that clients have requested and that are not answered yet. Any replica accepts
//! such a request and passes it to the leader. The replica that accepted the request answers the
//! client once the change is in force and this replica has executed it.

use std::time::Duration;

use leasehold_leases::{
    Configs, CostSettings, Key, KeyRange, ReplicaId, ReplicaSet, StrategySpec, Time,
    UnlistedHolders,
};
use leasehold_wire::{Error, ErrorCode, LeaseRequest};

use leasehold_replica::action::ClientHandle;
use leasehold_replica::input::OperatorRequest;
use leasehold_replica::lease_set::{Durations, InForce, LeaseAnswer, LeaseSet, Refusal};

/// Time after which a request to the leader is repeated. The request or its answer may have been
/// lost, or another replica may lead by now.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum lease duration that may be requested: one day, in ms.
const DURATION_MS_MAX: u64 = 24 * 3600 * 1000;

/// Maximum number of requested changes that wait for an answer at the same time.
const WAITING_MAX: usize = 64;

/// A change of leases that a client has requested and that is not answered yet.
#[derive(Debug)]
struct PendingLeaseChange {
    /// Number that identifies the request. The leader's answer is recognized by this number.
    ask: u64,
    client: ClientHandle,
    set: LeaseSet,
    /// The leader's answer; `None` before it has arrived.
    in_force: Option<InForce>,
    /// Reason why the leader could not accept the change yet.
    busy: Option<String>,
    retry_at: Time,
    deadline: Time,
}

/// Changes of leases that clients requested and that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct LeaseChanges {
    /// Number of changes that clients have requested since the start.
    submitted: u64,
    waiting: Vec<PendingLeaseChange>,
    /// Whether the last call of [`Self::take_ended`] reached its limit. If so, more changes may
    /// have ended, so the next call is due immediately.
    more: bool,
}

/// Part of the replica's state that is needed to check requests for leases.
pub(crate) struct LeaseChangeContext<'a> {
    pub now: Time,
    /// Names of all replicas.
    pub names: &'a [String],
    pub configs: &'a Configs,
    pub leader: Option<ReplicaId>,
    /// Time after which an unanswered request is abandoned.
    pub timeout: Duration,
}

impl LeaseChanges {
    /// Adds a client's request to change leases.
    ///
    /// # Errors
    /// Fails if the request can never be granted. The error contains the reason and values that
    /// would be accepted. Also fails if too many requests wait.
    pub(crate) fn submit(
        &mut self,
        client: ClientHandle,
        request: &LeaseRequest,
        context: &LeaseChangeContext<'_>,
    ) -> Result<(), Error> {
        let set = parse(request, context)?;
        if self.waiting.len() >= WAITING_MAX {
            let problem =
                format!("{WAITING_MAX} changes of leases wait for an answer here: ask again");
            return Err(Error::new(ErrorCode::Unavailable, problem));
        }
        self.submitted += 1;
        self.waiting.push(PendingLeaseChange {
            ask: self.submitted,
            client,
            set,
            in_force: None,
            busy: None,
            retry_at: context.now,
            deadline: context.now + context.timeout,
        });
        Ok(())
    }

    /// Processes the leader's answer to a request. If the leader refuses the request permanently,
    /// returns the client to notify. If the leader is busy, the request is repeated later.
    pub(crate) fn note_answer(
        &mut self,
        ask: u64,
        answer: &LeaseAnswer,
    ) -> Option<(ClientHandle, Error)> {
        let index = self.waiting.iter().position(|change| change.ask == ask)?;
        match answer {
            Ok(in_force) => {
                self.waiting[index].in_force = Some(*in_force);
                None
            }
            Err(Refusal::Busy(reason)) => {
                self.waiting[index].busy = Some(reason.clone());
                None
            }
            Err(Refusal::Invalid(reason)) => {
                let change = self.waiting.remove(index);
                Some((change.client, bad_request(reason)))
            }
        }
    }

    /// Returns the requests that must be passed to the replica now.
    pub(crate) fn due(&mut self, now: Time) -> Vec<OperatorRequest> {
        let due = |change: &PendingLeaseChange| change.in_force.is_none() && now >= change.retry_at;
        let waiting = self.waiting.iter_mut().filter(|change| due(change));
        waiting
            .map(|change| {
                change.retry_at = now + RETRY_INTERVAL;
                OperatorRequest::Lease {
                    ask: change.ask,
                    set: change.set.clone(),
                }
            })
            .collect()
    }

    /// Removes up to `most` requests that have ended. For each request, returns the client and the
    /// result. The result is the configuration in force, or the reason why no answer came.
    pub(crate) fn take_ended(
        &mut self,
        context: &LeaseChangeContext<'_>,
        most: usize,
    ) -> Vec<(ClientHandle, Result<InForce, Error>)> {
        let executed = context.configs.newest();
        let ended = self.waiting.extract_if(.., |change| {
            change.in_force.is_some_and(|it| it.config <= executed)
                || context.now >= change.deadline
        });
        let ended: Vec<PendingLeaseChange> = ended.take(most).collect();
        self.more = ended.len() == most;
        ended
            .into_iter()
            .map(|change| {
                let answer = change.in_force.filter(|it| it.config <= executed);
                (
                    change.client,
                    answer.ok_or_else(|| context.timeout_error(change.busy)),
                )
            })
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the next time at which a request must be repeated or times out.
    pub(crate) fn next_deadline(&self) -> Time {
        if self.more && !self.is_empty() {
            return Time::ZERO;
        }
        let due = |change: &PendingLeaseChange| match change.in_force {
            None => change.deadline.min(change.retry_at),
            Some(_) => change.deadline,
        };
        self.waiting.iter().map(due).min().unwrap_or(Time::MAX)
    }
}

impl LeaseChangeContext<'_> {
    fn timeout_error(&self, busy: Option<String>) -> Error {
        let leader = self
            .leader
            .and_then(|leader| self.names.get(leader.index()));
        let silent = leader.map_or("nobody leads", |_| "the leader did not answer");
        let reason = busy.as_deref().unwrap_or(silent);
        let problem = format!(
            "not in force within {:.1} s: {reason}. It may still come into force; `leasehold lease show` says what is, \
             and asking again does no harm",
            self.timeout.as_secs_f64()
        );
        Error::new(ErrorCode::Unavailable, problem)
    }
}

fn bad_request(problem: impl Into<String>) -> Error {
    Error::new(ErrorCode::BadRequest, problem)
}

fn parse(request: &LeaseRequest, context: &LeaseChangeContext<'_>) -> Result<LeaseSet, Error> {
    let range = range(request)?;
    let spec = strategy(request, &range, context)?;
    let ms = |field: &str, found: Option<u64>| match found {
        Some(ms) if !(1..=DURATION_MS_MAX).contains(&ms) => Err(bad_request(format!(
            "{field}: {ms} ms; accepted are 1 to {DURATION_MS_MAX}"
        ))),
        found => Ok(found.map(Duration::from_millis)),
    };
    let durations = Durations {
        t_lease: ms("t_lease_ms", request.t_lease_ms)?,
        t_guard: ms("t_guard_ms", request.t_guard_ms)?,
        renew: ms("renew_ms", request.renew_ms)?,
        t_grace: ms("grace_ms", request.grace_ms)?,
    };
    if spec.is_none() && durations == Durations::default() {
        return Err(bad_request(
            "nothing to change: give a strategy, holders, weights or durations",
        ));
    }
    if !range.is_all() && durations != Durations::default() {
        return Err(bad_request(
            "range: durations are the same for all keys; change them without a range",
        ));
    }
    Ok(LeaseSet {
        strategies: spec.map(|spec| (range, spec)).into_iter().collect(),
        durations,
        force: request.force,
    })
}

/// Reads the range of keys to which a request applies.
pub(crate) fn range(request: &LeaseRequest) -> Result<KeyRange, Error> {
    let key = |key: &Key| Key::copy_from_slice(key);
    let (from, to) = (key(&request.from), key(&request.to));
    KeyRange::new(from, (!to.is_empty()).then_some(to)).ok_or_else(|| {
        bad_request(format!(
            "range: it ends at {:?}, which is not after its start, {:?}",
            String::from_utf8_lossy(&request.to),
            String::from_utf8_lossy(&request.from)
        ))
    })
}

/// Returns the requested strategy with its settings; `None` if the request changes only durations.
fn strategy(
    request: &LeaseRequest,
    range: &KeyRange,
    context: &LeaseChangeContext<'_>,
) -> Result<Option<StrategySpec>, Error> {
    let holders = !request.holders.is_empty();
    let unlisted = !request.unlisted.is_empty();
    let weighs = request.read_weight.is_some() || request.spare.is_some();
    let name = match request.strategy.as_str() {
        "" if holders => "fixed",
        "" if unlisted => "quorum",
        "" if weighs => "cost",
        "" => return Ok(None),
        name => name,
    };
    let for_another = |given: bool, field: &str, strategy: &str| {
        if given && name != strategy {
            Err(bad_request(format!(
                "{field}: only the strategy {strategy} looks at it; leave it out, or ask for {strategy}"
            )))
        } else {
            Ok(())
        }
    };
    for_another(holders, "holders", "fixed")?;
    for_another(unlisted, "unlisted", "quorum")?;
    for_another(request.read_weight.is_some(), "read_weight", "cost")?;
    for_another(request.spare.is_some(), "spare", "cost")?;
    Ok(Some(match name {
        "none" => StrategySpec::None,
        "leader" => StrategySpec::Leader,
        "all" => StrategySpec::All,
        "quorum" => StrategySpec::Quorum {
            unlisted: match request.unlisted.as_str() {
                "" => present_unlisted(context.configs.strategy_of(range.from())),
                "nearest" => UnlistedHolders::Nearest,
                "leader" => UnlistedHolders::Leader,
                other => {
                    let problem = format!("unlisted: {other:?}; accepted are nearest, leader");
                    return Err(bad_request(problem));
                }
            },
        },
        "fixed" if holders => StrategySpec::Fixed {
            holders: Some(replica_ids(&request.holders, context.names)?),
        },
        "fixed" => {
            let problem =
                "holders: the strategy fixed needs at least one node, as in --holders CA,JP";
            return Err(bad_request(problem));
        }
        "cost" => StrategySpec::Cost(cost(request, range, context)?),
        other => {
            let names = StrategySpec::NAMES.join(", ");
            return Err(bad_request(format!(
                "strategy: {other:?}; accepted are {names}"
            )));
        }
    }))
}

/// Returns the settings of the strategy `cost` after the requested change. Settings that the
/// request omits stay unchanged.
fn cost(
    request: &LeaseRequest,
    range: &KeyRange,
    context: &LeaseChangeContext<'_>,
) -> Result<CostSettings, Error> {
    let present = match context.configs.strategy_of(range.from()) {
        StrategySpec::Cost(settings) => *settings,
        _ => CostSettings::default(),
    };
    let most = context.names.len() as u32 - 1;
    let spare = request.spare.unwrap_or(present.spare.into());
    if spare > most {
        return Err(bad_request(format!(
            "spare: {spare}; accepted are 0 to {most}: one less than there are nodes"
        )));
    }
    let weight = request.read_weight.unwrap_or(present.read_weight());
    let settings = CostSettings::new(weight, spare as u8, present.prior);
    settings.ok_or_else(|| {
        bad_request(format!(
            "read_weight: {weight}; accepted are 0 (only writes count) to 1 (only reads count)"
        ))
    })
}

fn present_unlisted(spec: &StrategySpec) -> UnlistedHolders {
    match spec {
        StrategySpec::Quorum { unlisted } => *unlisted,
        _ => UnlistedHolders::default(),
    }
}

fn replica_ids(holders: &[String], names: &[String]) -> Result<ReplicaSet, Error> {
    let index = |holder: &String| names.iter().position(|name| name == holder);
    let id = |holder| {
        index(holder)
            .map(|index| ReplicaId(index as u8))
            .ok_or_else(|| {
                bad_request(format!(
                    "holders: there is no node {holder:?}; the cluster has {}",
                    names.join(", ")
                ))
            })
    };
    holders.iter().map(id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    fn client(request: u64) -> ClientHandle {
        ClientHandle {
            connection: 1,
            request,
        }
    }

    fn all() -> LeaseRequest {
        LeaseRequest {
            strategy: "all".to_owned(),
            ..LeaseRequest::default()
        }
    }

    /// Calls `check` with a context in which the time is `at_s` seconds.
    fn with_context<T>(at_s: u64, check: impl FnOnce(&LeaseChangeContext<'_>) -> T) -> T {
        let names = ["CA", "JP", "DE"].map(str::to_owned);
        check(&LeaseChangeContext {
            now: Time::ZERO + Duration::from_secs(at_s),
            names: &names,
            configs: &Configs::new(3),
            leader: Some(ReplicaId(0)),
            timeout: TIMEOUT,
        })
    }

    #[test]
    fn no_more_wait_than_may_and_who_is_too_many_may_ask_again() {
        let mut changes = LeaseChanges::default();
        with_context(0, |context| {
            for request in 0..WAITING_MAX as u64 {
                assert_eq!(changes.submit(client(request), &all(), context), Ok(()));
            }
            let refusal = changes
                .submit(client(64), &all(), context)
                .expect_err("too many");
            assert_eq!(refusal.code(), ErrorCode::Unavailable);
            assert!(refusal.message.contains("64 changes"), "{refusal:?}");
            // An impossible request is still refused as impossible.
            let refusal = changes.submit(client(64), &LeaseRequest::default(), context);
            assert_eq!(refusal.expect_err("nothing").code(), ErrorCode::BadRequest);
        });
        // Once one request has ended there is room for another.
        let refusal = Err(Refusal::Invalid("no".to_owned()));
        assert!(changes.note_answer(1, &refusal).is_some());
        with_context(1, |context| {
            assert_eq!(changes.submit(client(65), &all(), context), Ok(()))
        });
    }

    /// Few answers are sent at once, because an answer contains all ranges and may have up to 1
    /// MiB.
    #[test]
    fn some_of_many_that_end_at_once_are_answered_now_and_the_others_soon() {
        let mut changes = LeaseChanges::default();
        with_context(0, |context| {
            for request in 1..=5 {
                let taken = changes.submit(client(request), &all(), context);
                taken.expect("there is room");
            }
        });
        let answered = with_context(9, |context| {
            let mut answered = Vec::new();
            for expected in [2, 2, 1] {
                let ended = changes.take_ended(context, 2);
                assert_eq!(ended.len(), expected);
                assert_eq!(changes.next_deadline() == Time::ZERO, expected == 2);
                answered.extend(ended.into_iter().map(|(client, _)| client.request));
            }
            answered
        });
        assert_eq!(answered, [1, 2, 3, 4, 5]);
        assert!(changes.is_empty());
    }

    #[test]
    fn a_busy_leader_is_asked_again_and_its_reason_told_when_patience_ends() {
        let mut changes = LeaseChanges::default();
        with_context(0, |context| {
            changes
                .submit(client(1), &all(), context)
                .expect("there is room");
            assert_eq!(changes.due(context.now).len(), 1);
        });
        let busy = Err(Refusal::Busy("full".to_owned()));
        assert_eq!(changes.note_answer(1, &busy), None);
        let again = with_context(1, |context| changes.due(context.now));
        assert!(matches!(again[..], [OperatorRequest::Lease { ask: 1, .. }]));
        let ended = with_context(5, |context| changes.take_ended(context, 64));
        let [(to, Err(refusal))] = &ended[..] else {
            panic!("one ends: {ended:?}");
        };
        assert_eq!((*to, refusal.code()), (client(1), ErrorCode::Unavailable));
        assert!(refusal.message.contains("full"), "{refusal:?}");
    }
}
