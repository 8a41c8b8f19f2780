//! Protects against floods of frames. Frames that cause work and carry no content cost the peer credit; content in either
//! direction and time earn it. A peer without credit is considered hostile: streams opened and reset (CVE-2023-44487), or made
//! to be reset (CVE-2025-8671), pings and settings to be answered (CVE-2019-9512, -9515), empty frames (-9518), windows opened
//! byte by byte (-9511, -9517).

use super::frame::{END_STREAM, FrameHead, kind};

/// The credit of a new connection, and the maximum.
const MOST: u32 = 10_000;
/// Credit earned per second.
const PER_SECOND: u64 = 20;
/// Credit earned by a DATA frame with content, and bytes sent to the peer that earn one credit.
const PER_DATA: u32 = 4;
const BYTES_PER_CREDIT: usize = 8;
/// The cost of a stream that is abandoned at once.
const ABANDONED_STREAM_COST: u32 = 50;

/// The cost of a frame of HTTP/3 without content.
const EMPTY_FRAME_COST: u32 = 10;

/// The credit of one peer.
#[derive(Debug)]
pub struct Credit {
    left: u32,
    earned_until_ns: u64,
    sent: usize,
}

impl Credit {
    pub fn new(now_ns: u64) -> Credit {
        Credit { left: MOST, earned_until_ns: now_ns, sent: 0 }
    }

    /// The peer has no credit left; none can be earned any more.
    pub fn is_exhausted(&self) -> bool {
        self.left == 0
    }

    /// Credits `count` bytes sent to the peer.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        let earned = u32::try_from(self.sent / BYTES_PER_CREDIT).unwrap_or(MOST);
        self.sent %= BYTES_PER_CREDIT;
        self.earn(earned);
    }

    /// Charges for a stream that was abandoned without RST_STREAM, or that had to be reset for an error on it.
    pub fn stream_left(&mut self) {
        self.left = self.left.saturating_sub(ABANDONED_STREAM_COST);
    }

    /// Refunds the charge of a stream that lasted a while: calls to an upstream that hangs are all cancelled by their deadlines,
    /// which is no abuse.
    pub fn stream_lasted(&mut self) {
        self.earn(ABANDONED_STREAM_COST);
    }

    /// Charges or credits a frame received.
    pub fn frame(&mut self, head: FrameHead) {
        let cost = match head.kind {
            kind::DATA if head.length > 0 => return self.earn(PER_DATA),
            kind::DATA if head.has(END_STREAM) => 0,
            kind::HEADERS => 0,
            kind::RST_STREAM => ABANDONED_STREAM_COST,
            // At this cost fewer than a thousand answers to PING and SETTINGS can wait for a peer that does not read them.
            kind::DATA | kind::SETTINGS | kind::PING | kind::GOAWAY | kind::CONTINUATION => 10,
            _ => 2, // PRIORITY, WINDOW_UPDATE, and unknown types
        };
        self.left = self.left.saturating_sub(cost);
    }

    /// Charges for a DATA frame on a closed stream, which is answered with RST_STREAM.
    pub fn answered(&mut self) {
        self.left = self.left.saturating_sub(PER_DATA + 10);
    }

    /// Charges for a DATA frame that [`Credit::frame`] credited as content, but that held only padding.
    pub fn only_padding(&mut self) {
        self.left = self.left.saturating_sub(PER_DATA + 10);
    }

    /// Credits content received over HTTP/3.
    pub fn received(&mut self) {
        self.earn(PER_DATA);
    }

    /// Charges for a frame of HTTP/3 that causes work and carries no content.
    pub fn empty_frame(&mut self) {
        self.left = self.left.saturating_sub(EMPTY_FRAME_COST);
    }

    /// Credits the time that has passed.
    pub fn earn_time(&mut self, now_ns: u64) {
        const PER_CREDIT_NS: u64 = 1_000_000_000 / PER_SECOND;
        let passed_ns = now_ns.saturating_sub(self.earned_until_ns);
        if passed_ns >= PER_CREDIT_NS {
            let earned = passed_ns / PER_CREDIT_NS;
            self.earned_until_ns += earned * PER_CREDIT_NS;
            self.earn(u32::try_from(earned).unwrap_or(MOST));
        }
    }

    fn earn(&mut self, credit: u32) {
        if !self.is_exhausted() {
            self.left = self.left.saturating_add(credit).min(MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::frame::END_HEADERS;

    fn head(kind: u8, flags: u8, length: u32) -> FrameHead {
        FrameHead { length, kind, flags, stream: 1 }
    }

    const ASK: FrameHead = FrameHead { length: 1, kind: kind::HEADERS, flags: END_STREAM | END_HEADERS, stream: 1 };
    const RESET: FrameHead = FrameHead { length: 4, kind: kind::RST_STREAM, flags: 0, stream: 1 };

    /// The number of repetitions of `frames` after which the credit is used up.
    fn bearable(frames: &[FrameHead], answer: usize) -> usize {
        let mut credit = Credit::new(0);
        (0..20_000)
            .find(|_| {
                frames.iter().for_each(|&frame| credit.frame(frame));
                credit.sent(answer);
                credit.is_exhausted()
            })
            .unwrap_or(usize::MAX)
    }

    #[test]
    fn credit_runs_out_for_frames_that_only_cause_work() {
        assert_eq!(bearable(&[ASK, RESET], 0), 199);
        let mut credit = Credit::new(0);
        (0..200).for_each(|_| credit.stream_left());
        assert!(credit.is_exhausted());
        assert_eq!(bearable(&[head(kind::PING, 0, 8)], 0), 999);
        assert!(bearable(&[head(kind::PING, 0, 8)], 17) < 1_500);
        assert!(bearable(&[head(kind::SETTINGS, 0, 0)], 9) < 2_000);
        assert!(bearable(&[head(kind::DATA, 0, 0)], 0) < 2_000);
        assert!(bearable(&[head(kind::WINDOW_UPDATE, 0, 4)], 10) <= 15_000, "a window opened byte by byte");
        assert!(bearable(&[head(kind::PRIORITY, 0, 5)], 0) <= 5_000, "priorities");
        assert!(bearable(&[head(99, 0, 0)], 0) <= 5_000, "unknown frames");
        let mut credit = Credit::new(0);
        let padded = head(kind::DATA, 0, 4);
        assert!((0..2_000).any(|_| {
            credit.frame(padded);
            credit.only_padding();
            credit.is_exhausted()
        }));
    }

    #[test]
    fn credit_lasts_for_peers_that_request_something() {
        assert_eq!(bearable(&[ASK], 100), usize::MAX);
        let small_messages = [head(kind::DATA, 0, 5), head(kind::WINDOW_UPDATE, 0, 4)];
        assert_eq!(bearable(&small_messages, 0), usize::MAX, "windows are opened for each message");
        assert_eq!(bearable(&[head(kind::WINDOW_UPDATE, 0, 4)], 16_384), usize::MAX, "a large download");
        assert_eq!(bearable(&[ASK, RESET], 500), usize::MAX, "somebody who leaves pages half loaded");
        let mut credit = Credit::new(0);
        for _ in 0..20_000 {
            credit.frame(ASK);
            credit.frame(RESET);
            credit.stream_lasted();
        }
        assert!(!credit.is_exhausted(), "calls that were given up late");
        let mut credit = Credit::new(0);
        for second in 0..20_000u64 {
            credit.earn_time(second * 1_000_000_000);
            credit.frame(head(kind::PING, 0, 8));
        }
        assert!(!credit.is_exhausted(), "one that pings to stay connected");
    }
}
