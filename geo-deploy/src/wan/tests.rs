//! Tests with real sockets. The tests have no upper limits on delays, because a busy machine may
//! deliver bytes late. But it must never deliver bytes early, lose them or reorder them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::*;

/// Timeout, so that a test fails instead of hanging for ever.
const GIVE_UP: Duration = Duration::from_secs(60);

fn two_sites(rtt_ms: f64) -> Topology {
    let names = vec!["A".to_owned(), "B".to_owned()];
    Topology::new(names, vec![vec![0.4, rtt_ms], vec![rtt_ms, 0.4]], 0.4).unwrap()
}

/// Starts a server that echoes the bytes of every connection. Returns the address of the server.
fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

fn echo_wan(rtt_ms: f64) -> Wan {
    Wan::start(&two_sites(rtt_ms), &[echo_server(), echo_server()]).unwrap()
}

fn dial(wan: &Wan, from: usize, to: usize) -> TcpStream {
    let stream = TcpStream::connect(wan.via(from, to).unwrap()).unwrap();
    stream.set_read_timeout(Some(GIVE_UP)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn ping(mut stream: &TcpStream) -> Duration {
    let start = Instant::now();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    start.elapsed()
}

#[test]
fn a_round_trip_takes_at_least_what_was_asked() {
    let wan = echo_wan(30.0);
    for (from, to) in [(0, 1), (1, 0)] {
        let stream = dial(&wan, from, to);
        for _ in 0..5 {
            assert!(ping(&stream) >= Duration::from_millis(30));
        }
    }
}

#[test]
fn bytes_stay_whole_and_in_order_under_jitter_loss_and_bandwidth() {
    let wan = Wan::start_with(&two_sites(4.0), &[echo_server(), echo_server()], |rtt_ms| {
        LinkSettings {
            jitter: Duration::from_millis(5),
            bytes_per_second: Some(20_000_000),
            loss: 0.002,
            retransmit: Duration::from_millis(10),
            ..LinkSettings::of_round_trip_ms(rtt_ms)
        }
    })
    .unwrap();
    let stream = dial(&wan, 0, 1);
    let sent: Vec<u8> = (0..2_000_000u32).map(|i| (i % 251) as u8).collect();
    let mut received = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (&stream).write_all(&sent).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        });
        (&stream).read_to_end(&mut received).unwrap();
    });
    assert!(
        received == sent,
        "{} bytes of {}",
        received.len(),
        sent.len()
    );
}

#[test]
fn a_cut_holds_bytes_until_it_is_mended() {
    let wan = echo_wan(2.0);
    let stream = dial(&wan, 0, 1);
    ping(&stream);
    wan.set_cut(0, 1, true);
    (&stream).write_all(b"held").unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let error = (&stream).read(&mut [0; 4]).unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));
    wan.set_cut(0, 1, false);
    stream.set_read_timeout(Some(GIVE_UP)).unwrap();
    let mut received = [0; 4];
    (&stream).read_exact(&mut received).unwrap();
    assert_eq!(&received, b"held");
    ping(&stream);
}

#[test]
fn a_connection_cannot_be_made_through_a_cut() {
    let wan = echo_wan(2.0);
    wan.set_isolated(1, true);
    let stream = dial(&wan, 0, 1);
    (&stream).write_all(b"x").unwrap();
    stream
        .set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    assert!((&stream).read(&mut [0]).is_err());
    wan.set_isolated(1, false);
    stream.set_read_timeout(Some(GIVE_UP)).unwrap();
    (&stream).read_exact(&mut [0]).unwrap();
}

#[test]
fn the_delay_changes_while_it_runs() {
    let wan = echo_wan(0.0);
    let stream = dial(&wan, 0, 1);
    ping(&stream);
    let slow = Duration::from_millis(40);
    wan.link(0, 1).unwrap().change(|s| s.delay = slow);
    assert!(ping(&stream) >= slow);
    assert_eq!(wan.link(0, 1).unwrap().settings().delay, slow);
    assert_eq!(wan.link(1, 0).unwrap().settings().delay, Duration::ZERO);
}

