//! Decides by brute force, for every operation, role and set of keys, whether the operation is
//! allowed.

use bytes::Bytes;
use leasehold_wire::command::Op;
use leasehold_wire::comparison::Condition;
use leasehold_wire::request::Body;
use leasehold_wire::txn_op::Op as Listed;
use leasehold_wire::{
    Comparison, Delete, Field, Get, KeyValue, LeaseRequest, MoveRequest, PROBE_KEY, Put, PutFields,
    StatusRequest, Txn, TxnOp,
};

use crate::front::access::tokens::{Digest, TokenEntry};

/// Bytes of which the tests compose keys, prefixes and ends of ranges: the first and the last
/// possible byte, and two neighbours.
const BYTES: [u8; 4] = [0x00, b'a', b'b', 0xFF];
/// The bytes of [`BYTES`], and the next byte after each. Keys that are composed of them include the
/// first key after every prefix.
const BYTES_AND_NEXT: [u8; 6] = [0x00, 0x01, b'a', b'b', b'c', 0xFF];

/// Returns all strings that consist of these bytes and have at most `longest` bytes.
fn texts(bytes: &[u8], longest: usize) -> Vec<Bytes> {
    let mut all = vec![Vec::new()];
    let mut begin = 0;
    for _ in 0..longest {
        let end = all.len();
        for at in begin..end {
            for byte in bytes {
                all.push([&all[at][..], &[*byte]].concat());
            }
        }
        begin = end;
    }
    all.into_iter().map(Bytes::from).collect()
}

/// Returns all keys of up to `longest` bytes. The empty key is included because it is a valid
/// prefix or end of a range.
pub(crate) fn keys(longest: usize) -> Vec<Bytes> {
    texts(&BYTES, longest)
}

/// Possible states of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The token is valid.
    Counts,
    /// The token had expired before the connection began.
    ExpiredBefore,
    /// The token has expired since the connection began.
    ExpiredSince,
    /// The token was revoked since the connection began.
    Revoked,
    /// No file contains the token.
    Unknown,
    /// The client sent no token.
    Missing,
}

impl Standing {
    pub(crate) const ALL: [Standing; 6] = [
        Standing::Counts,
        Standing::ExpiredBefore,
        Standing::ExpiredSince,
        Standing::Revoked,
        Standing::Unknown,
        Standing::Missing,
    ];

    /// Whether a node accepts the connection of a client that sends a token in this state.
    pub(crate) fn greets(self) -> bool {
        match self {
            Standing::Counts | Standing::ExpiredSince | Standing::Revoked => true,
            Standing::ExpiredBefore | Standing::Unknown | Standing::Missing => false,
        }
    }
}

/// Rights and state of a token. The keys of each right are given by prefixes.
#[derive(Clone, Debug)]
pub(crate) struct Role {
    pub(crate) name: &'static str,
    pub(crate) read: Vec<Bytes>,
    pub(crate) write: Vec<Bytes>,
    pub(crate) admin: bool,
    pub(crate) standing: Standing,
}

impl Role {
    /// Returns a role without rights.
    pub(crate) fn named(name: &'static str) -> Role {
        Role {
            name,
            read: Vec::new(),
            write: Vec::new(),
            admin: false,
            standing: Standing::Counts,
        }
    }

    /// Returns a role for every combination of rights. Each right covers the keys with this prefix.
    pub(crate) fn all_over(prefix: &Bytes) -> Vec<Role> {
        let names = [
            "none",
            "read",
            "write",
            "both",
            "admin",
            "read-admin",
            "write-admin",
            "all",
        ];
        let role = |(bits, name): (usize, &'static str)| {
            let of = |bit: usize| (bits & bit != 0).then(|| prefix.clone());
            Role {
                read: of(1).into_iter().collect(),
                write: of(2).into_iter().collect(),
                admin: bits & 4 != 0,
                ..Role::named(name)
            }
        };
        names.into_iter().enumerate().map(role).collect()
    }

