//! One replica process: it starts, ends, stands still and goes on, and is looked after.
//! Nothing here waits: what takes a while is finished by [`Replica::poll`].

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use leasehold_node::NodeError;
use rustix::process::{Pid, Signal, kill_process};

/// Longest time that a replica may take to end by itself before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// State of a replica's process now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs.
    Up,
    /// It stands still, as by SIGSTOP.
    Paused,
    /// It was asked to end, and has not yet.
    Ending,
    /// It has ended, or was never started.
    Down(DownReason),
}

/// Why a process is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// It was never started.
    NotStarted,
    /// It was killed: on demand, or because it did not end when it was asked to.
    Killed,
    /// It was asked to end, and did.
    Stopped,
    /// Nobody asked for it. What it said last, or how it ended.
    Died(String),
    /// It says that it cannot run before something is mended, and what.
    Refused(String),
}

impl std::fmt::Display for DownReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DownReason::NotStarted => f.write_str("never started"),
            DownReason::Killed => f.write_str("killed"),
            DownReason::Stopped => f.write_str("stopped"),
            DownReason::Died(how) => write!(f, "died: {how}"),
            DownReason::Refused(why) => write!(f, "refuses to run: {why}"),
        }
    }
}

/// State of a process, and the time since which it holds.
#[derive(Clone, Debug)]
pub struct ProcessStatus {
    /// State of the process.
    pub state: ProcessState,
    /// Since when.
    pub since: SystemTime,
    /// Identifier of the process, if there is one.
    pub process: Option<u32>,
}

/// Event that was found when a process was looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It has ended.
    Ended(DownReason),
    /// It was started again, as a restart demands.
    Started,
    /// It could not be started again.
    NotStarted(String),
}

/// Program, files and settings with which a replica is started.
#[derive(Clone, Debug)]
pub(super) struct LaunchSpec {
    pub program: PathBuf,
    /// Where its log and events go.
    pub dir: PathBuf,
    pub config: PathBuf,
    pub site: String,
}

/// A replica process, or its place while there is none.
#[derive(Debug)]
pub(super) struct Replica {
    launch_spec: LaunchSpec,
    process: Option<ChildProcess>,
    /// Why and since when there is no process.
    down: (DownReason, SystemTime),
}

#[derive(Debug)]
struct ChildProcess {
    child: Child,
    /// Since when it runs, or stands still.
    since: SystemTime,
    paused: bool,
    ending: Option<PendingShutdown>,
}

/// A process was asked to end.
#[derive(Debug)]
struct PendingShutdown {
    why: DownReason,
    since: SystemTime,
    /// It is killed then.
    deadline: Instant,
    /// It starts again when it has ended.
    then_start: bool,
}

impl Replica {
    /// Not started yet.
    pub fn new(launch_spec: LaunchSpec) -> Replica {
        Replica {
            launch_spec,
            process: None,
            down: (DownReason::NotStarted, SystemTime::now()),
        }
    }

    pub fn site(&self) -> &str {
        &self.launch_spec.site
    }

    /// Returns the status of the process, as of the last poll.
    pub fn process_status(&self) -> ProcessStatus {
        let Some(process) = &self.process else {
            let (why, since) = self.down.clone();
            return ProcessStatus {
                state: ProcessState::Down(why),
                since,
                process: None,
            };
        };
        let (state, since) = match &process.ending {
            Some(ending) => (ProcessState::Ending, ending.since),
            None if process.paused => (ProcessState::Paused, process.since),
            None => (ProcessState::Up, process.since),
        };
        ProcessStatus {
            state,
            since,
            process: Some(process.child.id()),
        }
    }

    /// Starts the process.
    ///
    /// # Errors
    /// If one is up already, or none can be started.
    pub fn start(&mut self) -> anyhow::Result<()> {
        match &mut self.process {
            None => {
                self.process = Some(ChildProcess {
                    child: self.launch_spec.spawn()?,
                    since: SystemTime::now(),
                    paused: false,
                    ending: None,
                });
                Ok(())
            }
            Some(ChildProcess {
                ending: Some(ending),
                ..
            }) => {
                ending.then_start = true;
                Ok(())
            }
            Some(process) if process.paused => {
                bail!("{} is paused: resume it", self.launch_spec.site)
            }
            Some(_) => bail!("{} is up already", self.launch_spec.site),
        }
    }

