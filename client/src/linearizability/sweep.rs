//! Keys with deletions or compare-and-swaps, in one pass over time.
//!
//! Between the forward blocks (see [`super::blocks`]) there are gaps, and everything
//! else is a point that must find its place in one: backward blocks, which leave a
//! value; deletions, which leave absence; those blocks that only begin where there is
//! no key (creates); and reads of absence. So all that matters is whether there is a
//! key, and what is still to come, by when. Each thing is put off until it must be
//! done, because that loses nothing:
//!
//! - A deletion is done when it must end, or a read of absence or a create must and
//!   there is a key. Of several the one that must end first goes first: they are alike.
//! - Absence is worth more than a key: whatever waits can also be done later, and a
//!   backward block can end the absence at any time.
//! - A backward block that has to end while there is no key would end the absence, but
//!   if it could have been done at an earlier moment without harm (while there was a
//!   key, or just before a deletion), it was.
//! - Before absence is lost anyway, or a deletion is wasted on it, a create that waits
//!   takes its chance, the one that must end first.
//!
//! So without failed swaps the pass finds an order iff there is one. A **failed swap**
//! asks that its expectation was wrong at some moment. Mostly it was; where it was not
//! when the swap must end, something that waits is done then, or the next forward block
//! begun before it must. That is not always the best choice, so what the pass cannot order with failed swaps and can without is left
//! to `search`.

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

/// What came of a pass.
#[derive(Debug)]
pub(super) enum Outcome {
    /// An order was found.
    Ordered,
    /// There is none with these failed swaps that the pass can find.
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

/// What the key holds, and since when.
#[derive(Debug, Clone, Copy)]
enum Now {
    Absent,
    Holds { value: Held, since: Moment },
}

struct Sweep<'k, 'a> {
    key: &'k Key<'a>,
    blocks: &'k Blocks,
    /// What happens, and how much of it has.
    ticks: &'k [Tick],
    position: usize,
    with_failures: bool,
    now: Now,
    at: Moment,
    /// A forward block that was begun before its time, and when it ends.
    early: Option<u32>,
    busy_until: Moment,
    /// The last moments at which there was no key, there was one, and a backward block
    /// could have been put without harm.
    absent_at: Moment,
    present_at: Option<Moment>,
    harmless_at: Option<Moment>,
    /// What waits, by when it must be done.
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

    /// Sees to it that there is no key, for `cause`.
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

    /// Lets a create that waits use an absence that will not last.
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
