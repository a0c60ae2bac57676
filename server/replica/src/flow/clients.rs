//! Steps that handle requests of this replica's clients.

use leasehold_wire::command::Op;
use leasehold_wire::{Command, Path};

use super::Parts;
use crate::handles::ClientHandle;
use crate::handles::{FencedRead, ReadFrom};
use crate::origin::{ReadRequest, Writes, read_many};
use crate::step::Step;
use crate::unavailable::too_many_session_opens;

/// Maximum number of marks that the scans of one group of inputs may examine in total. A replica
/// examines this many marks in about 2 ms.
const MARKS_LOOKED_AT: usize = 1 << 16;

impl Parts {
    pub fn on_client(&mut self, step: &mut Step<'_>, from: ClientHandle, command: Command) {
        self.leasing.count_demand(&command);
        match &command.op {
            Some(Op::Get(get)) => {
                let key = get.key.clone();
                let (reads, view) = self.reads();
                let from = ReadFrom::Client(from);
                reads.read(step, view, ReadRequest { from, key });
            }
            Some(Op::MultiGet(_) | Op::Scan(_)) => {
                let is_answered = self.may_look_at_marks(&command)
                    && read_many(step, self.view(), from, &command);
                if !is_answered {
                    step.metrics.reads_in_log += 1;
                    self.writes.submit(step, from, command, 0);
                }
            }
            Some(Op::Put(_) | Op::Delete(_) | Op::Cas(_) | Op::PutFields(_)) => {
                self.on_write(step, from, command);
            }
            Some(Op::MultiPut(_) | Op::Txn(_)) | None => self.on_write(step, from, command),
        }
    }

    /// Returns whether a command may examine marks. The scans of one group of inputs may examine
    /// only a limited number of marks, because a scan examines every mark and there may be very
    /// many. Further scans go through the log.
    fn may_look_at_marks(&mut self, command: &Command) -> bool {
        match command.as_read() {
            Some(leasehold_wire::ReadOp::Scan(_)) => {}
            Some(leasehold_wire::ReadOp::Get(_) | leasehold_wire::ReadOp::MultiGet(_)) | None => {
                return true;
            }
        }
        self.marks_looked_at += self.consensus.marks().len();
        self.marks_looked_at <= MARKS_LOOKED_AT
    }

    fn on_write(&mut self, step: &mut Step<'_>, from: ClientHandle, command: Command) {
        match self.machine.result_of(&command) {
            Some(outcome) => step.reply(from, Path::Log, outcome),
            None if self.may_send(step, &command) => {
                let work = self.machine.merge_work(&command);
                self.writes.submit(step, from, command, work);
            }
            None => {
                step.metrics.openings_refused += 1;
                step.reply(from, Path::Log, too_many_session_opens());
            }
        }
    }

    /// Whether a write may be sent to the log. This is true in three cases: the client has a
    /// session, the write already waits here, or the client may open a session now.
    fn may_send(&mut self, step: &Step<'_>, command: &Command) -> bool {
        let client = command.client;
        self.machine.sessions().knows(client)
            || self.writes.waits(command)
            || self.session_opens.may_open(step.now, client)
    }

    /// Repeats a read, because the permit of the read had ended by the time the answer was ready.
    pub fn on_fence_missed(&mut self, step: &mut Step<'_>, from: ReadFrom, again: FencedRead) {
        step.metrics.fallback_fence += 1;
        match (again, from) {
            (FencedRead::Key(key), _) => {
                let (reads, view) = self.reads();
                reads.read(step, view, ReadRequest { from, key });
            }
            (FencedRead::Command(command), ReadFrom::Client(client)) => {
                self.on_client(step, client, *command)
            }
            (FencedRead::Command(_), ReadFrom::Peer(..)) => {}
        }
    }

    /// Drops the requests of disconnected clients, except those that may be in the log.
    pub(super) fn forget_disconnected(&mut self, step: &mut Step<'_>) {
        if let Some(disconnected) = self.disconnected.take() {
            self.reads.forget(step, &disconnected);
            self.writes.forget_reads(&disconnected);
            self.writes.forget_queued(step, &disconnected);
        }
    }

    /// Forwards commands to the leader. The commands have arrived from clients since the last group
    /// of inputs. If no leader is known, they are sent once a leader is known.
    pub(super) fn send_forwards(&mut self, step: &mut Step<'_>) {
        let machine = &self.machine;
        let work = |command: &Command| machine.merge_work(command);
        let commands = self.writes.take_forwards(step, work);
        if commands.is_empty() {
            return;
        }
        match self.consensus.leader() {
            None => {}
            Some(leader) if leader == step.me() => {
                self.on_forward(step, leader, commands);
                self.propose_batches(step);
            }
            Some(leader) => Writes::forward(step, leader, commands),
        }
    }
}
