//! Records the content of a message up to a limit, for use after the exchange.

use weir_plugin::proto::Framing;
use weir_plugin::{Filter, Kept, Stop};

/// A filter that records the content and does not change it.
pub(crate) struct BodyRecorder {
    kept: Kept,
    most: usize,
}

impl BodyRecorder {
    /// Records the first `most` bytes of content with this framing, and one more if there are more, to mark the content as cut.
    pub(crate) fn filter(kept: Kept, most: usize, framing: Framing) -> Box<dyn Filter> {
        if let Framing::Sized(length) = framing {
            kept.borrow_mut().expect(usize::try_from(length).unwrap_or(usize::MAX).min(most + 1));
        }
        Box::new(BodyRecorder { kept, most })
    }
}

impl Filter for BodyRecorder {
    fn observe(&mut self, piece: &[u8]) -> Result<(), Stop> {
        let mut kept = self.kept.borrow_mut();
        let room = (self.most + 1).saturating_sub(kept.len());
        kept.extend(&piece[..piece.len().min(room)]);
        Ok(())
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<(), Stop> {
        self.kept.borrow_mut().end();
        Ok(())
    }

    fn is_observer(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorder_passes_all_content_and_keeps_its_beginning() {
        let kept = Kept::default();
        let mut body_recorder = BodyRecorder::filter(kept.clone(), 4, Framing::Sized(8));
        let mut out = Vec::new();
        for piece in ["ab", "cdef", "gh"] {
            body_recorder.piece(piece.as_bytes(), &mut out).expect("it never refuses");
        }
        assert!(!kept.borrow().has_ended());
        body_recorder.end(&mut out).expect("it never refuses");
        assert!(kept.borrow().has_ended());
        assert_eq!((&*out, &**kept.borrow()), (&b"abcdefgh"[..], &b"abcde"[..]));
    }
}
