//! The steps of the pass: begins and ends on a key, in order of time.

use crate::linearizability::Flaw;
use crate::linearizability::blocks::{self, Block, Blocks};
use crate::linearizability::explain::operation;
use crate::linearizability::prepare::{Op, OpKind, OpTime, PreparedKey, RegisterValue};

/// A begin or an end. At one moment, a begin comes before an end, as in the order of the variants.
/// So if one operation ends at the moment at which another operation begins, the two operations
/// overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SweepStep {
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
pub(super) struct SweepTick {
    pub at: OpTime,
    pub step: SweepStep,
}

/// Returns all steps on a key, in order of time.
///
/// # Errors
/// Returns an error if an operation would have to take effect inside a forward block.
pub(super) fn ticks(key: &PreparedKey, blocks: &Blocks) -> Result<Vec<SweepTick>, Flaw> {
    let mut ticks = Vec::with_capacity(key.ops.len() + 2 * blocks.all.len());
    let mut tick = |at, step| ticks.push(SweepTick { at, step });
    for (index, block) in (0..).zip(&blocks.all) {
        if block.is_forward() {
            tick(block.first_end, SweepStep::ForwardBegins(index));
            tick(block.last_begin, SweepStep::ForwardEnds(index));
        } else {
            let fits = blocks.fit(block.last_begin, block.first_end);
            let (begin, end) =
                fits.expect("every backward block fits, as was checked with the blocks");
            tick(begin, SweepStep::BlockBegins(index));
            tick(end, SweepStep::BlockEnds(index));
        }
    }
    for (index, op) in (0..).zip(&key.ops) {
        let is_deletion = op.kind == OpKind::Delete;
        match op.kind {
            OpKind::Fail { .. } => tick(op.end, SweepStep::FailureEnds(index)),
            OpKind::Delete | OpKind::Read(RegisterValue::ABSENT) => {
                let fits = blocks.fit(op.begin, op.end);
                let (begin, end) = fits.map_err(|outer| meanwhile(key, outer, op))?;
                if is_deletion {
                    tick(begin, SweepStep::DeletionBegins(index));
                    tick(end, SweepStep::DeletionEnds(index));
                } else {
                    tick(end, SweepStep::AbsenceEnds(index));
                }
            }
            OpKind::Read(_) | OpKind::Write(_) | OpKind::Swap { .. } => {}
        }
    }
    ticks.sort_unstable();
    Ok(ticks)
}

fn meanwhile(key: &PreparedKey, outer: &Block, op: &Op) -> Flaw {
    let explanation = format!(
        "the key must have held {}, but {}",
        blocks::describe_with_times(key, outer),
        operation(op.event),
    );
    Flaw::violation(explanation, blocks::events_of(key, outer).chain([op.event]))
}
