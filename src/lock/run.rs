//! `leasehold lock run`: a command that runs only while a member owns a resource.

use std::cell::Cell;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use leasehold_leases::Time;
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use super::control::{ControlConnection, LockAnswer, LockRequest};
use super::{OwnedByOther, RunningMember, WaitTime, parse_wait, wait_ms};
use crate::terminal::{Interrupted, escaped, is_unprintable, note, runtime};

/// Maximum time between two looks at the lease.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Maximum time between two looks at the clock while the command must end.
const STEP_MAX: Duration = Duration::from_millis(50);
/// Maximum time for a release after the command has ended.
const RELEASE_MAX: Duration = Duration::from_secs(5);
/// Signals that are passed on to the command.
const PASSED_ON: [Signal; 6] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

const EXAMPLE: &str = "\
The command gets two environment variables: LEASEHOLD_RESOURCE, and LEASEHOLD_FENCE, a number that \
rises with each owner. A store that keeps the largest number can refuse the late requests of an \
earlier owner.

If the lease cannot be renewed, the command gets SIGTERM `warn_ms` before the end of the lease, and \
SIGKILL a quarter of `warn_ms` before it. So do all processes of its process group. SIGINT, SIGTERM, \
SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on. Standard input is passed on unless it is a \
terminal.

When the command ends, the resource is released. If `lock run` itself is killed, the command gets \
SIGKILL, and the resource stays owned for a while.

  leasehold lock run --dir a nightly -- ./backup.sh --full

Exit status: that of the command, or 128 and the signal that has ended it; 10 if another member owns \
the resource; 11 if the lease was lost; 126 or 127 if the command cannot be started.";

#[derive(Args)]
#[command(after_help = EXAMPLE)]
pub struct LockRunArgs {
    #[command(flatten)]
    member: RunningMember,
    /// Name of the resource: 1 to 256 bytes
    resource: String,
    /// Longest wait until the member owns the resource: seconds, or `forever`
    #[arg(long, value_name = "SECONDS", default_value = "forever", value_parser = parse_wait)]
    wait: WaitTime,
    /// The command, with its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<std::ffi::OsString>,
}

/// The command has ended with this status, which is not 0.
#[derive(Debug)]
pub struct CommandEnded(pub u8);

impl std::fmt::Display for CommandEnded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the command has ended with status {}", self.0)
    }
}

impl std::error::Error for CommandEnded {}

/// Error of a command that was ended because the lease was lost.
#[derive(Debug)]
pub struct LeaseLost(String);

impl LeaseLost {
    /// Exit status of `lock run`.
    pub const STATUS: u8 = 11;
}

impl std::fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LeaseLost {}

pub fn run(args: &LockRunArgs) -> anyhow::Result<()> {
    runtime()?.block_on(run_while_owned(args))
}

/// A lease, as `lock run` knows it.
struct RunLease {
    name: String,
    fence: u64,
    warn: Duration,
    /// End of the lease, at the earliest, by the clock of this machine.
    until: Cell<Time>,
}

impl RunLease {
    /// Returns the time until `before` the end of the lease.
    fn time_until(&self, before: Duration) -> Duration {
        let until = self.until.get().since(leasehold_clock::now());
        until.saturating_sub(before)
    }

    /// Waits until `before` the end of the lease, which may be renewed meanwhile. A timer does not
    /// count the time of a suspension, so the clock is read again and again.
    async fn passed(&self, before: Duration) {
        loop {
            let time = self.time_until(before);
            if time.is_zero() {
                return;
            }
            sleep(time.min(STEP_MAX)).await;
        }
    }

    /// Asks the member for the end of the lease again and again. Returns the reason when the lease is
    /// lost or cannot be renewed any more.
    async fn follow(&self, member: &mut ControlConnection) -> RunLoss {
        loop {
            if let Err(reason) = self.look(member).await {
                return reason;
            }
            let time = self.until.get().since(leasehold_clock::now()) / 8;
            sleep(time.clamp(STEP_MAX, LOOK_MAX)).await;
        }
    }

