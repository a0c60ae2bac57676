//! YCSB's core workload: an endless, seeded stream of operations for each thread of a run. The
//! workload is pure: it names keys and builds values, and depends neither on stores nor on time.
//! The threads share only one thing: the counters of the records that have been inserted.

mod config;
mod record;

use std::sync::Arc;

use bytes::Bytes;
use leasehold_wire::{Field, Record};
use prost::Message;

use crate::generator::{
    AcknowledgedCounter, Counter, Exponential, Hotspot, Latest, Permutation, Random,
    ScrambledZipfian, Sequential, TooManyPending, Uniform, ZipfExact,
};
use crate::properties::{Properties, PropertyError};
use crate::sample::OpKind;
use crate::site_stream::site_order;
use config::{Config, Distribution, Length};

/// One operation to be carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadOperation {
    /// Kind of the operation.
    pub kind: OpKind,
    /// ID of the record. If the operation inserts the record, the caller must call
    /// [`CoreWorkload::acknowledge`] after the answer.
    pub record: u64,
    /// Key of the record; for a scan, the first key.
    pub key: Bytes,
    /// Number of records that a scan reads; 0 for other operations.
    pub scan_length: u32,
    /// The field to return from a record that is read; `None` means all fields.
    pub read_field: Option<u32>,
    /// Data that an update, insertion or read-modify-write writes to the record; `None` for other
    /// operations.
    pub write: Option<WritePayload>,
    /// Keys and data of the other records that a transaction writes.
    pub others: Vec<(Bytes, WritePayload)>,
}

/// Data to write.
#[derive(Clone, Debug, PartialEq)]
pub enum WritePayload {
    /// All fields: the encoded record replaces the stored one.
    Record(Bytes),
    /// One of several fields. The record keeps its other fields.
    Field(Field),
}

/// Result of the check of a record that was read (`dataintegrity=true`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Integrity {
    /// The record holds exactly the data that was written.
    Intact,
    /// The record holds other data.
    Damaged,
    /// There is no record.
    Empty,
}

/// A workload, shared by all threads that run it.
#[derive(Clone, Debug)]
pub struct CoreWorkload {
    config: Arc<Config>,
    shared: Arc<SharedCounters>,
}

#[derive(Debug)]
struct SharedCounters {
    load: Counter,
    inserted: AcknowledgedCounter,
    sequential: Sequential,
}

/// First element of the path that selects a random stream. Each use of random numbers has its own
/// first element, so the streams of different uses are unrelated.
const STREAM_RUN: u64 = 3;
const STREAM_LOAD: u64 = 4;

impl CoreWorkload {
    /// Creates the workload that the properties describe.
    ///
    /// # Errors
    /// If a property is missing, does not parse, or contradicts another.
    pub fn new(properties: &Properties) -> Result<Self, PropertyError> {
        let config = Config::read(properties)?;
        let shared = SharedCounters {
            load: Counter::new(config.insert_start),
            inserted: AcknowledgedCounter::new(config.records),
            sequential: Sequential::new(config.insert_start, config.insert_count),
        };
        Ok(CoreWorkload {
            config: Arc::new(config),
            shared: Arc::new(shared),
        })
    }

    /// Returns the number of operations of a run; 0 means no limit.
    pub fn operation_count(&self) -> u64 {
        self.config.operations
    }

    /// Returns the number of records that the load phase of this process inserts.
    pub fn insert_count(&self) -> u64 {
        self.config.insert_count
    }

    /// Whether the workload checks the records that it reads.
    pub fn verifies(&self) -> bool {
        self.config.verify
    }

    /// Returns the stream of operations of the thread with the index `thread` at the site with the
    /// ID `site`. If `permutation=site`, the site determines which records are popular.
    pub fn thread(&self, site: u64, thread: u64) -> ThreadWorkload {
        let config = &self.config;
        let order = config
            .order_by_site
            .then(|| site_order(config.insert_count, site, config.seed));
        ThreadWorkload {
            chooser: Chooser::new(config),
            order,
            random: Random::new(config.seed, &[STREAM_RUN, site, thread]),
            load_random: Random::new(config.seed, &[STREAM_LOAD, site, thread]),
            workload: self.clone(),
        }
    }

    /// Records that the insertion of `record` was answered, successfully or not. After this call,
    /// operations may read the record.
    ///
    /// # Errors
    /// If an earlier insertion is still unanswered, and too many later insertions have been
    /// answered.
    pub fn acknowledge(&self, record: u64) -> Result<(), TooManyPending> {
        self.shared.inserted.acknowledge(record)
    }

    /// Returns true if the run must check whether `record` exists before it inserts the record. The
    /// run checks its first, second, fourth, eighth ... insertion.
    pub fn is_probed(&self, record: u64) -> bool {
        let inserted = record.checked_sub(self.config.records);
        inserted.is_some_and(|index| (index + 1).is_power_of_two())
    }

