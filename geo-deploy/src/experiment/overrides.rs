//! The option `--set key=value`, which sets any field of an experiment by the dotted name of the
//! field. The most frequent fields have short names.
//!
//! Overrides change the effective experiment as a TOML table, so they can set exactly the fields
//! that a file can set.

use leasehold_node::config::from_toml;
use toml::{Table, Value};

use super::{Experiment, ExperimentError, StrategyPlan, plain};
use crate::topology::Topology;

/// Short names of fields. Each short name is paired with the dotted name of the field.
const ALIASES: [(&str, &str); 8] = [
    ("requests", "workload.requests"),
    ("warmup", "workload.warmup"),
    ("rate", "workload.rate"),
    ("seconds", "workload.seconds"),
    ("warmup_s", "workload.warmup_s"),
    ("keys", "workload.keys"),
    ("reads", "workload.reads"),
    ("clients", "workload.clients"),
];

/// Names of the optional fields of `[timing]`. The names are listed here, because the table of an
/// experiment contains only those fields that are set.
const TIMING_FIELDS: [&str; 4] = [
    "heartbeat_ms",
    "election_timeout_ms",
    "retransmit_ms",
    "checkpoint_ms",
];
const FAULT_FIELDS: [&str; 8] = [
    "at_s",
    "until_s",
    "action",
    "target",
    "to",
    "direction",
    "delay_ms",
    "loss",
];

pub(super) fn apply(
    experiment: Experiment,
    sets: &[String],
) -> Result<Experiment, ExperimentError> {
    let experiment = without_replaced(experiment, sets)?;
    sets.iter().try_fold(experiment, |experiment, set| {
        let (key, value) = set
            .split_once('=')
            .ok_or_else(|| ExperimentError::NotAPair { found: set.clone() })?;
        match key.trim() {
            "topology" => Ok(Experiment {
                topology: Topology::load(value.trim().as_ref())?,
                ..experiment
            }),
            "strategies" => choose(experiment, value),
            key => field(experiment, key, value.trim()),
        }
    })
}

/// Removes fields that an override makes obsolete. If an override sets the measured time in
/// seconds, the numbers of requests are removed. If an override sets a number of requests, the
/// measured time is removed.
fn without_replaced(
    mut experiment: Experiment,
    sets: &[String],
) -> Result<Experiment, ExperimentError> {
    let sets_any = |fields: [&str; 2]| {
        let keys = sets.iter().filter_map(|set| set.split_once('='));
        let mut keys = keys.map(|(key, _)| dotted_name(key.trim()));
        keys.any(|key| fields.contains(&key))
    };
    let counts = sets_any(["workload.requests", "workload.warmup"]);
    let times = sets_any(["workload.seconds", "workload.warmup_s"]);
    let workload = &mut experiment.workload;
    match (counts, times) {
        (true, true) => {
            return Err(ExperimentError::Invalid {
                field: "--set".to_owned(),
                found: sets.join(" "),
                fix: "set requests and warmup (operations of a client), or seconds and \
                       warmup_s, not both"
                    .to_owned(),
            });
        }
        (true, false) => (workload.seconds, workload.warmup_s) = (None, None),
        (false, true) => (workload.requests, workload.warmup) = (0, 0),
        (false, false) => {}
    }
    Ok(experiment)
}

/// Returns the dotted name of a field. `key` is the short name or the dotted name of the field.
fn dotted_name(key: &str) -> &str {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == key);
    alias.map_or(key, |(_, path)| path)
}

/// Keeps only the named strategies, in the given order. Adds a named strategy with default settings
/// if the experiment does not have it.
fn choose(experiment: Experiment, names: &str) -> Result<Experiment, ExperimentError> {
    let names = names
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let plan = |name: &str| {
        let planned = experiment.strategies.iter();
        let mut planned = planned.filter(|plan| plan.label == name || plan.strategy == name);
        planned.next().cloned().unwrap_or_else(|| StrategyPlan {
            label: name.to_owned(),
            strategy: name.to_owned(),
            ..StrategyPlan::default()
        })
    };
    let strategies = names.map(plan).collect();
    Ok(Experiment {
        strategies,
        ..experiment
    })
}

