//! Tests of the charges of a connection, and of the conditions under which it is closed.

use leasehold_wire::command::Op;
use leasehold_wire::{
    Command, Entry, KeyValue, LeaseRange, Leases, Outcome, Path, Put, StatusReply, StatusRequest,
    Version,
};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::config::Limits;

const STALLED: Duration = Duration::from_secs(30);

/// Returns a connection and the client's end of it. The test reads nothing from the client's end.
async fn connection(id: u64, budget: &Rc<Budget>) -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, accepted) = tokio::join!(client, listener.accept());
    let (stream, address) = accepted.unwrap();
    let outbox = Outbox::new(stream.into_split().1, budget.unread.clone());
    let connection = Connection::new(id, address, outbox, budget.clone());
    (connection, client.unwrap())
}

fn budget(limits: Limits) -> Rc<Budget> {
    Rc::new(Budget::new(limits))
}

/// Appends the answer to a request, as the replica does.
fn answer(connection: &Connection, response: &Response) {
    connection.account().release(response.id);
    connection.answer(response);
}

fn request(id: u64, op: Op) -> Request {
    let body = Some(Body::Command(Command::from(op)));
    Request::new(id, body)
}

fn found(id: u64, bytes: usize) -> Response {
    let value = vec![7; bytes];
    let outcome = Outcome::value(value, Version::default());
    Response::answer(id, Path::Local, outcome)
}

fn scanned(id: u64, bytes: usize) -> Response {
    let entry = Entry {
        value: vec![7; bytes].into(),
        ..Entry::default()
    };
    Response::answer(id, Path::Log, Outcome::entries(vec![entry]))
}

/// Returns the number of requests with this operation that are admitted before the connection is
/// paused.
fn let_in(connection: &Connection, op: impl Fn() -> Op) -> u64 {
    let before = connection.last_request.get();
    let mut id = before;
    while !connection.is_congested() && id < before + (1 << 20) {
        id += 1;
        connection.charge(&request(id, op()), 20).unwrap();
    }
    id - before
}

#[tokio::test]
async fn scans_are_charged_the_most_there_could_be_until_their_answers_are_known() {
    let budget = budget(Limits::default());
    let (fresh, _client) = connection(1, &budget).await;
    assert_eq!(let_in(&fresh, || Op::scan("", "", 10)), 4, "of 4 MiB each");
    for id in 1..=4 {
        answer(&fresh, &scanned(id, 100));
    }
    assert_eq!(budget.charged.get(), 0);
    // The expected size halves with each short answer.
    let more = let_in(&fresh, || Op::scan("", "", 10));
    for id in 5..5 + more {
        answer(&fresh, &scanned(id, 100));
    }
    let many = let_in(&fresh, || Op::scan("", "", 10));
    assert!((1000..10_000).contains(&many), "{many}");
    let large = connection(2, &budget).await.0;
    let entries = let_in(&large, || Op::scan("", "", 10_000));
    assert_eq!(entries, 4);
}

#[tokio::test]
async fn who_asks_for_all_ranges_is_charged_what_they_take() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let asked = |id| {
        let asked = StatusRequest {
            leases: true,
            ..StatusRequest::default()
        };
        Request::new(id, Some(Body::Status(asked)))
    };
    let of_ranges = |id, ranges| Response {
        id,
        status: Some(Box::new(StatusReply {
            leases: Some(Leases {
                ranges: vec![LeaseRange::default(); ranges],
                ..Leases::default()
            }),
            ..StatusReply::default()
        })),
        ..Response::default()
    };
    let charged = |id| {
        connection.charge(&asked(id), 20).unwrap();
        budget.charged.get()
    };
    assert!(charged(1) >= FRAME_BYTES_MAX, "as much as there could be");
    for id in 2..20 {
        answer(&connection, &of_ranges(id - 1, 1));
        connection.charge(&asked(id), 20).unwrap();
    }
    assert_eq!(budget.charged.get(), SMALL_BYTES);
    answer(&connection, &of_ranges(19, 500_000));
    let many = charged(20);
    assert!((1_000_000..FRAME_BYTES_MAX).contains(&many), "{many}");
    answer(&connection, &of_ranges(20, 1));
    assert_eq!(budget.charged.get(), 0);
}

