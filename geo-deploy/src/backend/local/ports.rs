//! Ports on loopback for the replicas and their clients.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};

/// Range from which ports are chosen. Systems usually do not use ports in this range for outgoing
/// connections. So a port that is free now is usually still free when a replica binds it.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Returns free ports on loopback that are not in `taken`. Usually each search begins at a
/// different port, even for clusters that are started by different processes.
///
/// # Errors
/// Fails if too few ports are free.
pub fn free_ports(count: usize, taken: &[SocketAddr]) -> anyhow::Result<Vec<SocketAddr>> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let span = PORTS.len() as u32;
    let given = GIVEN.fetch_add(count as u32, Ordering::Relaxed);
    let begin = std::process::id().wrapping_mul(61).wrapping_add(given) % span;
    let candidates = (0..span).map(|i| PORTS.start + ((begin + i) % span) as u16);
    let others = candidates.filter(|port| taken.iter().all(|other| other.port() != *port));
    let bound = others.filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    // Ports stay bound until all are chosen, so that none is chosen twice.
    let held: Vec<TcpListener> = bound.take(count).collect();
    if held.len() < count {
        bail!("{count} free ports were needed on 127.0.0.1 in {PORTS:?}: end what uses them");
    }
    held.iter()
        .map(|listener| listener.local_addr().context("a bound port"))
        .collect()
}

/// Returns `count` consecutive ports on loopback, starting at `first`. Fails if one of these ports
/// is not free.
pub(super) fn row_of_ports(count: usize, first: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let bind = |index: usize| {
        let port = u16::try_from(usize::from(first) + index).ok();
        let port = port.with_context(|| {
            format!(
                "client port {first}: there are no {count} ports from there on; choose a lower one"
            )
        })?;
        TcpListener::bind(("127.0.0.1", port)).with_context(|| {
            format!(
                "port {port} on 127.0.0.1 is not free; choose another row of {count} with \
                 --client-port, or end what uses it"
            )
        })
    };
    let held = (0..count)
        .map(bind)
        .collect::<anyhow::Result<Vec<TcpListener>>>()?;
    held.iter()
        .map(|listener| listener.local_addr().context("a bound port"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_once() {
        // All ports of the range are taken, except a few.
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let taken: Vec<SocketAddr> = (PORTS.start + 50..PORTS.end).map(address).collect();
        let free = free_ports(5, &taken).unwrap();
        assert!(
            free.iter().all(|found| found.port() < PORTS.start + 50),
            "{free:?}"
        );
        let none = free_ports(51, &taken).unwrap_err().to_string();
        assert!(none.contains("51 free ports"), "{none}");
    }
}
