//! Tests of long scans, of exact bytes, and of copies from one cluster to another.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;

use rustix::fs::{FlockOperation, flock};

use super::command_line::StandaloneReplica;
use super::support::{Cluster, Place, signal, until};

/// Returns lines of JSON with the keys `key00000`, `key00001` and so on.
fn numbered(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, number| {
        _ = writeln!(
            text,
            "{{\"key\":\"key{number:05}\",\"value\":\"v{number}\"}}"
        );
        text
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns lines of JSON with random keys and values. Among the keys are some of the maximum length
/// in a row, and among the values are empty ones.
fn random_entries(count: usize) -> String {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize
    };
    let mut text = String::new();
    for number in 0..count {
        let mut key: Vec<u8> = (0..8 + next() % 33).map(|_| next() as u8).collect();
        let value: Vec<u8> = (0..next() % 200).map(|_| next() as u8).collect();
        match number {
            0 => key = vec![0xff; 4096],
            1 => key = [vec![0xff; 4095], vec![0xfe]].concat(),
            2..10 => key = [vec![b'k'; 4095], vec![number as u8 - 2 + 0xf8]].concat(),
            10 => key = b"\0".to_vec(),
            _ => {}
        }
        let (key, value) = (hex(&key), hex(&value));
        _ = writeln!(text, "{{\"key_hex\":\"{key}\",\"value_hex\":\"{value}\"}}");
    }
    text
}

#[test]
fn a_scan_goes_beyond_one_page() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    place.write("lines", &numbered(10_500));
    let imported = alone.kv("import lines");
    assert!(
        imported.err.contains("imported 10500 entries"),
        "{imported:#?}"
    );
    imported.good();

    let all = alone.kv("scan --prefix key --all --keys-only").good();
    let keys: Vec<String> = (0..10_500).map(|it| format!("key{it:05}")).collect();
    assert!(all.lines().eq(keys.iter().map(String::as_str)));
    let some = alone.kv("scan key00100 key10400 --limit 10250 -v");
    assert_eq!(some.err.matches("served: ").count(), 2, "{}", some.err);
    assert!(
        some.err
            .contains("note: 10250 entries, and there may be more")
    );
    let some = some.good();
    assert_eq!(some.lines().count(), 10_250);
    assert_eq!(some.lines().last(), Some("key10349\tv10349"));
    let rest = alone.kv("scan --prefix key --after key10498 --all");
    assert_eq!(rest.err, "");
    assert_eq!(rest.out, "key10499\tv10499\n");
    let usual = alone.kv("scan --prefix key");
    assert!(usual.err.contains("note: 100 entries"), "{usual:#?}");
    assert_eq!(usual.out.lines().count(), 100);
    assert_eq!(alone.kv("scan --prefix nothing --all").good(), "");
    let reversed = alone.kv("scan b a");
    assert!(
        reversed.err.contains("note: FROM is not before TO"),
        "{reversed:#?}"
    );
    assert_eq!(reversed.good(), "");
    assert!(
        alone
            .kv("scan --limit 1")
            .err
            .contains("note: 1 entry, and")
    );

    let shell = "{ \"$0\" \"$@\"; echo $? >status; } | head -n 1";
    for line in ["scan --all", "scan --all --json"] {
        let ended = alone.kv_in_shell(shell, line);
        assert_eq!(ended.err, "", "{line}: {ended:#?}");
        assert_eq!(place.read("status"), "0\n", "{line}");
    }
    let ended = alone.kv_in_shell(shell, "export");
    assert!(ended.err.contains("not complete"), "{ended:#?}");
    assert_eq!(place.read("status"), "1\n");
    for (line, parts) in [
        ("scan --limit 0", ["--limit", "--all"]),
        (
            "scan --hex abc",
            ["FROM: 3 hexadecimal digits", "two for each byte"],
        ),
        ("--hex scan --escapes", ["--hex", "--escapes"]),
        ("scan --escapes \\q", ["FROM: '\\q'", "\\u{1b}"]),
    ] {
        alone.kv(line).refused(&parts);
    }
    alone
        .kv("scan a --prefix a")
        .misused(&["--prefix", "cannot be used with"]);
    alone.done();
}

