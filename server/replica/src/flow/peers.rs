//! Dispatches each message of a peer to the flow that handles it.

use super::Parts;
use crate::action::Event;
use crate::consensus::{Acceptances, Prepared};
use crate::message::{Envelope, Message};
use crate::step::Step;

impl Parts {
    /// Handles a message of a peer. `current` is true if the message comes from the newest known
    /// run of the peer, and was sent to this run of this replica.
    pub fn on_peer(&mut self, step: &mut Step<'_>, envelope: Envelope, current: bool) {
        let (from, incarnation) = (envelope.from, envelope.from_incarnation);
        match envelope.message {
            Message::Ping { stamp, flushed, .. } => {
                step.send(from, Message::Pong { stamp });
                self.truncate_flushed(step, from, flushed);
            }
            Message::Join { life } => self.joining.on_join(step, from, life),
            Message::Joined { life } => self.joining.on_joined(step, from, life),
            Message::Prepare { ballot, commits } if !self.joining.has_joined() => {
                self.joining.postpone_prepare(from, ballot, commits)
            }
            // A replica that does not take part yet helps others to join, and answers pings.
            _ if !self.joining.has_joined() => {}
            Message::PreVote { ballot, ask } => self.on_pre_vote(step, from, ballot, ask),
            Message::Prepare { ballot, commits } => self.on_prepare(step, from, ballot, commits),
            Message::Prepared {
                ballot,
                answer,
                part,
                parts,
                commits,
                entries,
                log_starts,
            } => {
                let prepared = Prepared {
                    ballot,
                    answer,
                    part,
                    parts,
                    commits,
                    entries,
                    log_starts,
                };
                self.on_prepared(step, from, incarnation, prepared)
            }
            Message::Accept(accept) => self.on_accept(step, from, accept),
            Message::Accepted { ballot, log, votes } => {
                self.on_accepted(step, from, &Acceptances { ballot, log, votes })
            }
            Message::Rejected { promised } => self.on_rejected(step, promised),
            Message::Heartbeat {
                ballot,
                probe,
                logs,
            } => self.on_heartbeat(step, from, ballot, probe, logs),
            Message::HeartbeatAck {
                ballot,
                probe,
                suspects,
            } => self.on_heartbeat_ack(step, from, ballot, probe, suspects),
            Message::TransferRequest => self.on_transfer_request(step, from),
            Message::Move { to } => self.transfer_leadership(step, to),
            _ if !current => step.metrics.stale_incarnation += 1,
            message => self.on_current(step, from, message),
        }
    }

    /// Handles messages that are valid only between the present runs of both replicas. An example
    /// is an entry that an earlier run of this replica requested. This run may not know the entry's
    /// ballot, and would store the entry under a lower ballot.
    fn on_current(
        &mut self,
        step: &mut Step<'_>,
        from: leasehold_leases::ReplicaId,
        message: Message,
    ) {
        match message {
            // If an earlier run was to lead, the leader may have abandoned the transfer long ago.
            Message::Transfer {
                ballot,
                by_operator,
            } => self.consensus.note_transfer(from, ballot, by_operator),
            Message::PreVoted { ballot, ask } => self.on_pre_voted(step, from, ballot, ask),
            Message::Fetch {
                log,
                from: first,
                to: last,
            } => self.consensus.on_fetch(step, from, log, first, last),
            Message::Fetched { log, entries } => self.on_fetched(step, from, log, entries),
            Message::Forward { commands } => self.on_forward(step, from, commands),
            Message::Answered { answers } => self.writes.on_answered(step, answers),
            Message::ForwardRead { read_index, reads } => {
                let (part, view) = self.reads();
                part.on_forwarded(step, view, from, read_index, reads)
            }
            Message::ReadAnswers(answers) => {
                let (reads, view) = self.reads();
                reads.on_answers(step, view, from, answers)
            }
            Message::Lease(message) => self.on_lease(step, from, &message),
            Message::Demand(report) => self.on_demand(step, from, &report),
            Message::SetLease { ask, set } => self.set_leases(step, from, ask, set),
            Message::LeaseAnswer { ask, answer } => {
                step.announce(Event::LeaseAnswered { ask, answer });
            }
            _ => {}
        }
    }
}
