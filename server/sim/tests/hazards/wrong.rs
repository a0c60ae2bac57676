//! A faulty member of the cluster: it sends absurd numbers, repeats old messages, and pretends that
//! messages are from its own earlier run. After every kind of such message, the cluster must
//! continue, elect leaders, serve clients, and start again from its disks.

use std::time::Duration;

use bytes::Bytes;
use leasehold_leases::demand::{Delta, TallyReport};
use leasehold_leases::{
    Ballot, ConfigId, Incarnation, LeaseMessage, LeaseParams, Promise, ReplicaId, ReplicaSet, Slot,
    StrategySpec,
};
use leasehold_replica::action::Record;
use leasehold_replica::codec::{decode_ballot, encode_ballot};
use leasehold_replica::lease_set::{Durations, InForce, LeaseSet};
use leasehold_replica::message::{
    Accept, DemandReport, Envelope, LogId, LogNews, Message, ReadAnswer, ReportedEntry, RequestId,
    Value,
};
use leasehold_replica::sanity::NUMBER_MAX;
use leasehold_sim::oracle::FrameOracle;
use leasehold_wire::command::Op;
use leasehold_wire::{Outcome, Path, Version};

use super::cluster::{Cluster, Packet, heartbeat_of, put, write};
use super::numbers::{KINDS, Kind, each_number, kind_of};

/// Absurd numbers that no honest replica sends: 0, the two largest numbers that decoders accept,
/// and the largest number of the type.
const ABSURD: [u64; 4] = [0, NUMBER_MAX - 1, NUMBER_MAX, u64::MAX];
const SPAN: Duration = Duration::from_millis(500);

/// A faulty replica. The methods return values that it could honestly send in messages.
struct FaultyReplica<'a> {
    cluster: &'a Cluster,
    me: usize,
}