#[test]
fn pages_that_are_too_large_are_asked_for_again() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    place.write("lines", &numbered(300));
    alone.kv("import lines").good();
    let megabyte = "x".repeat(1 << 20);
    place.write("megabyte", &megabyte);
    for number in 0..10 {
        alone
            .kv(&format!("put key00150/{number} --file megabyte"))
            .good();
    }
    let scanned = alone.kv("scan --prefix key --limit 1000").good();
    assert_eq!(scanned.lines().count(), 310);
    let large = scanned.lines().filter(|line| line.ends_with(&megabyte));
    assert_eq!(large.count(), 10);
    alone.kv("export copy").good();
    assert_eq!(place.read("copy").lines().count(), 311);
    alone.done();
}

#[test]
fn bytes_are_given_and_printed_in_every_notation() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    let value = b"a\n\0\xff\\".to_vec();
    std::fs::write(place.path("value"), &value).unwrap();
    alone.kv("--hex put 6b00ff --file value").good();
    let bytes = |name| std::fs::read(place.path(name)).unwrap();
    alone.kv("get --hex 6b00ff --output copy").good();
    assert_eq!(bytes("copy"), value);
    let shell = "\"$0\" \"$@\" >copy";
    alone.kv_in_shell(shell, "get --hex 6b00ff --raw").good();
    assert_eq!(bytes("copy"), value);
    assert_eq!(alone.kv("get --hex 6b00ff").good(), "610a00ff5c\n");

    let printed = alone.kv("get --escapes k\\u{0}\\xff").good();
    assert_eq!(printed, "a\\n\\u{0}\\xff\\\\\n");
    let again = format!("put --escapes again\\t {}", printed.trim_end());
    alone.kv(&again).good();
    alone.kv("get --escapes again\\t --output copy").good();
    assert_eq!(bytes("copy"), value);
    alone
        .kv("cas --hex 6b00ff absent --file value")
        .refused(&[]);
    let json = alone.kv("get --escapes again\\t --json").good();
    let start = "{\"key\":\"again\\t\",\"value_hex\":\"610a00ff5c\",\"version\":\"";
    assert!(json.starts_with(start), "{json}");
    let scanned = alone.kv("scan --json --hex --prefix 6b --limit 5").good();
    assert!(scanned.starts_with("{\"key_hex\":\"6b00ff\","), "{scanned}");
    alone.kv("del --hex 6b00ff").good();
    alone
        .kv("get --hex 6b00ff --json")
        .refused(&["no such key"]);
    alone
        .kv("put key --file none")
        .refused(&["--file: reading none", "No such file"]);
    alone.kv("put key").misused(&["<VALUE>"]);
    alone.kv("put key value --file value").misused(&["--file"]);
    alone.done();
}

