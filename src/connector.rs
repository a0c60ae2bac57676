//! Choice of the replicas to which a command sends its requests: the replicas at the given
//! addresses, or those of the cluster that `cluster up` started.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use leasehold_client::{Client, ClientOptions};
use leasehold_geo_deploy::standing::{ClientPort, ClusterState, DEFAULT_DIR, shell_word};
use leasehold_transport::Secret;
use leasehold_transport::tls::Trust;
use leasehold_wire::StatusRequest;

/// Longest time that a replica may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(2);

/// Certificate authority of the replicas to connect to, and the token that determines the rights of
/// the client.
#[derive(Args)]
pub struct ClientCredentials {
    /// The certificate of the cluster's authority: talks over TLS, and to its replicas alone [default:
    /// that of the environment's LEASEHOLD_CA, or of the cluster that `cluster up` started]
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The file with this client's token, which only its owner may read (mode 0600) [default: the
    /// one that the environment's LEASEHOLD_TOKEN_FILE names]
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Sends the token in plain text if there is no --ca, also to other machines: whoever reads the network
    /// can use it
    #[arg(long, global = true)]
    plain_token: bool,
}

impl ClientCredentials {
    fn trust(&self) -> anyhow::Result<Option<Trust>> {
        let named = named(&self.ca, "--ca", "LEASEHOLD_CA");
        let load = |(name, file): (_, PathBuf)| Trust::load(&file).context(name);
        named.map(load).transpose()
    }

    fn token(&self) -> anyhow::Result<Option<Secret>> {
        let named = named(&self.token_file, "--token-file", "LEASEHOLD_TOKEN_FILE");
        let load = |(name, file): (_, PathBuf)| {
            let token = Secret::load(&file);
            token.with_context(|| format!("{name}, the file of this client's token"))
        };
        named.map(load).transpose()
    }
}

/// Returns the path of a file, and the name of the option or environment variable that contains the
/// path. The option has precedence over the variable. An empty variable is ignored.
fn named(
    given: &Option<PathBuf>,
    option: &'static str,
    variable: &'static str,
) -> Option<(&'static str, PathBuf)> {
    if let Some(file) = given {
        return Some((option, file.clone()));
    }
    let file = std::env::var_os(variable).filter(|file| !file.is_empty())?;
    Some((variable, file.into()))
}

/// Replicas to which a command sends its request to show or change the settings in force in a
/// cluster.
#[derive(Args)]
pub struct Replicas {
    /// Client addresses of replicas: the first that answers is asked, and passes a change on to the leader
    /// [default: the cluster that `cluster up` started]
    #[arg(
        long,
        global = true,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        conflicts_with = "dir"
    )]
    address: Vec<String>,
    /// The directory of the cluster that `cluster up` started
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = DEFAULT_DIR
    )]
    dir: PathBuf,
    #[command(flatten)]
    credentials: ClientCredentials,
    /// How long to wait for an answer, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u16).range(1..))]
    timeout: u16,
}

impl Replicas {
    /// Creates a connector that asks one replica after another. The `timeout` applies to each
    /// replica separately.
    pub fn connector(&self) -> anyhow::Result<Connector> {
        let mut connector =
            Connector::new(&self.address, &self.dir, None)?.with(&self.credentials)?;
        let timeout = Duration::from_secs(self.timeout.into());
        connector.options.connect_timeout = CONNECT;
        connector.options.attempt_timeout = timeout;
        connector.options.request_timeout = timeout;
        Ok(connector)
    }
}

/// The replicas that a command can ask.
pub struct Connector {
    /// Addresses of the replicas, in the order in which the replicas are asked, and the longest
    /// time to wait for an answer.
    pub options: ClientOptions,
    /// Sites of the cluster that `cluster up` started; empty if addresses were given.
    sites: Vec<ClientPort>,
    /// Whether the command must be answered by the leader.
    at_leader: bool,
    /// Error text that is shown if no replica answers the command.
    advice: Option<String>,
}

/// An open connection to the replica that answers a command.
pub struct ConnectedClient {
    pub client: Client,
    /// Connection to the replica that was asked for the leader; `None` if the command did not
    /// connect to another replica afterwards.
    pub before: Option<Client>,
}

