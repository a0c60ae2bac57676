//! One attack from beginning to end: a fresh cluster, a quiet time, the attack, and the checks
//! after the attack.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::aftermath::{AftermathCheck, AftermathContext};
use crate::attacks::{Attack, Target};
use crate::cluster::{Cluster, Recipe};
use crate::failing_disk::{ExitTally, fail_until};
use crate::figures::Figures;
use crate::judge::{Check, Row, name_figures, usual};
use crate::watch::ReplicaMonitor;
use crate::well_behaved::WellBehavedClients;

/// Time to wait before measurements, so that clients are connected and caches are warm.
const SETTLES_IN: Duration = Duration::from_secs(2);
/// Time for which the well-behaved clients continue after an attack.
const RECOVERS_IN: Duration = Duration::from_secs(3);
/// Duration of the last part of an attack. In this part, the traffic between peers is measured.
const LATE: Duration = Duration::from_secs(8);
/// Interval between two measurements of the traffic between peers. It is short, because the mean
/// over a long interval would hide bursts of traffic.
const COUNTED_EVERY: Duration = Duration::from_secs(1);
/// Longest time for which attackers may continue after the end of the attack, to finish requests
/// that they have begun.
const OVERTIME: Duration = Duration::from_secs(60);

/// Settings that are the same for all attacks of a run.
pub struct Stage {
    pub binary: PathBuf,
    pub replicas: usize,
    pub rate: u32,
    pub quiet_s: u64,
    pub keys: u64,
    pub durability: String,
    pub keep: Option<PathBuf>,
}

/// Times at which the phases of an attack began and ended, and measurements that only the stage can
/// make.
pub struct AttackTimeline {
    pub quiet: Instant,
    pub began: Instant,
    /// Time shortly before the end of the attackers. At this time, their effects are still present.
    pub before_end: Instant,
    pub ended: Instant,
    pub recovered: Instant,
    /// Traffic between the replicas in the quiet time, in bytes per second; `None` if it is not
    /// known.
    pub quiet_bytes_s: Option<f64>,
    pub late_bytes_s: Option<f64>,
    /// Number of bytes that the replicas sent each other in the busiest second of the last part of
    /// the attack; `None` if it is not known.
    pub busiest_bytes_s: Option<f64>,
    /// Tally of the ways in which the replica with the failing disk ended.
    pub ends: ExitTally,
}

impl Stage {
    /// Carries out an attack, and returns the row with its results. If the cluster does not start,
    /// the row has a failed check.
    pub async fn row(&self, attack: &Attack) -> Row {
        let mut row = Row {
            name: attack.name.to_owned(),
            what: attack.what.to_owned(),
            ..Row::default()
        };
        if let Err(error) = self.measure(attack, &mut row).await {
            let found = format!("{error:#}");
            row.checks.push(Check::described(
                "the cluster can be measured",
                &found,
                false,
            ));
        }
        row
    }

    async fn measure(&self, attack: &Attack, row: &mut Row) -> anyhow::Result<()> {
        let recipe = Recipe {
            binary: self.binary.clone(),
            replicas: self.replicas,
            durability: self.durability.clone(),
            keep: self.keep.clone(),
        };
        // This attack's disk should not have to wait for files that the previous attack wrote or
        // removed.
        rustix::fs::sync();
        let mut cluster = Cluster::start(&recipe, attack.setting, attack.name)?;
        if attack.setting.one_late {
            sleep(SETTLES_IN).await;
            let waged = self.wage(attack, &cluster, true)?;
            row.waged = figures_of(waged, attack).await?;
            cluster.start_one(recipe.replicas - 1)?;
        }
        cluster.ready().await?;
        if attack.prepares && !attack.setting.one_late {
            figures_of(self.wage(attack, &cluster, true)?, attack).await?;
        }
        let watch = ReplicaMonitor::start(&cluster);
        let calm = WellBehavedClients::start(&cluster, self.rate).await?;
        let (seen, waged) = self.play(attack, &mut cluster).await?;
        calm.stop().await;
        sum_up(row, &seen, &watch, &calm);
        drop(calm);
        row.waged.extend(waged.clone());
        row.checks = usual(attack, &row.figures);
        if attack.setting.certified && cluster.authority.is_none() {
            let found = "none: this program cannot make them";
            row.checks
                .push(Check::described("certificates", found, true));
        }
        let alive = self.alive(&mut cluster);
        row.checks.push(alive);
        let mut context = AftermathContext {
            cluster: &mut cluster,
            watch: &watch,
            waged: &waged,
            seen: &seen,
        };
        for after in attack.after {
            let check = context.look(*after).await?;
            row.checks.push(check);
        }
        Ok(())
    }

