//! Images: the contents that a disk may have after a loss of power.
//!
//! An image has all durable contents, and a part of the changes that waited for a sync.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::chance::Chance;
use crate::disk::{
    ChangeNumber, Disk, DiskModel, FileChange, FileState, FolderState, Node, NodeId,
};
use crate::tree::Tree;

/// Size in bytes of a sector. A disk writes each sector atomically.
const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;
/// Name of RocksDB's diagnostic log. Lost changes of this file are not counted, because the file
/// holds no data.
const DIAGNOSTIC_LOG: &str = "/LOG";

/// Rule that determines which pending changes an image keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    Nothing,
    Everything,
    /// The image keeps a prefix of the changes of each file and folder. The last write of this
    /// prefix may be torn.
    Prefix,
    /// The image keeps a random subset of the written sectors.
    Sectors,
    /// The image keeps a random subset of the written pages.
    Pages,
}

impl Survival {
    pub fn draw(chance: &mut Chance) -> Survival {
        use Survival::{Everything, Nothing, Pages, Prefix, Sectors};
        *chance.one_of(&[Nothing, Everything, Prefix, Sectors, Sectors, Pages, Pages])
    }

    pub fn name(self) -> &'static str {
        match self {
            Survival::Nothing => "nothing",
            Survival::Everything => "everything",
            Survival::Prefix => "a prefix",
            Survival::Sectors => "some sectors",
            Survival::Pages => "some pages",
        }
    }
}

/// Contents of a disk after a loss of power, and a description of the losses.
#[derive(Clone, Debug)]
pub struct Image {
    pub contents: Tree,
    /// Number of torn writes: writes of which the image has only a part.
    pub torn: u64,
    /// Number of pending changes of folders that the image has lost.
    pub lost_entries: u64,
    /// One line for each torn write and for each lost change of a folder.
    pub notes: Vec<String>,
}

impl Image {
    /// Creates the image of a disk that was not in use. The image has lost nothing.
    pub fn of(contents: &Tree) -> Image {
        Image {
            contents: contents.clone(),
            torn: 0,
            lost_entries: 0,
            notes: Vec::new(),
        }
    }

    /// Draws an image of a disk in use.
    pub fn draw(disk: &Disk, survival: Survival, chance: &mut Chance) -> Image {
        let mut maker = ImageMaker {
            disk,
            survival,
            chance,
            journal_end: None,
            files: HashMap::new(),
            image: Image::of(&Tree::empty()),
        };
        if disk.model == DiskModel::Journal {
            maker.journal_end = Some(maker.draw_journal_end());
        }
        let contents = maker.node(0, "");
        Image {
            contents,
            ..maker.image
        }
    }
}

struct ImageMaker<'a> {
    disk: &'a Disk,
    survival: Survival,
    chance: &'a mut Chance,
    /// Last change of folders that the image keeps, for the model `journal`; `None` for the model
    /// `strict`.
    journal_end: Option<ChangeNumber>,
    /// Files that the image already contains. A file may have several names, but its contents must
    /// be drawn only once.
    files: HashMap<NodeId, Tree>,
    image: Image,
}

