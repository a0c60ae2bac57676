//! Model of a disk: the contents that are durable, and the changes that wait for a sync.
//!
//! A sync of a file makes the earlier changes of its contents durable. A sync of a folder makes the
//! earlier changes of its entries durable. In the model `journal` each sync does this for all
//! folders, as a file system with a journal does.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::rc::Rc;

use crate::trace::{Contents, FileOperation, TraceRecord};
use crate::tree::Tree;

/// Rule that determines which changes of folders a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskModel {
    /// A sync of a folder makes only the changes of this folder durable.
    Strict,
    /// Each sync makes all earlier changes of all folders durable. Changes of folders become
    /// durable in the order in which they were made.
    Journal,
}

impl DiskModel {
    pub fn name(self) -> &'static str {
        match self {
            DiskModel::Strict => "strict",
            DiskModel::Journal => "journal",
        }
    }
}

/// Index of a file or folder in [`Disk::nodes`].
pub type NodeId = usize;
/// Number of a change. Later changes have higher numbers.
pub type ChangeNumber = u64;

/// A file or folder.
#[derive(Debug)]
pub enum Node {
    File(FileState),
    Folder(FolderState),
}

#[derive(Debug, Default)]
pub struct FileState {
    pub durable: Rc<Vec<u8>>,
    pub pending: VecDeque<(ChangeNumber, FileChange)>,
}

/// Change of the contents of a file.
#[derive(Clone, Debug)]
pub enum FileChange {
    Write { offset: usize, contents: Contents },
    Resize(usize),
    Extend(usize),
}

impl FileChange {
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            FileChange::Write { offset, contents } => contents.put(bytes, *offset, contents.len()),
            FileChange::Resize(length) => bytes.resize(*length, 0),
            FileChange::Extend(length) => bytes.resize(bytes.len().max(*length), 0),
        }
    }
}

#[derive(Debug, Default)]
pub struct FolderState {
    live: BTreeMap<String, NodeId>,
    pub durable: BTreeMap<String, NodeId>,
    pub pending: VecDeque<(ChangeNumber, EntryChange)>,
}

/// Change of the entries of a folder.
#[derive(Clone, Debug)]
pub enum EntryChange {
    Add(String, NodeId),
    Remove(String),
    Rename {
        from: String,
        to: String,
        node: NodeId,
    },
}

impl EntryChange {
    pub fn apply(&self, entries: &mut BTreeMap<String, NodeId>) {
        match self {
            EntryChange::Add(name, node) => {
                entries.insert(name.clone(), *node);
            }
            EntryChange::Remove(name) => {
                entries.remove(name);
            }
            EntryChange::Rename { from, to, node } => {
                entries.remove(from);
                entries.insert(to.clone(), *node);
            }
        }
    }
}

/// A sync that has begun: the target of the sync, and the number of the newest change before the
/// sync.
#[derive(Clone, Copy, Debug)]
struct Sync {
    node: NodeId,
    before: ChangeNumber,
}

/// A disk in use.
#[derive(Debug)]
pub struct Disk {
    pub model: DiskModel,
    /// Path of the disk in the trace.
    path: String,
    /// The first node is the root.
    pub nodes: Vec<Node>,
    open: HashMap<i32, NodeId>,
    syncs: HashMap<u64, Sync>,
    last_change: ChangeNumber,
    /// Time from which syncs have no effect, in ns of the monotonic clock.
    lies_from: Option<u64>,
}

impl Disk {
    /// Creates a disk with the durable contents `contents`. In a trace of this disk, all paths are
    /// below `path`.
    pub fn new(contents: &Tree, model: DiskModel, path: &Path, lies_from: Option<u64>) -> Disk {
        let mut disk = Disk {
            model,
            path: path.to_string_lossy().into_owned(),
            nodes: Vec::new(),
            open: HashMap::new(),
            syncs: HashMap::new(),
            last_change: 0,
            lies_from,
        };
        disk.load(contents);
        disk
    }

    fn load(&mut self, contents: &Tree) -> NodeId {
        let id = self.nodes.len();
        match contents {
            Tree::File(bytes) => self.nodes.push(Node::File(FileState {
                durable: bytes.clone(),
                pending: VecDeque::new(),
            })),
            Tree::Folder(entries) => {
                self.nodes.push(Node::Folder(FolderState::default()));
                let entries = entries.iter();
                let entries: BTreeMap<String, NodeId> = entries
                    .map(|(name, entry)| (name.clone(), self.load(entry)))
                    .collect();
                self.nodes[id] = Node::Folder(FolderState {
                    live: entries.clone(),
                    durable: entries,
                    pending: VecDeque::new(),
                });
            }
        }
        id
    }

