//! Members of a group on loopback, with real sockets and clocks.

use std::net::TcpListener;
use std::time::Duration;

use leasehold_lock::{AcquireError, Check, Group, Loss, Member, Owner, Released, StartError, Wait};
use tokio::time::{sleep, timeout};

const PRINTER: &[u8] = b"printer";
/// Time in which everything happens that a test waits for.
const SOON: Duration = Duration::from_secs(60);

/// Lines of a group file for each choice of clocks.
const CLOCKS: [&str; 2] = ["", "clocks = \"synchronised\"\nepsilon_ms = 20\n"];

/// Returns the text of a group file with three members on free ports.
fn group_file(t_max_ms: u64) -> String {
    // All ports stay bound until the last one is chosen.
    let bound: Vec<_> = (0..3)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let mut text = format!("group = \"test\"\nt_max_ms = {t_max_ms}\n");
    for (name, listener) in ["a", "b", "c"].iter().zip(&bound) {
        let address = listener.local_addr().unwrap();
        text += &format!("[[member]]\nname = {name:?}\naddress = \"{address}\"\n");
    }
    text
}

fn group(t_max_ms: u64) -> Group {
    Group::from_toml(&group_file(t_max_ms)).unwrap()
}

/// Returns a group with each choice of clocks.
fn groups(t_max_ms: u64) -> [Group; 2] {
    CLOCKS.map(|clocks| Group::from_toml(&format!("{clocks}{}", group_file(t_max_ms))).unwrap())
}

fn start(group: &Group, name: &str) -> Member {
    Member::start(group.clone(), name, None).unwrap()
}

/// Starts all members, and waits until they may acquire resources and are connected.
async fn started(group: &Group) -> [Member; 3] {
    let members = ["a", "b", "c"].map(|name| start(group, name));
    for member in &members {
        let held = timeout(SOON, member.acquire("ready", Wait::Forever)).await;
        assert_eq!(held.unwrap().unwrap().release().await, Released::Yes);
    }
    members
}

#[tokio::test]
async fn one_member_owns_a_resource_and_the_others_are_told_of_it() {
    for group in groups(2_000) {
        one_member_owns_a_resource(&group).await;
    }
}

async fn one_member_owns_a_resource(group: &Group) {
    let [a, b, c] = started(group).await;
    let held = a.acquire(PRINTER, Wait::No).await.unwrap();
    assert!(matches!(held.check(), Check::Valid { .. }));
    let refused = b.acquire(PRINTER, Wait::No).await.unwrap_err();
    let AcquireError::Taken {
        owner,
        fence,
        at_most,
    } = refused
    else {
        panic!("{refused}");
    };
    assert_eq!((owner.as_str(), fence), ("a", held.fence()));
    assert!(at_most <= group.settings().term + Duration::from_millis(40));
    let again = a.acquire(PRINTER, Wait::No).await.unwrap_err();
    assert_eq!(again, AcquireError::AlreadyRequested);
    assert_eq!(
        a.acquire("", Wait::No).await.unwrap_err(),
        AcquireError::Name
    );

    let first = held.fence();
    assert_eq!(held.release().await, Released::Yes);
    let held = c.acquire(PRINTER, Wait::No).await.unwrap();
    assert!(held.fence() > first);
}

#[tokio::test]
async fn a_lease_is_renewed_as_long_as_it_is_held() {
    let group = group(400);
    let [a, b, _c] = started(&group).await;
    let held = a.acquire(PRINTER, Wait::No).await.unwrap();
    let fence = held.fence();
    sleep(group.settings().term * 4).await;
    // A slow machine may lose the lease, but then nobody else has it.
    match held.check() {
        Check::Valid { .. } => {
            let refused = b.acquire(PRINTER, Wait::No).await.unwrap_err();
            assert!(matches!(refused, AcquireError::Taken { .. }), "{refused}");
        }
        Check::Lost(loss) => assert_eq!(loss, Loss::NotRenewed),
    }
    // The lease is released when it is dropped.
    drop(held);
    let held = timeout(SOON, b.acquire(PRINTER, Wait::Forever)).await;
    assert!(held.unwrap().unwrap().fence() > fence);
}

#[tokio::test]
async fn another_member_takes_over_after_an_owner_that_reaches_nobody() {
    for group in groups(400) {
        another_member_takes_over(&group).await;
    }
}

