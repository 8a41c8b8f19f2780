//! Keeps secrets out of reports: values of parameters, members and fields whose name says that they are secret.

/// Parts of names whose values are secret.
const SECRET_PARTS: [&str; 16] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "apikey",
    "api_key",
    "api-key",
    "signature",
    "session",
    "authorization",
    "credential",
    "assertion",
    "cookie",
    "bearer",
    "jwt",
];
/// Names that are secret as a whole; within other names they are common.
const SECRET_NAMES: [&str; 9] = ["key", "code", "sig", "auth", "pwd", "sid", "otp", "dpop", "pin"];
/// The ends of names of keys, such as `x-user-key`.
const SECRET_ENDS: [&str; 4] = ["-key", "_key", "-auth", "_auth"];
pub(crate) const MASK: &str = "***";

/// Whether the value of a field, a parameter or a member with this name is secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.contains(&name.as_str())
        || SECRET_PARTS.iter().any(|part| name.contains(part))
        || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}

/// A text, such as a URL, in which the values after secret names and `=` are replaced.
pub(crate) fn masked(text: &str) -> String {
    let is_of_name = |char: char| char.is_ascii_alphanumeric() || "-_.%[]".contains(char);
    let ends_value = |char: char| char.is_whitespace() || "&;,#\"'<>".contains(char);
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('=') {
        out.push_str(before);
        out.push('=');
        rest = after;
        let begin = before
            .rfind(|char| !is_of_name(char))
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        if is_secret(&before[begin..]) {
            out.push_str(MASK);
            rest = &after[after.find(ends_value).unwrap_or(after.len())..];
        }
    }
    out + rest
}

/// Whether the query of a target has a parameter whose value is secret.
pub(crate) fn has_secret(target: &str) -> bool {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    query
        .split(['&', ';'])
        .any(|part| part.split_once('=').is_some_and(|(name, value)| is_secret(name) && !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_parameters_are_masked() {
        assert_eq!(masked("/a?page=2&access_token=abc&Key=x&flag"), "/a?page=2&access_token=***&Key=***&flag");
        assert_eq!(masked("https://a/b#id_token=abc"), "https://a/b#id_token=***");
        assert_eq!(masked("see \"/c?sig=a&b=1\" ünd=2"), "see \"/c?sig=***&b=1\" ünd=2");
        assert_eq!(masked("/keys/1"), "/keys/1");
        assert!(has_secret("/a?b=1&token=c") && !has_secret("/token?b=1") && !has_secret("/a?token="));
        assert!(is_secret("x-user-key") && is_secret("X-Amz-Credential") && is_secret("proxy-authorization"));
        assert!(!is_secret("keyboard") && !is_secret("country_code") && is_secret("X-Session-Id"));
    }
}
