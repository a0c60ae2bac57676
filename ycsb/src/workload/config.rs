//! Configuration of a core workload. It is read from properties and checked before the run, so that
//! a workload that has started can run to its end.

use leasehold_wire::{COMMAND_BYTES_MAX, SCAN_ENTRIES_MAX, VALUE_BYTES_MAX};

use crate::generator::{Discrete, LengthHistogram, Uniform, ZIPFIAN_CONSTANT, Zipfian};
use crate::properties::{Properties, PropertyError};
use crate::sample::OpKind;

/// Distribution of field lengths or scan lengths.
#[derive(Clone, Debug)]
pub(super) enum Length {
    Constant(u64),
    Uniform(Uniform),
    Zipfian(Zipfian),
    Histogram(LengthHistogram),
}

/// Distribution by which records are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distribution {
    Uniform,
    Zipfian,
    ZipfianExact { theta: f64 },
    Latest,
    Hotspot { data: f64, operations: f64 },
    Exponential { percentile: f64, fraction: f64 },
    Sequential,
}

/// Insertions that this load generator carries out, among all insertions of a run: the insertion
/// `number` (counted from 0), and every `of`-th insertion after it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Part {
    number: u64,
    of: u64,
}

impl Part {
    /// Returns the ID of the record for the insertion with the index `index` in this part.
    pub fn nth(self, index: u64) -> u64 {
        index.saturating_mul(self.of).saturating_add(self.number)
    }
}

/// A checked core workload.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub records: u64,
    pub operations: u64,
    pub insert_start: u64,
    pub insert_count: u64,
    pub field_names: Vec<String>,
    pub field_length: Length,
    pub read_all: bool,
    pub write_all: bool,
    pub verify: bool,
    pub kinds: Discrete<OpKind>,
    pub insert_share: f64,
    pub distribution: Distribution,
    pub order_by_site: bool,
    pub scan_length: Length,
    /// Number of records of a transaction. One is read, and the others are written.
    pub txn_keys: usize,
    pub hashed: bool,
    pub part: Part,
    pub zero_padding: usize,
    pub seed: u64,
}

/// Maximum number of records of a transaction. A replica accepts up to 16 merges in one transaction.
const TXN_KEYS_MAX: u64 = 16;

const WORKLOADS: [&str; 2] = [
    "site.ycsb.workloads.CoreWorkload",
    "com.yahoo.ycsb.workloads.CoreWorkload",
];

impl Config {
    pub fn read(properties: &Properties) -> Result<Self, PropertyError> {
        check_class(properties)?;
        let records = records(properties)?;
        let (insert_start, insert_count) = insertions(properties, records)?;
        let (field_length, longest) = field_length(properties)?;
        let verify = properties.flag("dataintegrity")?;
        if verify && !matches!(field_length, Length::Constant(_)) {
            let expected = "constant, because dataintegrity=true";
            return Err(properties.invalid("fieldlengthdistribution", expected));
        }
        let distribution = distribution(properties)?;
        let field_names = field_names(properties, longest)?;
        let record_longest = field_names
            .iter()
            .map(|name| record_part(name, longest))
            .sum();
        Ok(Config {
            records,
            operations: properties.count("operationcount")?,
            insert_start,
            insert_count,
            field_names,
            field_length,
            read_all: properties.flag("readallfields")?,
            write_all: properties.flag("writeallfields")?,
            verify,
            kinds: kinds(properties)?,
            insert_share: properties.fraction("insertproportion")?,
            order_by_site: order_by_site(properties, distribution)?,
            distribution,
            scan_length: scan_length(properties)?,
            txn_keys: txn_keys(properties, record_longest)?,
            hashed: properties.choice("insertorder", &[("hashed", true), ("ordered", false)])?,
            part: part(properties)?,
            zero_padding: properties
                .number("zeropadding", "a number from 0 to 100", |n| *n <= 100)?,
            seed: properties.number("seed", "a whole number from 0 on", |_| true)?,
        })
    }
}

fn check_class(properties: &Properties) -> Result<(), PropertyError> {
    match properties.get("workload") {
        Some(class) if WORKLOADS.contains(&class) => Ok(()),
        _ => Err(properties.invalid("workload", &format!("one of {}", WORKLOADS.join(", ")))),
    }
}

fn records(properties: &Properties) -> Result<u64, PropertyError> {
    let expected = "a whole number from 1 on: the records that the load phase inserts";
    properties.number("recordcount", expected, |n| (1..1 << 62).contains(n))
}

