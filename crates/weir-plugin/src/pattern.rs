//! Regular expressions of a configuration: linear-time, bounded in size, with ASCII classes unless the text needs Unicode. Equal
//! ones are compiled once.

use std::sync::Arc;

use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use crate::interner::Interner;
use crate::pattern_budget;

/// Why an expression is refused.
#[derive(Debug)]
pub enum PatternFault {
    /// Its compiled form would be larger than the limit, or than what is left of the request's budget.
    TooLarge,
    Invalid {
        reason: String,
    },
}

/// What an expression or a list of them is compiled from.
#[derive(PartialEq, Eq, Hash)]
struct Input<T> {
    text: T,
    ignore_case: bool,
    most: usize,
}

static PATTERNS: Interner<Input<Box<str>>, Regex> = Interner::new();
static SETS: Interner<Input<Box<[String]>>, RegexSet> = Interner::new();

/// Compiles an expression into at most this many bytes.
///
/// # Errors
/// That it is invalid or too large.
pub fn compile(text: &str, ignore_case: bool, most: usize) -> Result<Arc<Regex>, PatternFault> {
    let build = |size, unicode| {
        RegexBuilder::new(text)
            .case_insensitive(ignore_case)
            .unicode(unicode)
            .size_limit(size)
            .dfa_size_limit(most)
            .build()
    };
    let input = Input { text: text.into(), ignore_case, most };
    PATTERNS.get_or_build(input, |_| within_limits(text.is_ascii(), most, build))
}

/// Compiles a list of expressions into a set of at most this many bytes, which is matched in one pass.
///
/// # Errors
/// That one of them is invalid, or that all together are too large.
pub fn compile_set(texts: &[String], ignore_case: bool, most: usize) -> Result<Arc<RegexSet>, PatternFault> {
    let build = |size, unicode| {
        RegexSetBuilder::new(texts)
            .case_insensitive(ignore_case)
            .unicode(unicode)
            .size_limit(size)
            .dfa_size_limit(most)
            .build()
    };
    let input = Input { text: texts.into(), ignore_case, most };
    SETS.get_or_build(input, |_| within_limits(texts.iter().all(|text| text.is_ascii()), most, build))
}

/// Builds without Unicode classes if the text allows it: as in PCRE, `\w` and `\d` mean ASCII, which also keeps them small.
fn within_limits<R>(
    is_ascii: bool,
    most: usize,
    build: impl Fn(usize, bool) -> Result<R, regex::Error>,
) -> Result<R, PatternFault> {
    let build = |unicode| pattern_budget::compile(most, |size| build(size, unicode));
    let built = if is_ascii { build(false).or_else(|_| build(true)) } else { build(true) };
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => PatternFault::TooLarge,
        error => {
            // Only the last line has the reason; the lines before it show the place in the expression.
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            PatternFault::Invalid { reason }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 20;

    #[test]
    fn a_compiled_pattern_counts_when_all_are_counted() {
        let text = "^/counted/[a-z]+$";
        let kept = compile(text, false, MOST).expect("valid");
        let again = || compile(text, false, MOST).is_ok();
        assert_eq!(pattern_budget::within_counting_all(0, again), (false, true));
        assert_eq!(pattern_budget::within(0, again), (true, false), "it counts no more");
        drop(kept);
    }

    #[test]
    fn a_compiled_pattern_takes_nothing_of_a_budget() {
        let text = "^[a-z]{3000}once$";
        let (kept, _) = pattern_budget::within(MOST, || compile(text, false, MOST).expect("valid"));
        let again = || (compile(text, false, MOST).is_ok(), compile(text, true, MOST).is_ok());
        assert_eq!(pattern_budget::within(0, again), ((true, false), true), "in another form it is another expression");
        drop(kept);
        assert_eq!(pattern_budget::within(0, again), ((false, false), true), "it is not in use any more");
        let set = ["^a".to_owned(), "^[a-z]{3000}once$".to_owned()];
        let kept = compile_set(&set, false, MOST).expect("valid");
        let again = || Arc::ptr_eq(&kept, &compile_set(&set, false, MOST).expect("known"));
        assert_eq!(pattern_budget::within(0, again), (true, false));
    }
}
