//! Names of options whose value is a secret.

/// Members whose value is a secret in every resource and plugin.
pub const SECRET_NAMES: &[&str] = &[
    "access_key_id",
    "auth_header",
    "client_key",
    "client_rsa_private_key",
    "client_secret",
    "encryption_keyring",
    "password",
    "private_key",
    "redis_password",
    "secret",
    "secret_access_key",
    "secret_key",
    "sentinel_password",
    "session_token",
    "token",
];

/// Members whose value, a text or a list of texts, is a secret in some resources or plugins.
const SOMETIMES: &[&str] = &["key", "keyring", "keys", "secrets"];
/// Members whose value is a map of texts that may be secrets.
const MAPS: &[&str] = &["headers", "request_headers"];

/// Whether the value under these names, the last one first and without indices of lists, may be a secret. Errors do not quote such a
/// value: they lose little by that, since they name its place.
pub fn may_be_secret<'n>(names: impl IntoIterator<Item = &'n str>) -> bool {
    names.into_iter().enumerate().any(|(distance, name)| {
        SECRET_NAMES.contains(&name)
            || distance == 0 && SOMETIMES.contains(&name)
            || distance <= 1 && MAPS.contains(&name)
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
            (&["name"], false),
            (&[], false),
        ] {
            assert_eq!(may_be_secret(names.iter().copied()), expected, "{names:?}");
        }
    }
}
