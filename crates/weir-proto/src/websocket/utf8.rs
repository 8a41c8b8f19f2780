//! Incremental validation of UTF-8.

/// Validates a text received in pieces; fails at the first byte that makes it invalid.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Utf8Follower {
    /// The bytes of an incomplete character.
    begun: [u8; 4],
    begun_len: usize,
}

/// The text is not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotUtf8;

impl Utf8Follower {
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), NotUtf8> {
        while self.begun_len > 0 {
            let Some((&byte, rest)) = bytes.split_first() else { return Ok(()) };
            bytes = rest;
            self.begun[self.begun_len] = byte;
            self.begun_len += 1;
            match str::from_utf8(&self.begun[..self.begun_len]) {
                Ok(_) => self.begun_len = 0,
                // At most four bytes: longer sequences are invalid.
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(NotUtf8),
            }
        }
        match str::from_utf8(bytes) {
            Ok(_) => Ok(()),
            Err(error) if error.error_len().is_none() => {
                let begun = &bytes[error.valid_up_to()..];
                self.begun[..begun.len()].copy_from_slice(begun);
                self.begun_len = begun.len();
                Ok(())
            }
            Err(_) => Err(NotUtf8),
        }
    }

    /// Fails if the text ends within a character.
    pub(super) fn end(&self) -> Result<(), NotUtf8> {
        if self.begun_len == 0 { Ok(()) } else { Err(NotUtf8) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn follows(pieces: &[&[u8]]) -> bool {
        let mut follower = Utf8Follower::default();
        pieces.iter().try_for_each(|piece| follower.push(piece)).and_then(|()| follower.end()).is_ok()
    }

    #[test]
    fn it_fails_as_soon_as_nothing_can_help() {
        // Beyond U+10FFFF, a surrogate, an overlong form, a lone continuation: all are detected before the last byte.
        for wrong in [&[0xf4, 0x90][..], &[0xed, 0xa0], &[0xe0, 0x80], &[0xc0], &[0x80], &[0xf5], &[0xff]] {
            assert_eq!(Utf8Follower::default().push(wrong), Err(NotUtf8), "{wrong:x?}");
        }
        for begun in [&[0xf4][..], &[0xf4, 0x8f], &[0xed, 0x9f], &[0xe0, 0xa0], &[0xc3]] {
            assert!(Utf8Follower::default().push(begun).is_ok() && !follows(&[begun]), "{begun:x?}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_standard_library(
            text in prop_oneof![prop::collection::vec(any::<u8>(), 0..20), ".{0,20}".prop_map(String::into_bytes)],
            cut in 0..20_usize,
        ) {
            let cut = cut.min(text.len());
            let want = str::from_utf8(&text).is_ok();
            prop_assert_eq!(follows(&[&text[..cut], &text[cut..]]), want);
            let single: Vec<&[u8]> = text.chunks(1).collect();
            prop_assert_eq!(follows(&single), want);
        }
    }
}
