//! `leasehold lock`.

mod control;
mod demo;
mod run;
mod serve;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};

use self::control::{LockAnswer, LockRequest};
pub use self::run::{CommandEnded, LeaseLost};
use crate::terminal::{Interrupted, escaped, is_unprintable, note, runtime, say};

const EXAMPLE: &str = "\
The required fields of a group file. All members have the same file:

  group = \"printers\"

  [[member]]
  name = \"a\"
  address = \"127.0.0.1:7401\"     # where the others reach this member
  # ... and a [[member]] for each other: 3 to 15

Optional fields, with their defaults:

  t_max_ms = 10000             duration of a lease that is not renewed; the others wait about
                               as long after its owner has died
  renew_ms = t_max_ms / 3      time after which an owner renews its lease
  attempt_ms = t_max_ms / 4    maximum duration of an attempt to acquire or renew a lease
  warn_ms = t_max_ms / 4       time before the end of a lease at which its owner is warned
  clocks = \"bounded\"           the rates of all clocks are wrong by at most rho
  rho = 0.001
  insecure = false             must be true if other machines can reach an address; members
                               do not authenticate each other

With clocks = \"synchronised\", give epsilon_ms instead of rho: the maximum difference between the \
wall clocks of any two members, at least twice the error that NTP states for one clock.

  leasehold lock serve --group group.toml --me a --dir a &     # and b and c
  leasehold lock acquire --dir a printer --wait forever
  leasehold lock owner --dir b printer
  leasehold lock list --dir a
  leasehold lock release --dir a printer
  leasehold lock run --dir a printer -- ./print-all.sh

`--wait` also covers the silence of a member that has just started.

Exit status: 10 if another member owns the resource; 130 after Ctrl-C; else 1, or 0 after success.";

/// Gives each resource at most one owner at a time. The members of a group, one
/// process on each of 3 to 15 machines, agree on the owners among themselves.
#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub struct LockArgs {
    #[command(subcommand)]
    command: LockCommand,
}

#[derive(Subcommand)]
enum LockCommand {
    /// Runs a member of a group until SIGINT or SIGTERM, and then releases what it owns
    Serve(serve::LockServeArgs),
    /// Acquires a resource for a running member, which keeps it until `lock release`
    Acquire {
        #[command(flatten)]
        member: RunningMember,
        /// Name of the resource: 1 to 256 bytes
        resource: String,
        /// Longest wait if another member owns it: seconds, or `forever`
        #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_wait)]
        wait: WaitTime,
    },
    /// Runs a command while a running member owns a resource, and ends it if the lease is lost
    Run(run::LockRunArgs),
    /// Starts the command of `run`
    #[command(hide = true)]
    Exec(run::LockExecArgs),
    /// Finds the owner of a resource
    Owner {
        #[command(flatten)]
        member: RunningMember,
        /// Name of the resource
        resource: String,
    },
    /// Gives up a resource in favour of a member: if that member waits for it, it is the next owner
    HandOver {
        #[command(flatten)]
        member: RunningMember,
        /// Name of the resource
        resource: String,
        /// Name of the member in the group file
        to: String,
    },
    /// Gives up a resource that a running member owns
    Release {
        #[command(flatten)]
        member: RunningMember,
        /// Name of the resource
        resource: String,
    },
    /// Lists the resources that a running member owns
    List {
        #[command(flatten)]
        member: RunningMember,
    },
    /// Starts three members, kills the owner three times, and draws a time line of the owners
    Demo(demo::LockDemoArgs),
}

