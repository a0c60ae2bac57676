//! Tests that compare the rights of tokens with an independent description of these rights.

pub(crate) mod matrix;

use std::path::Path;

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::request::Body;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{Error, ErrorCode, MultiPut, PROBE_KEY, StatusRequest, Txn, TxnOp};

use self::matrix::{Oracle, Role, Standing, bodies_about, keys, kind, kinds, scans, words};
use super::AuthState;
use super::rights::{Keys, Rights, check};
use super::table::{Principal, TokenTable};
use super::tokens::{Digest, Expiry, TokenEntry, new_token, parse, write};

const FILE: &str = "/etc/leasehold/tokens.toml";
/// Time at which the tests begin, in seconds since 1970.
const NOW: i64 = 1_800_000_000;

fn parsed(text: &str) -> Vec<TokenEntry> {
    parse(text, Path::new(FILE)).unwrap()
}

fn refusal(text: &str) -> String {
    parse(text, Path::new(FILE)).unwrap_err().to_string()
}

fn rights(role: &Role) -> Rights {
    let keys = |prefixes: &[Bytes]| Keys::with_prefixes(prefixes.to_vec());
    Rights {
        read: keys(&role.read),
        write: keys(&role.write),
        admin: role.admin,
    }
}

/// Asserts that the rights and the oracle decide equally about a request.
fn compare(oracle: &Oracle, role: &Role, rights: &Rights, body: &Body) {
    let found = check(rights, body);
    let expected = oracle.allows(body);
    assert_eq!(
        found.is_ok(),
        expected,
        "{}, {role:?}: {found:?}",
        words(body)
    );
    if let Err(error) = found {
        assert_eq!(error.code(), ErrorCode::PermissionDenied);
    }
}

/// The test tries every operation with every key and all pairs of keys, for every role over every
/// prefix.
#[test]
fn requests_about_keys_are_allowed_as_the_brute_force_says() {
    let mut found = Vec::new();
    for prefix in keys(2) {
        for role in Role::all_over(&prefix) {
            let (oracle, rights) = (Oracle::new(&role), rights(&role));
            for key in keys(3) {
                for body in bodies_about(&key) {
                    compare(&oracle, &role, &rights, &body);
                    found.push(kind(&body));
                }
                found.sort();
                found.dedup();
            }
        }
    }
    found.push(matrix::Kind::Scan);
    found.sort();
    assert_eq!(found, kinds(), "every kind of request");
}

#[test]
fn requests_about_several_keys_need_a_right_to_each() {
    let all = keys(2);
    for prefix in &all {
        for role in Role::all_over(prefix) {
            let (oracle, rights) = (Oracle::new(&role), rights(&role));
            for first in &all {
                for second in &all {
                    let pair = [first, second].map(Bytes::clone);
                    compare(&oracle, &role, &rights, &matrix::multi_get(&pair));
                    compare(&oracle, &role, &rights, &matrix::multi_put(&pair));
                    for body in matrix::txns(first, second) {
                        compare(&oracle, &role, &rights, &body);
                    }
                }
            }
        }
    }
}

/// The test tries all ranges, including those that end before they begin, for roles over one prefix
/// and over two.
#[test]
fn a_scan_is_allowed_if_every_key_in_it_may_be_read() {
    let prefixes = keys(2);
    let none = [Vec::new()].into_iter();
    let one = prefixes.iter().map(|prefix| vec![prefix.clone()]);
    let two = prefixes.iter().enumerate().flat_map(|(at, first)| {
        let others = prefixes[..at].iter();
        others.map(move |second| vec![first.clone(), second.clone()])
    });
    let scans: Vec<Body> = scans(3).collect();
    let mut allowed = 0;
    for read in none.chain(one).chain(two) {
        let role = Role {
            read,
            ..Role::named("scans")
        };
        let (oracle, rights) = (Oracle::new(&role), rights(&role));
        for body in &scans {
            compare(&oracle, &role, &rights, body);
            allowed += usize::from(oracle.allows(body));
        }
    }
    assert!(allowed > 10_000, "{allowed}");
}

#[test]
fn keys_are_merged_into_as_few_spans_as_there_are() {
    let keys = |prefixes: &[&'static [u8]]| {
        Keys::with_prefixes(prefixes.iter().map(|prefix| Bytes::from_static(prefix)))
    };
    assert_eq!(keys(&[b"a", b"", b"b"]), keys(&[b""]));
    assert_eq!(keys(&[b"ab", b"a", b"a\xFF"]), keys(&[b"a"]));
    assert!(keys(&[b"a", b"b"]).contain_range(b"a", b"c"), "neighbours");
    assert!(!keys(&[b"a", b"c"]).contain_range(b"a", b"d"), "b is apart");
    assert!(keys(&[b"\xFF"]).contain_range(b"\xFF", b""), "to the end");
    assert!(!keys(&[b"\xFE"]).contain_range(b"\xFE", b""));
    assert!(keys(&[b"\xFE", b"\xFF\xFF"]).contain_range(b"\xFE", b"\xFF"));
    assert!(!Keys::default().contain(b"") && !Keys::default().contain_range(b"", b""));
}

