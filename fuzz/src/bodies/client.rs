//! Bodies for the messages of a client to a replica, and for the replica's answers.

use bytes::BytesMut;
use leasehold_leases::{Incarnation, ReplicaId};
use leasehold_replica::codec::{decode_envelope, encode_envelope};
use leasehold_replica::message::{Envelope, Message, RequestId};
use leasehold_wire::request::Body;
use leasehold_wire::{
    Command, Comparison, DecodedRequest, Entry, FRAME_BYTES_MAX, Hello, KeyValue, OpResult, Record,
    Request, Response, TxnOp, Welcome, decode_greeting, decode_request, validate,
};
use prost::Message as _;
use prost::encoding::{self, DecodeContext};

use super::decode_round_trip;
use crate::memory::{self, per_byte};

/// Maximum memory for each byte of a request, in bytes. The limit is computed from the largest
/// element that a list in a request can have. Each element of a transaction may contain a list.
const REQUEST_PER_BYTE: usize =
    per_byte::<KeyValue>() + per_byte::<Comparison>() + per_byte::<TxnOp>();
/// Maximum memory for each byte of an answer, in bytes. The limit is computed from the largest
/// element that a list in an answer can have.
const RESPONSE_PER_BYTE: usize = per_byte::<Entry>() + per_byte::<OpResult>();

/// Decodes messages of a client: its greeting, and requests.
pub fn client_to_server(input: &[u8]) {
    decode_round_trip::<Hello>(input, REQUEST_PER_BYTE);
    let whole = Request::decode(input);
    let received = memory::sharing(input, REQUEST_PER_BYTE, decode_request);
    match (received, whole) {
        (Ok(DecodedRequest::Request(request)), Ok(whole)) => {
            assert_eq!(request.encode_to_vec(), whole.encode_to_vec());
            decode_round_trip::<Request>(input, REQUEST_PER_BYTE);
            if let Some(Body::Command(command)) = request.body {
                assert_peer_accepts(command);
            }
        }
        (Ok(DecodedRequest::Refused { id, .. }), Ok(_)) => assert_eq!(id, id_in_first_field(input)),
        // Parts that are not decoded need not be well-formed.
        (Ok(DecodedRequest::Refused { .. }) | Err(_), Err(_)) => {}
        (received, whole) => panic!("{received:?}, in full {whole:?}"),
    }
}

/// Returns the id in the first field of a request; 0 if this field is not the id. A refusal bears this
/// id, because clients encode the id first and once.
fn id_in_first_field(request: &[u8]) -> u64 {
    let mut rest = request;
    let (tag, wire_type) = encoding::decode_key(&mut rest).expect("it was decoded already");
    encoding::skip_field(wire_type, tag, &mut rest, DecodeContext::default())
        .expect("it was decoded already");
    let first = &request[..request.len() - rest.len()];
    Request::decode(first).expect("one field").id
}

/// Asserts two properties of a command that a replica accepted from a client: every peer accepts
/// the command, and the command fits into a frame between peers.
fn assert_peer_accepts(command: Command) {
    if validate(&command).is_err() {
        return;
    }
    let commands = vec![(RequestId(1), command)];
    let envelope = Envelope {
        from: ReplicaId(1),
        from_incarnation: Incarnation(1),
        to_incarnation: Incarnation(1),
        message: Message::Forward { commands },
    };
    let mut frame = BytesMut::new();
    encode_envelope(envelope, &mut frame).expect("a command fits into a frame");
    assert!(frame.len() - 4 <= FRAME_BYTES_MAX);
    let sent = frame.split_off(4).freeze();
    decode_envelope(sent).expect("a peer takes what a listener takes");
}

/// Decodes messages to a client: a greeting, and answers. Also decodes the input as a stored
/// record.
pub fn server_to_client(input: &[u8]) {
    let _ = memory::sharing(input, RESPONSE_PER_BYTE, decode_greeting);
    let welcome = decode_round_trip::<Welcome>(input, RESPONSE_PER_BYTE);
    let response = decode_round_trip::<Response>(input, RESPONSE_PER_BYTE);
    let says_nothing = |response: Response| response.outcome.is_none();
    assert!(
        welcome.is_none_or(|_| response.is_none_or(says_nothing)),
        "a frame is not both a welcome and an outcome"
    );
    decode_round_trip::<Record>(input, RESPONSE_PER_BYTE);
}

pub mod seeds {
    use bytes::Bytes;
    use leasehold_wire::request::Body;
    use leasehold_wire::txn_op::Op as Listed;
    use leasehold_wire::{
        Comparison, Counter, Demand, Field, Hint, LeaseRange, LeaseRequest, Leases, MoveRequest,
        Peer, Record, Request, Response, StatusReply, StatusRequest, Txn, TxnOp, Welcome, hello,
    };
    use prost::Message as _;

    use crate::bodies::samples;