    /// Asks the member for the end of the lease. Returns the reason if it is lost.
    async fn look(&self, member: &mut ControlConnection) -> Result<(), RunLoss> {
        // The remaining time of the answer counts from a moment after this one.
        let asked = leasehold_clock::now();
        match member.ask(&LockRequest::Check).await {
            Ok(LockAnswer::Valid { left_ms }) => {
                self.until.set(asked + Duration::from_millis(left_ms));
                Ok(())
            }
            Ok(LockAnswer::Lost {
                message,
                is_clock_wrong,
            }) => Err(RunLoss {
                reason: message,
                is_clock_wrong,
            }),
            Ok(answer) => Err(format!("the member has answered {answer:?}").into()),
            Err(error) => Err(format!("{error:#}").into()),
        }
    }
}

/// Reason for the end of a lease.
struct RunLoss {
    reason: String,
    /// Whether the end of the lease is unknown, because a clock is wrong.
    is_clock_wrong: bool,
}

impl From<String> for RunLoss {
    fn from(reason: String) -> RunLoss {
        RunLoss {
            reason,
            is_clock_wrong: false,
        }
    }
}

async fn run_while_owned(args: &LockRunArgs) -> anyhow::Result<()> {
    let name = escaped(args.resource.as_bytes(), is_unprintable);
    let mut member = ControlConnection::open(&args.member.dir).await?;
    let hold = LockRequest::Hold {
        resource: args.resource.clone(),
        wait_ms: wait_ms(args.wait)?,
    };
    let mut passed_on = PassedOn::new()?;
    let answer = tokio::select! {
        answer = member.ask(&hold) => answer?,
        _ = passed_on.next() => {
            let words = "interrupted; the command was not started".to_owned();
            return Err(Interrupted(words).into());
        }
    };
    let lease = match answer {
        LockAnswer::Held { fence, warn_ms } => RunLease {
            name,
            fence,
            warn: Duration::from_millis(warn_ms),
            until: Cell::new(Time::ZERO),
        },
        LockAnswer::Taken { message } => return Err(OwnedByOther(message).into()),
        LockAnswer::Refused { message } => bail!(message),
        answer => bail!("the member has answered {answer:?}"),
    };
    if let Err(loss) = lease.look(&mut member).await {
        release(&mut member, &lease).await;
        return Err(lost(&lease, &loss.reason));
    }
    let started = match lease.time_until(lease.warn) {
        Duration::ZERO => Err(lost(&lease, "too little time is left of it")),
        _ => start(args, &lease),
    };
    let (mut child, group) = match started {
        Ok(started) => started,
        Err(error) => {
            release(&mut member, &lease).await;
            return Err(error);
        }
    };

    let ended = {
        let mut follow = std::pin::pin!(lease.follow(&mut member));
        loop {
            tokio::select! {
                status = child.wait() => break Ok(status?),
                received = passed_on.next() => send(group, received),
                loss = &mut follow => break Err(loss),
                () = lease.passed(lease.warn) => {
                    break Err("the group has not renewed it in time".to_owned().into());
                }
            }
        }
    };
    match ended {
        Ok(status) => {
            release(&mut member, &lease).await;
            match exit_code(status) {
                0 => Ok(()),
                code => Err(CommandEnded(code).into()),
            }
        }
        Err(RunLoss {
            reason,
            is_clock_wrong,
        }) => {
            note!(
                "{}: {reason}; the command gets SIGTERM, and SIGKILL before the end of the lease",
                lease.name
            );
            let time = if is_clock_wrong {
                Duration::ZERO
            } else {
                lease.time_until(lease.warn / 4)
            };
            end(&mut child, group, &lease, time).await?;
            // It may still be valid. Otherwise there is nothing to release.
            let _ = timeout(RELEASE_MAX, member.ask(&LockRequest::ReleaseHeld)).await;
            Err(lost(&lease, &reason))
        }
    }
}

fn lost(lease: &RunLease, reason: &str) -> anyhow::Error {
    let (name, fence) = (&lease.name, lease.fence);
    LeaseLost(format!("{name}: lost, fence {fence}: {reason}")).into()
}

