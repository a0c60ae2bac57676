//! `leasehold kv txn`.

mod language;

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use leasehold_client::Error;
use leasehold_wire::op_result::Result as Answer;
use leasehold_wire::outcome::Result as Content;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{FailedComparison, OpResult, Txn, TxnOp, TxnResult, comparison::Condition};
use serde::Serialize;

use super::json::{self, PrintedLine};
use super::notation::Notation;
use super::replica::Asked;
use super::single::{read_source, shown};
use crate::connector::Connector;
use crate::terminal::{is_unprintable, note, print_bytes};

/// Maximum size of a value that an error quotes, in bytes.
const QUOTED_BYTES_MAX: usize = 100;

const LANGUAGE: &str = "\
A transaction is a list of operations, with `;` or a line end between them:
  get KEY                      put KEY VALUE              del KEY
  add KEY NUMBER               append KEY SUFFIX
  put_fields KEY NAME VALUE…   del_fields KEY NAME…       fields of a record
The operations are executed in order and at one moment, and each sees the effects of those before it. If one \
cannot be executed, nothing is.

Comparisons may stand before them. If one does not hold, the operations after `else` are executed instead:
  if COMPARISON and COMPARISON … then OPERATIONS else OPERATIONS
  present KEY                  absent KEY                 version KEY = VERSION
  value KEY = VALUE            also with < <= > >=: values are compared as bytes, so 10 is below 9, and a \
key that does not exist is below every value

A word in double quotes may contain anything, with the escapes \\n, \\t, \\r, \\\\, \\\", \\xff and \\u{1b}. A word in single \
quotes has no escapes. Other keys and values are read as --hex and --escapes say, even in a file. A line that \
begins with # is a comment.

The output has a line for each operation that was executed, with tabs between the columns:
  value KEY VALUE              missing KEY                written KEY
  removed KEY COUNT            sum KEY NUMBER             length KEY BYTES
  refused KEY REASON           with --keep-going
If there are comparisons, a line with `then` or `else` comes first. Values have escapes only on a terminal. So a \
script should give --json or --escapes.

Examples:
  leasehold kv txn 'add visits 1; append log \"Ada came\\n\"'
  leasehold kv txn 'if version a = 12.0 and absent b then put a 1; add n 5 else get a'
  leasehold kv txn --file move.txn
  leasehold kv txn - <<'END'
  if absent order/17 and value stock >= 1
  then
    put order/17 \"a book\"
    add stock -1
  else
    get order/17
  END

Exit status: 0: the operations were executed. 1: a comparison did not hold (the operations after `else` were \
executed), an operation was refused, the text has an error, or the command failed. 2: the command line cannot \
be parsed.";

#[derive(Args)]
#[command(after_help = LANGUAGE)]
pub struct TxnArgs {
    /// The transaction, in one argument; `-`: standard input
    #[arg(value_name = "TRANSACTION", required_unless_present = "file")]
    text: Option<String>,
    /// Reads the transaction from a file; `-`: standard input
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Executes the other operations if one of them cannot be executed
    #[arg(long)]
    keep_going: bool,
    /// Prints the results as a line of JSON
    #[arg(long)]
    json: bool,
}

impl TxnArgs {
    /// Returns the transaction that the text describes.
    pub fn txn(&self, notation: Notation) -> anyhow::Result<Txn> {
        let read = read_source(self.text.as_deref(), self.file.as_deref())?;
        let Ok(text) = std::str::from_utf8(&read) else {
            bail!("the transaction is not UTF-8; write other bytes as \\xff in double quotes");
        };
        let mut txn = language::parse(text, notation).context("the transaction")?;
        txn.keep_going = self.keep_going;
        Ok(txn)
    }

    pub async fn run(
        &self,
        txn: Txn,
        notation: Notation,
        connector: &Connector,
        is_verbose: bool,
    ) -> anyhow::Result<()> {
        let mut asked = Asked::connect(connector, is_verbose).await?;
        let op = leasehold_wire::command::Op::txn(txn.clone());
        let reply = asked.execute(op).await?;
        let result = result(reply.outcome.result)?;
        let executed = Executed {
            list: if result.or_else {
                &txn.or_else
            } else {
                &txn.then
            },
            txn: &txn,
            result: &result,
            notation,
        };
        if self.json {
            print_bytes(&executed.json()?);
        } else {
            print_bytes(&executed.lines(std::io::stdout().is_terminal()));
        }
        if is_verbose && let Some(version) = &result.version {
            note!("version: {}", shown(Some(version)));
        }
        executed.check()
    }
}