#[tokio::test]
async fn what_many_entries_take_in_memory_is_charged_however_short_they_are() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    for id in 1..100 {
        let scan = request(id, Op::scan("", "", 1));
        connection.charge(&scan, 20).unwrap();
        answer(&connection, &scanned(id, 1));
    }
    let many = let_in(&connection, || Op::scan("", "", 10_000));
    assert!(many <= (16 << 20) / (10_000 * 128) + 1, "{many}");
}

#[tokio::test]
async fn short_answers_are_paid_for_by_number_alone() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    assert_eq!(let_in(&connection, || Op::get("k")), 16);
    for id in 1..=16 {
        answer(&connection, &found(id, 10));
    }
    let many = let_in(&connection, || Op::get("k"));
    assert_eq!(many, (16 << 20) / SMALL_BYTES as u64);
}

fn txn(compared: usize, then: usize, or_else: usize) -> Op {
    let get = || Listed::Get(leasehold_wire::Get { key: "k".into() }).into();
    let comparison = leasehold_wire::Comparison {
        key: "k".into(),
        condition: Some(leasehold_wire::comparison::Condition::Present(true)),
    };
    let put = Listed::append("k", "v").into();
    let gets = |count| (0..count).map(|_| get());
    Op::txn(Txn {
        comparisons: vec![comparison; compared],
        then: gets(then).chain([put]).collect(),
        or_else: gets(or_else).collect(),
        keep_going: false,
    })
}

fn executed(id: u64, bytes: usize) -> Response {
    let value = leasehold_wire::Value {
        value: vec![7; bytes].into(),
        version: Some(Version::default()),
    };
    let result = leasehold_wire::op_result::Result::Value(value);
    let outcome = Outcome::txn(leasehold_wire::TxnResult {
        results: vec![leasehold_wire::OpResult {
            result: Some(result),
        }],
        ..Default::default()
    });
    Response::answer(id, Path::Log, outcome)
}

/// The answer to a transaction has the values that one list gets, and the value that a failed
/// comparison finds.
#[tokio::test]
async fn transactions_are_charged_the_most_there_could_be_until_their_answers_are_known() {
    let budget = budget(Limits::default());
    for (compared, then, or_else, most) in [
        (0, 0, 0, (16 << 20) / SMALL_BYTES as u64),
        (3, 0, 0, 16),
        (1, 1, 0, 16),
        (1, 0, 1, 8),
        (0, 3, 2, 6),
        (0, 2, 3, 6),
        (1, 900, 0, 4),
    ] {
        let (connection, _client) = connection(1, &budget).await;
        let admitted = let_in(&connection, || txn(compared, then, or_else));
        assert_eq!(admitted, most, "{compared} {then} {or_else}");
        (1..=admitted).for_each(|id| answer(&connection, &executed(id, 10)));
        assert_eq!(budget.charged.get(), 0);
    }
    let (connection, _client) = connection(1, &budget).await;
    for id in 1..20 {
        connection.charge(&request(id, txn(1, 1, 1)), 20).unwrap();
        answer(&connection, &executed(id, 10));
    }
    let many = let_in(&connection, || txn(1, 1, 1));
    assert_eq!(many, (16 << 20) / SMALL_BYTES as u64, "answers are short");
    let last = 19 + many;
    (20..last).for_each(|id| answer(&connection, &executed(id, 10)));
    answer(&connection, &executed(last, 1 << 19));
    let few = let_in(&connection, || txn(1, 1, 1));
    assert!(few <= 32, "{few}: answers are long");
}

/// A large write waits for other large writes. A transaction is no large write only because its
/// answer may be long.
#[tokio::test]
async fn a_short_transaction_is_no_large_write() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let is_large = |id, op| {
        connection
            .charge(&request(id, op), 20)
            .unwrap()
            .is_large_write
    };
    assert!(!is_large(1, txn(3, 4, 4)));
    assert!(is_large(2, puts(20)));
    assert!(!is_large(3, puts(5)));
}

/// Returns a transaction with this number of puts.
fn puts(count: usize) -> Op {
    let put = leasehold_wire::Put {
        key: "k".into(),
        value: "v".into(),
    };
    Op::txn(Txn {
        then: vec![Listed::Put(put).into(); count],
        ..Txn::default()
    })
}

