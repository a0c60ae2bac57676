//! Messages of a member that has proved its identity. A replica processes all messages of such a
//! member.

use std::cell::OnceCell;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use leasehold_leases::{ReplicaId, StrategySpec, UnlistedHolders};
use leasehold_replica::Input;
use leasehold_replica::codec::decode_envelope;
use leasehold_wire::split_frame;

use super::cluster::{Cluster, LIAR, OTHER, VICTIM};
use super::contradictions;
use crate::memory;

/// Maximum number of messages of one input.
const FRAMES_MAX: usize = 64;
/// Maximum memory, in bytes, that three replicas may use for one call of `pass`: time passes, and
/// clients send requests.
const STEP_BYTES: usize = 256 << 10;
/// Maximum memory for each byte of a message, in bytes. Other messages, and the logs, queues and
/// disks of two replicas, contain copies of the message.
const PER_BYTE: usize = 2 * super::peer::PER_BYTE;

/// Possible leaders at the time when the liar sends its first message.
const LEADERS: [ReplicaId; 3] = [VICTIM, LIAR, OTHER];

/// Returns the cluster to which an input is sent. The first byte of the input selects the leader,
/// and determines whether the third member is cut off.
fn initial_cluster(byte: u8) -> Cluster {
    thread_local! {
        static READY: [OnceCell<Cluster>; 3] = const { [const { OnceCell::new() }; 3] };
    }
    let leader = usize::from(byte & 3) % LEADERS.len();
    let mut cluster = READY.with(|ready| {
        let ready = ready[leader].get_or_init(|| {
            let strategy = match LEADERS[leader] {
                OTHER => StrategySpec::Quorum {
                    unlisted: UnlistedHolders::Nearest,
                },
                _ => StrategySpec::All,
            };
            Cluster::led_by(LEADERS[leader], strategy)
        });
        ready.clone()
    });
    if byte & 4 != 0 {
        cluster.cut_off(OTHER);
    }
    cluster
}

/// Lets up to 1 s pass. Depending on `step`, also lets clients send requests.
fn pass(cluster: &mut Cluster, step: u8) {
    let quarters = u64::from(step & 0x3F);
    cluster.pass(Duration::from_millis(quarters * quarters / 4));
    if step & 0x80 != 0 {
        cluster.ask_next(VICTIM);
    }
    if step & 0x40 != 0 {
        cluster.ask_next(OTHER);
    }
}

/// Sends the messages of the input to the victim. The first byte selects the cluster
/// (`initial_cluster`). The messages follow, each in a frame. The byte before each frame selects
/// the time that passes before the frame's message is sent. An empty frame contains no message.
pub fn member(input: &[u8]) {
    let Some((&first, rest)) = input.split_first() else {
        return;
    };
    let mut cluster = initial_cluster(first);
    cluster.cut_off(LIAR);
    let mut stream = BytesMut::from(rest);
    let steps = FRAMES_MAX.min(1 + rest.len() / 5);
    memory::within_base(steps * STEP_BYTES, rest.len(), PER_BYTE, || {
        contradictions::may_end(|| receive(&mut cluster, &mut stream));
    });
    // A replica must be able to start again from its disk, regardless of the messages that it
    // received.
    cluster.restart(VICTIM);
    cluster.restart(OTHER);
    contradictions::may_end(|| cluster.pass(Duration::from_secs(2)));
}

fn receive(cluster: &mut Cluster, stream: &mut BytesMut) {
    for _ in 0..FRAMES_MAX {
        if stream.is_empty() {
            return;
        }
        pass(cluster, stream.get_u8());
        let Ok(Some(frame)) = split_frame(stream) else {
            return;
        };
        if frame.is_empty() {
            continue;
        }
        match decode_envelope(frame) {
            // The node closes connections on which a member sends messages in another's name.
            Ok(envelope) if envelope.from == LIAR => cluster.give(VICTIM, Input::Peer(envelope)),
            _ => return,
        }
    }
}

pub mod seeds {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use leasehold_leases::{Ballot, ReplicaSet, Slot};
    use leasehold_replica::Input;
    use leasehold_replica::message::{
        Accept, Batch, Envelope, LogId, LogNews, Message, PerLog, Proposal, RequestId, Value,
    };
    use leasehold_wire::Command;
    use leasehold_wire::command::Op;

    use super::{Cluster, LIAR, OTHER, VICTIM, initial_cluster, pass};
    use crate::bodies::{peer, samples};

    /// Value of the byte before a frame. This value selects a wait of about one second. Clients
    /// send no requests during this wait.
    const QUIET: u8 = 63;
    /// First bytes of inputs. These bytes select every combination: each of the three leaders, and
    /// the third member connected or cut off.
    const FIRST_BYTES: [u8; 6] = [0, 1, 2, 4, 5, 6];

