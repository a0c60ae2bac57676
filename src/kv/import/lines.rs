//! Lines of a file, gathered into batches that are written at one moment.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::kv::json;

/// Maximum number of entries of a batch.
const BATCH_ENTRIES: usize = 1000;
/// Maximum bytes of the keys and values of a batch. A batch with a single entry may be longer.
const BATCH_BYTES: usize = 256 << 10;
/// Maximum length of a line. The longest line of an export has about 6 MiB: a value of 1 MiB, each
/// byte of which has an escape.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Character that some editors write at the beginning of a file of UTF-8. It is no part of the text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Number of batches that are read ahead.
const READ_AHEAD: usize = 4;

/// Entries of some lines in a row.
#[derive(Debug, Default)]
pub struct LineBatch {
    /// For each key, the value of the last of the lines with this key.
    entries: HashMap<Bytes, Bytes>,
    /// Bytes of the keys and values.
    size: usize,
    /// Number of lines with an entry.
    pub lines: usize,
    /// Bytes of the lines, and of the lines of white space before and between them.
    pub bytes: usize,
    /// Number of the line after the batch.
    pub next_line: u64,
}

impl LineBatch {
    fn has_capacity(&self, size: usize) -> bool {
        self.lines == 0 || self.lines < BATCH_ENTRIES && self.size + size <= BATCH_BYTES
    }

    fn add(&mut self, (key, value): (Bytes, Bytes)) {
        self.size += key.len() + value.len();
        self.entries.insert(key, value);
        self.lines += 1;
    }

    pub fn entries(&self) -> Vec<(Bytes, Bytes)> {
        let entries = self.entries.iter();
        entries
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    pub fn shares_key(&self, other: &LineBatch) -> bool {
        let mut keys = other.entries.keys();
        keys.any(|key| self.entries.contains_key(key))
    }
}

/// Reads batches from a file or from standard input.
pub struct LineBatchReader {
    input: BufReader<Box<dyn Read + Send>>,
    /// Name of the input in errors.
    name: String,
    /// Number of the line that is read next.
    line: u64,
    /// Bytes that were read, and belong to no batch yet.
    unbatched_bytes: usize,
}

impl LineBatchReader {
    pub fn new(input: Box<dyn Read + Send>, name: String) -> LineBatchReader {
        LineBatchReader {
            input: BufReader::with_capacity(256 << 10, input),
            name,
            line: 1,
            unbatched_bytes: 0,
        }
    }

    /// Reads in another thread, so that a slow input does not block the caller. An error is the
    /// last item that the returned channel yields.
    pub fn start(mut self, from_line: u64) -> mpsc::Receiver<anyhow::Result<LineBatch>> {
        let (sender, batches) = mpsc::channel(READ_AHEAD);
        std::thread::spawn(move || {
            let emit = |batch| sender.blocking_send(batch).is_ok();
            if let Err(error) = self.read_all(from_line, &mut |batch| emit(Ok(batch))) {
                emit(Err(error));
            }
        });
        batches
    }

    /// Passes all batches to `emit`, until it returns false. The lines before an error are passed
    /// on, too.
    fn read_all(
        &mut self,
        from_line: u64,
        emit: &mut impl FnMut(LineBatch) -> bool,
    ) -> anyhow::Result<()> {
        self.skip_to(from_line)?;
        self.unbatched_bytes = 0;
        let mut batch = LineBatch::default();
        loop {
            let read = self.read_entry();
            if let Ok(Some(entry)) = read {
                if !batch.has_capacity(entry.0.len() + entry.1.len())
                    && !emit(std::mem::take(&mut batch))
                {
                    return Ok(());
                }
                batch.add(entry);
                batch.bytes += std::mem::take(&mut self.unbatched_bytes);
                batch.next_line = self.line;
                continue;
            }
            if batch.lines > 0 {
                emit(batch);
            }
            return read.map(|_| ());
        }
    }

    fn skip_to(&mut self, from_line: u64) -> anyhow::Result<()> {
        while self.line < from_line {
            if self.read_line()?.is_none() {
                let (name, lines) = (&self.name, self.line - 1);
                bail!("--from-line: {name} has only {lines} lines");
            }
        }
        Ok(())
    }