    pub fn client_to_server() -> Vec<Vec<u8>> {
        let request = |body| Request::new(7, body).encode_to_vec();
        let commands = samples::commands().into_iter();
        let mut seeds: Vec<Vec<u8>> = commands
            .map(|command| request(Some(Body::Command(command))))
            .collect();
        seeds.push(request(Some(Body::Status(StatusRequest {
            holders: true,
            key: "greeting".into(),
            leases: true,
            demand: true,
        }))));
        seeds.push(request(Some(Body::Move(MoveRequest { to: "B".into() }))));
        seeds.push(request(Some(Body::Lease(LeaseRequest {
            from: Bytes::from("user/"),
            to: Bytes::from("user0"),
            strategy: "cost".into(),
            holders: vec!["B".into()],
            unlisted: "leader".into(),
            read_weight: Some(0.5),
            spare: Some(1),
            t_lease_ms: Some(1000),
            t_guard_ms: Some(750),
            renew_ms: Some(150),
            grace_ms: Some(2000),
            force: true,
        }))));
        seeds.push(request(None));
        seeds.push(hello(Some("cluster")).encode_to_vec());
        seeds.push(too_many_parts());
        seeds.extend(too_many_parts_of_txns());
        seeds
    }

    /// Returns transactions with more comparisons, operations or names than are allowed. Each part
    /// has two bytes.
    fn too_many_parts_of_txns() -> Vec<Vec<u8>> {
        let names = Listed::delete_fields("k", vec![Bytes::new(); 10_001]);
        let txns = [
            Txn {
                comparisons: vec![Comparison::default(); 10_001],
                ..Txn::default()
            },
            Txn {
                or_else: vec![TxnOp::default(); 10_001],
                ..Txn::default()
            },
            Txn {
                then: vec![names.into()],
                ..Txn::default()
            },
        ];
        let encoded = txns.map(|txn| {
            let op = leasehold_wire::command::Op::txn(txn);
            Request::new(7, Some(Body::Command(op.into()))).encode_to_vec()
        });
        encoded.into()
    }

    /// Returns a command with more keys than are allowed. Each key has two bytes.
    fn too_many_parts() -> Vec<u8> {
        let keys = vec![Bytes::new(); 10_001];
        let op = leasehold_wire::command::Op::multi_get(keys);
        let body = Some(Body::Command(op.into()));
        Request::new(7, body).encode_to_vec()
    }

    pub fn server_to_client() -> Vec<Vec<u8>> {
        let outcomes = samples::outcomes().into_iter();
        let mut seeds: Vec<Vec<u8>> = outcomes
            .zip([1, 2, 3, 4, 5].into_iter().cycle())
            .map(|(outcome, path)| Response {
                id: 7,
                path,
                outcome: Some(outcome),
                status: None,
                hint: Some(Hint {
                    holders: 0b10110,
                    leader: 2,
                    listed: true,
                }),
            })
            .map(|response| response.encode_to_vec())
            .collect();
        seeds.push(Response::status(8, status()).encode_to_vec());
        seeds.push(
            Welcome {
                cluster: "cluster".into(),
                replica: "CA".into(),
                incarnation: 3,
                key_bytes_max: 4096,
                value_bytes_max: 1 << 20,
                replicas: vec!["JP".into(), "CA".into()],
                frame_bytes_max: 4 << 20,
                log_time_ms: 1 << 40,
            }
            .encode_to_vec(),
        );
        let field = |number: u8| Field {
            name: format!("field{number}").into(),
            value: vec![number; 9].into(),
        };
        let fields = (0..3).map(field).collect();
        seeds.push(Record { fields }.encode_to_vec());
        seeds
    }

    fn leases() -> Leases {
        Leases {
            ranges: vec![LeaseRange {
                from: "user/".into(),
                to: "user0".into(),
                strategy: "quorum".into(),
                settings: "unlisted keys: the leader".into(),
                defaults: vec!["CA".into()],
                listed: 12,
            }],
            t_lease_us: 1_000_000,
            t_guard_us: 750_000,
            renew_us: 150_000,
            grace_us: 2_000_000,
            rho_ppm: 1000,
            unfinished: true,
            already: true,
        }
    }

    fn status() -> StatusReply {
        StatusReply {
            leases: Some(leases()),
            leader_since_ms: 1500,
            replica: "JP".into(),
            leader: "CA".into(),
            ballot_round: 3,
            committed: 100,
            executed: 99,
            configuration: 2,
            strategy: "quorum".into(),
            counters: vec![Counter {
                name: "reads_local".into(),
                value: 1 << 40,
            }],
            peers: vec![Peer {
                name: "CA".into(),
                rtt_us: 120_000,
                granted_to: true,
                granted_by: false,
            }],
            incarnation: 4,
            durability: "sync".into(),
            keys: 1000,
            holders_of: "greeting".into(),
            holders: vec!["CA".into(), "JP".into()],
            unlisted: vec!["CA".into()],
            excluded: vec!["OR".into()],
            may_hold: vec!["CA".into(), "JP".into(), "OR".into()],
            demand: Some(demand()),
        }
    }

    fn demand() -> Demand {
        Demand {
            replicas: vec!["JP".into(), "CA".into()],
            rtt_us: vec![0, 120_000, 120_000, 0],
            replies_to_leader: true,
            operations: 500,
            keys: vec![1000, 90_000_000],
            holders: vec![0b11, 0b10],
            rates: vec![1 << 30, 0, 7, 8, 1, 2, 3, 4],
            reads: vec![9_000, 0, 0, 0],
            unlisted_leader: true,
            read_weight: 500,
            spare: 1,
            strategies: vec!["cost".into()],
            stall_ms: 9_000,
        }
    }
}
