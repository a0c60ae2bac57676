//! Availability of sites and replicas: for each site the longest time without a successful answer,
//! and the replicas that became silent. All times are counted from the start of the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::sample::OpKind;

/// Name of a replica in reports: its address.
pub type ReplicaName = Arc<str>;

/// Class of requests: reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpClass {
    /// Reads and scans.
    Reads,
    /// Updates, insertions and transactions.
    Writes,
}

impl OpClass {
    /// Returns the class of a request; `None` for a read-modify-write, which consists of two
    /// requests.
    pub fn of(kind: OpKind) -> Option<OpClass> {
        match kind {
            OpKind::Read | OpKind::Scan => Some(OpClass::Reads),
            OpKind::Update | OpKind::Insert | OpKind::Txn => Some(OpClass::Writes),
            OpKind::ReadModifyWrite => None,
        }
    }

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::Reads => "READS",
            OpClass::Writes => "WRITES",
        }
    }
}

/// A time without a successful answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AvailabilityGap {
    /// Time at which the gap began: the time of the last answer before the gap.
    pub began: Duration,
    /// Duration of the gap.
    pub length: Duration,
}

/// Answers to the requests of one class at one site.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    last: Duration,
    longest: AvailabilityGap,
}

impl Answers {
    fn record(&mut self, at: Duration) {
        let length = at.saturating_sub(self.last);
        if length > self.longest.length {
            let began = self.last;
            self.longest = AvailabilityGap { began, length };
        }
        self.last = self.last.max(at);
    }
}

/// Outcomes of the requests to one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaAvailability {
    /// Index of the site that uses this replica; `None` if no site uses it.
    pub site: Option<u8>,
    /// Number of requests that the replica answered, including refusals.
    pub answered: u64,
    /// Number of requests that the replica did not answer: the connection was refused or lost, the
    /// time ran out, or the request was abandoned.
    pub unanswered: u64,
    /// Time of the replica's last answer; `None` if it never answered.
    pub last_answer: Option<Duration>,
    /// Send time of the latest request that this replica did not answer. This includes requests
    /// that another replica answered instead.
    last_in_vain: Option<Duration>,
    /// Longest past silence of the replica. The present silence is not considered.
    silence: AvailabilityGap,
}

impl ReplicaAvailability {
    /// Returns the time at which the present silence of the replica began; `None` if the replica is
    /// not silent. A replica is silent if it did not answer a request that was sent after its last
    /// answer. The silence begins at the last answer, or at 0 if there was no answer.
    pub fn silent_since(&self) -> Option<Duration> {
        let last_answer = self.last_answer.unwrap_or_default();
        self.last_in_vain
            .filter(|sent| *sent >= last_answer)
            .map(|_| last_answer)
    }

    /// Returns the longest silence of the replica; `None` if there was no silence. A silence is a
    /// time between two successive answers of the replica. In this time, the replica failed to
    /// answer a request, or another replica answered instead.
    pub fn longest_silence(&self) -> Option<AvailabilityGap> {
        Some(self.silence).filter(|gap| !gap.length.is_zero())
    }

    fn record_answer(&mut self, at: Duration) {
        if let Some(began) = self.silent_since() {
            let length = at.saturating_sub(began);
            if length > self.silence.length {
                self.silence = AvailabilityGap { began, length };
            }
        }
        self.answered += 1;
        self.last_answer = self.last_answer.max(Some(at));
    }

    fn record_miss(&mut self, sent: Duration) {
        self.last_in_vain = self.last_in_vain.max(Some(sent));
    }
}

/// Times of the answers to each site, and the replicas that answered.
#[derive(Clone, Debug, Default)]
pub struct Availability {
    from: Duration,
    classes: BTreeMap<(u8, OpClass), Answers>,
    /// For each site, the time at which its threads stopped making requests.
    until: BTreeMap<u8, Duration>,
    replicas: BTreeMap<ReplicaName, ReplicaAvailability>,
}

impl Availability {
    /// Creates an empty record of a run that begins its measured phase at `from`.
    pub fn new(from: Duration) -> Self {
        Availability {
            from,
            ..Availability::default()
        }
    }

    /// Records that a site makes requests of this kind. A site without such requests has no gaps.
    pub fn requested(&mut self, site: u8, kind: OpKind) {
        self.answers(site, kind);
    }

    /// Records a successful answer.
    pub fn succeeded(&mut self, site: u8, kind: OpKind, at: Duration) {
        if let Some(answers) = self.answers(site, kind) {
            answers.record(at);
        }
    }

    fn answers(&mut self, site: u8, kind: OpKind) -> Option<&mut Answers> {
        let key = (site, OpClass::of(kind)?);
        let fresh = Answers {
            last: self.from,
            ..Answers::default()
        };
        Some(self.classes.entry(key).or_insert(fresh))
    }

    /// Records that one of the site's threads made no more requests after `at`.
    pub fn left(&mut self, site: u8, at: Duration) {
        let until = self.until.entry(site).or_default();
        *until = at.max(*until);
    }

    /// Records that a site's threads use a replica. The replica is then listed even if it never
    /// answers.
    pub fn used(&mut self, replica: &ReplicaName, site: u8) {
        self.replica(replica).site = Some(site);
    }

    /// Records that a replica answered, with success or a refusal.
    pub fn answered(&mut self, replica: &ReplicaName, at: Duration) {
        self.replica(replica).record_answer(at);
    }

