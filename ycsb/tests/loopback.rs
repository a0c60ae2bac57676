//! End-to-end tests: a command line of YCSB and the real client. A socket connects the client to a
//! small server with a store in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use leasehold_transport::{FrameReader, FrameWriter};
use leasehold_wire::{
    Command, Entry, Error, ErrorCode, Hello, Outcome, Path, Record, Request, Response, StatusReply,
    Version, Welcome, command::Op, request::Body,
};
use leasehold_ycsb::args::{Invocation, parse};
use leasehold_ycsb::command::{CommandError, execute};
use leasehold_ycsb::runner::{BenchmarkOutcome, CancellationToken};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

type Records = Arc<Mutex<BTreeMap<Bytes, Bytes>>>;

/// Starts a server with a store on a new port. Returns the address and the records of the store.
async fn serve() -> (String, Records) {
    serve_until(None).await
}

/// Starts a server as `serve` does. After a total of `answers` answers, the server closes every
/// connection and refuses new connections.
async fn serve_until(answers: Option<u64>) -> (String, Records) {
    let records = Records::default();
    let address = serve_at("127.0.0.1:0", answers, &records).await;
    (address, records)
}

async fn serve_at(address: &str, answers: Option<u64>, records: &Records) -> String {
    let (dies, dead) = tokio::sync::watch::channel(false);
    let left = Arc::new(Mutex::new(answers));
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let shared = Arc::clone(records);
    tokio::spawn(async move {
        let mut over = dead.clone();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((socket, _)) = accepted else { return };
                    let (records, left) = (Arc::clone(&shared), Arc::clone(&left));
                    let (dies, mut over) = (dies.clone(), dead.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = converse(socket, records, left, dies) => {}
                            _ = over.wait_for(|over| *over) => {}
                        }
                    });
                }
                _ = over.wait_for(|over| *over) => return,
            }
        }
    });
    address
}

async fn converse(
    socket: TcpStream,
    records: Records,
    left: Arc<Mutex<Option<u64>>>,
    dies: tokio::sync::watch::Sender<bool>,
) {
    socket.set_nodelay(true).unwrap();
    let (read, write) = socket.into_split();
    let (mut reader, mut writer) = (FrameReader::new(read), FrameWriter::new(write));
    reader.next::<Hello>().await.unwrap().unwrap();
    let replica = "CA".to_owned();
    let welcome = Welcome {
        replica,
        ..Welcome::default()
    };
    writer.feed(&welcome).unwrap();
    writer.flush().await.unwrap();
    while let Ok(Some(request)) = reader.next::<Request>().await {
        let response = match request.body.unwrap() {
            Body::Command(command) => {
                if let Some(left) = left.lock().unwrap().as_mut() {
                    if *left == 0 {
                        dies.send_replace(true);
                        return;
                    }
                    *left -= 1;
                }
                let (outcome, path) = answer(command, &mut records.lock().unwrap());
                Response::answer(request.id, path, outcome)
            }
            Body::Status(_) => Response::status(request.id, StatusReply::default()),
            Body::Move(_) | Body::Lease(_) => panic!("a workload changes no cluster"),
        };
        writer.feed(&response).unwrap();
        if writer.flush().await.is_err() {
            return;
        }
    }
}

fn answer(command: Command, records: &mut BTreeMap<Bytes, Bytes>) -> (Outcome, Path) {
    let written = Outcome::written(Version { slot: 1, index: 0 });
    let outcome = match command.op.unwrap() {
        Op::Get(get) => match records.get(&get.key) {
            Some(value) => Outcome::value(value.clone(), Version { slot: 1, index: 0 }),
            None => Outcome::missing(),
        },
        Op::Put(put) => {
            records.insert(put.key, put.value);
            return (written, Path::Log);
        }
        Op::PutFields(put) => {
            let mut record = Record::decode(records[&put.key].clone()).unwrap();
            for field in put.fields {
                let same = record.fields.iter_mut().find(|old| old.name == field.name);
                same.unwrap().value = field.value;
            }
            records.insert(put.key, record.encode_to_vec().into());
            return (written, Path::Log);
        }
        Op::Scan(scan) => {
            let found = records.range(scan.from..).take(scan.limit as usize);
            let entries = found.map(|(key, value)| Entry {
                key: key.clone(),
                value: value.clone(),
                version: Some(Version { slot: 1, index: 0 }),
            });
            Outcome::entries(entries.collect())
        }
        _ => Outcome::error(ErrorCode::BadRequest, "not YCSB"),
    };
    (outcome, Path::Local)
}

