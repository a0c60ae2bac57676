//! Tests of `leasehold lock`, with members on loopback.

use std::process::Stdio;

use super::support::{CommandOutput, Place, RunningCommand, ports, signal, until};

/// Starts a member in the directory of its name.
fn serve<'a>(place: &'a Place, name: &str) -> RunningCommand<'a> {
    let words = [
        "lock",
        "serve",
        "--group",
        "group.toml",
        "--me",
        name,
        "--dir",
        name,
    ];
    place.start(&words, Stdio::null())
}

/// Returns the text of a group file.
fn group(t_max_ms: u64) -> String {
    let first = ports(3);
    let mut text = format!("group = \"test\"\nt_max_ms = {t_max_ms}\n");
    for (port, name) in (first..).zip(["a", "b", "c"]) {
        text += &format!("[[member]]\nname = {name:?}\naddress = \"127.0.0.1:{port}\"\n");
    }
    text
}

fn acquire(place: &Place, name: &str, wait: &str) -> CommandOutput {
    place.words(&format!("lock acquire --dir {name} printer --wait {wait}"))
}

/// Returns the fence token that a command has printed.
fn fence(out: &str) -> u64 {
    let (_, rest) = out.split_once("fence ").unwrap_or_else(|| panic!("{out}"));
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.unwrap().parse().unwrap()
}

#[test]
fn a_resource_goes_from_member_to_member() {
    let place = Place::new();
    place.write("group.toml", &group(2_000));
    let nobody = place.words("lock list --dir a");
    nobody.refused(&["a/control.sock: no member runs there", "lock serve --dir a"]);

    let mut members: Vec<_> = ["a", "b", "c"].map(|name| serve(&place, name)).into();
    until("the members' sockets", || {
        ["a", "b", "c"]
            .iter()
            .all(|name| place.path(name).join("control.sock").exists())
    });
    serve(&place, "a")
        .wait()
        .refused(&["another process uses this directory"]);
    let early = acquire(&place, "a", "0");
    early.refused(&["printer: this member has just started, and may not acquire anything for"]);

    let first = fence(&acquire(&place, "a", "forever").good());
    let listed = place.words("lock list --dir a").good();
    assert!(
        listed.starts_with(&format!("printer  fence {first}, valid for")),
        "{listed}"
    );
    acquire(&place, "b", "0").fails_with(10, &["printer: member \"a\" owns it", "at most"]);
    acquire(&place, "a", "0").refused(&["this member owns it already"]);
    place
        .words("lock release --dir b printer")
        .refused(&["this member does not own it"]);

    // A command that is interrupted gives its request up.
    let waiting = [
        "lock", "acquire", "--dir", "b", "printer", "--wait", "forever",
    ];
    let waiting = place.start(&waiting, Stdio::null());
    let id = waiting.child.id();
    std::thread::sleep(std::time::Duration::from_secs(1));
    signal("INT", id);
    waiting
        .wait()
        .interrupted(&["a request that waited is cancelled"]);

    place.words("lock release --dir a printer").good();
    let second = fence(&acquire(&place, "b", "60").good());
    assert!(second > first, "fence tokens rise");
    // The owner dies, and another member takes over.
    let owner = members.remove(1);
    signal("KILL", owner.child.id());
    assert!(!owner.wait().status.success());
    let third = fence(&acquire(&place, "c", "60").good());
    assert!(third > second, "fence tokens rise");
    // A member that ends properly releases its lease, and leaves no socket behind.
    let owner = members.pop().unwrap();
    signal("TERM", owner.child.id());
    let out = owner.wait().good();
    for line in [
        "member c runs; it may acquire resources in 2.0s",
        &format!("printer acquired, fence {third}"),
    ] {
        assert!(out.contains(line), "{out}");
    }
    assert!(!place.path("c").join("control.sock").exists());
    for member in members {
        signal("TERM", member.child.id());
        member.wait().good();
    }
}

/// Starts `lock run` with a line for the shell.
fn run<'a>(place: &'a Place, name: &str, line: &str) -> RunningCommand<'a> {
    let words = [
        "lock", "run", "--dir", name, "printer", "--", "sh", "-c", line,
    ];
    place.start(&words, Stdio::null())
}

/// Waits until a command that runs has written a file.
fn written(place: &Place, name: &str) -> String {
    let path = place.path(name);
    until(name, || {
        std::fs::read_to_string(&path).is_ok_and(|text| text.ends_with('\n'))
    });
    place.read(name)
}