impl FaultyReplica<'_> {
    /// Returns a ballot at which the faulty replica leads or has led. Other replicas would not
    /// believe the faulty replica if it sent a ballot of another replica.
    fn ballot(&self) -> Ballot {
        let newest = newest_ballot(self.cluster);
        if newest.replica.index() == self.me {
            newest
        } else {
            Ballot {
                round: newest.round - 1,
                replica: ReplicaId(self.me as u8),
            }
        }
    }

    fn slot(&self) -> Slot {
        self.cluster.node(self.me).executed()
    }

    fn config(&self) -> ConfigId {
        self.cluster.node(self.me).configuration()
    }

    fn news(&self) -> LogNews {
        let slot = self.slot();
        LogNews {
            commit_point: slot,
            above: vec![(Slot(slot.0 + 2), Slot(slot.0 + 2))],
            log_start: Slot(1),
        }
    }

    /// Returns the last Accept that was sent with a value for which `like` is true.
    fn accept(&self, like: fn(&Value) -> bool) -> Message {
        let mut sent = self.cluster.sent.iter().rev();
        let found = sent.find_map(|(envelope, _)| match &envelope.message {
            Message::Accept(accept) if like(&accept.value) => Some(accept),
            _ => None,
        });
        let found = found.expect("some value was proposed").clone();
        Message::Accept(Accept {
            ballot: self.ballot(),
            ..found
        })
    }

    fn prepared(&self) -> Message {
        let Message::Accept(accept) = self.accept(is_batch) else {
            unreachable!("it is one")
        };
        let entry = ReportedEntry {
            log: accept.log,
            slot: accept.slot,
            ballot: accept.ballot,
            value: accept.value,
        };
        Message::Prepared {
            ballot: newest_ballot(self.cluster),
            answer: 1,
            part: 0,
            parts: 1,
            commits: [self.slot(), Slot(self.config().0)].into(),
            entries: vec![entry],
            log_starts: vec![(LogId::Commands, self.ballot(), Slot(1))],
        }
    }

    fn promise(&self) -> LeaseMessage {
        LeaseMessage::Promise(Promise {
            sequence: 1000,
            base: 999,
            t0: SPAN,
            t_guard: SPAN,
            t_lease: SPAN,
            config: self.config(),
            highest_accepted: self.slot(),
        })
    }

    fn demand(&self) -> Message {
        let delta = Delta {
            key: Bytes::from("k"),
            reads: 7,
            writes: 7,
        };
        let report = TallyReport {
            deltas: vec![delta],
            rare_reads: 1,
            rare_writes: 1,
        };
        let rtts_us = vec![1000; 3];
        Message::Demand(DemandReport { report, rtts_us })
    }

    fn lease_set(&self, ask: u64) -> Message {
        let set = LeaseSet {
            durations: Durations::of(&LeaseParams::default()),
            force: true,
            ..LeaseSet::default()
        };
        Message::SetLease { ask, set }
    }

    fn says(&self, kind: Kind) -> Message {
        let (ballot, slot, known) = (self.ballot(), self.slot(), self.config());
        let (ask, request) = (5, RequestId(1 << 40 | 5));
        let newest = newest_ballot(self.cluster);
        match kind {
            Kind::Ping => Message::Ping {
                stamp: 1,
                cost_ms: 5,
                flushed: [Slot(1), Slot(1)].into(),
            },
            Kind::Pong => Message::Pong { stamp: 1 },
            Kind::Join => Message::Join { life: 1 },
            Kind::Joined => Message::Joined { life: 1 },
            Kind::PreVote => Message::PreVote { ballot, ask },
            Kind::PreVoted => Message::PreVoted { ballot, ask },
            Kind::Prepare => Message::Prepare {
                ballot,
                commits: [slot, Slot(known.0)].into(),
            },
            Kind::Prepared => self.prepared(),
            Kind::Accept => self.accept(is_batch),
            Kind::AcceptConfig => self.accept(|value| matches!(value, Value::Config(_))),
            Kind::Accepted => Message::Accepted {
                ballot: newest,
                log: LogId::Commands,
                votes: [(slot, ReplicaSet::EMPTY)].into_iter().collect(),
            },
            Kind::Rejected => Message::Rejected { promised: newest },
            Kind::Heartbeat => Message::Heartbeat {
                ballot,
                probe: 1,
                logs: [self.news(), self.news()].into(),
            },
            Kind::HeartbeatAck => Message::HeartbeatAck {
                ballot: newest,
                probe: 1,
                suspects: ReplicaSet::EMPTY,
            },
            Kind::Fetch => Message::Fetch {
                log: LogId::Commands,
                from: Slot(1),
                to: slot,
            },
            Kind::Fetched => Message::Fetched {
                log: LogId::Commands,
                entries: vec![(slot, Value::Noop)],
            },
            Kind::Forward => {
                let command = write(77, 1, Op::put("other", "v"));
                let commands = vec![(request, command)];
                Message::Forward { commands }
            }
            Kind::Answered => {
                let outcome = Outcome::written(Version::default());
                let answers = vec![(request, outcome)];
                Message::Answered { answers }
            }
            Kind::ForwardRead => Message::ForwardRead {
                read_index: true,
                reads: vec![(request, Bytes::from("k"))],
            },
            Kind::ReadAnswers => {
                let outcome = Some((Outcome::missing(), Path::Forwarded));
                Message::ReadAnswers(vec![ReadAnswer { request, outcome }])
            }
            Kind::Guard => Message::Lease(LeaseMessage::Guard { sequence: 1 }),
            Kind::GuardAck => Message::Lease(LeaseMessage::GuardAck { sequence: 1, known }),
            Kind::Promise => Message::Lease(self.promise()),
            Kind::PromiseAck => Message::Lease(LeaseMessage::PromiseAck { sequence: 1, known }),
            Kind::Relinquish => Message::Lease(LeaseMessage::Relinquish { up_to: 1 }),
            Kind::Leave => Message::Lease(LeaseMessage::Leave { recalls: 1 }),
            Kind::Demand => self.demand(),
            Kind::TransferRequest => Message::TransferRequest,
            Kind::Transfer => Message::Transfer {
                ballot,
                by_operator: false,
            },
            Kind::Move => Message::Move { to: ReplicaId(63) },
            Kind::SetLease => self.lease_set(ask),
            Kind::LeaseAnswer => {
                let (config, already) = (known, false);
                let answer = Ok(InForce { config, already });
                Message::LeaseAnswer { ask, answer }
            }
        }
    }
}

