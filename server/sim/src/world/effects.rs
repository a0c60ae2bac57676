//! Effects of a replica's actions: messages in transit, syncs and answers.

use std::time::Duration;

use leasehold_leases::{ReplicaId, Slot};
use leasehold_wire::{Outcome, Path};
use rand::RngExt as _;

use super::faults::FULL_RETRY_NS;
use super::{ClientReply, QueuedEvent, World};
use crate::disk::EntryRead;
use crate::fault::FaultKind;
use crate::oracle::WorldSnapshot;
use leasehold_replica::Input;
use leasehold_replica::action::{ClientHandle, Event, Record, Requester, Sequence};
use leasehold_replica::codec;
use leasehold_replica::input::ReadFrom;
use leasehold_replica::message::{Envelope, LogId, PerLog};
use leasehold_replica::shell::{FencedReply, Host};

/// Duration of a flush of the state, as a number of syncs.
const FLUSH_SYNCS: u64 = 20;

/// Maximum delay, in ns, of a log read that hangs but ends.
const READ_HANGS_NS: u64 = 10_000_000_000;

/// Length of the last part of a permit. The simulator counts the reads that are answered in this
/// part, because only these reads can reveal that a permit lasts slightly too long.
const NEAR_END: Duration = Duration::from_millis(10);

/// Newest delivery on a link. Further messages of the same step are added to this delivery if they
/// arrive at the same time.
#[derive(Clone, Copy, Default)]
pub(super) struct LastDelivery {
    step: u64,
    at_ns: u64,
    place: usize,
}

/// Process of the replica with this index. The process performs the replica's actions in the world.
pub(super) struct ReplicaHost<'a>(pub &'a mut World, pub usize);

impl Host for ReplicaHost<'_> {
    fn send(&mut self, to: ReplicaId, envelope: Envelope) {
        self.0.transmit(self.1, to, envelope);
    }

    fn persist(&mut self, sequence: Sequence, records: Vec<Record>) {
        let ReplicaHost(world, node) = self;
        let now = world.clock(*node);
        let target = &mut world.nodes[*node];
        target.watches.disk.requested(sequence, now);
        if target.disk.persist(sequence, records) {
            world.begin_sync(*node);
        } else if target.disk.is_full() {
            target.watches.disk.set_full(true);
            world.step_soon(*node, Input::Tick);
        }
    }

    fn flush(&mut self) {
        let ReplicaHost(world, node) = self;
        world.nodes[*node].disk.request_flush();
        world.begin_flush(*node);
    }

    fn truncate(&mut self, slots: PerLog<Slot>) {
        let ReplicaHost(world, node) = self;
        world.nodes[*node].disk.truncate(slots);
    }

    fn reply(&mut self, to: ClientHandle, path: Path, outcome: Outcome) {
        self.0.replies.push(ClientReply { to, path, outcome });
    }

    /// Answers a read if its permit has not expired. The clock is read again for this check,
    /// because the process may have been paused after the read.
    fn fenced_reply(&mut self, read: FencedReply) {
        let ReplicaHost(world, node) = self;
        let sampled = world.clock(*node);
        if !read.may_leave(sampled) {
            return world.step_soon(*node, read.missed());
        }
        world.near_end += u64::from(read.until.since(sampled) < NEAR_END);
        if world.settings.watched {
            let snapshot = WorldSnapshot::new(world.now_ns, &world.nodes);
            let verdict = world.oracles.read(&snapshot, *node, &read);
            world.judge(verdict);
        }
        let FencedReply {
            to, path, outcome, ..
        } = read;
        match to {
            ReadFrom::Client(to) => world.replies.push(ClientReply { to, path, outcome }),
            ReadFrom::Peer(peer, request) => world.answers.push(peer, request, outcome, path),
        }
    }

    fn read_log(&mut self, log: LogId, to: Requester, from: Slot, last: Slot) {
        let ReplicaHost(world, node) = self;
        let Some(delay_ns) = world.draw_read_delay() else {
            return; // The read hangs until the process ends.
        };
        let disk = &world.nodes[*node].disk;
        let read = disk.begin_read(log, from, last);
        // While a disk is stalled, reads are delayed as well.
        let at = (world.now_ns + disk.sync_ns).max(disk.stalled_until_ns);
        let run = world.nodes[*node].process.run();
        let read = QueuedEvent::LogRead {
            node: *node,
            run,
            to,
            read: Box::new(read),
        };
        world.queue.schedule(at + delay_ns, read);
    }

    fn event(&mut self, note: Event) {
        let ReplicaHost(world, node) = self;
        let me = ReplicaId(*node as u8);
        if note == Event::Left {
            world.left(*node);
        }
        world.notes.push((world.now_ns, me, note));
    }
}

impl World {
    pub(super) fn begin_sync(&mut self, node: usize) {
        let disk = &self.nodes[node].disk;
        let at = (self.now_ns + disk.sync_ns).max(disk.stalled_until_ns);
        let run = self.nodes[node].process.run();
        self.queue.schedule(at, QueuedEvent::Synced { node, run });
        if let Some(down_ns) = self.nodes[node].crash_in_sync.take() {
            let at = self.rng.random_range(self.now_ns..at);
            let down_ns = Some(down_ns);
            self.queue
                .schedule(at, QueuedEvent::Kill { node, run, down_ns });
        }
    }

