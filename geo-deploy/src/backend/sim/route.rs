//! Choice of the replica to which the clients of a site send requests: the replica of their own
//! site or, while that replica does not answer, the next nearest. When the replica of their own
//! site answers again, the clients return to it. If that replica fails repeatedly, the clients wait
//! longer each time before they return.

use std::time::Duration;

use leasehold_backoff::FlapBackoff;

use crate::backend::outage::ATTEMPT_S;
use crate::topology::Topology;

/// State of one replica, as the clients of a site know it.
#[derive(Debug)]
struct ReplicaRoute {
    /// Whether clients avoid the replica because it did not answer.
    avoided: bool,
    /// Time at which the replica last answered a probe, on the run's clock.
    answered: Duration,
    backoff: FlapBackoff,
}

/// State of all replicas as the clients of one site know it.
#[derive(Debug)]
pub(super) struct Route {
    /// All replicas, the nearest first.
    order: Vec<usize>,
    /// States of the replicas, by index.
    replicas: Vec<ReplicaRoute>,
}

impl Route {
    pub(super) fn new(topology: &Topology, site: usize) -> Route {
        let mut order = vec![site];
        order.extend(topology.nearest_to(site));
        let replica = || ReplicaRoute {
            avoided: false,
            answered: Duration::ZERO,
            backoff: FlapBackoff::new(Duration::ZERO),
        };
        Route {
            replicas: order.iter().map(|_| replica()).collect(),
            order,
        }
    }

    /// Returns the nearest replica that clients do not avoid and that is not in `others`; `None` if
    /// there is no such replica.
    pub(super) fn nearest(&self, others: &[usize]) -> Option<usize> {
        let mut order = self.order.iter().copied();
        order.find(|node| !self.replicas[*node].avoided && !others.contains(node))
    }

    /// Whether clients avoid a replica. They send no requests to such a replica.
    pub(super) fn avoids(&self, node: usize) -> bool {
        self.replicas[node].avoided
    }

    /// Notes that clients avoid a replica from `now_ns` on. Returns false if the replica was
    /// already avoided.
    pub(super) fn avoid(&mut self, node: usize, now_ns: u64) -> bool {
        let replica = &mut self.replicas[node];
        let is_new = !std::mem::replace(&mut replica.avoided, true);
        if is_new {
            replica.backoff.failed(Duration::from_nanos(now_ns));
        }
        is_new
    }

    /// Notes that a replica answered a probe. Clients use this replica again if it has answered
    /// probes for long enough, or if clients avoid all replicas.
    pub(super) fn answered(&mut self, node: usize, now_ns: u64) {
        let now = Duration::from_nanos(now_ns);
        let is_last = self.replicas.iter().all(|replica| replica.avoided);
        let replica = &mut self.replicas[node];
        let last = std::mem::replace(&mut replica.answered, now);
        if now.saturating_sub(last).as_secs_f64() >= ATTEMPT_S {
            replica.backoff.interrupted(last, now);
        }
        if replica.avoided && (is_last || replica.backoff.may_return(now)) {
            replica.avoided = false;
            replica.backoff.chosen(now);
        }
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
        assert!(route.avoid(0, 1) && route.avoids(0));
        assert!(!route.avoid(0, 2), "that is no news");
        assert_eq!(route.nearest(&[]), Some(1));
        route.answered(0, 3);
        assert_eq!(route.nearest(&[]), Some(0));
        (0..5).for_each(|node| assert!(route.avoid(node, 4)));
        assert_eq!(route.nearest(&[]), None);
        route.answered(0, 5);
        assert_eq!(route.nearest(&[]), Some(0), "nobody else is there");
    }

    /// Test with a replica that is paused for 1.5 s in every 3.5 s. In the rest of the time, the
    /// replica answers a probe every 250 ms.
    #[test]
    fn clients_return_once_to_a_replica_that_stands_still_again_and_again() {
        let mut route = Route::new(&Topology::paper(), 0);
        let mut returns = 0;
        let quarter_ns = 250_000_000;
        for quarter in 0..30 * 14_u64 {
            let now_ns = quarter * quarter_ns;
            match quarter % 14 {
                0..6 => {
                    route.avoid(0, now_ns);
                }
                _ if route.avoids(0) => {
                    route.answered(0, now_ns);
                    returns += u64::from(!route.avoids(0));
                }
                _ => {}
            }
        }
        assert_eq!(returns, 1);
        let healthy = (30 * 14_u64..).find(|quarter| {
            route.answered(0, quarter * quarter_ns);
            !route.avoids(0)
        });
        assert_eq!(
            healthy.map(|quarter| quarter - 29 * 14 - 6),
            Some(40),
            "10 s"
        );
    }
}
