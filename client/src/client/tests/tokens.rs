//! Tests with tokens. If one replica refuses a token, all replicas would refuse it. So no other
//! replica is tried, and no request waits.

use std::os::unix::fs::PermissionsExt as _;

use super::*;
use leasehold_transport::Secret;

/// Timeout far beyond the duration of any test.
const LONG: Duration = Duration::from_secs(20);

fn secret(token: &str) -> Secret {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), token).unwrap();
    let owner_alone = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(file.path(), owner_alone).unwrap();
    Secret::load(file.path()).unwrap()
}

/// Starts a near replica. Returns options with the addresses of this replica and of a far replica.
async fn two(token: Option<&str>) -> (Server, ClientOptions) {
    let near = Server::start([]).await;
    let far = Server::at("127.0.0.1:0", "OR", Arc::clone(&near.state)).await;
    near.state().token = Some("lh_right".into());
    let options = ClientOptions {
        token: token.map(secret),
        attempt_timeout: LONG,
        request_timeout: 3 * LONG,
        ..ClientOptions::nearest_first([&near.address, &far.address])
    };
    (near, options)
}

fn kind(error: &Error) -> Option<RefusalKind> {
    match error {
        Error::Refused { kind, .. } => Some(*kind),
        _ => None,
    }
}

#[tokio::test]
async fn who_has_no_right_token_is_told_by_the_first_replica() {
    for token in [None, Some("lh_wrong")] {
        let (near, options) = two(token).await;
        let refused = Client::connect(options).await.unwrap_err();
        assert_eq!(kind(&refused), Some(RefusalKind::Unauthenticated));
        assert!(!refused.may_have_taken_effect());
        assert!(refused.to_string().contains("unknown token"), "{refused}");
        assert_eq!(near.state().connections, 1, "the other one is not asked");
    }
}

#[tokio::test]
async fn what_a_token_may_not_do_is_not_asked_again() {
    let (near, options) = two(Some("lh_right")).await;
    let client = Client::connect(options).await.unwrap();
    client.put("k", "v").await.unwrap();
    near.state().faults.push_back(Fault::Denied);
    let denied = client.put("k", "w").await.unwrap_err();
    assert_eq!(kind(&denied), Some(RefusalKind::PermissionDenied));
    assert!(!denied.may_have_taken_effect());
    assert_eq!(near.state().arrived.len(), 2, "no further attempt");
    client.put("k", "x").await.unwrap();
}

/// A server ends the connections that use a revoked token, and refuses new connections with it.
#[tokio::test]
async fn who_loses_its_token_is_told_so_until_it_counts_again() {
    let (near, mut options) = two(Some("lh_right")).await;
    options.addresses.truncate(1);
    let client = Client::connect(options).await.unwrap();
    client.put("k", "v").await.unwrap();
    {
        let mut state = near.state();
        state.token = Some("lh_other".into());
        state.faults.push_back(Fault::Cut);
    }
    let lost = client.put("k", "w").await.unwrap_err();
    assert_eq!(kind(&lost), Some(RefusalKind::Unauthenticated));
    assert!(lost.may_have_taken_effect(), "the first copy had left");
    let next = client.get("k").await.unwrap_err();
    assert_eq!(kind(&next), Some(RefusalKind::Unauthenticated));
    assert!(!next.may_have_taken_effect());

    near.state().token = Some("lh_right".into());
    let back = async {
        while let Err(error) = client.get("k").await {
            assert_eq!(kind(&error), Some(RefusalKind::Unauthenticated));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, back).await.expect("it is taken");
}

/// The first copy is lost. The next copy finds no server, and is never sent.
#[tokio::test]
async fn a_refusal_after_a_lost_copy_leaves_the_outcome_open() {
    let (near, mut options) = two(Some("lh_right")).await;
    options.addresses.truncate(1);
    let client = Client::connect(options).await.unwrap();
    near.state().faults.push_back(Fault::ExecuteThenSilence);
    let writer = client.clone();
    let write = tokio::spawn(async move { writer.put("k", "w").await });
    near.arrived(1).await;
    near.kill().await;
    // In this time, copies find no server.
    tokio::time::sleep(Duration::from_millis(200)).await;
    near.state().token = Some("lh_other".into());
    let _again = near.restart().await;
    let refused = write.await.unwrap().unwrap_err();
    assert_eq!(kind(&refused), Some(RefusalKind::Unauthenticated));
    assert!(
        refused.may_have_taken_effect(),
        "the first copy was executed"
    );
}

/// The host names in the addresses do not exist. No request is sent.
#[tokio::test]
async fn a_token_is_not_said_in_plain_text_to_other_machines() {
    let (near, here) = two(Some("lh_right")).await;
    let elsewhere = |plain_token| {
        let mut options = here.clone();
        options.addresses.push("db.example.invalid:7001".to_owned());
        options.plain_token = plain_token;
        options
    };
    let refused = Client::connect(elsewhere(false)).await.unwrap_err();
    assert!(matches!(&refused, Error::PlainToken { address } if address.starts_with("db.")));
    assert!(!refused.may_have_taken_effect());
    let said = refused.to_string();
    assert!(
        said.contains("--ca FILE") && said.contains("--token-file"),
        "{said}"
    );
    assert_eq!(near.state().connections, 0);
    Client::connect(elsewhere(true)).await.unwrap();
    let mut without = elsewhere(false);
    without.token = None;
    let unknown = Client::connect(without).await.unwrap_err();
    assert_eq!(kind(&unknown), Some(RefusalKind::Unauthenticated));
    Client::connect(here).await.unwrap();
}
