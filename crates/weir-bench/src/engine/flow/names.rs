//! The names of values.

/// The longest name.
const LONGEST_NAME: usize = 64;

/// Checks a name; the error says what is wrong with it.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    let valid = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    if !begins || !valid || name.len() > LONGEST_NAME {
        return Err(format!(
            "\"{name}\" is not a name: it must begin with a letter, contain only letters, digits, `_`, `-` and `.`, and have at \
             most {LONGEST_NAME} characters"
        ));
    }
    Ok(())
}
