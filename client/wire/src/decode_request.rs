//! Decoding of requests for listeners. A request that no client may send is refused before much
//! memory or time is spent on it. An empty entry takes two bytes in a frame and 64 in memory, and a
//! frame may contain two million entries. Repeated fields inside an entry take no memory, but a
//! frame full of them takes 20 to 30 ms to decode.

use std::ops::Range;

use bytes::{Buf, Bytes};
use prost::encoding::{self, DecodeContext, WireType};
use prost::{DecodeError, Message};

use super::command::Op;
use super::request::Body;
use super::validate::{too_many, too_many_fields, too_many_holders, too_many_txn_parts};
use super::{COMMAND_PARTS_MAX, Command, Error, NODES_MAX, Request};

/// A decoded request. All its parts are present and well-formed. The command of the request may
/// still be unacceptable: [`validate`](fn@super::validate) must check it.
#[derive(Clone, Debug, PartialEq)]
pub enum DecodedRequest {
    /// The decoded request.
    Request(Request),
    /// The command has too many parts, so it was not decoded.
    Refused {
        /// Id of the request.
        id: u64,
        /// Error for the client, ready to be sent.
        error: Error,
    },
}

/// Frames shorter than this number of bytes cannot have too many parts, so their parts are not
/// counted.
const COUNTED_FROM_BYTES: usize = 2 * COMMAND_PARTS_MAX;

/// Maximum number of fields of a request, including the fields of all messages inside it. It allows
/// three fields for each part (the part itself and two fields in it), and 64 other fields.
const FIELDS_MAX: usize = 3 * COMMAND_PARTS_MAX + 64;
/// Maximum number of fields of a request with a transaction. A comparison of versions has five
/// fields: the comparison itself, its key, the version, and two numbers.
const TXN_FIELDS_MAX: usize = FIELDS_MAX + 2 * COMMAND_PARTS_MAX;

const REQUEST_ID: u32 = 1;
const REQUEST_COMMAND: u32 = 2;
const REQUEST_STATUS: u32 = 3;
const REQUEST_MOVE: u32 = 4;
const REQUEST_LEASE: u32 = 6;
/// Field numbers of the operations in `Command`.
const COMMAND_OPERATIONS: Range<u32> = 4..14;
/// Field numbers of `Txn`: its comparisons, and the lists of its operations.
const TXN_COMPARISONS: u32 = 1;
const TXN_OPERATIONS: Range<u32> = 2..4;
/// Field number of the only message in `Comparison`.
const COMPARED_VERSION: u32 = 2;
/// Field number of `Txn` in `Command`.
const TXN: u32 = 13;
/// Operations of `TxnOp` that name fields, and the field number of these fields: `PutFields` and
/// `DeleteFields`.
const WITH_FIELDS: (Range<u32>, u32) = (4..6, 2);
/// Message fields inside operations: the version that a compare-and-swap expects, the fields of a
/// PutFields, and the entries of a MultiPut. Each pair is the field number of the operation, and
/// the field number inside the operation.
const MESSAGES: [(u32, u32); 3] = [(7, 3), (8, 2), (10, 1)];
/// Field number of the list of holders in a change of leases.
const LEASE_HOLDERS: u32 = 4;
/// Operations of `Command` that have parts. Each entry is the number of the operation, the number
/// of the repeated field, and a name.
const OPERATIONS: [(u32, u32, &str); 3] = [
    (8, 2, "put_fields.fields"),
    (9, 1, "multi_get.keys"),
    (10, 1, "multi_put.entries"),
];

/// Decodes the request in a frame. Uses memory in proportion to the frame or to
/// [`COMMAND_PARTS_MAX`] parts, whichever is less.
///
/// # Errors
/// Returns an error if the frame holds no request.
pub fn decode_request(frame: Bytes) -> Result<DecodedRequest, DecodeError> {
    if let Some((id, hint, at)) = get_in(&frame) {
        let mut key = frame;
        key.truncate(at.end);
        key.advance(at.start);
        let body = Some(Body::Command(Command::from(Op::get(key))));
        return Ok(DecodedRequest::Request(Request { id, body, hint }));
    }
    if frame.len() >= COUNTED_FROM_BYTES
        && let Some(error) = refusal(&frame)?
    {
        return Ok(DecodedRequest::Refused {
            id: request_id(frame)?,
            error,
        });
    }
    Ok(DecodedRequest::Request(Request::decode(frame)?))
}

