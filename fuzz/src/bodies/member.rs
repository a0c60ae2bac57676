//! Messages of a member that has proved its identity: a replica hears them, whatever they are.

use std::cell::OnceCell;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use leasehold_leases::{ReplicaId, StrategySpec, Unlisted};
use leasehold_replica::Input;
use leasehold_replica::codec::decode_envelope;
use leasehold_wire::split_frame;

use super::cluster::{Cluster, LIAR, OTHER, VICTIM};
use super::contradictions;
use crate::memory;

/// Messages that are heard of one input, at most.
const FRAMES_MAX: usize = 64;
/// Bytes that three replicas take for a step of time and the requests in it.
const MOMENT_BYTES: usize = 256 << 10;
/// Bytes that a message leaves in logs, queues and disks of two replicas, and in copies on the
/// way, for each of its bytes.
const PER_BYTE: usize = 2 * super::peer::PER_BYTE;

/// Replicas that may lead when the liar begins to speak.
const LEADERS: [ReplicaId; 3] = [VICTIM, LIAR, OTHER];

/// Returns the cluster in which an input begins. Its first byte says which replica leads, and
/// whether the third member is cut off.
fn scene(byte: u8) -> Cluster {
    thread_local! {
        static READY: [OnceCell<Cluster>; 3] = const { [const { OnceCell::new() }; 3] };
    }
    let leader = usize::from(byte & 3) % LEADERS.len();
    let mut cluster = READY.with(|ready| {
        let ready = ready[leader].get_or_init(|| {
            let strategy = match LEADERS[leader] {
                OTHER => StrategySpec::Quorum {
                    unlisted: Unlisted::Nearest,
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

/// Time passes, 1 s at most, and clients may ask.
fn pass(cluster: &mut Cluster, moment: u8) {
    let quarters = u64::from(moment & 0x3F);
    cluster.pass(Duration::from_millis(quarters * quarters / 4));
    if moment & 0x80 != 0 {
        cluster.ask_next(VICTIM);
    }
    if moment & 0x40 != 0 {
        cluster.ask_next(OTHER);
    }
}

/// The first byte gives the context (`scene`). Messages in frames follow, with a byte before each
/// that says what happens first; an empty frame says nothing.
pub fn member(input: &[u8]) {
    let Some((&first, rest)) = input.split_first() else {
        return;
    };
    let mut cluster = scene(first);
    cluster.cut_off(LIAR);
    let mut stream = BytesMut::from(rest);
    let moments = FRAMES_MAX.min(1 + rest.len() / 5);
    memory::within_base(moments * MOMENT_BYTES, rest.len(), PER_BYTE, || {
        contradictions::may_end(|| hear(&mut cluster, &mut stream));
    });
    // A replica starts again from its disk, whatever messages it received.
    cluster.restart(VICTIM);
    cluster.restart(OTHER);
    contradictions::may_end(|| cluster.pass(Duration::from_secs(2)));
}

fn hear(cluster: &mut Cluster, stream: &mut BytesMut) {
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
            // The node ends connections on which somebody speaks for another.
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
        Accept, Batch, Envelope, LogId, LogNews, Message, PerLog, Proposed, RequestId, Value,
    };
    use leasehold_wire::Command;
    use leasehold_wire::command::Op;

    use super::{Cluster, LIAR, OTHER, VICTIM, pass, scene};
    use crate::bodies::{peer, samples};

    /// A second without anything said.
    const QUIET: u8 = 63;
    /// First bytes for each leader, with and without the third member.
    const SCENES: [u8; 6] = [0, 1, 2, 4, 5, 6];

    /// Messages of an honest member, and those that a wrong one might send: numbers are near those
    /// that are true.
    pub fn member() -> Vec<Vec<u8>> {
        let talks = SCENES.iter().flat_map(|scene| {
            let moments = [
                &[20, 0x94, 0xC8, 0x88, 9, 40][..],
                &[40, QUIET, QUIET, 0xBF],
            ];
            moments.map(|moments| honest(*scene, &moments.repeat(4), |_| {}))
        });
        let leaves = SCENES.map(|scene| {
            honest(scene, &[9, 30, 30, 0x9F].repeat(3), |cluster| {
                cluster.give(LIAR, Input::Stop);
            })
        });
        let starts = SCENES.map(|scene| {
            honest(scene, &[30, 60, 60, 60, 0xBF], |cluster| {
                cluster.restart(LIAR);
            })
        });
        let wrong = SCENES.iter().flat_map(|scene| wrong(*scene));
        talks.chain(leaves).chain(starts).chain(wrong).collect()
    }

    /// Messages of the liar while it does not lie.
    fn honest(first: u8, moments: &[u8], begin: impl FnOnce(&mut Cluster)) -> Vec<u8> {
        let mut cluster = scene(first);
        cluster.overheard = Some(VecDeque::new());
        begin(&mut cluster);
        let mut input = vec![first];
        for moment in moments {
            pass(&mut cluster, *moment);
            cluster.ask_next(LIAR);
            let mut before = *moment;
            let mut said = 0;
            while let Some(envelope) = next(&mut cluster) {
                push(
                    &mut input,
                    std::mem::take(&mut before),
                    Some(envelope.clone()),
                );
                cluster.give(VICTIM, Input::Peer(envelope));
                said += 1;
            }
            if said == 0 {
                push(&mut input, before, None);
            }
        }
        input
    }

    fn next(cluster: &mut Cluster) -> Option<Envelope> {
        cluster.overheard.as_mut()?.pop_front()
    }

    fn push(input: &mut Vec<u8>, moment: u8, envelope: Option<Envelope>) {
        input.push(moment);
        match envelope {
            Some(envelope) => {
                let frame = peer::framed(envelope).expect("it is short");
                input.extend((frame.len() as u32).to_be_bytes());
                input.extend(frame);
            }
            None => input.extend([0; 4]),
        }
    }

    /// Each kind of message by itself, then all, one after the other.
    fn wrong(first: u8) -> Vec<Vec<u8>> {
        let cluster = scene(first);
        let said = lies(&cluster);
        let envelope = |message| cluster.replica(LIAR).envelope(VICTIM, message);
        let mut inputs: Vec<Vec<u8>> = Vec::new();
        for message in &said {
            let mut input = vec![first];
            push(&mut input, 9, Some(envelope(message.clone())));
            [9, 0x9F, QUIET]
                .into_iter()
                .for_each(|moment| push(&mut input, moment, None));
            inputs.push(input);
        }
        let (leader, later) = ballots(&cluster);
        let top = cluster.replica(VICTIM).highest_of(LogId::Commands);
        let over_a_hole = commands(leader, later, top);
        let picked = [[0, 1, 6], [0, 1, 7], [6, 7, 11]];
        let picked = picked.map(|places| places.map(|place| over_a_hole[place].clone()));
        for many in said.chunks(16).chain(picked.iter().map(|some| &some[..])) {
            let mut input = vec![first];
            for message in many {
                push(&mut input, 9, Some(envelope(message.clone())));
            }
            inputs.push(input);
        }
        inputs
    }

    /// The samples, about what the victim would hear of.
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

    /// The one that is in force, and one that the liar may campaign under.
    fn ballots(cluster: &Cluster) -> (Ballot, Ballot) {
        let replicas = [VICTIM, LIAR, OTHER].map(|id| cluster.replica(id).leads_at());
        let leader = replicas.into_iter().flatten().max();
        let leader = leader.expect("somebody leads");
        let round = leader.round + 1;
        (
            leader,
            Ballot {
                round,
                replica: LIAR,
            },
        )
    }

    /// A write in each of the next slots, and in the last that is decided; and what contradicts
    /// a slot that is committed above a hole.
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
                tag: ReplicaSet::EMPTY,
                news: news(above),
                last_multi: Slot::ZERO,
                sure: vec![1].into(),
            })
        };
        let heartbeat = |ballot: Ballot, above: u64| Message::Heartbeat {
            ballot,
            probe: 1,
            logs: [news(above), LogNews::default()].into(),
        };
        let mut said: Vec<Message> = Vec::new();
        for ballot in [leader, later] {
            let hole = top.0 + 2;
            said.push(accept(ballot, hole, 0));
            said.push(heartbeat(ballot, hole));
            said.extend([top.0, top.0 + 300, top.0 + 1].map(|slot| accept(ballot, slot, hole)));
            said.push(heartbeat(ballot, 0));
        }
        let mut entries = (top.0..top.0 + 3).map(|slot| (Slot(slot), write(slot)));
        said.push(Message::Fetched {
            log: LogId::Commands,
            entries: entries.by_ref().collect(),
        });
        said
    }

    fn write(client: u64) -> Value {
        let command = Command::session(client, 1, 1, Op::put("key", "lie"));
        let proposed = Proposed {
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

    /// With numbers that are near what is known.
    fn fit(message: Message, at: Ballot, top: &PerLog<Slot>) -> Message {
        let mut message = message;
        let near = |slot: &mut Slot, log: LogId| slot.0 = top[log].0 + slot.0 % 7;
        let heard = |news: &mut LogNews, log: LogId| {
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
                heard(&mut accept.news, accept.log);
            }
            Message::Accepted { ballot, log, votes } => {
                *ballot = at;
                votes.iter_mut().for_each(|(slot, _)| near(slot, *log));
            }
            Message::Heartbeat { ballot, logs, .. } => {
                *ballot = at;
                LogId::ALL
                    .into_iter()
                    .for_each(|log| heard(&mut logs[log], log));
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