#[tokio::test]
async fn numbers_of_requests_rise() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let charged = |id| connection.charge(&request(id, Op::get("k")), 20).is_ok();
    assert!(!charged(0), "answers to nobody's request have it");
    assert!(charged(7) && !charged(7) && !charged(6), "none has two");
    answer(&connection, &found(7, 1));
    assert!(!charged(7) && charged(8));
}

#[tokio::test]
async fn a_frame_that_holds_much_beside_its_request_is_refused() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let charged = |id, bytes| connection.charge(&request(id, Op::put("k", "v")), bytes);
    assert!(charged(1, SMALL_BYTES).is_ok());
    let error = charged(2, 1 << 20).unwrap_err();
    assert_eq!(error.code(), ErrorCode::BadRequest);
    assert!(error.message.contains("its frame has 1048576"), "{error:?}");
    let value = Bytes::from(vec![b'v'; 1 << 19]);
    let long = request(3, Op::put("k", value));
    assert!(connection.charge(&long, (1 << 20) + SMALL_BYTES).is_ok());
    assert!(charged(4, 20).is_ok(), "the connection goes on");
}

/// If a new connection still expected answers of the maximum length after its first answer, each of
/// its next reads would take a whole event-loop iteration.
#[tokio::test]
async fn after_a_first_short_answer_the_next_is_not_thought_to_be_the_longest() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    for id in 1..=3 {
        let work = connection.charge(&request(id, Op::get("k")), 20).unwrap();
        assert!(work.units <= USUAL_BYTES + 2048, "{}", work.units);
        let missing = Response::answer(id, Path::Local, Outcome::missing());
        answer(&connection, &missing);
    }
}

/// If the entries found by earlier scans were ignored, a scan that finds little would be charged as
/// a scan of 10,000 entries.
#[tokio::test]
async fn scans_are_charged_for_as_many_entries_as_scans_before_found() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let units = |id| {
        let scan = request(id, Op::scan("", "", 10_000));
        connection.charge(&scan, 20).unwrap().units
    };
    let entries = |id, count| {
        let found = vec![Entry::default(); count];
        Response::answer(id, Path::Local, Outcome::entries(found))
    };
    let fresh = units(1);
    answer(&connection, &entries(1, 1));
    for id in 2..=30 {
        units(id);
        answer(&connection, &entries(id, 1));
    }
    let short = units(31);
    answer(&connection, &entries(31, 5000));
    let long = units(32);
    assert!(
        fresh > 20 * short && long > 3 * fresh,
        "{fresh} {short} {long}"
    );
}

/// Reads that went through the log have the same cost as writes of a few keys.
#[tokio::test]
async fn reads_of_a_connection_count_as_logged_once_one_went_through_the_log() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let units = |id| {
        let scan = request(id, Op::scan("", "", 1));
        connection.charge(&scan, 20).unwrap().units
    };
    let local = |id| Response::answer(id, Path::Local, Outcome::entries(Vec::new()));
    for id in 1..=12 {
        units(id);
        answer(&connection, &local(id));
    }
    let unlogged = units(13);
    answer(&connection, &scanned(13, 1));
    let logged = units(14);
    assert!(logged > 2 * unlogged, "{unlogged} {logged}");
    answer(&connection, &local(14));
    assert!(units(15) < logged);
}

/// If the cost of a scan followed only from earlier scans, and these found nothing, one event-loop
/// iteration would execute hundreds of long scans.
#[tokio::test]
async fn scans_that_may_find_more_than_those_before_do_not_fill_rounds() {
    let budget = budget(Limits::default());
    let mut open = Vec::new();
    let mut next = 0;
    for number in 0..10 {
        let (connection, client) = connection(number, &budget).await;
        for _ in 0..30 {
            next += 1;
            let scan = request(next, Op::scan("", "", 10_000));
            connection.charge(&scan, 20).unwrap();
            let nothing = Outcome::entries(Vec::new());
            answer(&connection, &Response::answer(next, Path::Local, nothing));
        }
        open.push((connection, client));
    }
    assert_eq!(budget.guessed.get(), 0);
    let (mut charged, mut scans) = (0, 0);
    for (connection, _client) in &open {
        while !connection.is_congested() {
            next += 1;
            let scan = request(next, Op::scan("", "", 10_000));
            charged += connection.charge(&scan, 20).unwrap().units;
            scans += 1;
        }
    }
    let one = cost::of_body(request(1, Op::scan("", "", 10_000)).body.as_ref().unwrap());
    assert!(
        charged + UNITS_PER_ITERATION >= scans * one.executing(),
        "{scans}: {charged}"
    );
    // Scans of clients that have disconnected are executed, too.
    let accounts: Vec<_> = open.iter().map(|(it, _)| it.account()).collect();
    accounts
        .iter()
        .for_each(|account| account.client_disconnected());
    assert!(budget.guessed.get() > 0);
    drop((open, accounts));
    assert_eq!(budget.guessed.get(), 0);
}

