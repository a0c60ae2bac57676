//! Inputs that have arrived and have not been given to the replica yet.
//!
//! An event-loop iteration takes only a bounded part of the inputs, because heartbeats and renewals
//! of leases leave between iterations. The inputs that remain keep their order. The node's own
//! inputs come first, then peers' messages, then commands of clients. Peers and clients each have a
//! share of an iteration, so neither can keep the other out. Large writes of clients wait in a
//! queue of their own ([`large_writes`]).
//!
//! In each iteration, connections of clients together read as many units of
//! [`leasehold_replica::cost`] as an iteration takes. Then they wait until the driver has run an
//! iteration ([`Inbox::acquire_read_units`]). Without this rule, the reads of a hundred connections
//! with megabytes each would delay a heartbeat too long. Waiting connections are served in the
//! order in which they came, so a connection with little to read waits for at most one read of each
//! other connection.
//!
//! [`large_writes`]: crate::front::admission::large_writes

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::time::Duration;

use leasehold_wire::{LeaseRequest, MoveRequest, StatusRequest};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout_at;

use crate::front::admission::large_writes::LargeWrites;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::cost::{self, Cost, Request, Sizes};
use leasehold_replica::input::Input;
use leasehold_replica::round_robin::RoundRobinQueue;

/// Maximum number of inputs from peers in one event-loop iteration, and also the maximum number of
/// inputs from clients. Handling this many inputs takes a few ms.
const INPUTS_PER_ITERATION: usize = 4096;
/// Maximum cost of the work for peers in one event-loop iteration, in units of
/// [`leasehold_replica::cost`]. The same maximum applies to the work for clients. The maximum
/// corresponds to about 3 ms of work. The last input may exceed it.
pub(crate) const UNITS_PER_ITERATION: usize = 512 << 10;
/// Maximum cost of the operators' requests of each kind in one event-loop iteration, in units of
/// [`leasehold_replica::cost`]. The last request may exceed the maximum. The maximum is the cost of
/// 16 requests for the status without optional parts.
const OPERATORS_UNITS_PER_ITERATION: usize = 16 * 1600;
/// Maximum cost of the peers' messages in the inbox, in units of [`leasehold_replica::cost`]. Above
/// this maximum, the node reads no further bytes from peers. A unit corresponds to about one byte
/// of a message.
const PEER_UNITS_MAX: usize = 32 << 20;

/// Waiting inputs of one source, each with its cost in units.
#[derive(Debug, Default)]
struct InputQueue {
    inputs: VecDeque<(Input, usize)>,
    units: usize,
}

impl InputQueue {
    fn push(&mut self, input: Input, units: usize) {
        self.inputs.push_back((input, units));
        self.units += units;
    }

    /// Moves the inputs for one event-loop iteration from this queue to `into`.
    fn take(&mut self, into: &mut Vec<Input>) {
        let mut taken = 0;
        let mut left = INPUTS_PER_ITERATION;
        while left > 0 && taken < UNITS_PER_ITERATION {
            let Some((input, units)) = self.inputs.pop_front() else {
                break;
            };
            into.push(input);
            taken += units;
            left -= 1;
        }
        self.units -= taken;
    }
}

/// Waiting inputs of all sources. Connections add inputs and the driver takes them, on one thread.
#[derive(Debug)]
pub(crate) struct Inbox {
    own: RefCell<Vec<Input>>,
    peers: RefCell<InputQueue>,
    clients: RefCell<InputQueue>,
    statuses: RefCell<RoundRobinQueue<(ClientHandle, StatusRequest)>>,
    transfers: RefCell<RoundRobinQueue<(ClientHandle, MoveRequest)>>,
    leases: RefCell<RoundRobinQueue<(ClientHandle, LeaseRequest)>>,
    large_writes: RefCell<LargeWrites>,
    /// Number of units of work that client connections may still read before the next event-loop
    /// iteration. Connections that wait for units receive them in order of arrival.
    read_permits: Semaphore,
    /// Number of connections that wait for the next event-loop iteration before they read more.
    waiting_readers: Cell<usize>,
    arrived: Notify,
    /// Notified when the inbox has capacity for messages of peers again.
    peer_capacity: Notify,
}