    /// Returns the role's entry in a token file.
    pub(crate) fn entry(&self, token: &[u8], expires_s: i64) -> TokenEntry {
        let text = |prefixes: &[Bytes]| {
            let texts = prefixes.iter().map(|it| String::from_utf8(it.to_vec()));
            texts.collect::<Result<Vec<_>, _>>().unwrap()
        };
        // The time of day is a whole number of ten seconds, which is enough for the tests.
        let day = 86_400;
        assert_eq!(expires_s.rem_euclid(10), 0);
        let seconds = expires_s.rem_euclid(day);
        let date = date(expires_s.div_euclid(day));
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        let expires = format!("{date}T{hours:02}:{minutes:02}:{:02}Z", seconds % 60);
        let expires: super::Expiry = expires.parse().unwrap();
        assert_eq!(expires.unix_s, expires_s);
        TokenEntry {
            name: self.name.to_owned(),
            digest: Some(Digest::of(token)),
            expires: Some(expires),
            read: text(&self.read),
            write: text(&self.write),
            admin: self.admin,
        }
    }
}

/// Returns the date that is `days` days after 1970-01-01, found by counting day by day.
fn date(days: i64) -> String {
    let (mut year, mut month, mut left) = (1970, 1, days);
    loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 if leap => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if left < length {
            return format!("{year:04}-{month:02}-{:02}", left + 1);
        }
        left -= length;
        (year, month) = if month == 12 {
            (year + 1, 1)
        } else {
            (year, month + 1)
        };
    }
}

/// Kinds of requests. Each kind needs a separate decision about its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Get,
    Put,
    Delete,
    Cas,
    PutFields,
    MultiGet,
    MultiPut,
    Scan,
    /// A transaction with a comparison.
    Compare,
    /// A transaction without comparisons. The kind is that of the first operation in its lists.
    Then(ListedKind),
    OrElse(ListedKind),
    BareStatus,
    Holders,
    HottestKey,
    LeaseStatus,
    DemandStatus,
    Move,
    Lease,
}

/// Kinds of the operations of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ListedKind {
    Get,
    Put,
    Delete,
    PutFields,
    DeleteFields,
    Add,
    Append,
}

const LISTED_KINDS: [ListedKind; 7] = [
    ListedKind::Get,
    ListedKind::Put,
    ListedKind::Delete,
    ListedKind::PutFields,
    ListedKind::DeleteFields,
    ListedKind::Add,
    ListedKind::Append,
];

/// Returns every kind of requests, in ascending order.
pub(crate) fn kinds() -> Vec<Kind> {
    let listed = LISTED_KINDS.into_iter();
    let listed = listed.flat_map(|kind| [Kind::Then(kind), Kind::OrElse(kind)]);
    let mut all: Vec<Kind> = KINDS.into_iter().chain(listed).collect();
    all.sort();
    all
}

/// Kinds of requests. The kinds of transactions without comparisons are omitted.
const KINDS: [Kind; 16] = [
    Kind::Get,
    Kind::Put,
    Kind::Delete,
    Kind::Cas,
    Kind::PutFields,
    Kind::MultiGet,
    Kind::MultiPut,
    Kind::Scan,
    Kind::Compare,
    Kind::BareStatus,
    Kind::Holders,
    Kind::HottestKey,
    Kind::LeaseStatus,
    Kind::DemandStatus,
    Kind::Move,
    Kind::Lease,
];

