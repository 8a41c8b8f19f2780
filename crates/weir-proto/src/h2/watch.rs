//! What a peer does on a connection besides asking for something: looked at from beside, while a library reads the same
//! bytes. Found are heads that do not come to their end, and frames that make work and bring nobody anything; counted is
//! what heads have taken on the wire, as compression makes much of little.
//!
//! Such frames cost credit; content in either direction earns it, and so does time. Who has none left is up to no good:
//! streams opened and reset (CVE-2023-44487), pings and settings to be answered (CVE-2019-9512, -9515), empty frames
//! (-9518), windows opened byte by byte (-9511, -9517).

/// The credit of a new connection, and the most there can be.
const MOST: u32 = 10_000;
/// What a second is worth.
const PER_SECOND: u64 = 20;
/// What a DATA frame with something in it is worth, and how many bytes to the peer are worth one.
const PER_DATA: u32 = 4;
const BYTES_PER_CREDIT: usize = 8;

/// What a stream costs that was given up at once.
const LEFT: u32 = 50;

/// The least that a field section may take on the wire, however small its limit is (CVE-2024-27316): its compression
/// cannot make it larger than it is.
const SECTION: u32 = 64 * 1024;
/// Bytes of field sections that are received before the streams that they open are looked at.
const UNSEEN: u32 = 2 * 1024;

const FRAME_HEAD: usize = 9;
/// Frame types (RFC 9113 §6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// Sees the bytes of one connection, both ways.
#[derive(Debug)]
pub struct Watch {
    /// Bytes of the preface that are still to come.
    preface: u8,
    head: [u8; FRAME_HEAD],
    head_filled: u8,
    /// Bytes of the frame's payload that are still to come.
    payload: u32,
    /// A field section has begun and not ended: CONTINUATION frames follow.
    section_open: bool,
    /// What the last field section has taken on the wire until now, and the most that one may take.
    section: u32,
    most_section: u32,
    /// All of them together, and those whose streams nobody has looked at yet.
    sections: u64,
    unseen: u32,
    /// A stream was reset since somebody looked at streams.
    reset: bool,
    /// When the bytes of a head began to come that is not complete.
    head_since_ns: Option<u64>,
    credit: u32,
    earned_until_ns: u64,
    sent: usize,
}

impl Watch {
    /// A connection on which the preface has yet to come, and then heads of so many bytes at most.
    pub fn new(now_ns: u64, head_bytes: usize) -> Watch {
        Watch {
            preface: super::PREFACE.len() as u8,
            head: [0; FRAME_HEAD],
            head_filled: 0,
            payload: 0,
            section_open: false,
            section: 0,
            most_section: u32::try_from(head_bytes).unwrap_or(u32::MAX).saturating_mul(2).max(SECTION),
            sections: 0,
            unseen: 0,
            reset: false,
            head_since_ns: None,
            credit: MOST,
            earned_until_ns: now_ns,
            sent: 0,
        }
    }

    /// The peer has used up all its credit.
    pub fn is_exhausted(&self) -> bool {
        self.credit == 0
    }

    /// As many bytes as are worth receiving at once: the rest of a frame, and no more of others than there is credit for.
    pub fn room(&self) -> usize {
        self.payload as usize + self.credit as usize / 4 + FRAME_HEAD
    }

    /// Since when a request's head has been on its way without being complete.
    pub fn head_since_ns(&self) -> Option<u64> {
        self.head_since_ns
    }

    /// What the heads of all requests have taken on the wire, in bytes.
    pub fn sections(&self) -> u64 {
        self.sections
    }

    /// Enough was received to look at the streams that it opens before there are more: [`Watch::look`].
    pub fn has_enough(&self) -> bool {
        self.unseen > UNSEEN
    }

    /// Some stream was reset, maybe one that nobody has looked at.
    pub fn has_reset(&self) -> bool {
        self.reset
    }

    /// All streams that were opened have been looked at.
    pub fn look(&mut self) {
        self.unseen = 0;
        self.reset = false;
    }

    /// So many bytes went to the peer.
    pub fn sent(&mut self, count: usize) {
        self.sent += count;
        let earned = u32::try_from(self.sent / BYTES_PER_CREDIT).unwrap_or(MOST);
        self.sent %= BYTES_PER_CREDIT;
        self.earn(earned);
    }

    /// A stream was given up without a frame that says so.
    pub fn stream_left(&mut self) {
        self.credit = self.credit.saturating_sub(LEFT);
    }

    /// A stream has lasted a while, so that giving it up, if it was, is nothing to be paid for: calls whose upstream hangs
    /// end by their deadlines, all of them.
    pub fn stream_lasted(&mut self) {
        self.earn(LEFT);
    }

