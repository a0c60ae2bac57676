//! Benchmarks of the core alone: a local read, and a write or a merge of fields through the log of
//! a single replica. The figures do not include sockets, disk and the wire form.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold_leases::{Incarnation, ReplicaId, Slot, Time};
use leasehold_replica::action::{
    Action, ClientHandle, Event, Record, RecoveredState, Requester, Sequence,
};
use leasehold_replica::message::{Envelope, LogId, PerLog};
use leasehold_replica::shell::{self, FencedReply, Host};
use leasehold_replica::{Input, Replica, Settings};
use leasehold_wire::{Command, Field, Outcome, Path, command::Op};

/// Replica that leads a cluster of one. The host performs each action of the replica immediately.
struct Alone {
    replica: Replica,
    now: Time,
    actions: Vec<Action>,
    done: Done,
}

/// Host that performs the actions of a replica immediately.
#[derive(Default)]
struct Done {
    /// Sequence numbers of persists that are not yet reported to the replica as durable.
    persisted: Vec<Sequence>,
    /// Number of clients that were answered.
    answered: usize,
}

impl Host for Done {
    fn send(&mut self, _: ReplicaId, _: Envelope) {}

    fn persist(&mut self, sequence: Sequence, _: Vec<Record>) {
        self.persisted.push(sequence);
    }

    fn flush(&mut self) {}

    fn truncate(&mut self, _: PerLog<Slot>) {}

    fn reply(&mut self, _: ClientHandle, _: Path, _: Outcome) {
        self.answered += 1;
    }

    fn fenced_reply(&mut self, _: FencedReply) {
        self.answered += 1;
    }

    fn read_log(&mut self, _: LogId, _: Requester, _: Slot, _: Slot) {}

    fn event(&mut self, _: Event) {}
}

impl Alone {
    fn new() -> Alone {
        let recovered = RecoveredState {
            incarnation: Incarnation(1),
            life: 1,
            ..RecoveredState::default()
        };
        let settings = Settings::new(ReplicaId(0), 1);
        let mut alone = Alone {
            replica: Replica::new(Time(1), settings, recovered, 7),
            now: Time(1),
            actions: Vec::new(),
            done: Done::default(),
        };
        while alone.replica.leader().is_none() || alone.replica.executed().0 == 0 {
            alone.now = alone.replica.next_deadline().max(alone.now);
            alone.input(Input::Tick);
        }
        alone
    }

    /// Passes an input to the replica, and performs its actions until no persist is left. Returns
    /// the number of clients that were answered.
    fn input(&mut self, input: Input) -> usize {
        self.done.answered = 0;
        self.replica.step(self.now, input, &mut self.actions);
        self.replica.flush(self.now, &mut self.actions);
        loop {
            for action in self.actions.drain(..) {
                shell::perform(action, &mut self.done);
            }
            let Some(sequence) = self.done.persisted.pop() else {
                return self.done.answered;
            };
            self.replica
                .step(self.now, Input::Persisted(sequence), &mut self.actions);
            self.replica.flush(self.now, &mut self.actions);
        }
    }
}

fn client(request: u64) -> ClientHandle {
    ClientHandle {
        connection: 1,
        request,
    }
}

fn reads(criterion: &mut Criterion) {
    let mut alone = Alone::new();
    let key = |k: u64| format!("user{k:012}");
    for k in 0..100_000u64 {
        let command = Command::session(1, k + 1, k + 1, Op::put(key(k), vec![b'v'; 100]));
        assert_eq!(
            alone.input(Input::Client {
                from: client(k),
                command
            }),
            1
        );
    }
    let mut k = 0;
    criterion.bench_function("local read, 100,000 keys", |bencher| {
        bencher.iter_batched(
            || {
                k = (k + 7919) % 100_000;
                let command = Command {
                    op: Some(Op::get(key(k))),
                    ..Command::default()
                };
                Input::Client {
                    from: client(k),
                    command,
                }
            },
            |input| assert_eq!(alone.input(black_box(input)), 1),
            criterion::BatchSize::SmallInput,
        );
    });
}

fn writes(criterion: &mut Criterion) {
    let mut alone = Alone::new();
    let mut sequence = 0;
    criterion.bench_function("write through the log of one replica", |bencher| {
        bencher.iter_batched(
            || {
                sequence += 1;
                let op = Op::put(format!("user{:012}", sequence % 1000), vec![b'v'; 100]);
                let command = Command::session(1, sequence, sequence, op);
                Input::Client {
                    from: client(sequence),
                    command,
                }
            },
            |input| assert_eq!(alone.input(black_box(input)), 1),
            criterion::BatchSize::SmallInput,
        );
    });
}

fn merges(criterion: &mut Criterion) {
    for fields in [10, 1000] {
        let mut alone = Alone::new();
        let name = format!("merge of one field of 240 bytes into {fields} through that log");
        let field = |number: usize| Field {
            name: format!("f{number:04}").into(),
            value: vec![b'v'; 240].into(),
        };
        let mut sequence = 0;
        let mut merge = |fields: Vec<Field>| {
            sequence += 1;
            let command = Command::session(1, sequence, sequence, Op::put_fields("k", fields));
            let from = client(sequence);
            Input::Client { from, command }
        };
        let record = merge((0..fields).map(field).collect());
        assert_eq!(alone.input(record), 1);
        criterion.bench_function(&name, |bencher| {
            bencher.iter_batched(
                || merge(vec![field(fields / 2)]),
                |input| {
                    // The clock advances because merges may use only a part of the time.
                    alone.now = alone.now + Duration::from_millis(1);
                    assert_eq!(alone.input(black_box(input)), 1);
                },
                criterion::BatchSize::SmallInput,
            );
        });
    }
}

criterion_group!(benches, reads, writes, merges);
criterion_main!(benches);
