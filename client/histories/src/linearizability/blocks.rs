//! Blocks of operations between which no other value can be written, with the times of each block.
//!
//! A write and the reads that found its value are a cluster. A compare-and-swap joins its cluster
//! to the cluster of the value that it replaced. A chain of clusters that are joined in this way is
//! a **block**: no other value can be written inside it. Let `first_end` be the first end of an
//! operation in the block, and `last_begin` the last begin. If `first_end < last_begin`, the block
//! is a *forward* block: it occupies the register from `first_end` to `last_begin`. Otherwise it is
//! a *backward* block: all its operations overlap, and one moment between `last_begin` and
//! `first_end` is enough for all of them.
//!
//! Consider a key without absence (which has many writes) and without failed swaps. The key is
//! linearizable iff each chain is in order, no two forward blocks overlap, and no backward block
//! lies inside a forward one (Gibbons & Korach 1997, theorem 4.4, for single clusters). The proof
//! of the theorem uses only which of two blocks must come first, so it also holds for chains.
//! `prepare` has checked that no read ended before its write began.

use std::collections::HashMap;

use super::Flaw;
use super::explain::operation;
use super::prepare::{NEVER, Op, OpKind, OpTime, PreparedKey, RegisterValue, describe_time};

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// First value of the block's chain of values.
    pub head: RegisterValue,
    /// Last value of the block's chain of values. The register holds this value until another value
    /// is written.
    pub last: RegisterValue,
    /// Whether the block can begin only while the key is absent.
    pub is_create: bool,
    pub first_end: OpTime,
    pub last_begin: OpTime,
    /// Latest moment at which the value `last` can be written, if the block is a forward block.
    pub last_from: OpTime,
    /// Operation that determines `first_end`; `None` for the initial absence.
    first: Option<u32>,
    /// Operation that determines `last_begin`; `None` for the initial absence.
    latest: Option<u32>,
}

impl Block {
    pub fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

/// All blocks of a key. A separate list contains the forward blocks, in order of time.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub all: Vec<Block>,
    /// Forward blocks, in order of time. No two forward blocks overlap.
    pub forward: Vec<Block>,
}

impl Blocks {
    /// Returns all blocks of a key. The absence before the first write is also a block, if the key
    /// cannot become absent again after this write.
    pub fn of(key: &PreparedKey) -> Result<Blocks, Flaw> {
        let all = Chains::new(key).blocks()?;
        let mut forward: Vec<Block> = all.iter().copied().filter(Block::is_forward).collect();
        forward.sort_unstable_by_key(|block| block.first_end);
        for pair in forward.windows(2) {
            if pair[1].first_end < pair[0].last_begin {
                return Err(overlap(key, &pair[0], &pair[1]));
            }
        }
        let blocks = Blocks { all, forward };
        for inner in blocks.all.iter().filter(|block| !block.is_forward()) {
            if let Err(outer) = blocks.fit(inner.last_begin, inner.first_end) {
                return Err(inside(key, outer, inner));
            }
        }
        Ok(blocks)
    }

    /// Returns the interval from `begin` to `end`. If `begin` or `end` lies in a forward block, the
    /// interval is shortened. It then begins when this block ends, or ends when this block begins.
    ///
    /// # Errors
    /// Returns the forward block that contains the whole interval, if there is one.
    pub fn fit(&self, begin: OpTime, end: OpTime) -> Result<(OpTime, OpTime), &Block> {
        let around = |at: OpTime| {
            let begun = self.forward.partition_point(|block| block.first_end < at);
            let last = self.forward[..begun].last();
            last.filter(|block| at < block.last_begin)
        };
        let (of_begin, of_end) = (around(begin), around(end));
        match of_begin {
            Some(outer) if end < outer.last_begin => Err(outer),
            _ => Ok((
                of_begin.map_or(begin, |block| block.last_begin),
                of_end.map_or(end, |block| block.first_end),
            )),
        }
    }
}

/// A value with its write and its reads.
#[derive(Debug, Clone, Copy)]
struct Cluster {
    first_end: OpTime,
    last_begin: OpTime,
    first: Option<u32>,
    latest: Option<u32>,
    writer: Option<u32>,
    /// Swap that replaced the value.
    successor: Option<u32>,
}

struct Chains<'k, 'a> {
    key: &'k PreparedKey<'a>,
    clusters: Vec<Cluster>,
    /// Failed swaps, each as (begin, end, operation). The key of the map is the value that these
    /// swaps expected.
    failures: HashMap<RegisterValue, Vec<(OpTime, OpTime, u32)>, foldhash::fast::FixedState>,
}

