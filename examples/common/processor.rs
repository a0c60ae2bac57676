//! Processor time of a process, with a resolution of nanoseconds. The usual counters of the kernel
//! have a resolution of only 10 ms.

use std::io;
use std::ops::Sub;
use std::time::Duration;

/// Processor time that a process has used so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessorTime {
    /// Processor time of all threads together.
    pub all: Duration,
    /// Processor time of the first thread, which runs the replica's event loop.
    pub first: Duration,
}

impl Sub for ProcessorTime {
    type Output = ProcessorTime;

    /// Subtracts an earlier value. If a thread has ended since, its earlier time is subtracted from
    /// that of the others, so the result is too small.
    fn sub(self, earlier: ProcessorTime) -> ProcessorTime {
        ProcessorTime {
            all: self.all.saturating_sub(earlier.all),
            first: self.first.saturating_sub(earlier.first),
        }
    }
}

impl ProcessorTime {
    /// Returns the lesser value of each field: the lesser `all`, and the lesser `first`.
    pub fn least(self, other: ProcessorTime) -> ProcessorTime {
        ProcessorTime {
            all: self.all.min(other.all),
            first: self.first.min(other.first),
        }
    }

    /// Returns both times multiplied by `by`.
    pub fn scaled(self, by: f64) -> ProcessorTime {
        ProcessorTime {
            all: self.all.mul_f64(by),
            first: self.first.mul_f64(by),
        }
    }
}

/// Reads the processor time that the threads of a process have used so far.
///
/// # Errors
/// Returns an error if the process has ended, or if the kernel has no such counters
/// (`CONFIG_SCHED_INFO`).
pub fn spent(process: u32) -> io::Result<ProcessorTime> {
    let mut spent = ProcessorTime::default();
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?;
        let path = thread.path().join("schedstat");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // The thread has ended in the meantime: ENOENT, or ESRCH if its file was already open.
            Err(_) if !thread.path().exists() => continue,
            Err(error) => return Err(named(&path, &error)),
        };
        let taken = taken(&text).ok_or_else(|| named(&path, &"not three numbers"))?;
        spent.all += taken;
        if thread.file_name().to_string_lossy() == process.to_string() {
            spent.first = taken;
        }
    }
    Ok(spent)
}

fn named(path: &std::path::Path, problem: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {problem}", path.display()))
}

/// Returns the time on a processor, in ns. This time is the first of the three numbers in
/// `schedstat`.
fn taken(schedstat: &str) -> Option<Duration> {
    let first = schedstat.split_whitespace().next()?;
    first.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A busy process. It is killed at the end of the test, even if the test fails.
    struct Busy(std::process::Child);

    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn what_a_busy_process_takes_is_counted() {
        let mut shell = std::process::Command::new("sh");
        let busy = Busy(
            shell
                .args(["-c", "while :; do :; done"])
                .spawn()
                .expect("a shell"),
        );
        let look = || spent(busy.0.id()).expect("it runs");
        let before = look();
        while (look() - before).all < Duration::from_millis(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = look();
        assert_eq!(now.all, now.first, "it has one thread");
    }

    #[test]
    fn of_no_process_nothing_is_known() {
        assert!(spent(u32::MAX).is_err());
    }

    #[test]
    fn the_first_number_is_the_time() {
        assert_eq!(taken("1500 7 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(taken(""), None);
        assert_eq!(taken("x 7 3"), None);
    }
}