/// Returns the result of a transaction.
///
/// # Errors
/// If a replica returned an error, if the result is not that of a transaction, or if a part of the
/// result was left out.
pub fn result(content: Option<Content>) -> anyhow::Result<TxnResult> {
    match content {
        Some(Content::Txn(result)) if result.abridged => Err(Error::Executed {
            held: !result.or_else,
            version: match &result.version {
                Some(version) => Some(shown(Some(version)).parse()?),
                None => None,
            },
        }
        .into()),
        Some(Content::Txn(result)) => Ok(result),
        Some(Content::Error(error)) => bail!("{}", error.message),
        _ => bail!("the replica's answer is of a kind this version does not know"),
    }
}

/// A transaction that was executed, and its result.
struct Executed<'a> {
    txn: &'a Txn,
    /// List of operations that was executed.
    list: &'a [TxnOp],
    result: &'a TxnResult,
    notation: Notation,
}

/// JSON of a transaction's result.
#[derive(Serialize)]
struct PrintedTxn<'a> {
    branch: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<PrintedFailure<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    results: Vec<PrintedResult<'a>>,
}

/// JSON of the first comparison that did not hold.
#[derive(Serialize)]
struct PrintedFailure<'a> {
    comparison: u32,
    #[serde(flatten)]
    found: PrintedLine<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
}

/// JSON of the result of one operation.
#[derive(Default, Serialize)]
struct PrintedResult<'a> {
    op: &'static str,
    #[serde(flatten)]
    found: PrintedLine<'a>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    missing: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<PrintedError<'a>>,
}

#[derive(Serialize)]
struct PrintedError<'a> {
    code: &'static str,
    message: &'a str,
}

