//! A wide-area network on one machine, without root and without kernel support.
//!
//! Every directed link between two sites has a relay: a TCP port on 127.0.0.1
//! that passes bytes on to a replica, in order, after the link's delay. Replicas
//! know nothing of it; they are given the relay's address instead of the peer's
//! ([`Wan::via`]). Whatever speaks TCP can be put behind it.
//!
//! A link can have jitter, a bandwidth and losses (a lost packet arrives later, as with
//! TCP), and can be cut in one direction. All of that can change while it runs. Links
//! measure what they deliver: the time from a byte's arrival to its departure, as a
//! histogram.
//!
//! All links share one thread with one timer. That leaves the processors to the
//! replicas, and delays are exact to some tens of microseconds.
//! A connection takes a round trip to be set up, and waits while its link is cut.
//! The end of the sender's bytes is passed on after the delay; the end of the
//! target's closes the connection, as does a target that cannot be reached.
//! Bytes in flight when the network is shut down are lost.

pub(crate) mod alarm;
mod link;
mod relay;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::topology::Topology;

pub use link::{Delivered, Link, LinkSettings};

/// The running network. Dropping it closes every connection.
#[derive(Debug)]
pub struct Wan {
    names: Vec<String>,
    /// By site from and site to; `None` on the diagonal.
    links: Vec<Vec<Option<Arc<Link>>>>,
    addresses: Vec<Vec<Option<SocketAddr>>>,
    shutdown: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A pair of sites whose measured round trip is not the one asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation {
    /// One site's name.
    pub a: String,
    /// The other's.
    pub b: String,
    /// The round trip asked for, in ms.
    pub asked_ms: f64,
    /// The median measured, in ms.
    pub measured_ms: f64,
}

/// What a relay needs: where to listen, where to dial, and both directions.
struct RelayPlan {
    listener: TcpListener,
    target: SocketAddr,
    forth: Arc<Link>,
    back: Arc<Link>,
}

/// By the site it leads from and the one it leads to; `None` within a site.
type ByPair<T> = Vec<Vec<Option<T>>>;

/// A listener for every link, and where it listens.
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
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            addresses[from][to] = Some(listener.local_addr()?);
            plans.push(RelayPlan {
                listener,
                target: targets[to],
                forth: forth.clone(),
                back: back.clone(),
            });
        }
    }
    Ok((plans, addresses))
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
        let (plans, addresses) = listen(&links, targets)?;
        let (shutdown, stopped) = oneshot::channel();
        let thread = relay::spawn(plans, stopped)?;
        Ok(Wan {
            names: topology.names().into_iter().map(String::from).collect(),
            links,
            addresses,
            shutdown: Some(shutdown),
            thread: Some(thread),
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

    /// The median round trip of a pair as delivered, in ms; `None` until both
    /// directions have delivered something.
    pub fn measured_rtt_ms(&self, a: usize, b: usize) -> Option<f64> {
        let forth = self.link(a, b)?.delivered();
        let back = self.link(b, a)?.delivered();
        (forth.count > 0 && back.count > 0).then_some(forth.p50_ms + back.p50_ms)
    }

    /// All median round trips in ms; 0 where nothing was delivered, and on the diagonal.
    pub fn measured_matrix_ms(&self) -> Vec<Vec<f64>> {
        let n = self.names.len();
        let cell = |a, b| self.measured_rtt_ms(a, b).unwrap_or(0.0);
        (0..n)
            .map(|a| (0..n).map(|b| cell(a, b)).collect())
            .collect()
    }

    /// Pairs whose median round trip is off by more than 1 ms and more than 1%.
    pub fn deviations(&self) -> Vec<Deviation> {
        let n = self.names.len();
        let pairs = (0..n).flat_map(|a| (a + 1..n).map(move |b| (a, b)));
        pairs
            .filter_map(|(a, b)| {
                let asked = self.link(a, b)?.settings().delay + self.link(b, a)?.settings().delay;
                let asked_ms = asked.as_secs_f64() * 1e3;
                let measured_ms = self.measured_rtt_ms(a, b)?;
                let off = (measured_ms - asked_ms).abs() > f64::max(1.0, asked_ms / 100.0);
                off.then(|| Deviation {
                    a: self.names[a].clone(),
                    b: self.names[b].clone(),
                    asked_ms,
                    measured_ms,
                })
            })
            .collect()
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        drop(self.shutdown.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the emulated network ended in a panic");
        }
    }
}

#[cfg(test)]
mod tests;