impl Connector {
    /// Creates a connector for the replicas at these addresses. If there are no addresses, the
    /// connector is for the cluster that `cluster up` started in `dir`.
    pub fn new(addresses: &[String], dir: &Path, site: Option<&str>) -> anyhow::Result<Connector> {
        match addresses {
            [] => Connector::of_cluster(dir, site),
            _ => Connector::at(addresses),
        }
    }

    /// Adds the certificate authority of the replicas, and the client's token.
    pub fn with(mut self, credentials: &ClientCredentials) -> anyhow::Result<Connector> {
        if let Some(trust) = credentials.trust()? {
            self.options.trust = Some(trust);
        }
        self.options.token = credentials.token()?;
        self.options.plain_token = credentials.plain_token;
        Ok(self)
    }

    fn at(addresses: &[String]) -> anyhow::Result<Connector> {
        for address in addresses {
            let port = address.rsplit_once(':');
            let port = port.map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(1..))) {
                bail!("--address: '{address}' is no HOST:PORT, as in 127.0.0.1:7001");
            }
        }
        Ok(Connector {
            options: ClientOptions::nearest_first(addresses),
            sites: Vec::new(),
            at_leader: false,
            advice: None,
        })
    }

    /// Creates a connector for the replicas of the cluster that `cluster up` started in `dir`. The
    /// connector first asks the replica at `site`. If `site` is `None`, the connector first asks
    /// the preferred leader.
    fn of_cluster(dir: &Path, site: Option<&str>) -> anyhow::Result<Connector> {
        let state = ClusterState::load(dir).map_err(|error| {
            if dir == Path::new(DEFAULT_DIR) && !ClusterState::path(dir).exists() {
                anyhow::anyhow!("{error:#}; for another cluster give --dir or --address")
            } else {
                error
            }
        })?;
        let addresses = state.clients.iter().map(|port| port.address);
        let connector = Connector {
            options: state.options(addresses)?,
            sites: state.clients,
            at_leader: site.is_none(),
            advice: Some(format!(
                "no replica answers; `leasehold cluster status --dir {}` shows which are up",
                shell_word(dir)
            )),
        };
        let first = connector.beginning_at(site.unwrap_or(&state.leader));
        let begun = first.with_context(|| {
            let known: Vec<&str> = connector.sites.iter().map(|p| p.site.as_str()).collect();
            let (site, known) = (site.unwrap_or(&state.leader), known.join(", "));
            format!("--site: there is no site '{site}'; there are {known}")
        })?;
        Ok(Connector {
            at_leader: connector.at_leader,
            ..begun
        })
    }

    /// Returns a connector that asks the replica at this site first, and then the other replicas;
    /// `None` if there is no such site.
    fn beginning_at(&self, site: &str) -> Option<Connector> {
        let first = self.sites.iter().find(|port| port.site == site)?;
        let first = first.address.to_string();
        let mut options = self.options.clone();
        options.addresses.retain(|other| *other != first);
        options.addresses.insert(0, first);
        Some(Connector {
            options,
            sites: self.sites.clone(),
            at_leader: false,
            advice: self.advice.clone(),
        })
    }

    /// Returns the address, followed by the name of the site at this address if the name is known.
    pub fn named(&self, address: &str) -> String {
        let mut sites = self.sites.iter();
        match sites.find(|port| port.address.to_string() == address) {
            Some(port) => format!("{address} ({})", port.site),
            None => address.to_owned(),
        }
    }

    /// Connects to the replica that the arguments name. If the arguments name no replica, connects
    /// to the leader. To find the leader, the connector asks the first replica that answers.
    pub async fn connect(&self) -> anyhow::Result<ConnectedClient> {
        let client = self.connect_to_first().await?;
        let leader = if self.at_leader {
            client
                .raw()
                .status(StatusRequest::default())
                .await
                .unwrap_or_default()
                .leader
        } else {
            String::new()
        };
        match self.beginning_at(&leader) {
            Some(elsewhere) if leader != client.server().replica => Ok(ConnectedClient {
                client: elsewhere.connect_to_first().await?,
                before: Some(client),
            }),
            _ => Ok(ConnectedClient {
                client,
                before: None,
            }),
        }
    }

    async fn connect_to_first(&self) -> anyhow::Result<Client> {
        let connected = Client::connect(self.options.clone()).await;
        match &self.advice {
            Some(advice) => connected.with_context(|| advice.clone()),
            None => Ok(connected?),
        }
    }
}
