//! A state machine with its clock and its next deadline. It can be started, killed, paused and
//! resumed.

use leasehold_leases::Time;

use super::clock::Clock;

/// A fault that occurs between two actions of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The process is killed. It is started again after this time, in ns.
    Crash(u64),
    /// The process is paused for this time, in ns.
    Pause(u64),
}

/// State of a process that is paused.
#[derive(Debug)]
pub struct Pause<I, A> {
    /// Reading of the process's clock when the pause began.
    pub since: Time,
    /// Actions that the process was about to perform.
    pub unfinished: Vec<A>,
    /// Inputs that have arrived since the pause began.
    pub inbox: Vec<I>,
}

/// A process that runs a state machine `M` with inputs `I` and actions `A`.
#[derive(Debug)]
pub struct Process<M, I, A> {
    /// The state machine; `None` while the process is down.
    machine: Option<M>,
    clock: Clock,
    /// The next deadline: the true time, in ns, of its event, and the time by the process's clock.
    /// An event for another true time is stale.
    deadline: Option<(u64, Time)>,
    /// Number of times that the process was started.
    run: u64,
    pause: Option<Pause<I, A>>,
    /// The current trap, and the number of actions that the process still performs before the fault
    /// occurs.
    trap: Option<(u32, Trap)>,
}

impl<M, I, A> Process<M, I, A> {
    /// Creates a process that was never started.
    pub fn new(clock: Clock) -> Process<M, I, A> {
        Process {
            machine: None,
            clock,
            deadline: None,
            run: 0,
            pause: None,
            trap: None,
        }
    }

    /// Returns the state machine; `None` while the process is down.
    pub fn machine(&self) -> Option<&M> {
        self.machine.as_ref()
    }

    /// Returns the state machine; `None` while the process is down.
    pub fn machine_mut(&mut self) -> Option<&mut M> {
        self.machine.as_mut()
    }

    /// Whether the process is running and not paused.
    pub fn is_up(&self) -> bool {
        self.machine.is_some() && self.pause.is_none()
    }

    /// Returns the number of the current run. If the process is down, returns the number of the
    /// last run. Events for earlier runs are stale.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns the clock of the computer on which the process runs.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Replaces the clock after a restart of the process's computer. The process must be down.
    pub fn replace_clock(&mut self, clock: Clock) {
        assert!(self.machine.is_none(), "a running process keeps its clock");
        self.clock = clock;
    }

    /// Changes the clock. The caller must call [`Process::arm`] afterwards.
    pub fn change_clock(&mut self, change: impl FnOnce(&mut Clock)) {
        change(&mut self.clock);
        self.deadline = None;
    }

    /// Begins a run, and returns its number. The state machine is added by [`Process::boot`].
    pub fn begin_run(&mut self) -> u64 {
        self.run += 1;
        self.deadline = None;
        self.run
    }

    /// Adds the state machine of the current run.
    pub fn boot(&mut self, machine: M) {
        self.machine = Some(machine);
    }

    /// Kills the process. Its state machine, its pause and its trap are dropped.
    pub fn kill(&mut self) {
        self.machine = None;
        self.pause = None;
        self.trap = None;
    }

    /// Pauses the process before it performs the `unfinished` actions.
    pub fn stop(&mut self, now_ns: u64, unfinished: Vec<A>) {
        self.pause = Some(Pause {
            since: self.clock.read(now_ns),
            unfinished,
            inbox: Vec::new(),
        });
    }

    /// Returns the inputs that have arrived since the process was paused; `None` if it is not
    /// paused.
    pub fn paused_inbox(&mut self) -> Option<&mut Vec<I>> {
        Some(&mut self.pause.as_mut()?.inbox)
    }

    /// Ends a pause. Returns the time at which the pause began, the unfinished actions, and the
    /// inputs that arrived; `None` if the process was not paused.
    pub fn resume(&mut self) -> Option<Pause<I, A>> {
        self.pause.take()
    }

