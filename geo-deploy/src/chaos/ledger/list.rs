//! Actions on one list.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_histories::history::ValueId;

use super::{Span, Step, check_order, lines};

/// Actions on one list.
#[derive(Clone, Debug, Default)]
pub(super) struct List {
    /// Longest list that was found.
    order: Vec<ValueId>,
    /// Description of two reads, neither of which is a prefix of the other.
    fork: Option<String>,
    reads: Vec<Step>,
    appends: BTreeMap<ValueId, Append>,
}

#[derive(Clone, Copy, Debug)]
struct Append {
    span: Span,
    /// Number of tokens after the append, according to its answer.
    length: Option<usize>,
}

impl List {
    /// Adds a read that found these tokens.
    pub fn read(&mut self, span: Span, tokens: &[ValueId]) {
        let length = tokens.len() as i64;
        let step = Step {
            from: length,
            to: length,
            span,
        };
        self.reads.push(step);
        match self.order.iter().zip(tokens).position(|(a, b)| a != b) {
            None if tokens.len() > self.order.len() => self.order = tokens.to_vec(),
            None => {}
            Some(at) => {
                let (known, found) = (self.order[at].0, tokens[at].0);
                self.fork.get_or_insert_with(|| {
                    format!(
                        "position {} has token {found} in a {}, but token {known} in another read",
                        at + 1,
                        step.text()
                    )
                });
            }
        }
    }

    /// Adds an append. `length` is the number of tokens afterwards; `None` if the answer does not say
    /// it.
    pub fn append(&mut self, span: Span, token: ValueId, length: Option<usize>) {
        self.appends.insert(token, Append { span, length });
    }

    /// Returns the number of actions.
    pub fn actions(&self) -> usize {
        self.reads.len() + self.appends.len()
    }

    /// Returns the position of a token in the longest list, from 0; `None` if the list lacks it.
    pub fn position(&self, token: ValueId) -> Option<usize> {
        self.order.iter().position(|other| *other == token)
    }

    /// Judges the list.
    ///
    /// # Errors
    /// The first violation that is found.
    pub fn judge(&self) -> Result<(), String> {
        if let Some(fork) = &self.fork {
            return Err(fork.clone());
        }
        let mut seen = BTreeSet::new();
        let mut steps = self.reads.clone();
        for (token, from) in self.order.iter().zip(0..) {
            if !seen.insert(*token) {
                return Err(format!("token {} is in the list twice", token.0));
            }
            let Some(append) = self.appends.get(token) else {
                return Err(format!("token {} was never appended", token.0));
            };
            steps.push(Step {
                from,
                to: from + 1,
                span: append.span,
            });
        }
        self.appends
            .iter()
            .try_for_each(|(token, append)| self.judge_append(*token, append, &seen))?;
        check_order(&steps)
    }

    fn judge_append(
        &self,
        token: ValueId,
        append: &Append,
        seen: &BTreeSet<ValueId>,
    ) -> Result<(), String> {
        let what = || format!("the append of token {} {}", token.0, append.span.text());
        if append.span.ended_ns.is_some() && !seen.contains(&token) {
            return Err(format!("{} was acknowledged and is lost", what()));
        }
        match append.length {
            Some(length) if length == 0 || self.order.get(length - 1) != Some(&token) => {
                let at = self.position(token).map_or(0, |at| at + 1);
                Err(format!(
                    "{} was answered with length {length}, but the token has position {at}",
                    what()
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns all actions as text.
    pub fn text(&self) -> String {
        let append = |(token, append): (&ValueId, &Append)| {
            let at = match append.length {
                Some(length) => format!(", answered with length {length}"),
                None => String::new(),
            };
            format!("  append of {}{at} {}\n", token.0, append.span.text())
        };
        let appends: String = self.appends.iter().map(append).collect();
        let order: Vec<String> = self.order.iter().map(|token| token.0.to_string()).collect();
        format!(
            "  longest: {}\n{}{appends}",
            order.join(" "),
            lines(&self.reads)
        )
    }

    /// Adds the last acknowledged token to the longest list again.
    pub fn repeat_append(&mut self) -> bool {
        let acknowledged = |token: &&ValueId| {
            let append = self.appends.get(token);
            append.is_some_and(|append| append.span.ended_ns.is_some())
        };
        let token = self.order.iter().rev().find(acknowledged).copied();
        self.order.extend(token);
        token.is_some()
    }
}