/// A token gives no rights after it has expired or was revoked. An unknown token gives no rights.
#[test]
fn a_token_counts_from_when_it_is_known_until_it_ends() {
    for prefix in [Bytes::from("a"), Bytes::new()] {
        for role in Role::all_over(&prefix) {
            for standing in Standing::ALL {
                let role = Role {
                    standing,
                    ..role.clone()
                };
                let counts = standing == Standing::Counts;
                let (auth, greeted) = greeted(&role);
                assert_eq!(greeted.is_ok(), standing.greets(), "{role:?}");
                let oracle = Oracle::new(&role);
                for body in bodies_about(&Bytes::from("ab")).into_iter().chain(scans(1)) {
                    let found = auth.check(&body);
                    let expected = oracle.allows(&body);
                    assert_eq!(found.is_ok(), expected, "{role:?}: {}", words(&body));
                    let code = found.err().map(|error| error.code());
                    assert!(counts || code == Some(ErrorCode::Unauthenticated));
                }
            }
        }
    }
}

/// Returns a connection that has sent the token of a role. The token may have expired or been
/// revoked since then, depending on the role's standing.
fn greeted(role: &Role) -> (AuthState, Result<(), Error>) {
    let token = b"lh_token";
    let entry = role.entry(token, NOW + 10);
    let before = match role.standing {
        Standing::Unknown => TokenTable::default(),
        _ => TokenTable::new(std::slice::from_ref(&entry)),
    };
    let (said, at) = match role.standing {
        Standing::Missing => (&b""[..], NOW),
        Standing::ExpiredBefore => (&token[..], NOW + 10),
        _ => (&token[..], NOW),
    };
    let auth = AuthState::default();
    let greeted = auth.authenticate(said, &before, at);
    let (after, later) = match role.standing {
        Standing::Revoked => (TokenTable::default(), NOW),
        Standing::ExpiredSince => (before, NOW + 10),
        _ => (before, NOW + 9),
    };
    let keeps = auth.renew(&after, later);
    let lost = matches!(role.standing, Standing::Revoked | Standing::ExpiredSince);
    assert_eq!(keeps, !lost, "{role:?}");
    (auth, greeted)
}

#[test]
fn who_says_no_token_has_the_rights_of_anonymous_if_there_are_any() {
    let text =
        "[[token]]\nname = \"anonymous\"\nrights = [{ prefix = \"open/\", may = \"read\" }]\n";
    let table = TokenTable::new(&parsed(text));
    let auth = AuthState::default();
    auth.authenticate(b"", &table, NOW).unwrap();
    assert!(auth.check(&matrix::get(b"open/a")).is_ok());
    assert!(auth.check(&matrix::get(b"shut/a")).is_err());
    assert!(auth.check(&Body::Status(StatusRequest::default())).is_ok());
    let wrong = AuthState::default()
        .authenticate(b"lh_wrong", &table, NOW)
        .unwrap_err();
    assert_eq!(wrong.code(), ErrorCode::Unauthenticated);
    assert!(
        !auth.renew(&TokenTable::default(), NOW),
        "no one is any more"
    );
}

#[test]
fn a_refusal_names_what_was_asked_and_nothing_else() {
    let role = Role {
        read: vec!["hidden/".into()],
        write: vec!["buried/".into()],
        ..Role::named("secretive")
    };
    let long = vec![b'x'; 4096];
    for (op, parts) in [
        (Op::get("a\n\"b"), ["get of \"a\\n\\\"b\"", "read"]),
        (Op::put("ab", "gold"), ["put of \"ab\"", "write"]),
        (Op::delete(long), ["delete of \"xxx", "xxx...\""]),
        (Op::cas("ab", "gold", None), ["cas of \"ab\"", "read"]),
        (
            Op::put_fields("hidden/a", vec![]),
            ["put_fields of", "write"],
        ),
        (
            Op::multi_get(vec!["hidden/a".into(), "open".into()]),
            ["multi_get of \"open\"", "read"],
        ),
        (Op::MultiPut(MultiPut::default()), ["", ""]),
        (
            Op::scan("hidden/", "", 1),
            ["scan from \"hidden/\"", "the end"],
        ),
        (Op::scan("", "b", 1), ["scan from \"\" to \"b\"", "less"]),
    ] {
        let Err(error) = check(&rights(&role), &Body::Command(op.into())) else {
            assert_eq!(parts, ["", ""], "a command without keys needs no right");
            continue;
        };
        for part in parts {
            assert!(error.message.contains(part), "{}", error.message);
        }
        assert!(!error.message.contains("buried"), "{}", error.message);
        assert!(!error.message.contains("gold"), "{}", error.message);
        assert!(error.message.len() < 300, "{}", error.message);
    }
}

