//! Fuzzing of every decoder that reads bytes from outside: frames, messages, rows on disk,
//! configuration, property files, histories, logs.
//!
//! A *body* takes any bytes. It decodes them, and where that succeeds checks that
//! what was decoded comes back when it is encoded and decoded again, and that
//! whatever is made of it next does not fail. It must not panic, whatever the
//! bytes, nor take more memory than [`memory`] allows for so many of them. Bodies
//! that decode something sealed (a checksum, compression) also seal the bytes
//! themselves, or no change would ever get past the seal.
//!
//! Two bodies go on where decoders end. `member` gives a replica the messages of a member that has
//! proved its identity. `session` gives it the requests of a client that has sent its token.
//!
//! `tests/bounded.rs` feeds the bodies inputs that [`mutate`] makes of the seeds,
//! the same in every run. `targets/` holds the same bodies as targets of
//! cargo-fuzz, which searches without end (`make fuzz`); an input with which it
//! finds something is kept under `regressions/`.

mod bodies;
pub mod memory;
pub mod mutate;

use std::io;
use std::path::Path;

/// A decoder, or a family of them that reads the same bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: also of the cargo-fuzz target and of the folders of inputs.
    pub name: &'static str,
    /// Runs the decoder over an input. Panics where a decoder does not keep its promise.
    pub body: fn(&[u8]),
    /// Inputs that are well-formed, or wrong in a way that is easy to miss.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($name:ident: $module:ident),* $(,)?) => {
        /// Every target there is.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            body: bodies::$module::$name,
            seeds: bodies::$module::seeds::$name,
        }),*];
    };
}

targets! {
    frames: frames,
    client_to_server: client,
    server_to_client: client,
    peer: peer,
    member: member,
    disk_values: disk,
    disk_rows: disk,
    cluster_config: config,
    tokens: access,
    rights: access,
    session: session,
    topology: config,
    experiment: config,
    cluster_state: config,
    campaign_state: config,
    properties: ycsb,
    length_histogram: ycsb,
    interval_log: ycsb,
    history: history,
}

/// The target called `name`.
///
/// # Panics
/// If there is none.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("no target is called {name:?}"))
}

/// Inputs that once found something, by the name of their file.
///
/// # Errors
/// If they cannot be read; that there are none is no error.
pub fn regressions(name: &str) -> io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("regressions")
        .join(name);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = folder.read_dir()?;
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.sort();
    files.into_iter().map(std::fs::read).collect()
}
