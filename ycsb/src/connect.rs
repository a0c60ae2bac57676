//! Connects the threads of a run to replicas. First, every address is queried. The answers say
//! which replica is at each address, so that no site is mistaken for another. They also contain the
//! distances between the replicas. Each thread then uses the replica of its own site. While that
//! replica is dead, the thread uses the nearest other replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_client::{
    Client, ClientOptions, Error, FailedAttempt, LivenessChange, PeerStatus, ReplicaChange,
    StatusQuery, Watcher,
};
use leasehold_transport::Secret;
use leasehold_transport::tls::Trust;
use tokio::task::JoinSet;

use crate::command::CommandError;
use crate::measurement::ReplicaName;
use crate::note;
use crate::runner::Cores;
use crate::settings::{ClientSite, Settings};
use crate::store::Connection;

/// Timeout of a query to a replica.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Information about a replica from its answer to a query.
#[derive(Clone, Debug)]
struct ReplicaInfo {
    cluster: String,
    replica: String,
    /// Round-trip time to each other replica in microseconds, by name; 0 if the time is not known.
    peers: BTreeMap<String, u64>,
}

/// Replicas that queries have found at the addresses of a run.
#[derive(Debug)]
pub struct AddressSurvey {
    addresses: Vec<ReplicaName>,
    found: Vec<Result<ReplicaInfo, String>>,
    /// Replica at each address; `None` if the replica is not known.
    replicas: Vec<Option<String>>,
    trust: Option<Trust>,
    /// Token that every client presents to a replica.
    token: Option<Secret>,
}

impl AddressSurvey {
    /// Queries all addresses in parallel.
    ///
    /// # Errors
    /// If no address answers, an address belongs to another cluster, a replica refuses the token,
    /// or the certificate of the authority or the file of the token cannot be used.
    pub async fn take(settings: &Settings) -> Result<AddressSurvey, CommandError> {
        let trust = settings.ca.as_deref().map(Trust::load).transpose()?;
        let token = settings.token_file.as_deref().map(Secret::load);
        let token = token.transpose()?;
        let mut queries = JoinSet::new();
        for (place, address) in settings.addresses.iter().enumerate() {
            let mut options = ClientOptions::new(address);
            options.cluster = settings.cluster.clone();
            options.trust = trust.clone();
            options.token.clone_from(&token);
            options.plain_token = settings.plain_token;
            options.connect_timeout = QUERY_TIMEOUT;
            options.request_timeout = QUERY_TIMEOUT;
            queries.spawn(async move { (place, ask(options).await) });
        }
        let mut answers = queries.join_all().await;
        answers.sort_by_key(|(place, _)| *place);
        let mut found = Vec::new();
        for (_, answer) in answers {
            found.push(match answer {
                Err(
                    error @ (Error::WrongCluster { .. }
                    | Error::Refused { .. }
                    | Error::PlainToken { .. }),
                ) => {
                    return Err(error.into());
                }
                other => other.map_err(|error| describe_error(&error)),
            });
        }
        let addresses = settings.addresses.iter().map(|it| it.as_str().into());
        let survey = AddressSurvey {
            trust,
            token,
            ..AddressSurvey::of(addresses.collect(), found)
        };
        survey.ensure_one_cluster()?;
        Ok(survey)
    }

    fn of(addresses: Vec<ReplicaName>, found: Vec<Result<ReplicaInfo, String>>) -> AddressSurvey {
        AddressSurvey {
            addresses,
            replicas: replicas(&found),
            found,
            trust: None,
            token: None,
        }
    }

    fn ensure_one_cluster(&self) -> Result<(), CommandError> {
        let mut answered = self.addresses.iter().zip(&self.found);
        let mut answered = answered
            .by_ref()
            .filter_map(|(at, it)| Some((at, it.as_ref().ok()?)));
        let Some((first, one)) = answered.next() else {
            let tried = self.dead().collect();
            return Err(Error::Connect { tried }.into());
        };
        match answered.find(|(_, other)| other.cluster != one.cluster) {
            None => Ok(()),
            Some((second, other)) => Err(CommandError::Sites(format!(
                "leasehold.address: {first} is of cluster {:?} and {second} of {:?}; a run needs \
                 addresses of one cluster",
                one.cluster, other.cluster
            ))),
        }
    }

