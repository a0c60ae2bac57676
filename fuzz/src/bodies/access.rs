//! Bodies for the file of tokens, and for the requests that a token's rights allow.

use std::path::Path;

use bytes::Bytes;
use leasehold_node::access::TokenTable;
use leasehold_node::access::rights::{Keys, Rights, check};
use leasehold_node::access::tokens::{parse, write};
use leasehold_wire::command::Op;
use leasehold_wire::request::Body;
use leasehold_wire::{DecodedRequest, Hello, PROBE_KEY, Txn, decode_request};

use super::decode_round_trip;
use crate::memory;

/// Maximum memory for each byte of a TOML file, in bytes. The limit is the same for all bodies that
/// read TOML.
const TOML_PER_BYTE: usize = 512;
/// Number of prefixes that a token may read. In the input, these prefixes come before the request.
const PREFIXES: usize = 2;

/// Decodes a file of tokens. Asserts that the result is the same after it is written and read
/// again.
pub fn tokens(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let file = Path::new("/etc/leasehold/tokens.toml");
    let read = memory::within(text.len(), TOML_PER_BYTE, || parse(&text, file));
    let entries = match read {
        Ok(entries) => entries,
        Err(error) => return assert!(error.to_string().contains("tokens.toml")),
    };
    let written = write(&entries);
    let again = parse(&written, file);
    let again = again.unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(again, entries, "{written}");
    let table = TokenTable::new(&entries);
    assert_eq!(table, TokenTable::new(&again));
    assert!(table.in_force(i64::MAX) <= entries.len());
}

/// Decodes two prefixes, and then a greeting or a request. In the input, the length of each prefix
/// precedes the prefix. A token may read keys with these prefixes. Asserts that the token's rights
/// are correct for each key or range of the request.
pub fn rights(input: &[u8]) {
    let mut rest = input;
    let mut prefixes: Vec<&[u8]> = Vec::new();
    for _ in 0..PREFIXES {
        let Some((length, after)) = rest.split_first() else {
            return;
        };
        let length = usize::from(*length).min(after.len());
        let (prefix, after) = after.split_at(length);
        prefixes.push(prefix);
        rest = after;
    }
    if let Some(hello) = decode_round_trip::<Hello>(rest, 64) {
        let token = if hello.token.is_empty() {
            ""
        } else {
            "another"
        };
        let other = Hello {
            token: token.into(),
            ..hello.clone()
        };
        assert_eq!(
            format!("{hello:?}"),
            format!("{other:?}"),
            "a token is not shown"
        );
    }
    let Ok(DecodedRequest::Request(request)) = decode_request(rest.to_vec().into()) else {
        return;
    };
    let Some(body) = request.body else { return };
    let bytes = prefixes.iter().map(|prefix| prefix.to_vec().into());
    let keys = Keys::with_prefixes(bytes);
    let reader = Rights {
        read: keys.clone(),
        ..Rights::default()
    };
    let found = check(&reader, &body);
    let everyone = Rights {
        read: Keys::with_prefixes([Default::default()]),
        write: Keys::with_prefixes([Default::default()]),
        admin: true,
    };
    let complete = match &body {
        Body::Command(command) => match &command.op {
            None => false,
            Some(Op::Txn(txn)) => is_complete(txn),
            Some(_) => true,
        },
        _ => true,
    };
    assert_eq!(check(&everyone, &body).is_ok(), complete);
    let covers = |key: &[u8]| prefixes.iter().any(|prefix| key.starts_with(prefix));
    let Body::Command(command) = &body else {
        return;
    };
    match &command.op {
        Some(Op::Get(_) | Op::MultiGet(_))
            if command.keys().count() == 1 && command.keys().all(is_reserved) =>
        {
            assert!(found.is_ok());
        }
        Some(Op::Get(_) | Op::MultiGet(_)) => {
            assert_eq!(found.is_ok(), command.keys().all(|key| covers(key)));
        }
        Some(Op::Scan(scan)) if found.is_ok() => {
            // The first keys of the range, and one that is close to its end.
            let first = if scan.from.is_empty() {
                &[0][..]
            } else {
                &scan.from
            };
            let mut last = scan.to.to_vec();
            let below = last.pop().filter(|byte| *byte > 0);
            last.extend(below.map(|byte| byte - 1));
            let inside = |key: &[u8]| key >= first && (scan.to.is_empty() || key < &scan.to[..]);
            assert!(covers(first));
            for key in [&[first, &[0]].concat(), &[&last[..], &[0xFF; 9]].concat()] {
                assert!(covers(key) || !inside(key), "{key:?} in {scan:?}");
            }
        }
        Some(Op::Scan(_)) => {}
        Some(Op::MultiPut(put)) => assert_eq!(found.is_ok(), put.entries.is_empty()),
        Some(Op::Txn(txn)) => {
            let writes = txn.written_keys().next().is_some();
            let allowed = is_complete(txn) && !writes && txn.keys().all(|key| covers(key));
            assert_eq!(found.is_ok(), allowed, "{found:?}");
            if let Err(error) = found {
                assert!(
                    error.message.starts_with("txn."),
                    "{error:?} names the part"
                );
            }
        }
        _ => assert!(found.is_err(), "writes are refused"),
    }
}

