//! The control stream of a client (RFC 9114 §6.2.1).

use super::error::H3ErrorCode;
use super::frame::{FrameHeadReader, H3FrameHead, kind};
use super::settings::H3Settings;
use super::varint;
use crate::h2::Priority;

/// The longest payload of a frame that is read, in bytes; SETTINGS of today's clients have less than a hundred.
const MAX_PAYLOAD: u64 = 4096;
/// The most bytes of frames without a meaning, from the beginning of the connection.
const MAX_SKIPPED: u64 = 256 * 1024;

/// What a client says about the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    Settings(H3Settings),
    /// The client takes no more pushes, of which there are none.
    Goaway,
    /// The client takes pushes, of which there are none.
    MaxPushId,
    /// The priority of the request on a stream (RFC 9218 §7.2).
    Priority {
        stream: u64,
        priority: Priority,
    },
    /// A frame without a meaning began.
    Skipped,
}

/// Reads the stream after its type.
#[derive(Debug, Default)]
pub struct ControlReader {
    head: FrameHeadReader,
    frame: Option<H3FrameHead>,
    /// The payload of the frame so far, or the number of its bytes that were skipped.
    payload: Vec<u8>,
    skipped: u64,
    has_settings: bool,
    max_push_id: u64,
    goaway: Option<u64>,
}

impl ControlReader {
    /// Reads `rest` up to the next event; `None` once all has been read. An error ends the connection.
    pub fn next(&mut self, rest: &mut &[u8]) -> Result<Option<ControlEvent>, H3ErrorCode> {
        loop {
            let frame = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some(frame) = self.head.take(rest) else { return Ok(None) };
                    self.begin(frame)?;
                    self.frame = Some(frame);
                    if !is_read(frame.kind) {
                        return Ok(Some(ControlEvent::Skipped));
                    }
                    frame
                }
            };
            let event = match is_read(frame.kind) {
                true => {
                    let missing = frame.length as usize - self.payload.len();
                    let (part, others) = rest.split_at(missing.min(rest.len()));
                    self.payload.extend_from_slice(part);
                    *rest = others;
                    if part.len() < missing {
                        return Ok(None);
                    }
                    let payload = std::mem::take(&mut self.payload);
                    Some(self.frame_event(frame.kind, &payload)?)
                }
                false => {
                    let skipped = frame.length.min(rest.len() as u64);
                    *rest = &rest[skipped as usize..];
                    if skipped < frame.length {
                        self.frame = Some(H3FrameHead { length: frame.length - skipped, ..frame });
                        return Ok(None);
                    }
                    None
                }
            };
            self.frame = None;
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// Checks that a frame may stand here.
    fn begin(&mut self, frame: H3FrameHead) -> Result<(), H3ErrorCode> {
        match frame.kind {
            kind::SETTINGS if self.has_settings => return Err(H3ErrorCode::H3_FRAME_UNEXPECTED),
            kind::SETTINGS => self.has_settings = true,
            // §6.2.1: SETTINGS is the first frame.
            _ if !self.has_settings => return Err(H3ErrorCode::H3_MISSING_SETTINGS),
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE => return Err(H3ErrorCode::H3_FRAME_UNEXPECTED),
            _ if frame.is_of_http2() => return Err(H3ErrorCode::H3_FRAME_UNEXPECTED),
            _ => {}
        }
        if is_read(frame.kind) {
            return if frame.length > MAX_PAYLOAD { Err(H3ErrorCode::H3_EXCESSIVE_LOAD) } else { Ok(()) };
        }
        self.skipped = self.skipped.saturating_add(frame.length);
        if self.skipped > MAX_SKIPPED { Err(H3ErrorCode::H3_EXCESSIVE_LOAD) } else { Ok(()) }
    }

    fn frame_event(&mut self, kind: u64, payload: &[u8]) -> Result<ControlEvent, H3ErrorCode> {
        let mut rest = payload;
        if kind == kind::SETTINGS {
            return H3Settings::parse(payload).map(ControlEvent::Settings);
        }
        let id = varint::take(&mut rest).ok_or(H3ErrorCode::H3_FRAME_ERROR)?;
        let is_priority = matches!(kind, kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH);
        if !is_priority && !rest.is_empty() {
            return Err(H3ErrorCode::H3_FRAME_ERROR);
        }
        match kind {
            // §7.2.7: it never decreases.
            kind::MAX_PUSH_ID if id < self.max_push_id => Err(H3ErrorCode::H3_ID_ERROR),
            kind::MAX_PUSH_ID => {
                self.max_push_id = id;
                Ok(ControlEvent::MaxPushId)
            }
            // §5.2: of several, none allows more than the one before.
            kind::GOAWAY if self.goaway.is_some_and(|before| id > before) => Err(H3ErrorCode::H3_ID_ERROR),
            kind::GOAWAY => {
                self.goaway = Some(id);
                Ok(ControlEvent::Goaway)
            }
            // RFC 9218 §7.2: a stream that a client opens for a request.
            kind::PRIORITY_UPDATE if id % 4 == 0 => {
                Ok(ControlEvent::Priority { stream: id, priority: Priority::parse(rest) })
            }
            // There is no push that could be meant: §7.2.3, and RFC 9218 §7.2.
            _ => Err(H3ErrorCode::H3_ID_ERROR),
        }
    }
}

