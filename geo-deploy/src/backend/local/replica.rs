//! One replica process: it starts, ends, stands still and goes on, and is looked after.
//! Nothing here waits: what takes a while is finished by [`Replica::tend`].

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
pub enum Life {
    /// It runs.
    Up,
    /// It stands still, as by SIGSTOP.
    Paused,
    /// It was asked to end, and has not yet.
    Ending,
    /// It has ended, or was never started.
    Down(Why),
}

/// Why a process is down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
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

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::NotStarted => f.write_str("never started"),
            Why::Killed => f.write_str("killed"),
            Why::Stopped => f.write_str("stopped"),
            Why::Died(how) => write!(f, "died: {how}"),
            Why::Refused(why) => write!(f, "refuses to run: {why}"),
        }
    }
}

/// State of a process, and the time since which it holds.
#[derive(Clone, Debug)]
pub struct Condition {
    /// State of the process.
    pub life: Life,
    /// Since when.
    pub since: SystemTime,
    /// Identifier of the process, if there is one.
    pub process: Option<u32>,
}

/// Event that was found when a process was looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It has ended.
    Ended(Why),
    /// It was started again, as a restart demands.
    Started,
    /// It could not be started again.
    NotStarted(String),
}

/// Program, files and settings with which a replica is started.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub program: PathBuf,
    /// Where its log and events go.
    pub dir: PathBuf,
    pub config: PathBuf,
    pub site: String,
}

/// A replica process, or its place while there is none.
#[derive(Debug)]
pub(super) struct Replica {
    recipe: Recipe,
    process: Option<Process>,
    /// Why and since when there is no process.
    down: (Why, SystemTime),
}

#[derive(Debug)]
struct Process {
    child: Child,
    /// Since when it runs, or stands still.
    since: SystemTime,
    paused: bool,
    ending: Option<Ending>,
}

/// A process was asked to end.
#[derive(Debug)]
struct Ending {
    why: Why,
    since: SystemTime,
    /// It is killed then.
    give_up: Instant,
    /// It starts again when it has ended.
    then_start: bool,
}

impl Replica {
    /// Not started yet.
    pub fn new(recipe: Recipe) -> Replica {
        Replica {
            recipe,
            process: None,
            down: (Why::NotStarted, SystemTime::now()),
        }
    }

    pub fn site(&self) -> &str {
        &self.recipe.site
    }

    /// Returns the condition of the process, as of the last look after it.
    pub fn condition(&self) -> Condition {
        let Some(process) = &self.process else {
            let (why, since) = self.down.clone();
            return Condition {
                life: Life::Down(why),
                since,
                process: None,
            };
        };
        let (life, since) = match &process.ending {
            Some(ending) => (Life::Ending, ending.since),
            None if process.paused => (Life::Paused, process.since),
            None => (Life::Up, process.since),
        };
        Condition {
            life,
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
                self.process = Some(Process {
                    child: self.recipe.spawn()?,
                    since: SystemTime::now(),
                    paused: false,
                    ending: None,
                });
                Ok(())
            }
            Some(Process {
                ending: Some(ending),
                ..
            }) => {
                ending.then_start = true;
                Ok(())
            }
            Some(process) if process.paused => {
                bail!("{} is paused: resume it", self.recipe.site)
            }
            Some(_) => bail!("{} is up already", self.recipe.site),
        }
    }

    /// Ends the process at once, as `kill -9` does.
    ///
    /// # Errors
    /// If none is up.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        let process = self.there("kill")?;
        let killed = process.child.kill();
        process.end(Why::Killed, false);
        killed.context("killing a replica")
    }

    /// Asks the process to end.
    ///
    /// # Errors
    /// If none is up, or it is paused.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.moving("stop")?.end(Why::Stopped, false);
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
        self.moving("restart")?.end(Why::Stopped, true);
        Ok(())
    }

    /// Makes the process stand still.
    ///
    /// # Errors
    /// If none is up, or it stands still already.
    pub fn pause(&mut self) -> anyhow::Result<()> {
        let process = self.moving("pause")?;
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
        let site = self.recipe.site.clone();
        let process = self.there("resume")?;
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
    pub fn tend(&mut self) -> Vec<Happened> {
        let Some(process) = &mut self.process else {
            return Vec::new();
        };
        let Ok(Some(status)) = process.child.try_wait() else {
            if let Some(ending) = &process.ending
                && Instant::now() >= ending.give_up
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
            Some(_) if status.signal() == Some(Signal::KILL.as_raw()) => Why::Killed,
            Some(ending) => ending.why,
            None if status.code().is_some_and(NodeError::is_final) => {
                Why::Refused(self.recipe.last_words(status))
            }
            None => Why::Died(self.recipe.last_words(status)),
        };
        self.down = (why.clone(), SystemTime::now());
        let mut happened = vec![Happened::Ended(why)];
        if then_start {
            happened.push(match self.start() {
                Ok(()) => Happened::Started,
                Err(error) => Happened::NotStarted(format!("{error:#}")),
            });
        }
        happened
    }

    /// Asks the process to end whatever it does, if there is one: it never starts again.
    pub fn begin_end(&mut self) {
        if let Some(process) = &mut self.process {
            if process.paused {
                let _ = process.signal(Signal::CONT);
                process.paused = false;
            }
            process.end(Why::Stopped, false);
        }
    }

    /// Waits until the process has ended; kills it when its time is over.
    pub fn finish_end(&mut self) {
        while self.process.is_some() {
            self.tend();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn there(&mut self, to: &str) -> anyhow::Result<&mut Process> {
        let site = &self.recipe.site;
        match &mut self.process {
            Some(process) => Ok(process),
            None => bail!(
                "{site} is down ({}), so there is nothing to {to}: start it first",
                self.down.0
            ),
        }
    }

    /// A process that is there and not paused.
    fn moving(&mut self, to: &str) -> anyhow::Result<&mut Process> {
        let site = self.recipe.site.clone();
        let process = self.there(to)?;
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

impl Process {
    /// Notes that it is to end, and says so: it watches its standard input. What was asked
    /// last counts.
    fn end(&mut self, why: Why, then_start: bool) {
        drop(self.child.stdin.take());
        self.ending = Some(Ending {
            why,
            since: SystemTime::now(),
            give_up: Instant::now() + STOP_TIMEOUT,
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
        self.begin_end();
        self.finish_end();
    }
}

impl Recipe {
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
    fn last_words(&self, status: std::process::ExitStatus) -> String {
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
            recipe: Recipe {
                program: PathBuf::new(),
                dir: PathBuf::new(),
                config: PathBuf::new(),
                site: "JP".to_owned(),
            },
            process: Some(Process {
                child: child.expect("a process"),
                since: SystemTime::now(),
                paused: false,
                ending: None,
            }),
            down: (Why::NotStarted, SystemTime::now()),
        }
    }

    #[test]
    fn one_that_was_asked_to_end_and_was_killed_is_not_called_stopped() {
        let mut replica = stubborn();
        replica.stop().expect("it is asked");
        assert_eq!(replica.condition().life, Life::Ending);
        let process = replica.process.as_ref().expect("it has not ended");
        process.signal(Signal::KILL).expect("its process");
        replica.finish_end();
        assert_eq!(replica.condition().life, Life::Down(Why::Killed));
    }
}
