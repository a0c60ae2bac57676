//! Scans of any length, as a sequence of pages.
//!
//! A page is one linearizable scan. The pages of a long scan are read one after another, so the
//! whole is not the state at one moment.

use anyhow::bail;
use leasehold_client::{Error, RefusalKind};
use leasehold_wire::command::Op;
use leasehold_wire::outcome::Result as Answer;
use leasehold_wire::{Entry, SCAN_ENTRIES_MAX};

use super::range::KeysLeft;
use super::replica::Asked;

/// Bytes of keys and values that a page should have. An answer may have at most about 3.9 MiB, so
/// pages of this size are rarely refused.
const PAGE_BYTES: usize = 2 << 20;

/// The pages of a range that have not been read yet.
pub struct Pages {
    /// `None` after the last page.
    left: Option<KeysLeft>,
    /// Number of entries that are still wanted; `None` if all are wanted.
    wanted: Option<u32>,
    /// Maximum number of entries of the next page.
    page: u32,
}

impl Pages {
    pub fn new(range: Option<KeysLeft>, wanted: Option<u32>) -> Pages {
        Pages {
            left: range,
            wanted,
            page: SCAN_ENTRIES_MAX,
        }
    }

    /// Reads the next page. Returns `None` after the last page.
    pub async fn next(&mut self, asked: &mut Asked<'_>) -> anyhow::Result<Option<Vec<Entry>>> {
        while let Some(op) = self.op() {
            let reply = match asked.execute(op).await {
                Err(Error::Refused {
                    kind: RefusalKind::TooLarge,
                    ..
                }) if self.halve() => continue,
                reply => reply?,
            };
            let Some(Answer::Entries(found)) = reply.outcome.result else {
                bail!("the replica's answer to a scan holds no entries");
            };
            self.accept(&found.entries);
            return Ok(Some(found.entries));
        }
        Ok(None)
    }

    /// Returns the scan that reads the next page.
    fn op(&self) -> Option<Op> {
        let KeysLeft { from, to } = self.left.clone()?;
        Some(Op::scan(from, to, self.limit()))
    }

    fn limit(&self) -> u32 {
        self.page.min(self.wanted.unwrap_or(u32::MAX))
    }

    /// Halves the limit of a page that was too large. Returns false if the limit cannot be smaller.
    fn halve(&mut self) -> bool {
        let limit = self.limit();
        self.page = (limit / 2).max(1);
        limit > 1
    }

    /// Notes the entries of a page. The next page begins after the last of them, and has a limit
    /// that suits their size.
    fn accept(&mut self, entries: &[Entry]) {
        let (limit, count) = (self.limit(), entries.len() as u32);
        let is_full = count >= limit;
        self.wanted = self.wanted.map(|wanted| wanted.saturating_sub(count));
        let goes_on = is_full && self.wanted != Some(0);
        let left = self.left.take().filter(|_| goes_on);
        self.left = left.and_then(|left| left.after(&entries.last()?.key));
        let bytes: usize = entries.iter().map(|it| it.key.len() + it.value.len()).sum();
        let suitable = entries.len() * PAGE_BYTES / bytes.max(1);
        let doubled = limit.saturating_mul(2).min(SCAN_ENTRIES_MAX);
        self.page = suitable.clamp(1, doubled as usize) as u32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use leasehold_wire::KEY_BYTES_MAX;

    use super::*;

    /// Maximum bytes of an answer in these tests.
    const ANSWER_BYTES: usize = 3_900_000;

    type Store = BTreeMap<Bytes, Bytes>;

    /// Reads all pages of a store. Returns the keys, the number of pages, and the number of refused
    /// pages.
    fn read(store: &Store, mut pages: Pages) -> (Vec<Bytes>, usize, usize) {
        let (mut keys, mut read, mut refused) = (Vec::new(), 0, 0);
        while let Some(Op::Scan(scan)) = pages.op() {
            assert!(scan.from.len() <= KEY_BYTES_MAX && scan.to.len() <= KEY_BYTES_MAX);
            assert!((1..=SCAN_ENTRIES_MAX).contains(&scan.limit));
            let found = store.range(scan.from..);
            let found = found.take_while(|(key, _)| scan.to.is_empty() || **key < scan.to);
            let entry = |(key, value): (&Bytes, &Bytes)| Entry {
                key: key.clone(),
                value: value.clone(),
                version: None,
            };
            let found: Vec<Entry> = found.take(scan.limit as usize).map(entry).collect();
            let bytes: usize = found.iter().map(|it| it.key.len() + it.value.len()).sum();
            if bytes > ANSWER_BYTES {
                assert!(pages.halve());
                refused += 1;
            } else {
                pages.accept(&found);
                keys.extend(found.into_iter().map(|entry| entry.key));
                read += 1;
            }
        }
        (keys, read, refused)
    }

    fn all() -> Option<KeysLeft> {
        Some(KeysLeft::of_prefix(Bytes::new()))
    }

    fn keys(store: &Store) -> Vec<Bytes> {
        store.keys().cloned().collect()
    }

    #[test]
    fn pages_omit_and_repeat_nothing() {
        let mut store = Store::new();
        for number in 0..25_000u32 {
            store.insert(number.to_be_bytes().to_vec().into(), Bytes::new());
        }
        for end in [0, 1, 254, 255] {
            let mut long = vec![end; KEY_BYTES_MAX];
            store.insert(long.clone().into(), Bytes::new());
            long.pop();
            store.insert(long.clone().into(), Bytes::new());
            long[4000..].fill(0xff);
            long.push(0xff);
            store.insert(long.into(), Bytes::new());
        }
        let whole = keys(&store);
        let (read_keys, pages, _) = read(&store, Pages::new(all(), None));
        assert!(read_keys == whole && pages > 2, "{pages} pages");
        for page in [1, 2, 7] {
            let beginning: Store = store.clone().into_iter().take(100).collect();
            let end: Store = store.clone().into_iter().rev().take(100).collect();
            for part in [beginning, end] {
                let mut pages = Pages::new(all(), None);
                pages.page = page;
                assert_eq!(read(&part, pages).0, keys(&part));
            }
        }
        let wanted = |wanted| read(&store, Pages::new(all(), Some(wanted))).0;
        assert_eq!(wanted(10_001), whole[..10_001]);
        assert_eq!(wanted(1), whole[..1]);
    }

    #[test]
    fn pages_become_smaller_before_large_values_and_larger_after_them() {
        let mut store = Store::new();
        let megabyte = Bytes::from(vec![0; 1 << 20]);
        for number in 0..30_000u32 {
            let is_large = (12_000..12_020).contains(&number);
            let value = if is_large {
                megabyte.clone()
            } else {
                Bytes::new()
            };
            store.insert(number.to_be_bytes().to_vec().into(), value);
        }
        let (read_keys, pages, refused) = read(&store, Pages::new(all(), None));
        assert_eq!(read_keys, keys(&store));
        assert!((20..60).contains(&pages), "{pages} pages");
        assert!((1..20).contains(&refused), "{refused} refused");
    }

    #[test]
    fn a_single_entry_cannot_be_halved() {
        let mut pages = Pages::new(all(), Some(3));
        assert!(pages.halve() && pages.limit() == 1);
        assert!(!pages.halve());
    }
}
