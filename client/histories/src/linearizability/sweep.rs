//! Keys with deletions or compare-and-swaps, in one pass over time.
//!
//! The forward blocks (see [`super::blocks`]) leave gaps between them. Everything else
//! takes effect at one moment, in a gap: a backward block leaves a value, a deletion
//! leaves the key absent, a create (a block that begins only where there is no key)
//! needs it absent, and so does a read of absence. The pass follows whether the key is
//! there, and what waits to be done, by its latest moment. It does each thing as late
//! as possible, because that loses nothing:
//!
//! - A deletion is done at its own end, or earlier if there is a key and a read of
//!   absence or a create has to end. Deletions are alike, so the one that ends first
//!   goes first.
//! - The key is kept absent as long as possible. Operations that wait lose nothing by
//!   that, and a backward block can write the key again at any later moment.
//! - A backward block may have to end while the key is absent. If it could have been
//!   done earlier without harm (while there was a key, or just before a deletion), the
//!   pass takes it as done there. Otherwise it ends the absence.
//! - A create that waits is done just before the absence ends for another reason, or
//!   just before a deletion that would find no key. Of several, the one that ends first.
//!
//! So without failed swaps the pass finds an order iff there is one. A **failed swap**
//! needs a moment at which its expectation was wrong. There mostly is one. If there is
//! none when the swap ends, the pass does something that waits, or begins the next
//! forward block early. That is not always the best choice. What the pass can order
//! only without its failed swaps is therefore left to `search`.

mod failures;
mod ticks;

use std::collections::{BTreeSet, HashMap};

use super::Flaw;
use super::blocks::{self, Block, Blocks};
use super::explain::operation;
use super::prepare::{Held, Key, Kind, Moment, NEVER, Op, moment};
use crate::history::Event;
use ticks::{Tick, What, ticks};

/// Deletions that an explanation names.
const EXPLAINED: usize = 6;

/// Result of a pass.
#[derive(Debug)]
pub(super) enum Outcome {
    /// An order was found.
    Ordered,
    /// The pass found none with the failed swaps; there may be one.
    NotFound,
}

/// Judges one key.
///
/// # Errors
/// A violation that does not depend on failed swaps.
pub(super) fn check(key: &Key) -> Result<Outcome, Flaw> {
    let blocks = Blocks::of(key)?;
    let ticks = ticks(key, &blocks)?;
    if Sweep::new(key, &blocks, &ticks, true).run().is_ok() {
        return Ok(Outcome::Ordered);
    }
    let has_failures = key
        .ops
        .iter()
        .any(|op| matches!(op.kind, Kind::Fail { .. }));
    match Sweep::new(key, &blocks, &ticks, false).run() {
        Ok(()) if has_failures => Ok(Outcome::NotFound),
        Ok(()) => Ok(Outcome::Ordered),
        Err(flaw) => Err(flaw),
    }
}

/// Content of the key, and since when.
#[derive(Debug, Clone, Copy)]
enum Now {
    Absent,
    Holds { value: Held, since: Moment },
}

struct Sweep<'k, 'a> {
    key: &'k Key<'a>,
    blocks: &'k Blocks,
    /// Begins and ends in order of time, and the position of the current one.
    ticks: &'k [Tick],
    position: usize,
    with_failures: bool,
    now: Now,
    at: Moment,
    /// A forward block that was begun before it had to, and the moment at which it ends.
    early: Option<u32>,
    busy_until: Moment,
    /// The last moments at which the key was absent, at which it was there, and at
    /// which a backward block could have been done without harm.
    absent_at: Moment,
    present_at: Option<Moment>,
    harmless_at: Option<Moment>,
    /// Waiting operations, by the moment at which they must be done.
    deletions: BTreeSet<(Moment, u32)>,
    writes: BTreeSet<(Moment, u32)>,
    creates: BTreeSet<(Moment, u32)>,
    /// Swaps that nobody saw, by what they expect and by their begin.
    unseen_swaps: HashMap<Held, Vec<u32>, foldhash::fast::FixedState>,
    /// The last deletions done.
    done: Vec<u32>,
}

