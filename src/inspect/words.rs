//! Words and JSON for the contents of a data directory.

use leasehold_leases::{Ballot, ConfigChange, RangeChange, ReplicaId, ReplicaSet};
use leasehold_node::store::inspect::{
    DirectoryProblem, Fact, FoundStamp, SegmentId, StoppedDirectory, TornWrite,
};
use leasehold_replica::message::LogId;
use serde_json::{Value, json};

use crate::terminal::escaped;

/// Names of the replicas of a cluster.
pub struct MemberNames<'a>(Option<&'a FoundStamp>);

impl<'a> MemberNames<'a> {
    pub fn of(directory: &'a StoppedDirectory) -> MemberNames<'a> {
        MemberNames(directory.stamp())
    }

    /// Returns the name of a replica, or its id if the name is not known.
    pub fn replica(&self, replica: ReplicaId) -> String {
        let members = self.0.map(|found| &found.stamp.members);
        let name = members.and_then(|members| members.get(replica.index()));
        name.map_or_else(
            || format!("replica {}", replica.0),
            |name| printable(name.as_bytes()),
        )
    }

    pub fn set(&self, set: ReplicaSet) -> Vec<String> {
        set.iter().map(|replica| self.replica(replica)).collect()
    }

    /// Returns the names of the replicas in a set as text.
    pub fn listed(&self, set: ReplicaSet) -> String {
        if set.is_empty() {
            return "nobody".to_owned();
        }
        self.set(set).join(" ")
    }

    pub fn ballot(&self, ballot: Ballot) -> String {
        match ballot {
            Ballot::ZERO => "none".to_owned(),
            Ballot { round, replica } => format!("{round} {}", self.replica(replica)),
        }
    }

    pub fn ballot_json(&self, ballot: Ballot) -> Value {
        json!({ "round": ballot.round, "replica": self.replica(ballot.replica) })
    }

    /// Describes a fact in words.
    pub fn fact(&self, fact: &Fact) -> String {
        match *fact {
            Fact::Promised(ballot) => format!("promised ballot {}", self.ballot(ballot)),
            Fact::LogStart { log, ballot, slot } => format!(
                "ballot {} begins at slot {} of {}",
                self.ballot(ballot),
                slot.0,
                log_name(log)
            ),
            Fact::ForgetLogStarts { log, below } => format!(
                "beginnings of ballots below {} are forgotten in {}",
                self.ballot(below),
                log_name(log)
            ),
            Fact::RestartWait(wait) => format!("restart wait {:.3} s", wait.as_secs_f64()),
            Fact::Life { replica, life } => {
                format!("life of {}: {}", self.replica(replica), life_text(life))
            }
            Fact::Joined => "joined".to_owned(),
            Fact::Incarnation(incarnation) => format!("incarnation {}", incarnation.0),
            Fact::Committed(slots) => format!(
                "committed up to slot {} of commands and {} of configs",
                slots.commands.0, slots.configs.0
            ),
        }
    }

    pub fn fact_json(&self, fact: &Fact) -> Value {
        match *fact {
            Fact::Promised(ballot) => {
                json!({ "name": "promised", "ballot": self.ballot_json(ballot) })
            }
            Fact::LogStart { log, ballot, slot } => json!({
                "name": "log_start",
                "log": log_name(log),
                "ballot": self.ballot_json(ballot),
                "slot": slot.0,
            }),
            Fact::ForgetLogStarts { log, below } => json!({
                "name": "forget_log_starts",
                "log": log_name(log),
                "below": self.ballot_json(below),
            }),
            Fact::RestartWait(wait) => {
                json!({ "name": "restart_wait", "ms": wait.as_secs_f64() * 1e3 })
            }
            Fact::Life { replica, life } => json!({
                "name": "life",
                "replica": self.replica(replica),
                "life": life_text(life),
            }),
            Fact::Joined => json!({ "name": "joined" }),
            Fact::Incarnation(incarnation) => {
                json!({ "name": "incarnation", "incarnation": incarnation.0 })
            }
            Fact::Committed(slots) => json!({
                "name": "committed",
                "commands": slots.commands.0,
                "configs": slots.configs.0,
            }),
        }
    }

    /// Summarizes a configuration in words.
    pub fn config(&self, change: &ConfigChange) -> String {
        let mut parts: Vec<String> = change.ranges.iter().map(|it| self.range(it)).collect();
        parts.extend(change.keys.iter().map(|(holders, keys)| {
            let keys = counted(keys.len(), "key");
            format!("{keys} held by {}", self.listed(*holders))
        }));
        parts.extend(
            change
                .excluded
                .map(|set| format!("excluded: {}", self.listed(set))),
        );
        parts.extend(change.params.map(|params| {
            format!(
                "t_lease {} ms, t_guard {} ms, renewal {} ms, grace {} ms, rho {} ppm",
                params.t_lease.as_millis(),
                params.t_guard.as_millis(),
                params.renew.as_millis(),
                params.t_grace.as_millis(),
                params.clock.rho_ppm
            )
        }));
        if parts.is_empty() {
            parts.push("configuration without changes".to_owned());
        }
        parts.join("; ")
    }

    fn range(&self, change: &RangeChange) -> String {
        let range = &change.range;
        let mut words = if range.is_all() {
            "all keys:".to_owned()
        } else {
            let to = range.to().map_or(String::new(), |to| quoted(to));
            format!("keys {}..{to}:", quoted(range.from()))
        };
        if let Some(strategy) = &change.strategy {
            words = format!("{words} strategy {}", strategy.name());
        }
        if let Some(defaults) = change.defaults {
            words = format!("{words} unlisted keys held by {}", self.listed(defaults));
        }
        if change.clear {
            words = format!("{words} listed keys removed");
        }
        words
    }

    pub fn config_json(&self, change: &ConfigChange) -> Value {
        let range = |change: &RangeChange| {
            json!({
                "from": bytes_json(change.range.from()),
                "to": change.range.to().map(|to| bytes_json(to)),
                "strategy": change.strategy.as_ref().map(|it| it.name()),
                "unlisted": change.defaults.map(|set| self.set(set)),
                "clear": change.clear,
            })
        };
        let keys = |(holders, keys): &(ReplicaSet, Vec<_>)| json!({ "holders": self.set(*holders), "keys": keys.len() });
        json!({
            "ranges": change.ranges.iter().map(range).collect::<Vec<_>>(),
            "keys": change.keys.iter().map(keys).collect::<Vec<_>>(),
            "excluded": change.excluded.map(|set| self.set(set)),
            "params": change.params.map(|params| json!({
                "t_lease_ms": params.t_lease.as_secs_f64() * 1e3,
                "t_guard_ms": params.t_guard.as_secs_f64() * 1e3,
                "renew_ms": params.renew.as_secs_f64() * 1e3,
                "grace_ms": params.t_grace.as_secs_f64() * 1e3,
                "rho_ppm": params.clock.rho_ppm,
            })),
        })
    }
}

pub fn log_name(log: LogId) -> &'static str {
    match log {
        LogId::Commands => "commands",
        LogId::Configs => "configs",
    }
}