impl Default for Inbox {
    fn default() -> Inbox {
        Inbox {
            own: RefCell::default(),
            peers: RefCell::default(),
            clients: RefCell::default(),
            statuses: RefCell::default(),
            transfers: RefCell::default(),
            leases: RefCell::default(),
            large_writes: RefCell::default(),
            read_permits: Semaphore::new(UNITS_PER_ITERATION),
            waiting_readers: Cell::default(),
            arrived: Notify::default(),
            peer_capacity: Notify::default(),
        }
    }
}

impl Inbox {
    /// Creates an inbox. The inbox passes large writes to the replica, about `large_write_bytes`
    /// bytes at a time. Further large writes are passed only after the replica has answered some of
    /// the earlier ones.
    pub(crate) fn new(large_write_bytes: usize) -> Inbox {
        Inbox {
            large_writes: RefCell::new(LargeWrites::new(large_write_bytes)),
            ..Inbox::default()
        }
    }

    /// Adds an input of the node itself. The caller must call [`Inbox::wake`] after it has added
    /// all available inputs.
    pub(crate) fn push(&self, input: Input) {
        self.own.borrow_mut().push(input);
    }

    /// Adds a peer's message, with its cost in units of [`leasehold_replica::cost`]. Call
    /// [`Inbox::wake`] afterwards.
    pub(crate) fn push_peer(&self, input: Input, units: usize) {
        self.peers.borrow_mut().push(input, units);
    }

    /// Adds a client's command, with its cost in units of [`leasehold_replica::cost`]. Call
    /// [`Inbox::wake`] afterwards.
    pub(crate) fn push_client(&self, input: Input, units: usize) {
        self.clients.borrow_mut().push(input, units);
    }

    /// Adds a large write of a client, with its cost in units of [`leasehold_replica::cost`]. Call
    /// [`Inbox::wake`] afterwards, and [`Inbox::answered`] when the replica has answered the write.
    pub(crate) fn push_large_write(&self, connection: u64, input: Input, units: usize) {
        self.large_writes
            .borrow_mut()
            .push(connection, input, units);
    }

    /// Drops those large writes of a closed connection that the replica has not received yet.
    /// Returns the request numbers of these writes.
    pub(crate) fn forget_large_writes(&self, connection: u64) -> Vec<u64> {
        self.large_writes.borrow_mut().forget(connection)
    }

    /// Notes that the replica has answered a large write with this cost in units. Nothing is noted if
    /// the cost is 0. `is_executed` is false if the write was refused, or if this is not known.
    pub(crate) fn answered(&self, units: usize, is_executed: bool) {
        if units > 0 {
            self.large_writes.borrow_mut().answered(units, is_executed);
            self.wake();
        }
    }

    /// Notes the round trip to the farthest replica; `None` if it is not known yet. Large writes wait
    /// differently in near and in far clusters.
    pub(crate) fn note_round_trip(&self, round_trip: Option<Duration>) {
        self.large_writes.borrow_mut().note_round_trip(round_trip);
    }

    /// Returns two numbers. The first is the total cost, in units, of the large writes that the
    /// replica has received and not yet answered. The second is the number of large writes that
    /// have had to wait since the start.
    pub(crate) fn large_writes(&self) -> (usize, u64) {
        let large_writes = self.large_writes.borrow();
        (large_writes.in_flight_bytes(), large_writes.delayed())
    }

    /// Counts the units of work that a client connection has read. If all connections together have
    /// used up the units of one event-loop iteration, waits until the driver has run an iteration.
    pub(crate) async fn acquire_read_units(&self, units: usize) {
        let units = units.min(UNITS_PER_ITERATION) as u32;
        // No units are left over while a connection waits.
        if let Ok(permit) = self.read_permits.try_acquire_many(units) {
            return permit.forget();
        }
        let _waiting = WaitingReader::begin(&self.waiting_readers);
        self.wake();
        // The semaphore is never closed.
        if let Ok(permit) = self.read_permits.acquire_many(units).await {
            permit.forget();
        }
    }

    /// Adds a request for the replica's status. Call [`Inbox::wake`] afterwards.
    pub(crate) fn push_status(&self, from: ClientHandle, request: StatusRequest) {
        push(&self.statuses, from, request);
    }