    pub(super) fn synced(&mut self, node: usize) {
        let (sequence, again) = self.nodes[node].disk.synced();
        if again {
            self.begin_sync(node);
        }
        self.begin_flush(node);
        if let Some(sequence) = sequence {
            self.nodes[node].watches.disk.persisted(sequence);
            self.arrive(node, |inbox| inbox.push(Input::Persisted(sequence)));
        }
    }

    /// Begins a flush of the state if one was requested and can begin.
    pub(super) fn begin_flush(&mut self, node: usize) {
        if self.nodes[node].disk.begin_flush() {
            let disk = &self.nodes[node].disk;
            // A node tries again only from time to time while its disk is full.
            let duration_ns = if disk.is_full() {
                FULL_RETRY_NS
            } else {
                FLUSH_SYNCS * disk.sync_ns
            };
            self.flush_ends_at(node, self.now_ns + duration_ns);
        }
    }

    fn flush_ends_at(&mut self, node: usize, at: u64) {
        let at = at.max(self.nodes[node].disk.stalled_until_ns);
        let run = self.nodes[node].process.run();
        self.queue.schedule(at, QueuedEvent::Flushed { node, run });
    }

    /// Ends a flush. On a full disk without a reserve, the flush does not end yet, and is tried again
    /// later.
    pub(super) fn flushed(&mut self, node: usize) {
        let disk = &self.nodes[node].disk;
        if disk.is_full() && !disk.has_reserve {
            return self.flush_ends_at(node, self.now_ns + FULL_RETRY_NS);
        }
        if disk.is_flush_short() {
            self.note_fault(FaultKind::FlushedInPart);
        }
        let slots = self.nodes[node].disk.flushed();
        self.arrive(node, |inbox| inbox.push(Input::Flushed(slots)));
    }

    /// Draws the delay of a read of a log, in ns; `None` if the read hangs until the process ends.
    fn draw_read_delay(&mut self) -> Option<u64> {
        if !self.settings.slow_reads {
            return Some(0);
        }
        let retransmit_ns = self.settings.replica.timing.retransmit.as_nanos() as u64;
        let delay_ns = match self.rng.random_range(0..16) {
            0 => None,
            1..6 => Some(self.rng.random_range(0..READ_HANGS_NS)),
            6..10 => Some(self.rng.random_range(0..4 * retransmit_ns)),
            _ => return Some(0),
        };
        self.note_fault(FaultKind::SlowRead);
        delay_ns
    }

    /// Ends a read of a log. A real node never uses a file again while it is read. If reads are
    /// slow, only one of four simulated reads has this protection. The other reads rely on the
    /// checks of the entries.
    pub(super) fn log_read(&mut self, node: usize, to: Requester, mut read: EntryRead) {
        let is_protected = !self.settings.slow_reads || self.rng.random_range(0..4) == 0;
        if !is_protected && self.nodes[node].disk.reread(&mut read) {
            self.note_fault(FaultKind::Reused);
        }
        let EntryRead { log, entries, .. } = read;
        self.arrive(node, |inbox| {
            inbox.push(Input::LogRead { log, to, entries })
        });
    }

    fn step_soon(&mut self, node: usize, input: Input) {
        self.step_at(self.now_ns, node, input);
    }

    pub(super) fn step_at(&mut self, at_ns: u64, node: usize, input: Input) {
        let (input, run) = (Box::new(input), self.nodes[node].process.run());
        let step = QueuedEvent::Step { node, input, run };
        self.queue.schedule(at_ns, step);
    }

    pub(super) fn transmit(&mut self, from: usize, to: ReplicaId, mut envelope: Envelope) {
        let to = to.index();
        if let Some(faulty_reporter) = &mut self.faulty_reporter
            && faulty_reporter.distort(from, &mut envelope.message)
        {
            self.note_fault(FaultKind::Nonsense);
        }
        if self.settings.encoded {
            envelope = match self.oracles.frames.pass(envelope) {
                Ok(decoded) => decoded,
                Err(violation) => return self.judge(Err(violation)),
            };
        }
        let mut left_ns = self.now_ns;
        if self.network.bytes_per_s > 0 {
            let bytes = codec::envelope_bytes(envelope.clone());
            left_ns = self.network.leaves_ns(left_ns, from, to, bytes);
        }
        let mut arrivals = self
            .network
            .deliveries(&mut self.rng, left_ns, from, to)
            .peekable();
        while let Some(at) = arrivals.next() {
            if arrivals.peek().is_none() {
                return self.deliver(from, to, at, envelope);
            }
            self.deliver(from, to, at, envelope.clone());
        }
    }

    fn deliver(&mut self, from: usize, to: usize, at_ns: u64, envelope: Envelope) {
        let link = from * self.n() + to;
        let last = self.last_deliveries[link];
        if (last.step, last.at_ns) == (self.steps, at_ns)
            && let Some(QueuedEvent::Deliver { inputs, .. }) = self.queue.get_mut(last.place)
        {
            return inputs.push(Input::Peer(envelope));
        }
        let mut inputs = self.spare.pop().unwrap_or_default();
        inputs.push(Input::Peer(envelope));
        let deliver = QueuedEvent::Deliver {
            to,
            inputs,
            sent: self.queue.scheduled(),
        };
        self.last_deliveries[link] = LastDelivery {
            step: self.steps,
            at_ns,
            place: self.queue.schedule(at_ns, deliver),
        };
    }
}
