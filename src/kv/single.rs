//! Commands that read or write a single key.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use leasehold_client::{Error, RawReply};
use leasehold_wire::command::Op;
use leasehold_wire::op_result::Result as OpAnswer;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::txn_op::Op as Operation;
use leasehold_wire::{Txn, Value, Version, without_txn_place};

use super::notation::Notation;
use super::replica::Asked;
use super::{json, txn};
use crate::connector::Connector;
use crate::terminal::{is_unprintable, note, print_bytes, say};

/// Value on the command line, in a file or on standard input.
#[derive(Args)]
pub struct ValueArgs {
    /// The value, up to 1 MiB; `-`: standard input. The value `-` itself is written as --escapes '\x2d'
    #[arg(required_unless_present = "file")]
    value: Option<String>,
    /// Takes the value from a file; `-`: standard input
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,
}

impl ValueArgs {
    fn read(&self, notation: Notation) -> anyhow::Result<Bytes> {
        read_value(notation, "VALUE", &self.value, &self.file)
    }
}

#[derive(Subcommand)]
pub enum SingleKeyCommand {
    /// Prints the value of a key; exit status 1 if there is none. On a terminal, control characters other
    /// than line ends and tabs are shown as escapes, such as \u{1b}; elsewhere the bytes are written as they are
    Get {
        /// The key
        key: String,
        /// Prints exactly the bytes of the value, without a line end
        #[arg(long, conflicts_with_all = ["output", "json"])]
        raw: bool,
        /// Writes exactly the bytes of the value to a file; `-`: standard output. An existing file is
        /// overwritten
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        output: Option<PathBuf>,
        /// Prints a line of JSON, as `kv scan --json` does
        #[arg(long)]
        json: bool,
    },
    /// Writes a value
    Put {
        /// The key, up to 4096 bytes
        key: String,
        #[command(flatten)]
        value: ValueArgs,
    },
    /// Removes a key
    Del {
        /// The key
        key: String,
    },
    /// Adds to the number that is the value of a key, and prints the sum. A key that does not exist counts
    /// as 0. Exit status 1 if the value or the sum is not a decimal integer of 64 bits
    Add {
        /// The key
        key: String,
        /// The number to add, such as 5 or -5
        #[arg(allow_negative_numbers = true)]
        number: i64,
    },
    /// Adds to the end of a value, and prints the new length in bytes. A key that does not exist counts as
    /// empty. The new value may have up to 256 KiB
    Append {
        /// The key
        key: String,
        /// The text to add; `-`: standard input
        #[arg(required_unless_present = "file")]
        suffix: Option<String>,
        /// Takes the text from a file; `-`: standard input
        #[arg(long, value_name = "FILE", conflicts_with = "suffix")]
        file: Option<PathBuf>,
    },
    /// Writes a value if the key still has a version; exit status 1 if not
    Cas {
        /// The key
        key: String,
        /// The version expected, as `kv get -v` prints it (slot.index), or `absent`
        expected: String,
        #[command(flatten)]
        value: ValueArgs,
    },
}

impl SingleKeyCommand {
    /// Returns the operation that this command executes.
    pub fn op(&self, notation: Notation) -> anyhow::Result<Op> {
        let read = |key: &String| notation.read("KEY", key);
        Ok(match self {
            SingleKeyCommand::Get { key, .. } => Op::get(read(key)?),
            SingleKeyCommand::Put { key, value } => Op::put(read(key)?, value.read(notation)?),
            SingleKeyCommand::Del { key } => Op::delete(read(key)?),
            SingleKeyCommand::Cas {
                key,
                expected,
                value,
            } => {
                let expected = version(expected)?;
                Op::cas(read(key)?, value.read(notation)?, expected)
            }
            SingleKeyCommand::Add { key, number } => {
                one_operation(Operation::add(read(key)?, *number))
            }
            SingleKeyCommand::Append { key, suffix, file } => {
                let suffix = read_value(notation, "SUFFIX", suffix, file)?;
                one_operation(Operation::append(read(key)?, suffix))
            }
        })
    }

    pub async fn run(
        &self,
        op: Op,
        notation: Notation,
        connector: &Connector,
        is_verbose: bool,
    ) -> anyhow::Result<()> {
        let mut asked = Asked::connect(connector, is_verbose).await?;
        let reply = asked.execute(op).await.map_err(without_place)?;
        let version = self.print(reply, notation)?;
        if is_verbose {
            note!("version: {}", shown(version.as_ref()));
        }
        Ok(())
    }

    /// Prints the answer. Returns the version of the value that was read or written.
    fn print(&self, reply: RawReply, notation: Notation) -> anyhow::Result<Option<Version>> {
        match reply.outcome.result {
            Some(Answer::Value(found)) => {
                self.print_value(&found, notation)?;
                Ok(found.version)
            }
            Some(Answer::Written(written)) => Ok(Some(written)),
            Some(Answer::Missing(_)) => bail!("there is no such key"),
            Some(Answer::Mismatch(found)) => match &found.actual {
                None => bail!("not written: there is no such key"),
                actual => bail!("not written: its version is {}", shown(actual.as_ref())),
            },
            Some(Answer::Error(error)) => bail!("{}", without_txn_place(&error.message)),
            content @ (Some(Answer::Txn(_) | Answer::Entries(_)) | None) => {
                let executed = txn::result(content)?;
                let answers = executed.results.into_iter().filter_map(|it| it.result);
                for answer in answers {
                    match answer {
                        OpAnswer::Number(sum) => say!("{sum}"),
                        OpAnswer::Count(length) => say!("{length}"),
                        _ => bail!("the replica's answer does not belong to this operation"),
                    }
                }
                Ok(executed.version)
            }
        }
    }

