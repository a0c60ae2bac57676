//! Chaos: replica processes behind the emulated WAN, everything that may go wrong with them, and
//! clients at every site. The history of the clients is judged.
//!
//! A run is a row of *rounds*. Each has a cluster of its own, one strategy, a schedule of
//! faults that follows from the seed ([`schedule`]), and a load of all kinds of operations.
//! At its end everything is well again, every replica must serve, all are killed and
//! started, and everything is read through each. Then the round is judged.

mod chooser;
mod effect_filter;
mod evidence;
mod falsification;
mod fault_injector;
mod final_check;
mod judge;
mod load;
mod record;
mod request;
mod result;
mod round;
mod running_round;
pub mod schedule;
mod summary;
#[cfg(test)]
mod tests;

use anyhow::bail;

pub use falsification::Falsification;
pub use judge::Judgement;
pub use record::OutcomeCounts;
pub use request::OperationKind;
pub use result::{RoundResult, SiteOutage};
pub use round::{Round, Settings};
pub use running_round::{RoundProgress, RoundProgressFn};
pub use summary::ChaosSummary;

use crate::backend::local::{DownReason, LocalCluster, ProcessEvent};
use crate::experiment::Experiment;
use crate::topology::Topology;

/// The settings of a round's cluster, before anybody changes them, and the strategies that
/// rounds take in turn.
///
/// # Errors
/// Never, as long as the file it is built from is valid.
pub fn experiment() -> anyhow::Result<Experiment> {
    Ok(Experiment::parse(
        "chaos",
        include_str!("../experiments/chaos.toml"),
    )?)
}

/// Looks after the processes of a cluster at these sites.
///
/// # Errors
/// If one has ended and nobody asked it to.
fn check_processes(cluster: &mut LocalCluster, sites: &Topology) -> anyhow::Result<()> {
    for (site, happened) in cluster.poll() {
        let site = &sites.sites()[site].name;
        match happened {
            ProcessEvent::Ended(DownReason::Died(how) | DownReason::Refused(how)) => {
                bail!("the replica of {site} ended, and nobody had asked it to: {how}")
            }
            ProcessEvent::NotStarted(why) => {
                bail!("the replica of {site} could not be started again: {why}")
            }
            ProcessEvent::Ended(_) | ProcessEvent::Started => {}
        }
    }
    Ok(())
}