#[test]
fn a_dead_target_closes_the_connection() {
    // This port was just released, so no server listens at it.
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let wan = Wan::start(&two_sites(1.0), &[dead, dead]).unwrap();
    let stream = dial(&wan, 0, 1);
    let ended = match (&stream).read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    };
    assert!(ended);
}

#[test]
fn shutting_down_closes_connections_and_ports() {
    let wan = echo_wan(1.0);
    let stream = dial(&wan, 0, 1);
    ping(&stream);
    let address = wan.via(0, 1).unwrap();
    drop(wan);
    assert!(matches!((&stream).read(&mut [0]), Ok(0) | Err(_)));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn wrong_numbers_of_targets_are_refused() {
    let error = Wan::start(&two_sites(1.0), &[]).unwrap_err();
    assert!(error.to_string().contains("0 targets for 2 sites"));
    let wan = echo_wan(1.0);
    assert!(wan.via(0, 0).is_none() && wan.via(0, 2).is_none());
    let now = Instant::now();
    let network = wan.network(now, now);
    assert_eq!(
        network.verdict,
        NetworkVerdict::Unknown,
        "nothing was measured yet"
    );
}

/// Starts to send probes. Returns the report about the probes as soon as `enough` accepts this
/// report.
fn probed(wan: &Wan, enough: impl Fn(&NetworkReport) -> bool) -> NetworkReport {
    let from = Instant::now();
    wan.probe().unwrap();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let network = wan.network(from, Instant::now());
        if enough(&network) {
            return network;
        }
        assert!(from.elapsed() < GIVE_UP, "too few probes: {network:?}");
    }
}

#[test]
fn probes_see_the_round_trip_of_every_pair() {
    let topology = Topology::paper();
    let targets = vec![echo_server(); topology.len()];
    let wan = Wan::start(&topology, &targets).unwrap();
    let network = probed(&wan, |network| {
        network.pairs.len() == 10 && network.pairs.iter().all(|pair| pair.probes >= 3)
    });
    for pair in &network.pairs {
        let asked = topology.rtt_ms(pair.a, pair.b);
        assert!((pair.asked_p50_ms - asked).abs() < 1e-3, "{pair:?}");
        assert!(pair.p50_ms >= asked * 0.999, "never early: {pair:?}");
        assert!(pair.p99_ms >= pair.p50_ms);
    }
    let matrix = network.matrix_ms(topology.len());
    assert_eq!((matrix[0][0], matrix[0][1]), (0.0, matrix[1][0]));
}

#[test]
fn the_set_up_of_a_connection_is_no_probe() {
    let wan = echo_wan(400.0);
    let from = Instant::now();
    probed(&wan, |network| network.late.probes >= 1);
    // This covers a round trip until the relay has connected, and one for the greeting.
    let setting_up = wan.network(from, from + Duration::from_millis(790));
    assert_eq!(setting_up.late.probes, 0, "{setting_up:?}");
}

/// The relays' thread is busy most of the time, as if it had to wait for a processor. According to
/// the relay's own clock, messages are still on time. Only probes show the delay.
#[test]
fn a_starved_relay_makes_the_run_invalid() {
    let busy = async {
        loop {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(10) {
                std::hint::spin_loop();
            }
            tokio::task::yield_now().await;
        }
    };
    let (topology, echo) = (two_sites(20.0), echo_server());
    let settings = LinkSettings::of_round_trip_ms;
    let wan = Wan::start_beside(&topology, &[echo, echo], settings, busy).unwrap();
    let network = probed(&wan, |network| network.late.probes >= 20);
    assert_eq!(network.verdict, NetworkVerdict::Invalid, "{network:?}");
    assert!(network.warning().unwrap().contains("INVALID"));
}

#[test]
fn what_a_fault_does_to_probes_is_not_blamed_on_the_machine() {
    let wan = echo_wan(2.0);
    let cut_in_between = |network: &NetworkReport| network.late.probes >= 3;
    probed(&wan, cut_in_between);
    let from = Instant::now();
    wan.set_isolated(1, true);
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(wan.network(from, Instant::now()).late.probes, 0);
    wan.set_isolated(1, false);
    probed(&wan, cut_in_between);
    let while_cut = wan.network(from, from + Duration::from_millis(600));
    assert_eq!(while_cut.late.probes, 0, "{while_cut:?}");
}