    /// These bytes came from the peer.
    pub fn received(&mut self, mut bytes: &[u8], now_ns: u64) {
        self.earn_time(now_ns);
        let preface = bytes.len().min(usize::from(self.preface));
        self.preface -= preface as u8;
        bytes = &bytes[preface..];
        while !bytes.is_empty() {
            let skipped = bytes.len().min(self.payload as usize);
            self.payload -= skipped as u32;
            bytes = &bytes[skipped..];
            let filled = usize::from(self.head_filled);
            let missing = (FRAME_HEAD - filled).min(bytes.len());
            self.head[filled..filled + missing].copy_from_slice(&bytes[..missing]);
            self.head_filled += missing as u8;
            bytes = &bytes[missing..];
            if usize::from(self.head_filled) == FRAME_HEAD {
                self.head_filled = 0;
                self.frame();
            }
        }
        let belongs_to_head = matches!(self.head[3], HEADERS | CONTINUATION) && self.payload > 0;
        let incomplete = self.section_open || self.head_filled > 0 || belongs_to_head;
        self.head_since_ns = incomplete.then(|| self.head_since_ns.unwrap_or(now_ns));
    }

    /// A frame's head is there.
    fn frame(&mut self) {
        let [a, b, c, kind, flags, ..] = self.head;
        self.payload = u32::from_be_bytes([0, a, b, c]);
        if matches!(kind, HEADERS | CONTINUATION) {
            self.section(kind, flags);
        }
        self.reset |= kind == RST_STREAM;
        let cost = match kind {
            DATA if self.payload > 0 => return self.earn(PER_DATA),
            DATA if flags & END_STREAM != 0 => 0,
            HEADERS => 0,
            RST_STREAM => LEFT,
            // Of answers to pings and settings there are never more than a thousand that wait for the peer to take them.
            DATA | SETTINGS | PING | GOAWAY | CONTINUATION => 10,
            _ => 2, // PRIORITY, WINDOW_UPDATE, and what nobody knows
        };
        self.credit = self.credit.saturating_sub(cost);
    }

    /// A part of a field section is to come.
    fn section(&mut self, kind: u8, flags: u8) {
        self.section_open = flags & END_HEADERS == 0;
        self.section = self.payload + if kind == HEADERS { 0 } else { self.section };
        self.sections += u64::from(self.payload);
        self.unseen = self.unseen.saturating_add(self.payload);
        if self.section > self.most_section {
            self.credit = 0;
        }
    }

    fn earn(&mut self, credit: u32) {
        if !self.is_exhausted() {
            self.credit = self.credit.saturating_add(credit).min(MOST);
        }
    }

