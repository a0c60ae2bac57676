//! Recordings: the operations of all replicas of a cluster on their disks, over time. The disks at
//! any moment can be reconstructed from a recording.

use std::path::PathBuf;

use crate::chance::Chance;
use crate::disk::{Disk, DiskModel};
use crate::image::{Image, Survival};
use crate::trace::{Contents, FileOperation, TraceRecord};
use crate::tree::Tree;

/// Recording of one replica process from its start.
#[derive(Debug)]
pub struct ReplicaRun {
    /// Time from which the disk has the contents `base`, in ns of the monotonic clock.
    pub from_ns: u64,
    pub base: Tree,
    /// Path of the disk in the trace.
    pub disk: PathBuf,
    pub trace: Vec<TraceRecord>,
}

/// Recordings of all replica processes of a cluster.
#[derive(Debug, Default)]
pub struct Recording {
    /// Runs of each replica, in order.
    pub replicas: Vec<Vec<ReplicaRun>>,
    pub from_ns: u64,
    pub to_ns: u64,
    /// Time when every replica had served at least one write; `None` if this never happened.
    pub ready_ns: Option<u64>,
}

/// Counts of the operations in a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordingSums {
    pub operations: u64,
    pub syncs: u64,
    /// Number of log segments that were renamed to their final path.
    pub segments: u64,
}

impl Recording {
    pub fn sums(&self) -> RecordingSums {
        let mut sums = RecordingSums::default();
        for record in self.replicas.iter().flatten().flat_map(|run| &run.trace) {
            let operation = &record.operation;
            sums.operations += 1;
            sums.syncs += u64::from(matches!(operation, FileOperation::SyncEnd { .. }));
            sums.segments += u64::from(begins_segment(operation));
        }
        sums
    }

    /// Draws moments at which the power fails, in ascending order. A third of the moments are
    /// before `served_ns`, the time of the first acknowledgement. Many moments are close to a large
    /// write, a sync, a rename or a removal.
    pub fn draw_moments(&self, count: usize, served_ns: u64, chance: &mut Chance) -> Vec<u64> {
        let all = self.replicas.iter().flatten().flat_map(|run| &run.trace);
        let after = |record: &&TraceRecord| record.at_ns >= self.from_ns;
        let at = |wanted: fn(&FileOperation) -> bool| -> Vec<u64> {
            let found = all.clone().filter(after);
            let found = found.filter(|record| wanted(&record.operation));
            found.map(|record| record.at_ns).collect()
        };
        let (segments, steps, writes) = (at(begins_segment), at(completes), at(may_tear));
        let served_ns = served_ns.clamp(self.from_ns, self.to_ns);
        let mut moments: Vec<u64> = (0..count)
            .map(|_| match chance.below(12) {
                0..4 => chance.between(self.from_ns, served_ns),
                4..6 if !segments.is_empty() => {
                    chance.one_of(&segments) + chance.below(40_000_000) - 20_000_000
                }
                4..8 if !steps.is_empty() => chance.one_of(&steps) + chance.below(2_000_000),
                8..11 if !writes.is_empty() => chance.one_of(&writes) + chance.below(100_000),
                _ => chance.between(served_ns, self.to_ns),
            })
            .map(|moment| moment.clamp(self.from_ns, self.to_ns))
            .collect();
        moments.sort_unstable();
        moments
    }

    /// Returns the state of all disks at the beginning of the recording. For each replica,
    /// `lies_from` returns the time from which syncs of the replica's disk have no effect.
    pub fn play(&self, model: DiskModel, lies_from: impl Fn(usize) -> Option<u64>) -> Playback<'_> {
        let replicas = self.replicas.iter().enumerate();
        let replicas = replicas.map(|(replica, runs)| ReplicaPlayback {
            runs,
            model,
            lies_from: lies_from(replica),
            run: 0,
            next: 0,
            disk: Disk::new(&runs[0].base, model, &runs[0].disk, lies_from(replica)),
        });
        Playback {
            replicas: replicas.collect(),
        }
    }
}

/// Whether an operation renames a new log segment to its final path.
fn begins_segment(operation: &FileOperation) -> bool {
    matches!(operation, FileOperation::Rename { to, .. } if to.ends_with(".seg"))
}

/// Whether an operation writes several sectors. A loss of power may tear such a write until the
/// write is synced.
fn may_tear(operation: &FileOperation) -> bool {
    matches!(
        operation,
        FileOperation::Write { contents: Contents::Bytes(bytes), .. } if bytes.len() > 1_024
    )
}

