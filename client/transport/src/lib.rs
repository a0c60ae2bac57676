//! Connections between clients and replicas: frames on sockets, TLS, and the loading of files with
//! secrets.

mod framing;
mod halves;
mod reach;
mod secret;
#[cfg(feature = "tls")]
pub mod tls;

pub use framing::{FrameReader, FrameWriter, MessageCodec, is_tls_alert};
pub use halves::{Channel, ClientReadHalf, ClientWriteHalf, split};
pub use reach::is_loopback;
pub use secret::{PrivateFileError, Secret, read_private};