    /// Adds a request to transfer leadership. Call [`Inbox::wake`] afterwards.
    pub(crate) fn push_transfer(&self, from: ClientHandle, request: MoveRequest) {
        push(&self.transfers, from, request);
    }

    /// Adds a request to change leases. Call [`Inbox::wake`] afterwards.
    pub(crate) fn push_lease(&self, from: ClientHandle, request: LeaseRequest) {
        push(&self.leases, from, request);
    }

    /// Wakes the driver.
    pub(crate) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// Whether a connection waits for the next event-loop iteration before it reads more.
    /// Connections that may already continue are ignored.
    pub(crate) fn is_read_budget_spent(&self) -> bool {
        self.waiting_readers.get() > 0 && self.read_permits.available_permits() == 0
    }

    /// Waits until the inbox is woken or a large write is due. Returns immediately if an input has
    /// already arrived.
    pub(crate) async fn arrival(&self) {
        while !self.has_own() && !self.has_others() && !self.is_read_budget_spent() {
            let due = self.large_writes.borrow().due();
            let arrived = self.arrived.notified();
            match due {
                Some(due) => {
                    // In both cases an input may be here now.
                    let _ = timeout_at(due, arrived).await;
                }
                None => arrived.await,
            }
        }
    }

    /// Waits until the cost of the peers' messages in the inbox is below its limit.
    pub(crate) async fn wait_for_peer_capacity(&self) {
        while self.peers.borrow().units > PEER_UNITS_MAX {
            self.peer_capacity.notified().await;
        }
    }

    fn has_own(&self) -> bool {
        !self.own.borrow().is_empty()
    }

    /// Whether the inbox holds inputs from a peer, a client or an operator.
    pub(crate) fn has_others(&self) -> bool {
        let inputs = |queue: &RefCell<InputQueue>| !queue.borrow().inputs.is_empty();
        inputs(&self.peers)
            || inputs(&self.clients)
            || !self.statuses.borrow().is_empty()
            || !self.transfers.borrow().is_empty()
            || !self.leases.borrow().is_empty()
            || self.large_writes.borrow().is_due()
    }

    /// Moves the inputs for one event-loop iteration to `into`.
    pub(crate) fn take(&self, into: &mut Vec<Input>) {
        into.append(&mut self.own.borrow_mut());
        let mut peers = self.peers.borrow_mut();
        let was_full = peers.units > PEER_UNITS_MAX;
        peers.take(into);
        if was_full && peers.units <= PEER_UNITS_MAX {
            self.peer_capacity.notify_waiters();
        }
        self.clients.borrow_mut().take(into);
        let mut large_writes = self.large_writes.borrow_mut();
        into.extend(std::iter::from_fn(|| large_writes.pop()));
        self.refill_read_permits();
    }

    /// Raises the number of available read permits to [`UNITS_PER_ITERATION`].
    pub(crate) fn refill_read_permits(&self) {
        let left = self.read_permits.available_permits();
        self.read_permits
            .add_permits(UNITS_PER_ITERATION.saturating_sub(left));
    }

    /// Takes the leadership transfer requests for one event-loop iteration.
    pub(crate) fn take_transfers(&self) -> Vec<(ClientHandle, MoveRequest)> {
        take_some(&self.transfers, Sizes::default, |_, _| {
            cost::of(Request::Move)
        })
    }

    /// Takes the lease change requests for one event-loop iteration. Their cost depends on `sizes`,
    /// the sizes of the replica's state. `changes` returns true if a part of the request is not in
    /// force yet.
    pub(crate) fn take_leases(
        &self,
        sizes: impl FnOnce() -> Sizes,
        changes: impl Fn(&LeaseRequest) -> bool,
    ) -> Vec<(ClientHandle, LeaseRequest)> {
        take_some(&self.leases, sizes, |request, sizes| {
            cost::of(Request::Lease {
                request,
                sizes,
                changes: changes(request),
            })
        })
    }

    /// Takes the status requests for one event-loop iteration. Their cost depends on `sizes`, the
    /// sizes of the replica's state.
    pub(crate) fn take_statuses(
        &self,
        sizes: impl FnOnce() -> Sizes,
    ) -> Vec<(ClientHandle, StatusRequest)> {
        take_some(&self.statuses, sizes, |request, sizes| {
            cost::of(Request::Status(request, sizes))
        })
    }
}

