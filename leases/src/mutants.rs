//! Mutants: each hazard rule of protocol §6 can be disabled, to show that some check detects the
//! absence of the rule. A check that has never failed may check nothing.
//!
//! Code that obeys a rule first asks `off(Rule::…)` whether the rule is disabled. Without the
//! feature `mutants`, the result is a constant and the call costs nothing. With the feature, the
//! rule passed to `with` is disabled in the thread that runs the body. A server cannot be built
//! with the feature: such a build omits the server's shell (sockets, disk, clock), so there is no
//! program to start.

/// Whether this build can disable rules.
pub const COMPILED_IN: bool = cfg!(feature = "mutants");

/// Defines `off` and `mutated` for an enum of rules, and `with` if the crate has the feature
/// `mutants` and is built with it.
#[macro_export]
macro_rules! rule_switch {
    ($rule:ident) => {
        /// Whether `rule` is disabled in this thread. This is always false without the feature
        /// `mutants`.
        #[cfg(not(feature = "mutants"))]
        #[inline(always)]
        pub const fn off(_: $rule) -> bool {
            false
        }

        /// Whether at least one rule is disabled in this thread. If true, assertions about
        /// consequences of the rules are skipped, so that an oracle or a directed test detects the
        /// mutant.
        #[cfg(not(feature = "mutants"))]
        #[inline(always)]
        pub const fn mutated() -> bool {
            false
        }

        #[cfg(feature = "mutants")]
        pub use switched::{mutated, off, with};

        #[cfg(feature = "mutants")]
        mod switched {
            use std::cell::Cell;

            use super::$rule;

            std::thread_local! {
                static OFF: Cell<Option<$rule>> = const { Cell::new(None) };
            }

            /// Whether `rule` is disabled in this thread.
            pub fn off(rule: $rule) -> bool {
                OFF.get() == Some(rule)
            }

            /// Whether at least one rule is disabled in this thread.
            pub fn mutated() -> bool {
                OFF.get().is_some()
            }

            /// Runs `body` with `rule` disabled in this thread. The rule is enabled again
            /// afterwards, also if `body` panics.
            pub fn with<T>(rule: $rule, body: impl FnOnce() -> T) -> T {
                struct Restore(Option<$rule>);
                impl Drop for Restore {
                    fn drop(&mut self) {
                        OFF.set(self.0);
                    }
                }
                let _restore = Restore(OFF.replace(Some(rule)));
                body()
            }
        }
    };
}

macro_rules! rules {
    ($($name:ident: $hazard:literal, $without:literal;)*) => {
        /// A rule that a mutant disables. The rule's name contains the number of its hazard.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(
                #[doc = $without]
                $name,
            )*
        }

        impl Rule {
            /// All rules, in ascending order of the numbers of their hazards.
            pub const ALL: &[Rule] = &[$(Rule::$name),*];

            /// Returns the number of the rule's hazard in protocol §6.
            pub fn hazard(self) -> u8 {
                match self { $(Rule::$name => $hazard),* }
            }

            /// Describes how replicas behave without the rule.
            pub fn without(self) -> &'static str {
                match self { $(Rule::$name => $without),* }
            }
        }
    };
}

