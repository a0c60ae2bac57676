//! Transfers of leadership that clients have requested and that are not answered yet. Any replica
//! accepts such a request and passes it to the leader. The replica that accepted the request
//! answers the client once it knows the outcome.

use std::cell::RefCell;
use std::time::Duration;

use leasehold_leases::{ReplicaId, ReplicaSet, Time};
use leasehold_wire::{Error, ErrorCode, MoveRequest};

use leasehold_replica::action::ClientHandle;

/// A transfer in progress.
#[derive(Debug)]
struct PendingTransfer {
    client: ClientHandle,
    to: ReplicaId,
    /// Replica that was the leader at the time of the request.
    from: ReplicaId,
    deadline: Time,
}

/// Transfers of leadership that clients have requested and that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct LeadershipTransfers(RefCell<Vec<PendingTransfer>>);

/// Part of the replica's state that is needed to check transfers.
pub(crate) struct TransferContext<'a> {
    pub now: Time,
    /// Names of all replicas.
    pub names: &'a [String],
    pub leader: Option<ReplicaId>,
    /// Replicas that have not answered this replica recently. The set is empty if this replica does
    /// not lead.
    pub silent: ReplicaSet,
    /// Maximum time for a transfer of leadership.
    pub timeout: Duration,
}

/// Decision about a request for a transfer of leadership.
pub(crate) enum TransferAdmission {
    /// The requested replica already leads. The request is still passed to the core, so that the
    /// replica remains the leader.
    AlreadyLeads(ReplicaId),
    /// The transfer to this replica has begun, and the request must be passed to the core.
    Started(ReplicaId),
    /// The transfer is impossible.
    Rejected(Error),
}

impl TransferContext<'_> {
    fn name(&self, replica: ReplicaId) -> &str {
        let name = self.names.get(replica.index());
        name.map_or("a node of no name", String::as_str)
    }

    fn leader_text(&self) -> String {
        let leader = self.leader.map(|leader| self.name(leader));
        format!("{} leads", leader.unwrap_or("nobody"))
    }

    /// Returns the outcome of a transfer; `None` if the transfer has not ended.
    fn outcome(&self, transfer: &PendingTransfer) -> Option<Result<(), Error>> {
        let to = self.name(transfer.to);
        match self.leader {
            Some(leader) if leader == transfer.to => Some(Ok(())),
            Some(leader) if leader != transfer.from => Some(Err(bad_request(format!(
                "{} now, after an election or another move; ask again if {to} is to lead",
                self.leader_text()
            )))),
            _ if self.now >= transfer.deadline => Some(Err(bad_request(format!(
                "{to} did not take over within {:.1} s, and {}. {to} may be down, cut off, far behind, or in the \
                 wait after its restart",
                self.timeout.as_secs_f64(),
                self.leader_text()
            )))),
            _ => None,
        }
    }
}

fn bad_request(problem: String) -> Error {
    Error::new(ErrorCode::BadRequest, problem)
}

impl LeadershipTransfers {
    /// Adds a client's request for a transfer.
    pub(crate) fn submit(
        &self,
        client: ClientHandle,
        request: &MoveRequest,
        context: &TransferContext<'_>,
    ) -> TransferAdmission {
        let Some(index) = context.names.iter().position(|name| *name == request.to) else {
            return TransferAdmission::Rejected(bad_request(format!(
                "there is no node {:?}; the cluster has {}",
                request.to,
                context.names.join(", ")
            )));
        };
        let to = ReplicaId(index as u8);
        let Some(leader) = context.leader else {
            let problem = "nobody leads now, as this replica knows: ask again in a moment";
            return TransferAdmission::Rejected(Error::new(ErrorCode::Unavailable, problem));
        };
        if leader == to {
            return TransferAdmission::AlreadyLeads(to);
        }
        if context.silent.contains(to) {
            return TransferAdmission::Rejected(bad_request(format!(
                "{} has not answered lately, so that {} on: it is down, cut off, or stands still",
                request.to,
                context.leader_text()
            )));
        }
        self.0.borrow_mut().push(PendingTransfer {
            client,
            to,
            from: leader,
            deadline: context.now + context.timeout,
        });
        TransferAdmission::Started(to)
    }

    /// Returns true if no client waits for a transfer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Removes the transfers that have ended. Returns the client and the outcome of each transfer.
    pub(crate) fn take_ended(
        &self,
        context: &TransferContext<'_>,
    ) -> Vec<(ClientHandle, Result<(), Error>)> {
        let mut ended = Vec::new();
        self.0.borrow_mut().retain(|transfer| {
            let end = context.outcome(transfer);
            let goes_on = end.is_none();
            ended.extend(end.map(|end| (transfer.client, end)));
            goes_on
        });
        ended
    }

    /// Returns the next time at which a transfer exceeds its maximum time.
    pub(crate) fn next_deadline(&self) -> Time {
        let waiting = self.0.borrow();
        let deadlines = waiting.iter().map(|transfer| transfer.deadline);
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

    /// Returns a context in which CA leads, unless another leader is given.
    fn context(names: &[String], leader: Option<ReplicaId>, seconds: u64) -> TransferContext<'_> {
        TransferContext {
            now: Time::ZERO + Duration::from_secs(seconds),
            names,
            leader,
            silent: ReplicaSet::EMPTY,
            timeout: Duration::from_secs(4),
        }
    }

    fn ask(
        transfers: &LeadershipTransfers,
        to: &str,
        context: &TransferContext<'_>,
    ) -> TransferAdmission {
        let to = to.to_owned();
        transfers.submit(CLIENT, &MoveRequest { to }, context)
    }

    fn refused(admission: TransferAdmission, parts: &[&str]) {
        let TransferAdmission::Rejected(error) = admission else {
            panic!("not refused: {parts:?}");
        };
        for part in parts {
            assert!(error.message.contains(part), "{}", error.message);
        }
    }

    #[test]
    fn what_cannot_succeed_is_refused_at_once_with_its_reason() {
        let (transfers, names) = (LeadershipTransfers::default(), names());
        let well = context(&names, Some(CA), 0);
        refused(
            ask(&transfers, "XX", &well),
            &["no node \"XX\"", "JP, CA, OR"],
        );
        let leaderless = context(&names, None, 0);
        refused(ask(&transfers, "JP", &leaderless), &["nobody leads now"]);
        let mut silent = context(&names, Some(CA), 0);
        silent.silent.insert(JP);
        refused(
            ask(&transfers, "JP", &silent),
            &["JP has not", "CA leads on"],
        );
        assert_eq!(transfers.next_deadline(), Time::MAX, "nobody waits");
        assert!(matches!(
            ask(&transfers, "CA", &well),
            TransferAdmission::AlreadyLeads(CA)
        ));
        assert!(matches!(
            ask(&transfers, "OR", &silent),
            TransferAdmission::Started(OR)
        ));
    }

    #[test]
    fn a_move_ends_with_its_leader_with_another_or_when_its_time_is_over() {
        let (transfers, names) = (LeadershipTransfers::default(), names());
        let end = |leader, seconds| {
            ask(&transfers, "OR", &context(&names, Some(CA), 0));
            let waits = context(&names, None, 3);
            assert!(
                transfers.take_ended(&waits).is_empty(),
                "an election is held"
            );
            let mut ended = transfers.take_ended(&context(&names, leader, seconds));
            assert_eq!((ended.len(), transfers.next_deadline()), (1, Time::MAX));
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
