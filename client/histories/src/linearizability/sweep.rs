//! Judges keys with deletions or compare-and-swaps, in one pass over time.
//!
//! The forward blocks (see [`super::blocks`]) leave gaps between them. All other blocks and
//! operations take effect at one moment, in a gap. A backward block leaves a value, and a deletion
//! leaves the key absent. A create (a block that begins only while the key is absent) requires that
//! the key is absent, and so does a read of absence. The pass tracks whether the key is present,
//! and which blocks and operations still have to take effect, ordered by the latest moment of each.
//! It lets each take effect as late as possible, because this never excludes an order:
//!
//! - A deletion takes effect at its own end. It takes effect earlier if the key is present and a
//!   read of absence or a create has to end. All deletions have the same effect, so the one that
//!   ends first takes effect first.
//! - The key is kept absent as long as possible. Waiting operations are not restricted by this, and
//!   a backward block can write the key again at any later moment.
//! - A backward block may have to end while the key is absent. If the block could have taken effect
//!   earlier without excluding an order (while the key was present, or just before a deletion), the
//!   pass assumes that it did. Otherwise the block ends the absence.
//! - A waiting create takes effect just before the absence ends for another reason, or just before
//!   a deletion that would find no key. Of several creates, the one that ends first takes effect.
//!
//! So without failed swaps the pass finds an order iff there is one. A **failed swap** needs a
//! moment at which its expectation was wrong. Usually there is such a moment. If there is none when
//! the swap ends, the pass lets a waiting block or operation take effect, or begins the next
//! forward block early. This is not always the best choice. If the pass finds an order only without
//! the failed swaps, the key is therefore left to `search`.

mod failures;
mod ticks;

use std::collections::{BTreeSet, HashMap};

use super::Flaw;
use super::blocks::{self, Block, Blocks};
use super::explain::operation;
use super::prepare::{NEVER, Op, OpKind, OpTime, PreparedKey, RegisterValue, describe_time};
use crate::history::HistoryEvent;
use ticks::{SweepStep, SweepTick, ticks};

/// Maximum number of deletions that an explanation of a violation names.
const EXPLAINED: usize = 6;

/// Result of a pass.
#[derive(Debug)]
pub(super) enum SweepOutcome {
    /// An order was found.
    Ordered,
    /// The pass found no order that explains the failed swaps. Such an order may still exist.
    NotFound,
}

/// Judges one key.
///
/// # Errors
/// Returns an error if there is a violation that does not depend on failed swaps.
pub(super) fn check(key: &PreparedKey) -> Result<SweepOutcome, Flaw> {
    let blocks = Blocks::of(key)?;
    let ticks = ticks(key, &blocks)?;
    if Sweep::new(key, &blocks, &ticks, true).run().is_ok() {
        return Ok(SweepOutcome::Ordered);
    }
    let has_failures = key
        .ops
        .iter()
        .any(|op| matches!(op.kind, OpKind::Fail { .. }));
    match Sweep::new(key, &blocks, &ticks, false).run() {
        Ok(()) if has_failures => Ok(SweepOutcome::NotFound),
        Ok(()) => Ok(SweepOutcome::Ordered),
        Err(flaw) => Err(flaw),
    }
}

/// Content of the key, and the moment at which the key got this content.
#[derive(Debug, Clone, Copy)]
enum KeyState {
    Absent,
    Holds { value: RegisterValue, since: OpTime },
}

struct Sweep<'k, 'a> {
    key: &'k PreparedKey<'a>,
    blocks: &'k Blocks,
    /// Steps of the pass in order of time.
    ticks: &'k [SweepTick],
    /// Index of the current step.
    position: usize,
    with_failures: bool,
    state: KeyState,
    at: OpTime,
    /// Forward block that began before its first operation had to end.
    early: Option<u32>,
    /// Moment at which the block `early` ends.
    busy_until: OpTime,
    /// Last moment at which the key was absent.
    absent_at: OpTime,
    /// Last moment at which the key was present.
    present_at: Option<OpTime>,
    /// Last moment at which a backward block could have taken effect harmlessly: all other orders
    /// remained possible.
    harmless_at: Option<OpTime>,
    /// Waiting deletions. The first component is the moment by which the deletion must take effect.
    deletions: BTreeSet<(OpTime, u32)>,
    /// Waiting writes. The first component is the moment by which the write must take effect.
    writes: BTreeSet<(OpTime, u32)>,
    /// Waiting creates. The first component is the moment by which the create must take effect.
    creates: BTreeSet<(OpTime, u32)>,
    /// Swaps that stored a value that no operation found. The key of the map is the value that the
    /// swaps expected. Each list is sorted by begin, with the latest swap first.
    unseen_swaps: HashMap<RegisterValue, Vec<u32>, foldhash::fast::FixedState>,
    /// Deletions that have taken effect, in order.
    done: Vec<u32>,
}

impl<'k, 'a> Sweep<'k, 'a> {
    fn new(
        key: &'k PreparedKey<'a>,
        blocks: &'k Blocks,
        ticks: &'k [SweepTick],
        with_failures: bool,
    ) -> Self {
        let mut unseen_swaps: HashMap<RegisterValue, Vec<u32>, _> = HashMap::default();
        for (index, op) in key.ops.iter().enumerate().rev() {
            if let OpKind::Swap { expected, .. } = op.kind
                && op.end == NEVER
            {
                let of_expected = unseen_swaps.entry(expected).or_default();
                of_expected.push(index as u32);
            }
        }
        Sweep {
            key,
            blocks,
            ticks,
            position: 0,
            with_failures,
            state: KeyState::Absent,
            at: 0,
            early: None,
            busy_until: 0,
            absent_at: 0,
            present_at: None,
            harmless_at: None,
            deletions: BTreeSet::new(),
            writes: BTreeSet::new(),
            creates: BTreeSet::new(),
            unseen_swaps,
            done: Vec::new(),
        }
    }