#[test]
fn a_command_runs_only_while_its_member_owns_the_resource() {
    let place = Place::new();
    place.write("group.toml", &group(3_000));
    let members = ["a", "b", "c"].map(|name| serve(&place, name));
    until("the members' sockets", || {
        ["a", "b", "c"]
            .iter()
            .all(|name| place.path(name).join("control.sock").exists())
    });
    let line = "echo $LEASEHOLD_FENCE $LEASEHOLD_RESOURCE; exit 7";
    let out = run(&place, "a", line).wait();
    assert_eq!(out.status.code(), Some(7));
    let (first, name) = out.out.trim().split_once(' ').unwrap();
    let first: u64 = first.parse().unwrap();
    assert_eq!(name, "printer");
    let missing = place.words("lock run --dir a printer -- ./nothing");
    missing.fails_with(127, &["./nothing: No such file"]);

    // The command ends before the lease does, if its member does not renew it.
    let line = "trap 'echo term > ended; exit 0' TERM; echo $LEASEHOLD_FENCE > began; \
                sleep 1000 & wait";
    let stopped = run(&place, "a", line);
    let second: u64 = written(&place, "began").trim().parse().unwrap();
    assert!(second > first, "fence tokens rise");
    let owner = place.words("lock owner --dir b printer").good();
    assert!(
        owner.starts_with(&format!("owned by a, fence {second}, for ")),
        "{owner}"
    );
    let taken = place.words("lock run --dir b printer --wait 0 -- true");
    taken.fails_with(10, &["printer: member \"a\" owns it"]);
    for other in ["release --dir a printer", "hand-over --dir a printer b"] {
        let refused = place.words(&format!("lock {other}"));
        refused.refused(&["a `lock run` uses it: end that command instead"]);
    }
    let next = run(
        &place,
        "b",
        "echo $LEASEHOLD_FENCE > next; echo $$ > pid; exec sleep 1000",
    );
    signal("STOP", members[0].child.id());
    stopped.wait().fails_with(
        11,
        &[
            "the command gets SIGTERM",
            &format!("printer: lost, fence {second}: the group has not renewed it in time"),
        ],
    );
    assert_eq!(written(&place, "ended"), "term\n");
    let third: u64 = written(&place, "next").trim().parse().unwrap();
    assert!(third > second, "fence tokens rise");
    signal("CONT", members[0].child.id());

    // A command does not outlive its `lock run`. Its lease does, for a while.
    let pid = written(&place, "pid");
    signal("KILL", next.child.id());
    assert!(!next.wait().status.success());
    let of_command = format!("/proc/{}", pid.trim());
    until("the end of the command", || {
        !std::path::Path::new(&of_command).exists()
    });
    let owner = place.words("lock owner --dir c printer").good();
    assert!(
        owner.starts_with(&format!("owned by b, fence {third}, for ")),
        "{owner}"
    );
    acquire(&place, "c", "60").good();
    place
        .words("lock hand-over --dir c printer d")
        .refused(&["TO: the group has no member \"d\""]);
    place.words("lock hand-over --dir c printer a").good();
    for member in members {
        signal("TERM", member.child.id());
        member.wait().good();
    }
    place.assert_no_process_left();
}

#[test]
fn a_wrong_group_file_is_refused_with_its_field() {
    let place = Place::new();
    let good = group(2_000);
    for (text, told) in [
        (
            format!("clocks = \"synchronised\"\n{good}"),
            "needs `epsilon_ms`",
        ),
        (
            good.replace("\"b\"", "\"a\""),
            "`member.name` is \"a\": an earlier member has this name",
        ),
        (good.replace("2000", "50"), "`t_max_ms` is 50ms"),
    ] {
        place.write("group.toml", &text);
        serve(&place, "a").wait().refused(&["group.toml: ", told]);
    }
    place.write("group.toml", &good);
    let unknown = place.words("lock serve --group group.toml --me d --dir d");
    unknown.refused(&["the group has no member \"d\", but: a, b, c"]);
    let wait = place.words("lock acquire --dir a printer --wait long");
    wait.misused(&[
        "--wait",
        "give a number of seconds, such as 2.5, or `forever`",
    ]);
}

#[test]
fn the_demonstration_ends_with_a_picture() {
    let place = Place::new();
    let out = place
        .words("lock demo --t-max-ms 1000 --out picture.svg")
        .good();
    for part in [
        "is killed (kill -9)",
        "no two members owned it",
        "picture.svg",
    ] {
        assert!(out.contains(part), "{out}");
    }
    let picture = place.read("picture.svg");
    assert!(
        picture.starts_with("<svg") && picture.contains("3 kills"),
        "{picture}"
    );
    place.assert_no_process_left();
}
