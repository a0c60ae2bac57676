//! Events of the replica. They are written to the log and, on request, to a file that experiments
//! read, as one JSON object per line.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_leases::ConfigId;
use rustix::fs::OFlags;
use rustix::io::Errno;

use leasehold_replica::action::Event;

const FIRST: ConfigId = ConfigId(1);

/// Destination of a node's events.
#[derive(Debug)]
pub(super) struct Events {
    node: String,
    /// Text of the lease strategies in the configuration file.
    configured: String,
    /// Text of the lease strategies in the newest configuration that was reported.
    in_force: RefCell<String>,
    /// Channel to the thread that writes the file. The thread is separate because a write to a file
    /// may block, and the replica's thread must not block.
    lines: Option<Sender<String>>,
}

impl Events {
    /// Creates the destination for the events of `node`. The events are also appended to `file` if
    /// a file is given.
    pub(super) fn new(node: &str, configured: String, file: Option<&Path>) -> io::Result<Events> {
        let lines = file.map(start_writer).transpose()?;
        Ok(Events {
            node: node.to_owned(),
            configured,
            in_force: RefCell::default(),
            lines,
        })
    }

    pub(super) fn report(&self, event: &Event) {
        tracing::info!(node = self.node, ?event);
        // The first leader begins the log of configurations with a slot that changes no
        // configuration. The cluster has a strategy only after this slot.
        if let Event::Configured { id, strategy, .. } = event
            && *id > FIRST
            && self.in_force.replace(strategy.clone()) != *strategy
            && *strategy != self.configured
        {
            tracing::warn!(
                node = self.node,
                in_force = strategy,
                in_the_file = self.configured,
                "the strategy in force differs from the one in the configuration file: the file \
                 counts only at the first start of the cluster; `leasehold lease show` tells more"
            );
        }
        let Some(lines) = &self.lines else { return };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_ms = since_epoch.map_or(0, |elapsed| elapsed.as_millis());
        let (name, details) = describe(event);
        // Node names hold no characters that JSON would have to escape.
        let _ = lines.send(format!(
            "{{\"unix_ms\":{unix_ms},\"node\":\"{}\",\"event\":\"{name}\"{details}}}\n",
            self.node
        ));
    }
}

fn start_writer(file: &Path) -> io::Result<Sender<String>> {
    let mut options = File::options();
    // Opening a named pipe would wait for its reader, and writing would wait for a slow one.
    let options = options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    let out = options.create(true).append(true).open(file);
    let out = out.map_err(|error| match error.raw_os_error() {
        Some(no_reader) if no_reader == Errno::NXIO.raw_os_error() => io::Error::new(
            error.kind(),
            "nobody reads this pipe, or it is a socket; start its reader first, or give a file",
        ),
        _ => error,
    })?;
    let mut written = EventWriter::new(out);
    let (lines, queue) = channel::<String>();
    std::thread::Builder::new()
        .name("events".to_owned())
        .spawn(move || {
            for line in queue {
                written.write(&line);
            }
        })?;
    Ok(lines)
}

/// Writer of lines to a file. Drops and counts each line that cannot be written, for example
/// because the disk is full. Before the next line, it writes the number of dropped lines.
#[derive(Debug)]
struct EventWriter<W> {
    out: W,
    /// Number of lines that were dropped since a line was last written.
    lost: u64,
    /// Whether the file ends with a part of a line, because the rest could not be written.
    torn: bool,
}

impl<W: io::Write> EventWriter<W> {
    fn new(out: W) -> EventWriter<W> {
        EventWriter {
            out,
            lost: 0,
            torn: false,
        }
    }

    fn write(&mut self, line: &str) {
        match self.try_write(line) {
            Ok(()) => {}
            Err(error) if self.lost == 0 => {
                self.lost = 1;
                tracing::warn!(%error, "an event cannot be written to its file and is lost; later events are still tried");
            }
            Err(_) => self.lost += 1,
        }
    }

    fn try_write(&mut self, line: &str) -> io::Result<()> {
        if self.torn {
            self.put("\n")?;
        }
        if self.lost > 0 {
            let lost = self.lost;
            self.put(&format!("{{\"event\":\"events_lost\",\"count\":{lost}}}\n"))?;
            self.lost = 0;
            tracing::warn!(lost, "events are written to their file again");
        }
        self.put(line)
    }

    /// Writes the whole text. On an error, notes whether the file ends in the middle of a line.
    fn put(&mut self, text: &str) -> io::Result<()> {
        let mut left = text.as_bytes();
        while !left.is_empty() {
            let written = match self.out.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            left = &left[written..];
            self.torn = !left.is_empty();
        }
        Ok(())
    }
}

fn describe(event: &Event) -> (&'static str, String) {
    let ballot = |ballot: &leasehold_leases::Ballot| {
        let (round, replica) = (ballot.round, ballot.replica.0);
        format!(",\"round\":{round},\"replica\":{replica}")
    };
    match event {
        Event::Campaigning(at) => ("campaigning", ballot(at)),
        Event::Leading(at) => ("leading", ballot(at)),
        Event::Following(at) => ("following", ballot(at)),
        Event::Configured {
            id,
            keys,
            strategy,
            excluded,
        } => {
            let excluded: Vec<u8> = excluded.iter().map(|replica| replica.0).collect();
            let details = format!(
                ",\"configuration\":{},\"keys\":{keys},\"strategy\":\"{strategy}\",\
                 \"excluded\":{excluded:?}",
                id.0
            );
            ("configured", details)
        }
        Event::LeaseAnswered { ask, answer } => {
            let in_force = answer.as_ref().map_or(0, |in_force| in_force.config.0);
            let details = format!(",\"ask\":{ask},\"configuration\":{in_force}");
            let refused = answer.is_err();
            let name = if refused {
                "lease_refused"
            } else {
                "lease_set"
            };
            (name, details)
        }
        Event::RestartWaitOver => ("restart_wait_over", String::new()),
        Event::Joined => ("joined", String::new()),
        Event::Left => ("left", String::new()),
        Event::ClockTrusted(true) => ("clock_trusted", String::new()),
        Event::ClockTrusted(false) => ("clock_untrusted", String::new()),
        Event::Wiped { witness } => ("wiped", format!(",\"witness\":{}", witness.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated disk with a limited number of free bytes.
    #[derive(Default)]
    struct BoundedDisk {
        room: usize,
        holds: Vec<u8>,
    }

    impl io::Write for BoundedDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= taken;
            self.holds.extend(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn events_go_on_after_a_full_disk_and_say_how_many_were_lost() {
        let mut lines = EventWriter::new(BoundedDisk::default());
        lines.out.room = 6;
        for line in ["one\n", "two\n", "three\n"] {
            lines.write(line);
        }
        lines.out.room = 1_000;
        lines.write("four\n");
        lines.write("five\n");
        // The rest of a line that had no room is a separate line.
        let expected = "one\ntw\n{\"event\":\"events_lost\",\"count\":2}\nfour\nfive\n";
        assert_eq!(String::from_utf8_lossy(&lines.out.holds), expected);
    }

    #[test]
    fn a_count_that_is_torn_itself_is_not_lost() {
        let mut lines = EventWriter::new(BoundedDisk::default());
        lines.write("one\n");
        lines.out.room = 5;
        lines.write("two\n");
        lines.out.room = 1_000;
        lines.write("three\n");
        let expected = "{\"eve\n{\"event\":\"events_lost\",\"count\":2}\nthree\n";
        assert_eq!(String::from_utf8_lossy(&lines.out.holds), expected);
    }
}
