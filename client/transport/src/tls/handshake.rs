//! TLS handshakes, and explanations of failed handshakes.

use std::io;

use rustls::{AlertDescription, CertificateError, Connection, Error as TlsError};
use tokio::net::TcpStream;

use super::channel::Socket;

/// Reason why a handshake failed. A failed handshake creates no channel.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The connection ended or broke.
    #[error("the connection ended in the handshake: {0}")]
    Io(#[from] io::Error),
    /// The handshake is too long. The amount of data is limited, because a peer that is not
    /// authenticated yet may be any machine.
    #[error("a handshake of more than {0} bytes")]
    TooLong(usize),
    /// One side does not accept the certificate or parameters of the other, or does not speak TLS.
    #[error("{}", explain(.0))]
    Refused(#[source] TlsError),
}

/// Performs the handshake over `stream`. Reads at most `bytes_max` bytes.
///
/// # Errors
/// Any [`HandshakeError`]. The other side receives a TLS alert, if it speaks TLS.
pub async fn handshake(
    stream: &TcpStream,
    mut connection: Connection,
    bytes_max: usize,
) -> Result<Connection, HandshakeError> {
    let mut read = 0;
    while connection.is_handshaking() || connection.wants_write() {
        if connection.wants_write() {
            write(stream, &mut connection).await?;
            continue;
        }
        stream.readable().await?;
        match connection.read_tls(&mut Socket(stream)) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(count) => read += count,
            Err(error) if is_transient(&error) => continue,
            Err(error) => return Err(error.into()),
        }
        if let Err(error) = connection.process_new_packets() {
            // Sends the alert.
            let _ = connection.write_tls(&mut Socket(stream));
            return Err(HandshakeError::Refused(error));
        }
        // Data after the handshake does not belong to it.
        if connection.is_handshaking() && read > bytes_max {
            return Err(HandshakeError::TooLong(bytes_max));
        }
    }
    Ok(connection)
}

async fn write(stream: &TcpStream, connection: &mut Connection) -> io::Result<()> {
    stream.writable().await?;
    match connection.write_tls(&mut Socket(stream)) {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) if !is_transient(&error) => Err(error),
        _ => Ok(()),
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Explains to the operator why a handshake failed, and how to correct this.
fn explain(error: &TlsError) -> String {
    let reason = match error {
        TlsError::InvalidMessage(_) => "what answers there does not speak TLS",
        TlsError::InvalidCertificate(refusal) => of_certificate(refusal),
        TlsError::NoCertificatesPresented => "the other side shows no certificate",
        TlsError::AlertReceived(alert) => of_alert(*alert),
        _ => "TLS failed",
    };
    format!("{reason} ({error})")
}

fn of_certificate(refusal: &CertificateError) -> &'static str {
    match refusal {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate was not signed by the authority that is trusted here"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is that of another replica or another cluster"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired: make a new one, as with `leasehold cert`; or a clock is wrong"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: a clock is wrong, here or where it was made"
        }
        _ => "its certificate is not accepted",
    }
}

fn of_alert(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "the other side does not trust the authority that signed the certificate shown"
        }
        AlertDescription::CertificateRequired => "the other side asks for a certificate",
        AlertDescription::CertificateExpired => {
            "the other side takes the certificate shown for expired"
        }
        _ => "the other side ended the handshake",
    }
}
