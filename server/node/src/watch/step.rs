//! Detects event-loop iterations that take long, and reports which kind of work took the time.
//!
//! All parts of a replica share one thread. Nothing is read or sent during an iteration of its
//! event loop. So a heartbeat or a renewal of leases that becomes due waits for the end of the
//! iteration.

use std::time::{Duration, Instant};

use leasehold_replica::DueTimers;
use leasehold_replica::input::Input;
use leasehold_replica::shell::IterationPart;

/// Duration above which an event-loop iteration is reported.
const LONG: Duration = Duration::from_millis(50);
/// Minimum interval between two reports. Each report describes the longest iteration since the last
/// report.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Kinds of work in an event-loop iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkKind {
    /// Inputs from the node itself, such as reads that must be repeated, storage reports and
    /// operators' orders.
    Own,
    /// Messages of peers.
    Peers,
    /// Commands of clients.
    Clients,
    /// Timers that are due in an iteration without inputs.
    Timers,
    /// Work at the end of a batch of inputs: proposals, forwarded commands, votes.
    Proposals,
    /// The actions that the replica has requested: sending, storing and answering.
    Actions,
    /// Answers to requests for the status and to other requests of operators.
    Status,
    /// One part of a pass over all keys with known demand.
    Demand,
    /// Writing to sockets.
    Writing,
}

const WORK_KINDS: [(WorkKind, &str); 9] = [
    (WorkKind::Own, "answers of the storage and repeated reads"),
    (WorkKind::Peers, "messages of peers"),
    (WorkKind::Clients, "commands of clients"),
    (WorkKind::Timers, "timers"),
    (WorkKind::Proposals, "proposals"),
    (WorkKind::Actions, "actions of the replica"),
    (WorkKind::Status, "questions of operators"),
    (WorkKind::Demand, "reports of demand"),
    (WorkKind::Writing, "writing to sockets"),
];

impl WorkKind {
    /// Returns the kind of work to which a part of the replica's iteration belongs.
    pub(crate) fn of(part: &IterationPart<'_>) -> WorkKind {
        match part {
            IterationPart::Begin(_) => WorkKind::Own,
            IterationPart::Input(Input::Peer(_)) => WorkKind::Peers,
            IterationPart::Input(Input::Client { .. }) => WorkKind::Clients,
            IterationPart::Input(_) => WorkKind::Own,
            IterationPart::Timers => WorkKind::Timers,
            IterationPart::Proposals => WorkKind::Proposals,
        }
    }
}

/// Report of a long event-loop iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LongIteration {
    took: Duration,
    /// Kind of work that took most of the iteration.
    cause: &'static str,
    /// Time that work of the kind `cause` took in the iteration.
    cause_took: Duration,
    /// Number of pieces of work of the kind `cause` in the iteration.
    count: u32,
    /// Names of timers that were due when the iteration began.
    due: String,
    /// Number of other long iterations since the last report. None of them was longer than this
    /// one.
    untold: u64,
}

/// Measures the work in event-loop iterations, and reports iterations that take long.
#[derive(Debug)]
pub(crate) struct StepWatch {
    /// Time at which the current kind of work began.
    begun: Instant,
    current: usize,
    spent: [Duration; WORK_KINDS.len()],
    counts: [u32; WORK_KINDS.len()],
    due: DueTimers,
    long: u64,
    longest: Duration,
    /// The longest iteration that has not been reported yet.
    unreported: Option<LongIteration>,
    /// Earliest time of the next report.
    next: Option<Instant>,
}

impl StepWatch {
    pub(crate) fn new(now: Instant) -> StepWatch {
        StepWatch {
            begun: now,
            current: 0,
            spent: Default::default(),
            counts: Default::default(),
            due: DueTimers::default(),
            long: 0,
            longest: Duration::ZERO,
            unreported: None,
            next: None,
        }
    }