/// Whether an operation may make earlier operations durable, or may remove a file.
fn completes(operation: &FileOperation) -> bool {
    use FileOperation::{Remove, Rename, SyncBegin, SyncEnd};
    matches!(
        operation,
        SyncBegin { .. } | SyncEnd { .. } | Rename { .. } | Remove(_)
    )
}

/// State of the disks of all replicas at one moment. The moment can only move forwards.
pub struct Playback<'a> {
    replicas: Vec<ReplicaPlayback<'a>>,
}

struct ReplicaPlayback<'a> {
    runs: &'a [ReplicaRun],
    model: DiskModel,
    lies_from: Option<u64>,
    run: usize,
    next: usize,
    disk: Disk,
}

impl Playback<'_> {
    /// Performs all operations up to `at_ns`.
    pub fn advance(&mut self, at_ns: u64) {
        self.replicas.iter_mut().for_each(|it| it.advance(at_ns));
    }

    pub fn nodes(&self) -> usize {
        self.replicas.len()
    }

    /// Draws the image of a replica's disk after a loss of power at the current moment.
    pub fn image(&self, replica: usize, survival: Survival, chance: &mut Chance) -> Image {
        Image::draw(&self.replicas[replica].disk, survival, chance)
    }
}

impl ReplicaPlayback<'_> {
    fn advance(&mut self, at_ns: u64) {
        while let Some(run) = self.runs.get(self.run + 1)
            && run.from_ns <= at_ns
        {
            self.run += 1;
            self.next = 0;
            self.disk = Disk::new(&run.base, self.model, &run.disk, self.lies_from);
        }
        let trace = &self.runs[self.run].trace;
        while let Some(record) = trace.get(self.next)
            && record.at_ns <= at_ns
        {
            self.disk.perform(record);
            self.next += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a trace in which a file gets a byte at each of these times.
    fn trace(times: &[u64]) -> Vec<TraceRecord> {
        let open = FileOperation::Open {
            descriptor: 3,
            path: "/disk/a".to_owned(),
            creates: true,
            truncates: false,
        };
        let write = |offset| FileOperation::Write {
            descriptor: 3,
            offset,
            contents: Contents::Zeros(1),
        };
        let writes = times.iter().enumerate();
        let writes = writes.map(|(offset, at_ns)| (*at_ns, write(offset)));
        let operations = std::iter::once((times[0], open)).chain(writes);
        let records = operations.map(|(at_ns, operation)| TraceRecord { at_ns, operation });
        records.collect()
    }

    fn run(from_ns: u64, times: &[u64]) -> ReplicaRun {
        ReplicaRun {
            from_ns,
            base: Tree::empty(),
            disk: "/disk".into(),
            trace: trace(times),
        }
    }

    fn recording() -> Recording {
        Recording {
            replicas: vec![vec![run(0, &[10, 20, 30]), run(40, &[50, 60])]],
            from_ns: 0,
            to_ns: 100,
            ready_ns: None,
        }
    }

    #[test]
    fn a_moment_has_the_operations_before_it_and_no_others() {
        let recording = recording();
        let mut playback = recording.play(DiskModel::Journal, |_| None);
        let mut chance = Chance::new(1, 1);
        let length = |image: Image| match image.contents {
            Tree::Folder(entries) => entries.get("a").map(|entry| match entry {
                Tree::File(bytes) => bytes.len(),
                Tree::Folder(_) => usize::MAX,
            }),
            Tree::File(_) => None,
        };
        let expected = [
            (5, None),
            (20, Some(2)),
            (39, Some(3)),
            (40, None),
            (55, Some(1)),
        ];
        for (at_ns, expected) in expected {
            playback.advance(at_ns);
            let image = playback.image(0, Survival::Everything, &mut chance);
            assert_eq!(length(image), expected, "{at_ns}");
        }
    }

    #[test]
    fn moments_rise_and_are_within_the_recording() {
        let mut recording = recording();
        for replica in recording.replicas.iter_mut().flatten() {
            replica.from_ns += 50_000_000;
            for record in &mut replica.trace {
                record.at_ns += 50_000_000;
            }
        }
        (recording.from_ns, recording.to_ns) = (50_000_000, 50_000_100);
        let moments = recording.draw_moments(50, 50_000_030, &mut Chance::new(1, 1));
        assert_eq!(moments.len(), 50);
        assert!(moments.is_sorted());
        let is_within = |at_ns: &u64| (recording.from_ns..=recording.to_ns).contains(at_ns);
        assert!(moments.iter().all(is_within), "{moments:?}");
    }
}
