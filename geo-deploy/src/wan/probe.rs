//! Probes: messages that measure the emulated network. A probe is sent over the links of a pair of
//! sites, through the relays' thread, to an echo server and back.
//!
//! A probe is delayed like a message between two replicas: in sockets, by a thread that waits for a
//! processor, or by a timer that fires late. So probes can show that the machine is too busy to
//! emulate the network.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use super::link::Link;

/// Time between two probes of a pair of sites. With this interval, half a minute contains over a
/// hundred probes, but only a few wake-ups occur each second.
const PERIOD: Duration = Duration::from_millis(200);

/// Path of a probe: a pair of sites, the relay to the echo server, and the links of both
/// directions.
#[derive(Clone, Debug)]
pub(super) struct ProbePath {
    pub pair: (usize, usize),
    pub via: SocketAddr,
    pub forth: Arc<Link>,
    pub back: Arc<Link>,
}

/// One probe: its send time and, after it has come back, its round-trip time.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub pair: (usize, usize),
    pub sent: Instant,
    /// Sum of the delays of both directions, without jitter, when the probe was sent.
    pub expected: Duration,
    /// Number of changes to the settings of both links before the probe was sent.
    changes: u64,
    /// Whether both directions were free of cuts and losses when the probe was sent.
    sound: bool,
    /// Round-trip time; `None` while the probe has not come back.
    pub took: Option<Duration>,
}

#[cfg(test)]
impl Probe {
    /// Creates a probe that took `took_ms` ms.
    pub fn completed(pair: (usize, usize), expected: Duration, took_ms: f64) -> Probe {
        Probe {
            pair,
            sent: Instant::now(),
            expected,
            changes: 0,
            sound: true,
            took: Some(Duration::from_secs_f64(took_ms / 1e3)),
        }
    }
}

/// List of all probes so far.
#[derive(Debug, Default)]
pub(super) struct Probes(Mutex<Vec<Probe>>);

impl Probes {
    /// Returns the probes that were sent between `from` and `until`. Does not return probes over
    /// links with cuts or losses, or probes during which the settings of a link changed. For an
    /// overdue probe, the round-trip time is the time since the probe was sent.
    pub fn sent(&self, paths: &[ProbePath], from: Instant, until: Instant) -> Vec<Probe> {
        let changes = |pair: (usize, usize)| {
            let path = paths.iter().find(|path| path.pair == pair);
            path.map_or(0, ProbePath::changes)
        };
        let all = self.lock();
        let chosen = all
            .iter()
            .filter(|probe| probe.sound && (from..until).contains(&probe.sent));
        let now = Instant::now();
        let as_of_now = chosen.filter_map(|probe| {
            let mut probe = probe.clone();
            if probe.took.is_none() {
                let age = now.duration_since(probe.sent);
                let undisturbed = probe.changes == changes(probe.pair);
                probe.took = (undisturbed && age > probe.expected).then_some(age);
            }
            probe.took.is_some().then_some(probe)
        });
        as_of_now.collect()
    }

    fn send(&self, path: &ProbePath) -> u64 {
        let (forth, back) = (path.forth.settings(), path.back.settings());
        let mut all = self.lock();
        all.push(Probe {
            pair: path.pair,
            expected: forth.delay + back.delay,
            changes: path.changes(),
            sound: !forth.cut && !back.cut && forth.loss + back.loss == 0.0,
            took: None,
            sent: Instant::now(),
        });
        all.len() as u64 - 1
    }

    fn received(&self, number: u64, path: &ProbePath, now: Instant) {
        let mut all = self.lock();
        let Some(probe) = all.get_mut(number as usize) else {
            return;
        };
        probe.took = Some(now.duration_since(probe.sent));
        // If the settings changed, the probe may have met a fault, and tells nothing about the
        // machine's load.
        probe.sound &= probe.changes == path.changes();
    }

    /// Locks the list. Another thread may have panicked while it held the lock. This does no harm,
    /// because the list is consistent after every statement.
    fn lock(&self) -> MutexGuard<'_, Vec<Probe>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProbePath {
    fn changes(&self) -> u64 {
        self.forth.changes() + self.back.changes()
    }
}

/// Starts a thread that sends probes. The thread ends when `stopped` is resolved, or when the
/// sender of `stopped` is dropped.
pub(super) fn spawn(
    paths: Vec<ProbePath>,
    echo: TcpListener,
    probes: Arc<Probes>,
    stopped: oneshot::Receiver<()>,
) -> io::Result<JoinHandle<()>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build()?;
    std::thread::Builder::new()
        .name("wan-probes".to_owned())
        .spawn(move || {
            let all = async {
                spawn_local(answer_all(echo));
                let count = paths.len().max(1) as u32;
                for (path, index) in paths.into_iter().zip(0..) {
                    let first = PERIOD * index / count;
                    spawn_local(probe_forever(path, probes.clone(), first));
                }
                let _ = stopped.await;
            };
            LocalSet::new().block_on(&runtime, all);
        })
}

async fn answer_all(echo: TcpListener) {
    let echo = match tokio::net::TcpListener::from_std(echo) {
        Ok(echo) => echo,
        Err(error) => return tracing::error!(%error, "probes are not answered"),
    };
    loop {
        match echo.accept().await {
            Ok((stream, _)) => drop(spawn_local(answer(stream))),
            Err(_) => tokio::time::sleep(PERIOD).await,
        }
    }
}

async fn answer(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (mut from, mut to) = stream.split();
    let _ = tokio::io::copy(&mut from, &mut to).await;
}

async fn probe_forever(path: ProbePath, probes: Arc<Probes>, first: Duration) {
    tokio::time::sleep(first).await;
    loop {
        if let Err(error) = probe(&path, &probes).await {
            tracing::debug!(%error, "a probe's connection closed");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

async fn probe(path: &ProbePath, probes: &Probes) -> io::Result<()> {
    let mut stream = TcpStream::connect(path.via).await?;
    stream.set_nodelay(true)?;
    // This waits for the relay to set up the connection to the other site, which takes a round
    // trip.
    let mut greeting = [0xff; 8];
    stream.write_all(&greeting).await?;
    stream.read_exact(&mut greeting).await?;
    let (from, to) = stream.into_split();
    tokio::try_join!(send(to, path, probes), receive(from, path, probes)).map(drop)
}

async fn send(mut to: OwnedWriteHalf, path: &ProbePath, probes: &Probes) -> io::Result<()> {
    loop {
        let number = probes.send(path);
        to.write_all(&number.to_be_bytes()).await?;
        tokio::time::sleep(PERIOD).await;
    }
}

async fn receive(mut from: OwnedReadHalf, path: &ProbePath, probes: &Probes) -> io::Result<()> {
    let mut number = [0; 8];
    loop {
        from.read_exact(&mut number).await?;
        probes.received(u64::from_be_bytes(number), path, Instant::now());
    }
}