/// Guard that counts a waiting connection. While the guard exists, the number of waiting
/// connections is higher by one. If the connection's task is dropped during the wait, the guard is
/// dropped, too.
struct WaitingReader<'a>(&'a Cell<usize>);

impl WaitingReader<'_> {
    fn begin(waiting: &Cell<usize>) -> WaitingReader<'_> {
        waiting.set(waiting.get() + 1);
        WaitingReader(waiting)
    }
}

impl Drop for WaitingReader<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn push<T>(waiting: &RefCell<RoundRobinQueue<(ClientHandle, T)>>, from: ClientHandle, request: T) {
    let mut waiting = waiting.borrow_mut();
    waiting.push(from.connection, (from, request));
}

/// Returns the maximum number of lease change requests that one event-loop iteration answers. The
/// number depends on the sizes of the replica's state.
pub(crate) fn lease_answers_per_iteration(sizes: Sizes) -> usize {
    let request = &LeaseRequest::default();
    let changes = false;
    let answer = Request::Lease {
        request,
        sizes,
        changes,
    };
    OPERATORS_UNITS_PER_ITERATION.div_ceil(cost::of(answer).units())
}

/// Takes requests until their cost reaches the limit of one event-loop iteration. The cost of each
/// request depends on the sizes of the replica's state.
fn take_some<T>(
    waiting: &RefCell<RoundRobinQueue<(ClientHandle, T)>>,
    sizes: impl FnOnce() -> Sizes,
    cost: impl Fn(&T, Sizes) -> Cost,
) -> Vec<(ClientHandle, T)> {
    let (mut waiting, mut units, mut taken) = (waiting.borrow_mut(), 0, Vec::new());
    if waiting.is_empty() {
        return taken;
    }
    let sizes = sizes();
    while units < OPERATORS_UNITS_PER_ITERATION
        && let Some((_, one)) = waiting.pop()
    {
        units += cost(&one.1, sizes).units();
        taken.push(one);
    }
    taken
}

#[cfg(test)]
mod tests {
    use leasehold_leases::{Incarnation, ReplicaId};
    use leasehold_wire::Command;
    use leasehold_wire::command::Op;

    use super::*;
    use leasehold_replica::message::{Envelope, Message};

    /// Number of requests for the status without optional parts that one event-loop iteration
    /// answers.
    const STATUSES: usize = 16;

    fn command(request: u64) -> Input {
        let from = ClientHandle {
            connection: 1,
            request,
        };
        Input::Client {
            from,
            command: Command::from(Op::get("k")),
        }
    }

    fn message(number: u64) -> Input {
        Input::Peer(Envelope {
            from: ReplicaId(1),
            from_incarnation: Incarnation(number),
            to_incarnation: Incarnation(1),
            message: Message::TransferRequest,
        })
    }

    /// Takes the inputs for one event-loop iteration. For each input, returns whether a peer sent
    /// it, and the input's number.
    fn round(inbox: &Inbox) -> Vec<(bool, u64)> {
        let mut inputs = Vec::new();
        inbox.take(&mut inputs);
        let shown = inputs.into_iter().filter_map(|input| match input {
            Input::Client { from, .. } => Some((false, from.request)),
            Input::Peer(envelope) => Some((true, envelope.from_incarnation.0)),
            _ => None,
        });
        shown.collect()
    }

    #[test]
    fn what_is_left_keeps_its_order_and_both_sources_get_a_share() {
        let inbox = Inbox::default();
        let all = 2 * INPUTS_PER_ITERATION as u64 + 10;
        for number in 0..all {
            inbox.push_client(command(number), 1);
            inbox.push_peer(message(number), 1);
        }
        inbox.push(Input::Stop);
        let mut seen = [Vec::new(), Vec::new()];
        for _ in 0..3 {
            let taken = round(&inbox);
            assert!(taken.is_sorted_by_key(|(peer, _)| !peer), "peers first");
            for of_peer in [true, false] {
                let of_source = taken.iter().filter(|(peer, _)| *peer == of_peer);
                let numbers: Vec<u64> = of_source.map(|(_, number)| *number).collect();
                assert!((1..=INPUTS_PER_ITERATION).contains(&numbers.len()));
                seen[usize::from(of_peer)].extend(numbers);
            }
        }
        for numbers in seen {
            assert!(numbers.into_iter().eq(0..all));
        }
        assert!(!inbox.has_own() && !inbox.has_others());
    }

