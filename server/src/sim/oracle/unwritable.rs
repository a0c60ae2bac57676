//! Who cannot persist holds nothing (§3.7; protocol §2, hazard 36): a replica that
//! was told that its storage takes no writes believes no promise, or every write of
//! what it holds would wait for an acceptance that it cannot give.

use super::{Sight, Verdict, ensure, id};
use crate::replica::Replica;

pub(super) const NAME: &str = "unwritable";

/// See the module.
#[derive(Debug, Default)]
pub struct Unwritable {
    /// Steps of replicas that cannot persist.
    pub checks: u64,
}

impl Unwritable {
    /// `node` has taken a step.
    pub(super) fn stepped(&mut self, sight: &Sight<'_>, node: usize, replica: &Replica) -> Verdict {
        if sight.node(node).is_writable() {
            return Ok(());
        }
        self.checks += 1;
        let now = sight.time(node);
        for grantor in (0..sight.n()).map(id) {
            let believed = replica.promised_by(grantor).find(|(_, until)| now < *until);
            ensure!(
                NAME,
                believed.is_none(),
                "{:?} cannot persist, but believes {grantor:?}: {believed:?}",
                id(node)
            );
        }
        Ok(())
    }
}
