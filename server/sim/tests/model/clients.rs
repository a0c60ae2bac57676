//! Clients, their knowledge of values, and the answers that are allowed.
//!
//! One client writes the values 1, 2, … under one key. It sends each write after the answer to the
//! previous one. The other clients read. A history of such a register is linearizable if and only
//! if each read returns a value that some client has begun to write, and this value is not older
//! than any value that was acknowledged or read before the read began (Lamport 1986, "On
//! interprocess communication": regular, and no new-old inversion).

use leasehold_leases::Key;
use leasehold_replica::action::ClientHandle;
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Command, Outcome};

use super::scenario::{Scenario, Step};

/// The only key in the model.
pub const KEY: &str = "k";

/// State of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// Number of commands sent.
    sent: u8,
    /// The command that has no answer yet: (replica to which it was sent, newest value that any
    /// client knew at that time); `None` if there is no such command.
    open: Option<(u8, u8)>,
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
}

impl Clients {
    /// Whether a client may send its next command: it has a next command, and its previous command
    /// was answered.
    pub fn may_ask(&self, scenario: &Scenario, client: usize) -> bool {
        let at = &self.clients[client];
        let program = &scenario.programs[client];
        at.open.is_none() && !at.lost && usize::from(at.sent) < program.len()
    }

    /// Whether every read was sent and answered, or will never be answered.
    pub fn done(&self, scenario: &Scenario) -> bool {
        let to_come = |client: usize| {
            let sent = usize::from(self.clients[client].sent);
            let mut steps = scenario.programs[client][sent..].iter();
            !self.clients[client].lost && steps.any(|step| matches!(step, Step::Read(_)))
        };
        !self.reading(scenario) && !(0..scenario.programs.len()).any(to_come)
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
    pub fn answered(&mut self, to: ClientHandle, outcome: &Outcome) -> Result<(), String> {
        let client = &mut self.clients[to.connection as usize];
        let Some((_, floor)) = client.open.filter(|_| to.request == u64::from(client.sent)) else {
            return Err(format!("{to:?} is answered twice"));
        };
        client.open = None;
        let value = match &outcome.result {
            // There is only one writer, and it has one write at a time.
            Some(Answer::Written(_)) => self.begun,
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
        Ok(())
    }
}
