//! Files that the load generator reads: property files, histograms of field lengths, and interval
//! logs.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use hdrhistogram::Histogram;
use leasehold_ycsb::generator::{LengthHistogram, Random};
use leasehold_ycsb::measurement::{HlogWriter, sum_hlog};
use leasehold_ycsb::properties::Properties;
use leasehold_ycsb::workload::CoreWorkload;

use crate::memory;

/// Maximum memory for each byte of a property file, in bytes. Every two bytes may be a property.
/// The name, value and source of a property exist in three forms while the file is read.
const PROPERTIES_PER_BYTE: usize = 512;
/// Maximum memory for each byte of a histogram of field lengths, in bytes. Every four bytes may be
/// a bucket, and there are two copies of each bucket while the list grows. An error also quotes a
/// line.
const LENGTHS_PER_BYTE: usize = 16;
/// Maximum memory for each byte of an interval log, in bytes. A line and its decoded form are in
/// memory at the same time.
const LOG_PER_BYTE: usize = 16;
/// Maximum memory for each line of a log, in bytes. The line may be a histogram, which needs memory
/// for the bytes, for the counts, and for the sum of histograms.
const LOG_PER_LINE: usize = 4 << 20;

/// Decodes a property file. Then parses everything that the load generator reads from the
/// properties, including the workload.
pub fn properties(input: &[u8]) {
    let mut properties = Properties::new();
    let contents = input.to_vec();
    let load = || properties.load_bytes("fuzz.properties", contents);
    if let Err(error) = memory::within(input.len(), PROPERTIES_PER_BYTE, load) {
        return assert!(error.to_string().contains("fuzz.properties, line"));
    }
    let _ = properties.warnings();
    let effective = properties.effective();
    let values = effective.iter().map(|(_, value)| value.len());
    assert!(values.sum::<usize>() <= 4 * input.len() + memory::BASE_BYTES);
    // Only workloads without files are built, because the files that a workload names do not exist
    // here.
    if properties.get("fieldlengthdistribution") == Some("histogram") {
        return;
    }
    if let Ok(workload) = CoreWorkload::new(&properties) {
        assert!(workload.insert_count() > 0);
        let _ = workload.verifies();
        let mut thread = workload.thread(0, 0);
        let _ = (thread.next(), thread.next_load());
    }
}

/// Decodes a histogram of field lengths, and draws random lengths from this histogram.
pub fn length_histogram(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let parse = || LengthHistogram::parse(&text);
    let Ok(lengths) = memory::within(text.len(), LENGTHS_PER_BYTE, parse) else {
        return;
    };
    let mut random = Random::new(1, &[]);
    for _ in 0..4 {
        assert!((1..=lengths.longest()).contains(&lengths.draw(&mut random)));
    }
}

/// Decodes an interval log. Then makes two more logs, and decodes them. Each of them has one
/// histogram: the input itself in the first log, and the compressed input in the second log.
pub fn interval_log(input: &[u8]) {
    sums(input);
    sums(line(input).as_bytes());
    let mut compressed = vec![0x1C, 0x84, 0x93, 0x14, 0, 0, 0, 0];
    let mut zlib = ZlibEncoder::new(&mut compressed, Compression::fast());
    let written = zlib.write_all(input).and_then(|()| zlib.finish().map(drop));
    written.expect("memory can be written");
    let length = compressed.len() as u32 - 8;
    compressed[4..8].copy_from_slice(&length.to_be_bytes());
    sums(line(&compressed).as_bytes());
}

fn line(histogram: &[u8]) -> String {
    format!("Tag=fuzz,0.0,1.0,1.0,{}\n", BASE64.encode(histogram))
}

fn sums(log: &[u8]) {
    let lines = log.split(|byte| *byte == b'\n').count();
    let allowed = LOG_PER_BYTE * log.len() + LOG_PER_LINE * lines;
    let Ok(sums) = memory::within(1, allowed, || sum_hlog(log)) else {
        return;
    };
    assert_eq!(sum_hlog(&written(&sums)), Ok(sums));
}

fn written(sums: &BTreeMap<String, Histogram<u64>>) -> Vec<u8> {
    let second = Duration::from_secs(1);
    let log = HlogWriter::new(Vec::new(), "fuzz", SystemTime::UNIX_EPOCH);
    let mut log = log.expect("memory can be written");
    for (tag, histogram) in sums {
        let tag = Some(tag.as_str()).filter(|tag| !tag.is_empty());
        log.write(second, second, tag, histogram)
            .expect("memory can be written");
    }
    log.finish().expect("memory can be written")
}

pub mod seeds {
    use std::collections::BTreeMap;

    use hdrhistogram::serialization::{Serializer as _, V2Serializer};
    use leasehold_ycsb::measurement::new_histogram;
    use leasehold_ycsb::properties::Properties;

    pub fn properties() -> Vec<Vec<u8>> {
        let shipped = |letter| {
            let mut properties = Properties::new();
            let found = properties.load_file(&format!("workload{letter}"));
            found.expect("workloads ship with the program");
            let lines = properties.effective().into_iter();
            lines
                .map(|(name, value)| format!("{name}={value}\n"))
                .collect()
        };
        let mut texts: Vec<String> = ["a", "d", "e", "f"].map(shipped).into();
        let small = [
            "# comment\n! another\r\nrecordcount = 10\\\n  00\r\nfieldlengthdistribution:uniform\n",
            "recordcount=5\nrequestdistribution=hotspot\nhotspotdatafraction=0.2\n",
            "recordcount=5\nrequestdistribution=exponential\nexponential.frac=0.8\n",
            "recordcount=5\nrequestdistribution=zipfian_exact\nzipfian.constant=0.5\npermutation=site\n",
            "recordcount=5\nrequestdistribution=sequential\ninsertstart=2\ninsertcount=3\n",
            "recordcount=5\nrequestdistribution=latest\ninsertproportion=0.5\ndataintegrity=true\n",
            "a\\ b\\=c=\\tx\\u0041\\q\nsmile=\\uD83D\\uDE00\n",
            "recordcount=5\nscanproportion=1\nmaxscanlength=10\nscanlengthdistribution=zipfian\n",
        ];
        texts.extend(small.map(String::from));
        let mut seeds: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
        seeds.push(b"latin=\xE9\xFF\n".to_vec());
        seeds
    }

    pub fn length_histogram() -> Vec<Vec<u8>> {
        let texts = [
            "BlockSize\t10\n0\t1\n1\t0\n2\t3\n",
            "BlockSize\t1\n0\t18446744073709551615\n",
            "BlockSize\t18446744073709551615\n0\t1\n1\t1\n",
        ];
        texts.map(Vec::from).into()
    }

    pub fn interval_log() -> Vec<Vec<u8>> {
        let values: [&[u64]; 4] = [&[], &[1], &[100, 200, 200, 3_000_000], &[1 << 40]];
        let histograms = values.map(|values| {
            let mut histogram = new_histogram();
            values
                .iter()
                .for_each(|value| histogram.saturating_record(*value));
            histogram
        });
        let mut seeds = Vec::new();
        for histogram in &histograms {
            let mut plain = Vec::new();
            let serialized = V2Serializer::new().serialize(histogram, &mut plain);
            serialized.expect("memory can be written");
            seeds.push(super::line(&plain).into_bytes());
            seeds.push(plain);
        }
        let tags = ["", "QL:CA:READ:local", "LL:JP:UPDATE", "QL:CA:READ-FAILED"];
        let tagged = tags.map(String::from).into_iter().zip(histograms);
        seeds.push(super::written(&BTreeMap::from_iter(tagged)));
        seeds
    }
}
