//! Filters: what content passes on its way, piece by piece.

use std::fmt;

use weir_proto::Trailers;

use crate::stop::Stop;

/// Changes content on its way. Made for one message.
pub trait Filter {
    /// Takes a piece, and appends what goes on in its place, or keeps it for later.
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop>;

    /// For now nothing more comes: appends what was kept, so that nobody waits for what has been said already.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        let _ = out;
        Ok(())
    }

    /// All of the content has come, and this would follow it: the filter may change it, or take it into the content that
    /// [`Filter::end`], which is called next, appends.
    fn trailers(&mut self, trailers: &mut Trailers) {
        let _ = trailers;
    }

    /// Nothing more comes at all: appends what was kept, and how it ends.
    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.flush(out)
    }

    /// It has ended the content: the message is complete with what it has appended, whatever else comes.
    fn is_over(&self) -> bool {
        false
    }

    /// It lets everything go on as it comes, so what a head says of the length stays true.
    fn is_observer(&self) -> bool {
        false
    }
}

/// The filters that content passes, in order.
#[derive(Default)]
pub struct Filters(Vec<Box<dyn Filter>>);

impl Filters {
    pub fn add(&mut self, filter: Box<dyn Filter>) {
        self.0.push(filter);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nobody among them changes anything.
    pub fn only_observe(&self) -> bool {
        self.0.iter().all(|filter| filter.is_observer())
    }

    /// One of them has ended the content.
    pub fn are_over(&self) -> bool {
        self.0.iter().any(|filter| filter.is_over())
    }

    /// Takes a piece through all of them; appends what comes out.
    pub fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        self.pass(piece, out, |_, _| Ok(()))
    }

    /// Lets go what they keep.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.pass(b"", out, |filter, out| filter.flush(out))
    }

    /// Takes the last piece through all of them, and what would follow it.
    pub fn end(&mut self, piece: &[u8], trailers: &mut Trailers, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.pass(piece, out, |filter, out| {
            filter.trailers(trailers);
            filter.end(out)
        })
    }

    fn pass(
        &mut self,
        piece: &[u8],
        out: &mut Vec<u8>,
        mut then: impl FnMut(&mut dyn Filter, &mut Vec<u8>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let Some((last, before)) = self.0.split_last_mut() else {
            out.extend_from_slice(piece);
            return Ok(());
        };
        let mut between: Option<Vec<u8>> = None;
        for filter in before {
            let mut made = Vec::new();
            filter.piece(between.as_deref().unwrap_or(piece), &mut made)?;
            then(&mut **filter, &mut made)?;
            between = Some(made);
        }
        last.piece(between.as_deref().unwrap_or(piece), out)?;
        then(&mut **last, out)
    }
}

impl fmt::Debug for Filters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Filters").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says what it was told, and keeps the last byte until it must let it go.
    struct Keeps(char, Vec<u8>);

    impl Filter for Keeps {
        fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
            self.1.extend_from_slice(piece);
            let kept = self.1.split_off(self.1.len().saturating_sub(1));
            out.append(&mut self.1);
            self.1 = kept;
            Ok(())
        }

        fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
            out.append(&mut self.1);
            Ok(())
        }

        fn trailers(&mut self, trailers: &mut Trailers) {
            for (_, value) in std::mem::take(trailers).fields() {
                self.1.extend_from_slice(value);
                let name = self.0.to_string();
                trailers.add(name.as_bytes(), name.as_bytes()).expect("a letter");
            }
        }

        fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
            self.flush(out)?;
            out.extend_from_slice(self.0.to_string().as_bytes());
            Ok(())
        }
    }

    #[test]
    fn filters_stand_in_a_row() {
        let mut filters = Filters::default();
        for name in ['a', 'b', 'c'] {
            filters.add(Box::new(Keeps(name, Vec::new())));
        }
        let mut out = Vec::new();
        filters.piece(b"12345", &mut out).expect("taken");
        assert_eq!(out, b"12");
        filters.flush(&mut out).expect("flushed");
        assert_eq!(out, b"12345");
        filters.end(b"6", &mut Trailers::default(), &mut out).expect("ended");
        assert_eq!(out, b"123456abc");
        let mut none = Vec::new();
        Filters::default().end(b"as it is", &mut Trailers::default(), &mut none).expect("passed");
        assert_eq!(none, b"as it is");
    }

    #[test]
    fn trailers_go_from_one_to_the_next() {
        let mut filters = Filters::default();
        filters.add(Box::new(Keeps('a', Vec::new())));
        filters.add(Box::new(Keeps('b', Vec::new())));
        let (mut trailers, mut out) = (Trailers::default(), Vec::new());
        trailers.add(b"sum", b"7").expect("valid");
        filters.end(b"1", &mut trailers, &mut out).expect("ended");
        assert_eq!(out, b"17aab");
        assert_eq!(trailers.fields().collect::<Vec<_>>(), [(&b"b"[..], &b"b"[..])]);
    }
}
