//! Changes of leases that clients asked for and that are not answered yet. Any replica takes
//! one, passes it on to the leader, and answers once it is in force and executed here.

use std::time::Duration;

use leasehold_leases::{
    Configs, CostSettings, Key, KeyRange, ReplicaId, ReplicaSet, StrategySpec, Time, Unlisted,
};
use leasehold_wire::{Error, ErrorCode, LeaseRequest};

use leasehold_replica::action::ClientHandle;
use leasehold_replica::input::Operator;
use leasehold_replica::lease_set::{Durations, InForce, LeaseAnswer, LeaseSet, Refusal};

/// Time until the leader is asked again: the request or the answer may be lost, and another
/// replica may lead.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Longest duration that may be asked for: a day, far from any overflow.
const SPAN_MS_MAX: u64 = 24 * 3600 * 1000;

/// Most changes that wait for an answer at a time.
const WAITING_MAX: usize = 64;

/// A change that is asked for.
#[derive(Debug)]
struct Wish {
    /// Its number, for the answer.
    ask: u64,
    client: ClientHandle,
    set: LeaseSet,
    /// Answer of the leader.
    in_force: Option<InForce>,
    /// Reason why the leader could not take it yet.
    busy: Option<String>,
    ask_next: Time,
    give_up: Time,
}

/// Changes of leases that clients asked for and that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct LeaseWishes {
    /// Number of changes that were asked for.
    asked: u64,
    waiting: Vec<Wish>,
    /// The last [`Self::take_ended`] reached its limit: more wishes may have ended, and are taken
    /// without waiting.
    more: bool,
}

/// Context in which a replica looks at admin requests for leases.
pub(super) struct Scene<'a> {
    pub now: Time,
    /// Names of all replicas.
    pub names: &'a [String],
    pub configs: &'a Configs,
    pub leader: Option<ReplicaId>,
    /// Time until a request is abandoned.
    pub patience: Duration,
}

impl LeaseWishes {
    /// A client asks.
    ///
    /// # Errors
    /// Why it can never be, with what would do; or that too many wait.
    pub(super) fn ask(
        &mut self,
        client: ClientHandle,
        request: &LeaseRequest,
        scene: &Scene<'_>,
    ) -> Result<(), Error> {
        let set = read(request, scene)?;
        if self.waiting.len() >= WAITING_MAX {
            let problem =
                format!("{WAITING_MAX} changes of leases wait for an answer here: ask again");
            return Err(Error::new(ErrorCode::Unavailable, problem));
        }
        self.asked += 1;
        self.waiting.push(Wish {
            ask: self.asked,
            client,
            set,
            in_force: None,
            busy: None,
            ask_next: scene.now,
            give_up: scene.now + scene.patience,
        });
        Ok(())
    }

    /// Takes the leader's answer. Returns the client to notify, if the leader refuses for good.
    /// A leader that is busy is asked again.
    pub(super) fn answered(
        &mut self,
        ask: u64,
        answer: &LeaseAnswer,
    ) -> Option<(ClientHandle, Error)> {
        let index = self.waiting.iter().position(|wish| wish.ask == ask)?;
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
                let wish = self.waiting.remove(index);
                Some((wish.client, refused(reason)))
            }
        }
    }

    /// Requests to be made of the replica now.
    pub(super) fn due(&mut self, now: Time) -> Vec<Operator> {
        let due = |wish: &Wish| wish.in_force.is_none() && now >= wish.ask_next;
        let waiting = self.waiting.iter_mut().filter(|wish| due(wish));
        waiting
            .map(|wish| {
                wish.ask_next = now + ASK_AGAIN;
                Operator::Lease {
                    ask: wish.ask,
                    set: wish.set.clone(),
                }
            })
            .collect()
    }

    /// Takes at most `most` clients of requests that have ended, each with what is in force, or
    /// why nothing was heard.
    pub(super) fn take_ended(
        &mut self,
        scene: &Scene<'_>,
        most: usize,
    ) -> Vec<(ClientHandle, Result<InForce, Error>)> {
        let executed = scene.configs.newest();
        let ended = self.waiting.extract_if(.., |wish| {
            wish.in_force.is_some_and(|it| it.config <= executed) || scene.now >= wish.give_up
        });
        let ended: Vec<Wish> = ended.take(most).collect();
        self.more = ended.len() == most;
        ended
            .into_iter()
            .map(|wish| {
                let answer = wish.in_force.filter(|it| it.config <= executed);
                (wish.client, answer.ok_or_else(|| scene.gave_up(wish.busy)))
            })
            .collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next time at which something is to be done.
    pub(super) fn next_deadline(&self) -> Time {
        if self.more && !self.is_empty() {
            return Time::ZERO;
        }
        let due = |wish: &Wish| match wish.in_force {
            None => wish.give_up.min(wish.ask_next),
            Some(_) => wish.give_up,
        };
        self.waiting.iter().map(due).min().unwrap_or(Time::MAX)
    }
}