fn field(experiment: Experiment, key: &str, value: &str) -> Result<Experiment, ExperimentError> {
    let path = dotted_name(key);
    let table = as_table(&experiment)?;
    let unknown = || {
        if path.starts_with("fault.") {
            ExperimentError::UnknownFault {
                key: key.to_owned(),
                faults: experiment.fault.len(),
                fields: FAULT_FIELDS.join(", "),
            }
        } else {
            ExperimentError::UnknownKey {
                key: key.to_owned(),
                known: known(&table).join(", "),
            }
        }
    };
    let mut changed = Value::Table(table.clone());
    put(&mut changed, path, value).ok_or_else(unknown)?;
    changed.try_into().map_err(|error: toml::de::Error| {
        let message = error.message();
        if message.contains("unknown field") {
            unknown()
        } else {
            ExperimentError::BadValue {
                key: key.to_owned(),
                value: value.to_owned(),
                message: out_of_range(value).unwrap_or_else(|| plain::words(message)),
            }
        }
    })
}

/// Returns the error for a whole number of more than 64 bits; `None` for any other value. TOML has
/// no numbers of more than 64 bits, so [`read`] parsed the number as a string.
fn out_of_range(value: &str) -> Option<String> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    let error = value.replace('_', "").parse::<i64>().err()?;
    matches!(error.kind(), PosOverflow | NegOverflow).then(|| {
        format!(
            "out of range; whole numbers from {} to {} can be written",
            i64::MIN,
            i64::MAX
        )
    })
}

fn as_table(experiment: &Experiment) -> Result<Table, ExperimentError> {
    let table = Table::try_from(experiment).map_err(|error| ExperimentError::Malformed {
        name: experiment.name.clone(),
        message: error.to_string(),
    });
    let mut table = table?;
    table
        .entry("timing")
        .or_insert_with(|| Value::Table(Table::new()));
    Ok(table)
}

/// Writes `text` at the dotted `path`; returns `None` if the path does not exist. If only the last
/// step of the path does not exist, this step is added, because it may be an optional field.
fn put(root: &mut Value, path: &str, text: &str) -> Option<()> {
    let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut steps = parents.split('.').filter(|step| !step.is_empty());
    let parent = steps.try_fold(root, child)?;
    let table = parent.as_table_mut()?;
    let value = read(text, table.get(last));
    table.insert(last.to_owned(), value);
    Some(())
}

/// Returns a field of a table or an element of an array. `step` is the name of the field, or the
/// label or position (from 1) of the element.
fn child<'a>(value: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    match value {
        Value::Table(table) => table.get_mut(step),
        Value::Array(elements) => {
            let labelled = |e: &Value| e.get("label").and_then(Value::as_str) == Some(step);
            let found = elements.iter().position(labelled);
            let counted = || step.parse::<usize>().ok()?.checked_sub(1);
            elements.get_mut(found.or_else(counted)?)
        }
        _ => None,
    }
}

/// Parses a value in the syntax of experiment files. Unlike in files, a bare word is a string.
fn read(text: &str, present: Option<&Value>) -> Value {
    let parsed = from_toml::<Table>(&format!("v = {text}"));
    let parsed = parsed.ok().and_then(|mut table| table.remove("v"));
    match (parsed, present) {
        (Some(Value::Integer(number)), Some(Value::Float(_))) => Value::Float(number as f64),
        (Some(value), present) if !matches!(present, Some(Value::String(_))) => value,
        (Some(Value::String(text)), _) => Value::String(text),
        _ => Value::String(text.to_owned()),
    }
}

/// Returns the names of all settings: first the short names, then the dotted ones.
fn known(table: &Table) -> Vec<String> {
    let short = ALIASES.iter().map(|(alias, _)| (*alias).to_owned());
    let mut names: Vec<String> = short.collect();
    names.extend(["strategies", "topology"].map(String::from));
    dotted("", table, &mut names);
    names
}

fn dotted(prefix: &str, table: &Table, names: &mut Vec<String>) {
    for (name, value) in table {
        let name = format!("{prefix}{name}");
        match value {
            Value::Table(_) if name == "topology.rtt_ms" => {
                names.push("topology.rtt_ms.<site>.<site>".to_owned());
            }
            Value::Table(_) if name == "timing" => {
                names.extend(TIMING_FIELDS.map(|field| format!("timing.{field}")));
            }
            Value::Table(inner) => dotted(&format!("{name}."), inner, names),
            Value::Array(_) if name == "strategies" => {
                let fields = [
                    "strategy",
                    "distribution",
                    "accept_replies",
                    "change.<number>.at_s",
                    "change.<number>.strategy",
                    "change.<number>.keys",
                ];
                names.extend(fields.map(|field| format!("strategies.<label>.{field}")));
            }
            Value::Array(_) if name == "fault" => {
                names.extend(FAULT_FIELDS.map(|field| format!("fault.<number>.{field}")));
            }
            _ => names.push(name),
        }
    }
}