#[test]
fn a_transaction_executes_the_list_that_its_comparisons_choose() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    let txn = |text: &str, options: &[&str]| {
        let mut words = alone.words("txn");
        words.push(text.to_owned());
        words.extend(options.iter().map(|option| (*option).to_owned()));
        place.run(&words)
    };
    let order = "if absent order and value stock >= 1\n\
                 then put order \"a book\"; add stock -1; get order; append log 'sold;'\n\
                 else get order; get none";
    let refused = txn(order, &[]);
    assert_eq!(refused.out, "else\nmissing\torder\nmissing\tnone\n");
    refused.refused(&[
        "the comparison `value stock >= 1` did not hold: there is no such key",
        "the operations after `else` were executed",
    ]);
    assert_eq!(alone.kv("add stock 3").good(), "3\n");
    let sold = txn(order, &[]).good();
    assert_eq!(
        sold,
        "then\nwritten\torder\nsum\tstock\t2\nvalue\torder\ta book\nlength\tlog\t5\n"
    );
    let again = txn(order, &[]);
    assert_eq!(again.out, "else\nvalue\torder\ta book\nmissing\tnone\n");
    again.refused(&["`absent order` did not hold: the version is "]);
    let partly = txn(
        "if absent order then get log else add order 1; get log",
        &["--keep-going"],
    );
    partly.refused(&["1 of 2 operations after `else` was refused, and the others were executed"]);
    assert_eq!(alone.kv("get stock").good(), "2\n");
    txn("if value order < a then del order", &[]).refused(&[
        "`value order < a` did not hold: the value is \"a book\"",
        "nothing was executed",
    ]);

    // Each operation sees those before it, and a version is that of `get -v`.
    let text = "put k 1; get k; add k 1; append k 0; get k; del k; del k; get k";
    assert_eq!(
        txn(text, &[]).good(),
        "written\tk\nvalue\tk\t1\nsum\tk\t2\nlength\tk\t2\nvalue\tk\t20\nremoved\tk\t1\n\
         removed\tk\t0\nmissing\tk\n"
    );
    let written = txn("put k v", &["-v"]);
    let version = written
        .err
        .lines()
        .find_map(|line| line.strip_prefix("version: "));
    let text = format!("if version k = {} then put k w", version.unwrap());
    assert_eq!(txn(&text, &[]).good(), "then\nwritten\tk\n");
    txn(&text, &[]).refused(&["`version k = ", "the version is "]);

    // Nothing is executed if one operation cannot be, unless the others are to be.
    let text = "put k x; add log 1; put_fields r name Ada age 36; del_fields r age city";
    txn(text, &[]).refused(&["txn.then[1]", "no decimal integer"]);
    assert_eq!(alone.kv("get k").good(), "w\n");
    let kept = txn(text, &["--keep-going"]);
    assert!(
        kept.out
            .starts_with("written\tk\nrefused\tlog\tNOT_AN_INTEGER: "),
        "{kept:#?}"
    );
    assert!(
        kept.out.ends_with("\nwritten\tr\nremoved\tr\t1\n"),
        "{kept:#?}"
    );
    kept.refused(&["1 of 4 operations was refused"]);
    assert_eq!(alone.kv("get k").good(), "x\n");
    alone.done();
}

#[test]
fn a_transaction_comes_from_a_file_and_its_result_is_json() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    let text = "# begins anew\nif\n  absent \"k\\xff\"\nthen\n  put \"k\\xff\" '\"'\n  get \"k\\xff\"\n  \
                add n 5\n  append n 1\n  add \"k\\xff\" 1\nelse\n  get n; get none\n";
    place.write("text", text);
    let kept = alone.kv_from("text", "txn - --keep-going --json");
    let version = kept
        .out
        .split("\"version\":\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    let version = version.unwrap().to_owned();
    let start = format!(
        "{{\"branch\":\"then\",\"version\":\"{version}\",\"results\":[\
         {{\"op\":\"put\",\"key_hex\":\"6bff\",\"count\":1}},\
         {{\"op\":\"get\",\"key_hex\":\"6bff\",\"value\":\"\\\"\",\"version\":\"{version}\"}},\
         {{\"op\":\"add\",\"key\":\"n\",\"number\":5}},\
         {{\"op\":\"append\",\"key\":\"n\",\"count\":2}},\
         {{\"op\":\"add\",\"key_hex\":\"6bff\",\"error\":{{\"code\":\"NOT_AN_INTEGER\",\"message\":\""
    );
    assert!(kept.out.starts_with(&start), "{start} {kept:#?}");
    assert_eq!(kept.out.lines().count(), 1);
    kept.refused(&["1 of 5 operations"]);

    let otherwise = alone.kv("txn --file text --json");
    let json = format!(
        "{{\"branch\":\"else\",\"failed\":{{\"comparison\":0,\"key_hex\":\"6bff\",\"value\":\"\\\"\",\
         \"version\":\"{version}\"}},\"results\":[{{\"op\":\"get\",\"key\":\"n\",\"value\":\"51\",\
         \"version\":\"{version}\"}},{{\"op\":\"get\",\"key\":\"none\",\"missing\":true}}]}}\n"
    );
    assert_eq!(otherwise.out, json);
    otherwise.refused(&["`absent \"k\\xff\"` did not hold"]);
    place.write("present", "if present none then get n");
    let missing = alone.kv("txn --file present --json");
    let json = "{\"branch\":\"else\",\"failed\":{\"comparison\":0,\"key\":\"none\",\"missing\":true},\
                \"results\":[]}\n";
    assert_eq!(missing.out, json);
    place.write("hex", "get 6bff; get \"n\"");
    assert_eq!(
        alone.kv("--hex txn --file hex").good(),
        "value\t6bff\t22\nvalue\t6e\t3531\n"
    );

    // Errors name the place, and nothing is sent.
    place.write("wrong", "get n\nput n\n");
    alone
        .kv("txn --file wrong")
        .refused(&["the transaction: line 2, column 6: a word is missing; write put KEY VALUE"]);
    std::fs::write(place.path("bytes"), b"get \xff").unwrap();
    alone
        .kv("txn --file bytes")
        .refused(&["not UTF-8", "\\xff"]);
    alone
        .kv("txn --file none")
        .refused(&["--file: reading none", "No such file"]);
    alone.kv("txn").misused(&["<TRANSACTION>"]);
    alone.kv("txn get n").misused(&["'n'"]);
    alone.done();
}

