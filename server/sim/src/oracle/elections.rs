//! No needless election: while a majority receives the leader's heartbeats, no replica campaigns
//! unless this leader transfers leadership. This is a rule of liveness, not of safety: each
//! election causes an outage for clients, even if the election is correct.
//!
//! The rule is judged by messages: a replica that acknowledges heartbeats of a leader has received
//! these heartbeats.

use std::time::Duration;

use leasehold_leases::{Ballot, ReplicaSet};

use super::{Verdict, WorldSnapshot, ensure, id};
use leasehold_replica::message::{Envelope, Message};

pub(super) const NAME: &str = "elections";

/// Series of heartbeats that one replica acknowledged. All heartbeats of a series have the same
/// ballot. There is no long pause between two successive heartbeats.
#[derive(Clone, Copy, Debug)]
struct HeartbeatSeries {
    ballot: Ballot,
    since_ns: u64,
    last_ns: u64,
}

/// Oracle that judges elections: an election must not be needless.
#[derive(Debug)]
pub struct ElectionOracle {
    /// Current series of heartbeats that each replica acknowledges.
    heartbeats: Vec<Option<HeartbeatSeries>>,
    /// Ballot of the leader that transferred leadership to each replica.
    transferred: Vec<Option<Ballot>>,
    timeout_ns: u64,
    /// Whether judging has stopped, because a clock has violated the assumptions about clocks.
    excused: bool,
    /// Number of campaigns judged.
    pub checks: u64,
}

impl ElectionOracle {
    pub(super) fn new(n: usize, timeout: Duration) -> ElectionOracle {
        ElectionOracle {
            heartbeats: vec![None; n],
            transferred: vec![None; n],
            timeout_ns: timeout.as_nanos() as u64,
            excused: false,
            checks: 0,
        }
    }

    /// Stops judging elections. A caller does this when a clock has jumped, because the replica
    /// with this clock may consider an active leader silent.
    pub fn excuse(&mut self) {
        self.excused = true;
    }

    /// Handles the end of a replica.
    pub(super) fn crashed(&mut self, node: usize) {
        self.heartbeats[node] = None;
        self.transferred[node] = None;
    }

    /// Returns the longest allowed pause, in ns, between two heartbeats of a series. A replica
    /// agrees to a campaign of another replica only if the leader was silent for longer than this
    /// pause.
    fn pause_ns(&self) -> u64 {
        self.timeout_ns / 4 * 3
    }

    /// Records a message that `node` sends.
    pub(super) fn sent(&mut self, now_ns: u64, node: usize, to: usize, envelope: &Envelope) {
        match &envelope.message {
            Message::HeartbeatAck { ballot, .. } => self.hears(now_ns, node, *ballot),
            // The replica has promised another ballot.
            Message::Prepared { .. } => self.heartbeats[node] = None,
            Message::Transfer { ballot, .. } => self.transferred[to] = Some(*ballot),
            _ => {}
        }
    }

    fn hears(&mut self, now_ns: u64, node: usize, ballot: Ballot) {
        let pause_ns = self.pause_ns();
        let series = &mut self.heartbeats[node];
        match series {
            Some(s) if s.ballot == ballot && now_ns - s.last_ns <= pause_ns => s.last_ns = now_ns,
            _ => {
                *series = Some(HeartbeatSeries {
                    ballot,
                    since_ns: now_ns,
                    last_ns: now_ns,
                })
            }
        }
    }

