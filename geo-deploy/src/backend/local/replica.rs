//! One replica process, which can be started, ended, paused and resumed. Only
//! [`Replica::finish_shutdown`] blocks; other actions that take time are completed by
//! [`Replica::poll`].

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

/// Current state of a replica's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// The process runs.
    Up,
    /// The process is paused, for example by SIGSTOP.
    Paused,
    /// The process was asked to end, and has not ended yet.
    Ending,
    /// The process has ended, or was never started.
    Down(DownReason),
}

/// Reason why a process is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownReason {
    /// The process was never started.
    NotStarted,
    /// The process was killed, either on request or because it did not end when it was asked to.
    Killed,
    /// The process was asked to end, and then it ended.
    Stopped,
    /// The process ended without a request. The text is the error that it reported last, or its
    /// exit status.
    Died(String),
    /// The process reported a problem that must be solved before the process can run. The text
    /// describes the problem.
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

/// State of a process, and the time at which the process entered the state.
#[derive(Clone, Debug)]
pub struct ProcessStatus {
    /// State of the process.
    pub state: ProcessState,
    /// Time at which the process entered this state.
    pub since: SystemTime,
    /// Identifier of the process; `None` if the replica is down.
    pub process: Option<u32>,
}

/// Event that a poll has detected at a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// The process has ended.
    Ended(DownReason),
    /// The process was started again, because a restart was requested.
    Started,
    /// The process could not be started again. The text is the error.
    NotStarted(String),
}

/// Program, files and settings with which a replica is started.
#[derive(Clone, Debug)]
pub(super) struct LaunchSpec {
    pub program: PathBuf,
    /// Directory for the replica's log and events.
    pub dir: PathBuf,
    pub config: PathBuf,
    pub site: String,
}

/// A replica, and its process if there is one.
#[derive(Debug)]
pub(super) struct Replica {
    launch_spec: LaunchSpec,
    process: Option<ChildProcess>,
    /// Reason why the process is down, and the time at which it went down.
    down: (DownReason, SystemTime),
}

#[derive(Debug)]
struct ChildProcess {
    child: Child,
    /// Time at which the process was started, or was last paused or resumed.
    since: SystemTime,
    paused: bool,
    ending: Option<PendingShutdown>,
}

/// Requested shutdown of a process that has not ended yet.
#[derive(Debug)]
struct PendingShutdown {
    why: DownReason,
    since: SystemTime,
    /// Time at which the process is killed if it has not ended.
    deadline: Instant,
    /// Whether the process is started again after it has ended.
    then_start: bool,
}

impl Replica {
    /// Creates a replica without a process; [`Replica::start`] starts one.
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

    /// Starts the process. If the process is about to end, starts it again after it has ended.
    ///
    /// # Errors
    /// If the process is up already, or cannot be started.
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

    /// Kills the process immediately, as `kill -9` does.
    ///
    /// # Errors
    /// If no process is up.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let process = self.require_process("kill")?;
        let killed = process.child.kill();
        process.request_shutdown(DownReason::Killed, false);
        killed.context("killing a replica")
    }

    /// Asks the process to end.
    ///
    /// # Errors
    /// If no process is up, or the process is paused.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.require_unpaused("stop")?
            .request_shutdown(DownReason::Stopped, false);
        Ok(())
    }

    /// Asks the process to end, and starts it again after it has ended. If the process is down,
    /// starts it immediately.
    ///
    /// # Errors
    /// If the process is paused, or cannot be started.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        if self.process.is_none() {
            return self.start();
        }
        self.require_unpaused("restart")?
            .request_shutdown(DownReason::Stopped, true);
        Ok(())
    }

    /// Pauses the process.
    ///
    /// # Errors
    /// If no process is up, or the process is paused already.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        let process = self.require_unpaused("pause")?;
        process.signal(Signal::STOP)?;
        process.paused = true;
        process.since = SystemTime::now();
        Ok(())
    }

    /// Resumes a paused process.
    ///
    /// # Errors
    /// If the process is not paused.
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

    /// Checks whether the process has ended. Kills the process if it does not end in time, and
    /// starts it again if a restart was requested. Returns the events of the process, in order of
    /// time.
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
            // The process did not end by itself when asked to; this program or another one killed
            // it.
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

    /// Asks the process to end, even if it is paused. The process is not started again. Does
    /// nothing if the replica is down.
    pub fn begin_shutdown(&mut self) {
        if let Some(process) = &mut self.process {
            if process.paused {
                let _ = process.signal(Signal::CONT);
                process.paused = false;
            }
            process.request_shutdown(DownReason::Stopped, false);
        }
    }

    /// Waits until the process has ended. It is killed at its deadline.
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

    /// Returns the process if it is up and not paused. Otherwise returns an error. `to` describes
    /// the action that the caller wants to perform, and the error says how to make this action
    /// possible.
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
    /// Asks the process to end by closing its standard input. Also stores the request to end; a
    /// later request replaces an earlier one.
    fn request_shutdown(&mut self, why: DownReason, then_start: bool) {
        drop(self.child.stdin.take());
        self.ending = Some(PendingShutdown {
            why,
            since: SystemTime::now(),
            deadline: Instant::now() + STOP_TIMEOUT,
            then_start,
        });
    }

    /// Sends a signal to the process. No other process can receive the signal, because the process
    /// ID can be reused only after the exit status is collected. This has not happened yet.
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal).context("sending a signal to a replica")
    }
}

impl Drop for Replica {
    /// Ends the process, whether it runs or is paused, so that no process is left behind.
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

    /// Returns the error with which the process ended. If there is no error, returns the exit
    /// status.
    fn exit_reason(&self, status: std::process::ExitStatus) -> String {
        let text = std::fs::read(self.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().last().unwrap_or_default();
        match last.strip_prefix("leasehold: ") {
            Some(error) if status.code().is_some() => error.to_owned(),
            _ => format!("{status}; its log is {}", self.log().display()),
        }
    }

    /// Removes files of an earlier cluster's replica from the directory.
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

/// Returns the path of the file to which the replica of a site writes its events.
pub(in super::super) fn events_file(dir: &Path, site: &str) -> PathBuf {
    dir.join(format!("{site}.events.jsonl"))
}

/// Returns the path of a marker file. While this file exists, the store of the site's replica
/// behaves as if the disk were full.
pub(super) fn disk_full_file(dir: &Path, site: &str) -> PathBuf {
    dir.join(format!("{site}.disk-full"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a replica with a process that does not end when it is asked to.
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
