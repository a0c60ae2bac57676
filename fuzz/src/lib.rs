//! Fuzzing of every decoder that reads bytes from outside: frames, messages, rows on disk,
//! configuration, property files, histories and logs.
//!
//! A *body* takes arbitrary bytes and decodes them. If this succeeds, the body checks two
//! properties. The result must be the same after it is encoded and decoded again, and the next
//! steps in processing the result must not fail. A body must never panic, and must not take more
//! memory than [`memory`] allows for the size of its input. Some decoders read sealed data (with a
//! checksum, or compressed). A body for such a decoder also adds the correct seal to the input,
//! because otherwise the decoder would refuse every changed input.
//!
//! Two bodies go beyond decoders. `member` gives a replica the messages of a member that has proved
//! its identity. `session` gives a replica the requests of a client that has sent its token.
//!
//! `tests/bounded.rs` runs the bodies with inputs that [`mutate`] makes from the seeds. These
//! inputs are the same in every run. `targets/` has the same bodies as targets of cargo-fuzz, which
//! searches endlessly (`make fuzz`). An input that reveals a fault is stored under `regressions/`.

mod bodies;
pub mod memory;
pub mod mutate;

use std::io;
use std::path::Path;

/// A target for fuzzing. The function `body` is called with each input. Inputs are made from the
/// seeds.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target. The cargo-fuzz target and the folders of inputs have the same name.
    pub name: &'static str,
    /// Function that runs the body with an input. The function panics if a decoder violates a
    /// property.
    pub body: fn(&[u8]),
    /// Function that returns the seeds. A seed is a valid input, or has an error that a decoder
    /// might overlook.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($name:ident: $module:ident),* $(,)?) => {
        /// All targets.
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
    log_segments: log,
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
    lock_packet: lock,
}

/// Returns the target with the name `name`.
///
/// # Panics
/// Panics if there is no such target.
pub fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("no target is called {name:?}"))
}

/// Returns the inputs that once revealed a fault in this target, in the order of their file names.
///
/// # Errors
/// Returns an error if the inputs cannot be read. It is not an error if there are no such inputs.
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
