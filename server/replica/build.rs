//! Generates the peers' wire types from `proto/`, without an installed protoc.
//! Commands and outcomes are the client crate's own types.

#![allow(clippy::disallowed_macros)] // Cargo reads what a build script prints

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=../../client/wire/proto");
    let files = protox::compile(["peer.proto"], ["proto", "../../client/wire/proto"])?;
    prost_build::Config::new()
        .bytes(["."])
        // It is rare, and large: an entry without one is small in memory too.
        .boxed(".leasehold.peer.Value.config")
        .extern_path(".leasehold.client", "leasehold_wire")
        .compile_fds(files)?;
    Ok(())
}