    #[test]
    fn large_inputs_make_short_rounds() {
        let inbox = Inbox::default();
        for number in 0..10 {
            inbox.push_client(command(number), UNITS_PER_ITERATION / 4);
        }
        assert_eq!(round(&inbox).len(), 4);
        assert_eq!(round(&inbox).len(), 4);
        assert_eq!(round(&inbox).len(), 2);
        inbox.push_client(command(0), usize::MAX / 2);
        assert_eq!(round(&inbox).len(), 1, "the largest has a round of its own");
    }

    /// The order of the answers does not depend on how many requests a connection has made before.
    #[test]
    fn questions_are_answered_by_turns_of_connections() {
        let inbox = Inbox::default();
        let ask = |connection, request| {
            let from = ClientHandle {
                connection,
                request,
            };
            inbox.push_status(from, StatusRequest::default());
        };
        (1..=1000).for_each(|request| ask(1, request));
        (1..=1000).for_each(|request| ask(2, request));
        ask(3, 1);
        let first: Vec<_> = inbox.take_statuses(Sizes::default);
        assert_eq!(first.len(), STATUSES);
        let of = |connection| first.iter().filter(move |it| it.0.connection == connection);
        assert_eq!(of(3).count(), 1);
        assert!(of(1).count() <= 8 && of(2).count() <= 8);
        let more = || Some(inbox.take_statuses(Sizes::default)).filter(|it| !it.is_empty());
        let left = std::iter::from_fn(more);
        assert_eq!(left.flatten().count(), 2001 - STATUSES);
        assert!(!inbox.has_others());
    }

    /// The number of answers in one event-loop iteration falls with their cost. Otherwise one
    /// iteration could encode sixteen answers of 1 MiB each.
    #[test]
    fn a_round_answers_few_questions_that_cost_much() {
        let inbox = Inbox::default();
        let sizes = |ranges| Sizes {
            ranges,
            starts_bytes: ranges * 512,
            ..Sizes::default()
        };
        let taken = |leases, ranges| {
            for request in 1..=40 {
                let from = ClientHandle {
                    connection: 1,
                    request,
                };
                let asked = StatusRequest {
                    leases,
                    ..StatusRequest::default()
                };
                inbox.push_status(from, asked);
            }
            let taken = inbox.take_statuses(|| sizes(ranges)).len();
            while !inbox.take_statuses(Sizes::default).is_empty() {}
            taken
        };
        assert_eq!(taken(true, 1023), 1);
        assert_eq!(taken(false, 1023), STATUSES);
        assert!((2..STATUSES).contains(&taken(true, 10)));
    }

    #[tokio::test]
    async fn peers_are_not_read_from_while_too_much_waits() {
        let inbox = Inbox::default();
        for number in 0..40 {
            inbox.wait_for_peer_capacity().await;
            inbox.push_peer(message(number), 4 << 20);
            if inbox.peers.borrow().units > PEER_UNITS_MAX {
                let waiting = inbox.wait_for_peer_capacity();
                tokio::pin!(waiting);
                assert!(!is_ready(waiting.as_mut()).await, "it waits");
                round(&inbox);
                waiting.await;
            }
        }
        assert!(inbox.peers.borrow().units <= PEER_UNITS_MAX);
    }

    #[tokio::test]
    async fn connections_read_as_much_as_a_round_takes_and_then_wait_for_one() {
        let inbox = Inbox::default();
        inbox.acquire_read_units(UNITS_PER_ITERATION).await;
        let waiting = [inbox.acquire_read_units(1), inbox.acquire_read_units(1)];
        let mut waiting = waiting.map(Box::pin);
        for one in &mut waiting {
            assert!(!is_ready(one.as_mut()).await, "it waits");
        }
        inbox.arrival().await;
        assert!(!inbox.has_others(), "the round has nothing else to do");
        round(&inbox);
        assert!(
            !inbox.is_read_budget_spent(),
            "no other round is due for them"
        );
        for one in waiting {
            one.await;
        }
    }

