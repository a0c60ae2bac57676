//! Increments a counter correctly, even while other programs do the same, and even if an answer is
//! lost. The value is replaced only if no other program has replaced it since this program read it.

#![allow(clippy::print_stdout)] // a program

mod common;

use leasehold_client::{CasOutcome, Client, Error};

/// Number of increments that the value remembers.
const REMEMBERED: usize = 100;

/// Adds one to a counter. Returns the new value. After an error, the increment may have taken
/// effect; another call with the same `id` does not add one again. Returns `None` if an attempt had
/// no answer, and others have incremented the counter so often since then that nothing shows
/// whether the attempt took effect.
///
/// The value has one line for each of the last increments: the count, and the id of the increment.
/// All writers keep these lines. So a program finds its own increment again, even if other programs
/// have changed the counter in the meantime.
async fn increment(client: &Client, key: &str, id: u64) -> Result<Option<u64>, Error> {
    let mut unanswered = None;
    loop {
        let found = client.get(key.to_owned()).await?;
        let version = found.as_ref().map(|found| found.version);
        let value = found.map(|found| found.value).unwrap_or_default();
        let text = String::from_utf8_lossy(&value);
        let mut lines: Vec<&str> = text.lines().collect();
        let count_in = |line: &str| line.split(' ').next()?.parse::<u64>().ok();
        let own = format!(" {id}");
        if let Some(line) = lines.iter().find(|line| line.ends_with(&own)) {
            return Ok(count_in(line)); // an earlier attempt took effect
        }
        let oldest = lines.first().and_then(|line| count_in(line));
        if unanswered.is_some_and(|count| oldest > Some(count)) {
            return Ok(None);
        }
        let next = lines.last().and_then(|line| count_in(line)).unwrap_or(0) + 1;
        let line = format!("{next} {id}");
        lines.push(&line);
        let remembered = lines.len().saturating_sub(REMEMBERED);
        let text = lines[remembered..].join("\n");
        match client.compare_and_swap(key.to_owned(), text, version).await {
            Ok(CasOutcome::Written(_)) => return Ok(Some(next)),
            Ok(CasOutcome::Mismatch(_)) => {} // another program was faster: read again
            // The next attempt finds the line of this one, or has the same expected version. So
            // only one of them takes effect.
            Err(error) if error.may_have_taken_effect() => {
                unanswered = unanswered.or(Some(next));
            }
            Err(error) => return Err(error),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;
    // A counter for this run alone, so that it can be deleted at the end: a deletion also removes
    // the lines of other programs.
    let key = format!("example/counter/{}", std::process::id());

    // Four increments run at the same time, and none is lost. Other programs must not use the same
    // ids: draw them at random, or number them after the name of the program.
    let counting = (1..=4).map(|id| {
        let (client, key) = (client.clone(), key.clone());
        tokio::spawn(async move { increment(&client, &key, id).await })
    });
    for count in counting.collect::<Vec<_>>() {
        println!("counted to {}", count.await??.expect("few increments"));
    }
    // An increment that is repeated adds nothing.
    assert!(
        increment(&client, &key, 1)
            .await?
            .is_some_and(|count| count <= 4)
    );
    let found = client.get(key.clone()).await?.expect("the counter exists");
    let text = String::from_utf8_lossy(&found.value);
    let last = text.lines().last().expect("the counter has a line");
    assert!(last.starts_with("4 "), "{text}");
    client.delete(key).await?;
    Ok(())
}