    fn dead(&self) -> impl Iterator<Item = FailedAttempt> {
        let all = self.addresses.iter().zip(&self.found);
        all.filter_map(|(address, found)| {
            Some(FailedAttempt {
                address: address.to_string(),
                reason: found.as_ref().err()?.clone(),
            })
        })
    }

    /// Returns the site of each address. Each site gets the name of the replica at its address, if
    /// three conditions hold: the properties do not name the sites, there are several addresses,
    /// and the name of the replica is known.
    ///
    /// # Errors
    /// If the properties name a site after one replica, but another replica is at the site's
    /// address.
    pub fn sites(&self, settings: &Settings) -> Result<Vec<ClientSite>, CommandError> {
        let all = settings.sites.iter().zip(&self.replicas);
        let several = settings.sites.len() > 1;
        if !settings.sites_are_named {
            let name = |(site, replica): (&ClientSite, &Option<String>)| ClientSite {
                name: replica
                    .clone()
                    .filter(|_| several)
                    .unwrap_or(site.name.clone()),
                number: site.number,
            };
            return Ok(all.map(name).collect());
        }
        if several && settings.site_names().len() == 1 {
            // A single name for several addresses is the place of the load generator, not of the
            // replicas.
            return Ok(settings.sites.clone());
        }
        let known = known(&self.found);
        for ((site, replica), address) in all.zip(&self.addresses) {
            let name = site.name.as_str();
            if let Some(replica) = replica
                && *replica != name
                && known.contains(&name)
            {
                let order = self.replicas.iter().map(|it| it.as_deref().unwrap_or("?"));
                return Err(CommandError::Sites(format!(
                    "site: {address} is replica {replica}, not {name}; the addresses lead to {}, \
                     in this order",
                    order.collect::<Vec<_>>().join(",")
                )));
            }
        }
        Ok(settings.sites.clone())
    }

    /// Returns warnings to be shown before a run begins.
    pub fn warnings(&self, sites: &[ClientSite]) -> Vec<String> {
        let all = self.addresses.iter().zip(sites).enumerate();
        let words = all.filter_map(|(place, (address, site))| {
            let said = self.found[place].as_ref().err()?;
            let next = self
                .order(place)
                .into_iter()
                .find(|at| self.found[*at].is_ok())?;
            let unsure = match self.replicas[place] {
                Some(_) => "",
                None => ", so that nobody can tell which replica it is",
            };
            Some(format!(
                "{address} (site {}) does not answer{unsure}: {said}. Its threads ask {} until \
                 it does",
                site.name, self.addresses[next]
            ))
        });
        words.collect()
    }

    /// Returns the indexes of all addresses, in the order in which a client should try the
    /// addresses. `own` is the index of the client's own address.
    fn order(&self, own: usize) -> Vec<usize> {
        let round_trip = |from: usize, to: usize| {
            let found = self.found[from].as_ref().ok()?;
            let us = found.peers.get(self.replicas[to].as_ref()?);
            us.copied().filter(|us| *us > 0)
        };
        let distance = |other: &usize| {
            let measured = round_trip(own, *other).or_else(|| round_trip(*other, own));
            (*other != own, measured.unwrap_or(u64::MAX))
        };
        let mut order: Vec<usize> = (0..self.addresses.len()).collect();
        order.sort_by_key(distance);
        order
    }

    /// Opens all connections. The addresses and the threads of the operating system are assigned to
    /// the connections in turn.
    ///
    /// # Errors
    /// If no replica answers any more.
    pub async fn connect(
        &self,
        settings: &Settings,
        cores: &Cores,
    ) -> Result<Vec<Connection>, Error> {
        let watcher = self.watcher();
        let mut connecting = JoinSet::new();
        let connections = settings.connections as usize;
        for (place, own) in (0..self.addresses.len())
            .cycle()
            .take(connections)
            .enumerate()
        {
            let order = self.order(own).into_iter();
            // Each connection gets its own copies of the names: threads that count references at
            // the same place wait for each other.
            let addresses: Arc<[ReplicaName]> = order
                .map(|at| ReplicaName::from(&*self.addresses[at]))
                .collect();
            let mut options =
                ClientOptions::nearest_first(addresses.iter().map(|it| it.to_string()));
            options.cluster = settings.cluster.clone();
            options.trust = self.trust.clone();
            options.token = self.token.clone();
            options.plain_token = settings.plain_token;
            options.request_timeout = settings.timeout;
            options.attempt_timeout = settings.attempt_timeout;
            options.routing = settings.routing;
            options.watcher = watcher.clone();
            let connect = async move {
                let client = Client::connect(options).await?;
                Ok((place, Connection { client, addresses }))
            };
            cores
                .round_robin(place)
                .spawn_into(&mut connecting, connect);
        }
        let connected: Result<Vec<_>, Error> = connecting.join_all().await.into_iter().collect();
        let mut connected = connected?;
        connected.sort_by_key(|(place, _)| *place);
        Ok(connected
            .into_iter()
            .map(|(_, connection)| connection)
            .collect())
    }

