//! Comparison of a list of names with the file that freezes it.

use std::collections::BTreeSet;
use std::path::Path;

/// Compares `names` with the frozen names in `file`. If the environment variable `CONTRACT` is
/// `write`, writes the names to the file instead.
///
/// # Panics
/// Panics if a name is only in one of the two lists.
pub fn assert_frozen(file: &str, names: &BTreeSet<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/contract")
        .join(file);
    let text: String = names.iter().map(|name| format!("{name}\n")).collect();
    if std::env::var("CONTRACT").is_ok_and(|value| value == "write") {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let frozen = std::fs::read_to_string(&path).unwrap();
    let frozen: BTreeSet<String> = frozen.lines().map(str::to_owned).collect();
    let removed: Vec<_> = frozen.difference(names).collect();
    let new: Vec<_> = names.difference(&frozen).collect();
    assert!(
        removed.is_empty() && new.is_empty(),
        "{file}: gone: {removed:#?}, new: {new:#?}"
    );
}
