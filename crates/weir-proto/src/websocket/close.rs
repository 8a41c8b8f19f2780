//! Why a WebSocket is closed (RFC 6455 §7.4).

use super::frame::MAX_CONTROL;

/// The number in a close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode(pub u16);

impl CloseCode {
    pub const NORMAL: CloseCode = CloseCode(1000);
    pub const GOING_AWAY: CloseCode = CloseCode(1001);
    pub const PROTOCOL_ERROR: CloseCode = CloseCode(1002);
    /// The receiver does not accept this type of message.
    pub const UNSUPPORTED: CloseCode = CloseCode(1003);
    /// Content that does not match the type of its message, such as a text that is not UTF-8.
    pub const INVALID_CONTENT: CloseCode = CloseCode(1007);
    pub const POLICY: CloseCode = CloseCode(1008);
    pub const TOO_BIG: CloseCode = CloseCode(1009);
    pub const INTERNAL: CloseCode = CloseCode(1011);
    /// From the registry of RFC 6455 §11.7.
    pub const TRY_AGAIN_LATER: CloseCode = CloseCode(1013);

    /// Whether the code is allowed in a close frame (RFC 6455 §7.4.1 and §7.4.2): 1004 to 1006 and 1015 never are, codes up to
    /// 2999 belong to the protocol (the registry has them up to 1014), and those from 3000 to libraries and applications.
    pub fn may_be_sent(self) -> bool {
        matches!(self.0, 1000..=1003 | 1007..=1014 | 3000..=4999)
    }

    /// The content of a close frame with this code. A reason too long for a control frame is truncated.
    pub fn content(self, reason: &str) -> Vec<u8> {
        let mut content = self.0.to_be_bytes().to_vec();
        let most = reason.floor_char_boundary(reason.len().min(MAX_CONTROL - content.len()));
        content.extend_from_slice(&reason.as_bytes()[..most]);
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_between_characters() {
        assert_eq!(CloseCode::POLICY.content("no"), b"\x03\xf0no");
        let long = "é".repeat(100);
        let content = CloseCode::POLICY.content(&long);
        assert_eq!(content.len(), 2 + 122, "123 bytes would end within a character");
        assert!(str::from_utf8(&content[2..]).is_ok());
    }
}
