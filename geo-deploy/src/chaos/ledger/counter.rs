//! Actions on one counter.

use std::collections::BTreeSet;

use super::{LedgerFlaw, Span, Step, check_order, lines};

/// Maximum number of sums that are tried in order to explain a step of a counter.
const SUMS_MAX: usize = 20_000_000;

/// Actions on one counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Counter {
    reads: Vec<Step>,
    /// Additions with a known sum.
    placed: Vec<Step>,
    /// Additions with an unknown sum.
    unplaced: Vec<Addition>,
}

#[derive(Clone, Copy, Debug)]
struct Addition {
    delta: i64,
    span: Span,
}

impl Counter {
    /// Adds a read that found this value.
    pub fn read(&mut self, span: Span, value: i64) {
        let (from, to) = (value, value);
        self.reads.push(Step { from, to, span });
    }

    /// Adds an addition. `sum` is the value of the counter afterwards; `None` if the answer does not
    /// say it.
    pub fn add(&mut self, span: Span, delta: i64, sum: Option<i64>) {
        match sum {
            Some(to) => {
                let from = to.wrapping_sub(delta);
                self.placed.push(Step { from, to, span });
            }
            None => self.unplaced.push(Addition { delta, span }),
        }
    }

    /// Returns the number of actions.
    pub fn actions(&self) -> usize {
        self.reads.len() + self.placed.len() + self.unplaced.len()
    }

    /// Judges the counter.
    ///
    /// # Errors
    /// The first violation that is found, or the reason why the counter could not be judged.
    pub fn judge(&self) -> Result<(), LedgerFlaw> {
        let mut placed = self.placed.clone();
        placed.sort_by_key(|step| (step.from, step.to));
        let steps: Vec<Step> = self.reads.iter().chain(&placed).copied().collect();
        self.check_apart(&placed).map_err(LedgerFlaw::Violation)?;
        check_order(&steps).map_err(LedgerFlaw::Violation)?;
        self.explain(&placed, &steps)
    }

    /// Checks that no addition takes effect between the two sums of another one, and that no read
    /// finds a sum between them.
    fn check_apart(&self, placed: &[Step]) -> Result<(), String> {
        let below = |step: &&Step| step.from < 0;
        if let Some(step) = placed.iter().chain(&self.reads).find(below) {
            return Err(format!("a {} begins below zero", step.text()));
        }
        for pair in placed.windows(2) {
            if pair[1].from < pair[0].to {
                let (one, two) = (pair[0].text(), pair[1].text());
                return Err(format!("a {two} overlaps a {one}"));
            }
        }
        for read in &self.reads {
            let later = placed.partition_point(|step| step.from < read.to);
            let within = later.checked_sub(1).map(|last| &placed[last]);
            if let Some(step) = within.filter(|step| read.to < step.to) {
                return Err(format!("a {} is within a {}", read.text(), step.text()));
            }
        }
        Ok(())
    }

    /// Explains each step of the counter by additions with an unknown sum, except the steps of
    /// additions with a known sum. Then checks that no acknowledged addition remains.
    fn explain(&self, placed: &[Step], steps: &[Step]) -> Result<(), LedgerFlaw> {
        let values = steps.iter().flat_map(|step| [step.from, step.to]);
        let values: BTreeSet<i64> = std::iter::once(0).chain(values).collect();
        let starts: BTreeSet<i64> = placed.iter().map(|step| step.from).collect();
        let mut unused = self.unplaced.clone();
        let values: Vec<i64> = values.into_iter().collect();
        let gaps = values.windows(2).map(|pair| (pair[0], pair[1]));
        for (from, to) in gaps.filter(|(from, _)| !starts.contains(from)) {
            explain_gap(from, to, steps, &mut unused)?;
        }
        let lost = unused.iter().find(|left| left.span.ended_ns.is_some());
        lost.map_or(Ok(()), |lost| {
            let by = lost.span.text();
            Err(LedgerFlaw::Violation(format!(
                "the addition of {} {by} was acknowledged and is lost",
                lost.delta
            )))
        })
    }

