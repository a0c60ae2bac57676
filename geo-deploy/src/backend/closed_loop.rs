//! Clients that wait for an answer before they ask again.

use client::history::ValueId;
use ycsb::sample::OpKind;
use ycsb::site_stream::SiteStream;

use super::Plan;

/// One client of a closed loop, with the requests that it still has to make.
pub(crate) struct ClosedLoop {
    pub(crate) site: usize,
    pub(crate) process: u32,
    stream: SiteStream,
    warmup: u64,
    total: u64,
    issued: u64,
}

/// A request of a closed loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) kind: OpKind,
    pub(crate) key: u64,
    /// What a write would write.
    pub(crate) value: ValueId,
    pub(crate) measured: bool,
}

impl ClosedLoop {
    /// All clients of a plan, site by site.
    pub(crate) fn all(plan: &Plan<'_>) -> Vec<ClosedLoop> {
        let workload = &plan.experiment.workload;
        let clients = workload.clients as usize;
        let of = |index: usize| ClosedLoop {
            site: index / clients,
            process: index as u32,
            stream: plan.stream(index / clients, index % clients),
            warmup: workload.warmup,
            total: workload.requests,
            issued: 0,
        };
        (0..clients * plan.topology().len()).map(of).collect()
    }

    /// The next request; `None` when all have been made.
    pub(crate) fn next(&mut self) -> Option<Ask> {
        if self.issued == self.total {
            return None;
        }
        let (kind, key) = self.stream.next();
        let value = ValueId(u64::from(self.process + 1) << 32 | self.issued);
        let measured = self.issued >= self.warmup;
        self.issued += 1;
        Some(Ask {
            kind,
            key,
            value,
            measured,
        })
    }
}
