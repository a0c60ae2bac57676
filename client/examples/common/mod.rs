//! Arguments of the examples: the addresses of replicas, and the certificate of their cluster's
//! authority.

use leasehold_client::{Client, ClientOptions};

/// Parses options from `[HOST:PORT[,HOST:PORT...]] [--ca FILE]`.
pub fn options() -> Result<ClientOptions, Box<dyn std::error::Error>> {
    let mut addresses = "127.0.0.1:7001".to_owned();
    let mut ca = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--ca" => ca = Some(arguments.next().ok_or("--ca: name a file")?),
            _ => addresses = argument,
        }
    }
    let options = ClientOptions::nearest_first(addresses.split(','));
    match ca {
        None => Ok(options),
        Some(file) => with_trust(options, &file),
    }
}

#[cfg(feature = "tls")]
fn with_trust(
    mut options: ClientOptions,
    file: &str,
) -> Result<ClientOptions, Box<dyn std::error::Error>> {
    options.trust = Some(leasehold_client::Trust::load(std::path::Path::new(file))?);
    Ok(options)
}

#[cfg(not(feature = "tls"))]
fn with_trust(_: ClientOptions, _: &str) -> Result<ClientOptions, Box<dyn std::error::Error>> {
    Err("--ca: this example was built without the feature tls".into())
}

/// Connects a client to the replicas that the arguments name.
#[allow(dead_code)]
pub async fn connect() -> Result<Client, Box<dyn std::error::Error>> {
    Ok(Client::connect(options()?).await?)
}
