//! Fast encoding of responses for listeners. Most responses contain the value that a read found.
//! Such responses are encoded here, with each length computed only once. All other responses are
//! encoded like any other message.

use bytes::BytesMut;
use prost::encoding::{encode_varint, encoded_len_varint};

use super::{
    FRAME_BYTES_MAX, FrameError, Hint, Outcome, Response, Value, Version, encode_frame, outcome,
};

/// Maximum number of bytes before the value in a response. The same maximum holds for the bytes
/// after the value.
const AROUND_BYTES: usize = 64;

const RESPONSE_ID: u8 = 0x08;
const RESPONSE_PATH: u8 = 0x10;
const RESPONSE_OUTCOME: u8 = 0x1A;
const OUTCOME_VALUE: u8 = 0x12;
const VALUE_VALUE: u8 = 0x0A;
const VALUE_VERSION: u8 = 0x12;
const VERSION_SLOT: u8 = 0x08;
const VERSION_INDEX: u8 = 0x10;
const RESPONSE_HINT: u8 = 0x2A;
const HINT_HOLDERS: u8 = 0x08;
const HINT_LEADER: u8 = 0x10;
const HINT_LISTED: u8 = 0x18;

/// Appends the frame of a response to `buffer`. The bytes are the same as those that
/// [`encode_frame`] would append.
///
/// # Errors
/// `TooLong`; in this case `buffer` is unchanged.
pub fn encode_response(response: &Response, buffer: &mut BytesMut) -> Result<(), FrameError> {
    if response.status.is_none()
        && let Some(Outcome {
            result: Some(outcome::Result::Value(found)),
        }) = &response.outcome
        && found.value.len() <= FRAME_BYTES_MAX - 2 * AROUND_BYTES
    {
        encode_value_response(response, found, buffer);
        return Ok(());
    }
    encode_frame(response, buffer)
}

/// Encodes a response that contains a value. The innermost message is encoded first, because the
/// length of each message precedes the message.
fn encode_value_response(response: &Response, found: &Value, buffer: &mut BytesMut) {
    let version = found.version.as_ref().map(version).unwrap_or_default();
    let hint = response.hint.as_ref().map(hint).unwrap_or_default();
    let value_bytes = found.value.len() + version.len();
    let mut head = ReverseWriter::default();
    head.number(VALUE_VALUE, found.value.len() as u64);
    for tag in [OUTCOME_VALUE, RESPONSE_OUTCOME] {
        head.tagged(tag, head.len() + value_bytes);
    }
    head.number(RESPONSE_PATH, i64::from(response.path) as u64);
    head.number(RESPONSE_ID, response.id);
    let behind_bytes = value_bytes + hint.len();
    head.prepend(&((head.len() + behind_bytes) as u32).to_be_bytes());
    buffer.reserve(head.len() + behind_bytes);
    for part in [
        head.written(),
        &found.value,
        version.written(),
        hint.written(),
    ] {
        buffer.extend_from_slice(part);
    }
}

/// Encodes the field that holds the version of a value.
fn version(version: &Version) -> ReverseWriter {
    let mut field = ReverseWriter::default();
    field.number(VERSION_INDEX, version.index.into());
    field.number(VERSION_SLOT, version.slot);
    field.tagged(VALUE_VERSION, field.len());
    field
}

/// Encodes the field that holds a hint.
fn hint(hint: &Hint) -> ReverseWriter {
    let mut field = ReverseWriter::default();
    field.number(HINT_LISTED, hint.listed.into());
    field.number(HINT_LEADER, hint.leader.into());
    field.number(HINT_HOLDERS, hint.holders);
    field.tagged(RESPONSE_HINT, field.len());
    field
}

/// Short buffer that is written from the last byte to the first.
struct ReverseWriter {
    bytes: [u8; AROUND_BYTES],
    begin: usize,
}

impl Default for ReverseWriter {
    fn default() -> ReverseWriter {
        ReverseWriter {
            bytes: [0; AROUND_BYTES],
            begin: AROUND_BYTES,
        }
    }
}

impl ReverseWriter {
    fn written(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.begin
    }

    fn prepend(&mut self, bytes: &[u8]) {
        let end = self.begin;
        self.begin -= bytes.len();
        self.bytes[self.begin..end].copy_from_slice(bytes);
    }

    fn varint(&mut self, tag: u8, number: u64) {
        let end = self.begin;
        self.begin -= encoded_len_varint(number);
        encode_varint(number, &mut &mut self.bytes[self.begin..end]);
        self.prepend(&[tag]);
    }

    /// Writes the tag and the length of a field before the `length` bytes of the field. These bytes
    /// must have been written already, because this buffer is written backwards.
    fn tagged(&mut self, tag: u8, length: usize) {
        self.varint(tag, length as u64);
    }

    /// Writes the field of a number. The field is omitted if the number is 0.
    fn number(&mut self, tag: u8, number: u64) {
        if number != 0 {
            self.varint(tag, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Path, StatusReply};

    /// Asserts that both encoders append the same bytes, or refuse in the same way.
    fn same(response: &Response) {
        let (mut found, mut general) = (BytesMut::from("before"), BytesMut::from("before"));
        let refused = encode_response(response, &mut found).is_err();
        assert_eq!(refused, encode_frame(response, &mut general).is_err());
        assert!(found == general, "{:?} {}", response.id, found.len());
    }

    #[test]
    fn a_value_is_written_as_by_the_general_encoder() {
        let numbers = [0, 1, 127, 128, 1 << 32, u64::MAX];
        let versions = numbers.map(|slot| {
            let index = slot as u32;
            Some(Version { slot, index })
        });
        for bytes in [0, 1, 100, 127, 128, 16_383, 16_384, 1 << 20] {
            for version in versions.into_iter().chain([None]) {
                for id in numbers {
                    let value = vec![7; bytes].into();
                    let found = outcome::Result::Value(Value { value, version });
                    let result = Some(found);
                    let mut response = Response::answer(id, Path::Local, Outcome { result });
                    same(&response);
                    response.path = -1;
                    response.hint = Some(Hint {
                        holders: id,
                        leader: id as u32,
                        listed: id > 1,
                    });
                    same(&response);
                }
            }
        }
    }

    #[test]
    fn the_longest_frame_is_the_same_for_both() {
        for short in 0..3 * AROUND_BYTES {
            let value = vec![7; FRAME_BYTES_MAX - short];
            let version = Version { slot: 5, index: 0 };
            let outcome = Outcome::value(value, version);
            same(&Response::answer(1, Path::Local, outcome));
        }
    }

    #[test]
    fn other_answers_are_written_as_any_message() {
        let status = StatusReply::default();
        let mut both = Response::answer(1, Path::Local, Outcome::value("v", Version::default()));
        both.status = Some(Box::new(status.clone()));
        same(&both);
        same(&Response::status(2, status));
        same(&Response::answer(3, Path::Log, Outcome::missing()));
        same(&Response::default());
    }
}
