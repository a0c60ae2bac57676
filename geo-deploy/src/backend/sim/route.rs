//! Which replica the clients of a site ask: their own, or while that one does not answer,
//! the next nearest. They return when it does.

use crate::topology::Topology;

/// What the clients of one site know of the replicas.
#[derive(Debug)]
pub(super) struct Route {
    /// All replicas, the nearest first.
    order: Vec<usize>,
    /// By replica: whether it is not asked, because it did not answer.
    avoided: Vec<bool>,
}

impl Route {
    pub(super) fn new(topology: &Topology, site: usize) -> Route {
        let mut order = vec![site];
        order.extend(topology.nearest_to(site));
        Route {
            avoided: vec![false; order.len()],
            order,
        }
    }

    /// The nearest replica that answers and is none of `others`.
    pub(super) fn nearest(&self, others: &[usize]) -> Option<usize> {
        let mut order = self.order.iter().copied();
        order.find(|node| !self.avoided[*node] && !others.contains(node))
    }

    /// Whether a replica is not asked.
    pub(super) fn avoids(&self, node: usize) -> bool {
        self.avoided[node]
    }

    /// A replica is not asked from now on. Returns whether it was until now.
    pub(super) fn avoid(&mut self, node: usize) -> bool {
        !std::mem::replace(&mut self.avoided[node], true)
    }

    /// A replica answered a probe: it is asked again.
    pub(super) fn answered(&mut self, node: usize) {
        self.avoided[node] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_go_to_the_next_nearest_and_return() {
        let mut route = Route::new(&Topology::paper(), 0);
        assert_eq!(route.nearest(&[]), Some(0));
        assert_eq!(route.nearest(&[0]), Some(1), "CA is the nearest to JP");
        assert!(route.avoid(0) && route.avoids(0));
        assert!(!route.avoid(0), "that is no news");
        assert_eq!(route.nearest(&[]), Some(1));
        route.answered(0);
        assert_eq!(route.nearest(&[]), Some(0));
        (0..5).for_each(|node| assert!(route.avoid(node)));
        assert_eq!(route.nearest(&[]), None);
    }
}
