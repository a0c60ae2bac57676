//! A state machine on its machine: it is started and killed, stands still and resumes, and has a
//! clock and a next deadline.

use leasehold_leases::Time;

use super::clock::Clock;

/// A fault between two actions of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The process is killed, and started again after this many ns.
    Crash(u64),
    /// The process stands still for this many ns.
    Pause(u64),
}

/// State of a process that stands still.
#[derive(Debug)]
pub struct Pause<I, A> {
    /// Reading of its clock when it stopped.
    pub since: Time,
    /// Actions that it was about to perform.
    pub unfinished: Vec<A>,
    /// Inputs that have arrived meanwhile.
    pub inbox: Vec<I>,
}

/// A process that runs a state machine `M` with inputs `I` and actions `A`.
#[derive(Debug)]
pub struct Process<M, I, A> {
    /// `None` while the process is down.
    machine: Option<M>,
    clock: Clock,
    /// The deadline event that counts: in true time, in ns, and by the clock.
    deadline: Option<(u64, Time)>,
    /// Number of times that it was started.
    run: u64,
    pause: Option<Pause<I, A>>,
    /// The trap, and the number of actions before it is sprung.
    trap: Option<(u32, Trap)>,
}

impl<M, I, A> Process<M, I, A> {
    /// A process that was never started.
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

    /// The state machine, while the process runs.
    pub fn machine(&self) -> Option<&M> {
        self.machine.as_ref()
    }

    /// The state machine, while the process runs.
    pub fn machine_mut(&mut self) -> Option<&mut M> {
        self.machine.as_mut()
    }

    /// Whether the process runs, and does not stand still.
    pub fn is_up(&self) -> bool {
        self.machine.is_some() && self.pause.is_none()
    }

    /// Number of the current run, or of the last one. An event for an earlier run is stale.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Its machine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Replaces the clock of a process that is down: its machine has started again.
    pub fn replace_clock(&mut self, clock: Clock) {
        assert!(self.machine.is_none(), "a running process keeps its clock");
        self.clock = clock;
    }

    /// Changes the clock. The caller arms the process again.
    pub fn change_clock(&mut self, change: impl FnOnce(&mut Clock)) {
        change(&mut self.clock);
        self.deadline = None;
    }

    /// Begins a run. Returns its number; [`Process::boot`] brings its state machine.
    pub fn begin_run(&mut self) -> u64 {
        self.run += 1;
        self.deadline = None;
        self.run
    }

    /// The state machine of this run is there.
    pub fn boot(&mut self, machine: M) {
        self.machine = Some(machine);
    }

    /// Kills the process: its state machine, what it was about to do and its trap are gone.
    pub fn kill(&mut self) {
        self.machine = None;
        self.pause = None;
        self.trap = None;
    }

    /// Stops the process before it performs the actions that are `unfinished`.
    pub fn stop(&mut self, now_ns: u64, unfinished: Vec<A>) {
        self.pause = Some(Pause {
            since: self.clock.read(now_ns),
            unfinished,
            inbox: Vec::new(),
        });
    }

    /// Inputs that have arrived at a process that stands still.
    pub fn paused_inbox(&mut self) -> Option<&mut Vec<I>> {
        Some(&mut self.pause.as_mut()?.inbox)
    }

    /// Ends a pause, and returns what it has left.
    pub fn resume(&mut self) -> Option<Pause<I, A>> {
        self.pause.take()
    }

    /// Springs a trap after this many more actions.
    pub fn set_trap(&mut self, actions: u32, trap: Trap) {
        self.trap = Some((actions, trap));
    }

    /// Removes the trap.
    pub fn disarm(&mut self) {
        self.trap = None;
    }

    /// Counts an action that is about to be performed. Returns the trap, if this action springs it.
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

    /// Takes the machine's next deadline, by its clock, into account. Returns the true time, in ns,
    /// for which the caller must schedule a deadline event, if none comes early enough. An event
    /// that comes early finds nothing due, and then the process is armed again.
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

    /// Whether the deadline event of this true time, in ns, is the one that counts.
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.deadline.is_some_and(|(at_ns, _)| at_ns == now_ns)
    }

    /// The deadline event that counted has come.
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