/// A refused transaction is told which of its parts needs the right, even in the list that would
/// not be executed.
#[test]
fn a_refused_transaction_is_told_the_part_that_was_refused() {
    let role = Role {
        read: vec!["seen/".into(), PROBE_KEY.into()],
        write: vec!["seen/".into(), "blind/".into()],
        ..Role::named("narrow")
    };
    let listed = |operation: Listed| TxnOp::from(operation);
    let put = |key: &'static str| {
        let (key, value) = (key.into(), "gold".into());
        listed(Listed::Put(leasehold_wire::Put { key, value }))
    };
    let get = |key: &'static str| listed(Listed::Get(leasehold_wire::Get { key: key.into() }));
    let compared = |keys: &[&'static str]| {
        let comparison = |key: &&'static str| leasehold_wire::Comparison {
            key: (*key).into(),
            condition: Some(Condition::Equal("gold".into())),
        };
        keys.iter().map(comparison).collect()
    };
    let txn = |comparisons, then, or_else| Txn {
        comparisons,
        then,
        or_else,
        keep_going: false,
    };
    for (txn, expected) in [
        (
            txn(
                compared(&["seen/a", "blind/a"]),
                vec![put("seen/a")],
                vec![],
            ),
            Some(
                "txn.comparisons[1]: a comparison of \"blind/a\" needs the right to read this key",
            ),
        ),
        (
            txn(
                compared(&["seen/a"]),
                vec![put("seen/a"), put("shut")],
                vec![],
            ),
            Some("txn.then[1].put: put of \"shut\" needs the right to write this key"),
        ),
        (
            txn(
                vec![],
                vec![put("blind/a")],
                vec![put("blind/a"), put("shut")],
            ),
            Some("txn.or_else[1].put: put of \"shut\" needs the right to write this key"),
        ),
        (
            txn(
                vec![],
                vec![put("blind/a")],
                vec![listed(Listed::append("blind/a", "x"))],
            ),
            Some("txn.or_else[0].append: append of \"blind/a\" needs the right to read this key"),
        ),
        (
            txn(vec![], vec![get("blind/a")], vec![]),
            Some("txn.then[0].get: get of \"blind/a\" needs the right to read this key"),
        ),
        (
            txn(vec![], vec![TxnOp::default()], vec![]),
            Some("txn.then[0]: an entry without an operation"),
        ),
        // A get of the reserved key needs a right, as in a multi-get of several keys.
        (txn(vec![], vec![get(PROBE_KEY)], vec![]), None),
        (txn(vec![], vec![put("blind/a")], vec![get("seen/a")]), None),
    ] {
        let found = check(&rights(&role), &Body::Command(Op::txn(txn.clone()).into()));
        match (found, expected) {
            (Ok(()), None) => {}
            (Err(error), Some(expected)) => {
                let message = &error.message;
                assert!(message.starts_with(expected), "{message}");
                assert!(
                    !message.contains("gold") && message.len() < 300,
                    "{message}"
                );
                assert_eq!(error.code(), ErrorCode::PermissionDenied);
            }
            (found, _) => panic!("{txn:?}: {found:?}"),
        }
    }
}