impl Scene<'_> {
    fn gave_up(&self, busy: Option<String>) -> Error {
        let leader = self
            .leader
            .and_then(|leader| self.names.get(leader.index()));
        let silent = leader.map_or("nobody leads", |_| "the leader did not answer");
        let reason = busy.as_deref().unwrap_or(silent);
        let problem = format!(
            "not in force within {:.1} s: {reason}. It may still come into force; `leasehold lease show` says what is, \
             and asking again does no harm",
            self.patience.as_secs_f64()
        );
        Error::new(ErrorCode::Unavailable, problem)
    }
}

fn refused(problem: impl Into<String>) -> Error {
    Error::new(ErrorCode::BadRequest, problem)
}

fn read(request: &LeaseRequest, scene: &Scene<'_>) -> Result<LeaseSet, Error> {
    let range = range(request)?;
    let spec = strategy(request, &range, scene)?;
    let ms = |field: &str, found: Option<u64>| match found {
        Some(ms) if !(1..=SPAN_MS_MAX).contains(&ms) => Err(refused(format!(
            "{field}: {ms} ms; accepted are 1 to {SPAN_MS_MAX}"
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
        return Err(refused(
            "nothing to change: give a strategy, holders, weights or durations",
        ));
    }
    if !range.is_all() && durations != Durations::default() {
        return Err(refused(
            "range: durations are the same for all keys; change them without a range",
        ));
    }
    Ok(LeaseSet {
        strategies: spec.map(|spec| (range, spec)).into_iter().collect(),
        durations,
        force: request.force,
    })
}

/// Reads the range of keys that a request is about.
pub(super) fn range(request: &LeaseRequest) -> Result<KeyRange, Error> {
    let key = |key: &Key| Key::copy_from_slice(key);
    let (from, to) = (key(&request.from), key(&request.to));
    KeyRange::new(from, (!to.is_empty()).then_some(to)).ok_or_else(|| {
        refused(format!(
            "range: it ends at {:?}, which is not after its start, {:?}",
            String::from_utf8_lossy(&request.to),
            String::from_utf8_lossy(&request.from)
        ))
    })
}

/// The strategy that is asked for, with its settings; `None`: durations alone.
fn strategy(
    request: &LeaseRequest,
    range: &KeyRange,
    scene: &Scene<'_>,
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
    let for_another = |given: bool, field: &str, strategy: &str| match given && name != strategy {
        true => Err(refused(format!(
            "{field}: only the strategy {strategy} looks at it; leave it out, or ask for {strategy}"
        ))),
        false => Ok(()),
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
                "" => present_unlisted(scene.configs.strategy_of(range.from())),
                "nearest" => Unlisted::Nearest,
                "leader" => Unlisted::Leader,
                other => {
                    let problem = format!("unlisted: {other:?}; accepted are nearest, leader");
                    return Err(refused(problem));
                }
            },
        },
        "fixed" if holders => StrategySpec::Fixed {
            holders: Some(named(&request.holders, scene.names)?),
        },
        "fixed" => {
            let problem =
                "holders: the strategy fixed needs at least one node, as in --holders CA,JP";
            return Err(refused(problem));
        }
        "cost" => StrategySpec::Cost(cost(request, range, scene)?),
        other => {
            let names = StrategySpec::NAMES.join(", ");
            return Err(refused(format!(
                "strategy: {other:?}; accepted are {names}"
            )));
        }
    }))
}

/// Settings of `cost`; those that are not asked for stay as they are.
fn cost(
    request: &LeaseRequest,
    range: &KeyRange,
    scene: &Scene<'_>,
) -> Result<CostSettings, Error> {
    let present = match scene.configs.strategy_of(range.from()) {
        StrategySpec::Cost(settings) => *settings,
        _ => CostSettings::default(),
    };
    let most = scene.names.len() as u32 - 1;
    let spare = request.spare.unwrap_or(present.spare.into());
    if spare > most {
        return Err(refused(format!(
            "spare: {spare}; accepted are 0 to {most}: one less than there are nodes"
        )));
    }
    let weight = request.read_weight.unwrap_or(present.read_weight());
    let settings = CostSettings::new(weight, spare as u8, present.prior);
    settings.ok_or_else(|| {
        refused(format!(
            "read_weight: {weight}; accepted are 0 (only writes count) to 1 (only reads count)"
        ))
    })
}