/// Whether frames of this type have a meaning here.
fn is_read(kind: u64) -> bool {
    matches!(
        kind,
        kind::SETTINGS
            | kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::CANCEL_PUSH
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: [u8; 2] = [4, 0];

    fn read(frames: &[&[u8]]) -> Result<Vec<ControlEvent>, H3ErrorCode> {
        let (mut reader, mut events) = (ControlReader::default(), Vec::new());
        let bytes = frames.concat();
        let mut rest = &bytes[..];
        while let Some(event) = reader.next(&mut rest)? {
            events.push(event);
        }
        Ok(events)
    }

    #[test]
    fn settings_come_first_and_once() {
        assert_eq!(read(&[&SETTINGS]), Ok(vec![ControlEvent::Settings(H3Settings::default())]));
        assert_eq!(read(&[&[0x21, 0], &SETTINGS]), Err(H3ErrorCode::H3_MISSING_SETTINGS));
        assert_eq!(read(&[&[7, 1, 0]]), Err(H3ErrorCode::H3_MISSING_SETTINGS));
        assert_eq!(read(&[&SETTINGS, &SETTINGS]), Err(H3ErrorCode::H3_FRAME_UNEXPECTED));
    }

    #[test]
    fn frames_of_requests_and_of_http2_are_unexpected() {
        for kind in [0, 1, 2, 5, 6, 8, 9] {
            assert_eq!(read(&[&SETTINGS, &[kind, 0]]), Err(H3ErrorCode::H3_FRAME_UNEXPECTED), "{kind}");
        }
    }

    #[test]
    fn identifiers_follow_their_rules() {
        assert!(read(&[&SETTINGS, &[0xd, 1, 5], &[0xd, 1, 5], &[7, 1, 8], &[7, 1, 8]]).is_ok());
        for (frames, error) in [
            (&[0xd, 1, 5, 0xd, 1, 4][..], H3ErrorCode::H3_ID_ERROR),
            (&[7, 1, 4, 7, 1, 5], H3ErrorCode::H3_ID_ERROR),
            (&[3, 1, 0], H3ErrorCode::H3_ID_ERROR),
            (&[7, 2, 0, 0], H3ErrorCode::H3_FRAME_ERROR),
            (&[7, 0], H3ErrorCode::H3_FRAME_ERROR),
            (&[0xd, 1, 0x40], H3ErrorCode::H3_FRAME_ERROR),
        ] {
            assert_eq!(read(&[&SETTINGS, frames]), Err(error), "{frames:x?}");
        }
    }

    #[test]
    fn priorities_are_of_requests() {
        let update = |id| [&[0x80, 0x0f, 0x07, 0x00, 6, id][..], b"u=1,i"].concat();
        let priority = Priority::parse(b"u=1,i");
        assert_eq!(
            read(&[&SETTINGS, &update(4)]).map(|mut all| all.pop()),
            Ok(Some(ControlEvent::Priority { stream: 4, priority }))
        );
        assert_eq!(read(&[&SETTINGS, &update(2)]), Err(H3ErrorCode::H3_ID_ERROR));
    }

    #[test]
    fn frames_without_meaning_are_skipped_up_to_a_bound() {
        let frame = [&[0x21, 0x7f, 0xff][..], &[0; 0x3fff]].concat();
        let most = MAX_SKIPPED as usize / 0x3fff;
        let mut frames = vec![&SETTINGS[..]];
        frames.extend(std::iter::repeat_n(&frame[..], most));
        assert_eq!(read(&frames).map(|events| events.len()), Ok(1 + most));
        frames.push(&frame);
        assert_eq!(read(&frames), Err(H3ErrorCode::H3_EXCESSIVE_LOAD));
        assert_eq!(read(&[&[4, 0x50, 1]]), Err(H3ErrorCode::H3_EXCESSIVE_LOAD), "a long frame with a meaning");
    }
}