    /// Returns all actions as text.
    pub fn text(&self) -> String {
        let unplaced = self.unplaced.iter().map(|addition| {
            let by = addition.span.text();
            format!("  addition of {}, sum unknown, {by}\n", addition.delta)
        });
        let unplaced: String = unplaced.collect();
        format!("{}{}{unplaced}", lines(&self.reads), lines(&self.placed))
    }

    /// Adds a read after all other actions. The read finds a value as if the addition with the
    /// largest sum had been executed twice. Returns false if there is no addition with a known sum.
    pub fn repeat_addition(&mut self) -> bool {
        let steps = || self.placed.iter().chain(&self.reads);
        let last = self.placed.iter().max_by_key(|step| step.to);
        let largest = steps().map(|step| step.to).max();
        let end_ns = steps().filter_map(|step| step.span.ended_ns).max();
        let (Some(last), Some(largest), Some(end_ns)) = (last, largest, end_ns) else {
            return false;
        };
        let value = largest + (last.to - last.from);
        let span = Span {
            process: u32::MAX,
            began_ns: end_ns + 1,
            ended_ns: Some(end_ns + 2),
        };
        self.read(span, value);
        true
    }
}

/// Explains a step of the counter by additions with an unknown sum, and removes these additions
/// from `unused`. `steps` are the known steps. None of them begins or ends between `from` and `to`.
fn explain_gap(
    from: i64,
    to: i64,
    steps: &[Step],
    unused: &mut Vec<Addition>,
) -> Result<(), LedgerFlaw> {
    let is_possible = |addition: &&Addition| {
        let (began_ns, ended_ns) = (addition.span.began_ns, addition.span.ended_ns);
        let is_early = |step: &Step| step.span.ended_ns.is_some_and(|ended| ended < began_ns);
        let is_late = |step: &Step| ended_ns.is_some_and(|ended| ended < step.span.began_ns);
        addition.delta <= to - from
            && !steps
                .iter()
                .any(|step| step.to >= to && is_early(step) || step.from <= from && is_late(step))
    };
    let possible: Vec<i64> = (unused.iter().filter(is_possible))
        .map(|addition| addition.delta)
        .collect();
    let mut sums = SUMS_MAX;
    let mut chosen = Vec::new();
    let found = (1..=possible.len())
        .any(|count| choose(to - from, count, &possible, &mut chosen, &mut sums));
    if found {
        // No two additions are alike, so a number stands for its addition.
        unused.retain(|addition| !chosen.contains(&addition.delta));
        return Ok(());
    }
    if sums == 0 {
        return Err(LedgerFlaw::Undecided(format!(
            "the step from {from} to {to} may be the sum of too many additions"
        )));
    }
    let after = steps.iter().filter(|step| step.from >= to || step.to >= to);
    let first = after.min_by_key(|step| step.span.ended_ns.unwrap_or(u64::MAX));
    let seen = first.map_or_else(String::new, |step| format!(", as a {} shows", step.text()));
    Err(LedgerFlaw::Violation(format!(
        "the counter went from {from} to {to}{seen}, and no additions that may have happened \
         explain this"
    )))
}

/// Chooses `count` numbers with this sum. Returns false if there are none, or if the limit `sums`
/// for the number of tried sums has been reached.
fn choose(
    sum: i64,
    count: usize,
    numbers: &[i64],
    chosen: &mut Vec<i64>,
    sums: &mut usize,
) -> bool {
    if count == 0 {
        return sum == 0;
    }
    for (index, number) in numbers.iter().enumerate() {
        let Some(left) = sums.checked_sub(1) else {
            return false;
        };
        *sums = left;
        if *number > sum {
            continue;
        }
        chosen.push(*number);
        if choose(sum - number, count - 1, &numbers[index + 1..], chosen, sums) {
            return true;
        }
        chosen.pop();
    }
    false
}