    /// Returns messages of an honest member, and messages that a lying member might send. The
    /// numbers in the messages of the liar are close to the true numbers.
    pub fn member() -> Vec<Vec<u8>> {
        let talks = FIRST_BYTES.iter().flat_map(|first| {
            let steps = [
                &[20, 0x94, 0xC8, 0x88, 9, 40][..],
                &[40, QUIET, QUIET, 0xBF],
            ];
            steps.map(|steps| honest(*first, &steps.repeat(4), |_| {}))
        });
        let leaves = FIRST_BYTES.map(|first| {
            honest(first, &[9, 30, 30, 0x9F].repeat(3), |cluster| {
                cluster.give(LIAR, Input::Stop);
            })
        });
        let starts = FIRST_BYTES.map(|first| {
            honest(first, &[30, 60, 60, 60, 0xBF], |cluster| {
                cluster.restart(LIAR);
            })
        });
        let wrong = FIRST_BYTES.iter().flat_map(|first| wrong(*first));
        talks.chain(leaves).chain(starts).chain(wrong).collect()
    }

    /// Returns the messages that the liar sends as long as it behaves like any other member.
    fn honest(first: u8, steps: &[u8], begin: impl FnOnce(&mut Cluster)) -> Vec<u8> {
        let mut cluster = initial_cluster(first);
        cluster.captured = Some(VecDeque::new());
        begin(&mut cluster);
        let mut input = vec![first];
        for step in steps {
            pass(&mut cluster, *step);
            cluster.ask_next(LIAR);
            let mut before = *step;
            let mut sent = 0;
            while let Some(envelope) = next(&mut cluster) {
                push(
                    &mut input,
                    std::mem::take(&mut before),
                    Some(envelope.clone()),
                );
                cluster.give(VICTIM, Input::Peer(envelope));
                sent += 1;
            }
            if sent == 0 {
                push(&mut input, before, None);
            }
        }
        input
    }

    fn next(cluster: &mut Cluster) -> Option<Envelope> {
        cluster.captured.as_mut()?.pop_front()
    }

    fn push(input: &mut Vec<u8>, step: u8, envelope: Option<Envelope>) {
        input.push(step);
        match envelope {
            Some(envelope) => {
                let frame = peer::framed(envelope).expect("a sample fits into a frame");
                input.extend((frame.len() as u32).to_be_bytes());
                input.extend(frame);
            }
            None => input.extend([0; 4]),
        }
    }

    /// Returns an input for each kind of message, and one input with all messages in sequence.
    fn wrong(first: u8) -> Vec<Vec<u8>> {
        let cluster = initial_cluster(first);
        let sent = lies(&cluster);
        let envelope = |message| cluster.replica(LIAR).envelope(VICTIM, message);
        let mut inputs: Vec<Vec<u8>> = Vec::new();
        for message in &sent {
            let mut input = vec![first];
            push(&mut input, 9, Some(envelope(message.clone())));
            [9, 0x9F, QUIET]
                .into_iter()
                .for_each(|step| push(&mut input, step, None));
            inputs.push(input);
        }
        let (leader, later) = ballots(&cluster);
        let top = cluster.replica(VICTIM).highest_of(LogId::Commands);
        let over_a_hole = commands(leader, later, top);
        let picked = [[0, 1, 6], [0, 1, 7], [6, 7, 11]];
        let picked = picked.map(|places| places.map(|place| over_a_hole[place].clone()));
        for many in sent.chunks(16).chain(picked.iter().map(|some| &some[..])) {
            let mut input = vec![first];
            for message in many {
                push(&mut input, 9, Some(envelope(message.clone())));
            }
            inputs.push(input);
        }
        inputs
    }

    /// Returns the sample messages, with numbers adapted to the state of the victim.
    fn lies(cluster: &Cluster) -> Vec<Message> {
        let victim = cluster.replica(VICTIM);
        let (leader, later) = ballots(cluster);
        let top = PerLog::of(|log| victim.highest_of(log));
        let mut all: Vec<Message> = Vec::new();
        for ballot in [leader, later] {
            let fitted = samples::messages().into_iter();
            all.extend(fitted.map(|message| fit(message, ballot, &top)));
        }
        all.extend(commands(leader, later, top.commands));
        all
    }

    /// Returns the ballot in force, and a higher ballot with which the liar may campaign.
    fn ballots(cluster: &Cluster) -> (Ballot, Ballot) {
        let replicas = [VICTIM, LIAR, OTHER].map(|id| cluster.replica(id).leads_at());
        let leader = replicas.into_iter().flatten().max();
        let leader = leader.expect("a replica leads");
        let round = leader.round + 1;
        (
            leader,
            Ballot {
                round,
                replica: LIAR,
            },
        )
    }

