//! Emulates a wide-area network on one machine, without root and without kernel support.
//!
//! Every directed link between two sites has a relay: a TCP port on 127.0.0.1 that forwards bytes
//! to a replica, in order, after the link's delay. Replicas do not know that relays exist: instead
//! of the address of a peer, each replica is configured with the address of the relay to this peer
//! ([`Wan::via`]). Any program that uses TCP can be run behind the relays.
//!
//! A link can have jitter, a bandwidth and losses (a lost packet arrives later, as with TCP), and
//! can be cut in one direction. All of these settings can change while the network runs. Probes
//! measure how long messages really take: see [`Wan::probe`].
//!
//! All links share one thread with one timer. So the processors remain free for the replicas, and
//! delays are exact to some tens of microseconds. Setting up a connection takes a round trip. If
//! the connection's link is cut, the setup waits until the link is restored. When the sender closes
//! its half of a connection, the target observes this after the delay. When the target closes the
//! connection or cannot be reached, both halves are closed. Bytes in flight when the network is
//! shut down are lost.

pub(crate) mod alarm;
mod link;
mod network;
mod probe;
mod relay;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::topology::Topology;

use network::PairSettings;
use probe::{ProbePath, Probes};

pub use link::{Link, LinkSettings};
pub use network::{Lateness, NetworkReport, NetworkVerdict, PairReport};

/// A running emulated network. All its connections are closed when the value is dropped.
#[derive(Debug)]
pub struct Wan {
    names: Vec<String>,
    /// Links between sites. The first index is the sending site, and the second is the receiving
    /// site; `None` if both are the same site.
    links: Vec<Vec<Option<Arc<Link>>>>,
    addresses: Vec<Vec<Option<SocketAddr>>>,
    /// Paths of the probes, one for each unordered pair of sites.
    paths: Vec<ProbePath>,
    /// Delays and jitters of the links at the start of the network.
    configured: Vec<PairSettings>,
    /// Listener at which probes are answered.
    echo: TcpListener,
    probes: Arc<Probes>,
    prober: Mutex<Option<BackgroundThread>>,
    relays: Option<BackgroundThread>,
}

/// A thread that ends when the sender `shutdown` is dropped.
#[derive(Debug)]
struct BackgroundThread {
    shutdown: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl BackgroundThread {
    fn end(self) {
        drop(self.shutdown);
        if self.thread.join().is_err() {
            tracing::error!("the emulated network panicked");
        }
    }
}

/// Plan of a relay: its listener, the address to which it connects, and the links that delay the
/// bytes of each direction.
struct RelayPlan {
    listener: TcpListener,
    target: SocketAddr,
    forth: Arc<Link>,
    back: Arc<Link>,
}

/// Table with one entry for each pair of sites. The first index is the sending site, and the second
/// is the receiving site; `None` if both are the same site.
type ByPair<T> = Vec<Vec<Option<T>>>;

/// Plans a relay to `target` over two links. Returns the plan and the relay's address.
fn relay_to(
    target: SocketAddr,
    forth: &Arc<Link>,
    back: &Arc<Link>,
) -> io::Result<(RelayPlan, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let plan = RelayPlan {
        listener,
        target,
        forth: forth.clone(),
        back: back.clone(),
    };
    Ok((plan, address))
}

/// Plans a relay for every link. Returns the plans and the relays' addresses.
fn listen(
    links: &ByPair<Arc<Link>>,
    targets: &[SocketAddr],
) -> io::Result<(Vec<RelayPlan>, ByPair<SocketAddr>)> {
    let n = links.len();
    let mut addresses = vec![vec![None; n]; n];
    let mut plans = Vec::new();
    for (from, row) in links.iter().enumerate() {
        for (to, forth) in row.iter().enumerate() {
            let (Some(forth), Some(back)) = (forth, &links[to][from]) else {
                continue;
            };
            let (plan, address) = relay_to(targets[to], forth, back)?;
            addresses[from][to] = Some(address);
            plans.push(plan);
        }
    }
    Ok((plans, addresses))
}

/// Plans a relay to the echo server for every pair of sites, over the links of the pair. Returns
/// the plans and the paths of the probes.
fn listen_for_probes(
    links: &ByPair<Arc<Link>>,
    echo: SocketAddr,
) -> io::Result<(Vec<RelayPlan>, Vec<ProbePath>)> {
    let mut both = (Vec::new(), Vec::new());
    for (a, row) in links.iter().enumerate() {
        for (b, forth) in row.iter().enumerate().skip(a + 1) {
            let (Some(forth), Some(back)) = (forth, &links[b][a]) else {
                continue;
            };
            let (plan, via) = relay_to(echo, forth, back)?;
            both.0.push(plan);
            both.1.push(ProbePath {
                pair: (a, b),
                via,
                forth: forth.clone(),
                back: back.clone(),
            });
        }
    }
    Ok(both)
}

impl Wan {
    /// Starts relays for every ordered pair of sites. The delay of each direction is half of the
    /// pair's round trip. `targets` are the addresses at which the replicas of the sites accept
    /// connections from peers, in the topology's order. A relay connects to its target each time a
    /// peer connects to the relay.
    ///
    /// # Errors
    /// If no port can be bound, or if the number of targets differs from the number of sites.
    pub fn start(topology: &Topology, targets: &[SocketAddr]) -> io::Result<Wan> {
        Wan::start_with(topology, targets, LinkSettings::of_round_trip_ms)
    }