/// Returns the kind of a request. The match is exhaustive, so a new request does not compile until
/// its rights are decided.
pub(crate) fn kind(body: &Body) -> Kind {
    match body {
        Body::Command(command) => match command.op.as_ref().unwrap() {
            Op::Get(_) => Kind::Get,
            Op::Put(_) => Kind::Put,
            Op::Delete(_) => Kind::Delete,
            Op::Cas(_) => Kind::Cas,
            Op::PutFields(_) => Kind::PutFields,
            Op::MultiGet(_) => Kind::MultiGet,
            Op::MultiPut(_) => Kind::MultiPut,
            Op::Scan(_) => Kind::Scan,
            Op::Txn(txn) if !txn.comparisons.is_empty() => Kind::Compare,
            Op::Txn(txn) => match (&txn.then[..], &txn.or_else[..]) {
                ([first, ..], _) => Kind::Then(listed_kind(first)),
                ([], rest) => Kind::OrElse(listed_kind(&rest[0])),
            },
        },
        Body::Status(StatusRequest {
            holders,
            key,
            leases,
            demand,
        }) => match (leases, demand, holders, key.is_empty()) {
            (true, ..) => Kind::LeaseStatus,
            (_, true, ..) => Kind::DemandStatus,
            (.., true, true) => Kind::HottestKey,
            (.., true, false) => Kind::Holders,
            (.., false, _) => Kind::BareStatus,
        },
        Body::Move(_) => Kind::Move,
        Body::Lease(_) => Kind::Lease,
    }
}

/// Returns the kind of an operation of a transaction. The match is exhaustive, as in [`kind`].
fn listed_kind(listed: &TxnOp) -> ListedKind {
    match listed.op.as_ref().unwrap() {
        Listed::Get(_) => ListedKind::Get,
        Listed::Put(_) => ListedKind::Put,
        Listed::Delete(_) => ListedKind::Delete,
        Listed::PutFields(_) => ListedKind::PutFields,
        Listed::DeleteFields(_) => ListedKind::DeleteFields,
        Listed::Add(_) => ListedKind::Add,
        Listed::Append(_) => ListedKind::Append,
    }
}

/// Returns an operation of a transaction.
fn listed(kind: ListedKind, key: &Bytes) -> TxnOp {
    let (key, value) = (key.clone(), Bytes::from("v"));
    let field = Field {
        name: "f".into(),
        value: value.clone(),
    };
    let operation = match kind {
        ListedKind::Get => Listed::Get(Get { key }),
        ListedKind::Put => Listed::Put(Put { key, value }),
        ListedKind::Delete => Listed::Delete(Delete { key }),
        ListedKind::PutFields => Listed::PutFields(PutFields {
            key,
            fields: vec![field],
        }),
        ListedKind::DeleteFields => Listed::delete_fields(key, vec![value]),
        ListedKind::Add => Listed::add(key, 1),
        ListedKind::Append => Listed::append(key, value),
    };
    operation.into()
}

fn comparison(key: &Bytes) -> Comparison {
    Comparison {
        key: key.clone(),
        condition: Some(Condition::Present(true)),
    }
}

/// Returns transactions about two keys: each kind of operation on `first` with a get of `second` in
/// the same list and in the other list, and comparisons of both keys.
pub(crate) fn txns(first: &Bytes, second: &Bytes) -> Vec<Body> {
    let txn = |txn: Txn| command(Op::txn(txn));
    let get = || listed(ListedKind::Get, second);
    let mut all = vec![
        txn(Txn {
            comparisons: vec![comparison(first)],
            then: vec![get()],
            ..Txn::default()
        }),
        txn(Txn {
            comparisons: vec![comparison(second), comparison(first)],
            or_else: vec![listed(ListedKind::Put, first)],
            ..Txn::default()
        }),
    ];
    for kind in LISTED_KINDS {
        let operation = || listed(kind, first);
        let lists = [
            (vec![operation()], vec![]),
            (vec![], vec![operation()]),
            (vec![operation(), get()], vec![]),
            (vec![operation()], vec![get()]),
            (vec![], vec![operation(), get()]),
            (vec![get()], vec![get(), operation()]),
        ];
        all.extend(lists.map(|(then, or_else)| {
            txn(Txn {
                then,
                or_else,
                ..Txn::default()
            })
        }));
    }
    all
}

fn command(op: Op) -> Body {
    Body::Command(op.into())
}

