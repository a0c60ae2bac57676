//! Division of a run's time into cells. If a log has few intervals, the time is divided at the
//! beginnings and ends of the intervals. Otherwise it is divided into equal parts.

use std::collections::BTreeSet;

use crate::report::figures::timeline::COLUMNS;

/// Maximum number of cells into which the time is divided. Throughput is stored for each cell.
const CELLS: usize = 1 << 16;

/// Beginnings and ends of intervals, in ms. If there are too many of these times, only the first
/// and the last time are stored.
#[derive(Debug, Default)]
pub(super) struct IntervalEdges {
    at_ms: BTreeSet<u64>,
    /// Whether there were too many times to store.
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

    /// Returns the first beginning and the last end, in ms.
    pub(super) fn ends_ms(&self) -> Option<[u64; 2]> {
        self.ends_ms
    }
}

/// Cells of time, grouped into columns of one or more cells. A column is about a pixel wide.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// Beginnings of the cells in ms, followed by the end of the last cell.
    cells_ms: Vec<u64>,
    /// Index of the first cell of each column, followed by the total number of cells.
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

    /// Returns true if each column is a single cell, so that no cells are combined.
    pub(super) fn is_exact(&self) -> bool {
        self.columns.len() == self.cells_ms.len()
    }

    /// Returns each cell that an interval covers, completely or in part. Each cell is paired with
    /// the fraction of the cell that is covered.
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

    /// Returns the column that contains a cell.
    pub(super) fn column(&self, cell: usize) -> usize {
        let after = self.columns.partition_point(|first| *first <= cell);
        after.saturating_sub(1)
    }

    /// Returns the cells of a column.
    pub(super) fn cells_of(&self, column: usize) -> std::ops::Range<usize> {
        self.columns[column]..self.columns[column + 1]
    }

    /// Returns the beginning and the end of consecutive cells, in ms.
    pub(super) fn span_ms(&self, cells: &std::ops::Range<usize>) -> [u64; 2] {
        [self.cells_ms[cells.start], self.cells_ms[cells.end]]
    }
}

/// Divides a time into `parts` parts of equal length, and returns the bounds of the parts. If the
/// parts would be shorter than 1 ms, there are fewer parts, and the length of a part is 1 ms.
fn evenly(from: u64, to: u64, parts: usize) -> Vec<u64> {
    let length = u128::from(to - from);
    let at = |part: usize| from + (length * part as u128 / parts as u128) as u64;
    let mut all: Vec<u64> = (0..=parts).map(at).collect();
    all.dedup();
    all
}
