//! Tests of the choice of a replica by a lease-aware client, and of the limits of hints.

use super::*;
use crate::Routing;

const LONG: Duration = Duration::from_secs(20);

/// Starts the servers CA, OR and VA, and a client that uses all three. CA is the nearest server.
async fn three(hint: Hint) -> ([Server; 3], Client) {
    let near = Server::start([]).await;
    near.state().replicas = ["CA", "OR", "VA"].map(String::from).into();
    near.state().hint = hint;
    let peer = async |name| Server::at("127.0.0.1:0", name, Arc::clone(&near.state)).await;
    let (second, third) = (peer("OR").await, peer("VA").await);
    let servers = [near, second, third];
    let options = ClientOptions {
        routing: Routing::LeaseAware,
        attempt_timeout: LONG,
        request_timeout: 3 * LONG,
        ..ClientOptions::nearest_first(servers.iter().map(|server| &server.address))
    };
    let client = Client::connect(options).await.unwrap();
    let is_up = |one: &Connection| one.candidate().is_some_and(|it| it.distance < LONG);
    while !client.inner.replicas.all().iter().all(is_up) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    (servers, client)
}

fn hint(holders: u64, leader: u32) -> Hint {
    Hint {
        holders,
        leader,
        listed: true,
    }
}

async fn by(client: &Client, op: Op) -> String {
    client.execute_op(op).await.0.unwrap().replica.to_string()
}

/// Waits until the client knows that a replica does not serve.
async fn noticed(client: &Client, replica: usize) {
    while client.inner.replicas.all()[replica].candidate().is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn reads_go_to_holders_in_turn_and_writes_to_the_leader() {
    let (servers, client) = three(hint(0b110, 3)).await;
    servers[0].state().holders.extend(["OR", "VA"]);
    assert_eq!(
        by(&client, Op::get("k")).await,
        "CA",
        "nothing is known yet"
    );
    let mut asked = HashSet::new();
    for _ in 0..10 {
        asked.insert(by(&client, Op::get("k")).await);
    }
    assert_eq!(asked, HashSet::from(["OR".to_owned(), "VA".to_owned()]));
    assert_eq!(servers[0].state().hinted, 1, "once is enough");
    assert_eq!(by(&client, Op::put("k", "v")).await, "VA");
    assert_eq!(by(&client, Op::multi_get(vec!["k".into()])).await, "CA");
    assert_eq!(client.health().failovers, 0, "none of this is a failover");
}

#[tokio::test]
async fn a_stale_hint_costs_forwards_until_the_next_one() {
    let (servers, client) = three(hint(0b010, 1)).await;
    servers[0].state().holders.insert("OR");
    by(&client, Op::get("k")).await;
    assert_eq!(by(&client, Op::get("k")).await, "OR");
    // The lease moves without a notice to the client.
    servers[0].state().holders = HashSet::from(["VA"]);
    servers[0].state().hint = hint(0b100, 1);
    let reply = client.execute_op(Op::get("k")).await.0.unwrap();
    assert_eq!((&*reply.replica, reply.path), ("OR", Path::Forwarded));
    assert_eq!(by(&client, Op::get("k")).await, "OR", "it asks for a hint");
    assert_eq!(by(&client, Op::get("k")).await, "VA");
    assert_eq!(servers[0].state().hinted, 2);
}

#[tokio::test]
async fn nonsense_in_a_hint_leaves_the_nearest() {
    let (servers, client) = three(hint(u64::MAX << 3, 64)).await;
    servers[0].state().holders.insert("CA");
    for _ in 0..5 {
        assert_eq!(by(&client, Op::get("k")).await, "CA");
        assert_eq!(by(&client, Op::put("k", "v")).await, "CA");
    }
    servers[0].state().hint = hint(u64::MAX, u32::MAX);
    assert_eq!(by(&client, Op::get("another")).await, "CA");
    for _ in 0..5 {
        let found = client.execute_op(Op::get("another")).await.0.unwrap();
        assert!(["CA", "OR", "VA"].contains(&&*found.replica));
        assert_eq!(by(&client, Op::put("k", "v")).await, "CA");
    }
}

#[tokio::test]
async fn a_holder_that_dies_is_replaced_by_another_and_then_by_the_nearest() {
    let (servers, client) = three(hint(0b110, 2)).await;
    servers[0].state().holders.extend(["OR", "VA"]);
    by(&client, Op::get("k")).await;
    servers[1].kill().await;
    assert_ne!(by(&client, Op::get("k")).await, "OR");
    noticed(&client, 1).await;
    for _ in 0..10 {
        assert_eq!(by(&client, Op::get("k")).await, "VA");
    }
    assert_ne!(by(&client, Op::put("k", "v")).await, "OR");
    servers[2].kill().await;
    noticed(&client, 2).await;
    for _ in 0..10 {
        assert_eq!(by(&client, Op::get("k")).await, "CA");
        assert_eq!(by(&client, Op::put("k", "v")).await, "CA");
    }
}

#[tokio::test]
async fn a_holder_that_stands_still_delays_a_read_and_loses_none() {
    let (servers, client) = three(hint(0b010, 1)).await;
    servers[0].state().holders.insert("OR");
    by(&client, Op::get("k")).await;
    let hasty = ClientOptions {
        attempt_timeout: Duration::from_millis(40),
        ..client.inner.replicas.options.clone()
    };
    let client = Client::connect(hasty).await.unwrap();
    let is_up = |one: &Connection| one.candidate().is_some();
    while !client.inner.replicas.all().iter().all(is_up) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    by(&client, Op::get("k")).await;
    servers[1].freeze();
    assert_ne!(by(&client, Op::get("k")).await, "OR");
    servers[1].thaw();
}

#[tokio::test]
async fn servers_that_give_no_hints_are_asked_as_by_other_clients() {
    let (servers, client) = three(Hint::default()).await;
    servers[0].state().holders.insert("CA");
    for _ in 0..5 {
        assert_eq!(by(&client, Op::get("k")).await, "CA");
        assert_eq!(by(&client, Op::put("k", "v")).await, "CA");
    }
}
