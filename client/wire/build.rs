//! Generates the wire types from `proto/`, without an installed protoc.

#![allow(clippy::disallowed_macros)] // Cargo reads the output of a build script

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["client.proto"], ["proto"])?;
    let mut config = prost_build::Config::new();
    config.bytes(["."]);
    // States that hold commands and outcomes are compared by their hashes.
    for name in [
        "Command",
        "PutFields",
        "MultiPut",
        "Txn",
        "TxnOp",
        "Outcome",
        "Entries",
        "TxnResult",
    ] {
        config.type_attribute(format!(".leasehold.client.{name}"), "#[derive(Eq, Hash)]");
    }
    // A Hello holds a token, which no log may show (see `constructors`).
    config.skip_debug([".leasehold.client.Hello"]);
    // Answers to commands then need no room for a status.
    config.boxed(".leasehold.client.Response.status");
    config.compile_fds(files)?;
    Ok(())
}
