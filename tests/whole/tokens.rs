//! Tokens as an operator makes, gives and revokes them.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use super::support::{Place, ports, until};

fn mode(place: &Place, name: &str) -> u32 {
    let metadata = std::fs::metadata(place.path(name)).unwrap();
    metadata.permissions().mode() & 0o7777
}

fn set_mode(place: &Place, name: &str, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(place.path(name), permissions).unwrap();
}

#[test]
fn a_token_is_made_given_used_and_revoked() {
    let place = Place::new();
    let port = ports(2);
    place.write(
        "cluster.toml",
        &format!(
            "cluster = \"test\"\ndata = \"data\"\n[security]\ntokens = \"tokens.toml\"\n[[node]]\n\
             name = \"CA\"\nclient = \"127.0.0.1:{port}\"\npeer = \"127.0.0.1:{}\"\n",
            port + 1
        ),
    );
    let serve = ["serve", "--config", "cluster.toml", "--node", "CA"];
    place
        .run(&serve)
        .refused_for_good(&["[security] tokens", "tokens.toml", "No such file"]);
    let new = place.words("token new app1 --read users/ --write users/ --out app1.token");
    assert_eq!(new.good(), "", "the token is in a file");
    let printed = place
        .words("token new op --admin --expires 2200-01-01")
        .good();
    place.write("op.token", &printed);
    assert_eq!(mode(&place, "tokens.toml"), 0o600);
    assert_eq!(mode(&place, "app1.token"), 0o600);
    let app1 = place.read("app1.token");
    let file = place.read("tokens.toml");
    for token in [&app1, &printed] {
        assert!(token.starts_with("lh_") && token.trim_end().len() == 67);
        assert!(!file.contains(token.trim_end()), "the file has digests");
    }
    let list = place.words("token list").good();
    for part in [
        "read \"users/\", write \"users/\"",
        "2200-01-01",
        "administer",
        "no end",
    ] {
        assert!(list.contains(part), "{list}");
    }

    let serve = [&serve[..], &["--until-stdin-closes"]].concat();
    // Its log has all that it can report, and no token.
    let traces = "RUST_LOG=trace exec \"$0\" \"$@\"";
    let mut replica = place.start_in_shell(traces, &serve, Stdio::piped());
    let kv = |line: &str| {
        place.words(&format!(
            "kv --timeout 60 --address 127.0.0.1:{port} {line}"
        ))
    };
    let with = |line: &str| kv(&format!("--token-file app1.token {line}"));
    until("the replica", || with("put users/1 Ada").status.success());
    assert_eq!(with("get users/1").good(), "Ada\n");
    assert_eq!(with("scan users/ users0").good(), "users/1\tAda\n");
    with("get other").refused(&["PERMISSION_DENIED", "get of \"other\""]);
    with("scan users/").refused(&["PERMISSION_DENIED", "to the end", "scan less"]);
    kv("get users/1").refused(&["UNAUTHENTICATED", "--token-file"]);
    let open = "its mode 0644 lets others";
    set_mode(&place, "op.token", 0o644);
    let leader = format!("leader --address 127.0.0.1:{port} --token-file op.token");
    place
        .words(&format!("{leader} show"))
        .refused(&["op.token", open, "chmod 600"]);
    set_mode(&place, "op.token", 0o600);
    place.words(&format!("{leader} move CA")).good();
    let denied = format!("leader --address 127.0.0.1:{port} --token-file app1.token move CA");
    place
        .words(&denied)
        .refused(&["moving leadership", "admin"]);

    // The path may come from a variable; the token may not.
    let by_variable = |host: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        let address = format!("{host}:{port}");
        let words = ["kv", "--address", &address, "get", "users/1"];
        let command = command.args(words).current_dir(place.path(""));
        command.env("LEASEHOLD_TOKEN_FILE", value).output().unwrap()
    };
    assert_eq!(by_variable("127.0.0.1", "app1.token").stdout, b"Ada\n");
    let misused = by_variable("127.0.0.1", app1.trim_end());
    let errors = String::from_utf8_lossy(&misused.stderr).into_owned();
    assert!(
        errors.contains("revoke it") && !errors.contains("lh_"),
        "{errors}"
    );

    let elsewhere = by_variable("192.0.2.1", "app1.token");
    let errors = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    for part in [
        "not sent to 192.0.2.1",
        "--token-file",
        "--ca FILE",
        "--plain-token",
    ] {
        assert!(errors.contains(part), "{errors}");
    }
    let ycsb = "ycsb load -P workloada --token-file app1.token --address 192.0.2.1:1";
    place
        .words(ycsb)
        .refused(&["not sent to 192.0.2.1:1", "--ca FILE"]);

    assert!(place.words("token revoke app1").good().contains("revoked"));
    until("the revocation", || !with("get users/1").status.success());
    with("get users/1").refused(&["UNAUTHENTICATED", "revoked"]);
    drop(replica.child.stdin.take());
    let ended = replica.wait();
    assert!(ended.err.contains("clients need a token"), "{}", ended.err);
    assert!(!ended.err.contains("lh_"), "{}", ended.err);
    ended.good();
}