    /// Reads the next entry. Lines of white space are ignored.
    fn read_entry(&mut self) -> anyhow::Result<Option<(Bytes, Bytes)>> {
        while let Some(line) = self.read_line()? {
            if !line.trim_ascii().is_empty() {
                let number = self.line - 1;
                let entry = json::read_line(&line);
                let entry = entry.with_context(|| format!("{}: line {number}", self.name))?;
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn read_line(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let (name, number) = (&self.name, self.line);
        let mut line = Vec::new();
        let mut limited = (&mut self.input).take(LINE_BYTES_MAX + 1);
        let read = limited.read_until(b'\n', &mut line);
        read.with_context(|| format!("{name}: reading line {number}"))?;
        if line.len() as u64 > LINE_BYTES_MAX {
            bail!("{name}: line {number}: it has more than {LINE_BYTES_MAX} bytes");
        }
        self.unbatched_bytes += line.len();
        if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if line.is_empty() {
            return Ok(None);
        }
        self.line += 1;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Reads all batches of a text. Returns them, and the error at the end if there is one.
    fn read(text: String, from_line: u64) -> (Vec<LineBatch>, Option<String>) {
        let input = Box::new(std::io::Cursor::new(text));
        let mut reader = LineBatchReader::new(input, "data".to_owned());
        let mut batches = Vec::new();
        let result = reader.read_all(from_line, &mut |batch| {
            batches.push(batch);
            true
        });
        (batches, result.err().map(|error| format!("{error:#}")))
    }

    fn numbered(lines: usize, value: &str) -> String {
        (1..=lines).fold(String::new(), |mut text, number| {
            _ = writeln!(text, "{{\"key\":\"{number}\",\"value\":\"{value}\"}}");
            text
        })
    }

    #[test]
    fn batches_are_limited_by_entries_and_by_bytes() {
        let (batches, error) = read(numbered(2500, "v"), 1);
        let found: Vec<_> = batches.iter().map(|it| (it.lines, it.next_line)).collect();
        assert_eq!(found, [(1000, 1001), (1000, 2001), (500, 2501)]);
        assert_eq!(error, None);
        let (batches, _) = read(numbered(5, &"v".repeat(100_000)), 1);
        let found: Vec<_> = batches.iter().map(|it| (it.lines, it.next_line)).collect();
        assert_eq!(found, [(2, 3), (2, 5), (1, 6)]);
        let (batches, _) = read(numbered(2, &"v".repeat(1 << 20)), 1);
        assert_eq!(batches.len(), 2);
    }

    #[test]
    fn the_last_of_equal_keys_counts() {
        let text = numbered(2, "old") + "\n \r\n" + &numbered(1, "new");
        let (batches, _) = read(text, 1);
        let [batch] = &batches[..] else {
            panic!("{batches:?}");
        };
        assert_eq!((batch.lines, batch.next_line), (3, 6));
        let mut entries = batch.entries();
        entries.sort();
        let wanted = [("1", "new"), ("2", "old")];
        assert_eq!(
            entries,
            wanted.map(|(key, value)| (key.into(), value.into()))
        );
    }

    #[test]
    fn lines_of_white_space_count_as_bytes() {
        let text = "\n\n".to_owned() + &numbered(1, "old") + "  \n" + &numbered(2, "new");
        let length = text.len();
        let (batches, _) = read(text, 1);
        assert_eq!((batches[0].lines, batches[0].bytes), (3, length));
        let (batches, _) = read(numbered(3, "v"), 3);
        assert_eq!(batches[0].bytes, numbered(1, "v").len());
    }

    #[test]
    fn a_byte_order_mark_is_skipped_only_at_the_beginning() {
        let text = format!("\u{feff}{}", numbered(2, "v"));
        let (batches, error) = read(text.clone(), 1);
        assert_eq!((batches[0].lines, batches[0].bytes), (2, text.len()));
        assert_eq!(error, None);
        let (batches, error) = read(text.clone(), 2);
        assert_eq!((batches[0].lines, error), (1, None));
        let (batches, error) = read("\u{feff}".to_owned(), 1);
        assert_eq!((batches.len(), error), (0, None));
        let (_, error) = read(numbered(1, "v") + &text, 1);
        assert!(error.unwrap().starts_with("data: line 2: no valid entry"));
    }

    #[test]
    fn the_lines_before_an_error_are_read_and_the_error_names_its_line() {
        let text = numbered(1500, "v") + "{\"key\":\"cut";
        let (batches, error) = read(text.clone(), 1);
        assert_eq!(batches.iter().map(|it| it.lines).sum::<usize>(), 1500);
        assert_eq!(batches.last().unwrap().next_line, 1501);
        let error = error.unwrap();
        assert!(
            error.starts_with("data: line 1501: no valid entry"),
            "{error}"
        );
        let (batches, error) = read(text.clone(), 1500);
        assert_eq!((batches.len(), batches[0].lines), (1, 1));
        assert!(error.unwrap().contains("line 1501"));
        let (_, error) = read(numbered(3, "v"), 4);
        assert_eq!(error, None);
        let (_, error) = read(numbered(3, "v"), 5);
        assert_eq!(error.unwrap(), "--from-line: data has only 3 lines");
        let long = " ".repeat(LINE_BYTES_MAX as usize + 1);
        let (_, error) = read(numbered(1, "v") + &long, 1);
        assert!(error.unwrap().starts_with("data: line 2: it has more than"));
    }
}