impl<'k, 'a> Chains<'k, 'a> {
    fn new(key: &'k PreparedKey<'a>) -> Self {
        let empty = Cluster {
            first_end: NEVER,
            last_begin: 0,
            first: None,
            latest: None,
            writer: None,
            successor: None,
        };
        let mut chains = Chains {
            key,
            clusters: vec![empty; key.writers.len()],
            failures: HashMap::default(),
        };
        // Absence precedes every operation.
        chains.clusters[RegisterValue::ABSENT.index()].first_end = 0;
        for index in 0..key.ops.len() {
            chains.add(index as u32);
        }
        chains
    }

    fn op(&self, index: u32) -> &'k Op<'a> {
        &self.key.ops[index as usize]
    }

    fn add(&mut self, index: u32) {
        let op = self.op(index);
        let value = match op.kind {
            OpKind::Read(value) | OpKind::Write(value) => value,
            OpKind::Swap { expected, new } if op.end != NEVER => {
                if expected != RegisterValue::ABSENT {
                    self.clusters[expected.index()].successor = Some(index);
                }
                new
            }
            OpKind::Fail { expected } => {
                let of_value = self.failures.entry(expected).or_default();
                return of_value.push((op.begin, op.end, index));
            }
            OpKind::Swap { .. } | OpKind::Delete => return,
        };
        let cluster = &mut self.clusters[value.index()];
        if !matches!(op.kind, OpKind::Read(_)) {
            cluster.writer = Some(index);
        }
        if op.end < cluster.first_end || cluster.first.is_none() && value != RegisterValue::ABSENT {
            (cluster.first_end, cluster.first) = (op.end, Some(index));
        }
        if op.begin >= cluster.last_begin {
            (cluster.last_begin, cluster.latest) = (op.begin, Some(index));
        }
    }

    fn blocks(&self) -> Result<Vec<Block>, Flaw> {
        let mut blocks = Vec::new();
        let mut chain = Vec::new();
        let mut chained = 0;
        if self.key.is_plain() {
            blocks.push(self.block(&[RegisterValue::ABSENT])?);
        }
        for op in &self.key.ops {
            let head = match op.kind {
                OpKind::Write(value) => value,
                OpKind::Swap { expected, new }
                    if expected == RegisterValue::ABSENT && op.end != NEVER =>
                {
                    new
                }
                _ => continue,
            };
            chain.clear();
            chain.push(head);
            while let Some(swap) = self.clusters[chain[chain.len() - 1].index()].successor {
                let OpKind::Swap { new, .. } = self.op(swap).kind else {
                    unreachable!("the successor of a value is a swap");
                };
                chain.push(new);
            }
            chained += chain.len() - 1;
            blocks.push(self.block(&chain)?);
        }
        if chained < self.successors().count() {
            return Err(self.circle(&blocks));
        }
        Ok(blocks)
    }

    fn successors(&self) -> impl Iterator<Item = u32> {
        self.clusters.iter().filter_map(|cluster| cluster.successor)
    }

    /// Builds the block of a chain. Checks the order within the chain. Also checks the failed swaps
    /// that expected a value of the chain: each of them must have a moment with another value.
    fn block(&self, chain: &[RegisterValue]) -> Result<Block, Flaw> {
        let of = |value: RegisterValue| &self.clusters[value.index()];
        let ends = self.first_ends_from(chain);
        let (first_end, first) = ends[0];
        let mut from = first_end;
        let mut latest: (OpTime, Option<u32>) = (0, None);
        for (position, &value) in chain.iter().enumerate() {
            let cluster = of(value);
            if position > 0 {
                let swap = cluster.writer.map_or(0, |writer| self.op(writer).begin);
                let earliest = latest.max((swap, cluster.writer));
                if ends[position].0 < earliest.0 {
                    return Err(self.disorder(value, ends[position].1, earliest.1));
                }
                from = self.write_late(chain[position - 1], from, ends[position].0, earliest.0)?;
            }
            latest = latest.max((cluster.last_begin, cluster.latest));
        }
        let (head, last) = (chain[0], chain[chain.len() - 1]);
        if first_end < latest.0 {
            self.write_late(last, from, NEVER, latest.0)?;
        }
        let writer = of(head).writer.map(|writer| self.op(writer).kind);
        Ok(Block {
            head,
            last,
            is_create: matches!(writer, Some(OpKind::Swap { .. })),
            first_end,
            last_begin: latest.0,
            last_from: from,
            first,
            latest: latest.1,
        })
    }

    /// Returns one entry for each position in a chain. The entry is the earliest end of an
    /// operation at this position or at a later position.
    fn first_ends_from(&self, chain: &[RegisterValue]) -> Vec<(OpTime, Option<u32>)> {
        let mut earliest = (NEVER, None);
        let mut ends = vec![earliest; chain.len()];
        for (end, value) in ends.iter_mut().zip(chain).rev() {
            let cluster = &self.clusters[value.index()];
            if cluster.first_end <= earliest.0 {
                earliest = (cluster.first_end, cluster.first);
            }
            *end = earliest;
        }
        ends
    }

