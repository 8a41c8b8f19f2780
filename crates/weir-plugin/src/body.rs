//! Filters: transform or observe content as it passes, piece by piece.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use weir_proto::Trailers;

use crate::stop::Stop;

/// Transforms the content of one message.
pub trait Filter {
    /// Receives a piece, and appends to `out` what is forwarded in its place; a filter may keep bytes for later. An observer
    /// leaves this as it is.
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        self.observe(piece)?;
        out.extend_from_slice(piece);
        Ok(())
    }

    /// Receives a piece that is forwarded as it is. The gateway calls this in place of [`Filter::piece`] if all filters of a
    /// message are observers: the content is then not copied for them.
    fn observe(&mut self, piece: &[u8]) -> Result<(), Stop> {
        let _ = piece;
        Ok(())
    }

    /// No more content is available for now: appends what was kept, so that the receiver does not have to wait for it.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        let _ = out;
        Ok(())
    }

    /// When the filter has to be flushed even if no content has come, on the gateway's clock in ns; `u64::MAX` is never.
    fn flush_due_ns(&self) -> u64 {
        u64::MAX
    }

    /// All content has been received, and these trailers follow. The filter may change them, or move them into the content that
    /// [`Filter::end`], which is called next, appends.
    fn trailers(&mut self, trailers: &mut Trailers) {
        let _ = trailers;
    }

    /// The content has ended: appends what was kept, and whatever must end the output.
    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.flush(out)
    }

    /// The filter has ended the content: the message is complete with what it has appended, and further input is discarded.
    fn is_over(&self) -> bool {
        false
    }

    /// Why the filter has ended the content, if that is to be found in logs and metrics.
    fn early_end(&self) -> Option<EarlyEnd> {
        None
    }

    /// The filter changes nothing and sees all content by [`Filter::observe`], so a `Content-Length` in the head stays valid.
    fn is_observer(&self) -> bool {
        false
    }
}

/// Why a stream was ended that had begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyEnd {
    pub stop: Option<Stop>,
    /// The plugin that has ended it.
    pub plugin: Option<&'static str>,
}

/// The filters of a message, in the order in which content passes them. A filter that panics ends its own exchange, with
/// [`Stop::Internal`], and nothing else.
#[derive(Default)]
pub struct Filters(Vec<Box<dyn Filter>>);

impl Filters {
    pub fn add(&mut self, filter: Box<dyn Filter>) {
        self.0.push(filter);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All filters are observers: see [`Filter::is_observer`].
    pub fn only_observe(&self) -> bool {
        self.0.iter().all(|filter| filter.is_observer())
    }

    /// A filter has ended the content: see [`Filter::is_over`].
    pub fn are_over(&self) -> bool {
        self.0.iter().any(|filter| filter.is_over())
    }

    /// Why one of them has ended the content: see [`Filter::early_end`].
    pub fn early_end(&self) -> Option<EarlyEnd> {
        self.0.iter().find_map(|filter| filter.early_end())
    }

    /// Shows a piece to filters that are all observers.
    pub fn observe(&mut self, piece: &[u8]) -> Result<(), Stop> {
        let observe = || self.0.iter_mut().try_for_each(|filter| filter.observe(piece));
        catch_unwind(AssertUnwindSafe(observe)).unwrap_or(Err(Stop::Internal))
    }

    /// Passes a piece through all filters, and appends the result.
    pub fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        self.pass(piece, out, |_, _| Ok(()))
    }

    /// Flushes all filters: see [`Filter::flush`].
    pub fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        self.pass(b"", out, |filter, out| filter.flush(out))
    }

    /// When the first of them has to be flushed: see [`Filter::flush_due_ns`].
    pub fn flush_due_ns(&self) -> u64 {
        self.0.iter().map(|filter| filter.flush_due_ns()).min().unwrap_or(u64::MAX)
    }

    /// Passes the last piece and the trailers through all filters.
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
        then: impl FnMut(&mut dyn Filter, &mut Vec<u8>) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        // After an error no filter is called again, so one that was left half changed does no harm.
        catch_unwind(AssertUnwindSafe(|| self.pass_all(piece, out, then))).unwrap_or(Err(Stop::Internal))
    }

    fn pass_all(
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

    /// Logs its calls in the output, and keeps the last byte until it is flushed.
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
    fn f31_a_filter_that_panics_ends_its_exchange_and_nothing_else() {
        struct Panics;
        impl Filter for Panics {
            fn piece(&mut self, piece: &[u8], _: &mut Vec<u8>) -> Result<(), Stop> {
                if piece.is_empty() { Ok(()) } else { panic!("F31: piece") }
            }
            fn flush(&mut self, _: &mut Vec<u8>) -> Result<(), Stop> {
                panic!("F31: flush")
            }
        }
        let mut filters = Filters::default();
        filters.add(Box::new(Panics));
        let mut out = Vec::new();
        assert_eq!(filters.piece(b"1", &mut out), Err(Stop::Internal));
        assert_eq!(filters.flush(&mut out), Err(Stop::Internal));
        assert_eq!(filters.end(b"", &mut Trailers::default(), &mut out), Err(Stop::Internal));
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