    /// Runs the quiet time, the attack and the recovery.
    async fn play(
        &self,
        attack: &Attack,
        cluster: &mut Cluster,
    ) -> anyhow::Result<(AttackTimeline, Figures)> {
        sleep(SETTLES_IN).await;
        let (quiet, sent) = (Instant::now(), peer_bytes(attack, cluster).await);
        sleep(Duration::from_secs(self.quiet_s)).await;
        let quiet_bytes_s = rate(sent, peer_bytes(attack, cluster).await, quiet);
        let began = Instant::now();
        let attackers = self.wage(attack, cluster, false)?;
        let length = Duration::from_secs(attack.seconds);
        let waging = tokio::task::spawn_local(figures_of_owned(attackers, attack.name));
        let ends = if attack.setting.unprivileged {
            fail_until(cluster, began + length).await?
        } else {
            ExitTally::default()
        };
        sleep((began + length).saturating_duration_since(Instant::now() + LATE)).await;
        let (late, sent) = (Instant::now(), peer_bytes(attack, cluster).await);
        let busiest_bytes_s = busiest(attack, cluster, began + length).await;
        let late_bytes_s = rate(sent, peer_bytes(attack, cluster).await, late);
        let before_end = Instant::now() - Duration::from_millis(300);
        let waged = waging.await??;
        let ended = Instant::now();
        sleep(RECOVERS_IN).await;
        let seen = AttackTimeline {
            quiet,
            began,
            before_end,
            ended,
            recovered: Instant::now(),
            quiet_bytes_s,
            late_bytes_s,
            busiest_bytes_s,
            ends,
        };
        Ok((seen, waged))
    }