/// A user may have put the token itself into the variable that should name the file of the token.
#[test]
fn no_help_shows_what_variables_of_tokens_hold() {
    let token = format!("lh_{}", "5".repeat(64));
    for command in ["kv", "leader", "lease", "token", "ycsb", "serve"] {
        for help in ["-h", "--help"] {
            let mut leasehold = Command::new(env!("CARGO_BIN_EXE_leasehold"));
            for variable in ["LEASEHOLD_TOKEN_FILE", "LEASEHOLD_TOKEN"] {
                leasehold.env(variable, &token);
            }
            let said = leasehold.args([command, help]).output().unwrap();
            let said = [said.stdout, said.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(said.contains("Usage"), "{command} {help}: {said}");
            assert!(!said.contains("lh_5"), "{command} {help}: {said}");
        }
    }
}

#[test]
fn mistakes_with_tokens_are_told() {
    let place = Place::new();
    place
        .words("token list")
        .refused(&["tokens.toml", "No such file", "token new NAME --file"]);
    place.words("token revoke x").refused(&["tokens.toml"]);
    place.words("token new a").good();
    let note = place.words("token new b");
    assert!(note.err.contains("it has no rights"), "{note:#?}");
    place
        .words("token new a")
        .refused(&["'a' already", "token revoke a --file tokens.toml"]);
    place
        .words("token new anonymous --out there")
        .refused(&["--out", "none to write"]);
    place
        .words("token new a,b")
        .refused(&["'a,b'", "1 to 64 letters"]);
    place
        .words("token new c --expires soon")
        .refused(&["--expires", "'soon'", "2027-01-01"]);
    place
        .words("token new c --expires 2020-01-01")
        .refused(&["2020-01-01 has passed"]);
    place.write("there", "");
    place
        .words("token new c --out there")
        .refused(&["--out", "there exists", "name a new file"]);
    assert_eq!(place.read("there"), "");
    place
        .words("token revoke c")
        .refused(&["no token 'c'", "token list"]);
    set_mode(&place, "tokens.toml", 0o640);
    place
        .words("token new c")
        .refused(&["mode 0640", "chmod 600"]);
    assert!(!place.read("tokens.toml").contains("\"c\""));
    set_mode(&place, "tokens.toml", 0o600);
    place.words("token revoke a").good();
    place.words("token revoke b").good();
    let none = place.read("tokens.toml");
    assert!(
        none.contains("token = []"),
        "told from a file that was cut off: {none}"
    );
    place.words("token list").good();
    place.words("token new a").good();
    place.words("token list").good();
    place.write("tokens.toml", "");
    place
        .words("token list")
        .refused(&["tokens.toml: holds no token", "token = []"]);
    place.words("token new a").good();
    place.write("tokens.toml", "nonsense");
    place
        .words("token list")
        .refused(&["tokens.toml", "line 1"]);

    let port = ports(2);
    place.write(
        "cluster.toml",
        &format!(
            "cluster = \"test\"\ndata = \"data\"\n[security]\ncertificates = \"certs\"\n[[node]]\n\
             name = \"CA\"\nclient = \"0.0.0.0:{port}\"\npeer = \"127.0.0.1:{}\"\n",
            port + 1
        ),
    );
    let serve = ["serve", "--config", "cluster.toml", "--node", "CA"];
    place
        .run(&serve)
        .refused_for_good(&["client of node CA", "token new", "insecure = true"]);
}