    fn print_value(&self, found: &Value, notation: Notation) -> anyhow::Result<()> {
        let value = &found.value;
        match self {
            SingleKeyCommand::Get {
                output: Some(file), ..
            } if file != Path::new("-") => {
                let name = file.display();
                let mut created = std::fs::File::create(file)
                    .with_context(|| format!("--output: creating {name}"))?;
                return created.write_all(value).with_context(|| {
                    format!("--output: writing {name}: the file is not complete")
                });
            }
            SingleKeyCommand::Get { raw: true, .. }
            | SingleKeyCommand::Get {
                output: Some(_), ..
            } => print_bytes(value),
            SingleKeyCommand::Get {
                json: true, key, ..
            } => {
                let key = notation.read("KEY", key)?;
                let version = shown(found.version.as_ref());
                let mut line = Vec::new();
                json::append_line(&mut line, notation, &key, Some(value), Some(&version))?;
                print_bytes(&line);
            }
            _ => {
                let is_terminal = std::io::stdout().is_terminal();
                print_bytes(&value_line(value, notation, is_terminal));
            }
        }
        Ok(())
    }
}

/// Returns a transaction with a single operation, which is a command on one key.
fn one_operation(operation: Operation) -> Op {
    Op::txn(Txn {
        then: vec![operation.into()],
        ..Txn::default()
    })
}

/// Removes the place in the transaction from the error of a command that [`one_operation`] built.
fn without_place(mut error: Error) -> Error {
    if let Error::Refused { message, .. } = &mut error {
        *message = without_txn_place(message).to_owned();
    }
    error
}

/// Reads the value from a file, from standard input, or from an argument of the command line.
/// `field` is the name of the argument in errors.
fn read_value(
    notation: Notation,
    field: &str,
    argument: &Option<String>,
    file: &Option<PathBuf>,
) -> anyhow::Result<Bytes> {
    match (file, argument.as_deref()) {
        (None, Some(text)) if text != "-" => notation.read(field, text),
        (file, argument) => read_source(argument, file.as_deref()),
    }
}

/// Maximum number of bytes that are read from a file or from standard input. The limits of values and
/// transactions are lower, and their errors name the exact length. An endless file is refused here.
const READ_BYTES_MAX: u64 = 64 << 20;

/// Returns the bytes of a file, of standard input, or of an argument of the command line. For the
/// file or the argument `-`, standard input is read.
pub fn read_source(argument: Option<&str>, file: Option<&Path>) -> anyhow::Result<Bytes> {
    match (file, argument) {
        (Some(file), _) if file != Path::new("-") => {
            let opened = std::fs::File::open(file).map_err(anyhow::Error::from);
            let read = opened.and_then(read_limited);
            read.with_context(|| format!("--file: reading {}", file.display()))
        }
        (Some(_), _) | (None, None | Some("-")) => {
            read_limited(std::io::stdin()).context("reading standard input")
        }
        (None, Some(text)) => Ok(text.to_owned().into()),
    }
}

fn read_limited(input: impl std::io::Read) -> anyhow::Result<Bytes> {
    let mut read = Vec::new();
    input.take(READ_BYTES_MAX + 1).read_to_end(&mut read)?;
    if read.len() as u64 > READ_BYTES_MAX {
        bail!("it has more than {READ_BYTES_MAX} bytes; a value has at most 1 MiB");
    }
    Ok(read.into())
}

fn version(text: &str) -> anyhow::Result<Option<Version>> {
    if text == "absent" {
        return Ok(None);
    }
    let wanted = "a version is written slot.index, as `kv get -v` prints it, or `absent`";
    read_version(text)
        .map(Some)
        .with_context(|| format!("expected: '{text}' is no version; {wanted}"))
}

/// Parses a version, as [`shown`] formats it.
pub fn read_version(text: &str) -> Option<Version> {
    let (slot, index) = text.split_once('.')?;
    Some(Version {
        slot: slot.parse().ok()?,
        index: index.parse().ok()?,
    })
}

/// Formats a version in the notation that `kv cas` accepts.
pub fn shown(version: Option<&Version>) -> String {
    version.map_or("absent".to_string(), |v| format!("{}.{}", v.slot, v.index))
}

/// Returns the line that `get` prints for this value.
fn value_line(value: &[u8], notation: Notation, is_terminal: bool) -> Vec<u8> {
    let must_escape = |letter| is_unprintable(letter) && !['\n', '\t'].contains(&letter);
    let mut line = notation.value(value, is_terminal, must_escape);
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_shown_no_control_characters_and_a_pipe_gets_the_bytes() {
        let value = "a\u{1b}[2J\r\n\t\u{9b}Z\\é\u{202e}".as_bytes();
        let value = [value, &[0xff]].concat();
        let shown = String::from_utf8(value_line(&value, Notation::Plain, true)).unwrap();
        assert_eq!(shown, "a\\u{1b}[2J\\r\n\t\\u{9b}Z\\é\\u{202e}\\xff\n");
        let piped = value_line(&value, Notation::Plain, false);
        assert_eq!(piped, [&value[..], b"\n"].concat());
    }

    #[test]
    fn a_chosen_notation_is_the_same_on_a_terminal_and_in_a_pipe() {
        for is_terminal in [true, false] {
            let line = |notation| value_line(b"a\n\\", notation, is_terminal);
            assert_eq!(line(Notation::Escapes), b"a\\n\\\\\n");
            assert_eq!(line(Notation::Hex), b"610a5c\n");
        }
    }
}
