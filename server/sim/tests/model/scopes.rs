//! Scopes of exploration: for each strategy, the scenarios that are explored.

use std::collections::BTreeMap;

use leasehold_leases::{Key, RangeMap, ReplicaId, StrategySpec, UnlistedHolders};

use super::clients::KEY;
use super::model::Milestone;
use super::scenario::{Clocks, N, Order, Scenario, Step};

/// A strategy, and the roles of replicas in the explorations of this strategy.
pub struct Strategy {
    spec: RangeMap<StrategySpec>,
    writer: usize,
    /// Replica that receives reads. If the key has holders, it is one of them.
    reader: usize,
    /// Replica that receives a second read.
    second: usize,
    /// Replica that takes leadership from r0.
    candidate: usize,
    /// Whether clocks tick until all leases and grants have ended.
    timed: bool,
}

impl Strategy {
    /// Returns the strategy under which no replica holds the key. Reads are sent to r0, then to r2.
    pub fn none() -> Strategy {
        Strategy {
            spec: StrategySpec::None.into(),
            writer: 1,
            reader: 0,
            second: 2,
            candidate: 1,
            timed: false,
        }
    }

    /// Returns the strategy under which r0, the first leader, holds the key. Reads are sent to r0.
    pub fn leader() -> Strategy {
        Strategy {
            spec: StrategySpec::Leader.into(),
            second: 0,
            timed: true,
            ..Strategy::none()
        }
    }

    /// Returns the strategy under which every replica holds the key. Reads are sent to r2, then to
    /// r0.
    pub fn all() -> Strategy {
        Strategy {
            spec: StrategySpec::All.into(),
            reader: 2,
            second: 0,
            timed: true,
            ..Strategy::none()
        }
    }

    /// Returns the strategy under which r0, the leader, and r1, the replica nearest to it, hold the
    /// key. Reads are sent to r1, then to r0.
    pub fn quorum() -> Strategy {
        let unlisted = UnlistedHolders::Nearest;
        Strategy {
            spec: StrategySpec::Quorum { unlisted }.into(),
            writer: 2,
            reader: 1,
            second: 0,
            candidate: 2,
            timed: true,
        }
    }

    /// Returns the strategy under which only r2 holds the key, because a range with the key has r2
    /// as its fixed holder. Reads are sent to r2.
    pub fn fixed() -> Strategy {
        let fixed = |holders| StrategySpec::Fixed { holders };
        let second = Some([ReplicaId(2)].into_iter().collect());
        let starts = vec![(Key::new(), fixed(None)), (KEY.into(), fixed(second))];
        Strategy {
            spec: RangeMap::from_starts(starts).expect("in order"),
            reader: 2,
            second: 2,
            timed: true,
            ..Strategy::none()
        }
    }

    /// Returns the name of the strategy.
    pub fn name(&self) -> String {
        self.spec.names()
    }

    /// Judges how many transitions of all explorations of this strategy brought each milestone.
    ///
    /// # Panics
    /// If a milestone that must be reached was not reached, or if an impossible one was.
    pub fn judge_milestones(&self, reached: &BTreeMap<Milestone, u64>, at_length: bool) {
        for seen in self.must_not_reach() {
            assert_eq!(reached[&seen], 0, "{seen:?} must be impossible");
        }
        for seen in self.must_reach(at_length) {
            assert!(reached[&seen] > 0, "{seen:?} was not reached");
        }
    }

    /// Returns the milestones that must be reached by at least one exploration of this strategy.
    fn must_reach(&self, at_length: bool) -> Vec<Milestone> {
        use Milestone::*;
        let mut seen = vec![Written, TxnWrote, TxnFoundOther];
        seen.extend([ReadIndex, Elected, ReadAfterElection]);
        seen.extend([Truncated, RestartedTruncated]);
        // A candidate that is a sole holder has accepted every write that others execute.
        if self.name() != Strategy::fixed().name() {
            seen.push(ServedFromLog);
        }
        if self.timed {
            seen.extend([Local, LeaseLapsed, GrantLapsed]);
        }
        if at_length {
            seen.push(RestartedVotes);
        }
        if at_length && self.timed {
            seen.extend([Held, WrittenWithoutHolder]);
        }
        seen
    }

    /// Returns the milestones that no exploration of this strategy may reach.
    fn must_not_reach(&self) -> Vec<Milestone> {
        if self.timed {
            Vec::new()
        } else {
            vec![Milestone::Local, Milestone::Held, Milestone::Forwarded]
        }
    }

    fn scenario(&self, name: &str, clocks: Clocks) -> Scenario {
        let horizon = match clocks {
            _ if !self.timed => 1,
            Clocks::Free => 3,
            Clocks::Lag(_) => 2,
        };
        Scenario {
            strategies: self.spec.clone(),
            name: format!("{}: {name}", self.name()),
            programs: [
                vec![Step::Write(self.writer)],
                vec![Step::Read(self.reader)],
            ],
            clocks,
            horizon,
            crashes: 0,
            may_crash: Vec::new(),
            campaigns: 0,
            may_campaign: Vec::new(),
            campaign_after_crash: false,
            flushes: false,
            promises: true,
            late_promise: false,
            sole_grantor: None,
            order: Order::Fifo,
        }
    }

    /// Returns a scenario in which drift is the only fault. There are two writes, and two reads at
    /// different replicas.
    fn drift(&self) -> Scenario {
        let mut scenario = self.scenario("two writes, two reads", Clocks::Free);
        scenario.programs[0].push(Step::Write(self.writer));
        scenario.programs[1].push(Step::Read(self.second));
        scenario
    }

