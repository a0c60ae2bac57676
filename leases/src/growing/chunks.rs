//! A list in chunks of one size, which grows without moving its entries.

use std::ops::{Index, IndexMut};

/// Number of entries in a chunk.
pub(super) const CHUNK: usize = 1024;

/// A list of entries that is stored in chunks.
#[derive(Clone, Debug)]
pub(super) struct Chunks<T> {
    /// Non-empty chunks. All chunks except the last one are full. The first chunk grows as a `Vec`
    /// does, so that short lists use little memory.
    chunks: Vec<Vec<T>>,
}

impl<T> Default for Chunks<T> {
    fn default() -> Chunks<T> {
        Chunks { chunks: Vec::new() }
    }
}

impl<T> Chunks<T> {
    pub(super) fn len(&self) -> usize {
        match self.chunks.split_last() {
            Some((last, full)) => full.len() * CHUNK + last.len(),
            None => 0,
        }
    }

    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    pub(super) fn push(&mut self, entry: T) {
        match self.chunks.last_mut() {
            Some(last) if last.len() < CHUNK => last.push(entry),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(entry);
                self.chunks.push(chunk);
            }
            None => self.chunks.push(vec![entry]),
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        let last = self.chunks.last_mut()?;
        let entry = last.pop();
        if last.is_empty() {
            self.chunks.pop();
        }
        entry
    }

    /// Removes and returns the entry at a place. The last entry moves to this place. Returns `None`
    /// if the place is not below the length.
    pub(super) fn swap_remove(&mut self, at: usize) -> Option<T> {
        if at >= self.len() {
            return None;
        }
        let last = self.pop()?;
        match self.get_mut(at) {
            Some(place) => Some(std::mem::replace(place, last)),
            None => Some(last),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flatten()
    }
}

impl<T> IntoIterator for Chunks<T> {
    type Item = T;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<T>>>;

    /// Iterates over the entries. Frees each chunk after the last entry of the chunk.
    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_iter().flatten()
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.chunks[at / CHUNK][at % CHUNK]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at / CHUNK][at % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_moves_once_its_chunk_is_full() {
        let mut chunks = Chunks::default();
        (0..CHUNK).for_each(|i| chunks.push(i));
        let first = std::ptr::from_ref(&chunks[0]);
        (CHUNK..100 * CHUNK).for_each(|i| chunks.push(i));
        assert_eq!(std::ptr::from_ref(&chunks[0]), first);
        assert!(chunks.iter().copied().eq(0..100 * CHUNK));
    }

    #[test]
    fn chunks_go_when_they_are_empty() {
        let mut chunks = Chunks::default();
        (0..=2 * CHUNK).for_each(|i| chunks.push(i));
        assert_eq!(chunks.pop(), Some(2 * CHUNK));
        assert_eq!((chunks.chunks.len(), chunks.len()), (2, 2 * CHUNK));
        assert_eq!(chunks.swap_remove(0), Some(0));
        assert_eq!(chunks[0], 2 * CHUNK - 1, "the last took its place");
        let last = chunks.len() - 1;
        assert_eq!(chunks.swap_remove(last), Some(2 * CHUNK - 2));
        assert_eq!(chunks.swap_remove(last), None, "beyond the end");
        assert_eq!(chunks.into_iter().count(), 2 * CHUNK - 2);
    }
}
