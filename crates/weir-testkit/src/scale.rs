//! Tests that run with small numbers by default, and with large ones on request.

/// The number for a scaled test: `short` by default, `long` if `WEIR_TEST_FULL` is set (`make test-full`).
pub fn scaled(short: usize, long: usize) -> usize {
    if is_full() { long } else { short }
}

/// Whether tests that take minutes are to run.
pub fn is_full() -> bool {
    std::env::var_os("WEIR_TEST_FULL").is_some()
}
