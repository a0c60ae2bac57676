//! A wide-area network on one machine, without root and without kernel support.
//!
//! Every directed link between two sites has a relay: a TCP port on 127.0.0.1
//! that passes bytes on to a replica, in order, after the link's delay. Replicas
//! know nothing of it; they are given the relay's address instead of the peer's
//! ([`Wan::via`]). Whatever speaks TCP can be put behind it.
//!
//! A link can have jitter, a bandwidth and losses (a lost packet arrives later, as with
//! TCP), and can be cut in one direction. All of that can change while it runs. Probes measure
//! what messages really take: see [`Wan::probe`].
//!
//! All links share one thread with one timer. That leaves the processors to the
//! replicas, and delays are exact to some tens of microseconds.
//! A connection takes a round trip to be set up, and waits while its link is cut.
//! The end of the sender's bytes is passed on after the delay; the end of the
//! target's closes the connection, as does a target that cannot be reached.
//! Bytes in flight when the network is shut down are lost.

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

/// The running network. Dropping it closes every connection.
#[derive(Debug)]
pub struct Wan {
    names: Vec<String>,
    /// By site from and site to; `None` on the diagonal.
    links: Vec<Vec<Option<Arc<Link>>>>,
    addresses: Vec<Vec<Option<SocketAddr>>>,
    /// Each pair of sites once.
    paths: Vec<ProbePath>,
    /// The delays and jitters that the links were started with.
    configured: Vec<PairSettings>,
    /// Where probes are answered.
    echo: TcpListener,
    probes: Arc<Probes>,
    prober: Mutex<Option<BackgroundThread>>,
    relays: Option<BackgroundThread>,
}

/// A thread that ends when its sender is dropped.
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

/// Plan of a relay: where to listen, where to dial, and both directions.
struct RelayPlan {
    listener: TcpListener,
    target: SocketAddr,
    forth: Arc<Link>,
    back: Arc<Link>,
}

/// By the site it leads from and the one it leads to; `None` within a site.
type ByPair<T> = Vec<Vec<Option<T>>>;

/// A relay over two links, and where it listens.
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

/// A relay for every link, and where it listens.
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

/// A relay to the echo for every pair of sites, over the pair's own links.
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
    /// Relays for every ordered pair of sites, with half of each round trip as
    /// the delay of either direction. `targets` are the addresses on which the
    /// sites' replicas accept their peers, in the topology's order; they are
    /// dialled only when a connection comes in.
    ///
    /// # Errors
    /// If a port cannot be had, or the number of targets is not that of the sites.
    pub fn start(topology: &Topology, targets: &[SocketAddr]) -> io::Result<Wan> {
        Wan::start_with(topology, targets, LinkSettings::of_round_trip_ms)
    }

    /// The same with other settings, made from each round trip in ms.
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

    /// The same, with something else to do for the relays' thread.
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

    /// Where the replica at `from` must dial to reach the one at `to`; `None`
    /// for a site and itself, or one that there is not.
    pub fn via(&self, from: usize, to: usize) -> Option<SocketAddr> {
        *self.addresses.get(from)?.get(to)?
    }

    /// The link from one site to another; `None` as for [`Wan::via`].
    pub fn link(&self, from: usize, to: usize) -> Option<&Link> {
        self.links.get(from)?.get(to)?.as_deref()
    }

    /// Cuts or mends one direction. Bytes sent into a cut are held, as TCP holds
    /// them, and arrive one delay after the link is mended.
    pub fn set_cut(&self, from: usize, to: usize, cut: bool) {
        if let Some(link) = self.link(from, to) {
            link.change(|settings| settings.cut = cut);
        }
    }

    /// Cuts or mends a site from and to all others.
    pub fn set_isolated(&self, site: usize, cut: bool) {
        for other in 0..self.names.len() {
            self.set_cut(site, other, cut);
            self.set_cut(other, site, cut);
        }
    }

    /// Sends probes between all sites from now on, some times a second. It does so already
    /// after the first call.
    ///
    /// # Errors
    /// If a thread or a socket cannot be had.
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

    /// The network as probes found it that were sent from the one time to the other. Those
    /// that met a fault say nothing of the machine, and are left out.
    pub fn network(&self, from: Instant, until: Instant) -> NetworkReport {
        let probes = self.probes.sent(&self.paths, from, until);
        NetworkReport::of(&self.configured, &probes)
    }
}

/// Returns the settings of a pair of links, as they are now.
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