impl ImageMaker<'_> {
    fn draw_journal_end(&mut self) -> ChangeNumber {
        let mut numbers = vec![0];
        for node in &self.disk.nodes {
            if let Node::Folder(folder) = node {
                numbers.extend(folder.pending.iter().map(|(number, _)| *number));
            }
        }
        numbers.sort_unstable();
        let kept = self.kept_count(numbers.len() - 1);
        numbers[kept]
    }

    /// Draws how many changes are kept from a sequence of `count` changes.
    fn kept_count(&mut self, count: usize) -> usize {
        match self.survival {
            Survival::Nothing => 0,
            Survival::Everything => count,
            _ => self.chance.between(0, count as u64) as usize,
        }
    }

    fn node(&mut self, id: NodeId, path: &str) -> Tree {
        let disk = self.disk;
        match &disk.nodes[id] {
            Node::File(file) => {
                if let Some(made) = self.files.get(&id) {
                    return made.clone();
                }
                let made = Tree::File(self.file(file, path));
                self.files.insert(id, made.clone());
                made
            }
            Node::Folder(folder) => self.folder(folder, path),
        }
    }

    fn folder(&mut self, folder: &FolderState, path: &str) -> Tree {
        let kept = match self.journal_end {
            Some(end) => folder.pending.partition_point(|(number, _)| *number <= end),
            None => self.kept_count(folder.pending.len()),
        };
        self.image.lost_entries += (folder.pending.len() - kept) as u64;
        let mut entries = folder.durable.clone();
        for (index, (_, change)) in folder.pending.iter().enumerate() {
            if index < kept {
                change.apply(&mut entries);
            } else {
                let note = format!("{path}/: this change of entries is lost: {change:?}");
                self.image.notes.push(note);
            }
        }
        let mut contents = BTreeMap::new();
        for (name, id) in entries {
            let entry = self.node(id, &format!("{path}/{name}"));
            contents.insert(name, entry);
        }
        Tree::Folder(contents)
    }

    fn file(&mut self, file: &FileState, path: &str) -> Rc<Vec<u8>> {
        if file.pending.is_empty() || self.survival == Survival::Nothing {
            return file.durable.clone();
        }
        let changes: Vec<&FileChange> = file.pending.iter().map(|(_, change)| change).collect();
        let mut bytes = file.durable.to_vec();
        match self.survival {
            Survival::Nothing => {}
            Survival::Everything => changes.iter().for_each(|it| it.apply(&mut bytes)),
            Survival::Prefix => self.prefix(&changes, &mut bytes, path),
            Survival::Sectors => self.units(&changes, &mut bytes, SECTOR_BYTES, path),
            Survival::Pages => self.units(&changes, &mut bytes, PAGE_BYTES, path),
        }
        Rc::new(bytes)
    }

    fn prefix(&mut self, changes: &[&FileChange], bytes: &mut Vec<u8>, path: &str) {
        let kept = self.kept_count(changes.len());
        changes[..kept].iter().for_each(|it| it.apply(bytes));
        let Some(FileChange::Write { offset, contents }) = changes.get(kept) else {
            return;
        };
        let drawn = offset + self.chance.between(0, contents.len() as u64) as usize;
        let end = drawn / SECTOR_BYTES * SECTOR_BYTES;
        if end > *offset {
            contents.put(bytes, *offset, end - offset);
            self.note_torn(path, *offset, contents.len(), end - offset);
        }
    }

    fn note_torn(&mut self, path: &str, offset: usize, length: usize, kept: usize) {
        if path.ends_with(DIAGNOSTIC_LOG) {
            return;
        }
        self.image.torn += 1;
        let note = format!("{path}: of {length} bytes at {offset}, about {kept} are there");
        self.image.notes.push(note);
    }

    /// Keeps a random subset of the written units. For each kept unit, draws one of the unit's
    /// versions.
    fn units(&mut self, changes: &[&FileChange], bytes: &mut Vec<u8>, unit: usize, path: &str) {
        let mut versions = UnitVersions::of(changes, bytes, unit);
        let percent = *self.chance.one_of(&[10, 50, 90]);
        if self.chance.percent(50) {
            bytes.truncate(versions.shortest);
            bytes.resize(versions.full.len(), 0);
        }
        let mut kept: BTreeMap<usize, usize> = BTreeMap::new();
        for (number, found) in &mut versions.units {
            if self.chance.percent(percent) {
                let drawn = self.chance.below(found.len() as u64) as usize;
                let (change, contents) = found.swap_remove(drawn);
                put_at(bytes, number * unit, &contents);
                kept.insert(*number, change);
            }
        }
        for (index, change) in changes.iter().enumerate() {
            if let FileChange::Write { offset, contents } = change {
                self.judge_torn(&kept, index, (*offset, contents.len()), unit, path);
            }
        }
    }

    /// Notes a torn write if the image has some of the write's units but not all.
    fn judge_torn(
        &mut self,
        kept: &BTreeMap<usize, usize>,
        change: usize,
        (offset, length): (usize, usize),
        unit: usize,
        path: &str,
    ) {
        let touched = units_of(offset, length, unit);
        let all = touched.len();
        let is_there = |number: &usize| kept.get(number).is_some_and(|found| *found >= change);
        let there = touched.filter(is_there).count();
        if there > 0 && there < all {
            self.note_torn(path, offset, length, there * unit);
        }
    }
}

