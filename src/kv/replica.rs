//! Requests to a replica, and the notes about how they were served.

use std::collections::BTreeMap;
use std::time::Instant;

use leasehold_client::{Client, Error, OperationTrace, RawReply};
use leasehold_wire::Path;
use leasehold_wire::command::Op;

use crate::connector::{ConnectedClient, Connector};
use crate::terminal::note;

/// Replicas that did not answer: for each address, the reason.
type DeadReplicas = BTreeMap<String, String>;

/// The replica that a command asks.
pub struct Asked<'a> {
    connector: &'a Connector,
    connected: ConnectedClient,
    is_verbose: bool,
    /// Replicas about which a note was already printed.
    noted: DeadReplicas,
}

impl<'a> Asked<'a> {
    pub async fn connect(connector: &'a Connector, is_verbose: bool) -> anyhow::Result<Asked<'a>> {
        Ok(Asked {
            connector,
            connected: connector.connect().await?,
            is_verbose,
            noted: DeadReplicas::new(),
        })
    }

    pub fn client(&self) -> &Client {
        &self.connected.client
    }

    /// Executes one operation. Prints notes about replicas that did not answer, and about how the
    /// operation was served.
    pub async fn execute(&mut self, op: Op) -> Result<RawReply, Error> {
        let started = Instant::now();
        let (reply, trace) = self.client().raw().execute_traced(op).await;
        let (reply, took) = (reply?, started.elapsed());
        let mut dead = silent(self.client(), &trace, &reply.replica);
        if let Some(before) = &self.connected.before {
            let trace = OperationTrace::default();
            dead.extend(silent(before, &trace, &reply.replica));
        }
        self.note_dead_replicas(dead, &reply);
        if self.is_verbose {
            note!(
                "served: {}, {:.2} ms, at {}",
                path_name(reply.path),
                took.as_secs_f64() * 1e3,
                reply.replica
            );
        }
        Ok(reply)
    }

    fn note_dead_replicas(&mut self, dead: DeadReplicas, reply: &RawReply) {
        for (address, reason) in dead {
            if !self.noted.contains_key(&address) {
                let (named, name) = (self.connector.named(&address), &reply.replica);
                note!("note: {named} does not answer ({reason}); {name} was asked instead");
                self.noted.insert(address, reason);
            }
        }
    }
}

/// Returns the replicas that are dead, or did not answer the traced operation, with the reasons.
/// `answered` is the name of the replica that answered in the end. It may have answered late, after
/// the request was sent to another replica, too.
fn silent(client: &Client, trace: &OperationTrace, answered: &str) -> DeadReplicas {
    let replicas = client.health().replicas.into_iter().enumerate();
    let replicas = replicas.filter(|(_, it)| it.replica.as_deref() != Some(answered));
    let dead = replicas.filter_map(|(at, replica)| match replica.dead {
        Some((_, reason)) => Some((replica.address, reason)),
        None if trace.silent.contains(&at) => Some((replica.address, "no answer".to_owned())),
        None => None,
    });
    dead.collect()
}

fn path_name(path: Path) -> &'static str {
    match path {
        Path::Local => "locally, under this replica's own lease",
        Path::Held => "locally, after a write in flight",
        Path::Forwarded => "by the nearest holder",
        Path::ReadIndex => "by the leader, confirmed by a majority",
        Path::Log => "through the log",
        Path::Unspecified => "in a way unknown to this version",
    }
}
