//! Changes some fields of a record and keeps the others.

#![allow(clippy::print_stdout)] // a program

mod common;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;

    // Creates the record. Names and values of fields are any bytes.
    let fields = [("name", "Ada"), ("city", "London")];
    client.put_fields("example/user/1", fields).await?;

    // Changes one field. The replicas merge it, so that two programs may change two fields at the
    // same time.
    client
        .put_fields("example/user/1", [("city", "Paris")])
        .await?;

    let record = client
        .get("example/user/1")
        .await?
        .expect("the key was just written");
    for (name, value) in record.fields().expect("the value is a record") {
        println!("{} = {}", name.escape_ascii(), value.escape_ascii());
    }
    Ok(())
}
