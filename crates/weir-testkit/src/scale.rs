//! Tests that show what they show with small counts, and prove it with large ones.

/// How much of a scaled test to run: `short` ordinarily, `long` where `WEIR_TEST_FULL` is set (`make test-full`).
pub fn scaled(short: usize, long: usize) -> usize {
    if is_full() { long } else { short }
}

/// Whether tests that take minutes are wanted.
pub fn is_full() -> bool {
    std::env::var_os("WEIR_TEST_FULL").is_some()
}
