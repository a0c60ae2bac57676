//! Heartbeats: a leader says that it lives and what is committed; the answers
//! confirm its reads (protocol §3.7) and tell whom the others suspect.

use leases::{Ballot, ReplicaId, ReplicaSet, Time};

use super::action::Action;
use super::message::{LogId, LogNews, Message};
use super::{Replica, Role};

impl Replica {
    /// Says that this leader lives, and what is committed; the answers confirm
    /// reads and suspect the silent.
    pub(super) fn heartbeat(&mut self, out: &mut Vec<Action>) {
        let Role::Leader(leadership) = &mut self.role else {
            return;
        };
        leadership.probe += 1;
        leadership.probe_due = false;
        let probe = leadership.probe;
        self.send_heartbeat(probe, out);
    }

    fn send_heartbeat(&mut self, probe: u64, out: &mut Vec<Action>) {
        let logs = [self.logs[0].news(), self.logs[1].news()];
        let Role::Leader(leadership) = &mut self.role else {
            return;
        };
        leadership.news_due = false;
        let ballot = leadership.ballot;
        self.broadcast(
            &Message::Heartbeat {
                ballot,
                probe,
                logs,
            },
            out,
        );
    }

    /// Reads came that a majority must confirm: probe it now.
    pub(super) fn flush_read_index(&mut self, out: &mut Vec<Action>) {
        if self.leads().is_some_and(|leadership| leadership.probe_due) {
            self.heartbeat(out);
            self.confirm_reads(out);
        }
    }

    /// News of commits that no Accept carried leaves at once.
    pub(super) fn flush_commit_news(&mut self, out: &mut Vec<Action>) {
        if self.leads().is_some_and(|leadership| leadership.news_due) {
            self.send_heartbeat(0, out);
        }
    }

    pub(super) fn on_heartbeat(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        probe: u64,
        logs: &[LogNews; 2],
        out: &mut Vec<Action>,
    ) {
        if ballot.replica != from {
            self.counters.refused_messages += 1;
            return;
        }
        if ballot < self.promised {
            return self.send(
                from,
                Message::Rejected {
                    promised: self.promised,
                },
                out,
            );
        }
        self.hear_leader(now, ballot, out);
        for log in LogId::ALL {
            let news = &logs[log.index()];
            self.adopt(now, ballot, log, news.log_start, out);
            self.learn_news(now, log, ballot, news, out);
        }
        if probe > 0 {
            let suspects = self.suspects();
            self.send(
                from,
                Message::HeartbeatAck {
                    ballot,
                    probe,
                    suspects,
                },
                out,
            );
        }
    }

    pub(super) fn on_heartbeat_ack(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        probe: u64,
        suspects: ReplicaSet,
        out: &mut Vec<Action>,
    ) {
        let Role::Leader(leadership) = &mut self.role else {
            return;
        };
        if leadership.ballot != ballot || probe > leadership.probe {
            return;
        }
        let acked = &mut leadership.probe_acks[from.index()];
        *acked = (*acked).max(probe);
        self.suspicions.report(now, from, suspects);
        self.confirm_reads(out);
    }
}
