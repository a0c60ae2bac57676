//! Begins and ends on a key, in order of time: the steps of the pass.

use super::super::Flaw;
use super::super::blocks::{self, Block, Blocks};
use super::super::explain::operation;
use super::super::prepare::{Held, Key, Kind, Moment, Op};

/// Begins and ends, in their order at one moment: begins come before ends, so that operations which
/// touch overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    ForwardEnds(u32),
    BlockBegins(u32),
    DeletionBegins(u32),
    AbsenceEnds(u32),
    DeletionEnds(u32),
    BlockEnds(u32),
    ForwardBegins(u32),
    FailureEnds(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Tick {
    pub at: Moment,
    pub what: What,
}

/// Everything that happens to a key, by its time.
///
/// # Errors
/// An operation that would have to take effect inside a forward block.
pub(super) fn ticks(key: &Key, blocks: &Blocks) -> Result<Vec<Tick>, Flaw> {
    let mut ticks = Vec::with_capacity(key.ops.len() + 2 * blocks.all.len());
    let mut tick = |at, what| ticks.push(Tick { at, what });
    for (index, block) in (0..).zip(&blocks.all) {
        if block.is_forward() {
            tick(block.first_end, What::ForwardBegins(index));
            tick(block.last_begin, What::ForwardEnds(index));
        } else {
            let fits = blocks.fit(block.last_begin, block.first_end);
            let (begin, end) = fits.expect("checked with the blocks");
            tick(begin, What::BlockBegins(index));
            tick(end, What::BlockEnds(index));
        }
    }
    for (index, op) in (0..).zip(&key.ops) {
        let is_deletion = op.kind == Kind::Delete;
        match op.kind {
            Kind::Fail { .. } => tick(op.end, What::FailureEnds(index)),
            Kind::Delete | Kind::Read(Held::ABSENT) => {
                let fits = blocks.fit(op.begin, op.end);
                let (begin, end) = fits.map_err(|outer| meanwhile(key, outer, op))?;
                if is_deletion {
                    tick(begin, What::DeletionBegins(index));
                    tick(end, What::DeletionEnds(index));
                } else {
                    tick(end, What::AbsenceEnds(index));
                }
            }
            Kind::Read(_) | Kind::Write(_) | Kind::Swap { .. } => {}
        }
    }
    ticks.sort_unstable();
    Ok(ticks)
}

fn meanwhile(key: &Key, outer: &Block, op: &Op) -> Flaw {
    let explanation = format!(
        "the key must have held {}, but {}",
        blocks::span(key, outer),
        operation(op.event),
    );
    Flaw::violation(explanation, blocks::events_of(key, outer).chain([op.event]))
}
