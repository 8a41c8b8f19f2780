//! Keeps secrets out of reports: values of parameters, members and fields whose name says that they are secret.

/// Parts of names whose values are secret.
const SECRET_PARTS: [&str; 10] =
    ["token", "secret", "password", "passwd", "apikey", "api_key", "api-key", "signature", "session", "authorization"];
/// Names that are secret as a whole; within other names they are common.
const SECRET_NAMES: [&str; 8] = ["key", "code", "sig", "auth", "jwt", "pwd", "sid", "cookie"];
pub(crate) const MASK: &str = "***";

pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.contains(&name.as_str()) || SECRET_PARTS.iter().any(|part| name.contains(part))
}

/// A path and query without the values of secret parameters.
pub(crate) fn masked_target(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let parameter = |part: &str| match part.split_once('=') {
        Some((name, _)) if is_secret(name) => format!("{name}={MASK}"),
        _ => part.to_owned(),
    };
    let query: Vec<String> = query.split('&').map(parameter).collect();
    format!("{path}?{}", query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_parameters_are_masked() {
        assert_eq!(masked_target("/a?page=2&access_token=abc&Key=x&flag"), "/a?page=2&access_token=***&Key=***&flag");
        assert_eq!(masked_target("/keys/1"), "/keys/1");
        assert!(!is_secret("keyboard") && !is_secret("country_code") && is_secret("X-Session-Id"));
    }
}