    /// Ends the process at once, as `kill -9` does.
    ///
    /// # Errors
    /// If none is up.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let process = self.require_process("kill")?;
        let killed = process.child.kill();
        process.request_shutdown(DownReason::Killed, false);
        killed.context("killing a replica")
    }

    /// Asks the process to end.
    ///
    /// # Errors
    /// If none is up, or it is paused.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.require_unpaused("stop")?
            .request_shutdown(DownReason::Stopped, false);
        Ok(())
    }

    /// Asks the process to end, and starts it when it has. Starts it if it is down.
    ///
    /// # Errors
    /// If it is paused, or cannot be started.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        if self.process.is_none() {
            return self.start();
        }
        self.require_unpaused("restart")?
            .request_shutdown(DownReason::Stopped, true);
        Ok(())
    }

    /// Makes the process stand still.
    ///
    /// # Errors
    /// If none is up, or it stands still already.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        let process = self.require_unpaused("pause")?;
        process.signal(Signal::STOP)?;
        process.paused = true;
        process.since = SystemTime::now();
        Ok(())
    }

    /// Lets a paused process go on.
    ///
    /// # Errors
    /// If it is not paused.
    pub fn resume(&mut self) -> anyhow::Result<()> {
        let site = self.launch_spec.site.clone();
        let process = self.require_process("resume")?;
        if !process.paused {
            bail!("{site} is not paused: there is nothing to resume");
        }
        process.signal(Signal::CONT)?;
        process.paused = false;
        process.since = SystemTime::now();
        Ok(())
    }

    /// Looks whether the process has ended, kills one that does not end, and starts one
    /// that is to be restarted. Returns what it found, in order.
    pub fn poll(&mut self) -> Vec<ProcessEvent> {
        let Some(process) = &mut self.process else {
            return Vec::new();
        };
        let Ok(Some(status)) = process.child.try_wait() else {
            if let Some(ending) = &process.ending
                && Instant::now() >= ending.deadline
            {
                let _ = process.child.kill();
            }
            return Vec::new();
        };
        let ending = process.ending.take();
        self.process = None;
        let then_start = ending.as_ref().is_some_and(|ending| ending.then_start);
        let why = match ending {
            // A process that was asked to end and did not is killed, by this process or by another
            // one.
            Some(_) if status.signal() == Some(Signal::KILL.as_raw()) => DownReason::Killed,
            Some(ending) => ending.why,
            None if status.code().is_some_and(NodeError::is_final) => {
                DownReason::Refused(self.launch_spec.exit_reason(status))
            }
            None => DownReason::Died(self.launch_spec.exit_reason(status)),
        };
        self.down = (why.clone(), SystemTime::now());
        let mut events = vec![ProcessEvent::Ended(why)];
        if then_start {
            events.push(match self.start() {
                Ok(()) => ProcessEvent::Started,
                Err(error) => ProcessEvent::NotStarted(format!("{error:#}")),
            });
        }
        events
    }

    /// Asks the process to end whatever it does, if there is one: it never starts again.
    pub fn begin_shutdown(&mut self) {
        if let Some(process) = &mut self.process {
            if process.paused {
                let _ = process.signal(Signal::CONT);
                process.paused = false;
            }
            process.request_shutdown(DownReason::Stopped, false);
        }
    }

    /// Waits until the process has ended; kills it when its time is over.
    pub fn finish_shutdown(&mut self) {
        while self.process.is_some() {
            self.poll();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn require_process(&mut self, to: &str) -> anyhow::Result<&mut ChildProcess> {
        let site = &self.launch_spec.site;
        match &mut self.process {
            Some(process) => Ok(process),
            None => bail!(
                "{site} is down ({}), so there is nothing to {to}: start it first",
                self.down.0
            ),
        }
    }

    /// A process that is there and not paused.
    fn require_unpaused(&mut self, to: &str) -> anyhow::Result<&mut ChildProcess> {
        let site = self.launch_spec.site.clone();
        let process = self.require_process(to)?;
        match (process.paused, to) {
            (false, "pause") if process.ending.is_some() => {
                bail!("{site} is ending, so there is nothing to pause: start it first")
            }
            (false, _) => Ok(process),
            (true, "pause") => bail!("{site} is paused already"),
            (true, _) => bail!(
                "{site} is paused, and a process that stands still cannot end by itself: resume it \
                 first, or kill it"
            ),
        }
    }
}

impl ChildProcess {
    /// Notes that it is to end, and says so: it watches its standard input. What was asked
    /// last counts.
    fn request_shutdown(&mut self, why: DownReason, then_start: bool) {
        drop(self.child.stdin.take());
        self.ending = Some(PendingShutdown {
            why,
            since: SystemTime::now(),
            deadline: Instant::now() + STOP_TIMEOUT,
            then_start,
        });
    }

    /// The process was not waited for yet, so its number is nobody else's.
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("sending a signal to a replica")
    }
}

