//! Connections between clients and replicas: frames on sockets, TLS, and secrets in files.

mod framing;
mod reach;
mod secret;
pub mod tls;

pub use framing::{FrameReader, FrameWriter, MessageCodec};
pub use reach::is_loopback;
pub use secret::{PrivateFileError, Secret, read_private};
