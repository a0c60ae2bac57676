//! From an address to a connection that has been greeted.

use std::io;
use std::time::Duration;

use rustls::{AlertDescription, Error as TlsError};
use tokio::net::TcpStream;

use leasehold_transport::tls::{self, Channel, ReadEnd, ShakeError, Trust, WriteEnd};
use leasehold_transport::{FrameReader, FrameWriter};
use leasehold_wire::{ErrorCode, FrameError, Hello, Welcome, decode_greeting};

const PEER_PORT: &str = "it answers as the port for other replicas does: give the replica's port for \
                         clients";
/// More than the certificates of any replica take.
const HANDSHAKE_BYTES_MAX: usize = 64 << 10;

/// A connection that has been greeted.
pub(crate) struct Link {
    pub reader: FrameReader<ReadEnd>,
    pub writer: FrameWriter<WriteEnd>,
    pub welcome: Welcome,
}

/// Why there is no link, in words.
#[derive(Debug)]
pub(crate) enum NoLink {
    /// Nobody answers, or not as a replica that takes clients.
    Failed(String),
    /// A replica of another cluster answers.
    WrongCluster(String),
    /// A replica answers, and refuses the token or that there is none. Another one would, too.
    Refused(leasehold_wire::Error),
}

impl NoLink {
    pub fn said(self) -> String {
        match self {
            NoLink::Failed(said) => said,
            NoLink::WrongCluster(said) => format!("not of the cluster asked for: {said}"),
            NoLink::Refused(error) => error.message,
        }
    }
}

/// Connects and greets.
pub(crate) async fn connect(
    address: &str,
    hello: Hello,
    trust: Option<&Trust>,
    within: Duration,
) -> Result<Link, NoLink> {
    match tokio::time::timeout(within, open(address, hello, trust)).await {
        Ok(result) => result,
        Err(_) => Err(NoLink::Failed(format!("no greeting within {within:?}"))),
    }
}

async fn open(address: &str, hello: Hello, trust: Option<&Trust>) -> Result<Link, NoLink> {
    let failed = |error: io::Error| NoLink::Failed(error.to_string());
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let cluster = Some(&*hello.cluster).filter(|name| !name.is_empty());
    let channel = match trust {
        Some(trust) => Some(secure(&stream, trust, cluster).await?),
        None => None,
    };
    let (reader, writer) = tls::split(stream, channel);
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
        // So a greeting among replicas reads.
        return Err(NoLink::Failed(PEER_PORT.to_owned()));
    }
    if !hello.cluster.is_empty() && hello.cluster != welcome.cluster {
        let said = format!("it is of {:?}", welcome.cluster);
        return Err(NoLink::WrongCluster(said));
    }
    Ok(Link {
        reader,
        writer,
        welcome,
    })
}

async fn secure(
    stream: &TcpStream,
    trust: &Trust,
    cluster: Option<&str>,
) -> Result<Channel, NoLink> {
    let connection = trust.connection(cluster).map_err(NoLink::Failed)?;
    let shaken = tls::shake(stream, connection.into(), HANDSHAKE_BYTES_MAX).await;
    shaken.map(Channel::new).map_err(|error| {
        let mend = match &error {
            ShakeError::Refused(TlsError::InvalidMessage(_)) => {
                "; if its cluster has no certificates, leave --ca and LEASEHOLD_CA out"
            }
            _ => "",
        };
        NoLink::Failed(format!("{error}{mend}"))
    })
}

/// Describes, for the operator, a port that answers with something other than a greeting.
fn not_greeted(error: FrameError) -> NoLink {
    NoLink::Failed(match error {
        FrameError::Io(error) if asks_for_certificate(&error) => {
            "it asks for a certificate, as the port for other replicas does: give the replica's \
             port for clients"
                .to_owned()
        }
        FrameError::Io(error) => format!("no greeting came: {error}"),
        FrameError::TooLong { length, .. } if tls::is_alert((length as u32).to_be_bytes()) => {
            "this port speaks TLS: give the certificate of the cluster's authority, its ca.pem \
             (--ca FILE)"
                .to_owned()
        }
        other => format!("what answers there is not a replica's client port ({other})"),
    })
}

fn asks_for_certificate(error: &io::Error) -> bool {
    let told = error.get_ref().and_then(|told| told.downcast_ref());
    let asked = TlsError::AlertReceived(AlertDescription::CertificateRequired);
    told.is_some_and(|told: &TlsError| *told == asked)
}

fn refused(refusal: leasehold_wire::Error) -> NoLink {
    match refusal.code() {
        ErrorCode::WrongCluster => NoLink::WrongCluster(refusal.message),
        ErrorCode::Unauthenticated | ErrorCode::PermissionDenied => NoLink::Refused(refusal),
        _ => NoLink::Failed(refusal.message),
    }
}