/// Carries out a command line. Returns the printed text, and the outcome of the run.
async fn ycsb(line: &str) -> Result<(String, BenchmarkOutcome), CommandError> {
    let (printed, outcome) = ycsb_printed(line).await;
    Ok((printed, outcome?))
}

/// As `ycsb`, but also returns the text that was printed before an error.
async fn ycsb_printed(line: &str) -> (String, Result<BenchmarkOutcome, CommandError>) {
    let Invocation::Execute(args) = parse(line.split_whitespace()).unwrap() else {
        panic!("{line} asks for help");
    };
    let mut out = Vec::new();
    let outcome = execute(&args, &mut out, &CancellationToken::new()).await;
    (String::from_utf8(out).unwrap(), outcome)
}

fn figure(report: &str, line: &str) -> u64 {
    let found = report
        .lines()
        .find_map(|l| l.strip_prefix(line)?.strip_prefix(", "));
    let found = found.unwrap_or_else(|| panic!("no {line} in\n{report}"));
    found.parse().unwrap()
}

#[tokio::test]
async fn every_shipped_workload_runs() {
    for name in ["a", "b", "c", "d", "e", "f"] {
        let (address, records) = serve().await;
        let common =
            format!("-P workload{name} --address {address} -threads 4 -p dataintegrity=true");
        let (report, loaded) = ycsb(&format!("load {common}")).await.unwrap();
        assert_eq!(figure(&report, "[INSERT], Operations"), 1_000);
        assert_eq!(loaded.account.succeeded, 1_000);
        assert_eq!(records.lock().unwrap().len(), 1_000);

        let (report, outcome) = ycsb(&format!("run {common}")).await.unwrap();
        assert_eq!(outcome.account.succeeded, 1_000);
        assert!(!report.contains("-FAILED"), "{report}");
        assert!(report.starts_with("[OVERALL], RunTime(ms), "), "{report}");
        if report.contains("[READ], ") {
            let reads = figure(&report, "[READ], Return=OK");
            assert_eq!(figure(&report, "[READ@local], Operations"), reads);
            assert_eq!(figure(&report, "[VERIFY], Return=OK"), reads);
        }
    }
}

#[tokio::test]
async fn files_are_written_where_they_are_asked_for() {
    let (address, _) = serve().await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let common = format!("-P workloada --address {address} -p site=CA");
    ycsb(&format!("load {common}")).await.unwrap();
    let line = format!(
        "run {common} -target 4000 -p hdrhistogram.fileoutput=true \
         -p hdrhistogram.output.path={at}/ -p exportfile={at}/report.json \
         -p exporter=site.ycsb.measurements.exporter.JSONArrayMeasurementsExporter"
    );
    let (printed, _) = ycsb(&line).await.unwrap();
    assert_eq!(printed, "");
    let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: Vec<serde_json::Value> = serde_json::from_str(&report).unwrap();
    let intended = report
        .iter()
        .filter(|line| line["metric"] == "Intended-READ");
    assert!(intended.count() >= 7, "{report:?}");

    let tags = leasehold_ycsb::measurement::read_hlog(&folder.path().join("latency.hlog")).unwrap();
    let names: Vec<_> = tags.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "CA:Intended-ALL",
            "CA:Intended-READ:local",
            "CA:Intended-UPDATE:log",
            "CA:READ:local",
            "CA:UPDATE:log"
        ]
    );
    let both: u64 = ["CA:READ:local", "CA:UPDATE:log"]
        .iter()
        .map(|tag| tags[*tag].len())
        .sum();
    assert_eq!(both, 1_000);
    for file in [
        "READ.hdr",
        "READ.hgrm",
        "Intended-UPDATE.hdr",
        "Intended-UPDATE.hgrm",
    ] {
        assert!(folder.path().join(file).exists(), "{file}");
    }
}