    /// Returns writes for the last decided slot and for later slots. Other messages say that a slot
    /// above an uncommitted slot is committed. Then later writes contradict the value of this
    /// committed slot.
    fn commands(leader: Ballot, later: Ballot, top: Slot) -> Vec<Message> {
        let news = |above: u64| LogNews {
            commit_point: Slot(top.0 + u64::from(above == 0)),
            above: (above > 0)
                .then_some((Slot(above), Slot(above)))
                .into_iter()
                .collect(),
            log_start: top,
        };
        let accept = |ballot: Ballot, slot: u64, above: u64| {
            Message::Accept(Accept {
                ballot,
                log: LogId::Commands,
                slot: Slot(slot),
                value: write(slot + 1000 * ballot.round),
                vote: Some(ReplicaSet::EMPTY),
                news: news(above),
                last_multi: Slot::ZERO,
                infallible: vec![1].into(),
            })
        };
        let heartbeat = |ballot: Ballot, above: u64| Message::Heartbeat {
            ballot,
            probe: 1,
            logs: [news(above), LogNews::default()].into(),
        };
        let mut sent: Vec<Message> = Vec::new();
        for ballot in [leader, later] {
            let hole = top.0 + 2;
            sent.push(accept(ballot, hole, 0));
            sent.push(heartbeat(ballot, hole));
            sent.extend([top.0, top.0 + 300, top.0 + 1].map(|slot| accept(ballot, slot, hole)));
            sent.push(heartbeat(ballot, 0));
        }
        let mut entries = (top.0..top.0 + 3).map(|slot| (Slot(slot), write(slot)));
        sent.push(Message::Fetched {
            log: LogId::Commands,
            entries: entries.by_ref().collect(),
        });
        sent
    }

    fn write(client: u64) -> Value {
        let command = Command::session(client, 1, 1, Op::put("key", "lie"));
        let proposed = Proposal {
            origin: LIAR,
            request: RequestId(client),
            command,
        };
        Value::Commands(Arc::new(Batch {
            log_time_ms: 40_000,
            sessions_max: 1 << 18,
            commands: vec![proposed],
            ..Batch::default()
        }))
    }

    /// Adapts the numbers in a message to the known state of the cluster.
    fn fit(message: Message, at: Ballot, top: &PerLog<Slot>) -> Message {
        let mut message = message;
        let near = |slot: &mut Slot, log: LogId| slot.0 = top[log].0 + slot.0 % 7;
        let fit_news = |news: &mut LogNews, log: LogId| {
            near(&mut news.commit_point, log);
            news.log_start = Slot(top[log].0.saturating_sub(3));
            news.above = vec![(Slot(news.commit_point.0 + 2), Slot(news.commit_point.0 + 3))];
        };
        match &mut message {
            Message::Prepare { ballot, commits } => {
                *ballot = at;
                LogId::ALL
                    .into_iter()
                    .for_each(|log| near(&mut commits[log], log));
            }
            Message::Prepared {
                ballot,
                part,
                parts,
                commits,
                entries,
                log_starts,
                ..
            } => {
                (*ballot, *part, *parts) = (at, 0, 1);
                LogId::ALL
                    .into_iter()
                    .for_each(|log| near(&mut commits[log], log));
                log_starts.clear();
                for entry in entries {
                    entry.ballot = at;
                    near(&mut entry.slot, entry.log);
                }
            }
            Message::Accept(accept) => {
                accept.ballot = at;
                near(&mut accept.slot, accept.log);
                accept.last_multi = Slot::ZERO;
                fit_news(&mut accept.news, accept.log);
            }
            Message::Accepted { ballot, log, votes } => {
                *ballot = at;
                votes.iter_mut().for_each(|(slot, _)| near(slot, *log));
            }
            Message::Heartbeat { ballot, logs, .. } => {
                *ballot = at;
                LogId::ALL
                    .into_iter()
                    .for_each(|log| fit_news(&mut logs[log], log));
            }
            Message::Fetch { log, from, to } => {
                (*from, *to) = (Slot(1), top[*log]);
            }
            Message::Fetched { log, entries } => {
                for (index, (slot, _)) in entries.iter_mut().enumerate() {
                    *slot = Slot(top[*log].0 + 1 + index as u64);
                }
            }
            Message::Rejected { promised: ballot }
            | Message::HeartbeatAck { ballot, .. }
            | Message::Transfer { ballot, .. }
            | Message::PreVote { ballot, .. }
            | Message::PreVoted { ballot, .. } => *ballot = at,
            _ => {}
        }
        message
    }
}
