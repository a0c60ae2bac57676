//! Records the version of the compiler in the program, for the manifest of every run. A program
//! cannot find out later which compiler built it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let asked = Command::new(rustc).arg("--version").output();
    let version = asked
        .ok()
        .and_then(|out| String::from_utf8(out.stdout).ok());
    let version = version.unwrap_or_default();
    let version = match version.trim() {
        "" => "unknown",
        known => known,
    };
    println!("cargo:rustc-env=LEASEHOLD_RUSTC={version}");
}