    /// Records that a replica did not answer a request that was sent to it at `sent`.
    pub fn unanswered(&mut self, replica: &ReplicaName, sent: Duration) {
        let replica = self.replica(replica);
        replica.unanswered += 1;
        replica.record_miss(sent);
    }

    /// Records that another replica answered a request instead of `replica`. The thread prefers
    /// `replica`. The request was sent at `sent`.
    pub fn bypassed(&mut self, replica: &ReplicaName, sent: Duration) {
        self.replica(replica).record_miss(sent);
    }

    fn replica(&mut self, name: &ReplicaName) -> &mut ReplicaAvailability {
        if !self.replicas.contains_key(name) {
            self.replicas
                .insert(Arc::clone(name), ReplicaAvailability::default());
        }
        self.replicas
            .get_mut(name)
            .expect("an absent replica was inserted above")
    }

    /// Returns the longest gap of each site and class, with the index of the site. The last gap of
    /// a site can also end without an answer: when the site's threads stop, or when the run ends.
    pub fn gaps(&self) -> impl Iterator<Item = (u8, OpClass, AvailabilityGap)> {
        self.classes.iter().map(|((site, class), answers)| {
            let mut answers = *answers;
            answers.record(self.until.get(site).copied().unwrap_or_default());
            (*site, *class, answers.longest)
        })
    }

    /// Returns the replicas that were used, by name.
    pub fn replicas(&self) -> impl Iterator<Item = (&ReplicaName, &ReplicaAvailability)> {
        self.replicas.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn gap(began: u64, length: u64) -> AvailabilityGap {
        AvailabilityGap {
            began: ms(began),
            length: ms(length),
        }
    }

    #[test]
    fn the_longest_gap_may_be_the_first_any_or_the_last() {
        let cases: [(&[u64], AvailabilityGap); 3] = [
            (&[600, 700, 1_000], gap(100, 500)),
            (&[200, 300, 800, 1_000], gap(300, 500)),
            (&[200, 400, 300], gap(400, 600)),
        ];
        for (times, expected) in cases {
            let mut seen = Availability::new(ms(100));
            for time in times {
                seen.succeeded(0, OpKind::Read, ms(*time));
            }
            seen.left(0, ms(900));
            seen.left(0, ms(1_000));
            let gaps: Vec<_> = seen.gaps().collect();
            assert_eq!(gaps, [(0, OpClass::Reads, expected)], "{times:?}");
        }
    }

    #[test]
    fn reads_writes_and_sites_are_apart_and_what_was_not_asked_has_no_gap() {
        let mut seen = Availability::new(ms(0));
        seen.succeeded(0, OpKind::Scan, ms(400));
        seen.requested(1, OpKind::Insert);
        seen.requested(1, OpKind::ReadModifyWrite);
        seen.left(0, ms(500));
        seen.left(1, ms(1_000));
        let gaps: Vec<_> = seen.gaps().collect();
        assert_eq!(
            gaps,
            [
                (0, OpClass::Reads, gap(0, 400)),
                (1, OpClass::Writes, gap(0, 1_000))
            ]
        );
    }

    #[test]
    fn answers_of_the_warm_up_open_no_gap() {
        let mut seen = Availability::new(ms(1_000));
        seen.succeeded(0, OpKind::Read, ms(200));
        seen.succeeded(0, OpKind::Read, ms(1_100));
        seen.left(0, ms(1_100));
        assert_eq!(seen.gaps().next().unwrap().2, gap(1_000, 100));
    }

    #[test]
    fn a_replica_is_silent_if_what_was_sent_since_its_last_answer_was_in_vain() {
        let name: ReplicaName = "a:1".into();
        let mut seen = Availability::new(ms(0));
        let since = |seen: &Availability| seen.replicas().next().unwrap().1.silent_since();
        seen.used(&name, 0);
        assert_eq!(since(&seen), None);
        seen.unanswered(&name, ms(5));
        assert_eq!(since(&seen), Some(ms(0)), "it never answered");
        seen.answered(&name, ms(100));
        seen.unanswered(&name, ms(90));
        assert_eq!(since(&seen), None, "it answered after that was sent");
        seen.unanswered(&name, ms(110));
        seen.unanswered(&name, ms(95));
        assert_eq!(since(&seen), Some(ms(100)));
        let (_, replica) = seen.replicas().next().unwrap();
        assert_eq!((replica.answered, replica.unanswered), (1, 4));
        seen.answered(&name, ms(120));
        assert_eq!(since(&seen), None);
    }

    #[test]
    fn a_silence_lasts_from_answer_to_answer_and_nobody_is_silent_whom_nobody_asked() {
        let name: ReplicaName = "a:1".into();
        let mut seen = Availability::new(ms(0));
        let longest = |seen: &Availability| seen.replicas().next().unwrap().1.longest_silence();
        seen.answered(&name, ms(100));
        seen.answered(&name, ms(900));
        assert_eq!(longest(&seen), None, "nobody asked in between");
        seen.unanswered(&name, ms(850));
        seen.answered(&name, ms(1_900));
        assert_eq!(longest(&seen), None, "it answered after that was sent");
        // The clients of the replica knew that it was dead, and used another one.
        seen.bypassed(&name, ms(2_000));
        seen.answered(&name, ms(2_400));
        seen.unanswered(&name, ms(2_400));
        seen.answered(&name, ms(2_500));
        assert_eq!(longest(&seen), Some(gap(1_900, 500)));
        let (_, replica) = seen.replicas().next().unwrap();
        assert_eq!((replica.answered, replica.unanswered), (5, 2));
    }
}