#[test]
fn a_file_is_read_as_it_was_meant_and_written_as_it_is_read() {
    let token = new_token().unwrap();
    let digest = Digest::of(token.as_bytes());
    let text = format!(
        "[[token]]\nname = \"app1\"\nsha256 = \"{digest}\"\nexpires = 2027-01-01\n\
         rights = [{{ prefix = \"users/\", may = \"read\" }}, {{ prefix = \"\", may = \"write\" }}]\n\
         [[token]]\nname = \"ops\"\nsha256 = \"{}\"\nadmin = true\n\
         [[token]]\nname = \"anonymous\"\nexpires = 2027-01-01T12:00:00+01:30\n",
        "0A".repeat(32)
    );
    let entries = parsed(&text);
    assert_eq!(entries[0].read, ["users/"]);
    assert_eq!(entries[0].write, [""]);
    assert_eq!(entries[1].digest, Some(Digest([10; 32])));
    assert!(entries[1].admin && !entries[0].admin);
    assert_eq!(parsed(&write(&entries)), entries, "{}", write(&entries));
    let table = TokenTable::new(&entries);
    assert!(
        table
            .rights(Principal::from_token(token.as_bytes()), NOW - 10_000_000)
            .is_some()
    );
    assert_eq!(table.in_force(1_798_761_599), 2);
    assert_eq!(table.in_force(1_798_761_600), 1);
    assert_eq!(table.next_expiry(0), Some(1_798_761_600));
    assert_eq!(table.next_expiry(1_798_761_600), Some(1_798_799_400));

    let odd = TokenEntry {
        read: vec!["\"\\\n\0\u{7f}é".to_owned(), String::new()],
        ..entries[0].clone()
    };
    assert_eq!(parsed(&write(std::slice::from_ref(&odd))), [odd]);
    assert_eq!(parsed(&write(&[])), []);
}

/// The expected digests were computed by another program, and the expected days were taken from a
/// calendar.
#[test]
fn digests_and_dates_are_the_usual_ones() {
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(Digest::of(b"abc").to_string(), abc);
    assert_eq!(abc.parse(), Ok(Digest::of(b"abc")));
    let at = |text: &str| text.parse::<Expiry>().map(|expiry| expiry.unix_s);
    for (text, unix_s) in [
        ("1970-01-01", 0),
        ("1969-12-31T23:59:59Z", -1),
        ("2000-02-29", 951_782_400),
        ("2000-03-01", 951_868_800),
        ("2100-03-01", 4_107_542_400),
        ("2027-01-01T00:00:00Z", 1_798_761_600),
        ("2027-01-01T00:00:00-08:00", 1_798_790_400),
    ] {
        assert_eq!(at(text), Ok(unix_s), "{text}");
    }
    for text in [
        "",
        "soon",
        "12:00:00",
        "2027-02-30",
        "2027-01-01T12:00:00",
        "1798761600",
    ] {
        assert!(at(text).unwrap_err().contains("2027-01-01"), "{text}");
    }
}

#[test]
fn tokens_are_long_random_and_marked() {
    let token = new_token().unwrap();
    assert!(token.starts_with("lh_") && token.len() == 3 + 64, "{token}");
    assert_ne!(token, new_token().unwrap());
}

#[test]
fn a_file_that_is_wrong_is_refused_with_what_would_do() {
    let ok = "a".repeat(64);
    let entry = |name: &str, more: &str| format!("[[token]]\nname = \"{name}\"\n{more}\n");
    let hex = format!("sha256 = \"{ok}\"");
    let long = "p".repeat(4097);
    for (text, parts) in [
        (entry("a", ""), ["\"a\"", "sha256 is missing"]),
        (entry("a", "sha256 = \"abc\""), ["\"a\"", "64 hex digits"]),
        (
            entry("a", &format!("sha256 = \"+{}\"", "a".repeat(63))),
            ["\"a\"", "64 hex digits"],
        ),
        (entry("", &hex), ["\"\"", "1 to 64 letters"]),
        (entry("a b", &hex), ["\"a b\"", "1 to 64 letters"]),
        (entry("anonymous", &hex), ["anonymous", "leave it out"]),
        (
            entry("a", &hex) + &entry("a", &format!("sha256 = \"{}\"", "b".repeat(64))),
            ["\"a\"", "rename one"],
        ),
        (
            entry("a", &hex) + &entry("b", &hex),
            ["\"b\"", "a token of its own"],
        ),
        (
            entry("a", &format!("{hex}\nexpires = 2027-01-01T10:00:00")),
            ["\"a\"", "offset from UTC"],
        ),
        (
            entry("a", &format!("{hex}\nexpires = 10:00:00")),
            ["\"a\"", "a date is required"],
        ),
        (
            entry("a", &format!("{hex}\nexpires = \"soon\"")),
            ["expires", "line 4"],
        ),
        (
            entry(
                "a",
                &format!("{hex}\nrights = [{{prefix='{long}', may='read'}}]"),
            ),
            ["4097 bytes", "at most 4096"],
        ),
        (
            entry(
                "a",
                &format!("{hex}\nrights = [{{prefix='', may='admin'}}]"),
            ),
            ["`admin`", "`read` or `write`"],
        ),
        ("[[tokens]]".to_owned(), ["tokens", "token"]),
        (
            entry("a", &format!("{hex}\nrigths = []")),
            ["rigths", "rights"],
        ),
    ] {
        let message = refusal(&text);
        assert!(message.starts_with(FILE), "{message}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
}