/// Versions of the units that pending changes wrote.
struct UnitVersions {
    /// All versions of each unit. A version consists of the index of a change, and the contents of
    /// the unit after this change.
    units: BTreeMap<usize, Vec<(usize, Vec<u8>)>>,
    /// Contents of the file after all changes.
    full: Vec<u8>,
    /// Minimum length in bytes that the file has had.
    shortest: usize,
}

impl UnitVersions {
    fn of(changes: &[&FileChange], durable: &[u8], unit: usize) -> UnitVersions {
        let mut this = UnitVersions {
            units: BTreeMap::new(),
            full: durable.to_vec(),
            shortest: durable.len(),
        };
        for (index, change) in changes.iter().enumerate() {
            change.apply(&mut this.full);
            match change {
                FileChange::Write { offset, contents } => {
                    for number in units_of(*offset, contents.len(), unit) {
                        let end = this.full.len().min((number + 1) * unit);
                        let contents = this.full[number * unit..end].to_vec();
                        let versions = this.units.entry(number).or_default();
                        versions.push((index, contents));
                    }
                }
                FileChange::Resize(length) => {
                    this.shortest = this.shortest.min(*length);
                    this.units.retain(|number, _| number * unit < *length);
                }
                FileChange::Extend(_) => {}
            }
        }
        this
    }
}

/// Returns the numbers of the units that a write touches.
fn units_of(offset: usize, length: usize, unit: usize) -> std::ops::Range<usize> {
    if length == 0 {
        return 0..0;
    }
    offset / unit..(offset + length).div_ceil(unit)
}

