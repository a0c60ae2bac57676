//! Clients, their knowledge of values, and the answers that are allowed.
//!
//! One client writes the values 1, 2, … under one key. It sends each write after the answer to the
//! previous one. The other clients read. A history of such a register is linearizable if and only
//! if each read returns a value that some client has begun to write, and this value is not older
//! than any value that was acknowledged or read before the read began (Lamport 1986, "On
//! interprocess communication": regular, and no new-old inversion).
//!
//! In one scope, the write is a transaction that writes the key only if it does not find another
//! key, and the reading client first writes this other key. If this client then reads the old value
//! of the key, the transaction comes after both, so it must not write (hazard 34).

use leasehold_leases::Key;
use leasehold_replica::action::ClientHandle;
use leasehold_replica::message::Value;
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{Command, Comparison, Get, Outcome, Put, Txn};

use super::scenario::{Scenario, Step};

/// Key that is read.
pub const KEY: &str = "k";
/// Key that only the scope with a transaction uses.
const OTHER: &str = "c";

/// Returns true if a value in the log may write [`KEY`].
pub fn writes_key(value: &Value) -> bool {
    let mut commands = value.commands().iter().map(|proposed| &proposed.command);
    commands.any(|command| command.keys().any(|key| key == KEY))
}

/// State of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// Number of commands sent.
    sent: u8,
    /// The command that has no answer yet: (replica to which it was sent, newest value that any
    /// client knew at that time); `None` if there is no such command.
    open: Option<(u8, u8)>,
    /// True if the write of the other key had been acknowledged when the open command was sent.
    after_other: bool,
    /// Whether a replica ended before it answered the client's command, so that the client never
    /// learns the outcome.
    lost: bool,
}

/// All clients, with the values that clients have begun to write and the values that clients know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Clients {
    clients: [Client; 2],
    /// Number of writes begun.
    begun: u8,
    /// Newest value that was acknowledged to, or read by, any client.
    newest: u8,
    /// True if the write of the other key was acknowledged.
    other_acknowledged: bool,
    /// True if the transaction must not write, because it comes after the write of the other key.
    must_not_write: bool,
    /// True if the transaction has found the other key.
    found_other: bool,
}

impl Clients {
    /// Whether a client may send its next command: it has a next command, and its previous command
    /// was answered.
    pub fn may_ask(&self, scenario: &Scenario, client: usize) -> bool {
        let at = &self.clients[client];
        let program = &scenario.programs[client];
        at.open.is_none() && !at.lost && usize::from(at.sent) < program.len()
    }

    /// Returns true if every command with a judged answer was answered, or will never be answered.
    /// The answers to writes are not judged, except those to transactions.
    pub fn done(&self, scenario: &Scenario) -> bool {
        let judged = |step: &Step| matches!(step, Step::Read(_) | Step::Txn(_));
        (0..scenario.programs.len()).all(|client| {
            let at = &self.clients[client];
            let answered = usize::from(at.sent) - usize::from(at.open.is_some());
            let mut steps = scenario.programs[client][answered..].iter();
            at.lost || !steps.any(judged)
        })
    }

    /// Whether some read was sent and has not been answered.
    pub fn reading(&self, scenario: &Scenario) -> bool {
        let reads = |client: usize| {
            let at = &self.clients[client];
            let step = |sent: u8| scenario.programs[client][usize::from(sent) - 1];
            at.open.is_some() && matches!(step(at.sent), Step::Read(_))
        };
        (0..scenario.programs.len()).any(reads)
    }

    /// Lets a client send its next command. Returns the replica that receives the command, the
    /// handle of the request, and the command.
    pub fn ask(&mut self, scenario: &Scenario, client: usize) -> (usize, ClientHandle, Command) {
        let newest = self.newest;
        let at = &mut self.clients[client];
        let step = scenario.programs[client][usize::from(at.sent)];
        at.sent += 1;
        let from = ClientHandle {
            connection: client as u64,
            request: u64::from(at.sent),
        };
        let node = step.node();
        at.open = Some((node as u8, newest));
        at.after_other = self.other_acknowledged;
        let command = match step {
            Step::Read(_) => Command {
                op: Some(Op::get(Key::from(KEY))),
                ..Command::default()
            },
            Step::Write(_) => {
                self.begun += 1;
                let sequence = u64::from(self.begun);
                let op = Op::put(KEY, vec![self.begun]);
                Command::session(client as u64 + 1, sequence, sequence, op)
            }
            Step::Txn(_) => {
                self.begun += 1;
                let sequence = u64::from(self.begun);
                let op = Op::txn(unless_other(self.begun));
                Command::session(client as u64 + 1, sequence, sequence, op)
            }
            Step::WriteOther(_) => {
                let sequence = u64::from(at.sent);
                let op = Op::put(OTHER, "other");
                Command::session(client as u64 + 1, sequence, sequence, op)
            }
        };
        (node, from, command)
    }

    /// Notes that a replica has ended. It will not answer the commands that it has received.
    pub fn lost(&mut self, node: usize) {
        for client in &mut self.clients {
            if client.open.is_some_and(|(at, _)| usize::from(at) == node) {
                client.open = None;
                client.lost = true;
            }
        }
    }

    /// Judges an answer.
    pub fn answered(
        &mut self,
        scenario: &Scenario,
        to: ClientHandle,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let program = &scenario.programs[to.connection as usize];
        let step = program[to.request as usize - 1];
        let client = &mut self.clients[to.connection as usize];
        let Some((_, floor)) = client.open.filter(|_| to.request == u64::from(client.sent)) else {
            return Err(format!("{to:?} is answered twice"));
        };
        client.open = None;
        let after_other = client.after_other;
        let value = match &outcome.result {
            Some(Answer::Written(_)) if matches!(step, Step::WriteOther(_)) => {
                self.other_acknowledged = true;
                return Ok(());
            }
            Some(Answer::Txn(result)) if !result.or_else => {
                self.found_other = true;
                return self.judge_txn();
            }
            // There is only one writer, and it has one write at a time.
            Some(Answer::Written(_) | Answer::Txn(_)) => self.begun,
            Some(Answer::Value(value)) => value.value.first().copied().unwrap_or_default(),
            Some(Answer::Missing(_)) => 0,
            other => return Err(format!("{to:?} is answered with {other:?}")),
        };
        if value > self.begun {
            return Err(format!("read {value}, which nobody has written"));
        }
        if value < floor {
            return Err(format!("read {value} although {floor} was known before"));
        }
        self.newest = self.newest.max(value);
        if after_other && value == 0 {
            self.must_not_write = true;
        }
        self.judge_txn()
    }

    /// Judges whether the transaction has written although it must not.
    fn judge_txn(&self) -> Result<(), String> {
        if self.newest > 0 && (self.must_not_write || self.found_other) {
            let why = "the transaction has written, and comes after the write of the other key";
            return Err(why.into());
        }
        Ok(())
    }
}

/// Returns the transaction that writes `value` unless it finds the other key. Its second list
/// writes, so that readers must be notified of the keys of both lists (hazard 130).
fn unless_other(value: u8) -> Txn {
    let found = Comparison {
        key: OTHER.into(),
        condition: Some(Condition::Present(true)),
    };
    let get = Listed::Get(Get { key: OTHER.into() });
    let put = Listed::Put(Put {
        key: KEY.into(),
        value: vec![value].into(),
    });
    Txn {
        comparisons: vec![found],
        then: vec![get.into()],
        or_else: vec![put.into()],
        keep_going: false,
    }
}