#[test]
fn numbers_are_added_and_values_are_appended_to() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    assert_eq!(alone.kv("add n 40").good(), "40\n");
    assert_eq!(alone.kv("add n -50").good(), "-10\n");
    let added = alone.kv("add n 0 -v");
    assert!(added.err.contains("version: "), "{added:#?}");
    assert_eq!(alone.kv("append log ab").good(), "2\n");
    place.write("suffix", "c\nd");
    assert_eq!(alone.kv("append log --file suffix").good(), "5\n");
    assert_eq!(alone.kv_from("suffix", "append log -").good(), "8\n");
    assert_eq!(alone.kv("append --hex 6c6f67 ff").good(), "9\n");
    assert_eq!(alone.kv("get log --escapes").good(), "abc\\ndc\\nd\\xff\n");
    let refused = alone.kv("add log 1");
    assert!(!refused.err.contains("txn"), "{refused:#?}");
    refused.refused(&["add: ", "no decimal integer"]);
    let long = alone.kv(&format!("append {} x", "k".repeat(4097)));
    assert!(!long.err.contains("txn"), "{long:#?}");
    long.refused(&["append.key"]);
    alone.kv("add n x").misused(&["invalid value 'x'"]);
    alone
        .kv("append --hex 6c 0")
        .refused(&["SUFFIX: 1 hexadecimal digit:"]);
    alone.done();
}

#[test]
fn an_export_and_an_import_copy_a_cluster() {
    let (old, new) = (Cluster::up(), Cluster::up());
    old.place.write("lines", &random_entries(3000));
    old.kv("import lines").good();
    old.kv("put users/1 Ada").good();
    old.kv("put users/2 \u{1b}[31mGr\u{e9}ta").good();
    old.kv("export copy").good();
    let copy = old.place.read("copy");
    assert_eq!(copy.lines().count(), 3002);
    assert!(copy.contains("{\"key\":\"users/1\",\"value\":\"Ada\"}\n"));
    old.kv("export copy")
        .refused(&["copy exists", "not overwritten", "name a new file"]);
    old.kv("export copy --resume")
        .refused(&["copy is complete already"]);

    new.place.write("copy", &copy);
    new.kv("import copy").good();
    let copied = new.kv("export").good();
    assert!(copied == copy, "{} of {}", copied.len(), copy.len());
    let users = new.kv("export --prefix users/ --after users/1").good();
    assert!(users.starts_with("{\"key\":\"users/2\""), "{users}");
    assert_eq!(users.lines().count(), 1);

    // An export that was cut off goes on.
    for length in [0, 1, copy.len() / 3, copy.len() - 1, copy.len()] {
        new.place.write("cut.part", &copy[..length]);
        new.kv("export cut")
            .refused(&["cut.part is an unfinished export", "--resume"]);
        new.kv("export cut --resume").good();
        assert!(new.place.read("cut") == copy, "after {length} bytes");
        assert!(!new.place.path("cut.part").exists());
        std::fs::rename(new.place.path("cut"), new.place.path("cut.part")).unwrap();
    }
    new.kv("export cut --resume --prefix users").refused(&[
        "cut.part: --resume",
        "its last key",
        "--prefix",
    ]);
    let running = std::fs::File::open(new.place.path("cut.part")).unwrap();
    flock(&running, FlockOperation::LockExclusive).unwrap();
    new.kv("export cut --resume")
        .refused(&["cut.part is being written by another export"]);
    new.kv("export --resume").refused(&["--resume", "--after"]);
    old.done();
    new.done();
}

