use super::*;
use std::collections::{BTreeMap, HashSet};

fn workload(text: &str) -> CoreWorkload {
    CoreWorkload::new(&properties(text)).unwrap()
}

fn properties(text: &str) -> Properties {
    let mut properties = Properties::new();
    properties.load_text("base", "recordcount=1000").unwrap();
    properties.load_text("test", text).unwrap();
    properties
}

fn refusal(text: &str) -> String {
    CoreWorkload::new(&properties(text))
        .unwrap_err()
        .to_string()
}

fn draw(workload: &CoreWorkload, count: usize) -> Vec<WorkloadOperation> {
    let mut thread = workload.thread(0, 0);
    (0..count).map(|_| thread.next().unwrap()).collect()
}

fn shipped(name: &str) -> CoreWorkload {
    let mut properties = Properties::new();
    properties.load_file(name).unwrap();
    CoreWorkload::new(&properties).unwrap()
}

fn shares(operations: &[WorkloadOperation]) -> BTreeMap<OpKind, f64> {
    let mut shares = BTreeMap::new();
    for operation in operations {
        *shares.entry(operation.kind).or_default() += 1.0 / operations.len() as f64;
    }
    shares
}

#[test]
fn shipped_workloads_have_their_mix() {
    use OpKind::*;
    let mixes: [(&str, &[(OpKind, f64)]); 6] = [
        ("workloada", &[(Read, 0.5), (Update, 0.5)]),
        ("workloadb", &[(Read, 0.95), (Update, 0.05)]),
        ("workloadc", &[(Read, 1.0)]),
        ("workloadd", &[(Read, 0.95), (Insert, 0.05)]),
        ("workloade", &[(Scan, 0.95), (Insert, 0.05)]),
        ("workloadf", &[(Read, 0.5), (ReadModifyWrite, 0.5)]),
    ];
    for (name, mix) in mixes {
        let shares = shares(&draw(&shipped(name), 20_000));
        assert_eq!(shares.len(), mix.len(), "{name}: {shares:?}");
        for (kind, share) in mix {
            assert!((shares[kind] - share).abs() < 0.015, "{name}: {shares:?}");
        }
    }
}

#[test]
fn equal_seeds_give_equal_operations_and_threads_differ() {
    let text = "seed=5\nupdateproportion=0.5\nreadallfields=false";
    assert_eq!(draw(&workload(text), 100), draw(&workload(text), 100));
    let workload = workload(text);
    let of = |site, thread| {
        let mut thread = workload.thread(site, thread);
        (0..20)
            .map(|_| thread.next().unwrap().record)
            .collect::<Vec<_>>()
    };
    assert_ne!(of(0, 0), of(0, 1));
    assert_ne!(of(0, 0), of(1, 0));
}

#[test]
fn loading_inserts_every_record_of_this_process_once() {
    let workload = workload("insertstart=200\ninsertcount=300\ninsertorder=ordered");
    assert_eq!(workload.insert_count(), 300);
    let mut threads = [workload.thread(0, 0), workload.thread(0, 1)];
    let keys: HashSet<_> = (0..300)
        .map(|i| threads[i % 2].next_load())
        .map(|operation| (operation.record, operation.key))
        .collect();
    assert_eq!(keys.len(), 300);
    assert!(keys.contains(&(200, Bytes::from("user200"))));
    assert!(keys.contains(&(499, Bytes::from("user499"))));
}

#[test]
fn load_generators_insert_records_of_their_own_and_ask_for_them() {
    let text = "insertproportion=0.5\nreadproportion=0.5\nupdateproportion=0\n\
                requestdistribution=latest\ninsertorder=ordered\ninsertpart=2/3";
    let workload = workload(text);
    let mut thread = workload.thread(0, 0);
    let mut inserted = HashSet::new();
    for _ in 0..200 {
        let operation = thread.next().unwrap();
        let key = std::str::from_utf8(&operation.key).unwrap();
        let number: u64 = key.strip_prefix("user").unwrap().parse().unwrap();
        if operation.kind == OpKind::Insert {
            assert_eq!(number, 1_001 + 3 * inserted.len() as u64);
            inserted.insert(number);
            workload.acknowledge(operation.record).unwrap();
        } else {
            assert!(number < 1_000 || inserted.contains(&number), "{number}");
        }
    }
}

