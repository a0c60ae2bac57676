//! All properties with their defaults. This table determines the properties that a run prints at
//! its start, the warnings about unknown names, and the default values.

/// Way in which this program uses a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PropertyUse {
    /// The property has this default.
    Default(&'static str),
    /// The property has no default.
    Optional,
    /// The property exists in YCSB, but has no effect in this program. The text gives the reason.
    Ignored(&'static str),
}

use PropertyUse::{Default, Ignored, Optional};

const NO_TABLES: &str = "there is one key space";
const ONE_KIND: &str = "measurements are always HdrHistograms";
const NO_JVM: &str = "there is no Java virtual machine";
const ONE_FAILURE: &str =
    "failures are counted by status, with one histogram for an operation's failures";

/// Known properties, sorted by subject. A run prints the properties in this order.
pub(super) const KNOWN: &[(&str, PropertyUse)] = &[
    ("workload", Default("site.ycsb.workloads.CoreWorkload")),
    ("recordcount", Optional),
    ("operationcount", Default("0")),
    ("insertstart", Default("0")),
    ("insertcount", Optional),
    ("threadcount", Default("1")),
    ("target", Default("0")),
    ("maxexecutiontime", Default("0")),
    ("warmuptime", Default("0")),
    ("seed", Default("1")),
    ("fieldcount", Default("10")),
    ("fieldlength", Default("100")),
    ("minfieldlength", Default("1")),
    ("fieldlengthdistribution", Default("constant")),
    ("fieldlengthhistogram", Default("hist.txt")),
    ("fieldnameprefix", Default("field")),
    ("readallfields", Default("true")),
    ("writeallfields", Default("false")),
    ("dataintegrity", Default("false")),
    ("readproportion", Default("0.95")),
    ("updateproportion", Default("0.05")),
    ("insertproportion", Default("0")),
    ("scanproportion", Default("0")),
    ("readmodifywriteproportion", Default("0")),
    ("txnproportion", Default("0")),
    ("txnkeys", Default("2")),
    ("requestdistribution", Default("uniform")),
    ("zipfian.constant", Default("0.99")),
    ("permutation", Default("none")),
    ("site", Optional),
    ("hotspotdatafraction", Default("0.2")),
    ("hotspotopnfraction", Default("0.8")),
    ("exponential.percentile", Default("95")),
    ("exponential.frac", Default("0.8571428571")),
    ("minscanlength", Default("1")),
    ("maxscanlength", Default("1000")),
    ("scanlengthdistribution", Default("uniform")),
    ("insertorder", Default("hashed")),
    ("insertpart", Default("1/1")),
    ("zeropadding", Default("1")),
    ("core_workload_insertion_retry_limit", Default("0")),
    ("core_workload_insertion_retry_interval", Default("3")),
    (
        "core_workload_insertion_keep_going_on_error",
        Default("false"),
    ),
    (
        "exporter",
        Default("site.ycsb.measurements.exporter.TextMeasurementsExporter"),
    ),
    ("exportfile", Optional),
    ("measurement.interval", Optional),
    ("hdrhistogram.percentiles", Default("50,95,99")),
    ("hdrhistogram.fileoutput", Default("false")),
    ("hdrhistogram.output.path", Default("")),
    ("hdrhistogram.interval", Default("1")),
    ("status", Default("false")),
    ("status.interval", Default("10")),
    ("label", Default("")),
    ("leasehold.address", Optional),
    ("leasehold.ca", Optional),
    ("leasehold.cluster", Optional),
    ("leasehold.connections", Optional),
    ("leasehold.cores", Optional),
    ("leasehold.plain_token", Default("false")),
    ("leasehold.routing", Default("local")),
    ("leasehold.start", Optional),
    ("leasehold.token_file", Optional),
    ("leasehold.attempt_timeout_ms", Default("1000")),
    ("leasehold.timeout_ms", Default("10000")),
    ("measurementtype", Ignored(ONE_KIND)),
    ("histogram.buckets", Ignored(ONE_KIND)),
    ("timeseries.granularity", Ignored(ONE_KIND)),
    ("measurement.raw.output_file", Ignored(ONE_KIND)),
    ("measurement.histogram.verbose", Ignored(ONE_KIND)),
    ("measurement.trackjvm", Ignored(NO_JVM)),
    ("spin.sleep", Ignored(NO_JVM)),
    ("reportlatencyforeacherror", Ignored(ONE_FAILURE)),
    ("latencytrackederrors", Ignored(ONE_FAILURE)),
    ("table", Ignored(NO_TABLES)),
    ("columnfamily", Ignored(NO_TABLES)),
    ("readallfieldsbyname", Ignored("a record is read whole")),
    ("db", Ignored("the store is Leasehold")),
    ("dotransactions", Ignored("the phase is `load` or `run`")),
];

pub(super) fn lookup(name: &str) -> Option<PropertyUse> {
    let found = KNOWN.iter().find(|(known, _)| *known == name);
    found.map(|(_, what)| *what)
}
