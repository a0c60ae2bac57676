//! Refuses faults that make no sense, alone or together.

use super::effect::unknown;
use super::{Action, Direction, Fault, Target, list};
use crate::topology::Topology;

/// Refusal of a list of faults: the field, the value that it holds, and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The field, as in `fault.2.until_s`; faults are counted from 1.
    pub field: String,
    /// Value of the field.
    pub found: String,
    /// Fix for the field.
    pub mend: String,
}

/// Checks the faults of an experiment that runs at these sites.
///
/// # Errors
/// If a fault is aimed at an unknown site, at one twice, or at links of a site to itself; if
/// it ends before it begins, has a field that its action does not look at or lacks one; if two faults of processes overlap at a replica;
/// or if a majority would be lost for ever.
pub fn check(faults: &[Fault], topology: &Topology) -> Result<(), Refused> {
    for (i, fault) in faults.iter().enumerate() {
        let refused = |(field, found, mend): Problem| Refused {
            field: format!("fault.{}.{field}", i + 1),
            found,
            mend,
        };
        alone(fault, topology).map_err(refused)?;
        for (earlier, other) in faults[..i].iter().enumerate() {
            beside(fault, other, earlier + 1).map_err(refused)?;
        }
    }
    majority_returns(faults, topology)
}

/// A year: times beyond it are mistakes, and far ones cannot be counted in.
pub const TIME_S_MAX: f64 = 31_536_000.0;

/// A field, what it holds, and the mend.
type Problem = (&'static str, String, String);

fn need(good: bool, field: &'static str, found: impl ToString, mend: &str) -> Result<(), Problem> {
    match good {
        true => Ok(()),
        false => Err((field, found.to_string(), mend.to_owned())),
    }
}

fn alone(fault: &Fault, topology: &Topology) -> Result<(), Problem> {
    let time = |t: f64| (0.0..=TIME_S_MAX).contains(&t);
    need(
        time(fault.at_s),
        "at_s",
        fault.at_s,
        "seconds from the beginning of the measured phase are needed, 0 or more and at most a year",
    )?;
    if let Some(until) = fault.until_s {
        let later = time(until) && until > fault.at_s;
        let mend = "a time after at_s is needed, at most a year";
        need(later, "until_s", until, mend)?;
        need(
            fault.action != Action::Restart,
            "until_s",
            until,
            "a restart ends by itself: leave until_s out, or stop the replica for a while",
        )?;
    }
    need(
        !fault.target.is_empty(),
        "target",
        "[]",
        "name a site or a role",
    )?;
    for (field, targets) in [("target", &fault.target), ("to", &fault.to)] {
        whom(field, targets, topology)?;
    }
    of_links(fault)
}

/// Sites that there are, and nobody twice.
fn whom(field: &'static str, targets: &[Target], topology: &Topology) -> Result<(), Problem> {
    for (i, target) in targets.iter().enumerate() {
        if let Target::Site(name) = target
            && topology.index(name).is_none()
        {
            return Err((field, name.clone(), unknown(name, topology)));
        }
        let once = !targets[..i].contains(target);
        need(once, field, target, "named twice: name it once")?;
    }
    Ok(())
}

/// A site on both sides has no link to itself. Roles are compared by name: whether one is a site
/// that is named, too, is known only when the fault begins.
fn two_sides(fault: &Fault) -> Result<(), Problem> {
    let everyone = fault.target.contains(&Target::All);
    need(
        !everyone,
        "target",
        "all",
        "nobody is left on the other side: name some of the sites, or a role",
    )?;
    let both = |to: &Target| fault.target.contains(to);
    need(
        fault.to.is_empty() || !fault.to.iter().all(both),
        "to",
        list(&fault.to),
        "all of these are targets, so nobody is left on the other side: name other sites, or leave it \
         out for all others",
    )
}

fn of_links(fault: &Fault) -> Result<(), Problem> {
    let links = fault.action.is_of_links();
    let only = "only partition, slow and loss look at it: leave it out";
    need(links || fault.to.is_empty(), "to", "given", only)?;
    let both = fault.direction == Direction::Both;
    need(links || both, "direction", "given", only)?;
    if links {
        two_sides(fault)?;
    }
    let slow = fault.action == Action::Slow;
    let delay = fault.delay_ms;
    let good = if slow {
        delay > 0.0 && delay <= 60_000.0
    } else {
        delay == 0.0
    };
    let mend = "slow needs more than 0 and at most 60000 ms; other actions take none";
    need(good, "delay_ms", delay, mend)?;
    let good = if fault.action == Action::Loss {
        fault.loss > 0.0 && fault.loss <= 1.0
    } else {
        fault.loss == 0.0
    };
    let mend = "loss needs a probability above 0 and at most 1; other actions take none";
    need(good, "loss", fault.loss, mend)
}

/// Two faults of processes may not overlap at a replica: a pause of a dead process would have no
/// meaning. Roles are compared by name: the replica that has one is not known yet.
fn beside(fault: &Fault, other: &Fault, number: usize) -> Result<(), Problem> {
    if fault.action.is_of_links() || other.action.is_of_links() {
        return Ok(());
    }
    let disk = |fault: &Fault| fault.action == Action::FillDisk;
    if disk(fault) != disk(other) {
        return Ok(());
    }
    let end = |fault: &Fault| match fault.action {
        Action::Restart => fault.at_s,
        _ => fault.until_s.unwrap_or(f64::INFINITY),
    };
    let apart = end(fault) < other.at_s || end(other) < fault.at_s;
    let everyone = |fault: &Fault| fault.target.contains(&Target::All);
    let shared = fault
        .target
        .iter()
        .any(|target| other.target.contains(target));
    let meet = shared || everyone(fault) || everyone(other);
    need(
        apart || !meet,
        "at_s",
        fault.at_s,
        &format!("fault {number} still lasts at the same replica: end it before, with until_s"),
    )
}

fn majority_returns(faults: &[Fault], topology: &Topology) -> Result<(), Refused> {
    let n = topology.len();
    let mut gone: Vec<&Target> = Vec::new();
    for (i, fault) in faults.iter().enumerate() {
        let takes = matches!(fault.action, Action::Kill | Action::Stop | Action::Pause);
        if !takes || fault.until_s.is_some() {
            continue;
        }
        for target in &fault.target {
            // The same role may be another replica each time.
            if !gone.contains(&target) || !matches!(target, Target::Site(_)) {
                gone.push(target);
            }
        }
        let lost = match fault.target.contains(&Target::All) {
            true => n,
            false => gone.len(),
        };
        if lost > n - (n / 2 + 1) {
            return Err(Refused {
                field: format!("fault.{}.until_s", i + 1),
                found: "none".to_owned(),
                mend: format!(
                    "with it {lost} of {n} replicas may be gone for ever, and without a majority \
                     nothing is ever written again: say when they return"
                ),
            });
        }
    }
    Ok(())
}
