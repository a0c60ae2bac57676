//! Tests of the clients' port without a replica behind it, in simulated time. Clients that make the
//! port wait are closed.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use leasehold_leases::Incarnation;
use leasehold_wire::{Outcome, Path};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

use super::*;
use crate::config::Limits;
use crate::front::inbox::{Inbox, UNITS_PER_ITERATION};
use crate::front::listener::{Clients, ClusterNames};
use leasehold_replica::action::ClientHandle;
use leasehold_replica::input::Input;

const S: Duration = Duration::from_secs(1);
const MIB: usize = 1 << 20;

/// The clients' port under test, and the inbox that contains the requests taken from it.
struct Port {
    clients: Rc<Clients>,
    inbox: Rc<Inbox>,
    address: SocketAddr,
}

impl Port {
    async fn open(limits: Limits) -> Port {
        let port = Port::without_turns(limits).await;
        spawn_local(give_turns(port.inbox.clone()));
        port
    }

    /// Opens a clients' port that no driver serves. Its connections may read only as much as one
    /// event-loop iteration takes.
    async fn without_turns(limits: Limits) -> Port {
        let names = ClusterNames {
            cluster: "demo".to_owned(),
            replica: "CA".to_owned(),
            replicas: vec!["CA".to_owned()],
        };
        let inbox = Rc::new(Inbox::default());
        let clients = Clients::new(names, Incarnation(1), inbox.clone(), limits, 1000);
        let clients = Rc::new(clients);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        spawn_local(clients.clone().accept(listener));
        spawn_local(clients.clone().enforce_timeouts());
        Port {
            clients,
            inbox,
            address,
        }
    }

