//! Encoder and decoder of batches. The code handles each field by hand, for speed: batches are most
//! of the traffic. The number of commands is checked before memory is allocated for them.

use bytes::{Buf, Bytes, BytesMut};
use leasehold_wire::Command;
use prost::Message as _;
use prost::encoding::{self, DecodeContext, WireType};

use super::check::{CodecResult, at_most, number, present, replica};
use super::proto;
use crate::message::{Batch, Proposal, RequestId};

/// Maximum number of commands in a batch; a decoder refuses a batch with more.
pub const BATCH_COMMANDS_MAX: usize = 1 << 16;

const LOG_TIME: u32 = 1;
const COMMANDS: u32 = 2;
const SESSIONS_MAX: u32 = 3;
const ORIGIN: u32 = 1;
const REQUEST: u32 = 2;
const COMMAND: u32 = 3;

/// Returns the encoded batch. The first call encodes the batch, and later calls share the same
/// bytes.
pub(super) fn encoded(batch: &Batch) -> Bytes {
    batch.encoded.get_or_init(|| encode(batch)).clone()
}

fn encode(batch: &Batch) -> Bytes {
    let commands = batch.commands.iter();
    let capacity: usize = commands
        .map(|proposed| proposed_len(proposed) + 8)
        .sum::<usize>()
        + 16;
    let mut out = BytesMut::with_capacity(capacity);
    if batch.log_time_ms != 0 {
        encoding::uint64::encode(LOG_TIME, &batch.log_time_ms, &mut out);
    }
    if batch.sessions_max != 0 {
        encoding::uint32::encode(SESSIONS_MAX, &batch.sessions_max, &mut out);
    }
    for proposed in &batch.commands {
        encoding::encode_key(COMMANDS, WireType::LengthDelimited, &mut out);
        encoding::encode_varint(proposed_len(proposed) as u64, &mut out);
        encoding::uint32::encode(ORIGIN, &proposed.origin.0.into(), &mut out);
        encoding::fixed64::encode(REQUEST, &proposed.request.0, &mut out);
        encoding::message::encode(COMMAND, &proposed.command, &mut out);
    }
    out.freeze()
}

fn proposed_len(proposed: &Proposal) -> usize {
    encoding::uint32::encoded_len(ORIGIN, &proposed.origin.0.into())
        + encoding::fixed64::encoded_len(REQUEST, &proposed.request.0)
        + encoding::message::encoded_len(COMMAND, &proposed.command)
}

pub(super) fn decode(encoded: Bytes) -> CodecResult<Batch> {
    let mut batch = Batch::default();
    let mut rest = encoded.clone();
    while rest.has_remaining() {
        let (field, wire_type) = encoding::decode_key(&mut rest)?;
        let context = DecodeContext::default();
        match field {
            LOG_TIME => {
                encoding::uint64::merge(wire_type, &mut batch.log_time_ms, &mut rest, context)?;
            }
            SESSIONS_MAX => {
                encoding::uint32::merge(wire_type, &mut batch.sessions_max, &mut rest, context)?;
            }
            COMMANDS => {
                let mut one = Bytes::new();
                encoding::bytes::merge(wire_type, &mut one, &mut rest, context)?;
                let count = batch.commands.len() as u64 + 1;
                at_most("batch.commands", count, BATCH_COMMANDS_MAX as u64)?;
                batch.commands.push(proposed(one)?);
            }
            _ => encoding::skip_field(wire_type, field, &mut rest, context)?,
        }
    }
    number("batch.log_time_ms", batch.log_time_ms)?;
    batch.encoded = encoded.into();
    Ok(batch)
}

fn proposed(encoded: Bytes) -> CodecResult<Proposal> {
    let proposed = proto::Proposed::decode(encoded)?;
    Ok(Proposal {
        origin: replica("proposed.origin", proposed.origin)?,
        request: RequestId(proposed.request),
        command: command("proposed.command", proposed.command)?,
    })
}

pub(super) fn command(field: &'static str, found: Option<Command>) -> CodecResult<Command> {
    let found = present(field, found)?;
    present(field, found.op.as_ref())?;
    Ok(found)
}