/// Returns the name of the file of a segment.
pub fn file_of(segment: SegmentId) -> String {
    format!("log/{segment}.seg")
}

/// Returns the life of a data directory as text. The life is a random number. Lives are only
/// compared for equality.
pub fn life_text(life: u64) -> String {
    format!("{life:016x}")
}

/// Returns a number and the name of the counted things, such as `2 slots`.
pub fn counted(count: usize, name: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {name}{ending}")
}

/// Returns bytes as text for a terminal. Control characters, backslashes and bytes that are not
/// UTF-8 are replaced by escapes.
pub fn printable(bytes: &[u8]) -> String {
    escaped(bytes, |letter| letter.is_control() || letter == '\\')
}

/// Returns bytes as text between quotes.
pub fn quoted(bytes: &[u8]) -> String {
    let must_escape = |letter: char| letter.is_control() || ['\\', '"'].contains(&letter);
    format!("\"{}\"", escaped(bytes, must_escape))
}

/// Returns bytes as a JSON string if they are UTF-8, otherwise as `{"hex": ...}`.
pub fn bytes_json(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => {
            let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
            json!({ "hex": digits.collect::<String>() })
        }
    }
}

/// Describes a torn write in words.
pub fn torn_text(torn: &TornWrite) -> String {
    let group = torn
        .group
        .map_or(String::new(), |group| format!(" of group {group}"));
    format!(
        "{} bytes{group} are torn: the last write of a run was not finished, and a start forgets it",
        torn.bytes
    )
}

pub fn torn_json(torn: &TornWrite) -> Value {
    json!({
        "segment": torn.segment.0,
        "byte": torn.offset,
        "bytes": torn.bytes,
        "group": torn.group,
    })
}

pub fn problem_json(problem: &DirectoryProblem) -> Value {
    json!({
        "file": problem.file,
        "byte": problem.byte,
        "problem": problem.problem,
        "effect": problem.effect.name(),
        "advice": problem.effect.advice(),
    })
}

/// Returns an error if the directory has problems. The error describes only the first problem.
pub fn refuse(directory: &std::path::Path, problems: &[DirectoryProblem]) -> anyhow::Result<()> {
    let Some(first) = problems.first() else {
        return Ok(());
    };
    let more = match problems.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    let directory = directory.display();
    anyhow::bail!(
        "data directory {directory}: {first}{more}; {}. `leasehold inspect verify {directory}` names \
         everything, with advice",
        first.effect.words()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_stay_on_their_line() {
        assert_eq!(quoted(b"a\n\"\\\xff"), r#""a\n\"\\\xff""#);
        assert_eq!(bytes_json(b"a\n"), json!("a\n"));
        assert_eq!(bytes_json(b"\xff\x01"), json!({ "hex": "ff01" }));
    }

    #[test]
    fn replicas_without_a_name_have_a_number() {
        let names = MemberNames(None);
        let ballot = Ballot {
            round: 7,
            replica: ReplicaId(2),
        };
        assert_eq!(names.ballot(ballot), "7 replica 2");
        assert_eq!(names.ballot(Ballot::ZERO), "none");
        assert_eq!(names.listed(ReplicaSet::EMPTY), "nobody");
        assert_eq!(names.listed(ReplicaSet::all(2)), "replica 0 replica 1");
    }
}
