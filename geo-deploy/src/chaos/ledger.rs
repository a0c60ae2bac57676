//! Judge of keys that only grow: *lists*, to which clients append unique tokens, and *counters*, to
//! which clients add positive numbers.
//!
//! These keys show more than a register, because their content depends on all earlier writes. So
//! the judge knows whether each append and each addition took effect exactly once:
//!
//! - Of two reads of a list, one must be a beginning of the other. So the longest list found is the
//!   order of all appends. It has each acknowledged token once, and any other token at most once.
//! - The position in the answer to an append must be the token's place in this order.
//! - Each acknowledged addition takes the counter from the sum before it to the sum in its answer.
//!   No other addition takes effect between these two sums. Each remaining step of the counter must
//!   be the sum of some additions without an answer, and each of them is used once.
//! - If one operation ended before another one began, the other one sees at least as long a list or
//!   as large a number.
//! - A transaction without an answer has taken effect on all its lists, or on none, and only one of
//!   its branches has taken effect.

mod counter;
mod list;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leasehold_histories::history::ValueId;

use counter::Counter;
use list::List;

/// Time of an operation, and the client that sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// ID of the client.
    pub process: u32,
    /// Time at which the operation began, in ns.
    pub began_ns: u64,
    /// Time at which the operation was answered, in ns; `None` if it was not answered.
    pub ended_ns: Option<u64>,
}

/// Action on a list or a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Growth {
    /// A list was read, and had these tokens.
    List(Vec<ValueId>),
    /// A token was appended to a list.
    Append {
        /// The token, which no other operation appends to the list.
        token: ValueId,
        /// Number of tokens after the append; `None` if the answer does not say it.
        length: Option<usize>,
    },
    /// A counter was read, and had this value.
    Counter(i64),
    /// A positive number was added to a counter.
    Add {
        /// The number. It is so large, and chosen so randomly, that few sums are equal by accident.
        delta: i64,
        /// Sum after the addition; `None` if the answer does not say it.
        sum: Option<i64>,
    },
}

/// Actions on lists and counters of one operation, each with its key.
pub type Growths = Vec<(u64, Growth)>;

/// All actions on lists and counters in a round.
#[derive(Clone, Debug, Default)]
pub struct GrowthLedger {
    lists: BTreeMap<u64, List>,
    counters: BTreeMap<u64, Counter>,
    /// The appends of each operation without an answer. If the operation had several branches,
    /// there is one list of appends for each branch.
    unanswered: Vec<(Span, Vec<Appends>)>,
}

/// Appends of one branch of an operation: lists and tokens.
type Appends = Vec<(u64, ValueId)>;

/// Verdict on a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerVerdict {
    /// Number of reads, appends and additions.
    pub actions: usize,
    /// Number of lists and counters.
    pub keys: usize,
    /// One reason for each check that had no result.
    pub undecided: Vec<String>,
    /// Descriptions of violations, at most one for each key or transaction.
    pub violations: Vec<String>,
}

/// Reason why a list or counter is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LedgerFlaw {
    /// The answers contradict each other.
    Violation(String),
    /// The answers could not be judged in reasonable time.
    Undecided(String),
}

impl GrowthLedger {
    /// Adds the actions of an operation that was answered.
    pub fn add(&mut self, span: Span, growths: &Growths) {
        for (key, growth) in growths {
            let (list, counter) = (&mut self.lists, &mut self.counters);
            match growth {
                Growth::List(tokens) => list.entry(*key).or_default().read(span, tokens),
                Growth::Append { token, length } => {
                    list.entry(*key).or_default().append(span, *token, *length);
                }
                Growth::Counter(value) => counter.entry(*key).or_default().read(span, *value),
                Growth::Add { delta, sum } => {
                    counter.entry(*key).or_default().add(span, *delta, *sum);
                }
            }
        }
    }