    /// Starts the network as [`Wan::start`] does, with link settings that `settings` computes from
    /// each round trip in ms.
    ///
    /// # Errors
    /// As [`Wan::start`].
    pub fn start_with(
        topology: &Topology,
        targets: &[SocketAddr],
        settings: impl Fn(f64) -> LinkSettings,
    ) -> io::Result<Wan> {
        Wan::start_beside(topology, targets, settings, std::future::ready(()))
    }

    /// Starts the network as [`Wan::start_with`] does. The thread of the relays also runs the task
    /// `beside`.
    fn start_beside(
        topology: &Topology,
        targets: &[SocketAddr],
        settings: impl Fn(f64) -> LinkSettings,
        beside: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Wan> {
        let n = topology.len();
        if targets.len() != n {
            let message = format!(
                "{} targets for {n} sites: one each is needed",
                targets.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let link = |from: usize, to: usize| {
            let settings = settings(topology.rtt_ms(from, to));
            (from != to).then(|| Arc::new(Link::new(settings, (from * n + to) as u64)))
        };
        let links: Vec<Vec<_>> = (0..n)
            .map(|from| (0..n).map(|to| link(from, to)).collect())
            .collect();
        let (mut plans, addresses) = listen(&links, targets)?;
        let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        echo.set_nonblocking(true)?;
        let (to_echo, paths) = listen_for_probes(&links, echo.local_addr()?)?;
        plans.extend(to_echo);
        let (shutdown, stopped) = oneshot::channel();
        let thread = relay::spawn(plans, stopped, beside)?;
        Ok(Wan {
            names: topology.names().into_iter().map(String::from).collect(),
            links,
            addresses,
            configured: paths.iter().map(pair_settings).collect(),
            paths,
            echo,
            probes: Arc::default(),
            prober: Mutex::default(),
            relays: Some(BackgroundThread { shutdown, thread }),
        })
    }

    /// Returns the address to which the replica at `from` must connect to reach the replica at
    /// `to`. Returns `None` if both are the same site, or if one of the sites does not exist.
    pub fn via(&self, from: usize, to: usize) -> Option<SocketAddr> {
        *self.addresses.get(from)?.get(to)?
    }

    /// Returns the link from one site to another; `None` in the same cases as [`Wan::via`].
    pub fn link(&self, from: usize, to: usize) -> Option<&Link> {
        self.links.get(from)?.get(to)?.as_deref()
    }

    /// Cuts or restores the link in one direction. Bytes that are sent while the link is cut are
    /// not lost, as with TCP. These bytes arrive after the link is restored and the link's delay
    /// has passed.
    pub fn set_cut(&self, from: usize, to: usize, cut: bool) {
        if let Some(link) = self.link(from, to) {
            link.change(|settings| settings.cut = cut);
        }
    }

    /// Cuts or restores all links of a site, in both directions.
    pub fn set_isolated(&self, site: usize, cut: bool) {
        for other in 0..self.names.len() {
            self.set_cut(site, other, cut);
            self.set_cut(other, site, cut);
        }
    }

    /// Starts to send probes between all pairs of sites, several times a second. A further call has
    /// no effect, because the probes are already being sent.
    ///
    /// # Errors
    /// If a thread cannot be started, or a socket cannot be opened.
    pub fn probe(&self) -> io::Result<()> {
        let mut prober = self.prober.lock().unwrap_or_else(PoisonError::into_inner);
        if prober.is_some() {
            return Ok(());
        }
        let (shutdown, stopped) = oneshot::channel();
        let (paths, probes) = (self.paths.clone(), self.probes.clone());
        let thread = probe::spawn(paths, self.echo.try_clone()?, probes, stopped)?;
        *prober = Some(BackgroundThread { shutdown, thread });
        Ok(())
    }

    /// Returns a report about the network, based on the probes that were sent between the times
    /// `from` and `until`. Does not use probes that a fault affected.
    pub fn network(&self, from: Instant, until: Instant) -> NetworkReport {
        let probes = self.probes.sent(&self.paths, from, until);
        NetworkReport::of(&self.configured, &probes)
    }
}

/// Returns the current link settings for a pair of sites.
fn pair_settings(path: &ProbePath) -> PairSettings {
    let (forth, back) = (path.forth.settings(), path.back.settings());
    PairSettings {
        pair: path.pair,
        delay: forth.delay + back.delay,
        jitter: (forth.jitter, back.jitter),
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        let mut prober = self.prober.lock().unwrap_or_else(PoisonError::into_inner);
        let running = [prober.take(), self.relays.take()];
        drop(prober);
        running
            .into_iter()
            .flatten()
            .for_each(BackgroundThread::end);
    }
}

#[cfg(test)]
mod tests;
