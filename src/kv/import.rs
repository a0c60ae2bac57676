//! `leasehold kv import`.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use clap::Args;
use leasehold_client::{Client, Error, Version};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::lines::{LineBatch, LineBatchReader};
use super::progress::CopyProgress;
use crate::connector::Connector;
use crate::terminal::{Interrupted, interrupted};

mod lines;

/// Maximum number of writes in flight.
const IN_FLIGHT_MAX: usize = 8;
/// Note in the error of an import, if the last writes may still be executed.
const MAY_BE_WRITTEN_LATER: &str =
    ". Later lines may still be written: let the cluster recover before you continue";

#[derive(Args)]
pub struct ImportArgs {
    /// The file; `-`: standard input
    file: PathBuf,
    /// Begins with line N. An earlier import has written the lines before it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    from_line: u64,
}

impl ImportArgs {
    pub async fn run(&self, connector: &Connector) -> anyhow::Result<()> {
        let is_standard_input = self.file == Path::new("-");
        let (reader, length) = if is_standard_input {
            let input = Box::new(std::io::stdin());
            (
                LineBatchReader::new(input, "standard input".to_owned()),
                None,
            )
        } else {
            let name = self.file.display().to_string();
            let opened = std::fs::File::open(&self.file);
            let file = opened.with_context(|| format!("opening {name}"))?;
            let whole = file.metadata().ok().filter(|it| it.is_file());
            (
                LineBatchReader::new(Box::new(file), name),
                whole.map(|it| it.len()),
            )
        };
        let client = connector.connect().await?.client;
        let batches = reader.start(self.from_line);
        let total = length.filter(|_| self.from_line == 1);
        let mut import = RunningImport {
            client,
            in_flight: VecDeque::new(),
            first_unwritten: self.from_line,
            progress: CopyProgress::begin("imported", total, false),
        };
        let ended = import.run(batches).await;
        import.progress.clear();
        import
            .progress
            .conclude(matches!(ended, Ok(Ended::Finished)));
        let line = import.first_unwritten;
        let written = format!("lines before line {line} are written;");
        let next = format!("continue with --from-line {line}");
        let failed = ended.as_ref().err().and_then(|error| error.downcast_ref());
        // After an error, the write that failed is still in the list.
        let others = import
            .in_flight
            .len()
            .saturating_sub(usize::from(failed.is_some()));
        let later = if others > 0 || failed.is_some_and(Error::may_have_taken_effect) {
            MAY_BE_WRITTEN_LATER
        } else {
            ""
        };
        match ended {
            Ok(Ended::Finished) => Ok(()),
            Ok(Ended::Interrupted) if line == self.from_line => {
                let advice = "no line is known to be written; repeat the command";
                Err(Interrupted(format!("interrupted: {advice}{later}")).into())
            }
            Ok(Ended::Interrupted) => {
                Err(Interrupted(format!("interrupted: all {written} {next}{later}")).into())
            }
            Ok(Ended::Unreadable(error)) if line == self.from_line => Err(error),
            Err(error) if line == self.from_line => bail!("{error:#}{later}"),
            Ok(Ended::Unreadable(error)) if !is_standard_input => {
                bail!("{error:#}. All {written} correct the file, and {next}")
            }
            Ok(Ended::Unreadable(error)) | Err(error) => {
                bail!("{error:#}. All {written} {next}{later}")
            }
        }
    }
}

enum Ended {
    Finished,
    /// The next line cannot be read. All lines before it are written.
    Unreadable(anyhow::Error),
    Interrupted,
}

/// A write that has been sent and has no answer yet.
struct SentBatch {
    batch: LineBatch,
    written: JoinHandle<Result<Version, Error>>,
}

/// An import that is running. Several writes are in flight at the same time, and they may be
/// executed in any order. So a batch waits until no batch in flight has one of its keys.
struct RunningImport {
    client: Client,
    /// Batches in flight, in the order of the file.
    in_flight: VecDeque<SentBatch>,
    /// The first line that may not have been written.
    first_unwritten: u64,
    progress: CopyProgress,
}

impl RunningImport {
    /// Writes all batches. After a signal, waits only for the writes in flight. After another
    /// signal, waits no longer.
    async fn run(
        &mut self,
        mut batches: mpsc::Receiver<anyhow::Result<LineBatch>>,
    ) -> anyhow::Result<Ended> {
        tokio::select! {
            biased; // handles the signals before anything else
            () = interrupted() => {}
            written = self.write_all(&mut batches) => {
                return written.map(|error| error.map_or(Ended::Finished, Ended::Unreadable));
            }
        }
        tokio::select! {
            biased;
            () = interrupted() => {}
            written = self.finish_all() => written?,
        }
        Ok(Ended::Interrupted)
    }

    /// Writes all batches. Returns the error of the reader if there is one.
    async fn write_all(
        &mut self,
        batches: &mut mpsc::Receiver<anyhow::Result<LineBatch>>,
    ) -> anyhow::Result<Option<anyhow::Error>> {
        while let Some(batch) = batches.recv().await {
            match batch {
                Ok(batch) => {
                    while self.in_flight.len() == IN_FLIGHT_MAX || self.must_wait(&batch) {
                        self.finish_oldest().await?;
                    }
                    self.send(batch);
                }
                Err(error) => {
                    // The lines before the error are still written.
                    self.finish_all().await?;
                    return Ok(Some(error));
                }
            }
        }
        self.finish_all().await?;
        Ok(None)
    }

    fn must_wait(&self, batch: &LineBatch) -> bool {
        let mut in_flight = self.in_flight.iter();
        in_flight.any(|sent| sent.batch.shares_key(batch))
    }

    fn send(&mut self, batch: LineBatch) {
        let client = self.client.clone();
        let entries: Vec<(Bytes, Bytes)> = batch.entries();
        let written = tokio::spawn(async move { client.multi_put(entries).await });
        self.in_flight.push_back(SentBatch { batch, written });
    }

    /// Waits for the oldest write in flight. If this method is cancelled, the write stays in
    /// flight.
    async fn finish_oldest(&mut self) -> anyhow::Result<()> {
        let Some(oldest) = self.in_flight.front_mut() else {
            return Ok(());
        };
        (&mut oldest.written).await.context("writing")??;
        if let Some(SentBatch { batch, .. }) = self.in_flight.pop_front() {
            self.first_unwritten = batch.next_line;
            self.progress.add(batch.lines, batch.bytes);
        }
        Ok(())
    }

    async fn finish_all(&mut self) -> anyhow::Result<()> {
        while !self.in_flight.is_empty() {
            self.finish_oldest().await?;
        }
        Ok(())
    }
}