    /// Adds the possible actions of an operation that was not answered, for each of its branches.
    /// Reads without an answer say nothing, and are omitted.
    pub fn add_unanswered<'a>(
        &mut self,
        span: Span,
        branches: impl IntoIterator<Item = &'a Growths>,
    ) {
        let mut appends = Vec::new();
        for growths in branches {
            let is_write = |(_, growth): &&(u64, Growth)| match growth {
                Growth::Append { .. } | Growth::Add { .. } => true,
                Growth::List(_) | Growth::Counter(_) => false,
            };
            self.add(span, &growths.iter().filter(is_write).cloned().collect());
            let append = |(key, growth): &(u64, Growth)| match growth {
                Growth::Append { token, .. } => Some((*key, *token)),
                _ => None,
            };
            appends.push(growths.iter().filter_map(append).collect());
        }
        if appends
            .iter()
            .any(|of_branch: &Appends| !of_branch.is_empty())
        {
            self.unanswered.push((span, appends));
        }
    }

    /// Judges all actions.
    pub fn judge(&self) -> LedgerVerdict {
        let lists = self.lists.iter().map(|(key, list)| {
            let flaw = list.judge().map_err(LedgerFlaw::Violation);
            ("list", key, list.actions(), flaw)
        });
        let counters = self.counters.iter();
        let counters =
            counters.map(|(key, counter)| ("counter", key, counter.actions(), counter.judge()));
        let mut verdict = LedgerVerdict::default();
        for (kind, key, actions, judged) in lists.chain(counters) {
            verdict.keys += 1;
            verdict.actions += actions;
            match judged {
                Ok(()) => {}
                Err(LedgerFlaw::Violation(what)) => {
                    verdict.violations.push(format!("{kind} {key}: {what}"));
                }
                Err(LedgerFlaw::Undecided(why)) => {
                    verdict.undecided.push(format!("{kind} {key}: {why}"));
                }
            }
        }
        for (span, branches) in &self.unanswered {
            if let Err(what) = self.judge_branches(branches) {
                let by = span.text();
                verdict
                    .violations
                    .push(format!("a transaction {by} {what}"));
            }
        }
        verdict
    }

    /// Checks that at most one branch took effect, and that this branch took effect on all its lists.
    fn judge_branches(&self, branches: &[Appends]) -> Result<(), String> {
        let mut executed = 0;
        for appends in branches {
            let has = |(key, token): &&(u64, ValueId)| {
                let list = self.lists.get(key);
                list.is_some_and(|list| list.position(*token).is_some())
            };
            let found = appends.iter().filter(has).count();
            executed += usize::from(found > 0);
            if found > 0 && found < appends.len() {
                let words = appends.iter().map(|(key, token)| {
                    let has = if has(&&(*key, *token)) {
                        "has"
                    } else {
                        "lacks"
                    };
                    format!("list {key} {has} token {}", token.0)
                });
                let words: Vec<String> = words.collect();
                return Err(format!("took effect in part: {}", words.join(", ")));
            }
        }
        if executed > 1 {
            return Err(format!(
                "took effect with both of its branches: {branches:?}"
            ));
        }
        Ok(())
    }

    /// Returns all actions as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (key, list) in &self.lists {
            let _ = writeln!(text, "list {key}\n{}", list.text());
        }
        for (key, counter) in &self.counters {
            let _ = writeln!(text, "counter {key}\n{}", counter.text());
        }
        text
    }

    /// Changes the ledger so that an acknowledged append seems to have been executed twice. Returns
    /// false if there is no suitable list.
    pub fn repeat_append(&mut self) -> bool {
        self.lists.values_mut().any(List::repeat_append)
    }

    /// Changes the ledger so that an acknowledged addition seems to have been executed twice.
    /// Returns false if there is no suitable counter.
    pub fn repeat_addition(&mut self) -> bool {
        self.counters.values_mut().any(Counter::repeat_addition)
    }
}

/// Step of a list or counter: an operation that found `from` and left `to`. For a read, both are
/// equal.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: i64,
    to: i64,
    span: Span,
}

impl Span {
    fn text(self) -> String {
        let ms = |ns: u64| format!("{}.{:06} ms", ns / 1_000_000, ns % 1_000_000);
        let end = self
            .ended_ns
            .map_or("never answered".to_owned(), |ended_ns| {
                format!("to {}", ms(ended_ns))
            });
        format!("of process {} ({} {end})", self.process, ms(self.began_ns))
    }
}

impl Step {
    fn text(&self) -> String {
        let what = if self.from == self.to {
            format!("read of {}", self.to)
        } else {
            format!("step from {} to {}", self.from, self.to)
        };
        format!("{what} {}", self.span.text())
    }
}

/// Checks the order of real time: if a step ended before another one began, the other one began
/// with at least as much.
fn check_order(steps: &[Step]) -> Result<(), String> {
    let mut begins: Vec<&Step> = steps.iter().collect();
    begins.sort_by_key(|step| step.span.began_ns);
    let mut ends: Vec<(u64, &Step)> = steps
        .iter()
        .filter_map(|step| Some((step.span.ended_ns?, step)))
        .collect();
    ends.sort_by_key(|(ended_ns, _)| *ended_ns);
    let mut ends = ends.into_iter().peekable();
    let mut largest: Option<&Step> = None;
    for step in begins {
        while let Some((_, ended)) = ends.next_if(|(ended_ns, _)| *ended_ns < step.span.began_ns) {
            if largest.is_none_or(|largest| largest.to < ended.to) {
                largest = Some(ended);
            }
        }
        if let Some(before) = largest.filter(|before| before.to > step.from) {
            return Err(format!(
                "a {} comes after a {}, and should have found it",
                step.text(),
                before.text()
            ));
        }
    }
    Ok(())
}

/// Formats steps, one on each line.
fn lines<'a>(steps: impl IntoIterator<Item = &'a Step>) -> String {
    let line = |step: &Step| format!("  {}\n", step.text());
    steps.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests;