#[derive(Args)]
struct RunningMember {
    /// Directory of the member: `--dir` of its `lock serve`
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// Time to wait for a resource.
#[derive(Clone, Copy)]
enum WaitTime {
    For(Duration),
    Forever,
}

fn parse_wait(text: &str) -> Result<WaitTime, String> {
    if text == "forever" {
        return Ok(WaitTime::Forever);
    }
    let seconds = text.parse().ok();
    let wait = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let wait = wait.filter(|wait| *wait < Duration::from_secs(1 << 30));
    wait.map(WaitTime::For)
        .ok_or_else(|| "give a number of seconds, such as 2.5, or `forever`".to_owned())
}

/// Returns a time to wait in ms; `None` for one that never ends.
fn wait_ms(wait: WaitTime) -> anyhow::Result<Option<u64>> {
    Ok(match wait {
        WaitTime::Forever => None,
        WaitTime::For(wait) => Some(u64::try_from(wait.as_millis())?),
    })
}

/// Error of a command that found another owner of the resource.
#[derive(Debug)]
pub struct OwnedByOther(String);

impl OwnedByOther {
    /// Exit status of the command.
    pub const STATUS: u8 = 10;
}

impl std::fmt::Display for OwnedByOther {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OwnedByOther {}

pub fn run(args: &LockArgs) -> anyhow::Result<()> {
    match &args.command {
        LockCommand::Serve(args) => serve::run(args),
        LockCommand::Demo(args) => demo::run(args),
        LockCommand::Acquire {
            member,
            resource,
            wait,
        } => {
            let (resource, wait_ms) = (resource.clone(), wait_ms(*wait)?);
            ask(member, &LockRequest::Acquire { resource, wait_ms })
        }
        LockCommand::Run(args) => run::run(args),
        LockCommand::Exec(args) => run::exec(args),
        LockCommand::Owner { member, resource } => {
            let resource = resource.clone();
            ask(member, &LockRequest::Owner { resource })
        }
        LockCommand::HandOver {
            member,
            resource,
            to,
        } => {
            let (resource, to) = (resource.clone(), to.clone());
            ask(member, &LockRequest::HandOver { resource, to })
        }
        LockCommand::Release { member, resource } => {
            let resource = resource.clone();
            ask(member, &LockRequest::Release { resource })
        }
        LockCommand::List { member } => ask(member, &LockRequest::List),
    }
}

/// Sends a request to a running member, and prints its answer.
fn ask(member: &RunningMember, request: &LockRequest) -> anyhow::Result<()> {
    let answer = runtime()?.block_on(async {
        tokio::select! {
            answer = control::ask(&member.dir, request) => answer,
            _ = tokio::signal::ctrl_c() => {
                let words = match request {
                    LockRequest::Acquire { .. } => "interrupted; a request that waited is cancelled",
                    _ => "interrupted; the member may have taken the request",
                };
                Err(Interrupted(words.to_owned()).into())
            }
        }
    })?;
    let ms = Duration::from_millis;
    match answer {
        LockAnswer::Acquired { fence, left_ms } => {
            say!(
                "acquired; fence {fence}, valid for {:?} and then renewed",
                ms(left_ms)
            );
        }
        LockAnswer::Released { ends_in_ms: None } => say!("released"),
        LockAnswer::Released {
            ends_in_ms: Some(left),
        } => say!(
            "released, but no majority has confirmed it: others can acquire it in {:?}",
            ms(left)
        ),
        LockAnswer::Free => say!("free"),
        LockAnswer::Owned {
            owner,
            fence,
            at_most_ms,
        } => say!(
            "owned by {owner}, fence {fence}, for {:?} at most unless it is renewed",
            ms(at_most_ms)
        ),
        LockAnswer::Leases { leases } => {
            if leases.is_empty() {
                note!("this member owns nothing");
            }
            for lease in leases {
                let name = escaped(lease.resource.as_bytes(), is_unprintable);
                let (fence, left) = (lease.fence, ms(lease.left_ms));
                say!("{name}  fence {fence}, valid for {left:?} unless it is renewed");
            }
        }
        LockAnswer::Taken { message } => return Err(OwnedByOther(message).into()),
        LockAnswer::Refused { message } | LockAnswer::Lost { message, .. } => bail!(message),
        LockAnswer::Held { .. } | LockAnswer::Valid { .. } => {
            bail!("the member has answered another request")
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_a_number_of_seconds_or_forever() {
        let is_for = |text: &str, ms| {
            let wait = parse_wait(text);
            matches!(wait, Ok(WaitTime::For(wait)) if wait == Duration::from_millis(ms))
        };
        assert!(is_for("0", 0) && is_for("2.5", 2_500));
        assert!(matches!(parse_wait("forever"), Ok(WaitTime::Forever)));
        for wrong in ["", "-1", "nan", "inf", "1e300", "2 s", "Forever"] {
            assert!(parse_wait(wrong).is_err(), "{wrong}");
        }
    }
}