    fn run(&mut self) -> Result<(), Flaw> {
        for (position, tick) in self.ticks.iter().enumerate() {
            if tick.at == NEVER {
                break;
            }
            self.position = position;
            self.at = tick.at;
            self.note_time();
            self.step(tick.step)?;
            self.note_time();
        }
        Ok(())
    }

    fn note_time(&mut self) {
        match self.state {
            KeyState::Absent => self.absent_at = self.at,
            KeyState::Holds { .. } => {
                self.present_at = Some(self.at);
                self.harmless_at = Some(self.at);
            }
        }
    }

    fn step(&mut self, step: SweepStep) -> Result<(), Flaw> {
        match step {
            SweepStep::ForwardBegins(block) if self.early == Some(block) => Ok(()),
            SweepStep::ForwardBegins(block) => self.begin_forward(block),
            // The block's value stays.
            SweepStep::ForwardEnds(_) => Ok(()),
            SweepStep::BlockBegins(index) => {
                let block = self.block(index);
                let waiting = if block.is_create {
                    &mut self.creates
                } else {
                    &mut self.writes
                };
                waiting.insert((block.first_end, index));
                Ok(())
            }
            SweepStep::BlockEnds(index) => self.end_block(index),
            SweepStep::DeletionBegins(index) => {
                self.deletions.insert((self.op(index).end, index));
                Ok(())
            }
            SweepStep::DeletionEnds(index) => {
                if self.deletions.remove(&(self.op(index).end, index)) {
                    self.delete(index);
                }
                Ok(())
            }
            SweepStep::AbsenceEnds(index) if self.absent_at >= self.op(index).begin => Ok(()),
            SweepStep::AbsenceEnds(index) => self.make_absent(self.op(index).event),
            SweepStep::FailureEnds(index) if self.with_failures => self.end_failure(index),
            SweepStep::FailureEnds(_) => Ok(()),
        }
    }

    fn begin_forward(&mut self, index: u32) -> Result<(), Flaw> {
        let block = self.block(index);
        if block.is_create {
            self.make_absent(self.writer(block))?;
        } else {
            self.perform_waiting_create();
        }
        self.hold(block.last);
        self.state = KeyState::Holds {
            value: block.last,
            since: block.last_from,
        };
        Ok(())
    }

    fn end_block(&mut self, index: u32) -> Result<(), Flaw> {
        let block = self.block(index);
        let waits = (block.first_end, index);
        if self.creates.remove(&waits) {
            self.make_absent(self.writer(block))?;
            self.hold(block.last);
        } else if self.writes.remove(&waits) {
            let is_absent = matches!(self.state, KeyState::Absent);
            let was_harmless = (self.harmless_at).is_some_and(|at| at >= block.last_begin);
            if is_absent && was_harmless {
                self.present_at = self.present_at.max(self.harmless_at);
            } else {
                self.perform_waiting_create();
                self.hold(block.last);
            }
        }
        Ok(())
    }

    /// Makes a deletion take effect if the key is present. `cause` is the operation that requires
    /// an absent key.
    fn make_absent(&mut self, cause: &HistoryEvent) -> Result<(), Flaw> {
        if matches!(self.state, KeyState::Absent) {
            return Ok(());
        }
        let Some((_, deletion)) = self.deletions.pop_first() else {
            return Err(self.undeleted(cause));
        };
        self.delete(deletion);
        Ok(())
    }

    fn delete(&mut self, index: u32) {
        self.perform_waiting_create();
        self.state = KeyState::Absent;
        self.absent_at = self.at;
        self.harmless_at = Some(self.at);
        self.done.push(index);
    }

    /// If a create is waiting, lets it take effect, because the key will not stay absent.
    fn perform_waiting_create(&mut self) {
        if let KeyState::Absent = self.state
            && let Some((_, create)) = self.creates.pop_first()
        {
            self.hold(self.block(create).last);
        }
    }

    fn hold(&mut self, value: RegisterValue) {
        let since = self.at;
        self.state = KeyState::Holds { value, since };
        self.note_time();
    }
    fn block(&self, index: u32) -> &'k Block {
        &self.blocks.all[index as usize]
    }

    fn op(&self, index: u32) -> &'k Op<'a> {
        &self.key.ops[index as usize]
    }

    fn writer(&self, block: &Block) -> &'a HistoryEvent {
        let writer = self.key.writer(block.head);
        writer.expect("every block has a writer: absence, which has none, is no block here")
    }

    fn undeleted(&self, cause: &HistoryEvent) -> Flaw {
        let KeyState::Holds { value, .. } = self.state else {
            unreachable!("a deletion is missing only where the key holds a value");
        };
        let deletions = self.done.iter().rev().take(EXPLAINED);
        let deletions = deletions.map(|index| self.op(*index).event);
        let explanation = format!(
            "no order explains that {}: by {} the key held {}, and {}",
            operation(cause),
            describe_time(self.at),
            self.key.describe(value),
            if self.done.is_empty() {
                "no deletion had begun"
            } else {
                "every deletion begun by then had to take effect before that, or is needed elsewhere"
            },
        );
        let block = self.blocks.all.iter().find(|block| block.last == value);
        let of_block = block
            .into_iter()
            .flat_map(|block| blocks::events_of(self.key, block));
        Flaw::violation(
            explanation,
            [cause].into_iter().chain(of_block).chain(deletions),
        )
    }
}