fn is_batch(value: &Value) -> bool {
    !value.commands().is_empty()
}

fn newest_ballot(cluster: &Cluster) -> Ballot {
    let ballots = cluster.sent.iter().filter_map(heartbeat_of);
    ballots.max().expect("a leader sends heartbeats")
}

/// Returns `message`, and all variants of it in which one number is absurd.
fn variants(message: Message) -> Vec<Message> {
    let mut count = 0;
    each_number(&mut message.clone(), &mut |_| count += 1);
    let mut all = Vec::new();
    for (place, absurd) in (0..count).flat_map(|place| ABSURD.map(|absurd| (place, absurd))) {
        let mut changed = message.clone();
        let mut at = 0;
        each_number(&mut changed, &mut |number| {
            if at == place {
                number.set(absurd);
            }
            at += 1;
        });
        all.push(changed);
    }
    all.push(message);
    all
}

/// Returns the envelope as the addressee decodes it; `None` if the decoder refuses it.
fn decoded(envelope: Envelope) -> Option<Envelope> {
    FrameOracle::default().pass(envelope).ok()
}

/// Sends `message` from the present run of replica `from` to all other replicas. Returns the number
/// of replicas that receive it.
fn say(cluster: &mut Cluster, from: usize, message: &Message) -> usize {
    say_as(cluster, from, message, |_| {})
}

/// Sends `message` like [`say`], in a modified envelope.
fn say_as(
    cluster: &mut Cluster,
    from: usize,
    message: &Message,
    change: impl Fn(&mut Envelope),
) -> usize {
    let mut heard = 0;
    for to in (0..3)
        .filter(|to| *to != from)
        .map(|to| ReplicaId(to as u8))
    {
        let mut envelope = cluster.node(from).envelope(to, message.clone());
        change(&mut envelope);
        if let Some(envelope) = decoded(envelope) {
            cluster.deliver((envelope, to));
            heard += 1;
        }
    }
    heard
}

/// Returns a cluster of three replicas with a history. All replicas have been restarted, each has
/// led, and values of all kinds were proposed.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(3, StrategySpec::All);
    for (client, leader) in [(1, 1), (2, 2), (3, 0)] {
        cluster.elect(leader);
        let written = cluster.ask(leader, put(client, 1, "k", "before"));
        cluster.pass_until(30_000, "it is written", |cluster| cluster.done(written));
    }
    (0..3).for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    let written = cluster.ask(1, put(4, 1, "k", "again"));
    cluster.pass_until(60_000, "all go on", |cluster| cluster.done(written));
    cluster.pass(3000);
    cluster
}

/// Writes and reads at every replica. The IDs of the clients begin at `first`.
fn serves(cluster: &mut Cluster, first: u64, what: &str) {
    for node in 0..3 {
        let written = cluster.ask(node, put(first + node as u64, 1, "k", "after"));
        let what = format!("{what}: a write at {node}");
        cluster.pass_until(60_000, &what, |cluster| cluster.done(written));
    }
    for node in 0..3 {
        let read = cluster.read(node, "k");
        let what = format!("{what}: a read at {node}");
        cluster.pass_until(60_000, &what, |cluster| cluster.answered(read));
        assert_eq!(cluster.value(read).as_deref(), Some("after"), "{what}");
    }
}

