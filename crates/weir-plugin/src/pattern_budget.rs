//! A limit for what the regular expressions of one request of the Admin API may take when they are compiled. The time to compile
//! an expression grows with its compiled size, so the limit of bytes is one of time as well, and the same on every machine.
//!
//! Outside of a budget only the limit of each expression applies.

use std::cell::Cell;

/// The sizes by which expressions are counted: each as the smallest one it fits into.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

thread_local! {
    /// The bytes that are left to the work on this thread; `None` without a budget.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static IS_SPENT: Cell<bool> = const { Cell::new(false) };
    static COUNTS_ALL: Cell<bool> = const { Cell::new(false) };
}

/// Does work in which expressions may take this many bytes together when they are compiled. Further ones are refused as too large.
/// Also returns whether any was: then the result tells nothing about the expressions.
pub fn within<T>(bytes: usize, work: impl FnOnce() -> T) -> (T, bool) {
    /// Ends the budget, also if the work panics.
    struct EndOfBudget;
    impl Drop for EndOfBudget {
        fn drop(&mut self) {
            LEFT.set(None);
        }
    }
    LEFT.set(Some(bytes));
    IS_SPENT.set(false);
    let end = EndOfBudget;
    let result = work();
    drop(end);
    (result, IS_SPENT.replace(false))
}

/// Does work as [`within`]. Expressions that are in use already count as well, so that the result is always the same.
pub fn within_counting_all<T>(bytes: usize, work: impl FnOnce() -> T) -> (T, bool) {
    /// Ends the counting, also if the work panics.
    struct EndOfCounting;
    impl Drop for EndOfCounting {
        fn drop(&mut self) {
            COUNTS_ALL.set(false);
        }
    }
    COUNTS_ALL.set(true);
    let _end = EndOfCounting;
    within(bytes, work)
}

/// Whether expressions that are in use already count.
pub(crate) fn counts_all() -> bool {
    COUNTS_ALL.get()
}

/// Whether an expression was refused because the budget of the work on this thread is spent.
pub fn is_spent() -> bool {
    IS_SPENT.get()
}

/// The bytes that are left of the budget of the work on this thread; `None` without one.
pub fn left() -> Option<usize> {
    LEFT.get()
}

/// Takes bytes for expressions that are compiled elsewhere. Returns whether they are left.
pub fn spend(bytes: usize) -> bool {
    let Some(left) = LEFT.get() else { return true };
    match left.checked_sub(bytes) {
        Some(left) => LEFT.set(Some(left)),
        None => IS_SPENT.set(true),
    }
    bytes <= left
}

/// Compiles an expression of at most `most` bytes; `build` compiles it with the given limit.
///
/// # Errors
/// Those of `build`. If the budget is spent, that the expression is too large.
pub fn compile<R>(most: usize, build: impl Fn(usize) -> Result<R, regex::Error>) -> Result<R, regex::Error> {
    let Some(left) = LEFT.get() else { return build(most) };
    for size in SIZES.into_iter().filter(|size| *size < most).chain([most]) {
        if size > left {
            IS_SPENT.set(true);
            return Err(regex::Error::CompiledTooBig(left));
        }
        match build(size) {
            Err(regex::Error::CompiledTooBig(_)) if size < most => {}
            built => {
                LEFT.set(Some(left - size));
                return built;
            }
        }
    }
    unreachable!("the last size is the most")
}

#[cfg(test)]
mod tests {
    use regex::bytes::{Regex, RegexBuilder};

    use super::*;

    fn built(text: &str) -> Result<Regex, regex::Error> {
        compile(1 << 20, |size| RegexBuilder::new(text).size_limit(size).build())
    }

    #[test]
    fn a_budget_counts_what_expressions_take_and_ends_with_its_work() {
        let small = || (0..).take_while(|_| built("^/a").is_ok()).take(1_000).count();
        assert_eq!(within(40 << 10, small), (10, true), "each counts as the smallest size");
        assert_eq!(small(), 1_000, "without a budget");
        let large = || (built("[a-z]{3000}").is_ok(), built("^/a").is_ok(), is_spent());
        assert_eq!(within(8 << 10, large), ((false, true, true), true));
        assert_eq!(within(2 << 20, large), ((true, true, false), false));
        let wrong = within(1 << 20, || built("(").map_err(|error| matches!(error, regex::Error::Syntax(_))).err());
        assert_eq!(wrong, (Some(true), false), "other faults stay what they are");
    }
}
