//! Comparison of a cluster's settings with the settings under which the cluster's data was created.
//! The sites, the strategy and the lease durations are part of the data. If a cluster were started
//! with other settings, the replicas would keep the old ones, or would start a second, empty
//! cluster beside the first. Changes by `lease set` remain in force, and are not compared.

use std::path::Path;

use anyhow::{Context as _, bail};
use leasehold_node::config::{LeaseSection, from_toml};
use toml::Table;

use super::hints::with_dir;
use crate::backend::RunPlan;
use crate::backend::local::DataState;
use crate::cluster_file::ClusterFile;

/// Checks that a plan has the same sites, strategy and lease durations as the data in `dir`.
/// Returns the state of this data.
///
/// # Errors
/// If there are differences (the error says how to fix them), or if the configuration cannot be
/// read.
pub(super) fn check(plan: &RunPlan<'_>, dir: &Path) -> anyhow::Result<DataState> {
    let path = dir.join("cluster.toml");
    if !dir.join("data").exists() || !path.exists() {
        return Ok(DataState::New);
    }
    let read = || anyhow::Ok(from_toml(&std::fs::read_to_string(&path)?)?);
    let earlier: ClusterFile = read().with_context(|| {
        format!(
            "{}, which says what the data beside it is of, cannot be read; give another directory",
            path.display()
        )
    })?;
    let data = format!("the data in {} is of a cluster", dir.display());
    let found: Vec<&str> = earlier.node.iter().map(|node| &*node.name).collect();
    let requested = plan.topology().names();
    if found != requested {
        bail!(
            "{data} with the sites {}, and {} were asked for: give another directory, or a \
             topology of these sites in this order with --set topology=FILE (the sites JP, CA, \
             OR, VA, IRL need none)",
            found.join(", "),
            requested.join(", ")
        );
    }
    check_lease(plan, &earlier.lease, dir, &data)?;
    Ok(DataState::Existing)
}

fn check_lease(
    plan: &RunPlan<'_>,
    found: &LeaseSection,
    dir: &Path,
    data: &str,
) -> anyhow::Result<()> {
    let requested = &plan.lease();
    let name = |lease: &LeaseSection| lease.strategy.clone().unwrap_or_default();
    let (strategy, requested_strategy) = (name(found), name(requested));
    if strategy != requested_strategy {
        let change = with_dir(&format!("`leasehold lease set {requested_strategy}`"), dir);
        bail!(
            "{data} first started with strategy '{strategy}', and '{requested_strategy}' was asked for: give \
             another directory, or --strategy {strategy}; while the cluster is up, {change} changes it for good"
        );
    }
    check_settings(found, requested, data)
}

fn check_settings(
    found: &LeaseSection,
    requested: &LeaseSection,
    data: &str,
) -> anyhow::Result<()> {
    let (found, requested) = (settings(found)?, settings(requested)?);
    let differs = |field: &&String| found.get(*field) != requested.get(*field);
    let fields: Vec<&String> = requested.keys().filter(differs).collect();
    if fields.is_empty() {
        return Ok(());
    }
    let sets = |table: &Table| {
        let value = |value: &toml::Value| value.as_str().map_or(value.to_string(), String::from);
        let set = |field: &&String| format!("--set lease.{field}={}", value(&table[*field]));
        fields.iter().map(set).collect::<Vec<_>>().join(" ")
    };
    bail!(
        "{data} first started with {}, and {} was asked for: give another directory, or what it \
         was started with",
        sets(&found),
        sets(&requested)
    )
}