    /// Checks a stored record; a `value` of `None` means that the key does not exist.
    pub fn verify(&self, key: &[u8], value: Option<&Bytes>) -> Integrity {
        let Some(value) = value else {
            return Integrity::Empty;
        };
        let Ok(record) = Record::decode(value.clone()) else {
            return Integrity::Damaged;
        };
        let intact = |field: &Field| {
            std::str::from_utf8(&field.name)
                .is_ok_and(|name| field.value == self.expected_value(key, name))
        };
        match record.fields.as_slice() {
            [] => Integrity::Empty,
            fields if fields.iter().all(intact) => Integrity::Intact,
            _ => Integrity::Damaged,
        }
    }

    /// Returns the only field that an operation reads from the record `value`; `None` if the record
    /// does not have this field. The field is selected here, because the store stores and returns
    /// whole records.
    pub fn project(&self, value: &Bytes, field: u32) -> Option<Bytes> {
        let name = self.config.field_names.get(field as usize)?.as_bytes();
        let record = Record::decode(value.clone()).ok()?;
        let found = record.fields.into_iter().find(|f| f.name == name)?;
        Some(found.value)
    }

    fn expected_value(&self, key: &[u8], field: &str) -> Bytes {
        match self.config.field_length {
            Length::Constant(length) => record::expected_value(key, field, length),
            // Other lengths were refused when the configuration was read.
            _ => unreachable!("fields have a constant length where data integrity is checked"),
        }
    }
}

impl Config {
    /// Returns the key of the record with this number. The lowest numbers belong to the initial
    /// records. All higher numbers belong to records that this load generator has inserted, in the
    /// order of insertion.
    fn key(&self, record: u64) -> Bytes {
        let record = match record.checked_sub(self.records) {
            None => record,
            Some(inserted) => self.records.saturating_add(self.part.nth(inserted)),
        };
        record::key(record, self.hashed, self.zero_padding)
    }
}

/// The stream of operations of one thread.
#[derive(Clone, Debug)]
pub struct ThreadWorkload {
    workload: CoreWorkload,
    chooser: Chooser,
    order: Option<Permutation>,
    random: Random,
    load_random: Random,
}

impl ThreadWorkload {
    /// Returns the next operation of the run phase; `None` if every proportion is zero.
    #[allow(clippy::should_implement_trait, reason = "it is an endless stream")]
    pub fn next(&mut self) -> Option<WorkloadOperation> {
        let kind = self.workload.config.kinds.draw(&mut self.random)?;
        let record = match kind {
            OpKind::Insert => self.workload.shared.inserted.take(),
            _ => self.existing_record(),
        };
        Some(self.operation(kind, record))
    }

    /// Chooses the kind of the next operation without creating the operation. This is for an
    /// operation that will not be carried out. Returns `None` if every proportion is zero.
    pub fn next_kind(&mut self) -> Option<OpKind> {
        self.workload.config.kinds.draw(&mut self.random)
    }

    /// Returns the next insertion of the load phase. The caller must limit the number of
    /// insertions.
    pub fn next_load(&mut self) -> WorkloadOperation {
        let record = self.workload.shared.load.take();
        // Loading draws from its own stream, so that the run phase is the same with and without
        // loading.
        std::mem::swap(&mut self.random, &mut self.load_random);
        let operation = self.operation(OpKind::Insert, record);
        std::mem::swap(&mut self.random, &mut self.load_random);
        operation
    }

    /// Returns the thread's source of randomness, for other random choices during the load phase.
    pub(crate) fn random(&mut self) -> &mut Random {
        &mut self.load_random
    }

    fn operation(&mut self, kind: OpKind, record: u64) -> WorkloadOperation {
        let config = &self.workload.config;
        let key = config.key(record);
        let read_all = config.read_all;
        let reads = !matches!(kind, OpKind::Update | OpKind::Insert);
        let scan_length = match kind {
            OpKind::Scan => draw(&config.scan_length, &mut self.random) as u32,
            _ => 0,
        };
        let read_field = (reads && !read_all).then(|| self.any_field());
        let write = match kind {
            OpKind::Read | OpKind::Scan | OpKind::Txn => None,
            OpKind::Insert => Some(self.whole_record(&key)),
            OpKind::Update | OpKind::ReadModifyWrite => Some(self.update(&key)),
        };
        let others = match kind {
            OpKind::Txn => self.others(),
            _ => Vec::new(),
        };
        WorkloadOperation {
            kind,
            record,
            key,
            scan_length,
            read_field,
            write,
            others,
        }
    }

    /// Returns a random record among those that have been inserted.
    fn existing_record(&mut self) -> u64 {
        let shared = &self.workload.shared;
        let drawn = self.chooser.draw(shared, &mut self.random);
        self.reorder(drawn)
    }

    /// Maps an initial record to an initial record (possibly the same record), by the site's order
    /// of popularity. Returns `record` unchanged if it is not an initial record, or if the site has
    /// no order of its own.
    fn reorder(&self, record: u64) -> u64 {
        let first = self.workload.config.insert_start;
        match &self.order {
            Some(order) if record - first < order.len() => first + order.apply(record - first),
            _ => record,
        }
    }

