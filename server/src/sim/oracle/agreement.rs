//! One value per slot, and one state per prefix (oracle 9; Paxos, §2.1): what one
//! replica commits or executes in a slot, every other does, and whoever has
//! executed as far is in the same state.

use leases::Slot;

use super::progress::Stage;
use super::{Chosen, Verdict, ensure, id, same};
use crate::replica::Replica;
use crate::replica::message::{LogId, Value};

pub(super) const NAME: &str = "agreement";

/// A state is compared each so many slots: a digest looks at all of it.
const DIGEST_EVERY: u64 = 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Agreement {
    /// By slot / [`DIGEST_EVERY`]: the digest of whoever was there first.
    digests: Vec<Option<u64>>,
    /// Slots and states compared.
    pub checks: u64,
}

impl Agreement {
    /// `node` has committed or executed `value`.
    pub(super) fn learns(
        &mut self,
        chosen: &Chosen,
        node: usize,
        stage: Stage,
        log: LogId,
        slot: Slot,
        value: &Value,
    ) -> Verdict {
        self.checks += 1;
        let known = chosen.value(log, slot);
        ensure!(
            NAME,
            known.is_some_and(|known| same(known, value)),
            "{:?} {} another value in {log:?} {slot:?}: {value:?}, not {known:?}",
            id(node),
            stage.name()
        );
        Ok(())
    }

    /// `replica` has taken a step and may be in a state that is to be compared.
    pub(super) fn stepped(&mut self, node: usize, replica: &Replica) -> Verdict {
        let executed = replica.executed().0;
        if executed == 0 || !executed.is_multiple_of(DIGEST_EVERY) {
            return Ok(());
        }
        let index = (executed / DIGEST_EVERY) as usize;
        if self.digests.len() <= index {
            self.digests.resize(index + 1, None);
        }
        let digest = replica.digest();
        self.checks += 1;
        let known = *self.digests[index].get_or_insert(digest);
        ensure!(
            NAME,
            known == digest,
            "{:?} is in another state after slot {executed}: {digest:#x}, not {known:#x}",
            id(node)
        );
        Ok(())
    }
}