/// Starts the command in a process group of its own. The kernel kills it if this process dies.
fn start(args: &LockRunArgs, lease: &RunLease) -> anyhow::Result<(Child, Pid)> {
    let me = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(me);
    command
        .args(["lock", "exec", "--parent"])
        .arg(std::process::id().to_string())
        .arg("--")
        .args(&args.command)
        .env("LEASEHOLD_RESOURCE", &args.resource)
        .env("LEASEHOLD_FENCE", lease.fence.to_string())
        .process_group(0);
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        // A background process group may not read from the terminal.
        command.stdin(Stdio::null());
    }
    let child = command.spawn().context("starting the command")?;
    let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    let group = group.context("the command has no process id")?;
    Ok((child, group))
}

/// Ends the command before the end of its lease. It has `time` left, by each of two clocks: one may
/// stand still.
async fn end(
    child: &mut Child,
    group: Pid,
    lease: &RunLease,
    time: Duration,
) -> anyhow::Result<()> {
    send(group, Signal::TERM);
    // A process that is stopped does not see SIGTERM otherwise.
    send(group, Signal::CONT);
    tokio::select! {
        status = child.wait() => {
            status?;
        }
        () = lease.passed(lease.warn / 4) => {}
        () = sleep(time) => {}
    }
    // The command may have left processes behind.
    send(group, Signal::KILL);
    child.wait().await?;
    Ok(())
}

/// Sends a signal to the process group of the command. The group may have ended.
fn send(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}

/// Releases the lease after the command has ended.
async fn release(member: &mut ControlConnection, lease: &RunLease) {
    let release = member.ask(&LockRequest::ReleaseHeld);
    let problem = match timeout(RELEASE_MAX, release).await {
        Ok(Ok(LockAnswer::Released { ends_in_ms: None })) => return,
        Ok(Ok(LockAnswer::Released {
            ends_in_ms: Some(ms),
        })) => format!(
            "no majority has confirmed it; others can acquire it in {:?}",
            Duration::from_millis(ms)
        ),
        Ok(Ok(answer)) => format!("{answer:?}"),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "the member does not answer".to_owned(),
    };
    note!("{}: releasing: {problem}", lease.name);
}

/// Returns the exit status by which a shell would describe how a command has ended.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Signals to this process that it passes on.
struct PassedOn(Vec<(Signal, tokio::signal::unix::Signal)>);

impl PassedOn {
    fn new() -> std::io::Result<PassedOn> {
        let listen = |number: Signal| {
            let kind = SignalKind::from_raw(number.as_raw());
            Ok((number, signal(kind)?))
        };
        // `nohup` ignores SIGHUP, for the command too.
        let ignored = ignored_signals();
        let is_heeded = |number: &Signal| ignored >> (number.as_raw() - 1) & 1 == 0;
        PASSED_ON
            .into_iter()
            .filter(is_heeded)
            .map(listen)
            .collect::<Result<_, _>>()
            .map(PassedOn)
    }

    /// Waits for the next signal.
    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            let mut ready = self.0.iter_mut().filter_map(|(number, stream)| {
                stream.poll_recv(context).is_ready().then_some(*number)
            });
            ready
                .next()
                .map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
        .await
    }
}

/// Returns the signals that this process ignores: bit 0 for signal 1, and so on.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Replaces this process by a command that dies with its parent.
#[derive(Args)]
pub struct LockExecArgs {
    /// Process id of the parent
    #[arg(long)]
    parent: i32,
    /// The command, with its arguments
    #[arg(required = true, last = true)]
    command: Vec<std::ffi::OsString>,
}

pub fn exec(args: &LockExecArgs) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("asking the kernel for a signal when `lock run` dies")?;
    // It may have died before.
    if getppid().map(Pid::as_raw_pid) != Some(args.parent) {
        bail!("`lock run` has ended");
    }
    let (program, arguments) = args.command.split_first().context("no command")?;
    let error = std::process::Command::new(program).args(arguments).exec();
    let status = match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    let program = PathBuf::from(program);
    note!("leasehold: {}: {error}", program.display());
    Err(CommandEnded(status).into())
}
