//! `leasehold kv scan`.

use std::io::IsTerminal as _;

use anyhow::bail;
use clap::Args;
use leasehold_wire::{Entry, KEY_BYTES_MAX};

use super::json;
use super::notation::Notation;
use super::pages::Pages;
use super::range::KeysLeft;
use super::replica::Asked;
use super::single::shown;
use crate::connector::Connector;
use crate::terminal::{is_closed, is_unprintable, note, print_in_background};

#[derive(Args)]
pub struct ScanArgs {
    /// First key
    #[arg(
        default_value = "",
        hide_default_value = true,
        conflicts_with = "prefix"
    )]
    from: String,
    /// End of the range, exclusive [default: no end]
    #[arg(
        default_value = "",
        hide_default_value = true,
        conflicts_with = "prefix"
    )]
    to: String,
    #[command(flatten)]
    part: KeyPartArgs,
    /// Most entries to print
    #[arg(long, allow_negative_numbers = true, default_value_t = 100)]
    limit: u32,
    /// Prints all entries
    #[arg(long, conflicts_with = "limit")]
    all: bool,
    /// Prints the keys without the values
    #[arg(long)]
    keys_only: bool,
    /// Prints a line of JSON for each entry: {"key":"k","value":"v","version":"12.0"}. A key or value that is
    /// not UTF-8 is called key_hex or value_hex, and consists of hexadecimal digits
    #[arg(long)]
    json: bool,
}

/// Options that choose a part of the keys.
#[derive(Args)]
pub struct KeyPartArgs {
    /// Only keys that begin with PREFIX
    #[arg(long)]
    prefix: Option<String>,
    /// Only keys after KEY. To continue after the last key of an earlier output, give --escapes or --hex both
    /// times
    #[arg(long, value_name = "KEY")]
    after: Option<String>,
}

impl KeyPartArgs {
    /// Returns the chosen part of the keys between `from` and `to`; `None` if no key can be in this
    /// part.
    pub fn range(
        &self,
        notation: Notation,
        from: &str,
        to: &str,
    ) -> anyhow::Result<Option<KeysLeft>> {
        let read = |field: &str, text: &str| {
            let key = notation.read(field, text)?;
            if key.len() > KEY_BYTES_MAX {
                let found = key.len();
                bail!("{field}: it has {found} bytes; a key has at most {KEY_BYTES_MAX}");
            }
            Ok(key)
        };
        let whole = match &self.prefix {
            Some(prefix) => KeysLeft::of_prefix(read("--prefix", prefix)?),
            None => KeysLeft {
                from: read("FROM", from)?,
                to: read("TO", to)?,
            },
        };
        match &self.after {
            Some(after) => Ok(whole.after(&read("--after", after)?)),
            None => Ok(Some(whole)),
        }
    }
}

impl ScanArgs {
    /// Returns the pages to read.
    pub fn pages(&self, notation: Notation) -> anyhow::Result<Pages> {
        if self.limit == 0 {
            bail!("--limit: 0 would print nothing; give 1 or more, or --all");
        }
        let range = self.part.range(notation, &self.from, &self.to)?;
        if self.is_reversed(notation)? {
            note!("note: FROM is not before TO, so no key is between them");
        }
        Ok(Pages::new(range, (!self.all).then_some(self.limit)))
    }

    /// Returns true if the first key is not before the key at which the scan stops.
    fn is_reversed(&self, notation: Notation) -> anyhow::Result<bool> {
        let from = notation.read("FROM", &self.from)?;
        Ok(!self.to.is_empty() && from >= notation.read("TO", &self.to)?)
    }

    pub async fn run(
        &self,
        mut pages: Pages,
        notation: Notation,
        connector: &Connector,
        is_verbose: bool,
    ) -> anyhow::Result<()> {
        let is_terminal = std::io::stdout().is_terminal();
        let mut asked = Asked::connect(connector, is_verbose).await?;
        let mut count = 0;
        while let Some(entries) = pages.next(&mut asked).await? {
            count += entries.len() as u64;
            self.note_truncated(count);
            let mut lines = Vec::new();
            for entry in &entries {
                self.append_line(&mut lines, entry, notation, is_terminal)?;
            }
            print_in_background(lines).await?;
            if is_closed() {
                break;
            }
        }
        Ok(())
    }

    /// Prints a warning if a scan may have omitted entries. A scan may have omitted entries if the
    /// number of returned entries equals the limit of the scan.
    fn note_truncated(&self, count: u64) {
        let limit = self.limit;
        if !self.all && count == u64::from(limit) {
            let noun = if limit == 1 { "entry" } else { "entries" };
            note!(
                "note: {limit} {noun}, and there may be more: --limit sets how many are printed, and --all \
                 prints all"
            );
        }
    }

