//! Chaos runs: all kinds of faults are injected into replica processes behind the emulated WAN,
//! while clients at every site send operations. After that, the history of the clients is judged.
//!
//! A run is a sequence of *rounds*. Each round has a new cluster, one strategy, a schedule of
//! faults that follows from the seed ([`schedule`]), and clients that send all kinds of operations.
//! At the end of a round all faults have ended, and every replica must serve. Then all replicas are
//! killed and started again, and all keys are read through each of them. Finally the round is
//! judged.

mod chooser;
mod effect_filter;
mod effects;
mod evidence;
mod falsification;
mod fault_injector;
mod final_check;
mod judge;
mod keys;
mod ledger;
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
mod txn;

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

/// Returns the default experiment. It contains the settings of a round's cluster, and the
/// strategies. Each round uses the next strategy.
///
/// # Errors
/// Returns an error only if the file that is built into this program is invalid.
pub fn experiment() -> anyhow::Result<Experiment> {
    Ok(Experiment::parse(
        "chaos",
        include_str!("../experiments/chaos.toml"),
    )?)
}

/// Polls the processes of a cluster. `sites` contains the sites of its replicas.
///
/// # Errors
/// If a process has ended by itself.
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