/// Returns true if every entry of the lists of the transaction has an operation.
fn is_complete(txn: &Txn) -> bool {
    let mut listed = txn.then.iter().chain(&txn.or_else);
    listed.all(|it| it.op.is_some())
}

/// Returns true if the key is reserved for probes. A client sends a probe to find a replica that
/// responds.
fn is_reserved(key: &Bytes) -> bool {
    *key == PROBE_KEY
}

pub mod seeds {
    use bytes::Bytes;
    use leasehold_node::access::tokens::Digest;
    use leasehold_wire::command::Op;
    use leasehold_wire::request::Body;
    use leasehold_wire::{Hello, MoveRequest, Request, StatusRequest, hello};
    use prost::Message as _;

    use crate::bodies::samples;

    pub fn tokens() -> Vec<Vec<u8>> {
        let digest = Digest::of(b"lh_token");
        let full = format!(
            "[[token]]\nname = \"app1\"\nsha256 = \"{digest}\"\nexpires = 2027-01-01\n\
             rights = [{{ prefix = \"users/\", may = \"read\" }}, {{ prefix = '', may = 'write' }}]\n\
             admin = true\n[[token]]\nname = \"anonymous\"\nexpires = 2027-01-01T12:00:00.5-01:30\n"
        );
        let without = "[[token]]\nname = \"app1\"\n".to_owned();
        let inline = format!("token = [{{ name = 'a', sha256 = '{digest}' }}]\n");
        [full, without, inline, String::new()]
            .map(String::into_bytes)
            .to_vec()
    }

    pub fn rights() -> Vec<Vec<u8>> {
        let ops = samples::commands().into_iter().map(Body::Command);
        let scans = [
            ("user/", "user0", 1),
            ("user/", "", 2),
            ("", "user/", 3),
            ("user/b", "user/a", 4),
        ];
        let scans = scans.map(|(from, to, limit)| Body::Command(Op::scan(from, to, limit).into()));
        let others = [
            Body::Status(StatusRequest {
                holders: true,
                key: "user/7".into(),
                leases: true,
                demand: true,
            }),
            Body::Move(MoveRequest { to: "B".into() }),
        ];
        let requests = ops.chain(scans).chain(others);
        let requests = requests.map(|body| Request::new(7, Some(body)).encode_to_vec());
        let greeting = Hello {
            token: Bytes::from("lh_0123456789abcdef"),
            ..hello(Some("cluster"))
        };
        let messages = requests.chain([greeting.encode_to_vec()]);
        let prefixes: [&[u8]; 3] = [b"\x05user/\x00", b"\x01k\x02\xFF\xFF", b"\x01g\x01h"];
        let after = |message: Vec<u8>| prefixes.map(|prefixes| [prefixes, &message].concat());
        messages.flat_map(after).collect()
    }
}
