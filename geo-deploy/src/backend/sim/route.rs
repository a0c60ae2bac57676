//! Which replica the clients of a site ask: their own, or while that one does not answer,
//! the next nearest. They return when it does.

use crate::topology::Topology;

/// Why a replica is not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// Its process is down: connections to it are refused.
    Refused,
    /// It answered nothing for as long as an attempt may take.
    Silent,
}

/// A replica that was merely silent is not asked again for so long, in ns.
const SILENT_NS: u64 = 5_000_000_000;

/// What the clients of one site know of the replicas.
#[derive(Debug)]
pub(super) struct Route {
    /// All replicas, the nearest first.
    order: Vec<usize>,
    /// By replica: since when, in ns, and why it is not asked.
    avoided: Vec<Option<(u64, Why)>>,
    /// By replica: when it last answered, in ns.
    heard_ns: Vec<u64>,
}

impl Route {
    pub(super) fn new(topology: &Topology, site: usize) -> Route {
        let mut order = vec![site];
        order.extend(topology.nearest_to(site));
        Route {
            avoided: vec![None; order.len()],
            heard_ns: vec![0; order.len()],
            order,
        }
    }

    /// The nearest replica that is not avoided.
    pub(super) fn nearest(&self) -> Option<usize> {
        let mut order = self.order.iter().copied();
        order.find(|node| self.avoided[*node].is_none())
    }

    /// A replica answered something.
    pub(super) fn heard(&mut self, node: usize, now_ns: u64) {
        self.heard_ns[node] = now_ns;
    }

    /// Whether a replica answered anything since `since_ns`.
    pub(super) fn answers(&self, node: usize, since_ns: u64) -> bool {
        self.heard_ns[node] > since_ns
    }

    /// A replica is not asked from now on. Returns whether it was until now.
    pub(super) fn avoid(&mut self, node: usize, why: Why, now_ns: u64) -> bool {
        let news = self.avoided[node].is_none();
        self.avoided[node].get_or_insert((now_ns, why));
        news
    }

    /// A connection to a replica was tried: `up`, if its process answered. Returns whether
    /// it is asked again.
    pub(super) fn tried(&mut self, node: usize, up: bool, now_ns: u64) -> bool {
        let waited = |(since, why): (u64, Why)| why == Why::Refused || now_ns >= since + SILENT_NS;
        if up && self.avoided[node].is_some_and(waited) {
            self.avoided[node] = None;
        }
        self.avoided[node].is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_go_to_the_next_nearest_and_return() {
        let mut route = Route::new(&Topology::paper(), 0);
        assert_eq!(route.nearest(), Some(0));
        assert!(route.avoid(0, Why::Refused, 10));
        assert!(!route.avoid(0, Why::Refused, 11), "that is no news");
        assert_eq!(route.nearest(), Some(1), "CA is the nearest to JP");
        assert!(!route.tried(0, false, 12));
        assert!(route.tried(0, true, 13));
        assert_eq!(route.nearest(), Some(0));
        route.avoid(0, Why::Silent, 20);
        assert!(!route.tried(0, true, 21), "it was up all the time");
        assert!(route.tried(0, true, 20 + SILENT_NS));
        for node in 0..5 {
            route.avoid(node, Why::Refused, 30);
        }
        assert_eq!(route.nearest(), None);
    }
}
