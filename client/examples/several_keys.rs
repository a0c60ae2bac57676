//! Writes and reads several keys, each time at one moment.

#![allow(clippy::print_stdout)] // a program

mod common;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;

    // Writes all keys or none; no read sees only some of the writes.
    let entries = [
        ("example/list/a", "1"),
        ("example/list/b", "2"),
        ("example/list/c", "3"),
    ];
    client.multi_put(entries).await?;

    // Keys that do not exist are omitted.
    let found = client
        .multi_get(["example/list/a", "example/list/z"])
        .await?;
    assert_eq!(found.len(), 1);

    // Reads keys from the first bound up to, but not including, the second, and at most 100.
    for entry in client.scan("example/list/", "example/list0", 100).await? {
        println!(
            "{} = {}",
            entry.key.escape_ascii(),
            entry.value.escape_ascii()
        );
    }
    Ok(())
}