#[tokio::test]
async fn the_report_is_printed_although_a_file_cannot_be_written() {
    let (address, _) = serve().await;
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let common = format!("-P workloada --address {address}");
    ycsb(&format!("load {common}")).await.unwrap();
    // Directories have the names of these files.
    for name in ["READ.hgrm", "logs/READ.hdr", "report.json"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    let histograms = "-p hdrhistogram.fileoutput=true -p hdrhistogram.output.path";
    let cases = [
        (format!("{histograms}={at}/"), "READ.hgrm: Is a directory"),
        (
            format!("{histograms}={at}/logs/"),
            "READ.hdr: Is a directory",
        ),
        ("-p exportfile=/dev/full".to_owned(), "exportfile"),
    ];
    for (options, words) in cases {
        let (printed, outcome) = ycsb_printed(&format!("run {common} {options}")).await;
        assert_eq!(
            figure(&printed, "[OVERALL], Operations"),
            1_000,
            "{options}"
        );
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    // One file is missing; the others are complete.
    let all =
        leasehold_ycsb::measurement::read_hlog(&folder.path().join("logs/latency.hlog")).unwrap();
    assert_eq!(all.values().map(|tag| tag.len()).sum::<u64>(), 1_000);
    for file in ["UPDATE.hgrm", "logs/READ.hgrm", "logs/UPDATE.hdr"] {
        let file = folder.path().join(file);
        assert!(file.metadata().unwrap().len() > 0, "{}", file.display());
    }
    // A fault that can be found before the run ends the run before it starts.
    let file = folder.path().join("report.json");
    let line = format!("run {common} -p exportfile={}", file.display());
    let (printed, outcome) = ycsb_printed(&line).await;
    assert_eq!(printed, "");
    assert!(outcome.unwrap_err().to_string().contains("exportfile"));
}

#[tokio::test]
async fn load_generators_that_insert_the_same_records_are_told_so_and_parts_keep_them_apart() {
    let (address, records) = serve().await;
    let common = format!("-P workloadd --address {address} -p recordcount=100 -threads 2");
    ycsb(&format!("load {common}")).await.unwrap();
    let insert =
        format!("run {common} -p readproportion=0 -p insertproportion=1 -p operationcount=500");
    let part = |part: &str| format!("{insert} -p insertpart={part}");
    let (first, second) = (part("1/2"), part("2/2"));
    let (first, second) = tokio::join!(ycsb(&first), ycsb(&second));
    for report in [first.unwrap().0, second.unwrap().0] {
        assert_eq!(figure(&report, "[INSERT], Return=OK"), 500);
        assert!(!report.contains("OVERWRITES"), "{report}");
    }
    assert_eq!(records.lock().unwrap().len(), 1_100);
    // Another load generator, to which no part is assigned.
    let (report, outcome) = ycsb(&insert).await.unwrap();
    assert_eq!(figure(&report, "[INSERT], Return=OK"), 500);
    assert_eq!(records.lock().unwrap().len(), 1_100, "none is new");
    // Checks before the 1st, 2nd, 4th ... 256th insertion.
    assert_eq!(figure(&report, "[INSERT-OVERWRITES], Probed"), 9);
    assert_eq!(figure(&report, "[INSERT-OVERWRITES], Found"), 9);
    let warnings = leasehold_ycsb::summary::warnings(&outcome, &[]);
    assert!(warnings[0].contains("insertpart=1/N"), "{warnings:?}");
}

/// Standard output that fails as if its reader had gone, or the disk were full.
struct BrokenOutput(std::io::ErrorKind);

impl std::io::Write for BrokenOutput {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
    use std::io::ErrorKind::{BrokenPipe, StorageFull};
    let (address, _) = serve().await;
    let line = format!("load -P workloada --address {address}");
    let Invocation::Execute(args) = parse(line.split_whitespace()).unwrap() else {
        panic!("{line} asks for help");
    };
    for (kind, good) in [(BrokenPipe, true), (StorageFull, false)] {
        let outcome = execute(&args, &mut BrokenOutput(kind), &CancellationToken::new()).await;
        assert_eq!(outcome.is_ok(), good, "{kind:?}");
    }
}

#[tokio::test]
async fn reads_of_what_was_never_loaded_are_failures() {
    let (address, _) = serve().await;
    let (report, _) = ycsb(&format!("run -P workloadc --address {address}"))
        .await
        .unwrap();
    assert_eq!(figure(&report, "[READ], Operations"), 0);
    assert_eq!(figure(&report, "[READ], Return=NOT_FOUND"), 1_000);
    assert_eq!(figure(&report, "[READ-FAILED], Operations"), 1_000);
}

/// Waits until no server listens at the address any more.
async fn until_closed(address: &str) {
    while TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Returns an address at which no server listens.
async fn nowhere() -> String {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    free.local_addr().unwrap().to_string()
}

#[tokio::test]
async fn a_run_begins_without_a_replica_and_its_threads_ask_another() {
    let (address, records) = serve().await;
    let dead = nowhere().await;
    let line = format!("load -P workloada -p recordcount=60 -threads 6 --address {dead},{address}");
    let (report, _) = ycsb(&line).await.unwrap();
    assert_eq!(figure(&report, "[INSERT], Return=OK"), 60);
    assert!(!report.contains("-FAILED"), "{report}");
    assert_eq!(records.lock().unwrap().len(), 60);
    // Sites keep their own threads: requests that another replica serves are still included here.
    assert_eq!(figure(&report, "[INSERT@CA], Operations"), 30);
}

#[tokio::test]
async fn a_replica_that_dies_is_named_and_its_outage_is_told() {
    let (address, _) = serve_until(Some(100 + 20)).await;
    let load = format!("load -P workloadb -p recordcount=100 --address {address}");
    ycsb(&load).await.unwrap();
    let line = format!(
        "run -P workloadb -p recordcount=100 -p site=JP --address {address} -threads 2 \
         -p operationcount=0 -p maxexecutiontime=1 -p leasehold.timeout_ms=100"
    );
    let (report, outcome) = ycsb(&line).await.unwrap();
    assert_eq!(
        figure(&report, &format!("[REPLICA@{address}], Answered")),
        20
    );
    assert!(figure(&report, &format!("[REPLICA@{address}], Unanswered")) > 0);
    let since = figure(&report, &format!("[REPLICA@{address}], SilentSince(ms)"));
    let began = figure(&report, "[READS@JP], LongestGapStart(ms)");
    let gap = figure(&report, "[READS@JP], LongestGap(ms)");
    assert_eq!(figure(&report, "[OVERALL], RunTime(ms)"), 1_000);
    assert!(began <= since && began + gap >= 999, "{report}");
    let account = outcome.account;
    assert_eq!(
        account.succeeded + account.failed + account.abandoned,
        account.intended()
    );
    assert!(account.failed > 0, "{account:?}");
}

#[tokio::test]
async fn operations_wait_for_the_only_replica_to_come_back_and_the_gap_is_told() {
    let (address, records) = serve_until(Some(100 + 20)).await;
    let load = format!("load -P workloadb -p recordcount=100 --address {address}");
    ycsb(&load).await.unwrap();
    let line = format!(
        "run -P workloadb -p recordcount=100 -p site=JP --address {address} -threads 2 \
         -p operationcount=200 -p leasehold.timeout_ms=60000 -p leasehold.attempt_timeout_ms=20"
    );
    let comes_back = async {
        until_closed(&address).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        serve_at(&address, None, &records).await
    };
    let (run, _) = tokio::join!(ycsb(&line), comes_back);
    let (report, outcome) = run.unwrap();
    let account = outcome.account;
    assert_eq!((account.succeeded, account.failed), (200, 0), "{report}");
    assert_eq!(
        figure(&report, &format!("[REPLICA@{address}], Answered")),
        200
    );
    assert!(!report.contains("SilentSince"), "{report}");
    assert!(
        figure(&report, "[READS@JP], LongestGap(ms)") >= 250,
        "{report}"
    );
}

/// Starts a server that refuses the token of every client.
async fn refuse_at(address: &str) {
    let listener = TcpListener::bind(address).await.unwrap();
    while let Ok((socket, _)) = listener.accept().await {
        let (read, write) = socket.into_split();
        let (mut reader, mut writer) = (FrameReader::new(read), FrameWriter::new(write));
        reader.next::<Hello>().await.unwrap().unwrap();
        let revoked = Error::new(ErrorCode::Unauthenticated, "revoked");
        writer.feed(&Response::refusal(0, revoked)).unwrap();
        writer.flush().await.unwrap();
    }
}

/// After a refused token, the client immediately refuses further requests by itself. Without a
/// pause, there would be hundreds of thousands of refusals per second.
#[tokio::test]
async fn who_loses_its_token_does_not_spin() {
    let (address, _) = serve_until(Some(100 + 20)).await;
    let load = format!("load -P workloadc -p recordcount=100 --address {address}");
    ycsb(&load).await.unwrap();
    let line = format!(
        "run -P workloadc -p recordcount=100 --address {address} -threads 2 \
         -p operationcount=0 -p maxexecutiontime=2"
    );
    let is_revoked = async {
        until_closed(&address).await;
        refuse_at(&address).await;
    };
    let report = tokio::select! {
        ran = ycsb(&line) => ran.unwrap().0,
        () = is_revoked => panic!("it refuses until the end"),
    };
    assert_eq!(figure(&report, "[READ], Return=OK"), 20);
    let refused = figure(&report, "[READ], Return=FORBIDDEN");
    // Ten a second for each thread, except those that waited for a replica.
    assert!((2..=42).contains(&refused), "{report}");
}

#[tokio::test]
async fn a_replica_that_is_not_there_is_an_error() {
    let address = nowhere().await;
    // The refusal is reported immediately, for any timeout of operations.
    let line = format!("run -P workloadc --address {address} -p leasehold.timeout_ms=600000");
    let result = ycsb(&line).await;
    assert!(
        matches!(result, Err(CommandError::Connect(_))),
        "{result:?}"
    );
}

/// Serves a store that answers commands only after `many` of them have arrived on one connection.
/// Counts the connections that carried commands.
async fn serve_at_once(many: usize) -> (String, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let used = Arc::new(Mutex::new(0));
    let count = Arc::clone(&used);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(gather(socket, many, Arc::clone(&count)));
        }
    });
    (address, used)
}

