//! Flow control (RFC 9113 §5.2, §6.9): how much content may be on its way, for a stream and for all of them.

use super::frame::MOST_STREAM;

/// As much as we may send. Settings that make it smaller can bring it below nothing (§6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindow(i64);

/// A window was opened by nothing, or beyond 2^31-1 (§6.9, §6.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadUpdate;

impl SendWindow {
    pub fn new(bytes: u32) -> SendWindow {
        SendWindow(i64::from(bytes))
    }

    /// As many bytes as may be sent now.
    pub fn room(self) -> usize {
        self.0.max(0) as usize
    }

    pub fn sent(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// The peer takes more.
    pub fn open(&mut self, bytes: i64) -> Result<(), BadUpdate> {
        self.0 += bytes;
        if self.0 > i64::from(MOST_STREAM) { Err(BadUpdate) } else { Ok(()) }
    }
}

/// As much as the peer may send, and what was taken of that without telling it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveWindow {
    /// What it may still send.
    open: u32,
    /// What was received and taken, which it may send again once it is told.
    taken: u32,
    /// What it may have on its way and waiting here altogether.
    whole: u32,
}

/// The peer has sent more than it may (§6.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

impl ReceiveWindow {
    pub fn new(bytes: u32) -> ReceiveWindow {
        ReceiveWindow { open: bytes, taken: 0, whole: bytes }
    }

    /// Makes it as large as `whole`; by how much the peer has to be told that it has grown.
    pub fn grow(&mut self, whole: u32) -> u32 {
        let more = whole.saturating_sub(self.whole);
        self.whole += more;
        self.open += more;
        more
    }

    pub fn receive(&mut self, bytes: u32) -> Result<(), Overrun> {
        self.open = self.open.checked_sub(bytes).ok_or(Overrun)?;
        Ok(())
    }

    /// Content was taken on. By how much the peer should be told that its window opens: nothing until it is worth a frame.
    pub fn take(&mut self, bytes: u32) -> Option<u32> {
        self.taken += bytes;
        if self.taken < self.whole / 2 {
            return None;
        }
        self.open += self.taken;
        Some(std::mem::take(&mut self.taken))
    }

    /// What was received and not taken yet.
    pub fn held(&self) -> u32 {
        self.whole - self.open - self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_to_send_has_a_bound_and_may_be_less_than_nothing() {
        let mut window = SendWindow::new(10);
        window.sent(10);
        assert_eq!(window.open(-5), Ok(()));
        assert_eq!(window.room(), 0);
        assert_eq!(window.open(8), Ok(()));
        assert_eq!(window.room(), 3);
        assert_eq!(window.open(i64::from(MOST_STREAM)), Err(BadUpdate));
    }

    #[test]
    fn a_window_to_receive_opens_as_content_is_taken() {
        let mut window = ReceiveWindow::new(100);
        assert_eq!(window.receive(90), Ok(()));
        assert_eq!((window.receive(11), window.held()), (Err(Overrun), 90));
        assert_eq!((window.take(49), window.take(1)), (None, Some(50)));
        assert_eq!((window.held(), window.receive(60), window.receive(1)), (40, Ok(()), Err(Overrun)));
        assert_eq!(window.grow(1_000), 900);
        assert_eq!((window.grow(10), window.receive(900)), (0, Ok(())));
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_lost(steps in proptest::collection::vec((0u32..2000, 0u32..2000), 0..100)) {
            let (mut window, mut allowed, mut held) = (ReceiveWindow::new(1000), 1000, 0);
            for (sent, taken) in steps {
                let sent = sent.min(allowed);
                proptest::prop_assert_eq!(window.receive(sent), Ok(()));
                (allowed, held) = (allowed - sent, held + sent);
                let taken = taken.min(held);
                held -= taken;
                allowed += window.take(taken).unwrap_or(0);
                proptest::prop_assert_eq!(window.held(), held);
                proptest::prop_assert!(allowed + held <= 1000 && allowed + held >= 500);
            }
        }
    }
}
