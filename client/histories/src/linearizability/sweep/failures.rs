//! Failed swaps: each needs a moment at which its expectation was wrong.

use super::ticks::{SweepStep, SweepTick};
use super::{KeyState, Sweep};
use crate::linearizability::Flaw;
use crate::linearizability::prepare::{OpKind, OpTime, RegisterValue};

fn unexplained() -> Flaw {
    let reason = "a swap failed that the pass cannot explain".to_owned();
    Flaw::Unknown { reason }
}
impl Sweep<'_, '_> {
    /// Ends a failed swap. At some moment of the swap, the key must have had another value than the
    /// expected one. If the key had the expected value all the time, changes the key now.
    ///
    /// # Errors
    /// The key cannot have had another value.
    pub(super) fn end_failure(&mut self, index: u32) -> Result<(), Flaw> {
        let op = self.op(index);
        let OpKind::Fail { expected } = op.kind else {
            unreachable!("only swaps fail");
        };
        let is_explained = match self.state {
            _ if expected == RegisterValue::ABSENT => {
                self.present_at.is_some_and(|at| at >= op.begin)
            }
            KeyState::Holds { value, since } => value != expected || since >= op.begin,
            KeyState::Absent => true,
        };
        if is_explained || self.could_be_present(op.begin) || self.change() {
            return Ok(());
        }
        Err(unexplained())
    }

    /// Handles an absent key: assumes that a waiting block took effect earlier, at the moment
    /// `harmless_at`. Returns false if the key is present, if no waiting block fits, or if
    /// `harmless_at` is before `since`.
    fn could_be_present(&mut self, since: OpTime) -> bool {
        let Some(harmless_at) = self.harmless_at.filter(|at| *at >= since) else {
            return false;
        };
        if !matches!(self.state, KeyState::Absent) {
            return false;
        }
        let fits = |&&(_, index): &&(OpTime, u32)| self.block(index).last_begin <= harmless_at;
        let Some(&write) = self.writes.iter().find(fits) else {
            return false;
        };
        self.writes.remove(&write);
        self.present_at = Some(harmless_at);
        true
    }

    /// Lets a waiting block or operation take effect, so that the content of the key changes. Tries
    /// the cheapest change first. Returns false if no change is possible.
    fn change(&mut self) -> bool {
        if self.at < self.busy_until {
            return false;
        }
        let held = match self.state {
            KeyState::Absent => RegisterValue::ABSENT,
            KeyState::Holds { value, .. } => value,
        };
        self.perform_waiting_create();
        if matches!(self.state, KeyState::Holds { .. }) && held == RegisterValue::ABSENT {
            return true;
        }
        if let Some((_, block)) = self.writes.pop_first() {
            self.hold(self.block(block).last);
            return true;
        }
        let key = self.key;
        let begun = |index: &mut u32| key.ops[*index as usize].begin <= self.at;
        let unseen = self.unseen_swaps.get_mut(&held);
        if let Some(swap) = unseen.and_then(|swaps| swaps.pop_if(begun))
            && let OpKind::Swap { new, .. } = self.op(swap).kind
        {
            self.hold(new);
            return true;
        }
        if self.begin_early() {
            return true;
        }
        let deletion = (held != RegisterValue::ABSENT).then(|| self.deletions.pop_first());
        let Some((_, deletion)) = deletion.flatten() else {
            return false;
        };
        self.delete(deletion);
        true
    }

    /// Begins the next forward block now. Before that, applies all other blocks and operations that
    /// must take effect by the time at which this block was due to begin. Returns false if this is
    /// not possible.
    fn begin_early(&mut self) -> bool {
        let is_begin = |tick: &&SweepTick| matches!(tick.step, SweepStep::ForwardBegins(_));
        let Some(next) = self.ticks[self.position..].iter().find(is_begin) else {
            return false;
        };
        let SweepStep::ForwardBegins(index) = next.step else {
            return false;
        };
        let block = self.block(index);
        // Swaps that failed on the first values of a chain would have to be judged again.
        let has_begun = self.writer(block).invoke_ns < self.at;
        if block.head != block.last || !has_begun || !self.clear_until(next.at) {
            return false;
        }
        self.early = Some(index);
        self.busy_until = block.last_begin;
        if self.begin_forward(index).is_err() {
            return false;
        }
        let value = block.last;
        let since = self.at;
        self.state = KeyState::Holds { value, since };
        true
    }

    /// Applies all blocks and operations that must take effect by `until`. Returns false if one of
    /// them has not begun yet.
    fn clear_until(&mut self, until: OpTime) -> bool {
        let ticks = &self.ticks[self.position + 1..];
        let ends: Vec<SweepStep> = (ticks.iter().take_while(|tick| tick.at <= until))
            .map(|tick| tick.step)
            .collect();
        let has_begun = |step: &SweepStep| match *step {
            SweepStep::AbsenceEnds(index) => self.op(index).begin <= self.at,
            SweepStep::DeletionEnds(index) => self.op(index).begin <= self.at,
            SweepStep::BlockEnds(index) => self.block(index).last_begin <= self.at,
            _ => true,
        };
        if !ends.iter().all(has_begun) {
            return false;
        }
        let is_end = |step: &SweepStep| {
            matches!(
                step,
                SweepStep::AbsenceEnds(_) | SweepStep::DeletionEnds(_) | SweepStep::BlockEnds(_)
            )
        };
        let mut ends = ends.into_iter().filter(is_end);
        ends.all(|step| self.step(step).is_ok())
    }
}