fn put_at(bytes: &mut Vec<u8>, offset: usize, contents: &[u8]) {
    let end = offset + contents.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(contents);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;

    use super::*;
    use crate::trace::{Contents, FileOperation, TraceRecord};

    /// Returns a disk on which a process has performed these operations.
    fn disk(model: DiskModel, operations: Vec<FileOperation>) -> Disk {
        let mut disk = Disk::new(&Tree::empty(), model, Path::new("/disk"), None);
        for (at_ns, operation) in (0..).zip(operations) {
            disk.perform(&TraceRecord { at_ns, operation });
        }
        disk
    }

    fn open(descriptor: i32, path: &str) -> FileOperation {
        FileOperation::Open {
            descriptor,
            path: path.to_owned(),
            creates: !path.ends_with("disk"),
            truncates: false,
        }
    }

    fn write(descriptor: i32, offset: usize, byte: u8, length: usize) -> FileOperation {
        FileOperation::Write {
            descriptor,
            offset,
            contents: Contents::Bytes(Bytes::from(vec![byte; length])),
        }
    }

    fn sync(descriptor: i32, ticket: u64) -> [FileOperation; 2] {
        [
            FileOperation::SyncBegin { descriptor, ticket },
            FileOperation::SyncEnd { ticket },
        ]
    }

    fn image(disk: &Disk, survival: Survival, seed: u64) -> Image {
        Image::draw(disk, survival, &mut Chance::new(seed, 0))
    }

    fn file<'a>(image: &'a Image, name: &str) -> Option<&'a Vec<u8>> {
        let Tree::Folder(entries) = &image.contents else {
            return None;
        };
        match entries.get(name)? {
            Tree::File(bytes) => Some(bytes),
            Tree::Folder(_) => None,
        }
    }

    #[test]
    fn what_was_synced_is_there_and_the_rest_is_not() {
        let mut operations = vec![open(3, "/disk/a"), write(3, 0, 1, 700)];
        operations.extend(sync(3, 1));
        operations.push(write(3, 512, 2, 512));
        let unnamed = disk(DiskModel::Strict, operations.clone());
        assert_eq!(file(&image(&unnamed, Survival::Nothing, 1), "a"), None);
        operations.push(open(4, "/disk"));
        operations.extend(sync(4, 2));
        for model in [DiskModel::Strict, DiskModel::Journal] {
            let disk = disk(model, operations.clone());
            let nothing = image(&disk, Survival::Nothing, 1);
            assert_eq!(file(&nothing, "a"), Some(&vec![1; 700]));
            let everything = image(&disk, Survival::Everything, 1);
            assert_eq!(file(&everything, "a").unwrap()[512..], [2; 512]);
        }
    }

    #[test]
    fn a_write_during_a_sync_waits_for_the_next_sync() {
        let [begin, end] = sync(3, 1);
        let operations = vec![
            open(4, "/disk"),
            open(3, "/disk/a"),
            write(3, 0, 1, 512),
            begin,
            write(3, 512, 2, 512),
            end,
        ];
        let journal = disk(DiskModel::Journal, operations);
        let nothing = image(&journal, Survival::Nothing, 1);
        assert_eq!(file(&nothing, "a"), Some(&vec![1; 512]));
    }

    #[test]
    fn only_a_journal_keeps_entries_when_a_file_is_synced() {
        let rename = FileOperation::Rename {
            from: "/disk/a".to_owned(),
            to: "/disk/b".to_owned(),
        };
        let mut operations = vec![open(3, "/disk/a"), rename];
        operations.extend(sync(3, 1));
        let strict = disk(DiskModel::Strict, operations.clone());
        assert_eq!(file(&image(&strict, Survival::Nothing, 1), "b"), None);
        let journal = disk(DiskModel::Journal, operations);
        let found = image(&journal, Survival::Nothing, 1);
        assert!(file(&found, "b").is_some() && file(&found, "a").is_none());
    }

    #[test]
    fn a_torn_write_leaves_whole_sectors() {
        let mut operations = vec![open(4, "/disk"), open(3, "/disk/a"), write(3, 0, 1, 4096)];
        operations.extend(sync(3, 1));
        operations.push(write(3, 0, 2, 4096));
        let disk = disk(DiskModel::Journal, operations);
        let mut torn = 0;
        for seed in 0..20 {
            let found = image(&disk, Survival::Sectors, seed);
            let bytes = file(&found, "a").unwrap();
            let (sectors, rest) = bytes.as_chunks::<SECTOR_BYTES>();
            assert!(rest.is_empty() && sectors.len() == 8);
            assert!(sectors.iter().all(|it| *it == [1; 512] || *it == [2; 512]));
            torn += found.torn;
        }
        assert!(torn > 5, "{torn}");
    }

    #[test]
    fn a_disk_that_lies_keeps_nothing_after_its_first_lie() {
        let mut lying = Disk::new(
            &Tree::empty(),
            DiskModel::Journal,
            Path::new("/disk"),
            Some(5),
        );
        let mut operations = vec![open(3, "/disk/a"), write(3, 0, 1, 512)];
        operations.extend(sync(3, 1));
        operations.push(write(3, 512, 2, 512));
        operations.extend(sync(3, 2));
        for (at_ns, operation) in (0..).zip(operations) {
            lying.perform(&TraceRecord { at_ns, operation });
        }
        let found = image(&lying, Survival::Nothing, 1);
        assert_eq!(file(&found, "a"), Some(&vec![1; 512]));
    }
}