async fn gather(socket: TcpStream, many: usize, used: Arc<Mutex<usize>>) {
    let (read, write) = socket.into_split();
    let (mut reader, mut writer) = (FrameReader::new(read), FrameWriter::new(write));
    reader.next::<Hello>().await.unwrap().unwrap();
    let welcome = Welcome {
        replica: "A".to_owned(),
        ..Welcome::default()
    };
    writer.feed(&welcome).unwrap();
    writer.flush().await.unwrap();
    let (mut waiting, mut is_used) = (Vec::new(), false);
    while let Ok(Some(request)) = reader.next::<Request>().await {
        if let Some(Body::Status(_)) = request.body {
            let status = Response::status(request.id, StatusReply::default());
            writer.feed(&status).unwrap();
        } else {
            *used.lock().unwrap() += usize::from(!std::mem::replace(&mut is_used, true));
            waiting.push(request.id);
        }
        if waiting.len() == many {
            for id in waiting.drain(..) {
                let value = Outcome::value("v", Version { slot: 1, index: 0 });
                writer
                    .feed(&Response::answer(id, Path::Local, value))
                    .unwrap();
            }
        }
        writer.flush().await.unwrap();
    }
}

#[tokio::test]
async fn threads_that_share_a_connection_have_their_operations_in_flight_together() {
    let (address, used) = serve_at_once(8).await;
    let line = format!(
        "run -P workloadc --address {address} -threads 16 -p leasehold.connections=2 \
         -p operationcount=1600"
    );
    let (report, outcome) = ycsb(&line).await.unwrap();
    assert_eq!(outcome.account.succeeded, 1_600, "{report}");
    assert_eq!(*used.lock().unwrap(), 2);
}

#[tokio::test]
async fn what_several_cores_measure_is_one_report() {
    let (address, _) = serve().await;
    let common = format!("-P workloada --address {address} -p site=CA -p recordcount=100");
    ycsb(&format!("load {common}")).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    let line = format!(
        "run {common} -threads 12 -p leasehold.connections=6 -p leasehold.cores=3 \
         -p operationcount=600 -p hdrhistogram.fileoutput=true -p hdrhistogram.output.path={at}/"
    );
    let (report, outcome) = ycsb(&line).await.unwrap();
    assert_eq!(outcome.account.succeeded, 600);
    let parts = ["[READ], Operations", "[UPDATE], Operations"];
    let sum: u64 = parts.iter().map(|part| figure(&report, part)).sum();
    assert_eq!(sum, 600, "{report}");
    assert_eq!(
        figure(&report, &format!("[REPLICA@{address}], Answered")),
        600
    );
    let tags = leasehold_ycsb::measurement::read_hlog(&folder.path().join("latency.hlog")).unwrap();
    assert_eq!(tags.values().map(|all| all.len()).sum::<u64>(), 600);
}