/// Returns the settings that are part of a cluster's data. The key of each entry is the name that
/// operators use for the setting.
fn settings(lease: &LeaseSection) -> anyhow::Result<Table> {
    let mut lease = lease.clone();
    if lease.strategy.as_deref() == Some("quorum") {
        lease.unlisted.get_or_insert_default();
    }
    if lease.strategy.as_deref() == Some("cost") {
        lease.cost.get_or_insert_default();
    }
    let mut settings = Table::try_from(lease)?;
    // Strategy and ranges are not fields of an experiment's `[lease]`. The period of
    // reconfiguration is a setting of each replica, and not part of the data.
    for other in ["strategy", "range", "reconfigure_ms"] {
        settings.remove(other);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    const OLD: &str = "cluster = 'standing'\nleader = 'CA'\ndurability = 'sync'\ndata = 'data'\n[lease]\nstrategy = 'quorum'\nunlisted = 'nearest'\n\
                       t_lease_ms = 1000\nt_guard_ms = 750\nrenew_ms = 150\n\
                       reconfigure_ms = 10000\ngrace_ms = 2000\nrho = 0.001\n";

    /// Returns a directory with the same files as after the start of a cluster with these sites.
    fn begun(sites: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let nodes = sites.iter();
        let nodes: String = nodes
            .map(|site| {
                format!("[[node]]\nname = '{site}'\nclient = '127.0.0.1:1'\npeer = '127.0.0.1:2'\n")
            })
            .collect();
        std::fs::write(dir.path().join("cluster.toml"), format!("{OLD}{nodes}")).unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        dir
    }

    fn requested(dir: &Path, sets: &[&str]) -> Result<(), String> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let experiment = crate::standing::experiment().unwrap();
        let experiment: Experiment = experiment.with(&sets).unwrap();
        let plan = RunPlan::new(&experiment, &experiment.strategies[0]);
        let data = check(&plan, dir).map_err(|error| format!("{error:#}"))?;
        let found = dir.join("data").exists() && dir.join("cluster.toml").exists();
        assert_eq!(data == DataState::Existing, found);
        Ok(())
    }

    fn refused(dir: &Path, sets: &[&str], parts: &[&str]) {
        let error = requested(dir, sets).expect_err(&sets.join(" "));
        for part in parts {
            assert!(error.contains(part), "{part:?} is missing from: {error}");
        }
    }

    #[test]
    fn what_is_part_of_the_data_must_be_the_same() {
        let dir = begun(&["JP", "CA", "OR", "VA", "IRL"]);
        let dir = dir.path();
        requested(dir, &[]).unwrap();
        requested(dir, &["leader=JP", "lease.reconfigure_ms=1000"]).unwrap();
        requested(dir, &["topology.rtt_ms.JP.CA=3"]).unwrap();
        let file = dir.join("cluster.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(file, text.replace("unlisted = 'nearest'\n", "")).unwrap();
        requested(dir, &[]).unwrap();
        refused(
            dir,
            &["strategies=all"],
            &[
                "with strategy 'quorum'",
                "'all' was asked for",
                &format!("`leasehold lease set all --dir {}`", dir.display()),
            ],
        );
        for (set, old) in [
            ("lease.t_lease_ms=900", "lease.t_lease_ms=1000"),
            ("lease.t_guard_ms=1000", "lease.t_guard_ms=750"),
            ("lease.renew_ms=100", "lease.renew_ms=150"),
            ("lease.grace_ms=4000", "lease.grace_ms=2000"),
            ("lease.rho=0.01", "lease.rho=0.001"),
            ("lease.unlisted=leader", "lease.unlisted=nearest"),
        ] {
            refused(dir, &[set], &[&format!("--set {old},"), set]);
        }
        let two = ["lease.t_lease_ms=900", "lease.renew_ms=250"];
        let old = "--set lease.renew_ms=150 --set lease.t_lease_ms=1000,";
        refused(dir, &two, &[old]);
    }

    #[test]
    fn the_sites_must_be_the_same_in_the_same_order() {
        for sites in [&["CA", "NYC", "LON"][..], &["CA", "JP", "OR", "VA", "IRL"]] {
            let names = sites.join(", ");
            let parts = [&*names, "JP, CA, OR, VA, IRL were", "--set topology=FILE"];
            refused(begun(sites).path(), &[], &parts);
        }
    }

    #[test]
    fn without_data_anything_may_be_asked_for() {
        let dir = begun(&["CA"]);
        std::fs::remove_dir(dir.path().join("data")).unwrap();
        requested(dir.path(), &[]).unwrap();
        requested(&dir.path().join("none"), &[]).unwrap();
    }

    #[test]
    fn a_damaged_configuration_is_named() {
        let dir = begun(&["CA"]);
        std::fs::write(dir.path().join("cluster.toml"), "[lease").unwrap();
        refused(dir.path(), &[], &["cluster.toml", "another directory"]);
    }
}