    /// Sets a trap. Its fault occurs after `actions` more actions.
    pub fn set_trap(&mut self, actions: u32, trap: Trap) {
        self.trap = Some((actions, trap));
    }

    /// Removes the trap.
    pub fn disarm(&mut self) {
        self.trap = None;
    }

    /// Records that the process is about to perform an action. Returns the trap if its fault occurs
    /// before this action.
    pub fn springs(&mut self) -> Option<Trap> {
        let (left, trap) = self.trap.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        let trap = *trap;
        self.trap = None;
        Some(trap)
    }

    /// Sets `next` as the next deadline by the process's clock. Returns the true time, in ns, for
    /// which the caller must schedule a deadline event. Returns `None` if an event at this time or
    /// earlier is already scheduled, or if `next` is [`Time::MAX`]. If an event occurs before
    /// `next` is reached, the caller must call this method again.
    pub fn arm(&mut self, now_ns: u64, next: Time) -> Option<u64> {
        if next == Time::MAX || self.deadline.is_some_and(|(_, due)| due <= next) {
            return None;
        }
        let at_ns = self.clock.when(next).max(now_ns + 1);
        if self.deadline.is_some_and(|(pending, _)| at_ns >= pending) {
            return None;
        }
        self.deadline = Some((at_ns, next));
        Some(at_ns)
    }

    /// Whether this true time, in ns, is the time of the deadline event that was scheduled last.
    /// All other deadline events are stale.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.deadline.is_some_and(|(at_ns, _)| at_ns == now_ns)
    }

    /// Records that the event of the next deadline has occurred.
    pub fn take_deadline(&mut self) {
        self.deadline = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process() -> Process<u8, char, char> {
        let mut process = Process::new(Clock::new(0, 100, 0));
        process.begin_run();
        process.boot(7);
        process
    }

    #[test]
    fn only_the_earliest_deadline_event_counts() {
        let mut process = process();
        assert_eq!(process.arm(0, Time::MAX), None);
        assert_eq!(process.arm(0, Time(150)), Some(50));
        assert_eq!(process.arm(0, Time(160)), None, "an earlier one comes");
        assert_eq!(process.arm(0, Time(120)), Some(20));
        assert!(process.is_due(20) && !process.is_due(50));
        process.take_deadline();
        assert_eq!(process.arm(20, Time(110)), Some(21), "never in the past");
    }

    #[test]
    fn a_changed_clock_is_armed_again() {
        let mut process = process();
        assert_eq!(process.arm(0, Time(1_000_100)), Some(1_000_000));
        process.change_clock(|clock| clock.jump(500_000));
        assert_eq!(process.arm(0, Time(1_000_100)), Some(500_000));
    }

    #[test]
    fn a_pause_keeps_what_was_unfinished_and_what_arrives() {
        let mut process = process();
        assert!(process.is_up() && process.paused_inbox().is_none());
        process.stop(5, vec!['a']);
        assert!(!process.is_up());
        process.paused_inbox().expect("it stands still").push('i');
        let pause = process.resume().expect("it stood still");
        assert_eq!(
            (pause.since, pause.unfinished, pause.inbox),
            (Time(105), vec!['a'], vec!['i'])
        );
        assert!(process.is_up());
    }

    #[test]
    fn a_trap_is_sprung_once_and_dies_with_its_run() {
        let mut process = process();
        process.set_trap(2, Trap::Pause(9));
        let sprung: Vec<_> = (0..4).map(|_| process.springs()).collect();
        assert_eq!(sprung, [None, None, Some(Trap::Pause(9)), None]);
        process.set_trap(0, Trap::Crash(1));
        process.stop(0, Vec::new());
        process.kill();
        assert_eq!(process.machine(), None);
        assert_eq!(process.springs(), None);
        assert!(process.resume().is_none());
        assert_eq!(process.begin_run(), 2);
    }
}
