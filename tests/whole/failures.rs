//! Tests with replica processes that are killed, stopped, paused, restarted and cut off.

use std::path::PathBuf;
use std::time::Duration;

use leasehold_geo_deploy::backend::RunPlan;
use leasehold_geo_deploy::backend::local::{
    DownReason, LocalCluster, LocalSettings, ProcessEvent, ProcessState,
};
use leasehold_geo_deploy::experiment::Experiment;
use leasehold_geo_deploy::fault::{Effect, LinkState};
use leasehold_geo_deploy::standing;

use super::support::{NEAR, Place, signal, until};

/// Index of the first site of the topology `near.toml`. The other sites follow in the order of the
/// topology.
const CA: usize = 0;
const OR: usize = 1;
const JP: usize = 2;

fn experiment(place: &Place) -> Experiment {
    let topology = place.write("near.toml", NEAR);
    let topology = format!("topology={}", topology.display());
    let short = ["t_lease_ms=1000", "t_guard_ms=500", "renew_ms=250"];
    let short = short.iter().map(|set| format!("lease.{set}"));
    let sets: Vec<String> = short
        .chain([topology, "strategies=quorum".into()])
        .collect();
    standing::experiment().unwrap().with(&sets).unwrap()
}

/// Runs `test` with a cluster of three replicas that is ready. Returns the directory of the
/// cluster.
fn with_cluster(test: impl AsyncFnOnce(&mut LocalCluster)) -> Place {
    let place = Place::new();
    let experiment = experiment(&place);
    let plan = RunPlan::new(&experiment, &experiment.strategies[0]);
    let settings = LocalSettings {
        program: PathBuf::from(env!("CARGO_BIN_EXE_leasehold")),
        cluster: "failures".to_owned(),
        dir: place.path("c"),
        client_port: None,
        insecure: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut cluster = LocalCluster::start(&plan, &settings).unwrap();
        cluster.ready(&plan).await.unwrap();
        test(&mut cluster).await;
    });
    place
}

fn process_state(cluster: &LocalCluster, site: usize) -> ProcessState {
    cluster.process_statuses()[site].state.clone()
}

/// Supervises the processes until the expected event has happened.
fn until_happened(
    cluster: &mut LocalCluster,
    site: usize,
    what: &str,
    is: impl Fn(&ProcessEvent) -> bool,
) {
    until(what, || {
        let happened = cluster.poll();
        happened.iter().any(|(at, found)| *at == site && is(found))
    });
}

fn refused(cluster: &mut LocalCluster, effect: Effect, part: &str) {
    let error = cluster.perform(effect).unwrap_err().to_string();
    assert!(error.contains(part), "{part:?} is not in {error:?}");
}

