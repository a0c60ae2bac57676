//! `leasehold lock demo`: three members on this machine, and owners that are killed.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use leasehold_geo_deploy::backend::local::free_ports;
use leasehold_geo_deploy::report::{OwnershipSpan, OwnershipState, OwnershipTimeline};
use leasehold_lock::Group;
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use super::control::{LockAnswer, LockRequest, ask};
use crate::terminal::{Interrupted, runtime, say};

const MEMBERS: [&str; 3] = ["a", "b", "c"];
const RESOURCE: &str = "printer";
/// Number of owners that are killed.
const KILLS: usize = 3;
/// Interval at which a member is asked for its lease.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time until the resource has an owner, as a multiple of the term.
const OWNED_WITHIN: u32 = 10;

#[derive(Args)]
pub struct LockDemoArgs {
    /// Duration of a lease that is not renewed, in ms
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(500..=10_000))]
    t_max_ms: u64,
    /// File for the picture (SVG)
    #[arg(long, value_name = "FILE", default_value = "lock-demo.svg")]
    out: PathBuf,
}

pub fn run(args: &LockDemoArgs) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir().context("making a temporary directory")?;
    let demo = Demo::prepare(scratch.path(), args.t_max_ms)?;
    let timeline = LocalSet::new().block_on(&runtime()?, async {
        tokio::select! {
            timeline = demo.run() => timeline,
            _ = tokio::signal::ctrl_c() => {
                Err(Interrupted("interrupted; the members have been ended".to_owned()).into())
            }
        }
    })?;
    std::fs::write(&args.out, timeline.draw())
        .with_context(|| format!("writing {}", args.out.display()))?;
    say!("wrote the time line to {}", args.out.display());
    Ok(())
}

/// A lease that a member had.
#[derive(Clone, Copy, Debug)]
struct SeenLease {
    member: usize,
    fence: u64,
    acquired_s: f64,
    /// Last moment at which the lease is valid, as far as it was seen.
    until_s: f64,
}

struct Demo {
    group: Group,
    group_file: PathBuf,
    dirs: Vec<PathBuf>,
    began: Instant,
    leases: RefCell<Vec<SeenLease>>,
    /// Notified when a member has acquired the resource.
    acquired: Notify,
}

impl Demo {
    fn prepare(scratch: &Path, t_max_ms: u64) -> anyhow::Result<Rc<Demo>> {
        let mut text = format!("group = \"demo\"\nt_max_ms = {t_max_ms}\n");
        for (name, address) in MEMBERS.iter().zip(free_ports(MEMBERS.len(), &[])?) {
            text += &format!("\n[[member]]\nname = \"{name}\"\naddress = \"{address}\"\n");
        }
        let group_file = scratch.join("group.toml");
        std::fs::write(&group_file, &text).context("writing the group file")?;
        Ok(Rc::new(Demo {
            group: Group::from_toml(&text)?,
            group_file,
            dirs: MEMBERS.iter().map(|name| scratch.join(name)).collect(),
            began: Instant::now(),
            leases: RefCell::default(),
            acquired: Notify::new(),
        }))
    }

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    async fn run(self: &Rc<Self>) -> anyhow::Result<OwnershipTimeline> {
        let term = self.group.settings().term;
        let silence = self.group.restart_wait();
        say!("a lease of {RESOURCE:?} lasts {term:?} unless its owner renews it");
        let mut spans = Vec::new();
        let mut kills = Vec::new();
        let mut processes = Vec::new();
        for member in 0..MEMBERS.len() {
            processes.push(self.start(member)?);
            spans.push(self.silent(member));
        }
        say!(
            "{:5.1} s  a, b and c start, and are silent for {silence:.1?}",
            self.now_s()
        );
        let mut owner = self.next_owner(0).await?;
        for _ in 0..KILLS {
            sleep(term * 3 / 2).await;
            let killed = owner.member;
            processes[killed].start_kill().context("killing a member")?;
            processes[killed].wait().await.context("killing a member")?;
            let killed_s = self.now_s();
            kills.push((killed, killed_s));
            let (name, left) = (MEMBERS[killed], self.lease(owner.fence).until_s - killed_s);
            say!("{killed_s:5.1} s  {name} is killed (kill -9); its lease lasts {left:.1} s more");
            owner = self.next_owner(owner.fence).await?;
            let took_s = owner.acquired_s - killed_s;
            say!("         {took_s:.1} s after the kill");
            processes[killed] = self.start(killed)?;
            spans.push(self.silent(killed));
        }
        sleep(term * 3 / 2).await;
        let end_s = self.now_s();
        drop(processes);
        let leases = self.leases.borrow();
        check(&leases)?;
        spans.extend(leases.iter().flat_map(|lease| owned(lease, &kills, end_s)));
        say!("no two members owned it at the same time, and the fence tokens rose");
        Ok(OwnershipTimeline {
            title: format!("Owners of {RESOURCE:?}: leases of {term:?}, {KILLS} kills"),
            members: MEMBERS.map(str::to_owned).to_vec(),
            spans,
            kills,
            end_s,
        })
    }

