//! The time that a program takes to find out whether it still owns a resource.

use std::hint::black_box;
use std::net::TcpListener;

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold_lock::{Check, Group, Held, Member, Wait};

/// Starts a group on loopback, and acquires a resource. The members have threads of their own, which
/// renew the lease meanwhile.
async fn held(clocks: &str) -> (Vec<Member>, Held) {
    let bound: Vec<_> = (0..3)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"))
        .collect();
    let mut text = format!("group = \"bench\"\nt_max_ms = 1000\n{clocks}");
    for (name, listener) in ["a", "b", "c"].iter().zip(&bound) {
        let address = listener.local_addr().expect("a bound socket");
        text += &format!("[[member]]\nname = {name:?}\naddress = \"{address}\"\n");
    }
    drop(bound);
    let group = Group::from_toml(&text).expect("a right group file");
    let start = |name| Member::start(group.clone(), name, None).expect("a free port");
    let members: Vec<_> = ["a", "b", "c"].map(start).into();
    let held = members[0].acquire("printer", Wait::Forever).await;
    (members, held.expect("nobody else wants it"))
}

fn check(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    for (name, clocks) in [
        ("bounded", ""),
        (
            "synchronised",
            "clocks = \"synchronised\"\nepsilon_ms = 20\n",
        ),
    ] {
        let (_members, held) = runtime.block_on(held(clocks));
        c.bench_function(&format!("check/{name}"), |bencher| {
            bencher.iter(|| {
                let check = black_box(held.check());
                assert!(matches!(check, Check::Valid { .. }));
            });
        });
        c.bench_function(&format!("left/{name}"), |bencher| {
            bencher.iter(|| black_box(held.left()));
        });
    }
}

criterion_group!(benches, check);
criterion_main!(benches);