async fn is_served(cluster: &LocalCluster, site: usize) {
    let mut options = cluster
        .client_access()
        .options([cluster.client_addresses()[site]]);
    options.request_timeout = Duration::from_secs(60);
    for _ in 0..600 {
        if let Ok(client) = leasehold_client::Client::connect(options.clone()).await
            && client.put("greeting", "hello").await.is_ok()
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("site {site} never serves");
}

#[test]
fn a_replica_ends_in_every_way_and_starts_again() {
    with_cluster(async |cluster| {
        let ended = |why: DownReason| {
            move |found: &ProcessEvent| *found == ProcessEvent::Ended(why.clone())
        };
        cluster.perform(Effect::Kill(JP)).unwrap();
        until_happened(cluster, JP, "the kill", ended(DownReason::Killed));
        assert_eq!(
            process_state(cluster, JP),
            ProcessState::Down(DownReason::Killed)
        );
        assert_eq!(cluster.up(), [true, true, false]);
        refused(cluster, Effect::Pause(JP), "JP is down (killed)");
        refused(cluster, Effect::Kill(JP), "start it first");
        cluster.perform(Effect::Start(JP)).unwrap();
        refused(cluster, Effect::Start(JP), "up already");
        is_served(cluster, JP).await;

        cluster.perform(Effect::Stop(JP)).unwrap();
        assert_eq!(process_state(cluster, JP), ProcessState::Ending);
        until_happened(cluster, JP, "the stop", ended(DownReason::Stopped));
        cluster.perform(Effect::Start(JP)).unwrap();
        is_served(cluster, JP).await;

        let before = cluster.process_statuses()[JP].process;
        cluster.perform(Effect::Restart(JP)).unwrap();
        until_happened(cluster, JP, "the restart", |found| {
            *found == ProcessEvent::Started
        });
        assert_ne!(cluster.process_statuses()[JP].process, before);
        is_served(cluster, JP).await;
    })
    .assert_no_process_left();
}

#[test]
fn a_death_that_nobody_asked_for_is_noticed() {
    with_cluster(async |cluster| {
        let process = cluster.process_statuses()[OR].process.unwrap();
        signal("KILL", process);
        let died = |found: &ProcessEvent| {
            matches!(found, ProcessEvent::Ended(DownReason::Died(how)) if how.contains("signal: 9"))
        };
        until_happened(cluster, OR, "the death", died);
        cluster.perform(Effect::Start(OR)).unwrap();
        is_served(cluster, OR).await;
    })
    .assert_no_process_left();
}

#[test]
fn a_paused_replica_answers_nobody_and_goes_on_or_ends() {
    with_cluster(async |cluster| {
        cluster.perform(Effect::Pause(JP)).unwrap();
        assert_eq!(process_state(cluster, JP), ProcessState::Paused);
        refused(cluster, Effect::Pause(JP), "paused already");
        refused(cluster, Effect::Stop(JP), "resume it first");
        refused(cluster, Effect::Resume(OR), "OR is not paused");
        let roles = cluster.roles(None).await;
        assert_eq!(
            (roles.leader, roles.up),
            (Some(CA), vec![true, true, false])
        );
        cluster.perform(Effect::Resume(JP)).unwrap();
        is_served(cluster, JP).await;
        // The cluster ends with a paused replica.
        cluster.perform(Effect::Pause(JP)).unwrap();
    })
    .assert_no_process_left();
}

#[test]
fn a_cut_leader_is_replaced_and_roles_say_by_whom() {
    with_cluster(async |cluster| {
        let key = Some(&b"greeting"[..]);
        let roles = cluster.roles(key).await;
        assert_eq!(roles.leader, Some(CA));
        assert!(roles.holders.contains(&CA), "{roles:?}");
        assert_eq!(roles.holders.len(), 2, "the leader and the nearest to it");
        let how = LinkState {
            cut: true,
            ..LinkState::default()
        };
        let ways = [(CA, OR), (OR, CA), (CA, JP), (JP, CA)];
        for (from, to) in ways {
            cluster.perform(Effect::Fail { from, to, how }).unwrap();
        }
        let mut leader = Some(CA);
        for _ in 0..600 {
            leader = cluster.roles(key).await.leader;
            if leader.is_some_and(|leader| leader != CA) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(matches!(leader, Some(OR | JP)), "{leader:?}");
        for (from, to) in ways {
            cluster.perform(Effect::Mend { from, to, how }).unwrap();
        }
        is_served(cluster, CA).await;
    })
    .assert_no_process_left();
}

#[test]
fn a_full_disk_refuses_writes_until_it_has_room() {
    with_cluster(async |cluster| {
        for site in [CA, OR, JP] {
            cluster.perform(Effect::FillDisk(site)).unwrap();
        }
        refused(cluster, Effect::FillDisk(CA), "full already");
        let mut options = cluster
            .client_access()
            .options([cluster.client_addresses()[CA]]);
        options.request_timeout = Duration::from_secs(3);
        let client = leasehold_client::Client::connect(options).await.unwrap();
        assert!(client.put("greeting", "hello").await.is_err());
        for site in [CA, OR, JP] {
            cluster.perform(Effect::FreeDisk(site)).unwrap();
        }
        is_served(cluster, CA).await;
        assert_eq!(cluster.up(), [true; 3], "no process has ended");
    })
    .assert_no_process_left();
}