    /// Performs an operation. An operation on an unknown file has no effect. A file is unknown if
    /// the C library opened the file by itself, because the shim does not see such an open. Only
    /// diagnostic logs are unknown.
    pub fn perform(&mut self, record: &TraceRecord) {
        match &record.operation {
            FileOperation::Open {
                descriptor,
                path,
                creates,
                truncates,
            } => self.open(*descriptor, path, *creates, *truncates),
            FileOperation::Close(descriptor) => {
                self.open.remove(descriptor);
            }
            FileOperation::Write {
                descriptor,
                offset,
                contents,
            } => {
                let contents = contents.clone();
                let offset = *offset;
                self.change(*descriptor, FileChange::Write { offset, contents });
            }
            FileOperation::Resize { descriptor, bytes } => {
                self.change(*descriptor, FileChange::Resize(*bytes));
            }
            FileOperation::Extend { descriptor, bytes } => {
                self.change(*descriptor, FileChange::Extend(*bytes));
            }
            FileOperation::SyncBegin { descriptor, ticket } => {
                self.begin_sync(*descriptor, *ticket);
            }
            FileOperation::SyncEnd { ticket } => self.complete_sync(*ticket, record.at_ns),
            FileOperation::Rename { from, to } => self.rename(from, to),
            FileOperation::Link { from, to } => self.link(from, to),
            FileOperation::Remove(path) => self.remove(path),
            FileOperation::MakeFolder(path) => {
                self.make(path, Node::Folder(FolderState::default()))
            }
        }
    }

    fn number(&mut self) -> ChangeNumber {
        self.last_change += 1;
        self.last_change
    }

    fn folder(&mut self, node: NodeId) -> Option<&mut FolderState> {
        match &mut self.nodes[node] {
            Node::Folder(folder) => Some(folder),
            Node::File(_) => None,
        }
    }

    /// Returns the node at a path.
    fn find(&self, path: &str) -> Option<NodeId> {
        let below = path.strip_prefix(&self.path)?;
        let mut names = below.split('/').filter(|name| !name.is_empty());
        names.try_fold(0, |node, name| match &self.nodes[node] {
            Node::Folder(folder) => folder.live.get(name).copied(),
            Node::File(_) => None,
        })
    }

    /// Returns the folder that contains a path, and the last component of the path.
    fn place(&self, path: &str) -> Option<(NodeId, String)> {
        let (above, name) = path.trim_end_matches('/').rsplit_once('/')?;
        Some((self.find(above)?, name.to_owned()))
    }

    fn change_entries(&mut self, folder: NodeId, change: EntryChange) {
        let number = self.number();
        if let Some(folder) = self.folder(folder) {
            change.apply(&mut folder.live);
            folder.pending.push_back((number, change));
        }
    }

    fn add(&mut self, path: &str, node: NodeId) {
        if let Some((folder, name)) = self.place(path) {
            self.change_entries(folder, EntryChange::Add(name, node));
        }
    }

    fn make(&mut self, path: &str, node: Node) {
        self.nodes.push(node);
        self.add(path, self.nodes.len() - 1);
    }

    fn open(&mut self, descriptor: i32, path: &str, creates: bool, truncates: bool) {
        self.open.remove(&descriptor);
        let found = self.find(path);
        if found.is_none() && creates {
            self.make(path, Node::File(FileState::default()));
        }
        let Some(node) = self.find(path) else { return };
        self.open.insert(descriptor, node);
        if found.is_some() && truncates {
            self.change(descriptor, FileChange::Resize(0));
        }
    }

    fn change(&mut self, descriptor: i32, change: FileChange) {
        let number = self.number();
        let Some(&node) = self.open.get(&descriptor) else {
            return;
        };
        if let Node::File(file) = &mut self.nodes[node] {
            file.pending.push_back((number, change));
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        let (Some(node), Some(source), Some(target)) =
            (self.find(from), self.place(from), self.place(to))
        else {
            return;
        };
        let ((source, from), (target, to)) = (source, target);
        if source == target {
            self.change_entries(source, EntryChange::Rename { from, to, node });
        } else {
            self.change_entries(target, EntryChange::Add(to, node));
            self.change_entries(source, EntryChange::Remove(from));
        }
    }

    fn remove(&mut self, path: &str) {
        if self.find(path).is_some()
            && let Some((folder, name)) = self.place(path)
        {
            self.change_entries(folder, EntryChange::Remove(name));
        }
    }

    fn link(&mut self, from: &str, to: &str) {
        if let Some(node) = self.find(from) {
            self.add(to, node);
        }
    }

    fn begin_sync(&mut self, descriptor: i32, ticket: u64) {
        let before = self.last_change;
        if let Some(&node) = self.open.get(&descriptor) {
            self.syncs.insert(ticket, Sync { node, before });
        }
    }

    fn complete_sync(&mut self, ticket: u64, at_ns: u64) {
        let Some(Sync { node, before }) = self.syncs.remove(&ticket) else {
            return;
        };
        if self.lies_from.is_some_and(|from| at_ns >= from) {
            return;
        }
        match &mut self.nodes[node] {
            Node::File(file) => file.commit(before),
            Node::Folder(folder) => folder.commit(before),
        }
        if self.model == DiskModel::Journal {
            for node in &mut self.nodes {
                if let Node::Folder(folder) = node {
                    folder.commit(before);
                }
            }
        }
    }
}

impl FileState {
    fn commit(&mut self, before: ChangeNumber) {
        for change in drain(&mut self.pending, before) {
            change.apply(Rc::make_mut(&mut self.durable));
        }
    }
}

impl FolderState {
    fn commit(&mut self, before: ChangeNumber) {
        for change in drain(&mut self.pending, before) {
            change.apply(&mut self.durable);
        }
    }
}

/// Removes the changes with numbers up to `before` from `pending`, and returns these changes.
fn drain<T>(
    pending: &mut VecDeque<(ChangeNumber, T)>,
    before: ChangeNumber,
) -> impl Iterator<Item = T> {
    let count = pending.partition_point(|(number, _)| *number <= before);
    pending.drain(..count).map(|(_, change)| change)
}
