//! Moves of leadership that clients asked for and that are not answered yet. Any replica
//! takes one, passes it on to the leader, and answers once it sees how it ended.

use std::cell::RefCell;
use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Time};
use leasehold_wire::{Error, ErrorCode, MoveRequest};

use leasehold_replica::action::ClientHandle;

/// A move that is under way.
#[derive(Debug)]
struct Move {
    client: ClientHandle,
    to: ReplicaId,
    /// Leader at the time of the request.
    from: ReplicaId,
    give_up: Time,
}

/// Moves of leadership that clients asked for and that are not answered yet.
#[derive(Debug, Default)]
pub(super) struct Moves(RefCell<Vec<Move>>);

/// Context in which a replica looks at moves.
pub(super) struct Scene<'a> {
    pub now: Time,
    /// Names of all replicas.
    pub names: &'a [String],
    pub leader: Option<ReplicaId>,
    /// Replicas that have not answered the leader lately, if this replica leads; else none.
    pub silent: ReplicaSet,
    /// Maximum time for a transfer of leadership.
    pub patience: Duration,
}

/// Whether a move can begin.
pub(super) enum Asked {
    /// It is done already; the leader is told all the same, that it is to stay.
    Leads(ReplicaId),
    /// The replica is to be told.
    Begun(ReplicaId),
    /// It cannot.
    Refused(Error),
}

impl Scene<'_> {
    fn name(&self, replica: ReplicaId) -> &str {
        let name = self.names.get(replica.index());
        name.map_or("a node of no name", String::as_str)
    }

    fn leads(&self) -> String {
        let leader = self.leader.map(|leader| self.name(leader));
        format!("{} leads", leader.unwrap_or("nobody"))
    }

    /// Outcome of a move; `None`: it has not ended.
    fn end(&self, waiting: &Move) -> Option<Result<(), Error>> {
        let to = self.name(waiting.to);
        match self.leader {
            Some(leader) if leader == waiting.to => Some(Ok(())),
            Some(leader) if leader != waiting.from => Some(Err(refusal(format!(
                "{} now, after an election or another move; ask again if {to} is to lead",
                self.leads()
            )))),
            _ if self.now >= waiting.give_up => Some(Err(refusal(format!(
                "{to} did not take over within {:.1} s, and {}. {to} may be down, cut off, far behind, or in the \
                 wait after its restart",
                self.patience.as_secs_f64(),
                self.leads()
            )))),
            _ => None,
        }
    }
}

fn refusal(problem: String) -> Error {
    Error::new(ErrorCode::BadRequest, problem)
}

impl Moves {
    /// A client asks.
    pub(super) fn ask(
        &self,
        client: ClientHandle,
        asked: &MoveRequest,
        scene: &Scene<'_>,
    ) -> Asked {
        let Some(index) = scene.names.iter().position(|name| *name == asked.to) else {
            return Asked::Refused(refusal(format!(
                "there is no node {:?}; the cluster has {}",
                asked.to,
                scene.names.join(", ")
            )));
        };
        let to = ReplicaId(index as u8);
        let Some(leader) = scene.leader else {
            let problem = "nobody leads now, as this replica knows: ask again in a moment";
            return Asked::Refused(Error::new(ErrorCode::Unavailable, problem));
        };
        if leader == to {
            return Asked::Leads(to);
        }
        if scene.silent.contains(to) {
            return Asked::Refused(refusal(format!(
                "{} has not answered lately, so that {} on: it is down, cut off, or stands still",
                asked.to,
                scene.leads()
            )));
        }
        self.0.borrow_mut().push(Move {
            client,
            to,
            from: leader,
            give_up: scene.now + scene.patience,
        });
        Asked::Begun(to)
    }

    /// Whether nobody waits for one.
    pub(super) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Takes the moves that have ended. Returns the client and the outcome of each.
    pub(super) fn take_ended(&self, scene: &Scene<'_>) -> Vec<(ClientHandle, Result<(), Error>)> {
        let mut ended = Vec::new();
        self.0.borrow_mut().retain(|waiting| {
            let end = scene.end(waiting);
            let goes_on = end.is_none();
            ended.extend(end.map(|end| (waiting.client, end)));
            goes_on
        });
        ended
    }

    /// The next time at which one has taken too long.
    pub(super) fn next_deadline(&self) -> Time {
        let waiting = self.0.borrow();
        let deadlines = waiting.iter().map(|waiting| waiting.give_up);
        deadlines.min().unwrap_or(Time::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: ClientHandle = ClientHandle {
        connection: 1,
        request: 1,
    };
    const JP: ReplicaId = ReplicaId(0);
    const CA: ReplicaId = ReplicaId(1);
    const OR: ReplicaId = ReplicaId(2);

    fn names() -> Vec<String> {
        ["JP", "CA", "OR"].map(String::from).to_vec()
    }

    /// CA leads, unless another is named.
    fn scene(names: &[String], leader: Option<ReplicaId>, seconds: u64) -> Scene<'_> {
        Scene {
            now: Time::ZERO + Duration::from_secs(seconds),
            names,
            leader,
            silent: ReplicaSet::EMPTY,
            patience: Duration::from_secs(4),
        }
    }

    fn ask(moves: &Moves, to: &str, scene: &Scene<'_>) -> Asked {
        let to = to.to_owned();
        moves.ask(CLIENT, &MoveRequest { to }, scene)
    }

    fn refused(asked: Asked, parts: &[&str]) {
        let Asked::Refused(error) = asked else {
            panic!("not refused: {parts:?}");
        };
        for part in parts {
            assert!(error.message.contains(part), "{}", error.message);
        }
    }

    #[test]
    fn what_cannot_succeed_is_refused_at_once_with_its_reason() {
        let (moves, names) = (Moves::default(), names());
        let well = scene(&names, Some(CA), 0);
        refused(ask(&moves, "XX", &well), &["no node \"XX\"", "JP, CA, OR"]);
        let leaderless = scene(&names, None, 0);
        refused(ask(&moves, "JP", &leaderless), &["nobody leads now"]);
        let mut silent = scene(&names, Some(CA), 0);
        silent.silent.insert(JP);
        refused(ask(&moves, "JP", &silent), &["JP has not", "CA leads on"]);
        assert_eq!(moves.next_deadline(), Time::MAX, "nobody waits");
        assert!(matches!(ask(&moves, "CA", &well), Asked::Leads(CA)));
        assert!(matches!(ask(&moves, "OR", &silent), Asked::Begun(OR)));
    }

    #[test]
    fn a_move_ends_with_its_leader_with_another_or_when_its_time_is_over() {
        let (moves, names) = (Moves::default(), names());
        let end = |leader, seconds| {
            ask(&moves, "OR", &scene(&names, Some(CA), 0));
            let waits = scene(&names, None, 3);
            assert!(moves.take_ended(&waits).is_empty(), "an election is held");
            let mut ended = moves.take_ended(&scene(&names, leader, seconds));
            assert_eq!((ended.len(), moves.next_deadline()), (1, Time::MAX));
            ended.remove(0).1.map_err(|error| error.message)
        };
        assert_eq!(end(Some(OR), 1), Ok(()));
        let other = end(Some(JP), 1).unwrap_err();
        assert!(other.contains("JP leads now"), "{other}");
        let late = end(Some(CA), 4).unwrap_err();
        assert!(late.contains("OR did not take over within 4.0 s, and CA leads"));
        let nobody = end(None, 4).unwrap_err();
        assert!(nobody.contains("nobody leads"), "{nobody}");
    }
}
