//! Oracles: they know everything, and true time, and judge every step. One
//! safety property a file, with the rule that it guards.

mod agreement;
mod containment;
mod freshness;

use leases::ReplicaId;

pub use agreement::Agreement;
pub use containment::Containment;
pub use freshness::Freshness;

use super::clock::Clock;
use crate::replica::Replica;

/// All oracles. A violation panics with what was seen, for a world that has
/// violated safety has nothing more to tell.
#[derive(Debug)]
pub struct Oracles {
    agreement: Agreement,
    containment: Containment,
    /// Told of every invocation and answer by whoever drives the clients.
    pub freshness: Freshness,
}

impl Oracles {
    /// For `n` replicas.
    pub fn new(n: usize) -> Oracles {
        Oracles {
            agreement: Agreement::new(n),
            containment: Containment::new(n),
            freshness: Freshness::default(),
        }
    }

    /// `node` has just taken a step.
    pub fn watch<'a>(
        &mut self,
        now_ns: u64,
        node: usize,
        replicas: impl Iterator<Item = (Option<&'a Replica>, &'a Clock)>,
    ) {
        let all: smallvec::SmallVec<[_; 8]> = replicas.collect();
        if let Some(replica) = all[node].0 {
            self.agreement.watch(ReplicaId(node as u8), replica);
        }
        self.containment.watch(now_ns, node, &all);
    }

    /// A replica has lost what it had executed but not checkpointed.
    pub fn crashed(&mut self, node: ReplicaId) {
        self.agreement.crashed(node);
    }

    /// Checks that were made, so that a silent oracle is noticed.
    pub fn checks(&self) -> [(&'static str, u64); 3] {
        [
            ("agreement", self.agreement.checks),
            ("containment", self.containment.checks),
            ("freshness", self.freshness.checks),
        ]
    }
}