impl<'a> Executed<'a> {
    /// Returns the branch that was executed.
    fn branch(&self) -> &'static str {
        if self.result.or_else { "else" } else { "then" }
    }

    /// Returns each operation that was executed, with its result.
    fn results(&self) -> impl Iterator<Item = (&'a Operation, &'a Answer)> {
        let operations = self.list.iter().filter_map(|listed| listed.op.as_ref());
        let answers = self.result.results.iter();
        operations.zip(answers.filter_map(|OpResult { result }| result.as_ref()))
    }

    fn lines(&self, is_terminal: bool) -> Vec<u8> {
        let mut lines = Vec::new();
        if !self.txn.comparisons.is_empty() {
            lines.extend(self.branch().as_bytes());
            lines.push(b'\n');
        }
        for (operation, answer) in self.results() {
            let value = |value| self.notation.value(value, is_terminal, is_unprintable);
            let (word, data) = match answer {
                Answer::Value(found) => ("value", Some(value(&found.value))),
                Answer::Missing(_) => ("missing", None),
                Answer::Number(sum) => ("sum", Some(sum.to_string().into())),
                Answer::Error(error) => {
                    let reason = format!("{}: {}", error.code().as_str_name(), error.message);
                    ("refused", Some(reason.into()))
                }
                Answer::Count(count) => match operation {
                    Operation::Append(_) => ("length", Some(count.to_string().into())),
                    Operation::Delete(_) | Operation::DeleteFields(_) => {
                        ("removed", Some(count.to_string().into()))
                    }
                    Operation::Put(_) | Operation::PutFields(_) => ("written", None),
                    Operation::Get(_) | Operation::Add(_) => {
                        ("count", Some(count.to_string().into()))
                    }
                },
            };
            lines.extend(word.as_bytes());
            lines.push(b'\t');
            lines.extend(self.notation.key(operation.key()));
            if let Some(data) = data {
                lines.push(b'\t');
                lines.extend(data);
            }
            lines.push(b'\n');
        }
        lines
    }

    fn json(&self) -> anyhow::Result<Vec<u8>> {
        let versions: Vec<Option<String>> = self
            .results()
            .map(|(_, answer)| match answer {
                Answer::Value(found) => Some(shown(found.version.as_ref())),
                _ => None,
            })
            .collect();
        let found_version = self.found().map(|found| shown(found.version.as_ref()));
        let failed = self.result.failed.as_ref().and_then(|failed| {
            let comparison = self.txn.comparisons.get(failed.index as usize)?;
            let value = failed.found.as_ref().map(|found| &found.value[..]);
            let version = found_version.as_deref();
            Some(PrintedFailure {
                comparison: failed.index,
                found: PrintedLine::new(self.notation, &comparison.key, value, version),
                missing: failed.found.is_none(),
            })
        });
        let results = self.results().zip(&versions);
        let results = results.map(|((operation, answer), version)| {
            let value = match answer {
                Answer::Value(found) => Some(&found.value[..]),
                _ => None,
            };
            let key = operation.key();
            let printed = PrintedResult {
                op: language::name(operation),
                found: PrintedLine::new(self.notation, key, value, version.as_deref()),
                ..PrintedResult::default()
            };
            match answer {
                Answer::Value(_) => printed,
                Answer::Missing(_) => PrintedResult {
                    missing: true,
                    ..printed
                },
                Answer::Count(count) => PrintedResult {
                    count: Some(*count),
                    ..printed
                },
                Answer::Number(number) => PrintedResult {
                    number: Some(*number),
                    ..printed
                },
                Answer::Error(error) => PrintedResult {
                    error: Some(PrintedError {
                        code: error.code().as_str_name(),
                        message: &error.message,
                    }),
                    ..printed
                },
            }
        });
        let mut line = Vec::new();
        let printed = PrintedTxn {
            branch: self.branch(),
            failed,
            version: self.result.version.as_ref().map(|it| shown(Some(it))),
            results: results.collect(),
        };
        json::append_object(&mut line, &printed)?;
        Ok(line)
    }

    fn found(&self) -> Option<&'a leasehold_wire::Value> {
        self.result.failed.as_ref()?.found.as_ref()
    }

    /// Returns an error if a comparison did not hold, or if an operation was refused.
    fn check(&self) -> anyhow::Result<()> {
        let refusals = self.refusals();
        let Some(failed) = &self.result.failed else {
            return refusals.map_or(Ok(()), |refusals| Err(anyhow!(refusals)));
        };
        let done = match refusals {
            _ if self.list.is_empty() => "nothing was executed".to_owned(),
            Some(refusals) => refusals,
            None => "the operations after `else` were executed".to_owned(),
        };
        bail!("{}; {done}", self.failure(failed))
    }

    /// Describes how many operations were refused; `None` if none was.
    fn refusals(&self) -> Option<String> {
        let is_refused = |(_, answer): &(_, &Answer)| matches!(answer, Answer::Error(_));
        let (refused, all) = (self.results().filter(is_refused).count(), self.list.len());
        let verb = if refused == 1 { "was" } else { "were" };
        let place = if self.result.or_else {
            " after `else`"
        } else {
            ""
        };
        (refused > 0).then(|| {
            format!(
                "{refused} of {all} operations{place} {verb} refused, and the others were executed"
            )
        })
    }

    /// Describes the comparison that did not hold.
    fn failure(&self, failed: &FailedComparison) -> String {
        let comparison = self.txn.comparisons.get(failed.index as usize);
        let text = comparison.map(|it| language::comparison_text(it, self.notation));
        let is_about_value = comparison.is_some_and(|it| {
            !matches!(
                it.condition,
                Some(Condition::Version(_) | Condition::Present(_)) | None
            )
        });
        let found = match &failed.found {
            None => "there is no such key".to_owned(),
            Some(found) if is_about_value && found.value.len() <= QUOTED_BYTES_MAX => {
                format!(
                    "the value is {}",
                    language::word(&found.value, self.notation)
                )
            }
            Some(found) if is_about_value => {
                format!("the value has {} bytes", found.value.len())
            }
            Some(found) => format!("the version is {}", shown(found.version.as_ref())),
        };
        let text = text.unwrap_or_default();
        format!("the comparison `{text}` did not hold: {found}")
    }
}
