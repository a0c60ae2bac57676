//! Events of the replica: written to the log and, if asked for, to a file that
//! experiments read, one JSON object a line.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::{SystemTime, UNIX_EPOCH};

use leases::ConfigId;

use crate::replica::action::Event;

const FIRST: ConfigId = ConfigId(1);

/// Where events go.
#[derive(Debug)]
pub(super) struct Events {
    node: String,
    /// The strategy that the configuration file names.
    wanted: &'static str,
    /// To a thread of its own: writing to a file may block, and the replica may not.
    lines: Option<Sender<String>>,
}

impl Events {
    /// Events of `node`, appended to `file` if one is given.
    pub(super) fn new(node: &str, wanted: &'static str, file: Option<&Path>) -> io::Result<Events> {
        let lines = file.map(start).transpose()?;
        Ok(Events {
            node: node.to_owned(),
            wanted,
            lines,
        })
    }

    pub(super) fn tell(&self, event: &Event) {
        tracing::info!(node = self.node, ?event);
        // The first leader begins the log of configurations with a slot that changes
        // nothing; only after it has the cluster a strategy.
        if let Event::Configured { id, strategy, .. } = event
            && *id > FIRST
            && *strategy != self.wanted
        {
            tracing::warn!(
                node = self.node,
                in_force = strategy,
                in_the_file = self.wanted,
                "the cluster was made with another strategy than the configuration file names; \
                 the cluster's own is in force"
            );
        }
        let Some(lines) = &self.lines else { return };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_ms = since_epoch.map_or(0, |span| span.as_millis());
        let (name, details) = describe(event);
        // Node names hold nothing that JSON would have to escape.
        let _ = lines.send(format!(
            "{{\"unix_ms\":{unix_ms},\"node\":\"{}\",\"event\":\"{name}\"{details}}}\n",
            self.node
        ));
    }
}

fn start(file: &Path) -> io::Result<Sender<String>> {
    let mut file = File::options().create(true).append(true).open(file)?;
    let (lines, queue) = channel::<String>();
    std::thread::Builder::new()
        .name("events".to_owned())
        .spawn(move || {
            for line in queue {
                if let Err(error) = file.write_all(line.as_bytes()) {
                    tracing::warn!(%error, "events can no longer be written");
                    return;
                }
            }
        })?;
    Ok(lines)
}

fn describe(event: &Event) -> (&'static str, String) {
    let ballot = |ballot: &leases::Ballot| {
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
        Event::RestartWaitOver => ("restart_wait_over", String::new()),
        Event::Joined => ("joined", String::new()),
        Event::Left => ("left", String::new()),
        Event::ClockTrusted(true) => ("clock_trusted", String::new()),
        Event::ClockTrusted(false) => ("clock_untrusted", String::new()),
        Event::Wiped { witness } => ("wiped", format!(",\"witness\":{}", witness.0)),
    }
}