fn part(properties: &Properties) -> Result<Part, PropertyError> {
    let text = properties.get("insertpart").unwrap_or_default();
    let numbers = text.split_once('/');
    let parse = |text: &str| text.trim().parse::<u64>().ok();
    let numbers = numbers.and_then(|(number, of)| Some((parse(number)?, parse(of)?)));
    match numbers {
        Some((number, of)) if (1..=of).contains(&number) && of <= 1_000_000 => Ok(Part {
            number: number - 1,
            of,
        }),
        _ => {
            let expected = "I/N: load generator I of N, as in 1/2 and 2/2";
            Err(properties.invalid("insertpart", expected))
        }
    }
}

fn insertions(properties: &Properties, records: u64) -> Result<(u64, u64), PropertyError> {
    let start = properties.count("insertstart")?;
    if start >= records {
        let expected = format!("a number below recordcount, which is {records}");
        return Err(properties.invalid("insertstart", &expected));
    }
    let rest = records - start;
    let expected = format!("a number from 1 to {rest}, which is recordcount - insertstart");
    let count = properties.parsed("insertcount", &expected, |n| (1..=rest).contains(n))?;
    Ok((start, count.unwrap_or(rest)))
}

/// Returns the generator of field lengths, and the longest length that it can return.
fn field_length(properties: &Properties) -> Result<(Length, u64), PropertyError> {
    let expected = "a number of bytes from 0 to 1048576";
    let in_bounds = |n: &u64| *n <= VALUE_BYTES_MAX as u64;
    let longest = properties.number("fieldlength", expected, in_bounds)?;
    let shortest = properties.number("minfieldlength", expected, in_bounds)?;
    let length = match properties.get("fieldlengthdistribution") {
        Some("constant") => Length::Constant(longest),
        Some("uniform" | "zipfian") if shortest > longest => {
            let expected = format!("at most fieldlength, which is {longest}");
            return Err(properties.invalid("minfieldlength", &expected));
        }
        Some("uniform") => Length::Uniform(Uniform::new(shortest, longest - shortest + 1)),
        Some("zipfian") => Length::Zipfian(zipfian(shortest, longest)),
        Some("histogram") => {
            let histogram = histogram(properties)?;
            let longest = histogram.longest();
            return Ok((Length::Histogram(histogram), longest));
        }
        _ => {
            let expected = "one of constant, uniform, zipfian, histogram";
            return Err(properties.invalid("fieldlengthdistribution", expected));
        }
    };
    Ok((length, longest))
}

fn zipfian(shortest: u64, longest: u64) -> Zipfian {
    Zipfian::new(shortest, longest - shortest + 1, ZIPFIAN_CONSTANT)
}

fn histogram(properties: &Properties) -> Result<LengthHistogram, PropertyError> {
    let file = properties.get("fieldlengthhistogram").unwrap_or_default();
    let text = std::fs::read_to_string(file).map_err(|error| {
        let expected = format!("a histogram file that can be read ({error})");
        properties.invalid("fieldlengthhistogram", &expected)
    })?;
    LengthHistogram::parse(&text).map_err(|error| {
        let expected = format!("a well-formed histogram file ({error})");
        properties.invalid("fieldlengthhistogram", &expected)
    })
}

/// Returns the names of the fields. Also checks that the longest possible record fits into a value.
fn field_names(properties: &Properties, longest: u64) -> Result<Vec<String>, PropertyError> {
    let prefix = properties.get("fieldnameprefix").unwrap_or_default();
    let overhead = prefix.len() as u64 + 20 + 16;
    let most = VALUE_BYTES_MAX as u64 / longest.saturating_add(overhead).max(1);
    let expected = format!(
        "a number from 1 to {most}, so that a record of fields of up to {longest} bytes \
         stays below {VALUE_BYTES_MAX} bytes"
    );
    let count = properties
        .parsed("fieldcount", &expected, |n: &u64| (1..=most).contains(n))?
        .ok_or_else(|| properties.invalid("fieldcount", &expected))?;
    Ok((0..count).map(|i| format!("{prefix}{i}")).collect())
}

/// Returns an upper bound of the bytes of a field in a record. The field has up to `longest` bytes.
fn record_part(name: &str, longest: u64) -> u64 {
    longest.saturating_add(name.len() as u64 + 16)
}