#[test]
fn the_order_of_insertion_is_read_in_whatever_case() {
    for (text, hashed) in [("hashed", true), ("Hashed", true), ("ORDERED", false)] {
        let workload = workload(&format!("insertorder={text}"));
        assert_eq!(workload.config.hashed, hashed, "{text}");
    }
}

#[test]
fn loading_does_not_change_the_run() {
    let workload = workload("updateproportion=1");
    let mut thread = workload.thread(0, 0);
    thread.next_load();
    assert_eq!(thread.next(), workload.thread(0, 0).next());
}

#[test]
fn inserts_write_all_fields_and_updates_one() {
    let workload = workload("updateproportion=0.5\ninsertproportion=0.5\nreadproportion=0");
    for operation in draw(&workload, 100) {
        match (operation.kind, operation.write.unwrap()) {
            (OpKind::Insert, WritePayload::Record(value)) => {
                let record = Record::decode(value).unwrap();
                assert_eq!(record.fields.len(), 10);
                assert_eq!(record.fields[9].name, "field9");
                assert!(record.fields.iter().all(|f| f.value.len() == 100));
            }
            (OpKind::Update, WritePayload::Field(field)) => assert_eq!(field.value.len(), 100),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn transactions_read_one_record_and_write_others() {
    let text = "readproportion=0\nupdateproportion=0.5\ntxnproportion=0.5\ntxnkeys=5";
    let mut kinds = BTreeMap::new();
    for operation in draw(&workload(text), 1000) {
        *kinds.entry(operation.kind).or_insert(0) += 1;
        let others = match operation.kind {
            OpKind::Txn => 4,
            _ => 0,
        };
        assert_eq!(operation.others.len(), others);
        assert_eq!(operation.write.is_none(), operation.kind == OpKind::Txn);
    }
    assert!(
        kinds[&OpKind::Txn] > 400 && kinds[&OpKind::Update] > 400,
        "{kinds:?}"
    );
    let text = format!("{text}\nwriteallfields=true");
    let all = draw(&workload(&text), 1000).into_iter();
    let mut written = all.flat_map(|operation| operation.others);
    assert!(written.all(|(_, payload)| matches!(payload, WritePayload::Record(_))));
}

#[test]
fn write_all_and_read_one() {
    let text = "updateproportion=0.5\nwriteallfields=true\nreadallfields=false\nfieldcount=3";
    let mut fields = HashSet::new();
    for operation in draw(&workload(text), 200) {
        match operation.kind {
            OpKind::Update => assert!(matches!(operation.write, Some(WritePayload::Record(_)))),
            _ => {
                fields.insert(operation.read_field.unwrap());
            }
        }
    }
    assert_eq!(fields, HashSet::from([0, 1, 2]));
}

#[test]
fn one_field_is_cut_out_of_a_record() {
    let workload = workload("fieldcount=2\nfieldlength=5");
    let Some(WritePayload::Record(value)) = workload.thread(0, 0).next_load().write else {
        panic!("a load writes records");
    };
    let record = Record::decode(value.clone()).unwrap();
    assert_eq!(
        workload.project(&value, 1),
        Some(record.fields[1].value.clone())
    );
    assert_eq!(workload.project(&value, 2), None);
    assert_eq!(workload.project(&Bytes::from_static(b"\xFF"), 0), None);
}

#[test]
fn inserted_records_are_asked_for_once_acknowledged() {
    let text =
        "insertproportion=0.5\nreadproportion=0.5\nupdateproportion=0\nrequestdistribution=latest";
    let workload = workload(text);
    let mut thread = workload.thread(0, 0);
    let mut acknowledged = 1_000;
    let mut read_new = false;
    for _ in 0..500 {
        let operation = thread.next().unwrap();
        if operation.kind == OpKind::Insert {
            assert_eq!(operation.record, acknowledged);
            workload.acknowledge(operation.record).unwrap();
            acknowledged += 1;
        } else {
            assert!(operation.record < acknowledged);
            read_new |= operation.record >= 1_000;
        }
    }
    assert!(read_new);
}

#[test]
fn every_distribution_stays_within_the_records_of_this_process() {
    let by_record = [
        "uniform",
        "zipfian",
        "zipfian_exact",
        "hotspot",
        "sequential",
    ];
    for name in by_record {
        let text = format!("requestdistribution={name}\ninsertstart=100\ninsertcount=50");
        for operation in draw(&workload(&text), 2_000) {
            // YCSB's zipfian distribution reaches one past the last of its own records.
            let end = if name == "zipfian" { 151 } else { 150 };
            assert!(
                (100..end).contains(&operation.record),
                "{name}: {}",
                operation.record
            );
        }
    }
    for name in ["latest", "exponential"] {
        let operations = draw(&workload(&format!("requestdistribution={name}")), 2_000);
        assert!(
            operations.iter().all(|operation| operation.record < 1_000),
            "{name}"
        );
    }
}

/// A run without an end expects many insertions, most of which it never carries out. They must not
/// hide the existing records: every random number without a record costs time and sends nothing.
#[test]
fn a_run_without_an_end_draws_records_that_are_there() {
    for operations in [1_000_000_000_u64, 9_000_000_000_000, (1 << 63) - 1] {
        for start in [0, 500] {
            let text = format!(
                "operationcount={operations}\ninsertproportion=0.05\ninsertstart={start}\n\
                 requestdistribution=zipfian"
            );
            let workload = workload(&text);
            let Chooser::Zipfian(scrambled) = Chooser::new(&workload.config) else {
                panic!("it is zipfian");
            };
            let mut random = Random::new(1, &[]);
            let draws = (0..20_000).map(|_| scrambled.draw(&mut random));
            let there = draws.filter(|record| *record < 1_000).count();
            assert!(there > 100, "{operations} from {start}: {there} of 20,000");
        }
    }
}

/// As in YCSB, the number of expected insertions follows from the number of operations. The streams
/// of operations of ordinary runs must not change.
#[test]
fn ordinary_runs_draw_the_records_that_they_always_have() {
    let records = |operations: u64| {
        let text = format!(
            "operationcount={operations}\ninsertproportion=0.05\nrequestdistribution=zipfian"
        );
        let operations = draw(&workload(&text), 40);
        let drawn = operations
            .into_iter()
            .filter(|it| it.kind != OpKind::Insert);
        drawn.map(|it| it.record).take(8).collect::<Vec<_>>()
    };
    assert_eq!(records(1_000), [542, 228, 719, 529, 59, 651, 356, 604]);
    assert_eq!(records(300_000), [84, 310, 207, 91, 802, 895, 753, 371]);
    assert_eq!(records(1_000_000), [543, 228, 142, 659, 968, 485, 303, 983]);
}

#[test]
fn an_exponential_distribution_may_lie_beyond_the_records() {
    for (percentile, fraction) in [("95", "0.8571428571"), ("0.0001", "1"), ("1e-300", "1")] {
        let text = format!(
            "requestdistribution=exponential\nexponential.percentile={percentile}\n\
             exponential.frac={fraction}"
        );
        let old = draw(&workload(&text), 1_000);
        let old = old
            .iter()
            .filter(|operation| operation.record < 500)
            .count();
        // Beyond the records the curve is flat: all records are equally likely.
        let expected = if percentile == "95" {
            130..210
        } else {
            450..550
        };
        assert!(expected.contains(&old), "{percentile}: {old}");
    }
}

#[test]
fn sequential_threads_share_one_sequence() {
    let workload = workload("requestdistribution=sequential");
    let (mut a, mut b) = (workload.thread(0, 0), workload.thread(0, 1));
    let records = [a.next(), b.next(), a.next()].map(|o| o.unwrap().record);
    assert_eq!(records, [0, 1, 2]);
}

#[test]
fn permutation_by_site_changes_which_record_is_hot() {
    let workload = workload("requestdistribution=zipfian_exact\npermutation=site");
    let hottest = |site| {
        let mut thread = workload.thread(site, 0);
        let mut counts = vec![0; 1_000];
        for _ in 0..5_000 {
            counts[thread.next().unwrap().record as usize] += 1;
        }
        let (record, count) = counts.iter().enumerate().max_by_key(|(_, n)| **n).unwrap();
        assert!((550..750).contains(count), "12.9% of 5,000: {count}");
        record
    };
    let distinct: HashSet<_> = (0..4).map(hottest).collect();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn scans_have_a_length_within_bounds() {
    for law in ["uniform", "zipfian"] {
        let text = format!(
            "scanproportion=1\nreadproportion=0\nupdateproportion=0\n\
             minscanlength=3\nmaxscanlength=7\nscanlengthdistribution={law}"
        );
        let lengths: HashSet<_> = draw(&workload(&text), 500)
            .iter()
            .map(|o| o.scan_length)
            .collect();
        assert_eq!(lengths, HashSet::from([3, 4, 5, 6, 7]), "{law}");
    }
}

#[test]
fn field_lengths_follow_their_distribution() {
    let lengths = |text: &str| -> Vec<usize> {
        let text = format!("updateproportion=1\nreadproportion=0\n{text}");
        let lengths = draw(&workload(&text), 2_000).into_iter().map(|operation| {
            let Some(WritePayload::Field(field)) = operation.write else {
                panic!("an update of one field");
            };
            field.value.len()
        });
        lengths.collect()
    };
    let all = lengths("fieldlengthdistribution=uniform\nminfieldlength=5\nfieldlength=10");
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 6);
    assert!(all.iter().all(|n| (5..=10).contains(n)));

    let skewed = lengths("fieldlengthdistribution=zipfian\nfieldlength=50");
    let shortest = skewed.iter().filter(|&&n| n == 1).count();
    assert!(shortest > 350, "1 byte is the most likely: {shortest}");

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "BlockSize\t8\n0\t1\n1\t1\n").unwrap();
    let path = file.path().display();
    let drawn = lengths(&format!(
        "fieldlengthdistribution=histogram\nfieldlengthhistogram={path}"
    ));
    assert_eq!(
        drawn.into_iter().collect::<HashSet<_>>(),
        HashSet::from([8, 16])
    );
}

#[test]
fn data_integrity_notices_what_is_wrong() {
    let workload =
        workload("dataintegrity=true\nfieldlength=60\nupdateproportion=1\nreadproportion=0");
    let operation = workload.thread(0, 0).next_load();
    let Some(WritePayload::Record(value)) = operation.write else {
        panic!("a load writes records");
    };
    assert_eq!(
        workload.verify(&operation.key, Some(&value)),
        Integrity::Intact
    );
    assert_eq!(workload.verify(b"user1", Some(&value)), Integrity::Damaged);
    assert_eq!(workload.verify(&operation.key, None), Integrity::Empty);
    assert_eq!(
        workload.verify(&operation.key, Some(&Bytes::new())),
        Integrity::Empty
    );
    let garbage = Bytes::from_static(b"\xFF\xFF");
    assert_eq!(
        workload.verify(&operation.key, Some(&garbage)),
        Integrity::Damaged
    );
    // A partial update keeps a record intact.
    let mut record = Record::decode(value).unwrap();
    let update = draw(&workload, 1).remove(0);
    let Some(WritePayload::Field(field)) = update.write else {
        panic!("an update of one field");
    };
    assert_eq!(
        field.value,
        workload.expected_value(&update.key, std::str::from_utf8(&field.name).unwrap())
    );
    record.fields[0].value = Bytes::from_static(b"tampered");
    let tampered = Bytes::from(record.encode_to_vec());
    assert_eq!(
        workload.verify(&operation.key, Some(&tampered)),
        Integrity::Damaged
    );
}

#[test]
fn contradictions_are_refused_with_a_reason() {
    let cases = [
        (
            "recordcount=0",
            "recordcount: found \"0\", expected a whole number from 1 on",
        ),
        (
            "insertstart=1000",
            "insertstart: found \"1000\", expected a number below recordcount",
        ),
        (
            "insertstart=10\ninsertcount=991",
            "insertcount: found \"991\", expected a number from 1 to 990",
        ),
        ("fieldcount=2000\nfieldlength=1000", "so that a record"),
        (
            "dataintegrity=true\nfieldlengthdistribution=uniform",
            "constant, because dataintegrity",
        ),
        (
            "requestdistribution=zipf",
            "one of uniform, zipfian, zipfian_exact, latest",
        ),
        (
            "requestdistribution=latest\npermutation=site",
            "none, because",
        ),
        (
            "minscanlength=5\nmaxscanlength=4",
            "at most maxscanlength, which is 4",
        ),
        ("maxscanlength=999999999", "the longest scan there is"),
        (
            "workload=TimeSeriesWorkload",
            "site.ycsb.workloads.CoreWorkload",
        ),
        (
            "fieldlengthdistribution=histogram\nfieldlengthhistogram=/nowhere",
            "can be read",
        ),
        ("readproportion=1.5", "a number from 0 to 1"),
        ("txnproportion=-1", "a number from 0 to 1"),
        ("txnkeys=1", "a number from 2 to 16"),
        ("txnkeys=17", "a number from 2 to 16"),
        (
            "fieldlength=100000\ntxnproportion=0.1\ntxnkeys=5",
            "a number from 2 to 4",
        ),
        ("insertorder=sorted", "one of hashed, ordered"),
        ("insertpart=3/2", "load generator I of N"),
        ("insertpart=0/2", "as in 1/2 and 2/2"),
        ("scanlengthdistribution=latest", "one of uniform, zipfian"),
    ];
    for (text, expected) in cases {
        let message = refusal(text);
        assert!(message.starts_with("test, line "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    assert!(
        CoreWorkload::new(&Properties::new()).is_err(),
        "recordcount has no default"
    );
}

#[test]
fn no_proportion_no_operation() {
    let workload = workload("readproportion=0\nupdateproportion=0");
    assert_eq!(workload.thread(0, 0).next(), None);
}

#[test]
fn the_old_class_name_is_accepted() {
    workload("workload=com.yahoo.ycsb.workloads.CoreWorkload");
}

/// A file with every property of YCSB's own template, as users may have it.
#[test]
fn a_file_with_every_property_of_ycsb_is_accepted() {
    let text = "workload=com.yahoo.ycsb.workloads.CoreWorkload\n\
        recordcount=1000000\noperationcount=3000000\n#insertcount=\ninsertstart=0\n\
        fieldcount=10\nfieldlength=100\nreadallfields=true\nwriteallfields=false\n\
        fieldlengthdistribution=constant\nreadproportion=0.95\nupdateproportion=0.05\n\
        insertproportion=0\nreadmodifywriteproportion=0\nscanproportion=0\n\
        maxscanlength=1000\nscanlengthdistribution=uniform\ninsertorder=hashed\n\
        requestdistribution=zipfian\nhotspotdatafraction=0.2\nhotspotopnfraction=0.8\n\
        table=usertable\nmeasurementtype=histogram\nhistogram.buckets=1000\n\
        timeseries.granularity=1000\n";
    let properties = properties(text);
    let unknown = properties
        .warnings()
        .into_iter()
        .filter(|w| w.contains("unknown"));
    assert_eq!(unknown.count(), 0);
    assert_eq!(
        CoreWorkload::new(&properties).unwrap().insert_count(),
        1_000_000
    );
}
