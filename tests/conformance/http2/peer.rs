//! An origin that speaks HTTP/2 frame by frame, right or wrong. It shares no code with the gateway.

use weir_testkit::OriginConnection;

use super::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, Frame, GOAWAY, HEADERS, NO_ERROR, PING, SETTINGS, WINDOW_UPDATE, frame, section,
};

/// One connection of an origin, frame by frame.
pub(super) struct Peer<'c> {
    pub connection: &'c mut OriginConnection,
    /// Bytes of content that may be sent on the connection, if all are sent after [`Peer::wait_for_window`].
    window: usize,
}

impl Peer<'_> {
    /// `None` if the gateway does not begin one.
    pub(super) fn begin(connection: &mut OriginConnection) -> Option<Peer<'_>> {
        Peer::begin_with(connection, b"")
    }

    /// The same with settings, as they go over the wire.
    pub(super) fn begin_with<'c>(connection: &'c mut OriginConnection, settings: &[u8]) -> Option<Peer<'c>> {
        let preface = connection.exact(24).ok()?;
        assert_eq!(preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let mut peer = Peer { connection, window: 65_535 };
        peer.send([frame(SETTINGS, 0, 0, settings), frame(SETTINGS, ACK, 0, b"")].concat());
        Some(peer)
    }

    /// A gateway that has gone is what the next read will tell.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        let _ = self.connection.send(bytes);
    }

    /// Waits for a request of which everything has come, and says its stream. `None` when the gateway has gone.
    pub(super) fn request(&mut self) -> Option<u32> {
        loop {
            let frame = self.receive()?;
            if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0 {
                return Some(frame.stream);
            }
        }
    }

    /// The next frame; a PING is answered first. `None` when the gateway has gone.
    pub(super) fn receive(&mut self) -> Option<Frame> {
        let head = self.connection.exact(9).ok()?;
        let length = u64::from(u32::from_be_bytes([0, head[0], head[1], head[2]]));
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let received = Frame { kind: head[3], flags: head[4], stream, payload: self.connection.exact(length).ok()? };
        if (received.kind, received.flags) == (PING, 0) {
            self.send(frame(PING, ACK, 0, &received.payload));
        }
        if (received.kind, received.stream) == (WINDOW_UPDATE, 0) {
            let increment: [u8; 4] = received.payload[..].try_into().expect("four bytes");
            self.window += u32::from_be_bytes(increment) as usize;
        }
        Some(received)
    }

    /// Waits for so many bytes of a request's content, and returns its stream. `None` when the gateway has gone.
    pub(super) fn content(&mut self, mut count: usize) -> Option<u32> {
        loop {
            let frame = self.receive()?;
            if frame.kind == DATA {
                count = count.checked_sub(frame.payload.len()).expect("the gateway keeps to the window");
                if count == 0 {
                    return Some(frame.stream);
                }
            }
        }
    }

    /// Waits until this many bytes of content may be sent on the connection, and counts them as sent; `false` when the gateway
    /// has gone.
    pub(super) fn wait_for_window(&mut self, count: usize) -> bool {
        while self.window < count {
            if self.receive().is_none() {
                return false;
            }
        }
        self.window -= count;
        true
    }

    pub(super) fn answer(&mut self, stream: u32, body: &str) {
        let head = frame(HEADERS, END_HEADERS, stream, section(&[(":status", "200")]));
        self.send([head, frame(DATA, END_STREAM, stream, body)].concat());
    }

    /// Says that nothing after `last` will be looked at.
    pub(super) fn leave(&mut self, last: u32) {
        self.send(frame(GOAWAY, 0, 0, [last.to_be_bytes(), NO_ERROR.to_be_bytes()].concat()));
    }

    pub(super) fn wait_gone(&mut self) {
        self.connection.wait_gone();
    }
}
