//! Test of the dependencies between the modules of this package.

use std::path::{Path, PathBuf};

/// Modules, each with a list of other modules that it may not import.
const FORBIDDEN: [(&str, &[&str]); 3] = [
    ("run", &["backend", "report", "experiment"]),
    ("backend", &["report"]),
    ("experiment", &["backend", "report", "run"]),
];

fn sources(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in path.read_dir().unwrap() {
            sources(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|kind| kind == "rs") {
        found.push(path.to_owned());
    }
}

#[test]
fn modules_depend_on_each_other_in_one_direction() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (module, forbidden) in FORBIDDEN {
        let mut files = Vec::new();
        for path in [root.join(module), root.join(format!("{module}.rs"))] {
            if path.exists() {
                sources(&path, &mut files);
            }
        }
        assert!(!files.is_empty(), "there is no module {module}");
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for other in forbidden {
                let imports = [format!("crate::{other}::"), format!("crate::{other};")];
                assert!(
                    !imports.iter().any(|import| text.contains(import)),
                    "{} imports {other}, which {module} may not",
                    file.display()
                );
            }
        }
    }
}
