//! The rule of Phase 1 that decides which values a new leader proposes again (§2.1). The code has
//! no state.

use std::collections::BTreeMap;

use leasehold_leases::{Ballot, Slot};

use crate::message::{ReportedEntry, Value};

/// Returns the values to propose above `commit_point`, one for each slot up to the highest slot
/// reported. `reported` are the entries that the replicas of a majority have reported, the
/// candidate included. `starts` are the slots at which ballots began. For each slot, the value
/// accepted under the highest ballot is proposed. If there is no such value, a no-op is proposed.
///
/// Two kinds of reported entries are ignored: dead entries, and entries at or below the commit
/// point. An entry is dead if a later ballot began below it, because the leader of the later ballot
/// found a majority without the entry. A replica that missed the later ballot may still report the
/// dead entry.
///
/// The last slot of the window is `end`. The slot after `end` can only hold the opening no-op of an
/// earlier leader. This no-op is not among the returned values, because the new leader uses the
/// same slot for its own opening no-op. Otherwise each leader that commits nothing would use up
/// another slot beyond the window.
pub fn recover_log(
    commit_point: Slot,
    end: Slot,
    starts: &[(Ballot, Slot)],
    reported: impl Iterator<Item = ReportedEntry>,
) -> Vec<Value> {
    let mut best: BTreeMap<Slot, (Ballot, Value)> = BTreeMap::new();
    let mut highest = commit_point;
    for entry in reported {
        highest = highest.max(entry.slot);
        let kills =
            |(ballot, start): &(Ballot, Slot)| *ballot > entry.ballot && *start < entry.slot;
        if entry.slot <= commit_point || starts.iter().any(kills) {
            continue;
        }
        let known = best
            .entry(entry.slot)
            .or_insert_with(|| (entry.ballot, Value::Noop));
        if entry.ballot >= known.0 {
            *known = (entry.ballot, entry.value);
        }
    }
    let slots = (commit_point.0 + 1..=highest.0).map(Slot);
    let value = |slot| best.remove(&slot).map_or(Value::Noop, |(_, value)| value);
    let mut values: Vec<Value> = slots.map(value).collect();
    assert_eq!(
        values.len() as u64,
        highest.0 - commit_point.0,
        "every recovered slot has a value"
    );
    if highest > end && values.last() == Some(&Value::Noop) {
        values.pop();
    }
    values
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_leases::{ConfigChange, ReplicaId, ReplicaSet};

    use super::*;
    use crate::message::LogId;

    fn ballot(round: &str) -> Ballot {
        Ballot {
            round: round.parse().expect("a round"),
            replica: ReplicaId(0),
        }
    }

    /// Returns a value that is identified by its letter; `-` is a no-op.
    fn value(letter: &str) -> Value {
        if letter == "-" {
            return Value::Noop;
        }
        Value::Config(Arc::new(ConfigChange {
            excluded: Some(ReplicaSet(letter.as_bytes()[0].into())),
            ..ConfigChange::default()
        }))
    }

    fn slot(text: &str) -> Slot {
        Slot(text.parse().expect("a slot"))
    }

    /// Parses an entry: `1@3=a` is value a, accepted in slot 1 at round 3.
    fn entry(text: &str) -> ReportedEntry {
        let (at, letter) = text.split_once('=').expect("slot@round=value");
        let (at, round) = at.split_once('@').expect("slot@round=value");
        ReportedEntry {
            log: LogId::Configs,
            slot: slot(at),
            ballot: ballot(round),
            value: value(letter),
        }
    }

    #[test]
    fn every_case_of_the_table() {
        let mut cases = 0;
        let text = include_str!("testdata/recover_log.txt");
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let [name, commit_point, end, starts, entries, expected] =
                line.split('|').map(str::trim).collect::<Vec<_>>()[..]
            else {
                panic!("six columns: {line}");
            };
            let starts = starts.split_whitespace().map(|start| {
                let (round, at) = start.split_once(':').expect("round:slot");
                (ballot(round), slot(at))
            });
            let starts: Vec<_> = starts.collect();
            let entries: Vec<_> = entries.split_whitespace().map(entry).collect();
            let expected: Vec<_> = expected.split_whitespace().map(value).collect();
            // The order in which replicas answer has no effect.
            for reported in [entries.clone(), entries.into_iter().rev().collect()] {
                let found =
                    recover_log(slot(commit_point), slot(end), &starts, reported.into_iter());
                assert_eq!(found, expected, "{name}");
            }
            cases += 1;
        }
        assert!(cases >= 10, "the table was read");
    }
}