/// Tags between a request's id and the key of a Get. These are the tags of three fields: the
/// command, the Get in the command, and the key in the Get. Each of these fields extends to the end
/// of the command.
const GET_TAGS: [u8; 3] = [0x12, 0x22, 0x0A];
/// Bytes at the end of a request that asks for a hint.
const HINT: [u8; 2] = [0x28, 1];

/// Decodes a Get without the general decoder. Returns the request's id, whether the request asks
/// for a hint, and the range of the key in the frame. Returns `None` if the frame does not contain
/// a Get as clients encode it.
fn get_in(frame: &[u8]) -> Option<(u64, bool, Range<usize>)> {
    let mut rest = frame;
    let id = tagged(&mut rest, 0x08)?;
    let without = rest.strip_suffix(&HINT);
    let found = key_bytes(rest).map(|bytes| (false, bytes, frame.len()));
    let hinted = || Some((true, key_bytes(without?)?, frame.len() - HINT.len()));
    let (hint, bytes, end) = found.or_else(hinted)?;
    Some((id, hint, end - bytes..end))
}

/// Returns the length of the key at the end of a command, if the command consists of only a Get.
fn key_bytes(command: &[u8]) -> Option<usize> {
    let mut rest = command;
    for tag in GET_TAGS {
        if tagged(&mut rest, tag)? != rest.len() as u64 {
            return None;
        }
    }
    Some(rest.len())
}

/// If the next byte of `rest` is `tag`, removes this byte and the number after it, and returns the
/// number.
fn tagged(rest: &mut &[u8], tag: u8) -> Option<u64> {
    let (first, mut number) = rest.split_first()?;
    if *first != tag {
        return None;
    }
    let decoded = encoding::decode_varint(&mut number).ok()?;
    *rest = number;
    Some(decoded)
}

/// Returns the refusal of a request that has too many parts or fields; `None` for other requests.
/// An operation may be encoded in several pieces. In this case, the parts of all pieces are added
/// up. Superfluous fields are also counted, because the decoder would merge or skip each of them.
fn refusal(request: &[u8]) -> Result<Option<Error>, DecodeError> {
    let mut count = PartCounter {
        most: FIELDS_MAX,
        left: FIELDS_MAX + 1,
        parts: [0; OPERATIONS.len()],
        txn_parts: 0,
        holders: 0,
    };
    count.request(request)?;
    Ok(count.refusal())
}

/// Counter of the parts and fields of a request.
struct PartCounter {
    /// Maximum number of fields of this request.
    most: usize,
    /// Number of fields that may still be counted.
    left: usize,
    /// Number of parts counted so far, for each of [`OPERATIONS`].
    parts: [usize; OPERATIONS.len()],
    /// Number of comparisons, operations and fields of transactions.
    txn_parts: usize,
    holders: usize,
}

impl PartCounter {
    fn request(&mut self, request: &[u8]) -> Result<(), DecodeError> {
        self.each(request, |count, field, body| match field {
            REQUEST_COMMAND => count.command(body),
            REQUEST_LEASE => count.lease(body),
            REQUEST_STATUS | REQUEST_MOVE => count.all(body),
            _ => Ok(()),
        })
    }

    fn command(&mut self, command: &[u8]) -> Result<(), DecodeError> {
        self.each(command, |count, field, contents| {
            if COMMAND_OPERATIONS.contains(&field) {
                count.operation(field, contents)
            } else {
                Ok(())
            }
        })
    }

    fn operation(&mut self, operation: u32, contents: &[u8]) -> Result<(), DecodeError> {
        if operation == TXN {
            return self.txn(contents);
        }
        self.each(contents, |count, field, inner| {
            let is_parts = |(number, part, _)| (number, part) == (operation, field);
            if let Some(index) = OPERATIONS.into_iter().position(is_parts) {
                count.parts[index] += 1;
            }
            if MESSAGES.contains(&(operation, field)) {
                count.all(inner)
            } else {
                Ok(())
            }
        })
    }