    fn earn_time(&mut self, now_ns: u64) {
        const PER_CREDIT_NS: u64 = 1_000_000_000 / PER_SECOND;
        let earned = now_ns.saturating_sub(self.earned_until_ns) / PER_CREDIT_NS;
        self.earned_until_ns += earned * PER_CREDIT_NS;
        self.earn(u32::try_from(earned).unwrap_or(MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn begun() -> Watch {
        let mut watch = Watch::new(0, 1024);
        watch.received(super::super::PREFACE, 0);
        watch
    }

    /// How many repetitions it takes until the credit is used up.
    fn bearable(bytes: &[u8], answer: usize) -> usize {
        let mut watch = begun();
        (0..20_000)
            .find(|_| {
                watch.received(bytes, 0);
                watch.sent(answer);
                watch.is_exhausted()
            })
            .unwrap_or(usize::MAX)
    }

    #[test]
    fn what_only_makes_work_ends_soon() {
        let reset = [frame(HEADERS, END_STREAM | END_HEADERS, b"x"), frame(RST_STREAM, 0, &[0; 4])].concat();
        assert_eq!(bearable(&reset, 0), 199);
        let mut watch = begun();
        (0..200).for_each(|_| watch.stream_left());
        assert!(watch.is_exhausted());
        assert_eq!(bearable(&frame(PING, 0, &[0; 8]), 0), 999);
        assert!(bearable(&frame(PING, 0, &[0; 8]), 17) < 1_500);
        assert!(bearable(&frame(SETTINGS, 0, &[]), 9) < 2_000);
        assert!(bearable(&frame(DATA, 0, &[]), 0) < 2_000);
        assert!(bearable(&frame(8, 0, &[0, 0, 0, 1]), 10) <= 15_000, "a window opened byte by byte");
        assert!(bearable(&frame(2, 0, &[0; 5]), 0) <= 5_000, "priorities");
        assert!(bearable(&frame(99, 0, &[]), 0) <= 5_000, "unknown frames");
    }

    #[test]
    fn more_is_not_received_than_there_is_credit_for() {
        for bytes in [frame(SETTINGS, 0, &[]), frame(PING, 0, &[0; 8]), frame(RST_STREAM, 0, &[0; 4])] {
            let (mut watch, mut received) = (begun(), 0);
            while !watch.is_exhausted() {
                let room = watch.room();
                let piece: Vec<u8> = bytes.iter().copied().cycle().skip(received % bytes.len()).take(room).collect();
                watch.received(&piece, 0);
                received += room;
            }
            assert!(received / bytes.len() <= bearable(&bytes, 0) + 2, "{bytes:?}");
        }
        let mut watch = begun();
        watch.received(&frame(DATA, 0, &[0; 16_384])[..100], 0);
        assert!(watch.room() > 16_000, "content is received as it comes");
    }

    #[test]
    fn what_asks_for_something_may_go_on() {
        assert_eq!(bearable(&frame(HEADERS, END_STREAM | END_HEADERS, b"x"), 100), usize::MAX);
        let small_messages = [frame(DATA, 0, b"hello"), frame(8, 0, &[0, 0, 0, 5])].concat();
        assert_eq!(bearable(&small_messages, 0), usize::MAX, "windows are opened for each message");
        assert_eq!(bearable(&frame(8, 0, &[0, 0, 64, 0]), 16384), usize::MAX, "a large download");
        let pages = [frame(HEADERS, END_STREAM | END_HEADERS, b"x"), frame(RST_STREAM, 0, &[0; 4])].concat();
        assert_eq!(bearable(&pages, 500), usize::MAX, "somebody who leaves pages half loaded");
        let mut watch = begun();
        for _ in 0..20_000 {
            watch.received(&frame(HEADERS, END_STREAM | END_HEADERS, b"x"), 0);
            watch.received(&frame(RST_STREAM, 0, &[0; 4]), 0);
            watch.stream_lasted();
        }
        assert!(!watch.is_exhausted(), "calls that were given up late");
        let mut watch = begun();
        for second in 0..20_000u64 {
            watch.received(&frame(PING, 0, &[0; 8]), second * 1_000_000_000);
        }
        assert!(!watch.is_exhausted(), "one that pings to stay connected");
    }

    #[test]
    fn a_head_on_its_way_is_seen_however_it_is_cut() {
        let whole = [frame(HEADERS, 0, b"abc"), frame(CONTINUATION, END_HEADERS, b"def")].concat();
        let mut watch = begun();
        for (at, byte) in whole.iter().enumerate() {
            assert_eq!(watch.head_since_ns(), (at > 0).then_some(7), "at {at}");
            watch.received(&[*byte], 7 + at as u64);
        }
        assert_eq!(watch.head_since_ns(), None);
        watch.received(&frame(DATA, 0, &[0; 100])[..50], 100);
        assert_eq!(watch.head_since_ns(), None, "content has other deadlines");
    }

    #[test]
    fn a_section_has_a_size() {
        let large = frame(CONTINUATION, 0, &[0; 16_000]);
        let begun_with = |head_bytes| {
            let mut watch = Watch::new(0, head_bytes);
            watch.received(super::super::PREFACE, 0);
            watch.received(&frame(HEADERS, 0, &[0; 1_000]), 0);
            watch
        };
        for (head_bytes, most) in [(32 * 1024, 4), (64 * 1024, 8)] {
            let mut watch = begun_with(head_bytes);
            (0..most).for_each(|_| watch.received(&large, 0));
            assert!(!watch.is_exhausted());
            watch.received(&large[..FRAME_HEAD], 0);
            assert!(watch.is_exhausted(), "what is announced is not waited for");
        }
        let mut watch = begun_with(1);
        let whole = [large.repeat(3), frame(CONTINUATION, END_HEADERS, b"x")].concat();
        watch.received(&whole, 0);
        (0..10).for_each(|_| watch.received(&[frame(HEADERS, 0, b"x"), whole.clone()].concat(), 0));
        assert!(!watch.is_exhausted(), "each of them is small enough");
        assert_eq!(watch.sections(), 1_000 + 11 * 48_001 + 10);
    }

    #[test]
    fn what_nobody_has_looked_at_is_limited() {
        let mut watch = begun();
        let head = frame(HEADERS, END_STREAM | END_HEADERS, &[0; 1_000]);
        (0..2).for_each(|_| watch.received(&head, 0));
        assert!(!watch.has_enough() && !watch.has_reset());
        watch.received(&[head, frame(RST_STREAM, 0, &[0; 4])].concat(), 0);
        assert!(watch.has_enough() && watch.has_reset());
        watch.look();
        assert!(!watch.has_enough() && !watch.has_reset());
    }

    proptest::proptest! {
        #[test]
        fn pieces_are_as_good_as_the_whole(bytes in proptest::collection::vec(0u8..10, 0..200), cut in 1usize..20) {
            let (mut whole, mut pieces) = (begun(), begun());
            whole.received(&bytes, 1);
            bytes.chunks(cut).for_each(|piece| pieces.received(piece, 1));
            proptest::prop_assert_eq!(whole.credit, pieces.credit);
            proptest::prop_assert_eq!((whole.payload, whole.head_filled), (pieces.payload, pieces.head_filled));
        }
    }
}
