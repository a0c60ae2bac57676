//! Division of a run's time: exactly at the beginnings and ends of its intervals while they are
//! few, evenly beyond.

use std::collections::BTreeSet;

use crate::report::figures::timeline::COLUMNS;

/// Most cells, in which throughput is kept apart: twelve hours have 43,200 seconds.
const CELLS: usize = 1 << 16;

/// Beginnings and ends of intervals, in ms, while they are few.
#[derive(Debug, Default)]
pub(super) struct IntervalEdges {
    at_ms: BTreeSet<u64>,
    /// There were too many to keep.
    many: bool,
    ends_ms: Option<[u64; 2]>,
}

impl IntervalEdges {
    pub(super) fn add(&mut self, from_ms: u64, to_ms: u64) {
        let [first, last] = self.ends_ms.unwrap_or([from_ms, to_ms]);
        self.ends_ms = Some([first.min(from_ms), last.max(to_ms)]);
        if !self.many {
            self.at_ms.extend([from_ms, to_ms]);
            self.many = self.at_ms.len() > CELLS;
        }
        if self.many {
            self.at_ms.clear();
        }
    }

    /// The first beginning and the last end.
    pub(super) fn ends_ms(&self) -> Option<[u64; 2]> {
        self.ends_ms
    }
}

/// Cells of time, and columns of one cell or more. A column is about a pixel wide.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// Beginnings of the cells, in ms, and the end of the last one.
    cells_ms: Vec<u64>,
    /// First cell of each column, and at the end the number of cells.
    columns: Vec<usize>,
}

impl Grid {
    pub(super) fn new(cuts: &IntervalEdges) -> Grid {
        let Some([from, to]) = cuts.ends_ms else {
            return Grid::default();
        };
        let cells_ms = if cuts.many {
            evenly(from, to, CELLS)
        } else {
            cuts.at_ms.iter().copied().collect()
        };
        let all = cells_ms.len() - 1;
        let columns = if all <= COLUMNS {
            (0..=all).collect()
        } else {
            let begins = |at: &u64| cells_ms.partition_point(|cell| cell < at);
            let mut columns: Vec<_> = evenly(from, to, COLUMNS).iter().map(begins).collect();
            columns.dedup();
            columns
        };
        Grid { cells_ms, columns }
    }

    pub(super) fn cells(&self) -> usize {
        self.cells_ms.len().saturating_sub(1)
    }

    pub(super) fn columns(&self) -> usize {
        self.columns.len().saturating_sub(1)
    }

    /// Returns true if each column is one cell, so that no cells are put together.
    pub(super) fn is_exact(&self) -> bool {
        self.columns.len() == self.cells_ms.len()
    }

    /// The cells that an interval covers, each with the part of the cell.
    pub(super) fn covered(&self, from_ms: u64, to_ms: u64) -> impl Iterator<Item = (usize, f64)> {
        let first = self.cells_ms.partition_point(|cell| *cell <= from_ms);
        let pairs = self.cells_ms.windows(2).enumerate();
        let pairs = pairs.skip(first.saturating_sub(1));
        let pairs = pairs.take_while(move |(_, pair)| pair[0] < to_ms);
        pairs.map(move |(cell, pair)| {
            let overlap = pair[1].min(to_ms).saturating_sub(pair[0].max(from_ms));
            (cell, overlap as f64 / (pair[1] - pair[0]).max(1) as f64)
        })
    }

    /// The column that a cell is in.
    pub(super) fn column(&self, cell: usize) -> usize {
        let after = self.columns.partition_point(|first| *first <= cell);
        after.saturating_sub(1)
    }

    /// The cells of a column.
    pub(super) fn cells_of(&self, column: usize) -> std::ops::Range<usize> {
        self.columns[column]..self.columns[column + 1]
    }

    /// Beginning and end of cells that follow each other, in ms.
    pub(super) fn span_ms(&self, cells: &std::ops::Range<usize>) -> [u64; 2] {
        [self.cells_ms[cells.start], self.cells_ms[cells.end]]
    }
}

/// Returns the bounds of `parts` parts of equal length, or of parts of 1 ms if that is longer.
fn evenly(from: u64, to: u64, parts: usize) -> Vec<u64> {
    let length = u128::from(to - from);
    let at = |part: usize| from + (length * part as u128 / parts as u128) as u64;
    let mut all: Vec<u64> = (0..=parts).map(at).collect();
    all.dedup();
    all
}