pub(crate) fn get(key: &[u8]) -> Body {
    command(Op::get(Bytes::copy_from_slice(key)))
}

pub(crate) fn multi_get(keys: &[Bytes]) -> Body {
    command(Op::multi_get(keys.to_vec()))
}

pub(crate) fn multi_put(keys: &[Bytes]) -> Body {
    let entry = |key: &Bytes| KeyValue {
        key: key.clone(),
        value: "v".into(),
    };
    command(Op::multi_put(keys.iter().map(entry).collect()))
}

/// Returns requests that contain this key or no key: requests of each kind, and status requests
/// with every combination of parts.
pub(crate) fn bodies_about(key: &Bytes) -> Vec<Body> {
    let field = leasehold_wire::Field {
        name: "f".into(),
        value: "v".into(),
    };
    let one = [key.clone()];
    let mut bodies = vec![
        get(key),
        get(PROBE_KEY.as_bytes()),
        command(Op::put(key.clone(), "v")),
        command(Op::put(PROBE_KEY, "v")),
        command(Op::delete(PROBE_KEY)),
        command(Op::delete(key.clone())),
        command(Op::cas(key.clone(), "v", None)),
        command(Op::put_fields(key.clone(), vec![field])),
        multi_get(&one),
        multi_get(&[Bytes::from_static(PROBE_KEY.as_bytes())]),
        multi_get(&[key.clone(), Bytes::from_static(PROBE_KEY.as_bytes())]),
        multi_get(&[PROBE_KEY.into(), PROBE_KEY.into()]),
        multi_put(&[Bytes::from_static(PROBE_KEY.as_bytes())]),
        multi_put(&one),
        Body::Move(MoveRequest { to: "CA".into() }),
        Body::Lease(LeaseRequest::default()),
    ];
    let probe = Bytes::from_static(PROBE_KEY.as_bytes());
    bodies.extend(txns(key, key));
    bodies.extend(txns(key, &probe));
    bodies.extend(txns(&probe, key));
    bodies.extend((0..16).map(|bits| {
        Body::Status(StatusRequest {
            holders: bits & 1 != 0,
            key: if bits & 2 != 0 {
                key.clone()
            } else {
                Bytes::new()
            },
            leases: bits & 4 != 0,
            demand: bits & 8 != 0,
        })
    }));
    bodies
}

/// Returns scans of every range between keys of up to `longest` bytes, including ranges that end
/// before they begin.
pub(crate) fn scans(longest: usize) -> impl Iterator<Item = Body> {
    let bounds = keys(longest);
    let pairs = bounds.clone().into_iter().flat_map(move |from| {
        let ends = bounds.clone().into_iter();
        ends.map(move |to| (from.clone(), to))
    });
    pairs.map(|(from, to)| command(Op::scan(from, to, 10)))
}

/// Returns a short description of a request.
pub(crate) fn words(body: &Body) -> String {
    match body {
        Body::Command(command) => format!("{:?}", command.op),
        other => format!("{other:?}"),
    }
}

/// Returns true if a request writes or compares the reserved key. No role may send such a request.
/// Deleting is allowed, except in a transaction.
pub(crate) fn names_reserved_key(body: &Body) -> bool {
    let Body::Command(command) = body else {
        return false;
    };
    let is_get = |listed: &TxnOp| matches!(listed.op, Some(Listed::Get(_)));
    let key_of = |listed: &TxnOp| listed.op.as_ref().map(|op| op.key().clone());
    match command.op.as_ref().unwrap() {
        Op::Get(_) | Op::MultiGet(_) | Op::Scan(_) | Op::Delete(_) => false,
        Op::Txn(txn) => {
            let compared = txn.comparisons.iter().map(|it| it.key.clone());
            let listed = txn.then.iter().chain(&txn.or_else);
            let written = listed.filter(|it| !is_get(it)).filter_map(key_of);
            compared.chain(written).any(|key| key == PROBE_KEY)
        }
        op => op.keys().any(|key| *key == PROBE_KEY),
    }
}