fn present_unlisted(spec: &StrategySpec) -> Unlisted {
    match spec {
        StrategySpec::Quorum { unlisted } => *unlisted,
        _ => Unlisted::default(),
    }
}

fn named(holders: &[String], names: &[String]) -> Result<ReplicaSet, Error> {
    let index = |holder: &String| names.iter().position(|name| name == holder);
    let id = |holder| {
        index(holder)
            .map(|index| ReplicaId(index as u8))
            .ok_or_else(|| {
                refused(format!(
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

    const PATIENCE: Duration = Duration::from_secs(5);

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

    /// Runs a check at several times, in seconds.
    fn with_scene<T>(at_s: u64, check: impl FnOnce(&Scene<'_>) -> T) -> T {
        let names = ["CA", "JP", "DE"].map(str::to_owned);
        check(&Scene {
            now: Time::ZERO + Duration::from_secs(at_s),
            names: &names,
            configs: &Configs::new(3),
            leader: Some(ReplicaId(0)),
            patience: PATIENCE,
        })
    }

    #[test]
    fn no_more_wait_than_may_and_who_is_too_many_may_ask_again() {
        let mut wishes = LeaseWishes::default();
        with_scene(0, |scene| {
            for request in 0..WAITING_MAX as u64 {
                assert_eq!(wishes.ask(client(request), &all(), scene), Ok(()));
            }
            let refusal = wishes.ask(client(64), &all(), scene).expect_err("too many");
            assert_eq!(refusal.code(), ErrorCode::Unavailable);
            assert!(refusal.message.contains("64 changes"), "{refusal:?}");
            // What can never be is refused as such all the same.
            let refusal = wishes.ask(client(64), &LeaseRequest::default(), scene);
            assert_eq!(refusal.expect_err("nothing").code(), ErrorCode::BadRequest);
        });
        // Once one has ended there is room.
        let refusal = Err(Refusal::Invalid("no".to_owned()));
        assert!(wishes.answered(1, &refusal).is_some());
        with_scene(1, |scene| {
            assert_eq!(wishes.ask(client(65), &all(), scene), Ok(()))
        });
    }

    /// The answer to each wish holds all ranges, up to a mebibyte.
    #[test]
    fn some_of_many_that_end_at_once_are_answered_now_and_the_others_soon() {
        let mut wishes = LeaseWishes::default();
        with_scene(0, |scene| {
            for request in 1..=5 {
                let taken = wishes.ask(client(request), &all(), scene);
                taken.expect("there is room");
            }
        });
        let answered = with_scene(9, |scene| {
            let mut answered = Vec::new();
            for expected in [2, 2, 1] {
                let ended = wishes.take_ended(scene, 2);
                assert_eq!(ended.len(), expected);
                assert_eq!(wishes.next_deadline() == Time::ZERO, expected == 2);
                answered.extend(ended.into_iter().map(|(client, _)| client.request));
            }
            answered
        });
        assert_eq!(answered, [1, 2, 3, 4, 5]);
        assert!(wishes.is_empty());
    }

    #[test]
    fn a_busy_leader_is_asked_again_and_its_reason_told_when_patience_ends() {
        let mut wishes = LeaseWishes::default();
        with_scene(0, |scene| {
            wishes.ask(client(1), &all(), scene).expect("there is room");
            assert_eq!(wishes.due(scene.now).len(), 1);
        });
        let busy = Err(Refusal::Busy("full".to_owned()));
        assert_eq!(wishes.answered(1, &busy), None);
        let again = with_scene(1, |scene| wishes.due(scene.now));
        assert!(matches!(again[..], [Operator::Lease { ask: 1, .. }]));
        let ended = with_scene(5, |scene| wishes.take_ended(scene, 64));
        let [(to, Err(refusal))] = &ended[..] else {
            panic!("one ends: {ended:?}");
        };
        assert_eq!((*to, refusal.code()), (client(1), ErrorCode::Unavailable));
        assert!(refusal.message.contains("full"), "{refusal:?}");
    }
}
