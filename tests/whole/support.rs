//! Support for the tests: a directory for each test, the program under test, and the processes that
//! a test starts.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use leasehold_node::ClusterConfig;
use tempfile::TempDir;

/// Timeout that is far longer than anything in these tests takes. A test that waits so long has
/// failed.
const TIMEOUT: Duration = Duration::from_secs(90);

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

/// Topology with three sites that are a few ms apart, so that a cluster is ready within a second.
pub const NEAR: &str =
    "sites = ['CA', 'OR', 'JP']\n[rtt_ms]\nCA = { OR = 4, JP = 6 }\nOR = { JP = 8 }\n";

/// Output of a command, and the exit status of the command.
#[derive(Debug)]
pub struct CommandOutput {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl CommandOutput {
    /// Asserts that the command succeeded, and returns the text that it printed.
    pub fn good(self) -> String {
        assert!(self.status.success(), "{self:#?}");
        self.out
    }

    /// Asserts that the command ended with one error and exit status 1. The error must contain all
    /// of `parts`.
    pub fn refused(self, parts: &[&str]) {
        self.fails_with(1, parts);
    }

    /// Asserts that a replica ended with a permanent error: another start would fail, too.
    pub fn refused_for_good(self, parts: &[&str]) {
        self.fails_with(78, parts);
    }

    /// Asserts that a replica ended with the error for a data directory that was taken away.
    pub fn lost_data(self, parts: &[&str]) {
        self.fails_with(3, parts);
    }

    /// Asserts that a load generator missed its target, and reported this.
    pub fn missed(self, parts: &[&str]) {
        self.fails_with(3, parts);
    }

    /// Asserts that Ctrl-C ended the command, and that the command reported this.
    pub fn interrupted(self, parts: &[&str]) {
        self.fails_with(130, parts);
    }

    /// Asserts that the command line was refused, because the command has no such arguments.
    pub fn misused(self, parts: &[&str]) {
        self.reports("error: ", 2, parts);
    }

    /// Asserts that the command ended with this status, and reported an error with these parts.
    pub fn fails_with(self, status: i32, parts: &[&str]) {
        self.reports("leasehold: ", status, parts);
    }

    fn reports(self, before: &str, status: i32, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(status), "{self:#?}");
        assert!(!self.err.contains("panicked"), "{self:#?}");
        let errors = self.err.matches(before).count();
        assert_eq!(errors, 1, "{self:#?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not in {self:#?}");
        }
    }
}

/// A temporary directory in which a test runs commands.
pub struct Place {
    dir: TempDir,
    commands: AtomicU16,
}

impl Place {
    /// Creates a directory that contains the topology file `near.toml`.
    pub fn new() -> Place {
        let place = Place {
            dir: TempDir::new().unwrap(),
            commands: AtomicU16::new(0),
        };
        place.write("near.toml", NEAR);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        let bytes =
            std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Starts the program in this directory. The output of the program goes to files.
    pub fn start<A: AsRef<std::ffi::OsStr>>(&self, args: &[A], input: Stdio) -> RunningCommand<'_> {
        self.start_by(Command::new(PROGRAM), args, input)
    }

    /// Starts the program in this directory by a line of the shell. In this line, `$0` is the
    /// program and `$@` are its arguments.
    pub fn start_in_shell(&self, line: &str, args: &[&str], input: Stdio) -> RunningCommand<'_> {
        let mut shell = Command::new("sh");
        shell.args(["-c", line, PROGRAM]);
        self.start_by(shell, args, input)
    }

    fn start_by<A: AsRef<std::ffi::OsStr>>(
        &self,
        mut command: Command,
        args: &[A],
        input: Stdio,
    ) -> RunningCommand<'_> {
        let number = self.commands.fetch_add(1, Ordering::Relaxed);
        let file = |kind| self.path(&format!("{kind}-{number}.txt"));
        let child = command
            .args(args)
            .current_dir(self.dir.path())
            .env_remove("RUST_LOG")
            .stdin(input)
            .stdout(File::create(file("out")).unwrap())
            .stderr(File::create(file("err")).unwrap())
            .spawn()
            .unwrap();
        RunningCommand {
            place: self,
            child,
            number,
        }
    }

    /// Runs the program in this directory until it ends.
    pub fn run<A: AsRef<std::ffi::OsStr>>(&self, args: &[A]) -> CommandOutput {
        self.start(args, Stdio::null()).wait()
    }

    /// Runs the program in this directory until it ends. The arguments are the words of `line`.
    pub fn words(&self, line: &str) -> CommandOutput {
        self.run(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Asserts that no process of this directory is left. A process that has reported its end may
    /// take a moment to end.
    pub fn assert_no_process_left(&self) {
        until("the last process to end", || self.processes().is_empty());
    }

    /// Returns the id of the process that serves `node`.
    pub fn replica(&self, node: &str) -> u32 {
        let serves = |id: &u32| {
            let line = command_line(*id);
            // Not the one that starts it, if there is one.
            line.first().is_some_and(|program| program == PROGRAM)
                && line.windows(2).any(|pair| pair == ["--node", node])
        };
        let found = self.processes().into_iter().find(serves);
        found.unwrap_or_else(|| panic!("no process serves {node}"))
    }

    /// Returns the ids of all processes that were started in this directory, directly or by another
    /// process.
    pub fn processes(&self) -> Vec<u32> {
        let here = std::fs::canonicalize(self.dir.path()).unwrap();
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(|id: &u32| !is_zombie(*id))
            .filter(|id| std::fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd == here))
            .collect()
    }
}