    /// Starts a member, which requests the resource and waits for it.
    fn start(self: &Rc<Self>, member: usize) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(["lock", "serve", "--until-stdin-closes", "--group"]);
        command
            .arg(&self.group_file)
            .args(["--me", MEMBERS[member], "--dir"]);
        command.arg(&self.dirs[member]);
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // The other members tell of each kill.
        command.env("RUST_LOG", "error").kill_on_drop(true);
        let child = command.spawn().context("starting a member")?;
        spawn_local(self.clone().follow(member));
        Ok(child)
    }

    /// Requests the resource for a member, and records its leases until it ends.
    async fn follow(self: Rc<Self>, member: usize) {
        let dir = &self.dirs[member];
        let silent_until = Instant::now() + self.group.restart_wait();
        let acquire = LockRequest::Acquire {
            resource: RESOURCE.to_owned(),
            wait_ms: None,
        };
        // The member needs a moment before its socket exists.
        let fence = loop {
            match ask(dir, &acquire).await {
                Ok(LockAnswer::Acquired { fence, .. }) => break fence,
                Ok(_) => return,
                Err(_) if Instant::now() < silent_until => sleep(LOOK_INTERVAL).await,
                // The member was killed while it waited.
                Err(_) => return,
            }
        };
        let acquired_s = self.now_s();
        self.leases.borrow_mut().push(SeenLease {
            member,
            fence,
            acquired_s,
            until_s: acquired_s,
        });
        say!(
            "{acquired_s:5.1} s  {} owns it, fence {fence}",
            MEMBERS[member]
        );
        self.acquired.notify_one();
        loop {
            // Before the answer, so the end is not too late.
            let asked_s = self.now_s();
            let Ok(LockAnswer::Leases { leases }) = ask(dir, &LockRequest::List).await else {
                return;
            };
            if let Some(line) = leases.iter().find(|line| line.fence == fence) {
                let mut seen = self.leases.borrow_mut();
                let seen = seen.iter_mut().find(|seen| seen.fence == fence);
                if let Some(seen) = seen {
                    seen.until_s = asked_s + line.left_ms as f64 / 1e3;
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// Waits for an owner with a fence token above `fence`.
    async fn next_owner(&self, fence: u64) -> anyhow::Result<SeenLease> {
        let owned = async {
            loop {
                let newest = self.leases.borrow().last().copied();
                if let Some(lease) = newest.filter(|lease| lease.fence > fence) {
                    return lease;
                }
                self.acquired.notified().await;
            }
        };
        let within = self.group.settings().term * OWNED_WITHIN;
        let owned = timeout(within, owned).await;
        owned.with_context(|| format!("no member owns {RESOURCE:?} after {within:?}"))
    }

    fn lease(&self, fence: u64) -> SeenLease {
        let leases = self.leases.borrow();
        let lease = leases.iter().find(|lease| lease.fence == fence);
        *lease.expect("the lease of an owner was recorded")
    }

    fn silent(&self, member: usize) -> OwnershipSpan {
        let from_s = self.now_s();
        OwnershipSpan {
            member,
            state: OwnershipState::Silent,
            from_s,
            to_s: from_s + self.group.restart_wait().as_secs_f64(),
        }
    }
}

/// Checks that there never were two owners.
fn check(leases: &[SeenLease]) -> anyhow::Result<()> {
    for pair in leases.windows(2) {
        let [earlier, later] = pair else {
            bail!("windows of two leases");
        };
        ensure!(
            earlier.until_s <= later.acquired_s && earlier.fence < later.fence,
            "two owners at the same time: {earlier:?} and {later:?}"
        );
    }
    Ok(())
}

/// Returns the spans of a lease: up to the kill of its owner, and from there on.
fn owned(lease: &SeenLease, kills: &[(usize, f64)], end_s: f64) -> Vec<OwnershipSpan> {
    let is_of = |(member, at_s): &&(usize, f64)| {
        *member == lease.member && (lease.acquired_s..lease.until_s).contains(at_s)
    };
    let killed_s = kills.iter().find(is_of).map_or(end_s, |(_, at_s)| *at_s);
    let span = |state, from_s, to_s| OwnershipSpan {
        member: lease.member,
        state,
        from_s,
        to_s,
    };
    let mut spans = vec![span(OwnershipState::Owns, lease.acquired_s, killed_s)];
    if killed_s < end_s {
        spans.push(span(OwnershipState::NotRenewed, killed_s, lease.until_s));
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(fence: u64, acquired_s: f64, until_s: f64) -> SeenLease {
        let member = 0;
        SeenLease {
            member,
            fence,
            acquired_s,
            until_s,
        }
    }

    #[test]
    fn two_owners_are_noticed() {
        let first = lease(1, 0.0, 2.0);
        assert!(check(&[first, lease(2, 2.0, 4.0)]).is_ok());
        assert!(check(&[first, lease(2, 1.9, 4.0)]).is_err());
        assert!(
            check(&[first, lease(1, 2.5, 4.0)]).is_err(),
            "the fence fell"
        );
    }

    #[test]
    fn a_lease_ends_later_than_its_owner() {
        let states = |kills: &[(usize, f64)]| {
            let spans = owned(&lease(1, 1.0, 5.0), kills, 8.0);
            let ends = spans.iter().map(|span| (span.state, span.to_s));
            ends.collect::<Vec<_>>()
        };
        let (owns, ends) = (OwnershipState::Owns, OwnershipState::NotRenewed);
        assert_eq!(states(&[]), [(owns, 8.0)]);
        assert_eq!(states(&[(1, 3.0), (0, 6.0)]), [(owns, 8.0)]);
        assert_eq!(states(&[(0, 3.0)]), [(owns, 3.0), (ends, 5.0)]);
    }
}
