//! Keys with reads and writes only, where every value has one write: decided by
//! intervals instead of orders.
//!
//! A write and the reads that found its value are a cluster. Let `first_end` be
//! the first end of an operation in it, and `last_begin` the last begin. If
//! `first_end < last_begin`, the register must hold the value all that time: a
//! forward zone. Otherwise all operations of the cluster overlap, and one moment
//! between `last_begin` and `first_end` is enough for them: a backward zone. The
//! key is linearizable iff no two forward zones overlap, and no backward zone
//! lies inside a forward one (Gibbons & Korach 1997, theorem 4.4). That no read
//! ended before its write began was checked by `prepare`.

use super::Flaw;
use super::prepare::{Held, Key, Kind, Moment, NEVER, Op, moment};

#[derive(Debug, Clone, Copy)]
struct Cluster<'k, 'a> {
    value: Held,
    first_end: Moment,
    last_begin: Moment,
    /// The operations that these are from; the initial absence has none.
    first: Option<&'k Op<'a>>,
    last: Option<&'k Op<'a>>,
}

impl Cluster<'_, '_> {
    fn is_forward(&self) -> bool {
        self.first_end < self.last_begin
    }
}

pub(super) fn check(key: &Key) -> Result<(), Flaw> {
    let clusters = clusters(key);
    let (mut forward, backward): (Vec<_>, Vec<_>) =
        clusters.into_iter().partition(Cluster::is_forward);
    forward.sort_by_key(|zone| zone.first_end);
    for pair in forward.windows(2) {
        if pair[1].first_end < pair[0].last_begin {
            return Err(overlap(key, &pair[0], &pair[1]));
        }
    }
    for inner in &backward {
        let after = forward.partition_point(|zone| zone.first_end < inner.last_begin);
        // Forward zones are disjoint, so only the last to begin can reach far enough.
        if let Some(outer) = forward[..after].last()
            && inner.first_end < outer.last_begin
        {
            return Err(inside(key, outer, inner));
        }
    }
    Ok(())
}

fn clusters<'k, 'a>(key: &'k Key<'a>) -> Vec<Cluster<'k, 'a>> {
    let empty = Cluster {
        value: Held::ABSENT,
        first_end: NEVER,
        last_begin: 0,
        first: None,
        last: None,
    };
    let mut clusters = vec![empty; key.writers.len()];
    // Absence is written before anything begins.
    clusters[Held::ABSENT.index()].first_end = 0;
    for op in &key.ops {
        let (Kind::Read(value) | Kind::Write(value)) = op.kind else {
            continue;
        };
        let cluster = &mut clusters[value.index()];
        cluster.value = value;
        if op.end < cluster.first_end {
            (cluster.first_end, cluster.first) = (op.end, Some(op));
        }
        if op.begin >= cluster.last_begin {
            (cluster.last_begin, cluster.last) = (op.begin, Some(op));
        }
    }
    clusters
}

fn overlap(key: &Key, one: &Cluster, two: &Cluster) -> Flaw {
    let explanation = format!(
        "the key must have held {} from {} to {}, and {} from {} to {}",
        key.describe(one.value),
        moment(one.first_end),
        moment(one.last_begin),
        key.describe(two.value),
        moment(two.first_end),
        moment(two.last_begin),
    );
    violation(key, explanation, [one, two])
}

fn inside(key: &Key, outer: &Cluster, inner: &Cluster) -> Flaw {
    let explanation = format!(
        "the key must have held {} from {} to {}, so it cannot have held {} at any moment from {} to {}",
        key.describe(outer.value),
        moment(outer.first_end),
        moment(outer.last_begin),
        key.describe(inner.value),
        moment(inner.last_begin),
        moment(inner.first_end),
    );
    violation(key, explanation, [outer, inner])
}

fn violation(key: &Key, explanation: String, clusters: [&Cluster; 2]) -> Flaw {
    let mut events = Vec::new();
    for cluster in clusters {
        events.extend(key.writer(cluster.value));
        events.extend(cluster.first.map(|op| op.event));
        events.extend(cluster.last.map(|op| op.event));
    }
    Flaw::violation(explanation, events)
}
