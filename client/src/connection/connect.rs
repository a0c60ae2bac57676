//! Connects to an address and exchanges greetings with the replica.

use std::io;

use leasehold_transport::{
    Channel, ClientReadHalf, ClientWriteHalf, FrameReader, FrameWriter, is_tls_alert, split,
};
use tokio::net::TcpStream;

use crate::options::ClientOptions;
use leasehold_wire::{ErrorCode, FrameError, Hello, Welcome, decode_greeting};

const PEER_PORT: &str = "it answers as the port for other replicas does: give the replica's port for \
                         clients";
/// Maximum size of a handshake, in bytes. The certificates of every replica are smaller.
#[cfg(feature = "tls")]
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// A connection on which the replica's greeting has arrived.
pub(crate) struct Link {
    pub reader: FrameReader<ClientReadHalf>,
    pub writer: FrameWriter<ClientWriteHalf>,
    pub welcome: Welcome,
}

/// Reason why there is no link.
#[derive(Debug)]
pub(crate) enum LinkError {
    /// Nothing answers at the address, or the answer does not come from a replica's port for
    /// clients.
    Failed(String),
    /// A replica of another cluster answers.
    WrongCluster(String),
    /// A replica answers, but refuses the token, or requires a token. Another replica would refuse
    /// in the same way.
    Refused(leasehold_wire::Error),
}

impl LinkError {
    pub fn reason(self) -> String {
        match self {
            LinkError::Failed(reason) => reason,
            LinkError::WrongCluster(reason) => format!("not of the cluster asked for: {reason}"),
            LinkError::Refused(error) => error.message,
        }
    }
}

/// Connects to an address, and exchanges greetings.
pub(crate) async fn connect(
    address: &str,
    hello: Hello,
    options: &ClientOptions,
) -> Result<Link, LinkError> {
    let within = options.greeted_within();
    match tokio::time::timeout(within, open(address, hello, options)).await {
        Ok(result) => result,
        Err(_) => Err(LinkError::Failed(format!("no greeting within {within:?}"))),
    }
}

async fn open(address: &str, hello: Hello, options: &ClientOptions) -> Result<Link, LinkError> {
    let failed = |error: io::Error| LinkError::Failed(error.to_string());
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let cluster = Some(&*hello.cluster).filter(|name| !name.is_empty());
    let channel = secure(&stream, options, cluster).await?;
    let (reader, writer) = split(stream, channel);
    let (mut reader, mut writer) = (FrameReader::new(reader), FrameWriter::new(writer));
    let greeting = async {
        writer.feed(&hello)?;
        writer.flush().await?;
        let frame = reader.next_frame().await?;
        let frame = frame.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        decode_greeting(frame)
    };
    let greeting = greeting.await.map_err(not_greeted)?;
    let welcome = greeting.map_err(refused)?;
    if welcome.replica.is_empty() {
        // The answer looks like the greeting between replicas.
        return Err(LinkError::Failed(PEER_PORT.to_owned()));
    }
    if !hello.cluster.is_empty() && hello.cluster != welcome.cluster {
        let reason = format!("it is of {:?}", welcome.cluster);
        return Err(LinkError::WrongCluster(reason));
    }
    Ok(Link {
        reader,
        writer,
        welcome,
    })
}

#[cfg(feature = "tls")]
async fn secure(
    stream: &TcpStream,
    options: &ClientOptions,
    cluster: Option<&str>,
) -> Result<Option<Channel>, LinkError> {
    use leasehold_transport::tls::{HandshakeError, handshake};

    let Some(trust) = &options.trust else {
        return Ok(None);
    };
    let connection = trust.connection(cluster).map_err(LinkError::Failed)?;
    match handshake(stream, connection.into(), HANDSHAKE_BYTES_MAX).await {
        Ok(connection) => Ok(Some(Channel::new(connection))),
        Err(error) => {
            let fix = match &error {
                HandshakeError::Refused(rustls::Error::InvalidMessage(_)) => {
                    "; if its cluster has no certificates, leave --ca and LEASEHOLD_CA out"
                }
                _ => "",
            };
            Err(LinkError::Failed(format!("{error}{fix}")))
        }
    }
}

#[cfg(not(feature = "tls"))]
async fn secure(
    _: &TcpStream,
    _: &ClientOptions,
    _: Option<&str>,
) -> Result<Option<Channel>, LinkError> {
    Ok(None)
}

/// Explains to the operator that the port did not answer with a greeting.
fn not_greeted(error: FrameError) -> LinkError {
    LinkError::Failed(match error {
        FrameError::Io(error) if asks_for_certificate(&error) => {
            "it asks for a certificate, as the port for other replicas does: give the replica's \
             port for clients"
                .to_owned()
        }
        FrameError::Io(error) => format!("no greeting came: {error}"),
        FrameError::TooLong { length, .. } if is_tls_alert((length as u32).to_be_bytes()) => {
            "this port speaks TLS: give the certificate of the cluster's authority, its ca.pem \
             (--ca FILE)"
                .to_owned()
        }
        other => format!("what answers there is not a replica's client port ({other})"),
    })
}

#[cfg(feature = "tls")]
fn asks_for_certificate(error: &io::Error) -> bool {
    use rustls::{AlertDescription, Error};

    let alert = error.get_ref().and_then(|alert| alert.downcast_ref());
    let expected = Error::AlertReceived(AlertDescription::CertificateRequired);
    alert.is_some_and(|alert: &Error| *alert == expected)
}

#[cfg(not(feature = "tls"))]
fn asks_for_certificate(_: &io::Error) -> bool {
    false
}

fn refused(refusal: leasehold_wire::Error) -> LinkError {
    match refusal.code() {
        ErrorCode::WrongCluster => LinkError::WrongCluster(refusal.message),
        ErrorCode::Unauthenticated | ErrorCode::PermissionDenied => LinkError::Refused(refusal),
        _ => LinkError::Failed(refusal.message),
    }
}