    /// Starts the process of the attackers. The process ends when the handle is dropped.
    fn wage(&self, attack: &Attack, cluster: &Cluster, preparing: bool) -> anyhow::Result<Child> {
        let target = Target {
            attack: attack.name.to_owned(),
            preparing,
            seconds: attack.seconds,
            clients: cluster.clients.clone(),
            peers: cluster.peers.clone(),
            authority: cluster.authority.clone(),
            keys: self.keys,
        };
        let this = std::env::current_exe().context("finding this program")?;
        Command::new("nice")
            .args(["-n", "10"])
            .arg(this)
            .arg("wage")
            .arg(serde_json::to_string(&target)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting the attackers")
    }

    /// Checks that all replicas are running, including a replica that was started again.
    fn alive(&self, cluster: &mut Cluster) -> Check {
        let dead = (0..self.replicas).filter(|replica| cluster.ended(*replica).is_some());
        let dead = dead.count() as f64;
        let mut check = Check::at_most("replicas that ended", Some(dead), 0.0);
        if !check.good {
            check.found = format!("{} ({})", check.found, cluster.last_log_lines().trim());
        }
        check
    }
}

fn sum_up(row: &mut Row, seen: &AttackTimeline, watch: &ReplicaMonitor, calm: &WellBehavedClients) {
    let AttackTimeline {
        quiet,
        began,
        ended,
        recovered,
        ..
    } = *seen;
    name_figures(&mut row.figures, "quiet", &calm.noticed(quiet, began));
    name_figures(&mut row.figures, "attacked", &calm.noticed(began, ended));
    name_figures(
        &mut row.figures,
        "recovery",
        &calm.noticed(ended, recovered),
    );
    let before = watch.memory_mib(quiet, began);
    let peak = watch.peak_mib(recovered);
    let silence = watch.longest_silence(began, ended).as_millis() as f64;
    let figures = [
        ("elections", watch.elections(began, recovered) as f64),
        ("memory_before_mib", before),
        ("memory_peak_mib", peak),
        ("memory_taken_mib", (peak - before).max(0.0)),
        ("files_most", watch.files(began, recovered) as f64),
        ("status_silence_ms", silence),
    ];
    let named = figures.map(|(name, value)| (name.to_owned(), value));
    row.figures.extend(named);
    let bytes = [
        ("quiet_peer_bytes_s", seen.quiet_bytes_s),
        ("late_peer_bytes_s", seen.late_bytes_s),
        ("busiest_peer_bytes_s", seen.busiest_bytes_s),
    ];
    let known = bytes.map(|(name, value)| Some((name.to_owned(), value?.round())));
    row.figures.extend(known.into_iter().flatten());
    let acted = watch.acted(began, recovered);
    let acted = acted
        .into_iter()
        .map(|(name, value)| (format!("acted: {name}"), value as f64));
    row.figures.extend(acted);
}

async fn figures_of(attackers: Child, attack: &Attack) -> anyhow::Result<Figures> {
    figures_of_owned(attackers, attack.name).await
}

/// Waits for the attackers to end, and parses their output.
async fn figures_of_owned(mut attackers: Child, name: &str) -> anyhow::Result<Figures> {
    let (mut out, mut err) = (String::new(), String::new());
    let (stdout, stderr) = (attackers.stdout.take(), attackers.stderr.take());
    let read = async {
        if let (Some(mut stdout), Some(mut stderr)) = (stdout, stderr) {
            stdout.read_to_string(&mut out).await?;
            stderr.read_to_string(&mut err).await?;
        }
        attackers.wait().await
    };
    let status = timeout(OVERTIME + Duration::from_secs(60), read);
    let status = status.await.context("the attackers do not end")??;
    if !status.success() {
        bail!("the attackers of {name} failed ({status}): {}", err.trim());
    }
    serde_json::from_str(&out).context("what the attackers print")
}

fn rate(before: Option<u64>, after: Option<u64>, since: Instant) -> Option<f64> {
    let sent = after?.saturating_sub(before?);
    Some(sent as f64 / since.elapsed().as_secs_f64())
}

/// Waits until `end`. Returns the number of bytes that the replicas sent each other in the busiest
/// second before `end`.
async fn busiest(attack: &Attack, cluster: &Cluster, end: Instant) -> Option<f64> {
    let (mut since, mut sent) = (Instant::now(), peer_bytes(attack, cluster).await);
    let mut most = None::<f64>;
    while sent.is_some() && since + COUNTED_EVERY <= end {
        sleep(COUNTED_EVERY).await;
        let (now, so_far) = (Instant::now(), peer_bytes(attack, cluster).await);
        let found = rate(sent, so_far, since);
        most = found.map(|found| most.map_or(found, |most| most.max(found)));
        (since, sent) = (now, so_far);
    }
    sleep(end.saturating_duration_since(Instant::now())).await;
    most
}

/// Returns the number of bytes that have been sent to the peers' ports so far, according to `ss`.
/// Returns `None` for attacks that do not need this number, because `ss` takes long to list all
/// sockets.
async fn peer_bytes(attack: &Attack, cluster: &Cluster) -> Option<u64> {
    if !attack
        .after
        .iter()
        .any(|after| matches!(after, AftermathCheck::PeerBytes))
    {
        return None;
    }
    let mut listing = Command::new("ss");
    listing.args(["-tinH", "state", "established"]);
    let listing = listing.stdin(Stdio::null()).kill_on_drop(true).output();
    let listing = listing.await.ok()?;
    Some(sent_to(
        &cluster.peers,
        &String::from_utf8_lossy(&listing.stdout),
    ))
}

/// Parses the output of `ss`. The output has two lines for each socket: one with the addresses, and
/// one with the figures.
fn sent_to(peers: &[String], listing: &str) -> u64 {
    let lines: Vec<&str> = listing.lines().collect();
    let to_peers = lines.windows(2).filter(|pair| {
        let remote = pair[0].split_whitespace().last().unwrap_or_default();
        peers.iter().any(|peer| peer == remote)
    });
    let sent = to_peers.filter_map(|pair| {
        let mut words = pair[1].split_whitespace();
        words.find_map(|word| word.strip_prefix("bytes_sent:")?.parse::<u64>().ok())
    });
    sent.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_to_peers_alone_are_counted() {
        let listing = "\
0 0 127.0.0.1:40000 127.0.0.1:12003
\t cubic rto:204 bytes_sent:1500 bytes_acked:1500
0 0 127.0.0.1:12003 127.0.0.1:40000
\t cubic rto:204 bytes_sent:70 bytes_acked:70
0 0 127.0.0.1:40001 127.0.0.1:12000
\t cubic rto:204 bytes_sent:9 bytes_acked:9
";
        let peers = ["127.0.0.1:12003".to_owned()];
        assert_eq!(sent_to(&peers, listing), 1500);
        assert_eq!(sent_to(&[], listing), 0);
    }
}
