//! The registry of metrics. It contains every number in a status, from all parts of a node.
//!
//! To add a metric, add the metric's name to the list that its part of the node returns here, and
//! add a row to the table in `docs/operating.md`. A test compares the two. If a part of the node is
//! new, add its list to [`Driver::metrics`]. Metrics of the replica itself are declared in
//! `leasehold_replica::metrics`, and come first in a status.

use crate::driver::Driver;

impl Driver {
    /// Returns the name and the value of each metric of the node, in the order in which a status
    /// shows the metrics. Metrics of the replica itself are not included.
    pub(super) fn metrics(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let process = [
            ("unsendable_messages", self.peers.unsendable()),
            ("cpu_us", leasehold_clock::processor_us()),
        ];
        process
            .into_iter()
            .chain(self.clients.counters())
            .chain(self.clients.limits())
            .chain(self.peers.handshakes().counters())
            .chain(self.peers.counters())
            .chain(self.step_watch.counters())
            .chain(self.clients.access_counters())
    }
}