fn is_zombie(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_none_or(|rest| rest.starts_with('Z'))
}

impl Drop for Place {
    /// Kills the processes that are left, so that even a failed test leaves none.
    fn drop(&mut self) {
        for id in self.processes() {
            signal("KILL", id);
        }
    }
}

/// A command that is running.
pub struct RunningCommand<'a> {
    place: &'a Place,
    pub child: Child,
    number: u16,
}

impl RunningCommand<'_> {
    /// Returns the text that the command has written to stderr so far.
    pub fn err(&self) -> String {
        self.place.read(&format!("err-{}.txt", self.number))
    }

    pub fn wait(mut self) -> CommandOutput {
        let mut status = None;
        until("the command's end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        CommandOutput {
            status: status.unwrap(),
            out: self.place.read(&format!("out-{}.txt", self.number)),
            err: self.err(),
        }
    }
}

/// Waits until `come` returns true. If this takes too long, the test fails.
pub fn until(what: &str, mut come: impl FnMut() -> bool) {
    let started = Instant::now();
    while !come() {
        assert!(started.elapsed() < TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends the signal with this name to a process.
pub fn signal(name: &str, process: u32) {
    let line = format!("kill -{name} {process}");
    let _ = Command::new("sh").args(["-c", &line]).status();
}

/// Returns the first of `count` ports in a row. The ports are free, no other test has them, and
/// they are below the range that operating systems use for outgoing connections.
pub fn ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = 10_000 + (std::process::id() % 200) as u16 * 100;
    loop {
        let first = base + NEXT.fetch_add(count, Ordering::Relaxed);
        if (first..first + count).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
}

/// Option for clients that are given only addresses. It names the certificate of a cluster that was
/// started in the directory of the test.
pub const CA: &str = "--ca c/certificates/ca.pem";

/// A cluster that `cluster up` started in the subdirectory `c` of a test's directory.
pub struct Cluster {
    pub place: Place,
    pub port: u16,
    /// Whether the replicas use no TLS.
    plain: bool,
}

impl Cluster {
    pub fn up() -> Cluster {
        Cluster::up_in(Place::new())
    }

    /// Starts a cluster to which any client can connect without TLS.
    pub fn up_plain() -> Cluster {
        let mut cluster = Cluster::down_yet(Place::new());
        cluster.plain = true;
        cluster.up_again().good();
        cluster
    }

    pub fn up_in(place: Place) -> Cluster {
        let cluster = Cluster::down_yet(place);
        cluster.up_again().good();
        cluster
    }

    pub fn down_yet(place: Place) -> Cluster {
        let port = ports(3);
        Cluster {
            place,
            port,
            plain: false,
        }
    }

    pub fn up_again(&self) -> CommandOutput {
        self.place.words(&self.up_line())
    }

    pub fn up_line(&self) -> String {
        // Short leases: a restarted replica waits for as long as it might have
        // promised something.
        let port = self.port;
        let plain = if self.plain { " --insecure" } else { "" };
        format!(
            "cluster up --dir c --client-port {port} --set topology=near.toml \
             --set lease.t_lease_ms=1000 --set lease.t_guard_ms=500 --set lease.renew_ms=250 \
             --set lease.reconfigure_ms=1000{plain}"
        )
    }

    pub fn dir(&self) -> PathBuf {
        self.place.path("c")
    }

    /// Returns the configuration of the cluster, as the replicas read it.
    pub fn config(&self) -> ClusterConfig {
        ClusterConfig::load(&self.dir().join("cluster.toml")).unwrap()
    }

    pub fn kv(&self, line: &str) -> CommandOutput {
        self.place.words(&format!("kv --dir c {line}"))
    }

    pub fn ycsb(&self, line: &str) -> CommandOutput {
        self.place.words(&self.ycsb_line(line))
    }

    /// Returns the words of a `ycsb` command that has the addresses of all replicas.
    pub fn ycsb_line(&self, line: &str) -> String {
        let first = self.port;
        let addresses = (first..first + 3).map(|port| format!("127.0.0.1:{port}"));
        let addresses = addresses.collect::<Vec<_>>().join(",");
        format!("ycsb {line} --address {addresses} {CA}")
    }

    pub fn down(&self) -> CommandOutput {
        self.place.words("cluster down --dir c")
    }

    /// Returns the id of the process that serves `node`.
    pub fn replica(&self, node: &str) -> u32 {
        self.place.replica(node)
    }

    /// Returns the id of the process that emulates the WAN and supervises the replicas.
    pub fn supervisor(&self) -> u32 {
        let holds = |id: &u32| command_line(*id).iter().any(|word| word == "run");
        let found = self.place.processes().into_iter().find(holds);
        found.expect("a supervisor runs")
    }

    /// Returns the text that the replicas and the supervisor have logged.
    pub fn logs(&self) -> String {
        logs(&self.dir())
    }

    /// Ends the cluster, and asserts what must hold at the end of every test.
    pub fn done(self) {
        self.down().good();
        self.place.assert_no_process_left();
        assert!(!self.logs().contains("panicked"), "{}", self.logs());
    }
}

fn command_line(process: u32) -> Vec<String> {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let words = line.split(|byte| *byte == 0);
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// Returns the text of all logs in a directory.
pub fn logs(dir: &Path) -> String {
    let files = std::fs::read_dir(dir).unwrap().flatten();
    let files = files.filter(|file| file.path().extension().is_some_and(|end| end == "log"));
    files
        .map(|file| std::fs::read_to_string(file.path()).unwrap_or_default())
        .collect()
}