    /// Notes that an event-loop iteration begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.begun = now;
        self.current = WorkKind::Own as usize;
        self.spent = Default::default();
        self.counts = Default::default();
        self.due = DueTimers::default();
    }

    /// Notes that these timers are due.
    pub(crate) fn note_due(&mut self, due: DueTimers) {
        self.due = due;
    }

    /// Notes that a piece of this kind of work begins. The clock is read only if the previous piece
    /// was of another kind.
    pub(crate) fn enter(&mut self, work: WorkKind, now: impl FnOnce() -> Instant) {
        let work = work as usize;
        self.counts[work] += 1;
        if work != self.current {
            self.leave(now());
            self.current = work;
        }
    }

    fn leave(&mut self, now: Instant) {
        self.spent[self.current] += now.saturating_duration_since(self.begun);
        self.begun = now;
    }

    /// Notes that an event-loop iteration ends. Returns a report if one is due. The first long
    /// iteration is reported immediately. After that, the longest iteration of each
    /// [`LOG_INTERVAL`] is reported.
    pub(crate) fn end(&mut self, now: Instant) -> Option<LongIteration> {
        self.leave(now);
        let took = self.spent.iter().sum();
        if took > LONG {
            self.keep(took);
        }
        if self.next.is_some_and(|next| now < next) {
            return None;
        }
        let report = self.unreported.take()?;
        self.next = Some(now + LOG_INTERVAL);
        Some(report)
    }

    /// Keeps a long iteration for the next report, unless a longer one is already kept.
    fn keep(&mut self, took: Duration) {
        self.long += 1;
        self.longest = self.longest.max(took);
        let before = self.unreported.take();
        let untold = before.as_ref().map_or(0, |before| before.untold + 1);
        let longer = before.filter(|before| before.took >= took);
        let mut kept = longer.unwrap_or_else(|| self.report(took));
        kept.untold = untold;
        self.unreported = Some(kept);
    }

    fn report(&self, took: Duration) -> LongIteration {
        let parts = WORK_KINDS.iter().zip(self.spent).zip(self.counts);
        let most = parts.max_by_key(|((_, spent), _)| *spent);
        let (((_, cause), cause_took), count) = most.expect("at least one kind of work exists");
        let due: Vec<&str> = self.due.names().collect();
        LongIteration {
            took,
            cause,
            cause_took,
            count,
            due: due.join(", "),
            untold: 0,
        }
    }

    /// Returns two counters by name: the number of long iterations, and the duration of the longest
    /// iteration in ms.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 2] {
        [
            ("long_rounds", self.long),
            ("longest_round_ms", self.longest.as_millis() as u64),
        ]
    }
}

/// Writes a report to the log.
pub(crate) fn warn(long: &LongIteration) {
    tracing::warn!(
        ms = long.took.as_millis() as u64,
        cause = long.cause,
        cause_ms = long.cause_took.as_millis() as u64,
        count = long.count,
        due = long.due,
        untold = long.untold,
        "a round took long, and `untold` other long rounds took no longer: nothing was read or sent \
         meanwhile, not even a heartbeat. If the machine is not short of processor time, \
         please report this line"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs an iteration that begins at `start` and in which each kind of work takes the given
    /// time.
    fn round(
        watch: &mut StepWatch,
        start: Instant,
        works: &[(WorkKind, u32, Duration)],
    ) -> Option<LongIteration> {
        let mut now = start;
        watch.begin(now);
        for (work, count, took) in works {
            for _ in 0..*count {
                watch.enter(*work, || now);
            }
            now += *took;
        }
        watch.end(now)
    }

    #[test]
    fn a_long_round_is_reported_with_what_took_most_of_it() {
        let start = Instant::now();
        let mut watch = StepWatch::new(start);
        let short = [(WorkKind::Peers, 3, MS), (WorkKind::Clients, 2, 49 * MS)];
        assert_eq!(round(&mut watch, start, &short), None);
        let long = [
            (WorkKind::Peers, 1, 20 * MS),
            (WorkKind::Clients, 2113, 40 * MS),
            (WorkKind::Peers, 1, 5 * MS),
            (WorkKind::Writing, 1, 2 * MS),
        ];
        let report = round(&mut watch, start, &long).unwrap();
        assert_eq!((report.took, report.cause_took), (67 * MS, 40 * MS));
        assert_eq!((report.cause, report.count), ("commands of clients", 2113));
        let counters = [("long_rounds", 1), ("longest_round_ms", 67)];
        assert_eq!(watch.counters(), counters);
    }

    #[test]
    fn lines_are_rare_and_tell_the_longest_and_how_many_others_there_were() {
        let start = Instant::now();
        let mut watch = StepWatch::new(start);
        let mut told = Vec::new();
        for second in 0..35 {
            let (work, ms) = match second {
                4 => (WorkKind::Demand, 90),
                _ => (WorkKind::Status, 60),
            };
            // No round is long from then on.
            let ms = if second < 25 { ms } else { 1 };
            let at = start + Duration::from_secs(second);
            let long = round(&mut watch, at, &[(work, 1, ms * MS)]);
            told.extend(long.map(|long| (second, long.took, long.cause, long.untold)));
        }
        let expected = [
            (0, 60 * MS, "questions of operators", 0),
            (10, 90 * MS, "reports of demand", 9),
            (20, 60 * MS, "questions of operators", 9),
            (31, 60 * MS, "questions of operators", 3),
        ];
        assert_eq!(told, expected);
        assert_eq!(watch.counters()[0].1, 25);
    }

    #[test]
    fn kinds_of_work_are_listed_in_their_order() {
        for (index, (work, _)) in WORK_KINDS.iter().enumerate() {
            assert_eq!(*work as usize, index);
        }
    }
}