impl<'k, 'a> Sweep<'k, 'a> {
    fn new(key: &'k Key<'a>, blocks: &'k Blocks, ticks: &'k [Tick], with_failures: bool) -> Self {
        let mut unseen_swaps: HashMap<Held, Vec<u32>, _> = HashMap::default();
        for (index, op) in key.ops.iter().enumerate().rev() {
            if let Kind::Swap { expected, .. } = op.kind
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
            now: Now::Absent,
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
            self.note_moment();
            self.step(tick.what)?;
            self.note_moment();
        }
        Ok(())
    }

    fn note_moment(&mut self) {
        match self.now {
            Now::Absent => self.absent_at = self.at,
            Now::Holds { .. } => {
                self.present_at = Some(self.at);
                self.harmless_at = Some(self.at);
            }
        }
    }

    fn step(&mut self, what: What) -> Result<(), Flaw> {
        match what {
            What::ForwardBegins(block) if self.early == Some(block) => Ok(()),
            What::ForwardBegins(block) => self.begin_forward(block),
            // Its value stays.
            What::ForwardEnds(_) => Ok(()),
            What::BlockBegins(index) => {
                let block = self.block(index);
                let waiting = if block.is_create {
                    &mut self.creates
                } else {
                    &mut self.writes
                };
                waiting.insert((block.first_end, index));
                Ok(())
            }
            What::BlockEnds(index) => self.end_block(index),
            What::DeletionBegins(index) => {
                self.deletions.insert((self.op(index).end, index));
                Ok(())
            }
            What::DeletionEnds(index) => {
                if self.deletions.remove(&(self.op(index).end, index)) {
                    self.delete(index);
                }
                Ok(())
            }
            What::AbsenceEnds(index) if self.absent_at >= self.op(index).begin => Ok(()),
            What::AbsenceEnds(index) => self.make_absent(self.op(index).event),
            What::FailureEnds(index) if self.with_failures => self.end_failure(index),
            What::FailureEnds(_) => Ok(()),
        }
    }

    fn begin_forward(&mut self, index: u32) -> Result<(), Flaw> {
        let block = self.block(index);
        if block.is_create {
            self.make_absent(self.writer(block))?;
        } else {
            self.take_chance();
        }
        self.hold(block.last);
        self.now = Now::Holds {
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
            let is_absent = matches!(self.now, Now::Absent);
            let was_harmless = (self.harmless_at).is_some_and(|at| at >= block.last_begin);
            if is_absent && was_harmless {
                self.present_at = self.present_at.max(self.harmless_at);
            } else {
                self.take_chance();
                self.hold(block.last);
            }
        }
        Ok(())
    }

    /// Deletes the key if it is there, because `cause` needs it absent.
    fn make_absent(&mut self, cause: &Event) -> Result<(), Flaw> {
        if matches!(self.now, Now::Absent) {
            return Ok(());
        }
        let Some((_, deletion)) = self.deletions.pop_first() else {
            return Err(self.undeleted(cause));
        };
        self.delete(deletion);
        Ok(())
    }

    fn delete(&mut self, index: u32) {
        self.take_chance();
        self.now = Now::Absent;
        self.absent_at = self.at;
        self.harmless_at = Some(self.at);
        self.done.push(index);
    }

    /// The key will not stay absent: does a create that waits for absence, if any.
    fn take_chance(&mut self) {
        if let Now::Absent = self.now
            && let Some((_, create)) = self.creates.pop_first()
        {
            self.hold(self.block(create).last);
        }
    }

    fn hold(&mut self, value: Held) {
        let since = self.at;
        self.now = Now::Holds { value, since };
        self.note_moment();
    }
    fn block(&self, index: u32) -> &'k Block {
        &self.blocks.all[index as usize]
    }

    fn op(&self, index: u32) -> &'k Op<'a> {
        &self.key.ops[index as usize]
    }

    fn writer(&self, block: &Block) -> &'a Event {
        let writer = self.key.writer(block.head);
        writer.expect("only absence has no writer, and is not a block here")
    }

    fn undeleted(&self, cause: &Event) -> Flaw {
        let Now::Holds { value, .. } = self.now else {
            unreachable!("what is absent needs no deletion");
        };
        let deletions = self.done.iter().rev().take(EXPLAINED);
        let deletions = deletions.map(|index| self.op(*index).event);
        let explanation = format!(
            "no order explains that {}: by {} the key held {}, and {}",
            operation(cause),
            moment(self.at),
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
