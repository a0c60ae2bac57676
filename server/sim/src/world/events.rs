//! Events that can happen in a world, and the code that handles each of them.

use leasehold_wire::Command;

use super::{ClientReply, World, WorldEvent};
use crate::disk::EntryRead;
use leasehold_replica::Input;
use leasehold_replica::action::{ClientHandle, Requester};

/// Event that happens at a scheduled time. If the event has a field `run`, it concerns only this
/// run of the process.
pub(super) enum QueuedEvent {
    Deliver {
        to: usize,
        /// Inputs that peers sent.
        inputs: Vec<Input>,
        sent: u64,
    },
    Synced {
        node: usize,
        run: u64,
    },
    /// A flush of the state ends.
    Flushed {
        node: usize,
        run: u64,
    },
    Deadline {
        node: usize,
    },
    Requests {
        node: usize,
        requests: Vec<(ClientHandle, Command)>,
    },
    Replies(Vec<ClientReply>),
    /// A client's connection has ended.
    HangUp {
        node: usize,
        connection: u64,
        run: u64,
    },
    Alarm(u64),
    Step {
        node: usize,
        input: Box<Input>,
        run: u64,
    },
    /// A read of a log ends.
    LogRead {
        node: usize,
        run: u64,
        to: Requester,
        read: Box<EntryRead>,
    },
    /// A full disk has free space again, and the replica tries to write to it.
    DiskRetry {
        node: usize,
    },
    Start(usize),
    Kill {
        node: usize,
        run: u64,
        down_ns: Option<u64>,
    },
    Resume {
        node: usize,
        run: u64,
    },
}

impl World {
    /// Handles the next event. Returns `None` if no event is left in the queue.
    pub fn advance(&mut self) -> Option<WorldEvent> {
        let (at_ns, event) = self.queue.pop()?;
        debug_assert!(at_ns >= self.now_ns);
        self.now_ns = at_ns;
        Some(self.dispatch(event))
    }

    fn dispatch(&mut self, event: QueuedEvent) -> WorldEvent {
        if self.is_stale(&event) {
            return WorldEvent::Nothing;
        }
        match event {
            QueuedEvent::Deliver { to, inputs, sent } => self.delivered(to, inputs, sent),
            QueuedEvent::Synced { node, run } => {
                self.note_hash(2, node, run);
                self.synced(node);
            }
            QueuedEvent::Flushed { node, run } => {
                self.note_hash(7, node, run);
                self.flushed(node);
            }
            QueuedEvent::Deadline { node } => {
                self.note_hash(3, node, 0);
                self.nodes[node].process.take_deadline();
                self.run_due(node);
            }
            QueuedEvent::Requests { node, requests } => self.requested(node, requests),
            QueuedEvent::Step { node, input, .. } => self.arrive(node, |inbox| inbox.push(*input)),
            QueuedEvent::LogRead { node, to, read, .. } => self.log_read(node, to, *read),
            QueuedEvent::HangUp {
                node, connection, ..
            } => self.hung_up(node, connection),
            QueuedEvent::Replies(replies) => return self.replied(replies),
            QueuedEvent::Alarm(token) => return WorldEvent::Alarm(token),
            QueuedEvent::Start(node) => self.start(node),
            QueuedEvent::Kill { node, down_ns, .. } => {
                if self.nodes[node].replica().is_none() {
                    return WorldEvent::Nothing;
                }
                self.crash(node);
                if let Some(down_ns) = down_ns {
                    self.start_at(node, self.now_ns + down_ns);
                }
                return WorldEvent::Ended(node, down_ns);
            }
            QueuedEvent::Resume { node, .. } => self.wake(node),
            QueuedEvent::DiskRetry { node } => self.try_disk(node),
        }
        WorldEvent::Nothing
    }

    /// Whether an event is outdated: the run in question has ended, or the replica's deadline has
    /// changed.
    fn is_stale(&self, event: &QueuedEvent) -> bool {
        match event {
            QueuedEvent::Synced { node, run }
            | QueuedEvent::Flushed { node, run }
            | QueuedEvent::HangUp { node, run, .. }
            | QueuedEvent::Step { node, run, .. }
            | QueuedEvent::LogRead { node, run, .. }
            | QueuedEvent::Kill { node, run, .. }
            | QueuedEvent::Resume { node, run } => self.nodes[*node].process.run() != *run,
            QueuedEvent::Deadline { node } => !self.nodes[*node].process.is_due(self.now_ns),
            _ => false,
        }
    }

    fn delivered(&mut self, to: usize, mut inputs: Vec<Input>, sent: u64) {
        self.note_hash(1, to, sent << 8 | inputs.len() as u64);
        self.arrive(to, |inbox| inbox.append(&mut inputs));
        inputs.clear(); // a process that is down receives nothing
        self.spare.push(inputs);
    }

    fn requested(&mut self, node: usize, requests: Vec<(ClientHandle, Command)>) {
        let watched = self.settings.watched && self.nodes[node].replica().is_some();
        for (from, command) in &requests {
            self.note_hash(4, node, from.request);
            if watched {
                let now_ns = self.now_ns;
                self.oracles.requested(now_ns, node, *from, command);
            }
        }
        let client = |(from, command)| Input::Client { from, command };
        self.arrive(node, |inbox| inbox.extend(requests.into_iter().map(client)));
    }

    fn hung_up(&mut self, node: usize, connection: u64) {
        self.note_hash(6, node, connection);
        if self.settings.watched {
            self.oracles.hung_up(node, connection);
        }
        self.arrive(node, |inbox| {
            inbox.push(Input::ClientDisconnected { connection })
        });
    }

    fn replied(&mut self, replies: Vec<ClientReply>) -> WorldEvent {
        for reply in &replies {
            self.note_hash(5, reply.path as usize, reply.to.request);
        }
        WorldEvent::Replied(replies)
    }
}