    /// Judges a campaign of `node`: the campaign must not be needless. A campaign is needless if a
    /// majority has received heartbeats of one leader for two election timeouts without a long
    /// pause. In this case, no majority can have agreed to the campaign.
    pub(super) fn campaigns(&mut self, snapshot: &WorldSnapshot<'_>, node: usize) -> Verdict {
        self.checks += 1;
        self.heartbeats[node] = None;
        let transferred = self.transferred[node].take();
        if self.excused {
            return Ok(());
        }
        for leader in 0..snapshot.n() {
            let replica = snapshot
                .replica(leader)
                .filter(|_| snapshot.node(leader).process.is_up());
            let Some(ballot) = replica.and_then(|replica| replica.leads_at()) else {
                continue;
            };
            let hears = |series: &Option<HeartbeatSeries>| {
                series.is_some_and(|s| {
                    s.ballot == ballot
                        && snapshot.now_ns - s.last_ns <= self.pause_ns()
                        && snapshot.now_ns - s.since_ns >= 2 * self.timeout_ns
                })
            };
            let steady = (0..snapshot.n())
                .filter(|peer| hears(&self.heartbeats[*peer]))
                .map(id);
            let steady = steady
                .collect::<ReplicaSet>()
                .union(ReplicaSet::one(id(leader)));
            ensure!(
                NAME,
                transferred == Some(ballot) || steady.len() <= snapshot.n() / 2,
                "{:?} campaigns, although {:?} leads at {ballot:?} and {steady:?} hear it",
                id(node),
                id(leader)
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_leases::ReplicaId;

    use super::*;
    use crate::oracle::test_world::{ReplicaState, TestWorld, says};
    use leasehold_replica::action::Action;
    use leasehold_replica::message::PerLog;
    use leasehold_replica::{Input, Replica};

    const TIMEOUT: Duration = Duration::from_millis(1000);

    /// Returns a world that replica 0 leads, and the ballot of replica 0.
    fn led() -> (TestWorld, Ballot) {
        let mut world = TestWorld::new([
            ReplicaState::default(),
            ReplicaState::default(),
            ReplicaState::default(),
        ]);
        let now = world.snapshot().time(0);
        let leader = world.nodes[0].process.machine_mut().expect("it runs");
        let mut out = Vec::new();
        leader.expire_election(now);
        leader.step(now, Input::Tick, &mut out);
        let asked = out.iter().find_map(|action| match action {
            Action::Send { envelope, .. } => match envelope.message {
                Message::PreVote { ballot, ask } => Some((ballot, ask)),
                _ => None,
            },
            _ => None,
        });
        let (ballot, ask) = asked.expect("it asks");
        hear(leader, now, Message::PreVoted { ballot, ask });
        leader.flush(now, &mut out);
        let synced: Vec<Input> = out.iter().filter_map(persisted).collect();
        for synced in synced {
            leader.step(now, synced, &mut out);
        }
        let promise = Message::Prepared {
            ballot,
            answer: 1,
            part: 0,
            parts: 1,
            commits: PerLog::default(),
            entries: Vec::new(),
            log_starts: Vec::new(),
        };
        hear(leader, now, promise);
        assert_eq!(leader.leads_at(), Some(ballot));
        (world, ballot)
    }

    fn persisted(action: &Action) -> Option<Input> {
        match action {
            Action::Persist { sequence, .. } => Some(Input::Persisted(*sequence)),
            _ => None,
        }
    }

    fn hear(replica: &mut Replica, now: leasehold_leases::Time, message: Message) {
        let (_, _, envelope) = says((1, 1), (0, 1), message);
        replica.step(now, Input::Peer(envelope), &mut Vec::new());
    }

    fn ack(ballot: Ballot) -> Envelope {
        let message = Message::HeartbeatAck {
            ballot,
            probe: 1,
            suspects: ReplicaSet::EMPTY,
        };
        says((1, 1), (0, 1), message).2
    }

    /// Lets replica 1 acknowledge heartbeats at intervals of `every_ms` for three seconds. Then
    /// judges a campaign of replica 2.
    fn judge(every_ms: u64, transferred: bool) -> Verdict {
        let (mut world, ballot) = led();
        let mut oracle = ElectionOracle::new(3, TIMEOUT);
        for at_ms in (0..=3000).step_by(every_ms as usize) {
            oracle.sent(at_ms * 1_000_000, 1, 0, &ack(ballot));
        }
        if transferred {
            let message = Message::Transfer {
                ballot,
                by_operator: true,
            };
            oracle.sent(0, 0, 2, &says((0, 1), (2, 1), message).2);
        }
        world.now_ns = 3_000_000_000;
        oracle.campaigns(&world.snapshot(), 2)
    }

    #[test]
    fn nobody_campaigns_against_a_leader_that_a_majority_hears() {
        assert!(judge(250, false).is_err());
    }

    #[test]
    fn a_leader_that_is_not_heard_steadily_may_be_deposed() {
        assert!(judge(1000, false).is_ok());
    }

    #[test]
    fn a_leader_may_hand_over() {
        assert!(judge(250, true).is_ok());
    }

    #[test]
    fn who_has_promised_another_hears_the_leader_no_more() {
        let (mut world, ballot) = led();
        let mut oracle = ElectionOracle::new(3, TIMEOUT);
        (0..=30).for_each(|i| oracle.sent(i * 100_000_000, 1, 0, &ack(ballot)));
        world.now_ns = 3_000_000_000;
        let other = Ballot {
            round: ballot.round + 1,
            replica: ReplicaId(2),
        };
        let promise = Message::Prepared {
            ballot: other,
            answer: 1,
            part: 0,
            parts: 1,
            commits: PerLog::default(),
            entries: Vec::new(),
            log_starts: Vec::new(),
        };
        oracle.sent(world.now_ns, 1, 2, &says((1, 1), (2, 1), promise).2);
        assert!(oracle.campaigns(&world.snapshot(), 2).is_ok());
    }
}
