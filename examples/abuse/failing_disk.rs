//! Makes the directory of the last replica read-only several times. Each time, the replica must end
//! with an error. A single time would prove little: whether a faulty program is ended by a signal
//! depends on the relative speed of its threads.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::time::sleep;

use crate::cluster::{Cluster, set_mode};
use crate::judge::Check;

/// Time within which a replica must end after its directory became read-only.
const ENDS_WITHIN: Duration = Duration::from_secs(20);
/// Time for which the replica runs before its disk fails again. It must be long enough for a few
/// puts.
const RUNS_FOR: Duration = Duration::from_secs(1);
/// Time between the last failure of the disk and the end of the attackers. During this time, the
/// attackers' puts make the replica begin a new file. The replica notices the failure only when it
/// begins a new file.
const PUTS_FOLLOW: Duration = Duration::from_secs(8);
/// Interval between two checks of whether the replica has ended.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// Tally of the ways in which the replica ended.
#[derive(Debug, Default)]
pub struct ExitTally {
    ways: BTreeMap<String, u32>,
    /// Last output of the replica before its first bad end. If no end was bad, this is the last
    /// output before its first end.
    words: String,
    bad: bool,
}

impl ExitTally {
    fn note(&mut self, status: Option<ExitStatus>, words: &str) {
        let way = status.map_or("not at all".to_owned(), |status| status.to_string());
        let way = way.trim_start_matches("exit ").to_owned();
        *self.ways.entry(way).or_insert(0) += 1;
        let code = status.and_then(|status| status.code());
        let good = code.is_some_and(|code| code != 0);
        if self.words.is_empty() || !good && !self.bad {
            self.words = words.trim().to_owned();
        }
        self.bad |= !good;
    }

    /// Checks that the replica ended with an error each time, and never by a signal.
    pub fn check(&self) -> Check {
        let what = "a replica that cannot write ends with an error and by no signal";
        let ways = self.ways.iter();
        let ways: Vec<String> = ways
            .map(|(way, times)| format!("{times} times: {way}"))
            .collect();
        let found = format!("{}. {}", ways.join(", "), self.words);
        Check::described(what, &found, !self.bad && !self.ways.is_empty())
    }
}

/// Makes the directory of the last replica read-only. After the replica has ended, makes the
/// directory writable again and starts the replica. Repeats this until shortly before `end`, which
/// is the time at which the attackers end.
pub async fn fail_until(cluster: &mut Cluster, end: Instant) -> anyhow::Result<ExitTally> {
    let last = cluster.clients.len() - 1;
    let data = cluster.data(last);
    let mut ends = ExitTally::default();
    while Instant::now() + RUNS_FOR + PUTS_FOLLOW < end {
        sleep(RUNS_FOR).await;
        set_mode(&data, 0o555).context("making a directory read-only")?;
        let status = ended(cluster, last).await;
        ends.note(status, &cluster.last_log_lines());
        set_mode(&data, 0o755).context("making a directory writable")?;
        if status.is_none() {
            break;
        }
        cluster.start_one(last)?;
    }
    Ok(ends)
}

async fn ended(cluster: &mut Cluster, replica: usize) -> Option<ExitStatus> {
    let deadline = Instant::now() + ENDS_WITHIN;
    while cluster.ended(replica).is_none() && Instant::now() < deadline {
        sleep(LOOKS_EVERY).await;
    }
    cluster.ended(replica)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn one_signal_among_errors_fails() {
        let error = Some(ExitStatus::from_raw(1 << 8));
        let mut ends = ExitTally::default();
        assert!(!ends.check().good, "it never ended");
        ends.note(error, "writing failed");
        ends.note(error, "writing failed");
        assert!(ends.check().good, "{:?}", ends.check());
        ends.note(Some(ExitStatus::from_raw(6)), "lock");
        let check = ends.check();
        assert!(!check.good);
        assert!(check.found.contains("2 times: status: 1"), "{check:?}");
        assert!(check.found.contains("signal: 6"), "{check:?}");
    }

    #[test]
    fn to_go_on_or_to_end_without_an_error_fails() {
        for status in [None, Some(ExitStatus::from_raw(0))] {
            let mut ends = ExitTally::default();
            ends.note(status, "");
            assert!(!ends.check().good, "{status:?}");
        }
    }
}