/// The message to another replica and the answer of that replica cost more than the read itself.
#[tokio::test]
async fn gets_of_a_connection_count_as_passed_on_once_one_was() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let units = |id| {
        connection
            .charge(&request(id, Op::get("k")), 20)
            .unwrap()
            .units
    };
    let missing = |id, path| Response::answer(id, path, Outcome::missing());
    for id in 1..=20 {
        units(id);
        answer(&connection, &missing(id, Path::Local));
    }
    let local = units(21);
    answer(&connection, &missing(21, Path::Forwarded));
    let passed_on = units(22);
    assert!(passed_on >= local + 700, "{local} {passed_on}");
    answer(&connection, &missing(22, Path::Local));
    assert_eq!(units(23), local);
}

#[tokio::test]
async fn large_writes_are_told_apart_and_given_back_once() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    let work = |id, op: Op, bytes| connection.charge(&request(id, op), bytes).unwrap();
    let value = Bytes::from(vec![b'v'; SMALL_BYTES + 1]);
    let put = work(1, Op::put("k", value), SMALL_BYTES + 100);
    assert!(put.is_large_write && put.units > SMALL_BYTES);
    assert!(!work(2, Op::put("k", "v"), SMALL_BYTES).is_large_write);
    // A client cannot keep large writes waiting by filling frames with something that is no
    // command.
    assert!(!work(3, Op::put("k", "v"), SMALL_BYTES + 1).is_large_write);
    assert!(!work(4, Op::get("k"), SMALL_BYTES + 1).is_large_write);
    // Keys take time to process, however short they are.
    let entry = |number: usize| KeyValue {
        key: number.to_string().into(),
        value: "v".into(),
    };
    let entries = |count| Op::multi_put((0..count).map(entry).collect());
    assert!(!work(5, entries(2), 20).is_large_write);
    let many = work(6, entries(100), 1000);
    assert!(many.is_large_write && many.units > 10 * put.units / 2);
    // The origin limits only the work of rewriting values. All other work of a transaction counts here,
    // however short the transaction is.
    let txn = |count, suffix: Bytes| {
        let put = Put {
            key: "k".into(),
            value: "v".into(),
        };
        let puts = vec![Listed::Put(put); count];
        let then = puts.into_iter().chain([Listed::append("k", suffix)]);
        Op::txn(Txn {
            then: then.map(Into::into).collect(),
            ..Txn::default()
        })
    };
    assert!(!work(7, txn(2, "s".into()), 100).is_large_write);
    let short = work(8, txn(20, "s".into()), 1000);
    assert!(short.is_large_write);
    let account = connection.account();
    let given_back = [1, 1, 2, 3, 4, 5, 6, 7, 8].map(|id| account.release(id));
    let expected = [put.units, 0, 0, 0, 0, 0, many.units, 0, short.units];
    assert_eq!(given_back, expected);
    assert_eq!((account.in_flight(), budget.charged.get()), (0, 0));
}

#[tokio::test]
async fn all_together_are_bounded_and_one_request_of_each_is_let_in() {
    let budget = budget(Limits {
        in_flight_bytes: 8 << 20,
        ..Limits::default()
    });
    let (first, _one) = connection(1, &budget).await;
    let (second, _two) = connection(2, &budget).await;
    let scan = || Op::scan("", "", 10);
    assert_eq!(let_in(&first, scan), 2);
    let status = Request::new(1, None);
    assert!(!second.is_congested(), "it has nothing in flight");
    second.charge(&status, 4).unwrap();
    assert!(second.is_congested());
    let account = first.account();
    drop(first);
    assert!(second.is_congested(), "the replica works for who has left");
    (1..=2).for_each(|id| _ = account.release(id));
    assert!(!second.is_congested());
    answer(&second, &found(1, 1));
    assert_eq!(budget.charged.get(), 0);
}