    fn append_line(
        &self,
        lines: &mut Vec<u8>,
        entry: &Entry,
        notation: Notation,
        is_terminal: bool,
    ) -> anyhow::Result<()> {
        let value = (!self.keys_only).then_some(&entry.value[..]);
        if self.json {
            let version = shown(entry.version.as_ref());
            return json::append_line(lines, notation, &entry.key, value, Some(&version));
        }
        lines.extend(notation.key(&entry.key));
        if let Some(value) = value {
            lines.push(b'\t');
            lines.extend(notation.value(value, is_terminal, is_unprintable));
        }
        lines.push(b'\n');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ScanLine {
        #[command(flatten)]
        scan: ScanArgs,
    }

    fn parsed(words: &[&str]) -> ScanArgs {
        let words = [&["scan"], words].concat();
        ScanLine::try_parse_from(words).unwrap().scan
    }

    #[test]
    fn a_terminal_is_shown_no_control_characters_and_a_pipe_gets_the_bytes() {
        let entry = Entry {
            key: b"k\t\\1"[..].into(),
            value: b"a\nb\x07\\"[..].into(),
            version: None,
        };
        let line = |words: &[&str], notation, is_terminal| {
            let mut line = Vec::new();
            let scan = parsed(words);
            scan.append_line(&mut line, &entry, notation, is_terminal)
                .unwrap();
            String::from_utf8(line).unwrap()
        };
        let shown = line(&[], Notation::Plain, true);
        assert_eq!(shown, "k\\t\\\\1\ta\\nb\\u{7}\\\n");
        let piped = line(&[], Notation::Plain, false);
        assert_eq!(piped, "k\\t\\\\1\ta\nb\x07\\\n");
        for is_terminal in [true, false] {
            let escaped = line(&[], Notation::Escapes, is_terminal);
            assert_eq!(escaped, "k\\t\\\\1\ta\\nb\\u{7}\\\\\n");
            let hex = line(&[], Notation::Hex, is_terminal);
            assert_eq!(hex, "6b095c31\t610a62075c\n");
            let keys = line(&["--keys-only"], Notation::Plain, is_terminal);
            assert_eq!(keys, "k\\t\\\\1\n");
        }
        let json = line(&["--keys-only", "--json"], Notation::Plain, true);
        assert_eq!(json, "{\"key\":\"k\\t\\\\1\",\"version\":\"absent\"}\n");
    }

    #[test]
    fn a_range_whose_end_is_not_after_its_beginning_is_noticed() {
        let is_reversed = |words: &[&str]| parsed(words).is_reversed(Notation::Escapes).unwrap();
        assert!(is_reversed(&["z", "a"]));
        assert!(is_reversed(&["a", "a"]));
        assert!(is_reversed(&["\\xff", "z"]));
        for words in [&["a", "b"][..], &["z"], &[], &["--prefix", "z"], &["", "a"]] {
            assert!(!is_reversed(words), "{words:?}");
        }
    }

    #[test]
    fn options_choose_the_range() {
        let range = |words: &[&str]| {
            let scan = parsed(words);
            scan.part.range(Notation::Escapes, &scan.from, &scan.to)
        };
        let keys = |from: &'static [u8], to: &'static [u8]| {
            Some(KeysLeft {
                from: from.into(),
                to: to.into(),
            })
        };
        assert_eq!(range(&[]).unwrap(), keys(b"", b""));
        assert_eq!(range(&["a", "b"]).unwrap(), keys(b"a", b"b"));
        assert_eq!(
            range(&["a", "b", "--after", "a1"]).unwrap(),
            keys(b"a1\0", b"b")
        );
        assert_eq!(
            range(&["--prefix", "a\\xff"]).unwrap(),
            keys(b"a\xff", b"b")
        );
        assert_eq!(range(&["--prefix", "\\xff"]).unwrap(), keys(b"\xff", b""));
        assert_eq!(range(&["--prefix", "a", "--after", "b"]).unwrap(), None);
        let long = "k".repeat(KEY_BYTES_MAX + 1);
        for words in [["--prefix", &long], ["--after", &long], ["a", &long]] {
            let error = range(&words).unwrap_err().to_string();
            assert!(error.contains("4097 bytes"), "{error}");
        }
        assert!(ScanLine::try_parse_from(["scan", "a", "--prefix", "a"]).is_err());
        assert!(ScanLine::try_parse_from(["scan", "--all", "--limit", "5"]).is_err());
    }
}