    fn txn(&mut self, txn: &[u8]) -> Result<(), DecodeError> {
        self.left += TXN_FIELDS_MAX - self.most;
        self.most = TXN_FIELDS_MAX;
        self.each(txn, |count, field, part| {
            if field == TXN_COMPARISONS {
                count.txn_parts += 1;
                count.each(part, |count, field, condition| match field {
                    COMPARED_VERSION => count.all(condition),
                    _ => Ok(()),
                })
            } else if TXN_OPERATIONS.contains(&field) {
                count.txn_parts += 1;
                count.each(part, PartCounter::listed)
            } else {
                Ok(())
            }
        })
    }

    /// Counts the fields of an operation of a transaction.
    fn listed(&mut self, operation: u32, contents: &[u8]) -> Result<(), DecodeError> {
        let (operations, fields) = WITH_FIELDS;
        self.each(contents, |count, field, inner| {
            if !operations.contains(&operation) || field != fields {
                return Ok(());
            }
            count.txn_parts += 1;
            if operation == operations.start {
                count.all(inner)
            } else {
                Ok(())
            }
        })
    }

    fn lease(&mut self, lease: &[u8]) -> Result<(), DecodeError> {
        self.each(lease, |count, field, _| {
            count.holders += usize::from(field == LEASE_HOLDERS);
            Ok(())
        })
    }

    /// Counts the fields of a message that contains no further messages.
    fn all(&mut self, message: &[u8]) -> Result<(), DecodeError> {
        self.each(message, |_, _, _| Ok(()))
    }

    /// Calls `visit` with the number and the contents of every field that is encoded with a length.
    /// Skips other fields of the message. Stops when the maximum number of fields is reached.
    fn each(
        &mut self,
        mut message: &[u8],
        mut visit: impl FnMut(&mut PartCounter, u32, &[u8]) -> Result<(), DecodeError>,
    ) -> Result<(), DecodeError> {
        while !message.is_empty() && self.left > 0 {
            self.left -= 1;
            let (field, wire_type) = encoding::decode_key(&mut message)?;
            if wire_type == WireType::StartGroup {
                self.left = 0; // no request has groups, and a group may hold any number of fields
                return Ok(());
            }
            let mut contents = message;
            encoding::skip_field(wire_type, field, &mut message, DecodeContext::default())?;
            if wire_type == WireType::LengthDelimited {
                contents = &contents[..contents.len() - message.len()];
                encoding::decode_varint(&mut contents)?;
                visit(self, field, contents)?;
            }
        }
        Ok(())
    }

    fn refusal(&self) -> Option<Error> {
        if self.holders > NODES_MAX {
            return Some(too_many_holders(self.holders));
        }
        let mut found = self.parts.iter().zip(OPERATIONS);
        let above = found.find(|(count, _)| **count > COMMAND_PARTS_MAX);
        let operation =
            above.map(|(&count, (.., field))| too_many(field, count, COMMAND_PARTS_MAX));
        let txn = (self.txn_parts > COMMAND_PARTS_MAX)
            .then(|| too_many_txn_parts(self.txn_parts, COMMAND_PARTS_MAX));
        let operation = operation.or(txn);
        operation.or_else(|| (self.left == 0).then(|| too_many_fields(self.most)))
    }
}