impl Drop for Replica {
    /// However the cluster ends, no process is left, running or paused.
    fn drop(&mut self) {
        self.begin_shutdown();
        self.finish_shutdown();
    }
}

impl LaunchSpec {
    fn spawn(&self) -> anyhow::Result<Child> {
        let log = self.log();
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(&log);
        let file = file.with_context(|| format!("opening {}", log.display()))?;
        Command::new(&self.program)
            .arg("serve")
            .arg("--config")
            .arg(&self.config)
            .args(["--node", &self.site, "--until-stdin-closes", "--events"])
            .arg(events_file(&self.dir, &self.site))
            .arg("--disk-full-while")
            .arg(disk_full_file(&self.dir, &self.site))
            .stdin(Stdio::piped())
            .stdout(file.try_clone().context("sharing a log file")?)
            .stderr(file)
            .spawn()
            .with_context(|| {
                let (program, site) = (self.program.display(), &self.site);
                format!("starting {program} serve --node {site}")
            })
    }

    fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.site))
    }

    /// The error that it ended with, else how it ended.
    fn exit_reason(&self, status: std::process::ExitStatus) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().last().unwrap_or_default();
        match last.strip_prefix("leasehold: ") {
            Some(error) if status.code().is_some() => error.to_owned(),
            _ => format!("{status}; its log is {}", self.log().display()),
        }
    }

    /// Empties what an earlier cluster has left in the directory.
    pub fn clear(&self) -> anyhow::Result<()> {
        for path in [self.log(), disk_full_file(&self.dir, &self.site)] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("removing {}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Where the replica of a site writes down what happens to it.
pub(in super::super) fn events_file(dir: &Path, site: &str) -> PathBuf {
    dir.join(format!("{site}.events.jsonl"))
}

/// While this file exists the replica's store has no room.
pub(super) fn disk_full_file(dir: &Path, site: &str) -> PathBuf {
    dir.join(format!("{site}.disk-full"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A replica that does not end when it is asked to.
    fn stubborn() -> Replica {
        let mut sleep = Command::new("sleep");
        let child = sleep.arg("600").stdin(Stdio::piped()).spawn();
        Replica {
            launch_spec: LaunchSpec {
                program: PathBuf::new(),
                dir: PathBuf::new(),
                config: PathBuf::new(),
                site: "JP".to_owned(),
            },
            process: Some(ChildProcess {
                child: child.expect("a process"),
                since: SystemTime::now(),
                paused: false,
                ending: None,
            }),
            down: (DownReason::NotStarted, SystemTime::now()),
        }
    }

    #[test]
    fn one_that_was_asked_to_end_and_was_killed_is_not_called_stopped() {
        let mut replica = stubborn();
        replica.stop().expect("it is asked");
        assert_eq!(replica.process_status().state, ProcessState::Ending);
        let process = replica.process.as_ref().expect("it has not ended");
        process.signal(Signal::KILL).expect("its process");
        replica.finish_shutdown();
        assert_eq!(
            replica.process_status().state,
            ProcessState::Down(DownReason::Killed)
        );
    }
}
