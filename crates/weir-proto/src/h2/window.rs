//! Flow control (RFC 9113 §5.2, §6.9): limits of content in flight, for a stream and for the connection.

use super::frame::MAX_STREAM_ID;

/// Bytes that may be sent. A reduced SETTINGS_INITIAL_WINDOW_SIZE can make this negative (§6.9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWindow(i64);

/// An update would open a window beyond 2^31-1 (§6.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOverflow;

impl SendWindow {
    pub fn new(bytes: u32) -> SendWindow {
        SendWindow(i64::from(bytes))
    }

    /// Bytes that may be sent now.
    pub fn room(self) -> usize {
        self.0.max(0) as usize
    }

    pub fn sent(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// Changes the window by `bytes`, which is negative if a setting reduced it.
    pub fn open(&mut self, bytes: i64) -> Result<(), WindowOverflow> {
        self.0 += bytes;
        if self.0 > i64::from(MAX_STREAM_ID) { Err(WindowOverflow) } else { Ok(()) }
    }
}

/// The peer's window: bytes it may send, and bytes consumed here that it has not been told of yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveWindow {
    /// Bytes the peer may still send.
    open: u32,
    /// Bytes received and consumed, not yet returned to the peer with WINDOW_UPDATE.
    taken: u32,
    /// The size of the window: bytes in flight or held here at most.
    whole: u32,
}

/// The peer has sent more than its window allows (§6.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowExceeded;

impl ReceiveWindow {
    pub fn new(bytes: u32) -> ReceiveWindow {
        ReceiveWindow { open: bytes, taken: 0, whole: bytes }
    }

    /// Enlarges the window to `whole`. Returns the increment to send in a WINDOW_UPDATE; a window is never made smaller.
    pub fn grow(&mut self, whole: u32) -> u32 {
        let more = whole.saturating_sub(self.whole);
        self.whole += more;
        self.open += more;
        more
    }

    pub fn receive(&mut self, bytes: u32) -> Result<(), WindowExceeded> {
        self.open = self.open.checked_sub(bytes).ok_or(WindowExceeded)?;
        Ok(())
    }

    /// Consumes received content. Returns the increment for a WINDOW_UPDATE, as [`ReceiveWindow::due`] does.
    pub fn take(&mut self, bytes: u32) -> Option<u32> {
        self.taken += bytes;
        self.due()
    }

    /// The increment for a WINDOW_UPDATE, once what was consumed is at least as much as what is open; `None` before. Where nothing is
    /// held, that is half of the window. Half of the whole window might never come together: streams that do not move can hold
    /// the rest of it.
    #[inline]
    pub fn due(&mut self) -> Option<u32> {
        if self.taken < self.open.max(1) {
            return None;
        }
        self.open += self.taken;
        Some(std::mem::take(&mut self.taken))
    }

    /// Bytes received and not consumed yet.
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
        assert_eq!(window.open(i64::from(MAX_STREAM_ID)), Err(WindowOverflow));
    }

    #[test]
    fn a_window_to_receive_opens_as_content_is_taken() {
        let mut window = ReceiveWindow::new(100);
        assert_eq!(window.receive(90), Ok(()));
        assert_eq!((window.receive(11), window.held()), (Err(WindowExceeded), 90));
        assert_eq!((window.take(9), window.take(1)), (None, Some(10)), "10 are open");
        assert_eq!((window.take(19), window.take(31)), (None, Some(50)), "20 are open");
        assert_eq!((window.held(), window.receive(70), window.receive(1)), (30, Ok(()), Err(WindowExceeded)));
        assert_eq!(window.grow(1_000), 900);
        assert_eq!((window.grow(10), window.receive(900)), (0, Ok(())));
    }

    #[test]
    fn a_window_that_is_held_for_the_most_part_opens_all_the_same() {
        let mut window = ReceiveWindow::new(1000);
        assert_eq!(window.receive(700), Ok(()), "of streams that do not move");
        for _ in 0..1000 {
            assert_eq!(window.receive(40), Ok(()), "of another one");
            let _ = window.take(40);
        }
        let mut window = ReceiveWindow::new(1000);
        assert_eq!((window.receive(400), window.take(400)), (Ok(()), None));
        assert_eq!((window.receive(599), window.due()), (Ok(()), Some(400)), "all that came last is held");
    }

    proptest::proptest! {
        #[test]
        fn window_loses_no_credit(steps in proptest::collection::vec((0u32..2000, 0u32..2000), 0..100)) {
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