    /// Returns the latest moment, at most `until`, at which the value `old` can be replaced. The
    /// value `old` was written at `from`. A failed swap that expected `old` needs a moment with
    /// another value. So `old` must be replaced before such a swap ends, if the swap began after
    /// `from`. The latest moment leaves the most freedom for the following values.
    fn write_late(
        &self,
        old: RegisterValue,
        from: OpTime,
        until: OpTime,
        earliest: OpTime,
    ) -> Result<OpTime, Flaw> {
        let failures = self.failures.get(&old).map_or(&[][..], Vec::as_slice);
        let mut late = until;
        for &(begin, end, index) in failures {
            if begin > from && end < late {
                if end < earliest {
                    return Err(self.was_there(old, from, earliest, index));
                }
                late = end;
            }
        }
        Ok(late)
    }

    fn was_there(&self, value: RegisterValue, from: OpTime, until: OpTime, failure: u32) -> Flaw {
        let failure = self.op(failure).event;
        let explanation = format!(
            "the key must have held {} from {} to {}, but {}",
            self.key.describe(value),
            describe_time(from),
            describe_time(until),
            operation(failure),
        );
        let cluster = &self.clusters[value.index()];
        let ops = [
            cluster.writer,
            cluster.first,
            cluster.latest,
            cluster.successor,
        ];
        let events = ops.into_iter().flatten().map(|index| self.op(index).event);
        Flaw::violation(explanation, events.chain([failure]))
    }

    fn disorder(&self, value: RegisterValue, ended: Option<u32>, begun: Option<u32>) -> Flaw {
        let writer = self.clusters[value.index()].writer;
        let ops = [writer, ended, begun].into_iter().flatten();
        let explanation = format!(
            "{} and what came after it cannot have been found before what it replaced was gone",
            self.key.describe(value)
        );
        Flaw::violation(explanation, ops.map(|index| self.op(index).event))
    }

    fn circle(&self, blocks: &[Block]) -> Flaw {
        let mut reached = vec![false; self.clusters.len()];
        for block in blocks {
            let mut value = block.head;
            reached[value.index()] = true;
            while let Some(swap) = self.clusters[value.index()].successor
                && let OpKind::Swap { new, .. } = self.op(swap).kind
            {
                value = new;
                reached[value.index()] = true;
            }
        }
        let is_circular = |index: &u32| match self.op(*index).kind {
            OpKind::Swap { new, .. } => !reached[new.index()],
            _ => false,
        };
        let swaps = self.successors().filter(is_circular);
        let explanation = "values replaced each other in a circle".to_owned();
        Flaw::violation(explanation, swaps.map(|index| self.op(index).event))
    }
}

/// Describes a block of one value as `value 7`. Describes a block of several values as `value 7 and
/// then, up to value 9, what replaced it`.
pub(super) fn describe(key: &PreparedKey, block: &Block) -> String {
    let head = key.describe(block.head);
    if block.head == block.last {
        return head;
    }
    format!(
        "{head} and then, up to {}, what replaced it",
        key.describe(block.last)
    )
}

fn overlap(key: &PreparedKey, one: &Block, two: &Block) -> Flaw {
    let explanation = format!(
        "the key must have held {}, and {}",
        describe_with_times(key, one),
        describe_with_times(key, two),
    );
    let events = [one, two]
        .into_iter()
        .flat_map(|block| events_of(key, block));
    Flaw::violation(explanation, events)
}

fn inside(key: &PreparedKey, outer: &Block, inner: &Block) -> Flaw {
    let explanation = format!(
        "the key must have held {}, so it cannot have held {} at any moment from {} to {}",
        describe_with_times(key, outer),
        describe(key, inner),
        describe_time(inner.last_begin),
        describe_time(inner.first_end),
    );
    let events = [outer, inner]
        .into_iter()
        .flat_map(|block| events_of(key, block));
    Flaw::violation(explanation, events)
}

/// Describes the values of a forward block, and the interval in which the register holds these
/// values.
pub(super) fn describe_with_times(key: &PreparedKey, block: &Block) -> String {
    format!(
        "{} from {} to {}",
        describe(key, block),
        describe_time(block.first_end),
        describe_time(block.last_begin),
    )
}

/// Returns the operations that determine the begin and the end of a block.
pub(super) fn events_of<'a>(
    key: &PreparedKey<'a>,
    block: &Block,
) -> impl Iterator<Item = &'a crate::history::HistoryEvent> {
    let ops = [block.first, block.latest].into_iter().flatten();
    let events: Vec<_> = ops.map(|index| key.ops[index as usize].event).collect();
    let writers = [key.writer(block.head), key.writer(block.last)];
    writers.into_iter().flatten().chain(events)
}
