//! Names of options whose value is a secret.

/// Members whose value is a secret in every resource and plugin.
pub const SECRET_NAMES: &[&str] = &[
    "access_key_id",
    "access_key_secret",
    "apikey",
    "auth_header",
    "client_key",
    "client_rsa_private_key",
    "client_secret",
    "customer_token",
    "encryption_keyring",
    "http_req_body",
    "master_apikey",
    "password",
    "private_key",
    "redis_password",
    "secret",
    "secret_access_key",
    "secret_key",
    "secretkey",
    "sentinel_password",
    "service_token",
    "session_token",
    "token",
];

/// Members whose value, a text or a list of texts, is a secret in some resources or plugins.
const SOMETIMES: &[&str] = &["key", "keyring", "keys", "secrets"];
/// Members whose value is a map of texts that may be secrets.
const MAPS: &[&str] = &["headers", "request_headers"];

/// Parts of the names of header fields whose value is a secret, in lower case.
const SECRET_HEADERS: &[&str] = &["auth", "cookie", "credential", "password", "secret", "token"];

/// Whether an option of this name is a map of header fields, or a list of them written as `Name: value`: `headers`, `req_headers`.
pub fn has_headers(option: &str) -> bool {
    option.ends_with("headers")
}

/// Whether the value of a header field with this name is a secret: `Authorization`, `Cookie`, `X-API-Key`.
pub fn is_secret_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("key") || SECRET_HEADERS.iter().any(|part| name.contains(part))
}

/// Whether the value under these names, the last one first and without indices of lists, may be a secret. Errors do not quote such a
/// value: they lose little by that, since they name its place.
pub fn may_be_secret<'n>(names: impl IntoIterator<Item = &'n str>) -> bool {
    let mut is_secret_field = false;
    names.into_iter().enumerate().any(|(distance, name)| {
        is_secret_field |= distance == 0 && (is_secret_header(name) || has_headers(name));
        SECRET_NAMES.contains(&name)
            || distance == 0 && SOMETIMES.contains(&name)
            || distance <= 1 && MAPS.contains(&name)
            || is_secret_field && has_headers(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names() {
        for (names, expected) in [
            (&["password"][..], true),
            (&["a", "secret"], true),
            (&["key", "keys"], true),
            (&["keys"], true),
            (&["role", "keys"], false),
            (&["X-A", "headers"], true),
            (&["Authorization", "set", "headers"], true),
            (&["X-A", "set", "headers"], false),
            (&["req_headers", "active", "checks"], true),
            (&["x-api-key"], false),
            (&["name"], false),
            (&[], false),
        ] {
            assert_eq!(may_be_secret(names.iter().copied()), expected, "{names:?}");
        }
    }
}
