//! The exchange that an instance works on during a call.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use weir_plugin::Exchange;

/// The exchange that has been lent to an instance; otherwise an empty one.
///
/// An instance outlives every exchange, and wasmtime demands that its state refers to nothing that may go away. To move an exchange there
/// and back, which safe code can do, took a tenth of what a plugin cost.
#[derive(Debug)]
pub(crate) struct LentExchange {
    lent: Option<NonNull<Exchange>>,
    none: Box<Exchange>,
}

impl LentExchange {
    pub(crate) fn none() -> LentExchange {
        LentExchange { lent: None, none: Box::default() }
    }
}

impl Deref for LentExchange {
    type Target = Exchange;

    #[inline]
    fn deref(&self) -> &Exchange {
        match self.lent {
            #[expect(unsafe_code, reason = "see the comment")]
            // SAFETY: it is set only within `lend`, which has the only reference to the exchange meanwhile. References that are made of it
            // borrow this value, so that those that change it are alone; and this value stays in the state of its instance.
            Some(lent) => unsafe { lent.as_ref() },
            None => &self.none,
        }
    }
}

impl DerefMut for LentExchange {
    #[inline]
    fn deref_mut(&mut self) -> &mut Exchange {
        match self.lent {
            #[expect(unsafe_code, reason = "see the comment")]
            // SAFETY: as above.
            Some(mut lent) => unsafe { lent.as_mut() },
            None => &mut self.none,
        }
    }
}

/// What has the place for a lent exchange, and keeps it as long as it lives.
pub(crate) trait Borrower {
    fn place(&mut self) -> &mut LentExchange;
}

/// Lends an exchange while something runs; also if that panics, it is given back.
pub(crate) fn lend<B: Borrower, R>(borrower: &mut B, exchange: &mut Exchange, run: impl FnOnce(&mut B) -> R) -> R {
    struct Loan<'b, B: Borrower> {
        borrower: &'b mut B,
        before: Option<NonNull<Exchange>>,
    }
    impl<B: Borrower> Drop for Loan<'_, B> {
        fn drop(&mut self) {
            self.borrower.place().lent = self.before;
        }
    }
    let before = borrower.place().lent.replace(NonNull::from(exchange));
    let loan = Loan { borrower, before };
    run(loan.borrower)
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    impl Borrower for LentExchange {
        fn place(&mut self) -> &mut LentExchange {
            self
        }
    }

    #[test]
    fn an_exchange_is_lent_until_the_call_ends_or_panics() {
        let (mut place, mut exchange) = (LentExchange::none(), Exchange::default());
        lend(&mut place, &mut exchange, |place| place.request_bytes += 1);
        assert_eq!((exchange.request_bytes, place.request_bytes), (1, 0));
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            lend(&mut place, &mut exchange, |place| {
                place.request_bytes += 1;
                panic!("in a call");
            })
        }));
        assert!(panicked.is_err());
        place.request_bytes += 10;
        assert_eq!((exchange.request_bytes, place.request_bytes), (2, 10));
    }

    #[test]
    fn an_exchange_that_is_lent_within_another_loan_gives_way_to_that_again() {
        let (mut place, mut outer, mut inner) = (LentExchange::none(), Exchange::default(), Exchange::default());
        lend(&mut place, &mut outer, |place| {
            lend(place, &mut inner, |place| place.request_bytes = 1);
            place.request_bytes = 2;
        });
        assert_eq!((outer.request_bytes, inner.request_bytes), (2, 1));
    }
}