async fn another_member_takes_over(group: &Group) {
    let [a, b, c] = started(group).await;
    let held = a.acquire(PRINTER, Wait::No).await.unwrap();
    // The others end, and one of them starts again. Until then, the owner has no majority.
    b.stop().await;
    c.stop().await;
    let loss = timeout(SOON, held.lost()).await.unwrap();
    assert_eq!(loss, Loss::NotRenewed, "the program is warned");
    let refused = timeout(SOON, a.acquire("other", Wait::No)).await.unwrap();
    assert_eq!(refused.unwrap_err(), AcquireError::NoMajority);
    let ended = async {
        while held.check() != Check::Lost(Loss::NotRenewed) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, ended).await.unwrap();
    assert!(matches!(held.release().await, Released::Unknown { .. }));

    let b = start(group, "b");
    let refused = b.acquire(PRINTER, Wait::No).await.unwrap_err();
    assert!(
        matches!(refused, AcquireError::Starting { .. }),
        "{refused}"
    );
    let held = timeout(SOON, b.acquire(PRINTER, Wait::Forever)).await;
    assert!(matches!(
        held.unwrap().unwrap().check(),
        Check::Valid { .. }
    ));
}

#[tokio::test]
async fn fence_tokens_rise_after_a_restart_of_all_members() {
    let group = group(400);
    let scratch = tempfile::tempdir().unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let members = ["a", "b", "c"].map(|name| {
            let dir = scratch.path().join(name);
            Member::start(group.clone(), name, Some(&dir)).unwrap()
        });
        let used = Member::start(group.clone(), "b", Some(&scratch.path().join("a")));
        assert!(matches!(used, Err(StartError::Directory(_))), "{used:?}");
        let held = timeout(SOON, members[1].acquire(PRINTER, Wait::Forever)).await;
        let held = held.unwrap().unwrap();
        assert!(held.fence() > last, "{} after {last}", held.fence());
        last = held.fence();
        drop(held);
        for member in &members {
            member.stop().await;
        }
        // The addresses and directories are free when the threads have ended.
        drop(members);
        let is_free = async {
            while group
                .members()
                .iter()
                .any(|it| TcpListener::bind(&it.address).is_err())
            {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(SOON, is_free).await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_request_is_cancelled() {
    let group = group(2_000);
    let [a, b, _c] = started(&group).await;
    let held = a.acquire(PRINTER, Wait::No).await.unwrap();
    let waited = timeout(Duration::from_millis(50), b.acquire(PRINTER, Wait::Forever)).await;
    assert!(waited.is_err(), "the resource has an owner");
    // The cancelled request is not in the way of the next one, and gets nothing.
    let refused = b.acquire(PRINTER, Wait::No).await.unwrap_err();
    assert!(matches!(refused, AcquireError::Taken { .. }), "{refused}");
    assert_eq!(held.release().await, Released::Yes);
    let held = a.acquire(PRINTER, Wait::No).await.unwrap();
    assert!(matches!(held.check(), Check::Valid { .. }));
}

#[tokio::test]
async fn an_old_lease_that_is_dropped_leaves_the_new_one_alone() {
    let group = group(400);
    let [a, b, c] = started(&group).await;
    let old = a.acquire(PRINTER, Wait::No).await.unwrap();
    b.stop().await;
    c.stop().await;
    let ended = async {
        while matches!(old.check(), Check::Valid { .. }) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, ended).await.unwrap();
    let _others = ["b", "c"].map(|name| start(&group, name));
    let new = timeout(SOON, a.acquire(PRINTER, Wait::Forever)).await;
    let new = new.unwrap().unwrap();
    drop(old);
    // A request after the drop shows that the drop has been handled.
    let again = a.acquire(PRINTER, Wait::No).await.unwrap_err();
    assert_eq!(again, AcquireError::AlreadyRequested);
    assert!(matches!(new.check(), Check::Valid { .. }));
}

#[tokio::test]
async fn a_member_that_is_stopped_releases_everything() {
    let group = group(2_000);
    let [a, b, _c] = started(&group).await;
    let held = a.acquire(PRINTER, Wait::No).await.unwrap();
    let waiting = b.acquire(PRINTER, Wait::Forever);
    a.stop().await;
    assert_eq!(held.check(), Check::Lost(Loss::Released));
    let refused = a.acquire(PRINTER, Wait::No).await.unwrap_err();
    assert_eq!(refused, AcquireError::Stopped);
    let taken = timeout(SOON, waiting).await.unwrap().unwrap();
    assert!(taken.fence() > held.fence());
}

#[tokio::test]
async fn a_member_starts_once_and_only_with_a_name_of_the_group() {
    let group = group(400);
    let first = start(&group, "a");
    let second = Member::start(group.clone(), "a", None).unwrap_err();
    assert!(
        second.to_string().contains("a member has one process"),
        "{second}"
    );
    let unknown = Member::start(group.clone(), "d", None).unwrap_err();
    assert!(matches!(&unknown, StartError::Unknown { known, .. } if known.len() == 3));
    assert!(
        unknown
            .to_string()
            .contains("no member \"d\", but: a, b, c"),
        "{unknown}"
    );
    // The address is free again when the program has dropped the member.
    drop(first);
    let again = async {
        while Member::start(group.clone(), "a", None).is_err() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, again).await.unwrap();
}

#[tokio::test]
async fn members_with_different_group_files_own_nothing_together() {
    let text = group_file(400);
    let ours = Group::from_toml(&text).unwrap();
    let theirs = Group::from_toml(&format!("rho = 0.002\n{text}")).unwrap();
    let a = start(&ours, "a");
    let _others = ["b", "c"].map(|name| start(&theirs, name));
    let wait = Wait::For(ours.restart_wait() + ours.settings().term);
    let refused = a.acquire(PRINTER, wait).await.unwrap_err();
    assert_eq!(refused, AcquireError::NoMajority);
}

#[tokio::test]
async fn every_member_finds_the_owner() {
    for group in groups(2_000) {
        let [a, b, c] = started(&group).await;
        // Members that have just started are not sure for a while.
        while b.owner(PRINTER).await != Owner::Free {
            sleep(Duration::from_millis(20)).await;
        }
        let held = a.acquire(PRINTER, Wait::No).await.unwrap();
        for member in [&a, &b, &c] {
            let Owner::Is {
                member,
                fence,
                at_most,
            } = member.owner(PRINTER).await
            else {
                panic!("nobody was found");
            };
            assert_eq!((member.as_str(), fence), ("a", held.fence()));
            assert!(!at_most.is_zero() && at_most < Duration::from_secs(3));
        }
        assert_eq!(held.release().await, Released::Yes);
        // Many programs ask at the same time.
        let asked = (0..20).map(|_| b.owner(PRINTER));
        let mut asked: Vec<_> = asked.map(Box::pin).collect();
        for query in &mut asked {
            assert_eq!(timeout(SOON, query).await.unwrap(), Owner::Free);
        }
        // Without a majority, nothing is known.
        a.stop().await;
        c.stop().await;
        assert_eq!(
            timeout(SOON, b.owner(PRINTER)).await.unwrap(),
            Owner::Unknown
        );
    }
}

#[tokio::test]
async fn a_lease_is_handed_over_to_the_named_member() {
    for group in groups(3_000) {
        let [a, b, c] = started(&group).await;
        let held = a.acquire(PRINTER, Wait::No).await.unwrap();
        let (b_waits, c_waits) = (
            tokio::spawn(async move { b.acquire(PRINTER, Wait::Forever).await }),
            tokio::spawn(async move { c.acquire(PRINTER, Wait::Forever).await }),
        );
        sleep(Duration::from_millis(200)).await;
        let unknown = held.hand_over("d").await.unwrap_err();
        assert!(
            unknown.to_string().contains("\"d\", but: a, b, c"),
            "{unknown}"
        );
        let held = unknown.held;
        assert!(matches!(held.check(), Check::Valid { .. }));
        let fence = held.fence();
        assert_eq!(held.hand_over("c").await.unwrap(), Released::Yes);
        let of_c = timeout(SOON, c_waits).await.unwrap().unwrap().unwrap();
        assert!(of_c.fence() > fence && !b_waits.is_finished());
        assert_eq!(of_c.release().await, Released::Yes);
        let of_b = timeout(SOON, b_waits).await.unwrap().unwrap().unwrap();
        assert_eq!(of_b.release().await, Released::Yes);
    }
}
