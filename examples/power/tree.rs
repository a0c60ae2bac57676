//! Contents of a disk that is not in use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use anyhow::Context as _;

/// A file or folder with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    File(Rc<Vec<u8>>),
    Folder(BTreeMap<String, Tree>),
}

impl Tree {
    pub fn empty() -> Tree {
        Tree::Folder(BTreeMap::new())
    }

    /// Returns the contents of a new disk of the replica `name`. A folder stands in the place of
    /// the file `reserve`, so that the replica does without this file of 128 MiB. Otherwise each
    /// image of a disk would contain it.
    pub fn new_disk(name: &str) -> Tree {
        let within = |name: &str, tree| Tree::Folder(BTreeMap::from([(name.to_owned(), tree)]));
        within("data", within(name, within("reserve", Tree::empty())))
    }

    /// Reads the files and folders at `path`.
    pub fn read(path: &Path) -> anyhow::Result<Tree> {
        let failed = || format!("reading {}", path.display());
        if path.is_file() {
            let bytes = std::fs::read(path).with_context(failed)?;
            return Ok(Tree::File(Rc::new(bytes)));
        }
        let mut entries = BTreeMap::new();
        for entry in std::fs::read_dir(path).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.insert(name, Tree::read(&entry.path())?);
        }
        Ok(Tree::Folder(entries))
    }

    /// Returns the path of the first file or folder that differs in another tree; `None` if the
    /// trees are equal.
    pub fn difference(&self, other: &Tree) -> Option<String> {
        let (Tree::Folder(here), Tree::Folder(there)) = (self, other) else {
            return (self != other).then(String::new);
        };
        let names: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
        names.into_iter().find_map(|name| {
            let below = match (here.get(name), there.get(name)) {
                (Some(here), Some(there)) => here.difference(there)?,
                _ => String::new(),
            };
            Some(format!("/{name}{below}"))
        })
    }

    /// Creates the files and folders at `path`. Nothing may exist at this path yet.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let failed = || format!("writing an image to {}; is there space?", path.display());
        match self {
            Tree::File(bytes) => std::fs::write(path, bytes.as_slice()).with_context(failed),
            Tree::Folder(entries) => {
                std::fs::create_dir(path).with_context(failed)?;
                let mut entries = entries.iter();
                entries.try_for_each(|(name, entry)| entry.write(&path.join(name)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[(&str, &str)]) -> Tree {
        let files = names.iter().map(|(name, contents)| {
            let bytes = contents.as_bytes().to_vec();
            ((*name).to_owned(), Tree::File(Rc::new(bytes)))
        });
        let inner = Tree::Folder(files.collect());
        Tree::Folder(BTreeMap::from([("log".to_owned(), inner)]))
    }

    #[test]
    fn a_tree_is_the_same_after_it_was_written_and_read() {
        let dir = tempfile::tempdir().unwrap();
        let tree = folder(&[("a", "1"), ("b", "")]);
        let path = dir.path().join("disk");
        tree.write(&path).unwrap();
        assert_eq!(Tree::read(&path).unwrap(), tree);
    }

    #[test]
    fn a_difference_names_the_file() {
        let tree = folder(&[("a", "1"), ("b", "2")]);
        assert_eq!(tree.difference(&tree), None);
        for other in [folder(&[("a", "1"), ("b", "3")]), folder(&[("a", "1")])] {
            assert_eq!(tree.difference(&other), Some("/log/b".to_owned()));
            assert_eq!(other.difference(&tree), Some("/log/b".to_owned()));
        }
    }
}
