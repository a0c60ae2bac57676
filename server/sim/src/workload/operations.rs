//! Operations that clients have begun.

use leasehold_histories::history::HistoryAction;
use leasehold_wire::Command;
use smallvec::SmallVec;

/// Effects of an operation, as pairs of a key and the action on this key.
pub(super) type Parts = SmallVec<[(u64, HistoryAction); 1]>;

/// An operation that a client has begun.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    /// ID of the operation.
    pub id: u64,
    /// Client that has begun the operation.
    pub client: usize,
    /// Lane of the client that the operation occupies.
    pub lane: usize,
    /// Command that was sent.
    pub command: Command,
    /// Time at which the operation began, in virtual ns.
    pub began_ns: u64,
    /// Number of times that the command was sent. Copies that were sent at the same time as the
    /// first copy are not counted.
    pub attempts: u64,
    /// Number of all copies of the command that were sent.
    pub sent: u64,
    /// Replica to which the last copy was sent.
    pub at: usize,
    /// Whether the operation repeats a refused operation under a new session.
    pub again: bool,
    /// Effects of the operation.
    pub ops: Parts,
}

/// Operations that clients have begun. The first operation has the ID 1, the next one has the ID 2,
/// and so on. Operations are stored by lane, so the operations of one client are close together in
/// memory.
#[derive(Default)]
pub(super) struct Operations {
    /// Open operations, by client and lane.
    by_lane: Vec<Vec<Option<Operation>>>,
    /// Client and lane of each operation, including operations that have ended.
    lanes: Vec<(u32, u32)>,
    open: usize,
}

impl Operations {
    /// Returns the number of operations that have begun.
    pub fn begun(&self) -> u64 {
        self.lanes.len() as u64
    }

    /// Begins the next operation.
    pub fn begin(&mut self, operation: Operation) {
        let (client, lane) = (operation.client, operation.lane);
        if self.by_lane.len() <= client {
            self.by_lane.resize_with(client + 1, Vec::new);
        }
        let lanes = &mut self.by_lane[client];
        if lanes.len() <= lane {
            lanes.resize_with(lane + 1, || None);
        }
        lanes[lane] = Some(operation);
        self.lanes.push((client as u32, lane as u32));
        self.open += 1;
    }

    /// Returns the lane of an operation that has not ended.
    fn lane(&mut self, id: u64) -> Option<&mut Option<Operation>> {
        let (client, lane) = *self.lanes.get(id.checked_sub(1)? as usize)?;
        let lane = &mut self.by_lane[client as usize][lane as usize];
        lane.as_ref().is_some_and(|it| it.id == id).then_some(lane)
    }

    /// Returns the number of operations that have not ended.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Returns an operation that has not ended.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Operation> {
        self.lane(id)?.as_mut()
    }

    /// Returns the IDs of a client's operations that have not ended. The operation that began first
    /// comes first.
    pub fn of(&self, client: usize) -> Vec<u64> {
        let lanes = self.by_lane.get(client).into_iter().flatten();
        let mut ids: Vec<u64> = lanes.flatten().map(|it| it.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Ends an operation, and returns this operation; `None` if it has already ended.
    pub fn end(&mut self, id: u64) -> Option<Operation> {
        let ended = self.lane(id)?.take();
        self.open -= 1;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(id: u64, lane: usize) -> Operation {
        Operation {
            id,
            client: 1,
            lane,
            command: Command::default(),
            began_ns: 0,
            attempts: 1,
            sent: 0,
            at: 0,
            again: false,
            ops: Parts::new(),
        }
    }

    #[test]
    fn an_operation_that_has_ended_is_not_found_in_its_lane() {
        let mut operations = Operations::default();
        for (id, lane) in [(1, 0), (2, 3)] {
            operations.begin(operation(id, lane));
        }
        assert_eq!(operations.end(1).map(|it| it.id), Some(1));
        operations.begin(operation(3, 0));
        assert!(operations.end(1).is_none() && operations.get_mut(1).is_none());
        assert!(operations.end(0).is_none() && operations.end(4).is_none());
        assert_eq!((operations.open, operations.begun()), (2, 3));
        assert_eq!((operations.of(0), operations.of(1)), (vec![], vec![2, 3]));
        let ended = [2, 3].map(|id| operations.end(id).map(|it| it.id));
        assert_eq!((ended, operations.open), ([Some(2), Some(3)], 0));
    }
}
