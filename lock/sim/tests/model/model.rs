//! The model: a group of members, and every event that can happen to them.

use std::sync::atomic::{AtomicU64, Ordering};

use leasehold_leases::Time;
use leasehold_lock_core::mutants::LockRule;
use stateright::{Model, Property};

use super::scenario::{N, Scenario};
use super::world::{Action, World};

/// Events that must be reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Milestone {
    /// m0 acquired the resource.
    AcquiredByM0,
    /// m1 acquired the resource.
    AcquiredByM1,
    /// A member acquired the resource after the end of another member's lease.
    TakenAfterEnd,
    /// A member acquired the resource after another member had released it.
    TakenAfterRelease,
    /// A lease was renewed.
    Renewed,
    /// A lease ended by the clock of its owner, which noticed it.
    Lost,
    /// A majority confirmed a release.
    Released,
    /// A member was told of the owner.
    Told,
    /// A request was refused because no majority had answered.
    Abandoned,
    /// An acceptor that was restarted acked a READ or a WRITE.
    RestartedAcks,
    /// A member acquired the resource after its restart.
    RestartedAcquires,
}

/// Every milestone.
pub const MILESTONES: [Milestone; 11] = [
    Milestone::AcquiredByM0,
    Milestone::AcquiredByM1,
    Milestone::TakenAfterEnd,
    Milestone::TakenAfterRelease,
    Milestone::Renewed,
    Milestone::Lost,
    Milestone::Released,
    Milestone::Told,
    Milestone::Abandoned,
    Milestone::RestartedAcks,
    Milestone::RestartedAcquires,
];

/// The model.
pub struct Group {
    /// The scope.
    pub scenario: Scenario,
    /// Whether packets stay in flight that can have no effect.
    pub keeps_unusable: bool,
    /// Reading of each clock at which it stands still.
    ends: [Time; N],
    reached: [AtomicU64; MILESTONES.len()],
}

impl Group {
    /// Creates a model.
    pub fn new(scenario: Scenario) -> Group {
        Group {
            // Without this rule, answers to earlier attempts have an effect.
            keeps_unusable: scenario.without == Some(LockRule::AckBallot),
            ends: std::array::from_fn(|it| scenario.end(it)),
            reached: Default::default(),
            scenario,
        }
    }

    /// Returns the last reading of a member's clock.
    pub fn end(&self, member: usize) -> Time {
        self.ends[member]
    }

    /// Runs code of members, without the rule that this scenario omits.
    #[cfg(feature = "mutants")]
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        match self.scenario.without {
            Some(rule) => leasehold_lock_core::mutants::with(rule, body),
            None => body(),
        }
    }

    /// Runs code of members with every rule. Only builds for mutants can omit a rule.
    #[cfg(not(feature = "mutants"))]
    pub fn run<T>(&self, body: impl FnOnce() -> T) -> T {
        assert!(
            self.scenario.without.is_none(),
            "this build keeps every rule"
        );
        body()
    }

    /// Counts a transition that brings a milestone.
    pub fn reach(&self, milestone: Milestone) {
        self.reached[milestone as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of transitions that brought a milestone.
    pub fn times(&self, milestone: Milestone) -> u64 {
        self.reached[milestone as usize].load(Ordering::Relaxed)
    }
}

impl Model for Group {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        state.actions(self, actions);
    }

    fn next_state(&self, state: &World, action: Action) -> Option<World> {
        Some(state.after(self, action))
    }

    fn properties(&self) -> Vec<Property<Group>> {
        vec![Property::always("no violation", |_, world: &World| {
            world.violation.is_none()
        })]
    }
}
