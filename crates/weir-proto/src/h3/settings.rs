//! H3Settings (RFC 9114 §7.2.4), which each side announces once.

use super::error::H3ErrorCode;
use super::frame::{self, kind};
use super::varint;

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
const QPACK_BLOCKED_STREAMS: u64 = 0x7;
const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;

/// The most settings in a frame, those without a meaning among them.
const MOST: usize = 64;

/// The settings of one side, as far as they matter to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct H3Settings {
    /// The most bytes of a field section that this side takes, by the count of §4.2.2; `None` if it does not say so.
    pub max_field_section_size: Option<u64>,
    /// Whether this side takes an extended CONNECT (RFC 9220).
    pub connect_protocol: bool,
}

impl H3Settings {
    /// Reads the payload of a SETTINGS frame.
    pub fn parse(mut payload: &[u8]) -> Result<H3Settings, H3ErrorCode> {
        let (mut settings, mut seen) = (H3Settings::default(), Vec::new());
        while !payload.is_empty() {
            let mut next = || varint::take(&mut payload).ok_or(H3ErrorCode::H3_FRAME_ERROR);
            let (id, value) = (next()?, next()?);
            if seen.contains(&id) {
                return Err(H3ErrorCode::H3_SETTINGS_ERROR);
            }
            if seen.len() == MOST {
                return Err(H3ErrorCode::H3_EXCESSIVE_LOAD);
            }
            seen.push(id);
            match (id, value) {
                (MAX_FIELD_SECTION_SIZE, size) => settings.max_field_section_size = Some(size),
                (ENABLE_CONNECT_PROTOCOL, 0 | 1) => settings.connect_protocol = value == 1,
                // RFC 8441 §3; and settings of HTTP/2 that HTTP/3 must not have (§7.2.4.1).
                (ENABLE_CONNECT_PROTOCOL, _) | (0x0 | 0x2..=0x5, _) => return Err(H3ErrorCode::H3_SETTINGS_ERROR),
                // A dynamic table is never used for what is sent, so the peer's limits do not matter.
                _ => {}
            }
        }
        Ok(settings)
    }

    /// Appends a SETTINGS frame. It announces no dynamic table (RFC 9204 §5), so that sections have no state and wait for nothing.
    pub fn write(self, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        let mut add = |id, value| {
            varint::write(&mut payload, id);
            varint::write(&mut payload, value);
        };
        add(QPACK_MAX_TABLE_CAPACITY, 0);
        add(QPACK_BLOCKED_STREAMS, 0);
        if let Some(size) = self.max_field_section_size {
            add(MAX_FIELD_SECTION_SIZE, size.min(varint::MAX));
        }
        if self.connect_protocol {
            add(ENABLE_CONNECT_PROTOCOL, 1);
        }
        frame::write_head(out, kind::SETTINGS, payload.len());
        out.extend_from_slice(&payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        for settings in
            [H3Settings::default(), H3Settings { max_field_section_size: Some(32_768), connect_protocol: true }]
        {
            let mut out = Vec::new();
            settings.write(&mut out);
            assert_eq!(usize::from(out[1]), out.len() - 2);
            assert_eq!(H3Settings::parse(&out[2..]), Ok(settings));
        }
    }

    #[test]
    fn settings_that_are_forbidden_repeated_or_cut_are_errors() {
        for (payload, error) in [
            (&[0x2, 0][..], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[0x5, 0], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[0x8, 2], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[0x1, 0, 0x1, 0], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[0x21, 0, 0x21, 7], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[0x6], H3ErrorCode::H3_FRAME_ERROR),
            (&[0x6, 0x80, 0], H3ErrorCode::H3_FRAME_ERROR),
        ] {
            assert_eq!(H3Settings::parse(payload), Err(error), "{payload:x?}");
        }
        let many: Vec<u8> = (0..=MOST as u16).flat_map(|id| [0x50 | (id >> 8) as u8, id as u8, 0]).collect();
        assert_eq!(H3Settings::parse(&many), Err(H3ErrorCode::H3_EXCESSIVE_LOAD));
    }
}