#[test]
fn an_import_that_fails_names_the_line_and_goes_on_from_it() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    let whole = numbered(2500) + "{\"key\":\"key00007\",\"value\":\"last\",\"version\":\"1.0\"}\n";
    place.write("lines", &whole);
    place.write("cut", &whole[..whole.len() - 30]);
    alone.kv("import cut").refused(&[
        "cut: line 2501: no valid entry: ",
        ". All lines before line 2501 are written; correct the file, and continue with --from-line 2501",
    ]);
    alone.kv_from("cut", "import -").refused(&[
        "standard input: line 2501: no valid entry: ",
        ". All lines before line 2501 are written; continue with --from-line 2501",
    ]);
    let blank = "\n".repeat(200);
    place.write("blank", &format!("\u{feff}{}{blank}", numbered(2)));
    let imported = alone.kv("import blank");
    assert!(!imported.err.contains('%'), "{imported:#?}");
    imported.good();
    assert_eq!(alone.kv("get key02499").good(), "v2499\n");
    alone.kv("del key00001").good();
    alone.kv("import lines --from-line 2501").good();
    assert_eq!(alone.kv("get key00007").good(), "last\n");
    alone.kv("get key00001").refused(&["no such key"]);
    alone
        .kv("import lines --from-line 2503")
        .refused(&["--from-line: lines has only 2501 lines"]);
    alone.kv("import none").refused(&["none", "No such file"]);
    alone
        .kv("import lines --from-line 0")
        .misused(&["--from-line"]);
    alone.kv_from("lines", "import -").good();
    assert_eq!(alone.kv("get key00001").good(), "v1\n");
    alone.done();
}

#[test]
fn ctrl_c_ends_an_import_that_can_go_on() {
    let place = Place::new();
    let alone = StandaloneReplica::start(&place);
    let mut import = place.start(&alone.words("import -"), Stdio::piped());
    let mut input = import.child.stdin.take().unwrap();
    input.write_all(numbered(1200).as_bytes()).unwrap();
    until("the first batch", || {
        alone.kv("get key00999").status.success()
    });
    signal("INT", import.child.id());
    import
        .wait()
        .interrupted(&["all lines before line 1001 are written", "--from-line 1001"]);
    drop(input);
    alone.done();
}

/// A later line must win even if the writes before it are still in flight, and are sent again.
#[test]
fn the_last_line_of_a_key_wins() {
    let cluster = Cluster::up();
    let mut lines = String::new();
    for number in 0..8000 {
        let (key, other) = (number % 3, number % 1500);
        _ = writeln!(lines, "{{\"key\":\"often{key}\",\"value\":\"{number}\"}}");
        _ = writeln!(lines, "{{\"key\":\"some{other}\",\"value\":\"{number}\"}}");
    }
    cluster.place.write("lines", &lines);
    cluster.kv("import lines").good();
    for (key, value) in [
        ("often0", 7998),
        ("often1", 7999),
        ("often2", 7997),
        ("some499", 7999),
        ("some500", 6500),
    ] {
        assert_eq!(
            cluster.kv(&format!("get {key}")).good(),
            format!("{value}\n")
        );
    }
    cluster.done();
}