    async fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // The kernel's time is not virtual, so the kernel must not hold bytes back.
        stream.set_nodelay(true).unwrap();
        let mut buffer = BytesMut::new();
        encode_frame(&hello(Some("demo")), &mut buffer).unwrap();
        stream.write_all(&buffer).await.unwrap();
        let _: Welcome = FrameReader::new(&mut stream).next().await.unwrap().unwrap();
        stream
    }

    fn counted(&self, name: &str) -> u64 {
        let found = self.clients.counters().find(|(known, _)| *known == name);
        found.expect("it is counted").1
    }

    async fn until(&self, name: &str, enough: impl Fn(u64) -> bool) {
        while !enough(self.counted(name)) {
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Answers each Get with a value of `bytes` bytes, and any other request with an empty answer.
    /// Never returns.
    async fn answer(inbox: Rc<Inbox>, clients: Rc<Clients>, bytes: usize) {
        loop {
            inbox.arrival().await;
            for (from, command) in taken(&inbox) {
                let outcome = match command.op {
                    Some(Op::Get(_)) => Outcome::value(vec![7; bytes], Default::default()),
                    _ => Outcome::missing(),
                };
                clients.reply(from, Path::Log, outcome, |_| Hint::default());
            }
            clients.flush();
            while clients.has_waiting() {
                tokio::task::yield_now().await;
                clients.begin_iteration();
                clients.flush();
            }
        }
    }

    fn serve(&self, bytes: usize) {
        spawn_local(Port::answer(
            self.inbox.clone(),
            self.clients.clone(),
            bytes,
        ));
    }
}

/// Lets connections continue to read again and again, like a driver that always runs iterations.
async fn give_turns(inbox: Rc<Inbox>) {
    loop {
        inbox.arrival().await;
        inbox.refill_read_permits();
        sleep(Duration::from_millis(1)).await;
    }
}

fn taken(inbox: &Inbox) -> Vec<(ClientHandle, Command)> {
    let mut inputs = Vec::new();
    inbox.take(&mut inputs);
    while inbox.has_others() {
        inbox.take(&mut inputs);
    }
    let asked = inputs.into_iter().filter_map(|input| match input {
        Input::Client { from, command } => Some((from, command)),
        _ => None,
    });
    asked.collect()
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(work).await
}

/// Returns the error reply that a client receives before its connection is closed.
async fn last_words(stream: &mut TcpStream) -> (ErrorCode, String) {
    let response: Response = FrameReader::new(stream).next().await.unwrap().unwrap();
    let Some(outcome::Result::Error(error)) = response.outcome.unwrap().result else {
        panic!("not an error");
    };
    (error.code(), error.message)
}

/// Returns a request that puts a value of `bytes` bytes.
fn put_of(id: u64, bytes: usize) -> BytesMut {
    let put = Command::session(9, id, id, Op::put("k", vec![7; bytes]));
    let mut buffer = BytesMut::new();
    encode_frame(&Request::new(id, Some(Body::Command(put))), &mut buffer).unwrap();
    buffer
}

#[tokio::test(start_paused = true)]
async fn a_frame_must_arrive_whole_in_time_however_it_trickles() {
    within(async {
        let port = Port::open(Limits::default()).await;
        let mut slow = port.connect().await;
        let begun = Instant::now();
        let frame = put_of(1, 1000);
        let mut sent = frame.iter();
        let closed = loop {
            let byte = [*sent.next().expect("closed before its end")];
            if slow.write_all(&byte).await.is_err() {
                break begun.elapsed();
            }
            tokio::select! {
                (_, message) = last_words(&mut slow) => {
                    assert!(message.contains("limits.frame_s"), "{message}");
                    break begun.elapsed();
                }
                () = sleep(S) => {}
            }
        };
        assert!((30 * S..33 * S).contains(&closed), "{closed:?}");
        assert_eq!(port.counted("clients_timed_out"), 1);
        // Many small requests in a row do not count as one slow request.
        port.serve(0);
        let mut busy = port.connect().await;
        for id in 1..100 {
            let (frame, next) = (put_of(id, 10), put_of(id + 1, 10));
            let from = if id == 1 { 0 } else { 3 };
            busy.write_all(&frame[from..]).await.unwrap();
            busy.write_all(&next[..3]).await.unwrap();
            sleep(S).await;
        }
        assert_eq!(port.counted("clients_timed_out"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn unfinished_frames_take_no_more_than_their_share_and_end_in_time() {
    within(async {
        let limits = Limits {
            in_flight_bytes: 64 * MIB,
            ..Limits::default()
        };
        let port = Port::open(limits).await;
        port.serve(0);
        let large = put_of(1, MIB);
        let mut four = BytesMut::from(&(4 * MIB as u32).to_be_bytes()[..]);
        four.resize(4 * MIB - 100, 7);
        let most = RefCell::new(0);
        let mut open = Vec::new();
        for _ in 0..100 {
            let mut stream = port.connect().await;
            // Some connections are closed while they send.
            let _ = stream.write_all(&four).await;
            open.push(stream);
            let now = port.counted("client_bytes_partial");
            most.replace_with(|most| (*most).max(now));
        }
        let most = most.into_inner() as usize;
        assert!((20 * MIB..=32 * MIB).contains(&most), "{most} bytes");
        assert!(port.counted("clients_crowded_out") >= 90);
        // These connections are stalled. A connection that continues to send is served.
        sleep(5 * S).await;
        let mut honest = port.connect().await;
        for half in [&large[..MIB / 2], &large[MIB / 2..]] {
            honest.write_all(half).await.unwrap();
            sleep(S / 10).await;
        }
        let answer: Option<Response> = FrameReader::new(&mut honest).next().await.unwrap();
        assert_eq!(answer.unwrap().id, 1);
        port.until("clients_timed_out", |count| count > 0).await;
        port.until("client_bytes_partial", |bytes| bytes == 0).await;
        port.until("clients", |count| count == 1).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn slow_readers_are_closed_and_what_they_left_is_freed() {
    within(async {
        let limits = Limits {
            connection_in_flight_bytes: 32 * MIB,
            ..Limits::default()
        };
        let port = Port::open(limits).await;
        port.serve(MIB);
        let mut gets = BytesMut::new();
        for id in 1..=20 {
            let get = Some(Body::Command(Op::get("k").into()));
            encode_frame(&Request::new(id, get), &mut gets).unwrap();
        }
        for _ in 0..20 {
            let mut stream = port.connect().await;
            stream.write_all(&gets).await.unwrap();
            spawn_local(async move {
                let mut byte = [0];
                while let Ok(1) = stream.read(&mut byte).await {
                    sleep(S).await;
                }
            });
        }
        port.until("client_bytes_unread", |bytes| bytes > 100 << 20)
            .await;
        let begun = Instant::now();
        port.until("client_bytes_unread", |bytes| bytes == 0).await;
        assert!(begun.elapsed() < 33 * S, "{:?}", begun.elapsed());
        assert_eq!(port.counted("clients_timed_out"), 20);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_politely_and_a_rarely_used_one_is_kept() {
    within(async {
        let port = Port::open(Limits::default()).await;
        port.serve(0);
        let mut idle = port.connect().await;
        let mut rare = port.connect().await;
        let begun = Instant::now();
        spawn_local(async move {
            for id in 1.. {
                rare.write_all(&put_of(id, 10)).await.unwrap();
                sleep(300 * S).await;
            }
        });
        let (code, message) = last_words(&mut idle).await;
        assert_eq!(code, ErrorCode::Idle);
        assert!(message.contains("limits.idle_s"), "{message}");
        let idle_for = begun.elapsed();
        assert!((600 * S..603 * S).contains(&idle_for), "{idle_for:?}");
        let mut rest = Vec::new();
        assert_eq!(idle.read_to_end(&mut rest).await.unwrap(), 0);
        sleep(3600 * S).await;
        assert_eq!(port.counted("clients"), 1);
        assert_eq!(port.counted("clients_closed_idle"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_the_replica_is_neither_idle_nor_late() {
    within(async {
        let port = Port::open(Limits::default()).await;
        let mut waiting = port.connect().await;
        waiting.write_all(&put_of(1, 10)).await.unwrap();
        sleep(3600 * S).await;
        assert_eq!(port.counted("clients"), 1, "nobody has answered it");
        port.serve(0);
        let answer: Option<Response> = FrameReader::new(&mut waiting).next().await.unwrap();
        assert_eq!(answer.unwrap().id, 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn clients_that_leave_a_command_behind_take_no_more_than_all_may() {
    within(async {
        let limits = Limits {
            connection_in_flight_bytes: MIB,
            in_flight_bytes: MIB,
            ..Limits::default()
        };
        let port = Port::open(limits).await;
        // No request is answered, as at a replica that is cut off.
        let mut pending = Vec::new();
        while port.counted("client_requests_refused") == 0 {
            let mut stream = port.connect().await;
            let before = port.counted("client_bytes_in_flight");
            stream.write_all(&put_of(1, 1000)).await.unwrap();
            while port.counted("client_bytes_in_flight") == before
                && port.counted("client_requests_refused") == 0
            {
                sleep(Duration::from_millis(1)).await;
            }
            stream.set_zero_linger().unwrap();
            drop(stream);
            port.until("clients", |count| count == 0).await;
            pending.extend(taken(&port.inbox));
        }
        let held = port.counted("client_bytes_in_flight") as usize;
        assert!((MIB..=MIB + MIB / 8 + 4096).contains(&held), "{held} bytes");
        let kept = pending.drain(..).map(|(_, command)| memory_of(command));
        let kept: usize = kept.sum();
        assert!(kept <= held, "{kept} bytes are charged {held}");
    })
    .await;
}

/// Returns the number of bytes of memory that a put keeps. Its key and value are parts of the
/// buffer into which they were read.
fn memory_of(command: Command) -> usize {
    let Some(Op::Put(put)) = command.op else {
        panic!("a put");
    };
    drop(put.key);
    let value = put.value.try_into_mut().expect("nobody else has it");
    value.capacity()
}

#[tokio::test(start_paused = true)]
async fn a_full_replica_refuses_large_requests_and_takes_small_ones() {
    within(async {
        let limits = Limits {
            connection_in_flight_bytes: 4 * MIB,
            in_flight_bytes: 8 * MIB,
            ..Limits::default()
        };
        let port = Port::open(limits).await;
        // No request is answered, so all requests stay in flight.
        let mut pipelining = Vec::new();
        for _ in 0..4 {
            let mut stream = port.connect().await;
            let puts: Vec<u8> = (1..=4).flat_map(|id| put_of(id, MIB)).collect();
            pipelining.push(spawn_local(async move {
                // The last requests stay in the socket.
                let _ = stream.write_all(&puts).await;
                std::future::pending::<()>().await;
            }));
        }
        port.until("client_bytes_in_flight", |bytes| bytes >= 8 << 20)
            .await;
        let mut large = port.connect().await;
        large.write_all(&put_of(1, MIB)).await.unwrap();
        let (code, message) = last_words(&mut large).await;
        assert_eq!(code, ErrorCode::Unavailable);
        assert!(message.contains("limits.in_flight_mb"), "{message}");
        let mut small = port.connect().await;
        small.write_all(&put_of(77, 100)).await.unwrap();
        port.until("client_requests_refused", |count| count > 0)
            .await;
        sleep(S).await;
        let taken = taken(&port.inbox);
        assert!(taken.iter().any(|(from, _)| from.request == 77));
        let held = port.counted("client_bytes_in_flight");
        assert!(held <= 10 << 20, "{held} bytes");
        pipelining.iter().for_each(tokio::task::JoinHandle::abort);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn answers_that_turn_out_large_are_encoded_some_in_a_round() {
    within(async {
        let limits = Limits {
            connection_in_flight_bytes: 64 * MIB,
            ..Limits::default()
        };
        let port = Port::open(limits).await;
        let mut client = port.connect().await;
        let mut gets = BytesMut::new();
        for id in 1..=8 {
            let get = Some(Body::Command(Op::get("k").into()));
            encode_frame(&Request::new(id, get), &mut gets).unwrap();
        }
        client.write_all(&gets).await.unwrap();
        let mut asked = Vec::new();
        while asked.len() < 8 {
            sleep(S / 100).await;
            asked.extend(taken(&port.inbox));
        }
        let value = Bytes::from(vec![7; MIB]);
        for (from, _) in asked {
            let outcome = Outcome::value(value.clone(), Default::default());
            port.clients
                .reply(from, Path::Log, outcome, |_| Hint::default());
        }
        let most = |most| 1..=(most * MIB as u64 + 1000);
        let encoded = || port.counted("client_bytes_unread");
        assert!(most(2).contains(&encoded()), "{} bytes", encoded());
        assert!(
            port.counted("client_bytes_in_flight") > 6 * MIB as u64,
            "the rest is charged"
        );
        port.clients.begin_iteration();
        assert!(most(4).contains(&encoded()), "{} bytes", encoded());
        while port.clients.has_waiting() {
            port.clients.begin_iteration();
        }
        assert_eq!(port.counted("client_bytes_in_flight"), 0);
        port.clients.flush();
        let mut reader = FrameReader::new(&mut client);
        for id in 1..=8 {
            let answer: Response = reader.next().await.unwrap().unwrap();
            assert_eq!(answer.id, id);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_while_it_is_not_read_from_leaves_its_place() {
    within(async {
        let limits = Limits {
            connection_requests: 2,
            ..Limits::default()
        };
        let port = Port::open(limits).await;
        let mut stream = port.connect().await;
        for id in 1..=5 {
            stream.write_all(&put_of(id, 100)).await.unwrap();
        }
        // No request is answered.
        port.until("clients_paused", |count| count > 0).await;
        sleep(60 * S).await;
        assert_eq!(port.counted("clients"), 1, "it may wait");
        stream.set_zero_linger().unwrap();
        drop(stream);
        let gone = port.until("clients", |count| count == 0);
        let noticed = tokio::time::timeout(5 * S, gone).await;
        assert!(noticed.is_ok(), "it keeps its place");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_asked_is_given_back_when_it_has_gone_but_for_its_writes() {
    within(async {
        let port = Port::open(Limits::default()).await;
        let mut stream = port.connect().await;
        let mut requests = BytesMut::new();
        for id in 1..=4 {
            let get = Some(Body::Command(Op::get("k").into()));
            encode_frame(&Request::new(id, get), &mut requests).unwrap();
        }
        requests.extend_from_slice(&put_of(5, 100_000));
        stream.write_all(&requests).await.unwrap();
        port.until("client_bytes_in_flight", |bytes| bytes >= 4 << 20)
            .await;
        sleep(S).await;
        let mut inputs = Vec::new();
        port.inbox.take(&mut inputs);
        // The replica does not have this write yet.
        stream.write_all(&put_of(6, 1_000_000)).await.unwrap();
        port.until("client_bytes_in_flight", |bytes| bytes >= 5 << 20)
            .await;
        stream.set_zero_linger().unwrap();
        drop(stream);
        port.until("clients", |count| count == 0).await;
        let held = port.counted("client_bytes_in_flight");
        let put = 100_000..101_000;
        assert!(put.contains(&(held - 4 * 4096)), "{held} bytes");
        port.inbox.take(&mut inputs);
        let gone = |input: &Input| matches!(input, Input::ClientDisconnected { .. });
        let at = inputs.iter().position(gone).expect("the replica is told");
        let mut asked = Vec::new();
        for (index, input) in inputs.into_iter().enumerate() {
            if let Input::Client { from, command } = input {
                assert!(index < at || command.is_write(), "a read after the end");
                asked.push(from);
            }
        }
        assert_eq!(asked.len(), 5);
        for from in asked {
            port.clients
                .reply(from, Path::Log, Outcome::missing(), |_| Hint::default());
        }
        assert_eq!(port.counted("client_bytes_in_flight"), 0);
    })
    .await;
}

/// Whether connections have read as much as an event-loop iteration takes, and the inbox has no
/// inputs.
async fn is_read_budget_spent(inbox: &Inbox) -> bool {
    let arrival = tokio::time::timeout(S, inbox.arrival()).await;
    arrival.is_ok() && !inbox.has_others()
}

#[tokio::test(start_paused = true)]
async fn a_long_frame_is_decoded_in_its_turn() {
    within(async {
        let port = Port::without_turns(Limits::default()).await;
        let mut stream = port.connect().await;
        // Reading the frame takes half of a round, and decoding it the other half.
        stream
            .write_all(&put_of(1, UNITS_PER_ITERATION / 2))
            .await
            .unwrap();
        assert!(
            is_read_budget_spent(&port.inbox).await,
            "no round is waited for"
        );
        port.inbox.refill_read_permits();
        sleep(S).await;
        assert_eq!(taken(&port.inbox).len(), 1);
    })
    .await;
}

/// Cost of a put of a few bytes, in units of `leasehold_replica::cost`.
const PUT_UNITS: usize = 2400;

/// Handling a short request takes as long as reading many bytes, so short requests count against
/// the limit.
#[tokio::test(start_paused = true)]
async fn short_requests_have_their_turns() {
    within(async {
        let port = Port::without_turns(Limits::default()).await;
        let mut requests = BytesMut::new();
        for id in 1..=400 {
            requests.extend_from_slice(&put_of(id, 1));
        }
        let mut open = Vec::new();
        for _ in 0..5 {
            open.push(port.connect().await);
        }
        for stream in &mut open {
            stream.write_all(&requests).await.unwrap();
        }
        let round = UNITS_PER_ITERATION / PUT_UNITS;
        for _ in 0..3 {
            sleep(S).await;
            let read = taken(&port.inbox).len();
            assert!((round - 80..=round + 80).contains(&read), "{read}");
        }
    })
    .await;
}

/// A few requests on each of many connections are as much work as many requests on one connection.
#[tokio::test(start_paused = true)]
async fn a_few_short_requests_of_many_connections_have_their_turns() {
    within(async {
        let port = Port::without_turns(Limits::default()).await;
        let mut open = Vec::new();
        for _ in 0..100 {
            open.push(port.connect().await);
        }
        for stream in &mut open {
            for id in 1..=10 {
                stream.write_all(&put_of(id, 1)).await.unwrap();
            }
        }
        sleep(S).await;
        let read = taken(&port.inbox).len();
        assert!(read <= UNITS_PER_ITERATION / PUT_UNITS + 20, "{read}");
    })
    .await;
}

/// Refusing an empty request takes as long as reading many bytes, so refused requests count against
/// the limit.
#[tokio::test(start_paused = true)]
async fn refused_requests_have_their_turns() {
    within(async {
        let round = UNITS_PER_ITERATION / 300;
        for (refused, is_much) in [(round - 70, false), (round + 40, true)] {
            let port = Port::without_turns(Limits::default()).await;
            let mut stream = port.connect().await;
            stream.write_all(&vec![0; 4 * refused]).await.unwrap();
            assert_eq!(
                is_read_budget_spent(&port.inbox).await,
                is_much,
                "{refused}"
            );
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_strangers_send_counts_before_they_say_who_they_are() {
    within(async {
        let port = Port::without_turns(Limits::default()).await;
        // Others have read nearly as much as a round takes.
        port.inbox
            .acquire_read_units(UNITS_PER_ITERATION - (100 << 10))
            .await;
        let mut open = Vec::new();
        // Begin of a hello. No connection is refused, and none waits for a round yet.
        let mut sent = BytesMut::from(&4096_u32.to_be_bytes()[..]);
        sent.resize(4000, 7);
        for _ in 0..30 {
            let mut stream = TcpStream::connect(port.address).await.unwrap();
            stream.write_all(&sent).await.unwrap();
            open.push(stream);
        }
        assert!(is_read_budget_spent(&port.inbox).await);
    })
    .await;
}

/// Sends `gets` Gets, does not read the answers, and then ends the stream of requests.
async fn half_closed(port: &Port, gets: u64) -> TcpStream {
    let mut stream = port.connect().await;
    let mut requests = BytesMut::new();
    for id in 1..=gets {
        let get = Some(Body::Command(Op::get("k").into()));
        encode_frame(&Request::new(id, get), &mut requests).unwrap();
    }
    stream.write_all(&requests).await.unwrap();
    port.until("client_bytes_unread", |bytes| bytes > 2 << 20)
        .await;
    stream.shutdown().await.unwrap();
    sleep(20 * S).await;
    assert_eq!(port.counted("clients"), 1, "it may read its answers still");
    stream
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_ended_its_requests_may_read_later_but_not_never() {
    within(async {
        let port = Port::without_turns(Limits::default()).await;
        port.serve(MIB);
        const GETS: u64 = 16;
        let mut late = half_closed(&port, GETS).await;
        let mut reader = FrameReader::new(&mut late);
        for id in 1..=GETS {
            let response: Response = reader.next().await.unwrap().expect("all are sent");
            assert_eq!(response.id, id);
        }
        assert!(reader.next::<Response>().await.unwrap().is_none(), "closed");
        port.until("clients", |count| count == 0).await;
        let _never = half_closed(&port, GETS).await;
        let gone = port.until("clients", |count| count == 0);
        let closed = tokio::time::timeout(30 * S, gone).await;
        assert!(closed.is_ok(), "it keeps its place");
        assert_eq!(port.counted("client_bytes_unread"), 0);
    })
    .await;
}
