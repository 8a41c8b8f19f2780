//! Texts that the node replaces when it reads its configuration: users of a namespace must not write them.

/// Whether a text stands for another one when the node reads its configuration.
pub(super) fn is_reference(text: &str) -> bool {
    let begins = |start: &str| text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    begins("$secret://") || begins("$env://")
}
