//! The settings of a peer (RFC 9113 §6.5).

use super::frame::{ErrorCode, MAX_STREAM_ID, MOST};

pub const HEADER_TABLE_SIZE: u16 = 0x1;
pub const ENABLE_PUSH: u16 = 0x2;
pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
pub const MAX_FRAME_SIZE: u16 = 0x5;
pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
/// RFC 8441 §3.
pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
/// RFC 9218 §2.1.
pub const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// The initial flow-control window of a stream and of the connection (RFC 9113 §6.9.2), in bytes.
pub const FIRST_WINDOW: u32 = 65_535;

/// The settings of a peer; the default is what holds before its first SETTINGS frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub concurrent_streams: u32,
    pub initial_window: u32,
    pub max_frame_size: u32,
    pub connect_protocol: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            concurrent_streams: u32::MAX,
            initial_window: FIRST_WINDOW,
            max_frame_size: MOST as u32,
            connect_protocol: false,
        }
    }
}

impl Settings {
    /// Applies the payload of a SETTINGS frame, received from a server if `from_server`. Each table size in it is reported, in
    /// order (RFC 7541 §4.2).
    pub fn update(
        &mut self,
        payload: &[u8],
        from_server: bool,
        mut resize_table: impl FnMut(u32),
    ) -> Result<(), ErrorCode> {
        let (settings, rest) = payload.as_chunks::<6>();
        if !rest.is_empty() {
            return Err(ErrorCode::FRAME_SIZE_ERROR);
        }
        for &[a, b, value @ ..] in settings {
            let value = u32::from_be_bytes(value);
            match u16::from_be_bytes([a, b]) {
                HEADER_TABLE_SIZE => resize_table(value),
                // §6.5.2: a server must not enable push.
                ENABLE_PUSH if value > u32::from(!from_server) => return Err(ErrorCode::PROTOCOL_ERROR),
                MAX_CONCURRENT_STREAMS => self.concurrent_streams = value,
                INITIAL_WINDOW_SIZE if value > MAX_STREAM_ID => return Err(ErrorCode::FLOW_CONTROL_ERROR),
                INITIAL_WINDOW_SIZE => self.initial_window = value,
                MAX_FRAME_SIZE if !(MOST as u32..1 << 24).contains(&value) => return Err(ErrorCode::PROTOCOL_ERROR),
                MAX_FRAME_SIZE => self.max_frame_size = value,
                ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(ErrorCode::PROTOCOL_ERROR),
                // RFC 8441 §3: it cannot be disabled again.
                ENABLE_CONNECT_PROTOCOL if value == 0 && self.connect_protocol => {
                    return Err(ErrorCode::PROTOCOL_ERROR);
                }
                ENABLE_CONNECT_PROTOCOL => self.connect_protocol = value == 1,
                NO_RFC7540_PRIORITIES if value > 1 => return Err(ErrorCode::PROTOCOL_ERROR),
                _ => {} // MAX_HEADER_LIST_SIZE is advisory; unknown settings are ignored
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(settings: &[(u16, u32)]) -> Vec<u8> {
        settings.iter().flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect()
    }

    #[test]
    fn settings_apply_the_last_value_and_ignore_unknown_ids() {
        let mut settings = Settings::default();
        let said = [(INITIAL_WINDOW_SIZE, 7), (99, 99), (MAX_FRAME_SIZE, 20_000), (INITIAL_WINDOW_SIZE, 9)];
        assert_eq!(settings.update(&payload(&said), false, |_| {}), Ok(()));
        assert_eq!((settings.initial_window, settings.max_frame_size), (9, 20_000));
        assert_eq!(settings.update(&payload(&[(ENABLE_CONNECT_PROTOCOL, 1)]), true, |_| {}), Ok(()));
        assert!(settings.connect_protocol);
    }

    #[test]
    fn values_have_bounds() {
        for (setting, value, from_server, error) in [
            (ENABLE_PUSH, 2, false, ErrorCode::PROTOCOL_ERROR),
            (ENABLE_PUSH, 1, true, ErrorCode::PROTOCOL_ERROR),
            (INITIAL_WINDOW_SIZE, 1 << 31, false, ErrorCode::FLOW_CONTROL_ERROR),
            (MAX_FRAME_SIZE, 16_383, false, ErrorCode::PROTOCOL_ERROR),
            (MAX_FRAME_SIZE, 1 << 24, false, ErrorCode::PROTOCOL_ERROR),
            (ENABLE_CONNECT_PROTOCOL, 2, true, ErrorCode::PROTOCOL_ERROR),
            (NO_RFC7540_PRIORITIES, 2, true, ErrorCode::PROTOCOL_ERROR),
        ] {
            assert_eq!(
                Settings::default().update(&payload(&[(setting, value)]), from_server, |_| {}),
                Err(error),
                "{setting}"
            );
        }
        assert_eq!(Settings::default().update(&payload(&[(ENABLE_PUSH, 1)]), false, |_| {}), Ok(()));
        assert_eq!(Settings::default().update(&[0; 7], false, |_| {}), Err(ErrorCode::FRAME_SIZE_ERROR));
    }
}
