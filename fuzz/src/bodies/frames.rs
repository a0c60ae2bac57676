//! Framing: `leasehold_wire::split_frame`, and the two readers that use it.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use leasehold_node::frames::Frames;
use leasehold_transport::FrameReader;
use leasehold_wire::{FRAME_BYTES_MAX, FrameError, split_frame};
use tokio::io::{AsyncRead, ReadBuf};

use crate::memory;

/// Maximum memory for each byte of a frame, in bytes. A reader holds the bytes that have arrived,
/// and reserves four times as much memory for further bytes. The buffer at least doubles when it
/// grows. While it grows, the old and the new buffer exist at the same time.
const PER_BYTE: usize = (1 + 4) * (2 + 1);

/// Reads frames. The first byte of the input determines how many bytes arrive at a time.
pub fn frames(input: &[u8]) {
    let Some((&most, stream)) = input.split_first() else {
        return;
    };
    let most = usize::from(most) * usize::from(most) + 1;
    let chunks = || Chunks { rest: stream, most };
    let by_splitting = collect(stream, |take| {
        let mut buffer = BytesMut::from(stream);
        while let Ok(Some(frame)) = split_frame(&mut buffer) {
            take(&frame);
        }
    });
    let by_the_client = collect(stream, |take| {
        let mut reader = FrameReader::new(chunks());
        while let Ok(Some(frame)) = at_once(reader.next_frame()) {
            take(&frame);
        }
    });
    let by_the_server = collect(stream, |take| {
        let mut reader = Frames::new(chunks(), 1 << 10);
        while let Ok(Some(frame)) = at_once(reader.wait()) {
            take(&frame);
        }
    });
    assert_eq!(by_splitting, by_the_client);
    assert_eq!(by_splitting, by_the_server);
    check(stream, &by_splitting);
}

/// Returns the length and the checksum of each frame that `read` passes to its callback.
fn collect(stream: &[u8], read: impl FnOnce(&mut dyn FnMut(&Bytes))) -> Vec<(usize, u32)> {
    let mut found = Vec::with_capacity(stream.len() / 4);
    memory::within(stream.len(), PER_BYTE, || {
        read(&mut |frame| found.push((frame.len(), crc32fast::hash(frame))));
    });
    found
}

/// Asserts that the returned frames follow each other in the stream. Also checks the rest of the
/// stream. The rest must not contain a complete frame. It must be refused as too long if the next
/// frame would be too long, and only then.
fn check(mut stream: &[u8], frames: &[(usize, u32)]) {
    for &(length, checksum) in frames {
        let (prefix, rest) = stream.split_first_chunk().expect("a frame has a prefix");
        assert_eq!(u32::from_be_bytes(*prefix) as usize, length);
        let (frame, rest) = rest.split_at(length);
        assert_eq!(crc32fast::hash(frame), checksum);
        stream = rest;
    }
    if let Some((prefix, rest)) = stream.split_first_chunk() {
        let length = u32::from_be_bytes(*prefix) as usize;
        let refused = split_frame(&mut BytesMut::from(stream));
        assert_eq!(
            matches!(refused, Err(FrameError::TooLong { .. })),
            length > FRAME_BYTES_MAX
        );
        assert!(length > rest.len(), "no whole frame is left");
    }
}

/// A stream from which a few bytes at a time can be read, without delays.
struct Chunks<'a> {
    rest: &'a [u8],
    most: usize,
}

impl AsyncRead for Chunks<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let count = self.rest.len().min(self.most).min(buffer.remaining());
        let (now, later) = self.rest.split_at(count);
        buffer.put_slice(now);
        self.rest = later;
        Poll::Ready(Ok(()))
    }
}

fn at_once<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a reader of available bytes does not wait"),
    }
}

pub mod seeds {
    use leasehold_wire::FRAME_BYTES_MAX;

    pub fn frames() -> Vec<Vec<u8>> {
        let frame = |length: u32, bytes: &[u8]| [&length.to_be_bytes()[..], bytes].concat();
        let long = vec![b'f'; 5000];
        let streams = [
            vec![],
            frame(0, b""),
            frame(3, b"one"),
            [frame(3, b"one"), frame(0, b""), frame(5, b"three")].concat(),
            frame(5000, &long),
            [frame(1, b"1"), frame(5000, &long), frame(2, b"22")].concat(),
            frame(4, b"cut"),
            frame(FRAME_BYTES_MAX as u32, b"promised and never sent"),
            frame(FRAME_BYTES_MAX as u32 + 1, b""),
            frame(u32::MAX, b"four gibibytes"),
        ];
        let arriving = |stream: &Vec<u8>| [0, 3, 255].map(|most| [&[most], &stream[..]].concat());
        streams.iter().flat_map(arriving).collect()
    }
}