/// The test sends one command on each of very many connections, which close before the command is
/// done.
#[tokio::test]
async fn small_commands_take_little_more_than_all_may_and_a_status_is_let_in() {
    let budget = budget(Limits {
        in_flight_bytes: 64 * SMALL_BYTES,
        ..Limits::default()
    });
    let put = request(1, Op::put("k", "v"));
    let mut taken = Vec::new();
    for id in 1..=100 {
        let (connection, _client) = connection(id, &budget).await;
        if connection.charge(&put, 20).is_ok() {
            taken.push(connection.account());
        }
    }
    assert_eq!(taken.len(), 72);
    assert_eq!(budget.charged.get(), 72 * SMALL_BYTES);
    assert_eq!(budget.limit_counters.requests_refused.get(), 28);
    let (operator, _client) = connection(101, &budget).await;
    let status = Request::new(1, Some(Body::Status(StatusRequest::default())));
    operator.charge(&status, 4).unwrap();
    taken.iter().for_each(|account| _ = account.release(1));
    let (later, _client) = connection(102, &budget).await;
    later.charge(&put, 20).unwrap();
}

#[tokio::test]
async fn a_request_keeps_little_beside_itself_once_that_matters() {
    let budget = budget(Limits {
        in_flight_bytes: 64 * SMALL_BYTES,
        ..Limits::default()
    });
    let (connection, _client) = connection(1, &budget).await;
    let read = Bytes::from(vec![7; READ_BYTES]);
    let keeps_all = |frame: &Bytes| read.as_ptr_range().contains(&frame.as_ptr());
    for id in 1..=4 {
        assert!(keeps_all(&connection.compact(read.slice(..100))), "{id}");
        let put = request(id, Op::put("k", "v"));
        connection.charge(&put, 100).unwrap();
    }
    for bytes in [1, 100, SMALL_BYTES + 1, READ_BYTES] {
        let kept = connection.compact(read.slice(..bytes));
        assert!(!keeps_all(&kept) && kept.len() == bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn who_sends_no_more_is_waited_for_while_its_answers_come() {
    let budget = budget(Limits::default());
    let (connection, _client) = connection(1, &budget).await;
    for id in 1..=2 {
        connection.charge(&request(id, Op::get("k")), 20).unwrap();
    }
    let drained = connection.wait_until_drained();
    tokio::pin!(drained);
    for id in 1..=2 {
        let almost = STALLED * 2 / 3;
        let early = tokio::time::timeout(almost, &mut drained).await;
        assert!(early.is_err(), "{id} is due");
        answer(&connection, &found(id, 1));
    }
    let begun = tokio::time::Instant::now();
    drained.await;
    assert!(begun.elapsed() < STALLED, "nothing is due");
    assert_eq!(connection.outstanding(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn who_sends_no_more_is_not_waited_for_without_end() {
    let budget = budget(Limits::default());
    let (unanswered, _one) = connection(1, &budget).await;
    unanswered.charge(&request(1, Op::get("k")), 20).unwrap();
    unanswered.wait_until_drained().await;
    let (unread, _two) = connection(2, &budget).await;
    (1..=20).for_each(|id| _ = unread.append(&found(id, 1 << 20)));
    unread.wait_until_drained().await;
    assert!(unread.outbox.pending_bytes() > 0);
}

#[tokio::test]
async fn nothing_is_encoded_for_a_client_that_has_left_too_much() {
    let budget = budget(Limits {
        connection_unread_bytes: 10_000,
        ..Limits::default()
    });
    let (connection, _client) = connection(1, &budget).await;
    for id in 1..100 {
        connection.append(&found(id, 1000));
    }
    assert_eq!(budget.limit_counters.abandoned.get(), 1);
    assert_eq!(budget.unread.now(), 0, "what it left is freed");
    assert!(budget.unread.most() <= 12_000);
    assert!(connection.outbox.is_broken());
}
