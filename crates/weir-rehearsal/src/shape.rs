//! The shape of a request: what requests for the same kind of thing have in common.

use crate::secrets::is_secret;

/// The most bytes of a shape.
const MAX_SHAPE_BYTES: usize = 200;
/// The shortest word of hexadecimal digits that is taken for an identifier.
const MIN_HEX_LENGTH: usize = 12;

/// Method, host and path, in which `*` stands for identifiers, and the names of the parameters of the query.
pub(crate) fn of(method: &str, host: &str, target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let segments: Vec<&str> = path.split('/').map(|part| if is_identifier(part) { "*" } else { part }).collect();
    let mut shape = format!("{method} {host}{}", segments.join("/"));
    let mut names: Vec<&str> = query.split('&').map(|part| part.split('=').next().unwrap_or_default()).collect();
    names.retain(|name| !name.is_empty() && !is_identifier(name));
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        shape.push('?');
        shape.push_str(&names.join("&"));
    }
    if shape.len() > MAX_SHAPE_BYTES {
        shape.truncate(shape.floor_char_boundary(MAX_SHAPE_BYTES));
        shape.push('…');
    }
    shape
}

/// Whether a part of a path looks like a number, a UUID, a hash or a token, or like the value of a secret.
fn is_identifier(part: &str) -> bool {
    let (mut digits, mut hex, mut dashes) = (0, 0, 0);
    for byte in part.bytes() {
        digits += usize::from(byte.is_ascii_digit());
        hex += usize::from(byte.is_ascii_hexdigit());
        dashes += usize::from(byte == b'-');
    }
    let is_number = digits > 0 && digits == part.len();
    let is_hex = hex + dashes == part.len() && hex >= MIN_HEX_LENGTH && digits > 0;
    let is_token = part.len() >= 24 && digits >= 4 && !part.contains('.');
    is_number || is_hex || is_token || part.split_once('=').is_some_and(|(name, _)| is_secret(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_do_not_make_shapes() {
        for (target, shape) in [
            ("/orders/17", "/orders/*"),
            ("/orders/17/items/0b7a3a6e-8f0c-4f0e-9d55-1f4f3b1f7e10", "/orders/*/items/*"),
            ("/a?page=2&sort=x&page=3", "/a?page&sort"),
            ("/a?sort=y&page=9", "/a?page&sort"),
            ("/v1/facade", "/v1/facade"),
            ("/app.3f2a91bc44d0.js", "/app.3f2a91bc44d0.js"),
            ("/", "/"),
        ] {
            assert_eq!(of("GET", "a.example", target), format!("GET a.example{shape}"), "{target}");
        }
        assert!(of("GET", "a", &format!("/{}", "é".repeat(500))).len() <= MAX_SHAPE_BYTES + 3);
    }
}