    /// Returns a watcher that prints a line on stderr when a replica dies, and when the replica is
    /// back. Each such change is reported once, even if several threads notice it.
    fn watcher(&self) -> Watcher {
        let reported = self.dead().map(|dead| (dead.address, true));
        let reported: Mutex<BTreeMap<String, bool>> = Mutex::new(reported.collect());
        let names = self.names();
        Watcher::new(move |change| {
            let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
            let is_dead = matches!(change.liveness, LivenessChange::Dead { .. });
            if reported.insert(change.address.clone(), is_dead) != Some(is_dead) {
                let name = names.get(&change.address).map(String::as_str);
                note!("warning: {}", describe_change(change, name));
            }
        })
    }

    /// Returns the names of the known replicas by their addresses.
    fn names(&self) -> BTreeMap<String, String> {
        let all = self.addresses.iter().zip(&self.replicas);
        let named = all.filter_map(|(address, name)| Some((address.to_string(), name.clone()?)));
        named.collect()
    }
}

/// Returns the names of all replicas that at least one replica knows.
fn known(found: &[Result<ReplicaInfo, String>]) -> BTreeSet<&str> {
    let answered = found.iter().flatten();
    let names = answered.flat_map(|one| one.peers.keys().chain([&one.replica]));
    names.map(String::as_str).collect()
}

/// Returns the replica at each address; `None` if the replica is not known. If only one address
/// does not answer, and only one known replica is still without an address, this replica is assumed
/// to be at this address.
fn replicas(found: &[Result<ReplicaInfo, String>]) -> Vec<Option<String>> {
    let name = |found: &Result<ReplicaInfo, String>| Some(found.as_ref().ok()?.replica.clone());
    let mut replicas: Vec<Option<String>> = found.iter().map(name).collect();
    let mut missing = known(found);
    replicas.iter().flatten().for_each(|name| {
        missing.remove(name.as_str());
    });
    let mut unnamed = replicas.iter_mut().filter(|name| name.is_none());
    if let (1, Some(name)) = (missing.len(), missing.first())
        && let (Some(replica), None) = (unnamed.next(), unnamed.next())
    {
        *replica = Some((*name).to_owned());
    }
    replicas
}

/// Describes a change at an address. `name` is the name of the replica at this address, if a query
/// before the run has found the name. This name is used only if `change` contains no name.
fn describe_change(change: &ReplicaChange, name: Option<&str>) -> String {
    let name = change.replica.as_deref().or(name);
    let name = name.map_or(String::new(), |name| format!(" ({name})"));
    let address = &change.address;
    match &change.liveness {
        LivenessChange::Dead { reason } => {
            format!("{address}{name} does not answer ({reason}); others are asked until it does")
        }
        LivenessChange::Back { after } => {
            let after = after.as_secs_f64();
            format!("{address}{name} answers again, after {after:.1} s")
        }
        _ => format!("{address}{name} has changed"),
    }
}

async fn ask(options: ClientOptions) -> Result<ReplicaInfo, Error> {
    let client = Client::connect(options).await?;
    let server = client.server();
    // A replica that greets, but cannot answer yet, has at least sent its name.
    let status = client
        .status(StatusQuery::default())
        .await
        .unwrap_or_default();
    let peers = status.peers.into_iter();
    Ok(ReplicaInfo {
        cluster: server.cluster,
        replica: server.replica,
        peers: peers.map(round_trip).collect(),
    })
}

/// Returns the name of a peer, and the measured round-trip time to the peer, in microseconds. The
/// time is 0 if it is not measured yet.
fn round_trip(peer: PeerStatus) -> (String, u64) {
    let us = peer.round_trip.map_or(0, |it| it.as_micros() as u64);
    (peer.name, us)
}

/// Describes the error that an address returned, without the address.
fn describe_error(error: &Error) -> String {
    match error {
        Error::Connect { tried, .. } => tried.iter().map(|it| it.reason.clone()).collect(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
