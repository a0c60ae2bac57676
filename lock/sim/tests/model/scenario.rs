//! Scenarios: the settings of a group, its clocks, its programs, and its faults.

use std::time::Duration;

use leasehold_leases::Time;
use leasehold_leases::time::ClockBound;
use leasehold_lock_core::mutants::LockRule;
use leasehold_lock_core::{ClockModel, GroupSettings};

/// Number of members.
pub const N: usize = 3;

/// Step by which a right clock advances at a time.
pub const TICK: Duration = Duration::from_millis(100);

/// Advance of clocks.
#[derive(Clone, Copy, Debug)]
pub enum Clocks {
    /// All clocks advance at the same moment. The numbers are the advances of each clock, in ms.
    Together([u16; N]),
    /// Each clock advances by one tick at a time. Readings differ by at most one tick.
    Apart,
}

/// Request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A request to acquire the resource without a wait.
    Acquire,
    /// A request to acquire the resource, with a wait for this number of ticks.
    Wait(u8),
    /// A release of the resource, or of the request to acquire it.
    Release,
}

/// A scope that is explored.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Description.
    pub name: String,
    /// Settings of the group.
    pub settings: GroupSettings,
    /// Advance of the clocks.
    pub clocks: Clocks,
    /// Number of ticks after which clocks stand still.
    pub horizon: u8,
    /// Requests of each member's program. Each is made at any time, after the one before. The last ones
    /// need not be made.
    pub programs: [Vec<Request>; N],
    /// Number of crashes.
    pub crashes: u8,
    /// Members that may crash.
    pub may_crash: Vec<usize>,
    /// Number of packets that are duplicated.
    pub duplicates: u8,
    /// Maximum number of packets in flight between two members, in one direction. When there are more,
    /// the oldest is lost.
    pub link: usize,
    /// Whether a member may handle a deadline late. Otherwise it handles it as soon as its clock
    /// reaches it.
    pub is_paused: bool,
    /// Rule that members do not apply, in a hunt for a mutant; otherwise `None`.
    pub without: Option<LockRule>,
}

/// Returns a duration of tenths of a tick.
const fn tenths(tenths: u32) -> Duration {
    Duration::from_millis(10 * tenths as u64)
}

impl Scenario {
    fn new(name: &str, clocks: Clocks, model: ClockModel, tenths_of: [u32; 3]) -> Scenario {
        let [term, attempt, renew] = tenths_of.map(tenths);
        let mut settings = GroupSettings::new(N as u8, term, model);
        (settings.attempt, settings.renew) = (attempt, renew);
        Scenario {
            name: name.to_owned(),
            settings,
            clocks,
            horizon: 0,
            programs: Default::default(),
            crashes: 0,
            may_crash: Vec::new(),
            duplicates: 0,
            link: usize::MAX,
            is_paused: true,
            without: None,
        }
    }

    /// Returns a scenario with clocks that run at the same rate. The durations are the term, the
    /// attempt and the time before a renewal, in tenths of ticks.
    pub fn with_timers(name: &str, durations: [u32; 3]) -> Scenario {
        let model = ClockModel::Bounded(ClockBound { rho_ppm: 0 });
        let clocks = Clocks::Together([100; N]);
        Scenario::new(&format!("timers: {name}"), clocks, model, durations)
    }

    /// Returns a scenario with clocks that may differ from the right rate by a quarter. The rates are
    /// the advances of each clock in a tick, in ms.
    pub fn with_drift(name: &str, rates: [u16; N], durations: [u32; 3]) -> Scenario {
        let model = ClockModel::Bounded(ClockBound { rho_ppm: 250_000 });
        let clocks = Clocks::Together(rates);
        Scenario::new(&format!("drift: {name}"), clocks, model, durations)
    }

    /// Returns a scenario with synchronised clocks.
    pub fn synchronised(name: &str, durations: [u32; 3]) -> Scenario {
        let model = ClockModel::Synchronised { epsilon: TICK };
        let clocks = Clocks::Apart;
        Scenario::new(&format!("synchronised: {name}"), clocks, model, durations)
    }

    /// Lets all clocks show the same. `epsilon` is a tenth of a tick.
    pub fn equal(mut self) -> Scenario {
        let epsilon = tenths(1);
        self.settings.clocks = ClockModel::Synchronised { epsilon };
        self.clocks = Clocks::Together([100; N]);
        self
    }

    /// Sets the requests of m0 and m1, and the number of ticks.
    pub fn requests(mut self, m0: &[Request], m1: &[Request], horizon: u8) -> Scenario {
        self.programs = [m0.to_vec(), m1.to_vec(), Vec::new()];
        self.horizon = horizon;
        self
    }

    /// Lets one of these members crash.
    pub fn crash(mut self, members: &[usize]) -> Scenario {
        self.crashes = 1;
        self.may_crash = members.to_vec();
        self
    }

    /// Limits the number of packets in flight between two members, in one direction.
    pub fn link(mut self, most: usize) -> Scenario {
        self.link = most;
        self
    }

    /// Lets members handle deadlines in time.
    pub fn prompt(mut self) -> Scenario {
        self.is_paused = false;
        self
    }

    /// Lets packets be duplicated.
    pub fn duplicate(mut self, packets: u8) -> Scenario {
        self.duplicates = packets;
        self
    }

    /// Returns the reading of a member's clock when exploration begins.
    pub fn start(&self, member: usize) -> Time {
        let term = self.settings.term;
        match self.settings.clocks {
            // An interval of ballots begins here.
            ClockModel::Synchronised { epsilon } => Time::ZERO + (term - epsilon) * 10,
            // Readings of different clocks have nothing in common.
            ClockModel::Bounded(_) => Time::ZERO + term * 10 + TICK * 7 * member as u32,
        }
    }

    /// Returns the reading of a member's clock at which it stands still.
    pub fn end(&self, member: usize) -> Time {
        let tick = match self.clocks {
            Clocks::Apart => TICK,
            Clocks::Together(rates) => Duration::from_millis(rates[member].into()),
        };
        self.start(member) + tick * u32::from(self.horizon)
    }
}