    /// Returns a scenario in which packets arrive in any order, and each may be late for ever.
    pub fn any_order(&self) -> Scenario {
        let mut scenario = self.scenario("packets in any order", Clocks::Free);
        scenario.order = Order::Any;
        scenario
    }

    /// Returns a scenario with a transaction that compares one key and writes another. The reading
    /// client first writes the compared key, and then reads the other. Packets arrive in any order,
    /// and no clock ticks.
    pub fn txn(&self) -> Scenario {
        let mut scenario = self.any_order();
        scenario.name = format!("{}: transaction that compares another key", self.name());
        scenario.programs = [
            vec![Step::Txn(self.writer)],
            vec![Step::WriteOther(self.writer), Step::Read(self.reader)],
        ];
        scenario.horizon = 0;
        scenario
    }

    /// Returns the scenario of [`any_order`](Self::any_order), except that the reader's lease has
    /// only one grantor, r0.
    pub fn one_grantor(&self) -> Scenario {
        let mut scenario = self.any_order();
        scenario.name += ", r0 the only grantor";
        scenario.sole_grantor = Some(0);
        scenario
    }

    /// Returns the scenario of [`one_grantor`](Self::one_grantor), except that r0, the leader, renews
    /// its promise to the reader at any moment: also after it has proposed a command, and
    /// before its own entry is durable.
    pub fn late_promise(&self) -> Scenario {
        let mut scenario = self.one_grantor();
        scenario.name = format!(
            "{}: promise of the leader with an unsynced entry",
            self.name()
        );
        scenario.late_promise = true;
        scenario.horizon = 1;
        scenario
    }

    /// Returns a scenario in which `node` may crash at any moment.
    pub fn crash(&self, node: usize) -> Scenario {
        let name = format!("crash of r{node}");
        let mut scenario = self.scenario(&name, Clocks::Lag(self.reader));
        scenario.crashes = 1;
        scenario.may_crash = vec![node];
        scenario.sole_grantor = (node != self.reader).then_some(node);
        scenario
    }

    /// Returns a scenario in which another replica may take leadership at any moment.
    pub fn ballot(&self) -> Scenario {
        let mut scenario = self.scenario("ballot change", Clocks::Lag(self.reader));
        scenario.campaigns = 1;
        scenario.may_campaign = vec![self.candidate];
        scenario
    }

    /// Returns a scenario in which r0, the leader, crashes, and another replica takes leadership.
    /// If there are leases, the election comes after the crash. Otherwise, either may come first.
    fn both(&self) -> Scenario {
        let order = if self.timed { "then" } else { "and" };
        let name = format!("crash of the leader {order} ballot change");
        let mut scenario = self.scenario(&name, Clocks::Lag(self.reader));
        scenario.programs[0] = vec![Step::Write(0)];
        scenario.crashes = 1;
        scenario.may_crash = vec![0];
        scenario.campaigns = 1;
        scenario.may_campaign = vec![self.candidate];
        scenario.campaign_after_crash = self.timed;
        scenario.promises = false;
        scenario.sole_grantor = (self.reader != 0).then_some(0);
        scenario
    }

    /// Returns a scenario in which r0, the leader, may crash between an Accept and the sync of its
    /// own entry. The command is of a client of r1. After the crash, r2 takes leadership.
    pub fn unsynced(&self) -> Scenario {
        let mut scenario = self.both();
        scenario.name = format!(
            "{}: crash of the leader with an unsynced entry",
            self.name()
        );
        scenario.programs[0] = vec![Step::Write(1)];
        scenario.may_campaign = vec![2];
        scenario.campaign_after_crash = true;
        scenario
    }

    /// Returns a scenario in which replicas flush their states, so that logs are truncated. The
    /// command is of a client of r1. r0, the leader, may crash; then r2, which may lag, takes
    /// leadership. The client reads the value at r0 after the answer to its write.
    pub fn truncation(&self) -> Scenario {
        let mut scenario = self.both();
        scenario.name = format!("{}: truncation, crash then ballot change", self.name());
        scenario.programs = [vec![Step::Write(1), Step::Read(0)], Vec::new()];
        scenario.may_campaign = vec![2];
        scenario.campaign_after_crash = true;
        scenario.flushes = true;
        scenario.horizon = 0;
        scenario
    }

    /// Returns all explorations, which take minutes.
    pub fn long(&self) -> Vec<Scenario> {
        let mut all = vec![self.drift(), self.any_order(), self.one_grantor()];
        let mut with_ticks = self.txn();
        with_ticks.horizon = self.any_order().horizon;
        all.push(with_ticks);
        all.extend((0..N).map(|node| self.crash(node)));
        all.push(self.ballot());
        all.extend([self.both(), self.unsynced(), self.truncation()]);
        if self.timed && self.reader != 0 {
            all.push(self.late_promise());
        }
        all
    }

    /// Returns explorations that take seconds. They are the explorations of [`long`](Self::long),
    /// but with fewer ticks if there is a fault.
    pub fn short(&self) -> Vec<Scenario> {
        let mut crash = self.crash(0);
        crash.programs[0] = vec![Step::Write(0)];
        let mut ballot = self.ballot();
        ballot.programs[0] = vec![Step::Write(0)];
        ballot.horizon = 0;
        let mut truncation = self.truncation();
        truncation.programs[0][0] = Step::Write(0);
        let orders = [self.any_order(), self.one_grantor()];
        orders
            .into_iter()
            .chain([crash, ballot, truncation, self.txn()])
            .collect()
    }
}
