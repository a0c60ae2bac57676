//! Faults: actions on replicas and links, and the times at which they begin and end. Experiment
//! files, both backends and the control of a standing cluster share these types and names.
//!
//! A [`FaultSpec`] is written by a person and may name roles (`leader`). When the fault begins, its
//! roles are resolved once, against the [`FaultContext`] of that time. When the fault ends, its
//! effects are undone on the same replicas and links, even if another replica leads by that time.

mod check;
mod effect;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

pub use check::{InvalidFault, TIME_S_MAX, check};
pub use effect::{Effect, FaultContext, LinkState};

/// Action on the targets of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultAction {
    /// The process is ended immediately, as by `kill -9`. It is started again when the fault ends.
    Kill,
    /// The process is asked to end. It is started again when the fault ends.
    Stop,
    /// The process is asked to end, and is started again after that. This action has no end time.
    Restart,
    /// The process is paused, as by SIGSTOP. It is resumed when the fault ends.
    Pause,
    /// No message passes between the targets and `to`.
    Partition,
    /// Messages between the targets and `to` get an extra delay of `delay_ms` in each failing
    /// direction.
    Slow,
    /// Messages between the targets and `to` are lost with probability `loss`.
    Loss,
    /// Writes to the replica's disk fail, as if the disk were full.
    FillDisk,
}

impl FaultAction {
    /// All actions.
    pub const ALL: [FaultAction; 8] = [
        FaultAction::Kill,
        FaultAction::Stop,
        FaultAction::Restart,
        FaultAction::Pause,
        FaultAction::Partition,
        FaultAction::Slow,
        FaultAction::Loss,
        FaultAction::FillDisk,
    ];

    /// Returns the name of the action in files and commands.
    pub fn name(self) -> &'static str {
        match self {
            FaultAction::Kill => "kill",
            FaultAction::Stop => "stop",
            FaultAction::Restart => "restart",
            FaultAction::Pause => "pause",
            FaultAction::Partition => "partition",
            FaultAction::Slow => "slow",
            FaultAction::Loss => "loss",
            FaultAction::FillDisk => "fill-disk",
        }
    }

    /// Whether the action affects links; otherwise it affects replicas.
    pub fn affects_links(self) -> bool {
        matches!(
            self,
            FaultAction::Partition | FaultAction::Slow | FaultAction::Loss
        )
    }
}

/// Direction of the messages that a failing link affects, as seen from the targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Messages in both directions.
    #[default]
    Both,
    /// Messages that the targets send.
    Out,
    /// Messages that are sent to the targets.
    In,
}

/// Target of a fault: a site, or the replica that has a role when the fault begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultTarget {
    /// A site by its name.
    Site(String),
    /// The leader.
    Leader,
    /// The replica nearest to the leader among the holders of the hottest key. The leader itself
    /// does not count as a holder.
    Holder,
    /// The replica nearest to the leader.
    Nearest,
    /// A random replica among those that are up.
    Random,
    /// Every replica.
    All,
}

impl FaultTarget {
    /// Names of roles.
    pub const ROLES: [&str; 5] = ["leader", "holder", "nearest", "random", "all"];

    /// Returns the role with this name. If there is no such role, returns the site with this name.
    pub fn named(name: &str) -> FaultTarget {
        match name {
            "leader" => FaultTarget::Leader,
            "holder" => FaultTarget::Holder,
            "nearest" => FaultTarget::Nearest,
            "random" => FaultTarget::Random,
            "all" => FaultTarget::All,
            site => FaultTarget::Site(site.to_owned()),
        }
    }
}

impl fmt::Display for FaultTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultTarget::Site(name) => name,
            FaultTarget::Leader => "leader",
            FaultTarget::Holder => "holder",
            FaultTarget::Nearest => "nearest",
            FaultTarget::Random => "random",
            FaultTarget::All => "all",
        })
    }
}

impl Serialize for FaultTarget {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FaultTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FaultTarget, D::Error> {
        Ok(FaultTarget::named(&String::deserialize(deserializer)?))
    }
}

/// One fault, as written in a `[[fault]]` section of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FaultSpec {
    /// Time at which the fault begins, in seconds from the beginning of the measured phase.
    #[serde(rename = "at_s")]
    pub at_s: f64,
    /// Time at which the fault ends, in seconds from the beginning of the measured phase. If the
    /// fault never ends, the field is omitted and the value is `None`.
    #[serde(default, rename = "until_s", skip_serializing_if = "Option::is_none")]
    pub until_s: Option<f64>,
    /// Action of the fault.
    pub action: FaultAction,
    /// Targets of the fault: one or several.
    #[serde(deserialize_with = "one_or_several")]
    pub target: Vec<FaultTarget>,
    /// Sites at the far ends of the failing links. If the field is omitted, all sites except the
    /// targets are at the far ends.
    #[serde(
        default,
        deserialize_with = "one_or_several",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub to: Vec<FaultTarget>,
    /// Direction in which the links fail.
    #[serde(default)]
    pub direction: Direction,
    /// For `slow`: the extra delay of a message in one direction, in ms.
    #[serde(default, rename = "delay_ms", skip_serializing_if = "is_zero")]
    pub delay_ms: f64,
    /// For `loss`: the probability that a message is lost, from 0 to 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub loss: f64,
}

impl FaultSpec {
    /// Creates a fault that begins immediately and has no end.
    pub fn now(action: FaultAction, target: Vec<FaultTarget>) -> FaultSpec {
        FaultSpec {
            at_s: 0.0,
            until_s: None,
            action,
            target,
            to: Vec::new(),
            direction: Direction::Both,
            delay_ms: 0.0,
            loss: 0.0,
        }
    }
}

/// Formats the action and the targets of a fault in words: "partition JP from CA, OR (out)".
impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action.name(), list(&self.target))?;
        if self.action.affects_links() {
            let others = if self.to.is_empty() {
                "the others".to_owned()
            } else {
                list(&self.to)
            };
            write!(f, " from {others}")?;
            match self.direction {
                Direction::Both => {}
                Direction::Out => write!(f, " (out)")?,
                Direction::In => write!(f, " (in)")?,
            }
        }
        match self.action {
            FaultAction::Slow => write!(f, " by {} ms", self.delay_ms),
            FaultAction::Loss => write!(f, " with probability {}", self.loss),
            _ => Ok(()),
        }
    }
}

fn list(targets: &[FaultTarget]) -> String {
    let names: Vec<String> = targets.iter().map(FaultTarget::to_string).collect();
    names.join(", ")
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn one_or_several<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<FaultTarget>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "a site or a role is expected, or several: \"JP\" or [\"JP\", \"leader\"]"
    )]
    enum Either {
        One(FaultTarget),
        Several(Vec<FaultTarget>),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::One(target) => vec![target],
        Either::Several(targets) => targets,
    })
}
