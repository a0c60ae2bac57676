//! Requests and responses on one connection, until it ends.

use super::{Connection, Link};
use leasehold_transport::{ClientReadHalf, ClientWriteHalf, FrameReader, FrameWriter};
use leasehold_wire::{ErrorCode, Outcome, Request, Response, outcome};

/// Size limit of one write to the socket, in bytes. After the write has reached this size, no
/// further request is added to it.
const WRITE_BYTES: usize = 256 << 10;

/// Reason why a connection ended.
#[derive(Debug, PartialEq)]
pub(crate) enum ConnectionEnd {
    /// The connection broke.
    Broken(String),
    /// The connection was abandoned because the replica does not answer.
    Suspected(String),
    /// The replica closed the connection, because the connection carried no request for a long
    /// time.
    Idle,
    /// The connection is no longer needed.
    Retired,
}

impl Connection {
    /// Runs one connection until it ends, and returns the reason for the end. The connection reads
    /// and writes independently, so that two full socket buffers cannot block each other.
    pub async fn drive(&self, link: Link) -> ConnectionEnd {
        let Link {
            mut reader,
            mut writer,
            ..
        } = link;
        let suspected = async {
            self.suspected.notified().await;
            std::mem::take(&mut self.table().suspicion)
        };
        tokio::select! {
            ended = self.read_responses(&mut reader) => ended,
            reason = self.write_requests(&mut writer) => ConnectionEnd::Broken(reason),
            reason = suspected => ConnectionEnd::Suspected(reason),
        }
    }

    async fn read_responses(&self, reader: &mut FrameReader<ClientReadHalf>) -> ConnectionEnd {
        loop {
            match reader.next::<Response>().await {
                Ok(Some(Response { id: 0, outcome, .. })) => {
                    return ended_by(outcome);
                }
                Ok(Some(response)) => self.answer(response),
                Ok(None) => return ConnectionEnd::Broken("closed by the server".to_owned()),
                Err(error) => return ConnectionEnd::Broken(error.to_string()),
            }
        }
    }

    async fn write_requests(&self, writer: &mut FrameWriter<ClientWriteHalf>) -> String {
        loop {
            self.queued.notified().await;
            while self.feed(writer) {
                if let Err(error) = writer.flush().await {
                    return error.to_string();
                }
            }
        }
    }

    /// Appends unsent calls to `writer`, up to the size of one write. Returns whether a call was
    /// appended.
    fn feed(&self, writer: &mut FrameWriter<ClientWriteHalf>) -> bool {
        let mut table = self.table();
        let table = &mut *table;
        for (&id, pending) in table.calls.range_mut(table.unsent_from..) {
            if writer.buffered_bytes() >= WRITE_BYTES {
                break;
            }
            table.unsent_from = id + 1;
            let body = pending.body.take();
            let hint = pending.hint;
            if let Err(error) = writer.feed(&Request { id, body, hint }) {
                // Sizes are checked before a call is queued. An error here means that this earlier
                // check has a fault. The caller of this request will time out.
                tracing::error!(%error, "a request cannot be sent");
            }
        }
        writer.buffered_bytes() > 0
    }
}

/// Returns the reason for the connection's end, derived from the last outcome that the replica
/// sent.
fn ended_by(outcome: Option<Outcome>) -> ConnectionEnd {
    match outcome.as_ref().and_then(|outcome| outcome.result.as_ref()) {
        Some(outcome::Result::Error(error)) if error.code() == ErrorCode::Idle => {
            ConnectionEnd::Idle
        }
        _ => ConnectionEnd::Broken(format!("the server ended it: {outcome:?}")),
    }
}
