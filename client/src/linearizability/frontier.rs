//! The states still to be developed, the most promising first.
//!
//! A state that made use of fewer unanswered operations than another, and is the
//! same in all else, can do all that the other can. Taking effect never becomes
//! undone, so if states are taken in the order of how many they used, whatever
//! makes a state superfluous has been taken before it.

use std::collections::HashMap;
use std::hash::Hash;

use smallvec::SmallVec;

/// One way in which things may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State<H> {
    /// What the register holds, or each of several.
    pub held: H,
    /// By slot: the operations in flight that have taken effect.
    pub done: u128,
}

/// A set that gives each state at most once, and no superfluous one.
pub(crate) struct Frontier<H> {
    /// The slots of unanswered operations.
    unanswered: u128,
    /// By how many of these a state made use of.
    waiting: Vec<Vec<State<H>>>,
    /// All below this are empty.
    fewest: usize,
    /// For each state given, apart from what it made use of: what it did.
    given: HashMap<State<H>, SmallVec<[u128; 1]>, foldhash::fast::FixedState>,
}

impl<H: Clone + Eq + Hash> Frontier<H> {
    pub fn new(unanswered: u128) -> Self {
        Frontier {
            unanswered,
            waiting: Vec::new(),
            fewest: 0,
            given: HashMap::default(),
        }
    }

    pub fn push(&mut self, state: State<H>) {
        if self.is_superfluous(&state) {
            return;
        }
        let used = (state.done & self.unanswered).count_ones() as usize;
        if self.waiting.len() <= used {
            self.waiting.resize_with(used + 1, Vec::new);
        }
        self.waiting[used].push(state);
        self.fewest = self.fewest.min(used);
    }

    pub fn pop(&mut self) -> Option<State<H>> {
        loop {
            let state = self.pop_any()?;
            if !self.is_superfluous(&state) {
                let used = state.done & self.unanswered;
                self.given.entry(self.rest(&state)).or_default().push(used);
                return Some(state);
            }
        }
    }

    /// How many states have been given, not counting those that differ only in
    /// what they made use of.
    pub fn given(&self) -> usize {
        self.given.len()
    }

    fn pop_any(&mut self) -> Option<State<H>> {
        loop {
            match self.waiting.get_mut(self.fewest)?.pop() {
                Some(state) => return Some(state),
                None => self.fewest += 1,
            }
        }
    }

    /// The state apart from what it made use of.
    fn rest(&self, state: &State<H>) -> State<H> {
        let done = state.done & !self.unanswered;
        State {
            done,
            held: state.held.clone(),
        }
    }

    fn is_superfluous(&self, state: &State<H>) -> bool {
        let alike = self.given.get(&self.rest(state));
        alike.is_some_and(|alike| {
            alike
                .iter()
                .any(|used| used & self.unanswered & !state.done == 0)
        })
    }
}
