//! Identifies the simulated code by the contents of its sources, so that a campaign is only
//! continued by a program that simulates the same. A revision would not do: it is the same for all
//! changes that are not committed yet, and an unpacked release has none.

use std::path::{Path, PathBuf};

/// Files and directories that determine the result of a simulated run. The lock file is one of
/// them, because it fixes the versions of the dependencies.
const SIMULATED: [&str; 11] = [
    "Cargo.lock",
    "client/backoff/src",
    "client/histories/src",
    "client/wire/proto",
    "client/wire/src",
    "leases/src",
    "server/kernel/src",
    "server/log/src",
    "server/replica/proto",
    "server/replica/src",
    "server/sim/src",
];

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    for part in SIMULATED {
        println!("cargo::rerun-if-changed={part}");
        collect(Path::new(part), &mut files)?;
    }
    files.sort();
    let mut hash = Fnv::default();
    for file in files {
        let contents = std::fs::read(&file)?;
        hash.add(file.as_os_str().as_encoded_bytes());
        hash.add(&(contents.len() as u64).to_le_bytes());
        hash.add(&contents);
    }
    println!("cargo::rustc-env=LEASEHOLD_SIMULATED={:016x}", hash.0);
    Ok(())
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if path.is_dir() {
        for entry in path.read_dir()? {
            collect(&entry?.path(), files)?;
        }
    } else if is_source(path) {
        files.push(path.to_owned());
    }
    Ok(())
}

/// Returns true if the file is a source file. The directory may also contain other files, for
/// example files of an editor.
fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let kinds = [".rs", ".proto", ".lock"];
    !name.starts_with('.') && kinds.iter().any(|kind| name.ends_with(kind))
}

/// The hash FNV-1a, which does not depend on the compiler.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