/// Checks that the cluster continues, elects another leader, and starts again from its disks.
fn lives_on(cluster: &mut Cluster, what: &str) {
    serves(cluster, 100, what);
    let leader = newest_ballot(cluster).replica.index();
    cluster.crash(leader);
    let other = (leader + 1) % 3;
    let written = cluster.ask(other, put(200, 1, "k", "elected"));
    let elected = format!("{what}: another leads than {leader}");
    cluster.pass_until(60_000, &elected, |cluster| cluster.done(written));
    (0..3)
        .filter(|it| *it != leader)
        .for_each(|node| cluster.crash(node));
    (0..3).for_each(|node| cluster.start(node));
    serves(cluster, 300, &format!("{what}, after a restart"));
    cluster.pass(5000);
    cluster.assert_agreement();
    assert_readable(cluster, what);
}

/// Checks that every ballot that was written to disk can be decoded again.
fn assert_readable(cluster: &Cluster, what: &str) {
    for (_, record) in &cluster.written {
        if let Record::Promised(ballot) | Record::Accepted { ballot, .. } = record {
            let mut bytes = Vec::new();
            encode_ballot(*ballot, &mut bytes);
            assert_eq!(decode_ballot(Bytes::from(bytes)), Ok(*ballot), "{what}");
        }
    }
}

#[test]
fn every_kind_of_message_is_said() {
    let cluster = cluster();
    for (kind, me) in KINDS.iter().flat_map(|kind| [0, 1].map(|me| (*kind, me))) {
        let faulty = FaultyReplica {
            cluster: &cluster,
            me,
        };
        assert_eq!(kind_of(&faulty.says(kind)), kind);
        let said = faulty.says(kind);
        let envelope = cluster.node(me).envelope(ReplicaId(2), said);
        assert!(
            decoded(envelope).is_some(),
            "{kind:?} is honest but for what is changed"
        );
    }
}

#[test]
fn absurd_numbers_in_any_place_of_any_message_leave_the_cluster_live() {
    let (mut said, mut refused) = (0, 0);
    for kind in KINDS {
        let mut cluster = cluster();
        for me in [0, 1] {
            let faulty = FaultyReplica {
                cluster: &cluster,
                me,
            };
            for message in variants(faulty.says(*kind)) {
                said += say(&mut cluster, me, &message);
            }
        }
        // Counters of replicas begin at 0 in each run, so they are read before the replicas start
        // again.
        refused += (0..3)
            .map(|node| cluster.counter(node, "refused_messages"))
            .sum::<u64>();
        lives_on(&mut cluster, &format!("absurd numbers in {kind:?}"));
    }
    assert!(said > 1000, "decoders let {said} pass");
    assert!(refused > 200, "{refused} of {said} are counted as refused");
}

#[test]
fn every_message_of_another_run_leaves_the_cluster_live() {
    for kind in KINDS {
        let mut cluster = cluster();
        for me in [0, 1] {
            let faulty = FaultyReplica {
                cluster: &cluster,
                me,
            };
            let message = faulty.says(*kind);
            for run in [0, 1, NUMBER_MAX - 1, NUMBER_MAX, u64::MAX] {
                say_as(&mut cluster, me, &message, |it| {
                    it.from_incarnation = Incarnation(run);
                });
                say_as(&mut cluster, me, &message, |it| {
                    it.to_incarnation = Incarnation(run);
                });
            }
        }
        lives_on(&mut cluster, &format!("{kind:?} of another run"));
    }
}

/// All messages that were ever sent arrive once more: in the order in which they were sent, and in
/// reverse.
#[test]
fn everything_that_was_ever_said_leaves_the_cluster_live() {
    for reversed in [false, true] {
        let mut cluster = cluster();
        let mut said: Vec<Packet> = cluster.sent.clone();
        if reversed {
            said.reverse();
        }
        for packet in said {
            cluster.deliver(packet);
        }
        lives_on(&mut cluster, &format!("old packets, reversed: {reversed}"));
    }
}
