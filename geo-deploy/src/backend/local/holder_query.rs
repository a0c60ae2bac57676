//! Queries for the possible holders of a lease on each key, as the replicas themselves report them.
//!
//! Each answer of a replica about a key names two groups of replicas. The first group contains the
//! holders of the key under the newest configuration. The second group contains the replicas to
//! which unexpired promises exist. A vote for a write would have to name these replicas now. All
//! replicas that run are asked, just before a fault and again just after it. If no answer about a
//! key names a replica, that replica certainly held no lease on the key. There is one exception: if
//! more than one configuration began between the two queries, a configuration may have been missed,
//! and the holders are uncertain.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold_client::Client;
use leasehold_wire::StatusRequest;

use super::LocalCluster;
use super::client_access::ClientAccess;
use crate::backend::{RunPlan, key_name};
use crate::run::bound::SiteSet;

/// Maximum number of keys about which a query asks the replicas. No query is made if the key space
/// is larger.
const KEYS_MAX: u64 = 10_000;
/// Longest time that a replica may take to name the possible holders of one key.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Query that asks the replicas of a cluster for the possible holders of all keys.
#[derive(Clone)]
pub(super) struct HolderQuery {
    access: ClientAccess,
    sites: Vec<String>,
    /// Sites and addresses of the running replicas.
    addresses: Vec<(usize, SocketAddr)>,
    keys: u64,
}

/// Answers of the replicas. Each answer is paired with the site of the replica.
#[derive(Clone, Debug, Default)]
pub(super) struct HolderAnswers(Vec<(usize, ReplicaAnswer)>);

/// Answer of one replica. The answer lists all keys, in order.
#[derive(Clone, Debug)]
struct ReplicaAnswer {
    /// Newest configuration of the replica at two times: when the replica was asked about the first
    /// key, and when it was asked about the last key.
    configurations: (u64, u64),
    may_hold: Vec<SiteSet>,
}

impl HolderQuery {
    /// Creates a query to the replicas that run now; `None` if there are more than [`KEYS_MAX`]
    /// keys.
    pub(super) fn new(plan: &RunPlan<'_>, cluster: &LocalCluster) -> Option<HolderQuery> {
        let keys = plan.experiment.workload.keys;
        let up = cluster.up();
        let addresses = cluster.client_addresses().iter().copied().enumerate();
        (keys <= KEYS_MAX).then(|| HolderQuery {
            access: cluster.client_access().clone(),
            sites: plan
                .topology()
                .names()
                .iter()
                .map(|s| s.to_string())
                .collect(),
            addresses: addresses.filter(|(site, _)| up[*site]).collect(),
            keys,
        })
    }

    /// Asks all replicas about every key. Returns `None` if a replica does not answer.
    pub(super) async fn run(self) -> Option<HolderAnswers> {
        let mut queries = tokio::task::JoinSet::new();
        for (site, address) in self.addresses.clone() {
            let query = self.clone();
            queries.spawn(async move { Some((site, query.query_replica(address).await?)) });
        }
        let answers: Option<Vec<(usize, ReplicaAnswer)>> =
            queries.join_all().await.into_iter().collect();
        answers.map(HolderAnswers)
    }

    /// Asks one replica about all keys. The questions are sent one at a time, because the replica
    /// must also serve its clients.
    async fn query_replica(&self, address: SocketAddr) -> Option<ReplicaAnswer> {
        let mut options = self.access.options([address]);
        options.connect_timeout = ANSWER_WITHIN;
        options.request_timeout = ANSWER_WITHIN;
        let client = Client::connect(options).await.ok()?;
        let (mut first, mut last) = (None, 0);
        let mut may_hold = Vec::with_capacity(self.keys as usize);
        for key in 0..self.keys {
            let request = StatusRequest {
                holders: true,
                key: key_name(key),
                ..StatusRequest::default()
            };
            let status = client.raw().status(request).await.ok()?;
            last = status.configuration;
            first.get_or_insert(last);
            may_hold.push(self.sites(&status.may_hold));
        }
        let configurations = (first?, last);
        Some(ReplicaAnswer {
            configurations,
            may_hold,
        })
    }

    fn sites(&self, names: &[String]) -> SiteSet {
        let index = |name: &String| self.sites.iter().position(|site| site == name);
        names.iter().filter_map(index).collect()
    }
}

impl HolderAnswers {
    /// Returns, for each key, the replicas that may have held a lease on the key between this query
    /// and the query `later`. Returns `None` if a query has no answers, or if a configuration
    /// between the two queries may have been missed.
    pub(super) fn until(&self, later: &HolderAnswers) -> Option<Vec<SiteSet>> {
        let of_site = |wanted: usize| later.0.iter().find(|(site, _)| *site == wanted);
        let missed = |(site, answer): &(usize, ReplicaAnswer)| {
            of_site(*site)
                .is_some_and(|(_, later)| later.configurations.1 > answer.configurations.0 + 1)
        };
        let answered = !self.0.is_empty() && !later.0.is_empty();
        if !answered || self.0.iter().any(missed) {
            return None;
        }
        let mut all = Vec::new();
        for (_, answer) in self.0.iter().chain(&later.0) {
            all.resize(answer.may_hold.len(), SiteSet::EMPTY);
            for (all, answer) in all.iter_mut().zip(&answer.may_hold) {
                *all = all.union(*answer);
            }
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VA: usize = 3;

    /// Returns answers of replicas for two keys.
    fn answers(replicas: &[(usize, (u64, u64), [SiteSet; 2])]) -> HolderAnswers {
        let of = |(site, configurations, may_hold): &(usize, (u64, u64), [SiteSet; 2])| {
            let may_hold = may_hold.to_vec();
            let configurations = *configurations;
            (
                *site,
                ReplicaAnswer {
                    configurations,
                    may_hold,
                },
            )
        };
        HolderAnswers(replicas.iter().map(of).collect())
    }

    #[test]
    fn a_key_that_was_leased_between_the_inquiry_and_the_fault_counts_as_leased() {
        let (va, nobody) = (SiteSet::one(VA), SiteSet::EMPTY);
        let before = answers(&[(0, (11, 11), [va, nobody]), (VA, (11, 11), [va, nobody])]);
        // VA is dead. Meanwhile a new configuration has given it the second key.
        let after = answers(&[(0, (12, 12), [nobody, va])]);
        assert_eq!(before.until(&after), Some(vec![va, va]));
    }

    #[test]
    fn nothing_is_sure_if_a_configuration_may_have_been_missed() {
        let (va, nobody) = (SiteSet::one(VA), SiteSet::EMPTY);
        let before = answers(&[(0, (11, 12), [va, nobody])]);
        let after = answers(&[(0, (12, 13), [nobody, nobody])]);
        assert_eq!(before.until(&after), None);
        assert_eq!(before.until(&HolderAnswers::default()), None);
        assert_eq!(HolderAnswers::default().until(&before), None);
    }
}