/// Oracle for the rights of a role. It compares the role's prefixes with every possible key, one by
/// one.
pub(crate) struct Oracle {
    role: Role,
    /// Every possible key in order, and whether the role may read the key.
    universe: Vec<(Bytes, bool)>,
}

impl Oracle {
    pub(crate) fn new(role: &Role) -> Oracle {
        let mut universe = texts(&BYTES_AND_NEXT, 3);
        universe.retain(|key| !key.is_empty());
        universe.sort();
        let role = role.clone();
        let read = |key: Bytes| {
            let may = covers(&role.read, &key);
            (key, may)
        };
        let universe = universe.into_iter().map(read).collect();
        Oracle { role, universe }
    }

    pub(crate) fn allows(&self, body: &Body) -> bool {
        if self.role.standing != Standing::Counts {
            return false;
        }
        match body {
            Body::Command(command) => self.allows_op(command.op.as_ref().unwrap()),
            Body::Status(asked) => {
                let of_cluster = asked.leases || asked.demand;
                let of_some_key = asked.holders && !covers(&self.role.read, &asked.key);
                let of_hottest = asked.holders && asked.key.is_empty();
                self.role.admin || !(of_cluster || of_some_key || of_hottest)
            }
            Body::Move(_) | Body::Lease(_) => self.role.admin,
        }
    }

    fn allows_op(&self, op: &Op) -> bool {
        let mut named = op.keys();
        let reads = |key: &Bytes| covers(&self.role.read, key);
        let writes = |key: &Bytes| covers(&self.role.write, key);
        let (tells, changes) = match op {
            Op::Scan(scan) => return self.allows_scan(&scan.from, &scan.to),
            Op::Get(_) | Op::MultiGet(_) => {
                let is_probe = op.keys().eq([PROBE_KEY.as_bytes()]);
                return is_probe || named.all(reads);
            }
            Op::Put(_) | Op::Delete(_) | Op::MultiPut(_) => (false, true),
            Op::Cas(_) | Op::PutFields(_) => (true, true),
            Op::Txn(txn) => return self.allows_txn(txn),
        };
        named.all(|key| (!tells || reads(key)) && (!changes || writes(key)))
    }

    fn allows_txn(&self, txn: &Txn) -> bool {
        let reads = |key: &Bytes| covers(&self.role.read, key);
        let writes = |key: &Bytes| covers(&self.role.write, key);
        let executes = |listed: &TxnOp| match listed.op.as_ref().unwrap() {
            Listed::Get(get) => reads(&get.key),
            Listed::Put(put) => writes(&put.key),
            Listed::Delete(Delete { key }) => reads(key) && writes(key),
            Listed::PutFields(put) => reads(&put.key) && writes(&put.key),
            Listed::DeleteFields(delete) => reads(&delete.key) && writes(&delete.key),
            Listed::Add(add) => reads(&add.key) && writes(&add.key),
            Listed::Append(append) => reads(&append.key) && writes(&append.key),
        };
        txn.comparisons.iter().all(|it| reads(&it.key))
            && txn.then.iter().all(executes)
            && txn.or_else.iter().all(executes)
    }

    /// Whether the role may make a scan. The first key must always be readable, even if the range
    /// contains no key.
    fn allows_scan(&self, from: &Bytes, to: &Bytes) -> bool {
        let first = self.universe.partition_point(|(key, _)| key < from);
        let rest = &self.universe[first..];
        let inside = |key: &Bytes| to.is_empty() || key < to;
        let in_range = rest.iter().take_while(|(key, _)| inside(key));
        rest[0].1 && in_range.into_iter().all(|(_, may)| *may)
    }
}

fn covers(prefixes: &[Bytes], key: &[u8]) -> bool {
    prefixes.iter().any(|prefix| key.starts_with(prefix))
}