    /// Each connection waits for only one turn of the other connections, even if many other
    /// connections always have bytes to read.
    #[tokio::test]
    async fn whoever_reads_little_has_its_turn_before_others_have_two() {
        tokio::task::unconstrained(read_much_and_little()).await;
    }

    async fn read_much_and_little() {
        let inbox = Inbox::default();
        let (turns_of_small, turns_of_large) = (Cell::new(0), Cell::new(0));
        let large = async || {
            loop {
                inbox.acquire_read_units(UNITS_PER_ITERATION / 32).await;
                turns_of_large.set(turns_of_large.get() + 1);
            }
        };
        let small = async {
            loop {
                inbox.acquire_read_units(100).await;
                turns_of_small.set(turns_of_small.get() + 1);
                // The next request of this connection comes later.
                tokio::task::yield_now().await;
            }
        };
        let mut large: Vec<_> = (0..64).map(|_| Box::pin(large())).collect();
        tokio::pin!(small);
        for _ in 0..100 {
            for one in &mut large {
                assert!(!is_ready(one.as_mut()).await);
            }
            assert!(!is_ready(small.as_mut()).await);
            round(&inbox);
        }
        let (small, large) = (turns_of_small.get(), turns_of_large.get());
        assert!((3100..=3300).contains(&large), "{large} turns");
        assert!(small >= 30, "{small} turns");
    }

    #[tokio::test]
    async fn who_waits_for_a_turn_and_leaves_holds_up_nobody() {
        let inbox = Inbox::default();
        inbox.acquire_read_units(UNITS_PER_ITERATION).await;
        {
            let mut leaves = Box::pin(inbox.acquire_read_units(UNITS_PER_ITERATION));
            assert!(!is_ready(leaves.as_mut()).await);
            assert_eq!(inbox.waiting_readers.get(), 1);
        }
        assert_eq!(inbox.waiting_readers.get(), 0);
        round(&inbox);
        inbox.acquire_read_units(UNITS_PER_ITERATION).await;
        // A read that is longer than a round takes all units of one round.
        let mut long = Box::pin(inbox.acquire_read_units(usize::MAX));
        assert!(!is_ready(long.as_mut()).await);
        round(&inbox);
        long.await;
    }

    #[tokio::test(start_paused = true)]
    async fn small_commands_pass_large_writes_that_wait() {
        let inbox = Inbox::new(2 << 20);
        for number in 1..=4 {
            inbox.push_large_write(1, command(number), 1 << 19);
        }
        inbox.push_client(command(100), 10);
        let numbers = |taken: Vec<(bool, u64)>| -> Vec<u64> {
            taken.into_iter().map(|(_, number)| number).collect()
        };
        assert_eq!(numbers(round(&inbox)), [100, 1, 2]);
        inbox.push_client(command(101), 10);
        assert_eq!(numbers(round(&inbox)), [101]);
        assert!(!inbox.has_others(), "the replica has its part");
        inbox.answered(1 << 19, true);
        inbox.arrival().await;
        assert_eq!(numbers(round(&inbox)), [3]);
    }

    /// The driver is woken although no input arrives in the meantime.
    #[tokio::test(start_paused = true)]
    async fn the_driver_wakes_when_a_large_write_is_due() {
        let inbox = Inbox::new(2 << 20);
        for number in 1..=3 {
            inbox.push_large_write(1, command(number), 1 << 20);
        }
        assert_eq!(round(&inbox), [(false, 1)]);
        let began = tokio::time::Instant::now();
        inbox.arrival().await;
        assert!(!began.elapsed().is_zero());
        assert_eq!(round(&inbox), [(false, 2)]);
        // The third write waits for an answer.
        let mut arrival = Box::pin(inbox.arrival());
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert!(!is_ready(arrival.as_mut()).await);
    }

    async fn is_ready(mut future: std::pin::Pin<&mut impl Future>) -> bool {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(future.as_mut().poll(context).is_ready())
        })
        .await
    }

    #[test]
    fn questions_of_operators_are_answered_some_at_a_time() {
        let inbox = Inbox::default();
        for request in 0..40 {
            let from = ClientHandle {
                connection: 1,
                request,
            };
            inbox.push_status(from, StatusRequest::default());
        }
        let taken = || inbox.take_statuses(Sizes::default).len();
        assert_eq!([taken(), taken(), taken(), taken()], [16, 16, 8, 0]);
    }
}