rules! {
    H01OldAck: 1, "any ack shortens a grant, not only that of the latest promise";
    H02Repeats: 2, "a guard or promise is taken again, and after a later one";
    H03Drift: 3, "a grantor counts spans by its own clock, as if no other ran slower";
    H04LatePromise: 4, "a promise is taken however long it lay in a buffer";
    H04Fence: 4, "an answer leaves although its permit has ended since it was read";
    H05Barrier: 5, "a holder reads without executing what its grantors had accepted";
    H05Lapse: 5, "a promise after a lapse has the barrier of those from before it";
    H05NewlyGiven: 5, "a key newly given has the barrier of promises from before it was given";
    H06OneBarrier: 6, "the barrier of one grantor serves for all that are counted";
    H07Pending: 7, "entries on their way to disk count in no barrier, and their votes carry the tag of before";
    H08Lapse: 8, "a grant counts until its holder answers, however long ago it has expired";
    H09LeaderTag: 9, "the leader's vote carries no tag";
    H10LeaderMarks: 10, "a leader reads past its own writes in flight";
    H11Tags: 11, "a majority that has accepted commits, whomever it demands";
    H12NamedLeader: 12, "default holders are those of today, also under an older configuration";
    H13Phase1: 13, "what Phase 1 finds is committed at once";
    H14UnknownConfig: 14, "promises are made and taken under configurations that the holder does not know";
    H15RestartWait: 15, "a restarted grantor votes with the tag of the grants that it remembers: none";
    H16OldPromise: 16, "a restarted holder takes promises made to its earlier run";
    H17PerConfig: 17, "one grant a holder: a promise under a newer configuration replaces the older grant";
    H17Shortening: 17, "an ack shortens the grants under every configuration";
    H18Marks: 18, "marks stay as they were when a higher ballot replaces or drops a slot's value";
    H19Holes: 19, "a promise names the committed prefix of the log, not the highest accepted slot";
    H20Value: 20, "votes at one ballot commit the value that was accepted at another";
    H21Once: 21, "a retry is executed again";
    H21Reopened: 21, "a retry of a session's first command opens it again after it has expired";
    H22EvenHalf: 22, "half of an even number of replicas is a majority";
    H23DurableWait: 23, "the restart wait is not made durable";
    H24Falls: 24, "a barrier never falls within a chain";
    H25StaleNow: 25, "the clock is read before the inputs are taken";
    H26Proposed: 26, "the index of a read is the commit point";
    H26Probe: 26, "a read is confirmed by answers to probes from before it";
    H27Ahead: 27, "a candidate leads without what its quorum knows to be committed";
    H28Ballot: 28, "a commit point commits entries of any ballot";
    H29LogStart: 29, "a no-op tells where its ballot's log starts";
    H30Highest: 30, "a restart forgets the highest slot that it had accepted";
    H30Marks: 30, "a restart forgets the marks of what it had accepted";
    H31Sure: 31, "a blind write is answered at commit although execution may refuse it";
    H31Room: 31, "a blind write is answered at commit although its session may end before, to make room";
    H31Copies: 31, "where one copy of a write is executed, all of them count as executed";
    H31Unexecuted: 31, "a new leader forgets the writes that are committed and not executed yet";
    H32UpTo: 32, "a Relinquish drops every grant, newer ones too";
    H33Wiped: 33, "a replica takes part under its old name after its disk was wiped";
    H34LastMulti: 34, "a write is answered at commit before an earlier multi-key command";
    H34TxnReads: 34, "a transaction that writes one key counts as a command on one key, although it reads others";
    H35NamedAck: 35, "a promise is measured against the newest window, not the one that it names";
    H36Blockers: 36, "a replica that cannot persist keeps its leases, and is not suspected";
    H37Life: 37, "messages to an earlier run count, and runs use the same request ids";
    H38LogStart: 38, "a write is answered at commit before the recovered part of the log";
    H39Acknowledged: 39, "a first attempt that arrives after the acknowledgement of its retry is executed";
    H40Chain: 40, "promises stay in force when they are relinquished";
    H41Oldest: 41, "a suspect is renewed under configurations from before its exclusion";
    H41Restored: 41, "a restart forgets under which configurations a suspect was excluded";
    H42Index: 42, "all writes of a batch have one version";
    H43Unmarked: 43, "several keys are read at once although one of them is being written";
    H44Truncated: 44, "a barrier counts only entries that are not executed yet";
    H65Versions: 65, "a restart knows only the newest holders of a key, also under older configurations";
    H66Executed: 66, "an executed slot is accepted again, also below the promised ballot";
    H68Longest: 68, "the restart wait is that of the newest durations, however long those before were";
    H69Cleared: 69, "neighbouring ranges become one although they were cleared at different times";
    H69Restored: 69, "a restart forgets which configurations removed the listed keys of a range";
    H71Configured: 71, "a restart forgets that a configuration was ever in force";
    H77Refused: 77, "a low-water mark refuses what would open a session, and a copy of it may come later";
    H78Durable: 78, "a window begins at what is executed, durable or not, and a restart skips what lies beyond it";
    H79Room: 79, "a leader proposes beyond its window, where it does not store it itself";
    H80Slew: 80, "clock readings are believed although they diverge";
    H81Leaps: 81, "numbers of messages are believed, however far they leap";
    H82Frames: 82, "whatever is gathered leaves in one message, however long it becomes";
    H83Leave: 83, "a replica that ends writes down that nobody believes it, although its promises are in force";
    H84Room: 84, "a session that ended to make room is opened again by a late copy";
    H84Durable: 84, "a restart forgets which sessions may have ended to make room";
    H85Stays: 85, "a session ends to make room however lately it was active";
    H88Rows: 88, "the position of the state becomes durable without its rows";
    H90Counts: 90, "a restart counts no listed keys";
    H92Earlier: 92, "entries that an earlier run has fetched are stored";
    H107Committed: 107, "accepted slots are recorded as committed: a restart executes them";
    H113Accept: 113, "an Accept counts as a vote of its leader, whose entry may not be durable";
    H113Durable: 113, "a leader votes for a proposal that it has not made durable";
    H113Tag: 113, "the leader's vote carries the tag of the time at which it proposed";
    H114Segment: 114, "the checksum of a record does not cover the segment for which it was written";
    H116Whole: 116, "a group of records is read although a crash has torn it";
    H117Behind: 117, "the bytes behind the end of a log are not examined: damage is taken for a torn write";
    H117Follows: 117, "a segment of a log need not continue the one before it";
    H118Heads: 118, "the head of a segment states facts of records that are not written yet";
    H121Sessions: 121, "the sessions do not become durable together with the rest of the state";
    H125Members: 125, "entries go as soon as this replica has flushed them, although others may need them";
    H126Relisted: 126, "the row of a forgotten key is removed although the key is listed again";
    H130Lists: 130, "only the keys of the first list of a transaction are marked, and named in tags";
    H131Whole: 131, "a transaction that fails keeps the effects of its earlier operations";
    H132Earlier: 132, "an operation of a transaction does not see the effects of those before it";
    H133Abridged: 133, "a repeated transaction is answered without its values, as if they were empty";
    H134LastWrite: 134, "a read is answered at commit although a later command of the slot writes its key";
}

rule_switch!(Rule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_named_after_their_hazards() {
        for rule in Rule::ALL {
            let number = format!("H{:02}", rule.hazard());
            assert!(format!("{rule:?}").starts_with(&number), "{rule:?}");
        }
    }

    #[test]
    #[cfg(not(feature = "mutants"))]
    fn no_rule_can_be_switched_off() {
        assert!(Rule::ALL.iter().all(|rule| !off(*rule)));
        assert!(!mutated());
    }

    #[test]
    #[cfg(feature = "mutants")]
    fn a_rule_is_off_for_one_body_only() {
        let inside = with(Rule::H01OldAck, || {
            (off(Rule::H01OldAck), off(Rule::H02Repeats), mutated())
        });
        assert_eq!(inside, (true, false, true));
        let died = std::panic::catch_unwind(|| with(Rule::H01OldAck, || panic!("as told")));
        assert!(died.is_err() && !off(Rule::H01OldAck) && !mutated());
    }
}
