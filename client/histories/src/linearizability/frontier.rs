//! The states of a search for an order, and the expansion of these states within bounds. The most
//! promising states are expanded first. Both checkers use this module.
//!
//! Take two states that differ only in which unanswered operations took effect. If the unanswered
//! operations that took effect in the first state are a subset of those in the second, every
//! continuation of the second state is also possible from the first. So the second state is
//! superfluous. Effects are never undone. So the search takes the states with the fewest unanswered
//! operations first, and recognizes each superfluous state when it takes that state.

use std::collections::HashMap;
use std::hash::Hash;

use smallvec::SmallVec;

/// Maximum number of operations in flight at the same time.
pub(crate) const SLOTS: usize = 128;
/// Explanation that is reported when a search reaches its bounds without a result.
pub(crate) const TOO_MANY: &str = "too many orders are possible to follow them all";

/// Values that the keys may hold at one moment, and the operations in flight that have taken effect
/// before this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SearchState<H> {
    /// Value of the register, or the values of several registers.
    pub held: H,
    /// Slots of the operations in flight that have taken effect, as a set of bits.
    pub done: u128,
}

/// Maximum numbers of states that a search may expand.
pub(crate) struct Bounds<'a> {
    /// Number of states that the whole search may still expand. Each expansion subtracts one.
    pub steps: &'a mut usize,
    /// Maximum number of states that may be expanded when one operation ends.
    pub at_once: usize,
}

/// Expands `states` until the operation that `bit` denotes has taken effect. Returns every state in
/// which this operation has just taken effect; `None` if there are too many states. `follow` adds
/// the possible successors of a state.
pub(crate) fn develop<H: Clone + Eq + Hash>(
    states: impl IntoIterator<Item = SearchState<H>>,
    bit: u128,
    unanswered: u128,
    bounds: Bounds<'_>,
    mut follow: impl FnMut(&SearchState<H>, &mut Frontier<H>),
) -> Option<Vec<SearchState<H>>> {
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

/// Removes superfluous states. A state is superfluous if a subset of its unanswered operations is
/// enough to reach an otherwise equal state.
pub(crate) fn drop_wasteful<H: Clone + Eq + Hash>(
    states: &mut Vec<SearchState<H>>,
    unanswered: u128,
) {
    let mut frontier = Frontier::of(states.drain(..), unanswered);
    states.extend(std::iter::from_fn(|| frontier.pop()));
}

/// Returns the unanswered operations that have taken effect in every state.
pub(crate) fn completed_in_all<H>(states: &[SearchState<H>], unanswered: u128) -> u128 {
    let done = |all, state: &SearchState<H>| all & state.done;
    states.iter().fold(unanswered, done)
}

/// Returns the slots in a set.
pub(crate) fn bits(mut set: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = set.trailing_zeros() as usize;
        (lowest < SLOTS).then(|| {
            set &= set - 1;
            lowest
        })
    })
}

/// Queue of the states that remain to be expanded. The queue returns a state at most once, and
/// never returns a superfluous state.
pub(crate) struct Frontier<H> {
    /// Slots of the unanswered operations, as a set of bits.
    unanswered: u128,
    /// States that remain to be expanded, grouped by the number of unanswered operations that took
    /// effect.
    waiting: Vec<Vec<SearchState<H>>>,
    /// Index in `waiting`. All lists with a lower index are empty.
    fewest: usize,
    /// States that the queue has returned. The key of the map is a state without its unanswered
    /// operations. The value lists the sets of unanswered operations with which the state was
    /// returned.
    given: HashMap<SearchState<H>, SmallVec<[u128; 1]>, foldhash::fast::FixedState>,
}

impl<H: Clone + Eq + Hash> Frontier<H> {
    fn of(states: impl IntoIterator<Item = SearchState<H>>, unanswered: u128) -> Self {
        let mut frontier = Frontier {
            unanswered,
            waiting: Vec::new(),
            fewest: 0,
            given: HashMap::default(),
        };
        states.into_iter().for_each(|state| frontier.push(state));
        frontier
    }

    pub fn push(&mut self, state: SearchState<H>) {
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

    fn pop(&mut self) -> Option<SearchState<H>> {
        loop {
            let state = self.pop_any()?;
            if !self.is_superfluous(&state) {
                let used = state.done & self.unanswered;
                self.given.entry(self.rest(&state)).or_default().push(used);
                return Some(state);
            }
        }
    }

    fn pop_any(&mut self) -> Option<SearchState<H>> {
        loop {
            match self.waiting.get_mut(self.fewest)?.pop() {
                Some(state) => return Some(state),
                None => self.fewest += 1,
            }
        }
    }

    /// Returns the state without its unanswered operations.
    fn rest(&self, state: &SearchState<H>) -> SearchState<H> {
        let done = state.done & !self.unanswered;
        SearchState {
            done,
            held: state.held.clone(),
        }
    }

    fn is_superfluous(&self, state: &SearchState<H>) -> bool {
        let alike = self.given.get(&self.rest(state));
        alike.is_some_and(|alike| {
            alike
                .iter()
                .any(|used| used & self.unanswered & !state.done == 0)
        })
    }
}
