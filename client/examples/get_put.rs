//! Writes a key, reads it and removes it.

#![allow(clippy::print_stdout)] // a program

mod common;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;

    let version = client.put("example/greeting", "hello").await?;
    println!("written as version {version}");

    // Linearizable: this read sees the write above, no matter which replica answers.
    let found = client
        .get("example/greeting")
        .await?
        .expect("the key was just written");
    println!("{} (version {})", found.value.escape_ascii(), found.version);
    assert_eq!(found.version, version);

    client.delete("example/greeting").await?;
    assert_eq!(client.get("example/greeting").await?, None);
    println!("removed");
    Ok(())
}