/// Returns the id of a request that is refused; 0 if the first field is not the id. Clients encode
/// the id first. Only the first field is examined, because there may be millions of fields.
fn request_id(mut request: Bytes) -> Result<u64, DecodeError> {
    let (field, wire_type) = encoding::decode_key(&mut request)?;
    let mut id = 0;
    if field == REQUEST_ID {
        encoding::uint64::merge(wire_type, &mut id, &mut request, DecodeContext::default())?;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Op;
    use crate::comparison::Condition;
    use crate::request::Body;
    use crate::txn_op::Op as Operation;
    use crate::{
        Command, Comparison, FRAME_BYTES_MAX, Field, Get, KeyValue, PutFields, Txn,
        VALUE_BYTES_MAX, Version, validate_body,
    };

    fn request(op: Op) -> Request {
        Request::new(7, Some(Body::Command(Command::session(1, 1, 1, op))))
    }

    fn operations(parts: usize, bytes: usize) -> [Op; 3] {
        let key = Bytes::from(vec![b'k'; bytes]);
        let entry = KeyValue {
            key: key.clone(),
            ..KeyValue::default()
        };
        let field = Field {
            name: key.clone(),
            ..Field::default()
        };
        [
            Op::put_fields("k", vec![field; parts]),
            Op::multi_get(vec![key; parts]),
            Op::multi_put(vec![entry; parts]),
        ]
    }

    /// Returns transactions with this number of parts: comparisons, operations in either list, and
    /// fields of one operation. Comparisons of versions have the most fields.
    fn txns(parts: usize) -> [Op; 6] {
        let key = || Bytes::from("k");
        let version = Version { slot: 7, index: 3 };
        let comparison = Comparison {
            key: key(),
            condition: Some(Condition::Version(version)),
        };
        let field = Field {
            name: "f".into(),
            value: "v".into(),
        };
        let get = || Operation::Get(Get { key: key() });
        let put_fields = |count| {
            Operation::PutFields(PutFields {
                key: key(),
                fields: vec![field.clone(); count],
            })
        };
        let delete_fields = |count| Operation::delete_fields(key(), vec![key(); count]);
        let half = parts / 2;
        let txn = |compared, then: Vec<Operation>, or_else: Vec<Operation>| {
            Op::txn(Txn {
                comparisons: vec![comparison.clone(); compared],
                then: then.into_iter().map(Into::into).collect(),
                or_else: or_else.into_iter().map(Into::into).collect(),
                keep_going: true,
            })
        };
        [
            txn(parts - 1, vec![get()], vec![]),
            txn(0, vec![get(); parts], vec![]),
            txn(0, vec![], vec![Operation::append(key(), "v"); parts]),
            txn(1, vec![], vec![put_fields(parts - 2)]),
            txn(1, vec![delete_fields(parts - 2)], vec![]),
            txn(
                half - 3,
                vec![get(), put_fields(1)],
                vec![delete_fields(parts - half - 1)],
            ),
        ]
    }

    #[test]
    fn the_limit_itself_is_decoded_and_one_more_is_refused_in_the_same_words() {
        let all = |parts| operations(parts, 1).into_iter().chain(txns(parts));
        for op in all(COMMAND_PARTS_MAX - 1).chain(all(COMMAND_PARTS_MAX)) {
            let whole = request(op);
            let decoded = decode_request(whole.encode_to_vec().into());
            assert_eq!(decoded, Ok(DecodedRequest::Request(whole)));
        }
        for op in all(COMMAND_PARTS_MAX + 1) {
            let whole = request(op.clone());
            let Ok(DecodedRequest::Refused { id: 7, error }) =
                decode_request(whole.encode_to_vec().into())
            else {
                panic!("more parts than a command may have");
            };
            let body = Body::Command(Command::session(1, 1, 1, op));
            assert_eq!(Err(error), validate_body(Some(&body)));
        }
    }

    /// The decoder for Gets and the general decoder give the same result. This is also true for a
    /// frame that is cut off, and for a frame with one changed byte.
    #[test]
    fn a_get_is_decoded_as_by_the_general_decoder() {
        let both = |frame: &[u8]| {
            let general = Request::decode(frame).map(DecodedRequest::Request);
            let found = decode_request(Bytes::copy_from_slice(frame));
            assert_eq!(found.is_ok(), general.is_ok(), "{frame:x?}");
            if let (Ok(found), Ok(general)) = (found, general) {
                assert_eq!(found, general, "{frame:x?}");
            }
        };
        for (id, bytes) in [(0, 3), (1, 0), (127, 1), (128, 23), (u64::MAX, 140)] {
            let op = Op::get(vec![b'k'; bytes]);
            let body = Some(Body::Command(op.into()));
            let hint = bytes != 1;
            let frame = Request { id, body, hint }.encode_to_vec();
            assert_eq!(get_in(&frame).is_some(), id > 0 && bytes > 0, "{frame:x?}");
            for at in 0..frame.len() {
                both(&frame[..at]);
                for byte in 0..=u8::MAX {
                    let mut other = frame.clone();
                    other[at] = byte;
                    both(&other);
                }
            }
        }
    }

    #[test]
    fn a_frame_full_of_empty_parts_is_refused() {
        for op in operations(FRAME_BYTES_MAX / 2 - 20, 0) {
            let decoded = decode_request(request(op).encode_to_vec().into());
            assert!(matches!(decoded, Ok(DecodedRequest::Refused { .. })));
        }
    }

    /// Tests frames that hold millions of empty comparisons, operations, fields or names of fields.
    #[test]
    fn a_frame_full_of_empty_parts_of_a_transaction_is_refused() {
        const TAG: u8 = 0x6A;
        let full = |tag: u8| [tag, 0].repeat(FRAME_BYTES_MAX / 2 - 20);
        let [comparisons, then, or_else] = [0x0A, 0x12, 0x1A].map(full);
        // Values and unknown fields of one put, which are fields but no parts.
        let put = wrapped(0x12, wrapped(0x12, full(0x12)));
        let names = wrapped(0x12, wrapped(0x2A, full(0x12)));
        let fields = wrapped(0x1A, wrapped(0x22, full(0x12)));
        let of_field = wrapped(0x12, wrapped(0x22, wrapped(0x12, full(0x0A))));
        let version = wrapped(
            0x0A,
            wrapped(0x12, [0x08, 1].repeat(FRAME_BYTES_MAX / 2 - 20)),
        );
        for (contents, is_parts) in [
            (comparisons, true),
            (then, true),
            (or_else, true),
            (names, true),
            (fields, true),
            (put, false),
            (of_field, false),
            (version, false),
            // Each of several transactions that the decoder would merge into one.
            (full(0x7A), false),
        ] {
            let frame = request_of(TAG, contents);
            assert!(frame.len() <= FRAME_BYTES_MAX);
            let Ok(DecodedRequest::Refused { id: 7, error }) = decode_request(frame.into()) else {
                panic!("it is decoded");
            };
            let words = if is_parts {
                "txn has"
            } else {
                "request has more"
            };
            assert!(error.message.starts_with(words), "{error:?}");
        }
    }

    #[test]
    fn pieces_of_one_transaction_add_up() {
        let [.., half] = txns(COMMAND_PARTS_MAX / 2 + 1);
        let half = request(half).encode_to_vec();
        let decoded = decode_request([half.clone(), half].concat().into());
        let Ok(DecodedRequest::Refused { id: 7, error }) = decoded else {
            panic!("it is decoded");
        };
        assert!(error.message.starts_with("txn has 1026 "), "{error:?}");
    }

    #[test]
    fn a_change_of_leases_for_millions_of_holders_is_refused() {
        let lease = crate::LeaseRequest {
            holders: vec![String::new(); COMMAND_PARTS_MAX + 1],
            ..Default::default()
        };
        let request = Request {
            id: 7,
            body: Some(Body::Lease(lease)),
            ..Default::default()
        };
        let received = decode_request(request.encode_to_vec().into());
        let Ok(DecodedRequest::Refused { id: 7, error }) = received else {
            panic!("not refused: {received:?}");
        };
        assert!(error.message.contains("lease.holders"), "{error:?}");
    }

    #[test]
    fn pieces_of_one_operation_add_up() {
        let [_, half, _] = operations(COMMAND_PARTS_MAX / 2 + 1, 1);
        let half = request(half).encode_to_vec();
        let whole = [half.clone(), half].concat();
        let decoded = decode_request(whole.into());
        assert!(matches!(decoded, Ok(DecodedRequest::Refused { .. })));
    }

    fn is_refused(frame: Vec<u8>) {
        assert!(frame.len() <= FRAME_BYTES_MAX);
        let decoded = decode_request(frame.into());
        let Ok(DecodedRequest::Refused { id: 7, error }) = decoded else {
            panic!("it is decoded");
        };
        assert!(error.message.contains("request has more"), "{error:?}");
    }

    /// Returns frames full of fields of two bytes each. Such frames take the longest to decode. The
    /// fields of a frame belong to a message, belong to a string, or are unknown.
    fn empty_fields() -> [Vec<u8>; 4] {
        let full = |field: [u8; 2]| field.repeat(FRAME_BYTES_MAX / 2 - 20);
        [[0x0A, 0], [0x12, 0], [0x7A, 0], [0x78, 1]].map(full)
    }

    #[test]
    fn a_frame_full_of_empty_fields_is_refused() {
        for full in empty_fields() {
            // A put with its key repeated many times.
            is_refused(request_of(0x2A, full));
        }
        // A command repeated many times. The first kind of field would be the request's number.
        for full in &empty_fields()[1..] {
            is_refused([&[8, 7], &full[..]].concat());
        }
    }

    #[test]
    fn the_id_of_a_refused_request_is_what_comes_first() {
        let [_, full, ..] = empty_fields();
        let refused = |frame: Vec<u8>| match decode_request(frame.into()) {
            Ok(DecodedRequest::Refused { id, .. }) => id,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused([&[8, 7], &full[..]].concat()), 7);
        assert_eq!(refused([&full[..], &[8, 7]].concat()), 0);
    }

    /// No valid request has groups. Groups are refused because a group may hold any number of
    /// fields.
    #[test]
    fn groups_are_refused() {
        let group = |number: u8| [number << 3 | 3, 0x78, 1, number << 3 | 4];
        let in_request = group(15).repeat(FRAME_BYTES_MAX / 4 - 10);
        is_refused([&[8, 7], &in_request[..]].concat());
        let one_of_many = [
            &[15 << 3 | 3][..],
            &[0x78, 1].repeat(20_000),
            &[15 << 3 | 4],
        ]
        .concat();
        is_refused([&[8, 7], &one_of_many[..]].concat());
        is_refused(request_of(0x2A, one_of_many));
    }

    #[test]
    fn fields_inside_messages_count() {
        for full in empty_fields() {
            for tag in [0x1A, 0x22, 0x32] {
                // Requests for a status, a move, and a change of leases.
                is_refused([vec![8, 7], wrapped(tag, full.clone())].concat());
            }
            is_refused(request_of(0x3A, wrapped(0x1A, full.clone())));
            is_refused(request_of(0x42, wrapped(0x12, full.clone())));
            is_refused(request_of(0x52, wrapped(0x0A, full.clone())));
            // Each of many entries has a few fields too many.
            let entry = wrapped(0x0A, full[..8].to_vec());
            is_refused(request_of(0x52, entry.repeat(COMMAND_PARTS_MAX)));
        }
    }

    #[test]
    fn bytes_of_keys_and_values_are_no_fields() {
        let full = Bytes::from([0x0A, 0].repeat(VALUE_BYTES_MAX / 2));
        let field = Field {
            name: "f".into(),
            value: full.clone(),
        };
        let entry = KeyValue {
            key: "k".into(),
            value: full.clone(),
        };
        let comparison = Comparison {
            key: "k".into(),
            condition: Some(Condition::AtMost(full.clone())),
        };
        let txn = Txn {
            comparisons: vec![comparison],
            then: vec![Operation::append("k", full.clone()).into()],
            or_else: vec![Operation::delete_fields("k", vec![full.clone()]).into()],
            keep_going: false,
        };
        for op in [
            Op::txn(txn),
            Op::put("k", full.clone()),
            Op::get(full.clone()),
            Op::cas("k", full.clone(), None),
            Op::put_fields("k", vec![field]),
            Op::multi_get(vec![full.clone()]),
            Op::multi_put(vec![entry]),
            Op::scan(full, "", 1),
        ] {
            let whole = request(op);
            let decoded = decode_request(whole.encode_to_vec().into());
            assert_eq!(decoded, Ok(DecodedRequest::Request(whole)));
        }
    }

    /// Encodes a request with one operation. `tag` and `contents` are the operation's tag and
    /// contents.
    fn request_of(tag: u8, contents: Vec<u8>) -> Vec<u8> {
        [vec![8, 7], wrapped(0x12, wrapped(tag, contents))].concat()
    }

    fn wrapped(tag: u8, contents: Vec<u8>) -> Vec<u8> {
        let mut all = vec![tag];
        encoding::encode_varint(contents.len() as u64, &mut all);
        all.extend(contents);
        all
    }

    #[test]
    fn a_long_value_is_no_part() {
        let whole = request(Op::put("k", vec![0; 1 << 20]));
        let decoded = decode_request(whole.encode_to_vec().into());
        assert_eq!(decoded, Ok(DecodedRequest::Request(whole)));
    }
}
