//! Exit statuses, on which scripts and service managers rely.

use super::support::Place;

#[test]
fn of_all_commands() {
    let place = Place::new();
    place.write("bad.toml", "cluster = 1\n");
    for (line, status) in [
        ("--version", 0),
        ("exp list", 0),
        ("sim --seeds 1 --seconds 1", 0),
        ("kv --address 127.0.0.1:1 --timeout 1 get k", 1),
        ("exp run nothing-of-this-name", 1),
        ("plot nothing.hlog", 1),
        ("ycsb run -P workloada --address 127.0.0.1:1", 1),
        ("no-such-command", 2),
        ("serve", 2),
        ("serve --config bad.toml --node A", 78),
        ("serve --config missing.toml --node A", 78),
    ] {
        let ended = place.words(line);
        assert_eq!(ended.status.code(), Some(status), "{line}: {ended:#?}");
    }
}