/// Reads the number of records of a transaction. Also checks that a transaction with the longest
/// possible records fits into a command.
fn txn_keys(properties: &Properties, record_longest: u64) -> Result<usize, PropertyError> {
    const KEY_BYTES: u64 = 128;
    let is_drawn = properties.fraction("txnproportion")? > 0.0;
    let fitting = COMMAND_BYTES_MAX as u64 / record_longest.saturating_add(KEY_BYTES);
    let most = if is_drawn {
        TXN_KEYS_MAX.min(fitting)
    } else {
        TXN_KEYS_MAX
    };
    let expected =
        format!("a number from 2 to {most}: a record that is read, and others that are written");
    let keys = properties.parsed("txnkeys", &expected, |n| (2..=most as usize).contains(n))?;
    keys.ok_or_else(|| properties.invalid("txnkeys", &expected))
}

fn kinds(properties: &Properties) -> Result<Discrete<OpKind>, PropertyError> {
    let weights = [
        (properties.fraction("readproportion")?, OpKind::Read),
        (properties.fraction("updateproportion")?, OpKind::Update),
        (properties.fraction("insertproportion")?, OpKind::Insert),
        (properties.fraction("scanproportion")?, OpKind::Scan),
        (
            properties.fraction("readmodifywriteproportion")?,
            OpKind::ReadModifyWrite,
        ),
        (properties.fraction("txnproportion")?, OpKind::Txn),
    ];
    Ok(Discrete::new(weights))
}

fn distribution(properties: &Properties) -> Result<Distribution, PropertyError> {
    Ok(match properties.get("requestdistribution") {
        Some("uniform") => Distribution::Uniform,
        Some("zipfian") => Distribution::Zipfian,
        Some("zipfian_exact") => Distribution::ZipfianExact {
            theta: properties.number("zipfian.constant", "a number from 0 to 10", |x| {
                (0.0..=10.0).contains(x)
            })?,
        },
        Some("latest") => Distribution::Latest,
        Some("hotspot") => Distribution::Hotspot {
            data: properties.fraction("hotspotdatafraction")?,
            operations: properties.fraction("hotspotopnfraction")?,
        },
        Some("exponential") => Distribution::Exponential {
            percentile: properties.number(
                "exponential.percentile",
                "a number above 0 and below 100",
                |x: &f64| *x > 0.0 && *x < 100.0,
            )?,
            fraction: properties.number(
                "exponential.frac",
                "a number above 0, at most 1",
                |x: &f64| *x > 0.0 && *x <= 1.0,
            )?,
        },
        Some("sequential") => Distribution::Sequential,
        _ => {
            let expected = "one of uniform, zipfian, zipfian_exact, latest, hotspot, \
                            exponential, sequential";
            return Err(properties.invalid("requestdistribution", expected));
        }
    })
}

/// Reads the property `permutation`. A permutation cannot be combined with a distribution in which
/// the popularity of a record depends on its age or on an order. For such a combination, an error
/// is returned.
fn order_by_site(
    properties: &Properties,
    distribution: Distribution,
) -> Result<bool, PropertyError> {
    let by_site = properties.choice("permutation", &[("none", false), ("site", true)])?;
    let by_age = matches!(
        distribution,
        Distribution::Latest | Distribution::Exponential { .. } | Distribution::Sequential
    );
    if by_site && by_age {
        let expected = "none, because requestdistribution goes by the age of the records";
        return Err(properties.invalid("permutation", expected));
    }
    Ok(by_site)
}

fn scan_length(properties: &Properties) -> Result<Length, PropertyError> {
    let length = |name| {
        let most = SCAN_ENTRIES_MAX as u64;
        let expected = format!("a number from 1 to {most}, the longest scan there is");
        properties
            .parsed(name, &expected, |n: &u64| (1..=most).contains(n))?
            .ok_or_else(|| properties.invalid(name, &expected))
    };
    let (shortest, longest) = (length("minscanlength")?, length("maxscanlength")?);
    if shortest > longest {
        let expected = format!("at most maxscanlength, which is {longest}");
        return Err(properties.invalid("minscanlength", &expected));
    }
    match properties.get("scanlengthdistribution") {
        Some("uniform") => Ok(Length::Uniform(Uniform::new(
            shortest,
            longest - shortest + 1,
        ))),
        Some("zipfian") => Ok(Length::Zipfian(zipfian(shortest, longest))),
        _ => Err(properties.invalid("scanlengthdistribution", "one of uniform, zipfian")),
    }
}
