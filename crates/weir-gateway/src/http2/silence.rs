//! Detects peers that have disappeared without closing the connection. While a message is expected of a silent peer, a PING
//! is sent (RFC 9113 §6.7); any frame counts as an answer.

use weir_net::timer::NEVER;

/// How long a peer has to answer a PING.
const ANSWER_NS: u64 = 20_000_000_000;
/// The least time between two PINGs without a message in between. gRPC servers close connections that send them more often
/// than every five minutes.
const BETWEEN_NS: u64 = 330_000_000_000;

/// What has been received since the last look, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReceivedFrames {
    #[default]
    Nothing,
    /// Frames that are not part of a message, such as the answer to a PING, or SETTINGS.
    Frames,
    /// Parts of messages.
    Messages,
}

/// What to do about the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SilenceVerdict {
    Alive,
    /// The peer has been silent for too long: a PING is to be sent.
    SendPing,
    /// The peer has not answered the PING: the connection is lost.
    Lost,
}

/// Tracks how long a peer has been silent.
#[derive(Debug)]
pub(crate) struct SilenceWatch {
    patience_ns: u64,
    since_ns: u64,
    asked_ns: Option<u64>,
    /// The earliest time for the next PING.
    next_ns: u64,
    is_expected: bool,
}

impl SilenceWatch {
    /// Sends a PING after a silence of `patience_ns`.
    pub(crate) fn new(patience_ns: u64, now_ns: u64) -> SilenceWatch {
        SilenceWatch { patience_ns, since_ns: now_ns, asked_ns: None, next_ns: 0, is_expected: false }
    }

    /// Called with what has been received since the last call; `is_expected`: a message of the peer is expected.
    pub(crate) fn look(&mut self, now_ns: u64, heard: ReceivedFrames, is_expected: bool) -> SilenceVerdict {
        if heard == ReceivedFrames::Messages {
            self.next_ns = 0;
        }
        if heard != ReceivedFrames::Nothing || !is_expected || !self.is_expected {
            (self.since_ns, self.asked_ns) = (now_ns, None);
        }
        self.is_expected = is_expected;
        if now_ns < self.deadline_ns() {
            return SilenceVerdict::Alive;
        }
        if self.asked_ns.is_some() {
            return SilenceVerdict::Lost;
        }
        (self.asked_ns, self.next_ns) = (Some(now_ns), now_ns + BETWEEN_NS);
        SilenceVerdict::SendPing
    }

    /// The time of the next call at the latest.
    pub(crate) fn deadline_ns(&self) -> u64 {
        match self.asked_ns {
            _ if !self.is_expected => NEVER,
            Some(asked_ns) => asked_ns + ANSWER_NS,
            None => (self.since_ns + self.patience_ns).max(self.next_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_peer_that_does_not_answer_is_gone() {
        let mut silence = SilenceWatch::new(15 * S, 0);
        assert_eq!(
            silence.look(100 * S, ReceivedFrames::Nothing, true),
            SilenceVerdict::Alive,
            "it is expected from now on"
        );
        assert_eq!(silence.deadline_ns(), 115 * S);
        assert_eq!(silence.look(115 * S, ReceivedFrames::Nothing, true), SilenceVerdict::SendPing);
        assert_eq!(silence.deadline_ns(), 135 * S);
        assert_eq!(silence.look(134 * S, ReceivedFrames::Nothing, true), SilenceVerdict::Alive);
        assert_eq!(silence.look(135 * S, ReceivedFrames::Nothing, true), SilenceVerdict::Lost);
    }

    #[test]
    fn one_that_answers_is_not_asked_again_soon() {
        let mut silence = SilenceWatch::new(15 * S, 0);
        silence.look(0, ReceivedFrames::Nothing, true);
        assert_eq!(silence.look(15 * S, ReceivedFrames::Nothing, true), SilenceVerdict::SendPing);
        assert_eq!(silence.look(16 * S, ReceivedFrames::Frames, true), SilenceVerdict::Alive);
        assert_eq!(silence.deadline_ns(), 345 * S);
        assert_eq!(silence.look(20 * S, ReceivedFrames::Messages, true), SilenceVerdict::Alive);
        assert_eq!(silence.deadline_ns(), 35 * S, "but after a message it may be");
    }

    #[test]
    fn silence_watch_sends_no_ping_to_a_peer_that_owes_nothing() {
        let mut silence = SilenceWatch::new(15 * S, 0);
        silence.look(0, ReceivedFrames::Nothing, true);
        assert_eq!(silence.look(15 * S, ReceivedFrames::Nothing, true), SilenceVerdict::SendPing);
        assert_eq!(silence.look(16 * S, ReceivedFrames::Nothing, false), SilenceVerdict::Alive);
        assert_eq!(
            (silence.deadline_ns(), silence.look(1_000 * S, ReceivedFrames::Nothing, false)),
            (NEVER, SilenceVerdict::Alive)
        );
    }
}
