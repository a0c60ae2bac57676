//! The client protocol: messages generated from `proto/client.proto`, and the limits that every
//! decoder enforces before it allocates.

mod codec;
mod constructors;
mod decode_request;
mod encode_response;
mod questions;
mod txn;
mod validate;

#[allow(missing_docs, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/leasehold.client.rs"));
}
pub use codec::{
    FrameError, decode_greeting, encode_frame, hello, split_frame, split_frame_at_most,
};
pub use decode_request::{DecodedRequest, decode_request};
pub use encode_response::encode_response;
pub use generated::*;
pub use questions::ReadOp;
pub use validate::{
    COMMAND_BYTES_MAX, COMMAND_PARTS_MAX, SCAN_ENTRIES_MAX, TXN_REWRITES_MAX, UNACKNOWLEDGED_MAX,
    validate, validate_body, validate_op, without_txn_place,
};

/// The first field of `Hello`: "LHS" and the protocol's version.
pub const MAGIC: u32 = 0x4C48_5301;
/// Key that clients read to find out whether a replica serves. They read it with a multi-get that
/// names no other key. No client writes this key, and every token may read it.
pub const PROBE_KEY: &str = "\0leasehold client: is anybody there?";
/// Prefix of every token. With this prefix, people can search for tokens in places where no token
/// should be.
pub const TOKEN_MARK: &str = "lh_";
/// Maximum length of a token in a `Hello`, in bytes.
pub const TOKEN_BYTES_MAX: usize = 256;
/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 4 << 10;
/// Maximum length of the name of a cluster, a node, a strategy or a setting of a strategy, in
/// bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Maximum number of nodes of a cluster.
pub const NODES_MAX: usize = 64;
/// Maximum length of a value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a frame, without its length prefix, in bytes. The limit is the same for
/// clients and for replicas.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
