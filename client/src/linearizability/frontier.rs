//! Ways in which things may stand, and how a search develops them, the most promising
//! first and within bounds; for both checkers.
//!
//! A state that made use of fewer unanswered operations than another, and is the
//! same in all else, can do all that the other can. Taking effect never becomes
//! undone, so if states are taken in the order of how many they used, whatever
//! makes a state superfluous has been taken before it.

use std::collections::HashMap;
use std::hash::Hash;

use smallvec::SmallVec;

/// Most operations in flight at once.
pub(crate) const SLOTS: usize = 128;
/// Why a search ended that would have gone beyond its bounds.
pub(crate) const TOO_MANY: &str = "too many orders are possible to follow them all";

/// One way in which things may stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct State<H> {
    /// What the register holds, or each of several.
    pub held: H,
    /// By slot: the operations in flight that have taken effect.
    pub done: u128,
}

/// How many states may be developed.
pub(crate) struct Bounds<'a> {
    /// From now on, in all; those developed are taken off.
    pub steps: &'a mut usize,
    /// For the end of one operation.
    pub at_once: usize,
}

/// Lets operations in flight take effect until the one of `bit` has: all such states, as
/// early as possible. `follow` gives the states that a state may become. `None`: that
/// would have been too many.
pub(crate) fn develop<H: Clone + Eq + Hash>(
    states: impl IntoIterator<Item = State<H>>,
    bit: u128,
    unanswered: u128,
    bounds: Bounds<'_>,
    mut follow: impl FnMut(&State<H>, &mut Frontier<H>),
) -> Option<Vec<State<H>>> {
    let mut developed = Vec::new();
    let mut frontier = Frontier::of(states, unanswered);
    while let Some(state) = frontier.pop() {
        if state.done & bit != 0 {
            developed.push(state);
            continue;
        }
        *bounds.steps = bounds.steps.saturating_sub(1);
        if *bounds.steps == 0 || frontier.given.len() > bounds.at_once {
            return None;
        }
        follow(&state, &mut frontier);
    }
    Some(developed)
}

/// Keeps of states that are the same in all else those that made use of the fewest
/// unanswered operations.
pub(crate) fn drop_wasteful<H: Clone + Eq + Hash>(states: &mut Vec<State<H>>, unanswered: u128) {
    let mut frontier = Frontier::of(states.drain(..), unanswered);
    states.extend(std::iter::from_fn(|| frontier.pop()));
}

/// Unanswered operations that have taken effect in every state.
pub(crate) fn settled<H>(states: &[State<H>], unanswered: u128) -> u128 {
    let done = |all, state: &State<H>| all & state.done;
    states.iter().fold(unanswered, done)
}

/// The slots in a set.
pub(crate) fn bits(mut set: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros() as usize;
        (lowest < SLOTS).then(|| {
            set &= set - 1;
            lowest
        })
    })
}

/// A set that gives each state at most once, and no superfluous one.
pub(crate) struct Frontier<H> {
    /// The slots of unanswered operations.
    unanswered: u128,
    /// By how many of these a state made use of.
    waiting: Vec<Vec<State<H>>>,
    /// All below this are empty.
    fewest: usize,
    /// For each state given, apart from what it made use of: what it did. States that
    /// differ only in that count as one.
    given: HashMap<State<H>, SmallVec<[u128; 1]>, foldhash::fast::FixedState>,
}

impl<H: Clone + Eq + Hash> Frontier<H> {
    fn of(states: impl IntoIterator<Item = State<H>>, unanswered: u128) -> Self {
        let mut frontier = Frontier {
            unanswered,
            waiting: Vec::new(),
            fewest: 0,
            given: HashMap::default(),
        };
        states.into_iter().for_each(|state| frontier.push(state));
        frontier
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

    fn pop(&mut self) -> Option<State<H>> {
        loop {
            let state = self.pop_any()?;
            if !self.is_superfluous(&state) {
                let used = state.done & self.unanswered;
                self.given.entry(self.rest(&state)).or_default().push(used);
                return Some(state);
            }
        }
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
