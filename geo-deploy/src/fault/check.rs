//! Refuses faults that make no sense by themselves or in combination.

use super::effect::unknown;
use super::{Direction, FaultAction, FaultSpec, FaultTarget, list};
use crate::topology::Topology;

/// Error for an invalid list of faults. It contains the wrong field, the value of this field, and a
/// description of the correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidFault {
    /// Name of the field, for example `fault.2.until_s`; faults are numbered from 1.
    pub field: String,
    /// Value of the field.
    pub found: String,
    /// Description of the correct values of the field, or of another way to fix the fault.
    pub fix: String,
}

/// Checks the faults of an experiment that runs at these sites.
///
/// # Errors
/// - If a fault names an unknown site, the same target twice, or the link of a site to itself.
/// - If a fault ends before it begins, has a field that its action does not use, or lacks a field
///   that its action needs.
/// - If two faults of processes overlap at a replica.
/// - If a majority would be lost for ever.
pub fn check(faults: &[FaultSpec], topology: &Topology) -> Result<(), InvalidFault> {
    for (i, fault) in faults.iter().enumerate() {
        let refused = |(field, found, fix): Problem| InvalidFault {
            field: format!("fault.{}.{field}", i + 1),
            found,
            fix,
        };
        check_alone(fault, topology).map_err(refused)?;
        for (earlier, other) in faults[..i].iter().enumerate() {
            check_overlap(fault, other, earlier + 1).map_err(refused)?;
        }
    }
    majority_returns(faults, topology)
}

/// Latest time, in s, at which a fault may begin or end: a year. A later time is regarded as a
/// mistake, and could cause an overflow in computations.
pub const TIME_S_MAX: f64 = 31_536_000.0;

/// Name of a wrong field, its value, and the fix.
type Problem = (&'static str, String, String);

fn require(
    good: bool,
    field: &'static str,
    found: impl ToString,
    fix: &str,
) -> Result<(), Problem> {
    if good {
        Ok(())
    } else {
        Err((field, found.to_string(), fix.to_owned()))
    }
}

fn check_alone(fault: &FaultSpec, topology: &Topology) -> Result<(), Problem> {
    let time = |t: f64| (0.0..=TIME_S_MAX).contains(&t);
    require(
        time(fault.at_s),
        "at_s",
        fault.at_s,
        "seconds from the beginning of the measured phase are needed, 0 or more and at most a year",
    )?;
    if let Some(until) = fault.until_s {
        let later = time(until) && until > fault.at_s;
        let fix = "a time after at_s is needed, at most a year";
        require(later, "until_s", until, fix)?;
        require(
            fault.action != FaultAction::Restart,
            "until_s",
            until,
            "a restart ends by itself: leave until_s out, or stop the replica for a while",
        )?;
    }
    require(
        !fault.target.is_empty(),
        "target",
        "[]",
        "name a site or a role",
    )?;
    for (field, targets) in [("target", &fault.target), ("to", &fault.to)] {
        check_targets(field, targets, topology)?;
    }
    check_links(fault)
}

/// Checks that every named site exists, and that no target is named twice.
fn check_targets(
    field: &'static str,
    targets: &[FaultTarget],
    topology: &Topology,
) -> Result<(), Problem> {
    for (i, target) in targets.iter().enumerate() {
        if let FaultTarget::Site(name) = target
            && topology.index(name).is_none()
        {
            return Err((field, name.clone(), unknown(name, topology)));
        }
        let once = !targets[..i].contains(target);
        require(once, field, target, "named twice: name it once")?;
    }
    Ok(())
}

/// Checks that the failing links have at least one far end. A target does not count as a far end,
/// because a site has no link to itself. A role is compared only by its name, because the sites
/// with this role are not known before the fault begins.
fn check_sides(fault: &FaultSpec) -> Result<(), Problem> {
    let everyone = fault.target.contains(&FaultTarget::All);
    require(
        !everyone,
        "target",
        "all",
        "nobody is left on the other side: name some of the sites, or a role",
    )?;
    let both = |to: &FaultTarget| fault.target.contains(to);
    require(
        fault.to.is_empty() || !fault.to.iter().all(both),
        "to",
        list(&fault.to),
        "all of these are targets, so nobody is left on the other side: name other sites, or leave it \
         out for all others",
    )
}

fn check_links(fault: &FaultSpec) -> Result<(), Problem> {
    let links = fault.action.affects_links();
    let only = "only partition, slow and loss look at it: leave it out";
    require(links || fault.to.is_empty(), "to", "given", only)?;
    let both = fault.direction == Direction::Both;
    require(links || both, "direction", "given", only)?;
    if links {
        check_sides(fault)?;
    }
    let slow = fault.action == FaultAction::Slow;
    let delay = fault.delay_ms;
    let good = if slow {
        delay > 0.0 && delay <= 60_000.0
    } else {
        delay == 0.0
    };
    let fix = "slow needs more than 0 and at most 60000 ms; other actions take none";
    require(good, "delay_ms", delay, fix)?;
    let good = if fault.action == FaultAction::Loss {
        fault.loss > 0.0 && fault.loss <= 1.0
    } else {
        fault.loss == 0.0
    };
    let fix = "loss needs a probability above 0 and at most 1; other actions take none";
    require(good, "loss", fault.loss, fix)
}

/// Checks that two faults of processes do not overlap at a replica. Faults that overlap are an
/// error, because a dead process, for example, cannot be paused. A role is compared only by its
/// name, because the replicas with this role are not known before a fault begins.
fn check_overlap(fault: &FaultSpec, other: &FaultSpec, number: usize) -> Result<(), Problem> {
    if fault.action.affects_links() || other.action.affects_links() {
        return Ok(());
    }
    let disk = |fault: &FaultSpec| fault.action == FaultAction::FillDisk;
    if disk(fault) != disk(other) {
        return Ok(());
    }
    let end = |fault: &FaultSpec| match fault.action {
        FaultAction::Restart => fault.at_s,
        _ => fault.until_s.unwrap_or(f64::INFINITY),
    };
    let apart = end(fault) < other.at_s || end(other) < fault.at_s;
    let everyone = |fault: &FaultSpec| fault.target.contains(&FaultTarget::All);
    let shared = fault
        .target
        .iter()
        .any(|target| other.target.contains(target));
    let meet = shared || everyone(fault) || everyone(other);
    require(
        apart || !meet,
        "at_s",
        fault.at_s,
        &format!("fault {number} still lasts at the same replica: end it before, with until_s"),
    )
}

fn majority_returns(faults: &[FaultSpec], topology: &Topology) -> Result<(), InvalidFault> {
    let n = topology.len();
    let mut down: Vec<&FaultTarget> = Vec::new();
    for (i, fault) in faults.iter().enumerate() {
        let takes = matches!(
            fault.action,
            FaultAction::Kill | FaultAction::Stop | FaultAction::Pause
        );
        if !takes || fault.until_s.is_some() {
            continue;
        }
        for target in &fault.target {
            // A role named twice may be a different replica each time, so it is included twice.
            if !down.contains(&target) || !matches!(target, FaultTarget::Site(_)) {
                down.push(target);
            }
        }
        let lost = if fault.target.contains(&FaultTarget::All) {
            n
        } else {
            down.len()
        };
        if lost > n - (n / 2 + 1) {
            return Err(InvalidFault {
                field: format!("fault.{}.until_s", i + 1),
                found: "none".to_owned(),
                fix: format!(
                    "with it {lost} of {n} replicas may be gone for ever, and without a majority \
                     nothing is ever written again: say when they return"
                ),
            });
        }
    }
    Ok(())
}