    fn any_field(&mut self) -> u32 {
        self.random
            .below(self.workload.config.field_names.len() as u64) as u32
    }

    fn whole_record(&mut self, key: &Bytes) -> WritePayload {
        let count = self.workload.config.field_names.len();
        WritePayload::Record(record::encode(
            (0..count).map(|i| self.field(i, key)).collect(),
        ))
    }

    /// Returns the data of an update: a whole record, or one field.
    fn update(&mut self, key: &Bytes) -> WritePayload {
        if self.workload.config.write_all {
            self.whole_record(key)
        } else {
            self.one_field(key)
        }
    }

    /// Chooses the other records that a transaction writes. A record may be chosen several times.
    fn others(&mut self) -> Vec<(Bytes, WritePayload)> {
        let count = self.workload.config.txn_keys - 1;
        let other = || {
            let record = self.existing_record();
            let key = self.workload.config.key(record);
            let payload = self.update(&key);
            (key, payload)
        };
        std::iter::repeat_with(other).take(count).collect()
    }

    fn one_field(&mut self, key: &Bytes) -> WritePayload {
        let index = self.any_field();
        WritePayload::Field(self.field(index as usize, key))
    }

    fn field(&mut self, index: usize, key: &Bytes) -> Field {
        let config = &self.workload.config;
        let name = &config.field_names[index];
        let value = if config.verify {
            self.workload.expected_value(key, name)
        } else {
            let length = draw(&config.field_length, &mut self.random);
            record::random_value(length, &mut self.random)
        };
        Field {
            name: Bytes::copy_from_slice(name.as_bytes()),
            value,
        }
    }
}

fn draw(length: &Length, random: &mut Random) -> u64 {
    match length {
        Length::Constant(length) => *length,
        Length::Uniform(uniform) => uniform.draw(random),
        Length::Zipfian(zipfian) => zipfian.draw(random),
        Length::Histogram(histogram) => histogram.draw(random),
    }
}

/// Limit on the expected insertions in the range of the zipfian distribution, as a multiple of the
/// existing records. With this limit, at least one in about a hundred random numbers is the number
/// of an existing record.
const EXPECTED_PER_RECORD_MAX: u64 = 100;

/// Chooses a record to read or update.
#[derive(Clone, Debug)]
enum Chooser {
    Uniform(Uniform),
    Zipfian(ScrambledZipfian),
    ZipfianExact(u64, ZipfExact),
    Latest(Latest),
    Hotspot(Hotspot),
    Exponential(Exponential),
    Sequential,
}

impl Chooser {
    fn new(config: &Config) -> Self {
        let (first, count) = (config.insert_start, config.insert_count);
        match config.distribution {
            Distribution::Uniform => Chooser::Uniform(Uniform::new(first, count)),
            // Reserves ranks for twice the expected insertions, and for one more, so that the
            // popular records stay the same as records are inserted. YCSB does the same. A draw of
            // a record that does not exist yet is wasted, so unlike in YCSB there is a limit.
            Distribution::Zipfian => {
                let expected = (config.operations as f64 * config.insert_share * 2.0) as u64;
                let expected = expected.min(count.saturating_mul(EXPECTED_PER_RECORD_MAX));
                let count = count.saturating_add(expected).saturating_add(1);
                Chooser::Zipfian(ScrambledZipfian::new(first, count.min(u64::MAX - first)))
            }
            Distribution::ZipfianExact { theta } => {
                Chooser::ZipfianExact(first, ZipfExact::new(count, theta))
            }
            Distribution::Latest => Chooser::Latest(Latest::new(config.records)),
            Distribution::Hotspot { data, operations } => {
                Chooser::Hotspot(Hotspot::new(first, count, data, operations))
            }
            Distribution::Exponential {
                percentile,
                fraction,
            } => {
                let range = config.records as f64 * fraction;
                Chooser::Exponential(Exponential::new(percentile, range))
            }
            Distribution::Sequential => Chooser::Sequential,
        }
    }

    /// Returns a random record among those that have been inserted. The duration of this call
    /// hardly depends on the number of operations and records.
    fn draw(&mut self, shared: &SharedCounters, random: &mut Random) -> u64 {
        match self {
            Chooser::Uniform(uniform) => uniform.draw(random),
            Chooser::Zipfian(scrambled) => scrambled.draw_below(shared.inserted.below(), random),
            Chooser::ZipfianExact(first, zipf) => *first + zipf.draw(random),
            Chooser::Latest(latest) => latest.draw(&shared.inserted, random),
            Chooser::Hotspot(hotspot) => hotspot.draw(random),
            Chooser::Exponential(exponential) => {
                let end = shared.inserted.below();
                let distance = exponential.draw_below(end, random);
                end.saturating_sub(1).saturating_sub(distance)
            }
            Chooser::Sequential => shared.sequential.take(),
        }
    }
}

#[cfg(test)]
mod tests;
