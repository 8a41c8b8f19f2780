//! Counts the frames that a server sends over HTTP/2 (RFC 9113 §4.1), without reading what is in them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::conduct::{MAX_CONTROL_FRAMES, MAX_INTERIM_RESPONSES, ServerExcess};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 1;
/// Interim responses, the response, and its trailers.
const MAX_HEADS: usize = MAX_INTERIM_RESPONSES + 2;
/// Limit of the streams whose heads are counted. The counts of more are forgotten.
const MAX_STREAMS: usize = 1024;
/// A control frame is allowed for this many bytes sent: what is sent is acknowledged and makes room in windows.
const SENT_PER_FRAME: usize = 32;
/// A control frame is allowed for each such time: servers check connections with PING.
const PAUSE_PER_FRAME: Duration = Duration::from_millis(10);

/// Counts the heads of each stream and all control frames. The number of control frames that are allowed grows with what is sent
/// and with time, to [`MAX_CONTROL_FRAMES`].
#[derive(Debug)]
pub(crate) struct FrameCounter {
    header: [u8; 9],
    /// Bytes of `header` that have been read.
    known: usize,
    /// Bytes of the frame's payload that have not been read.
    payload: usize,
    heads: HashMap<u32, usize>,
    allowed: u32,
    /// Bytes sent since that for which a frame was last allowed: several small writes count like a large one.
    sent: usize,
    /// The time up to which `allowed` has grown.
    grown: Instant,
}

impl FrameCounter {
    pub(crate) fn new() -> FrameCounter {
        FrameCounter {
            header: [0; 9],
            known: 0,
            payload: 0,
            heads: HashMap::new(),
            allowed: MAX_CONTROL_FRAMES,
            sent: 0,
            grown: Instant::now(),
        }
    }

    /// Counts bytes that were sent to the server.
    pub(crate) fn sent(&mut self, bytes: usize) {
        let sent = self.sent.saturating_add(bytes);
        self.sent = sent % SENT_PER_FRAME;
        self.allow(u32::try_from(sent / SENT_PER_FRAME).unwrap_or(u32::MAX));
    }

    /// Counts the frames in bytes of the server.
    ///
    /// # Errors
    /// They are too many.
    pub(crate) fn received(&mut self, mut bytes: &[u8]) -> Result<(), ServerExcess> {
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let missing = (self.header.len() - self.known).min(bytes.len());
            self.header[self.known..self.known + missing].copy_from_slice(&bytes[..missing]);
            self.known += missing;
            bytes = &bytes[missing..];
            if self.known == self.header.len() {
                self.known = 0;
                self.count()?;
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), ServerExcess> {
        let [a, b, c, kind, flags, stream @ ..] = self.header;
        self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
        let stream = u32::from_be_bytes(stream) & !(1 << 31);
        let ends = matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 || kind == RST_STREAM;
        if kind == HEADERS {
            if self.heads.len() >= MAX_STREAMS {
                self.heads.clear();
            }
            let heads = self.heads.entry(stream).or_default();
            *heads += 1;
            if *heads > MAX_HEADS {
                return Err(ServerExcess::InterimResponses);
            }
        }
        if ends {
            self.heads.remove(&stream);
        }
        if matches!(kind, DATA | HEADERS) { Ok(()) } else { self.count_control_frame() }
    }

    fn count_control_frame(&mut self) -> Result<(), ServerExcess> {
        if self.allowed == 0 {
            let pauses = self.grown.elapsed().as_millis() / PAUSE_PER_FRAME.as_millis();
            let pauses = u32::try_from(pauses).unwrap_or(u32::MAX);
            // Without the part of a pause that has begun, which counts later.
            self.grown += PAUSE_PER_FRAME.saturating_mul(pauses);
            self.allow(pauses);
        }
        self.allowed = self.allowed.checked_sub(1).ok_or(ServerExcess::ControlFrames)?;
        Ok(())
    }

    fn allow(&mut self, frames: u32) {
        self.allowed = self.allowed.saturating_add(frames).min(MAX_CONTROL_FRAMES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: u8 = 6;
    const END_HEADERS: u8 = 4;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn heads_are_counted_for_each_stream() {
        let head = |stream| frame(HEADERS, END_HEADERS, stream, b"a head");
        let mut counter = FrameCounter::new();
        for _ in 0..MAX_HEADS {
            assert_eq!((counter.received(&head(1)), counter.received(&head(3))), (Ok(()), Ok(())));
        }
        assert_eq!(counter.received(&head(1)), Err(ServerExcess::InterimResponses));
        let mut counter = FrameCounter::new();
        for stream in 0..100 {
            let trailers = frame(HEADERS, END_HEADERS | END_STREAM, stream, b"trailers");
            counter.received(&[head(stream), trailers].concat()).expect("a response and its trailers");
        }
        assert!(counter.heads.is_empty());
    }

    #[test]
    fn frames_may_come_in_any_pieces() {
        let frames = [frame(DATA, 0, 1, &[HEADERS; 200]), frame(HEADERS, END_HEADERS, 1, b"x")].concat();
        for size in [1, 2, 7, 9, 10, 300] {
            let mut counter = FrameCounter::new();
            for piece in frames.repeat(2).chunks(size) {
                counter.received(piece).expect("few frames");
            }
            assert_eq!((counter.heads.get(&1), counter.allowed), (Some(&2), MAX_CONTROL_FRAMES), "pieces of {size}");
        }
    }

    #[test]
    fn small_writes_count_like_large_ones() {
        let ping = frame(PING, 0, 0, &[0; 8]);
        let mut counter = FrameCounter::new();
        for _ in 0..10 * MAX_CONTROL_FRAMES {
            // A frame of an acknowledgement in two writes, neither of which is large enough for a frame alone.
            counter.sent(SENT_PER_FRAME - 9);
            counter.sent(9);
            counter.received(&ping).expect("one for each that is sent");
        }
        counter.sent(usize::MAX);
        counter.sent(SENT_PER_FRAME);
        assert_eq!(counter.allowed, MAX_CONTROL_FRAMES);
    }

    #[test]
    fn control_frames_are_allowed_for_what_is_sent() {
        let ping = frame(PING, 0, 0, &[0; 8]);
        let mut counter = FrameCounter::new();
        for _ in 0..10 * MAX_CONTROL_FRAMES {
            counter.sent(SENT_PER_FRAME);
            counter.received(&ping).expect("one for each that is sent");
        }
        // Time allows some more, however slow the machine: none within one piece of a few milliseconds.
        let flood = ping.repeat(100 * MAX_CONTROL_FRAMES as usize);
        assert_eq!(counter.received(&flood), Err(ServerExcess::ControlFrames));
    }
}
