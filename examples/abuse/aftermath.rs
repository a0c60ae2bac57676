//! Checks that are made after an attack. Latency, elections and memory are checked elsewhere.

use leasehold_wire::StatusRequest;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::figures::Figures;
use crate::judge::Check;
use crate::stage::AttackTimeline;
use crate::watch::ReplicaMonitor;

/// Key of a write that an unauthenticated peer proposes. The value of this write is the same text.
pub const MADE_UP_KEY: &str = "made-up";
pub const MADE_UP_VALUE: &[u8] = b"nobody wrote this";
/// Maximum age of a cluster in these attacks, in hours. The replicated clock must not exceed this
/// age, because the clock begins at 0 when the cluster begins.
const LOG_TIME_HOURS_MAX: f64 = 1.0;
/// Maximum number of bytes per second that the choice of lease holders may add to the traffic
/// between a replica and its peers. The maximum holds for every single second.
const HOLDERS_BYTES_A_SECOND: f64 = 100_000.0;

/// A condition that is checked after an attack.
#[derive(Clone, Copy, Debug)]
pub enum AftermathCheck {
    /// Requires that every name in a refusal is a name that the unauthenticated peer has sent
    /// before.
    NothingRevealed,
    /// Requires that all replicas serve clients after they have been killed and started again.
    Restart,
    /// Requires that no replica serves the value that the unauthenticated peer made up.
    NobodyWrote,
    /// Requires that the replicated clock does not exceed the maximum age of the cluster.
    LogTime,
    /// Requires that a figure that the attackers report does not exceed a maximum: (name, maximum).
    AtMost(&'static str, f64),
    /// Requires that a replica has at most this many more sockets open than before the attack. The
    /// sockets are counted at the end of the attack, while the attackers' connections are still
    /// open.
    ConnectionsLeft(u64),
    /// Requires that a counter in the status of each replica does not exceed a maximum: (name,
    /// maximum).
    CounterAtMost(&'static str, u64),
    /// Requires that a counter in the status of each replica does not exceed a maximum: (name,
    /// maximum). The status is requested at the time of the check, for example after a restart.
    CounterAtMostNow(&'static str, u64),
    /// Requires that a counter in the status of every replica has risen during the attack.
    Rose(&'static str),
    /// Requires that no iteration of a replica's event loop takes longer than this many ms. The
    /// requirement is not checked if the program does not report the duration of iterations.
    LongestRound(u64),
    /// Requires that the traffic between peers does not exceed a maximum in any second without
    /// reads.
    PeerBytes,
    /// Requires that the last replica ends with an error, and not by a signal, after its directory
    /// was made read-only.
    EndedByItself,
}

/// State of the cluster and of the attack, for use by the checks.
pub struct AftermathContext<'a> {
    pub cluster: &'a mut Cluster,
    pub watch: &'a ReplicaMonitor,
    pub waged: &'a Figures,
    pub seen: &'a AttackTimeline,
}

impl AftermathContext<'_> {
    pub async fn look(&mut self, after: AftermathCheck) -> anyhow::Result<Check> {
        match after {
            AftermathCheck::NothingRevealed => Ok(self.at_most("words_told", 0.0)),
            AftermathCheck::AtMost(name, bound) => Ok(self.at_most(name, bound)),
            AftermathCheck::Restart => self.restart().await,
            AftermathCheck::NobodyWrote => Ok(self.nobody_wrote().await),
            AftermathCheck::LogTime => Ok(self.log_time().await),
            AftermathCheck::ConnectionsLeft(most) => Ok(self.connections_left(most)),
            AftermathCheck::CounterAtMost(name, most) => Ok(self.counter(name, most)),
            AftermathCheck::CounterAtMostNow(name, most) => Ok(self.counter_now(name, most).await),
            AftermathCheck::Rose(name) => Ok(self.rose(name)),
            AftermathCheck::LongestRound(most) => Ok(self.longest_round(most)),
            AftermathCheck::PeerBytes => Ok(self.peer_bytes()),
            AftermathCheck::EndedByItself => Ok(self.seen.ends.check()),
        }
    }

    fn at_most(&self, name: &str, bound: f64) -> Check {
        let found = self.waged.get(name).copied();
        Check::at_most(&name.replace('_', " "), found, bound)
    }

    async fn restart(&mut self) -> anyhow::Result<Check> {
        self.cluster.restart()?;
        let begun = Instant::now();
        let what = "all serve again after all were killed";
        Ok(match self.cluster.ready().await {
            Ok(()) => {
                let words = format!("after {:.1} s", begun.elapsed().as_secs_f64());
                Check::described(what, &words, true)
            }
            Err(error) => Check::described(what, &format!("{error:#}"), false),
        })
    }

    async fn nobody_wrote(&self) -> Check {
        let mut served = 0;
        for replica in 0..self.cluster.clients.len() {
            let Ok(client) = self.cluster.client(replica).await else {
                continue;
            };
            let value = client.get(MADE_UP_KEY).await.ok().flatten();
            served += usize::from(value.is_some_and(|value| value.value == MADE_UP_VALUE));
            client.close();
        }
        let what = "replicas that serve what nobody wrote";
        Check::at_most(what, Some(served as f64), 0.0)
    }

    async fn log_time(&self) -> Check {
        let mut most_ms = 0;
        for replica in 0..self.cluster.clients.len() {
            if let Ok(client) = self.cluster.client(replica).await {
                most_ms = most_ms.max(client.raw().welcome().log_time_ms);
                client.close();
            }
        }
        let hours = most_ms as f64 / 3_600_000.0;
        Check::at_most("hours of log time", Some(hours), LOG_TIME_HOURS_MAX)
    }

    fn connections_left(&self, most: u64) -> Check {
        let before = self.watch.sockets(self.seen.quiet, self.seen.began);
        let last = self.seen.before_end;
        let now = self.watch.sockets(last - Duration::from_secs(1), last);
        let what = "connections open at the end of the attack";
        let left = now.saturating_sub(before);
        Check::at_most(what, Some(left as f64), most as f64)
    }

    fn counter(&self, name: &str, most: u64) -> Check {
        let found = self.watch.counter(name, self.seen.ended);
        Check::at_most(name, found.map(|value| value as f64), most as f64)
    }

    async fn counter_now(&self, name: &str, most: u64) -> Check {
        let mut found = None;
        for replica in 0..self.cluster.clients.len() {
            let Ok(client) = self.cluster.client(replica).await else {
                continue;
            };
            let counters = client
                .raw()
                .status(StatusRequest::default())
                .await
                .map(|status| status.counters);
            let counters = counters.into_iter().flatten();
            let values = counters.filter(|counter| counter.name == name);
            found = found.max(values.map(|counter| counter.value).max());
            client.close();
        }
        let what = format!("{name} now");
        Check::at_most(&what, found.map(|value| value as f64), most as f64)
    }

    fn rose(&self, name: &str) -> Check {
        let least = self
            .watch
            .least_rise(name, self.seen.began, self.seen.ended);
        let what = format!("least rise of {name} on a replica");
        Check::at_least(&what, least.map(|rise| rise as f64), 1.0)
    }

    fn longest_round(&self, most: u64) -> Check {
        let found = self.watch.counter("longest_round_ms", self.seen.recovered);
        let what = "longest round of a replica, ms";
        match found {
            Some(ms) => Check::at_most(what, Some(ms as f64), most as f64),
            None => Check::described(what, "not known: the program does not tell", true),
        }
    }

    fn peer_bytes(&self) -> Check {
        let (quiet, busiest) = (self.seen.quiet_bytes_s, self.seen.busiest_bytes_s);
        let (Some(quiet), Some(busiest)) = (quiet, busiest) else {
            return Check::described("bytes between peers", "not known: there is no `ss`", true);
        };
        let each = (busiest - quiet).max(0.0) / self.cluster.clients.len() as f64;
        let what = "bytes that each replica sends for holders in the busiest second";
        Check::at_most(what, Some(each.round()), HOLDERS_BYTES_A_SECOND)
    }
}
