//! Runs an echo server at each of the paper's sites behind the emulated network, and sends pings
//! from every site to every other. Prints three round trips for each pair of sites: the configured
//! one, the one that probes measured, and the one that a client measured.
//!
//! `cargo run --release -p leasehold-geo-deploy --example wan -- [pings]`

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use leasehold_geo_deploy::topology::Topology;
use leasehold_geo_deploy::wan::Wan;
use leasehold_ycsb::say;

fn main() -> anyhow::Result<()> {
    let pings = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 50,
    };
    let topology = Topology::paper();
    let names = topology.names();
    let targets = names.iter().map(|_| echo_server());
    let targets: Vec<SocketAddr> = targets.collect::<Result<_, _>>()?;
    let wan = Wan::start(&topology, &targets)?;
    let began = Instant::now();
    wan.probe()?;
    let pairs = (0..names.len()).flat_map(|a| (a + 1..names.len()).map(move |b| (a, b)));
    let pairs: Vec<(usize, usize)> = pairs.collect();
    let seen = std::thread::scope(|scope| {
        let pingers: Vec<_> = pairs
            .iter()
            .map(|&(a, b)| (a, b, wan.via(a, b)))
            .map(|(a, b, via)| (a, b, scope.spawn(move || median_ms(via, pings))))
            .collect();
        let joined = pingers
            .into_iter()
            .map(|(a, b, pinger)| (a, b, pinger.join()));
        joined.collect::<Vec<_>>()
    });
    let network = wan.network(began, Instant::now());
    say!("pair      asked ms  probes ms  seen by a client ms");
    for (a, b, median) in seen {
        let median = median.map_err(|_| anyhow::anyhow!("a pinger panicked"))??;
        let probed = network.matrix_ms(names.len())[a][b];
        let pair = format!("{}-{}", names[a], names[b]);
        let asked = topology.rtt_ms(a, b);
        say!("{pair:<8} {asked:>9.3} {probed:>10.3} {median:>20.3}");
    }
    say!("{:?}: {:?}", network.verdict, network.late);
    Ok(())
}

fn echo_server() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    Ok(address)
}

fn median_ms(via: Option<SocketAddr>, pings: usize) -> anyhow::Result<f64> {
    let via = via.ok_or_else(|| anyhow::anyhow!("no such link"))?;
    let mut stream = TcpStream::connect(via)?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for _ in 0..pings {
        let start = Instant::now();
        stream.write_all(b"ping")?;
        stream.read_exact(&mut [0; 4])?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    times
        .get(times.len() / 2)
        .copied()
        .ok_or_else(|| anyhow::anyhow!("no pings"))
}
