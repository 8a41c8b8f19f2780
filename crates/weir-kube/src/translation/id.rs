//! Ids of resources from names of objects.

use aws_lc_rs::digest;

/// The most characters in the id of a resource.
const LONGEST: usize = 64;
/// As many hexadecimal digits of SHA-256 stand for what is left out: two names with the same hash cannot be found.
const HASH_DIGITS: usize = 24;

/// An id of these parts, which are names of objects, or numbers. The parts are joined by `_`, which no name contains, so that
/// different parts never give the same id. What is too long, or has other characters, is shortened, and ends in a hash of all.
pub(crate) fn resource_id(parts: &[&str]) -> String {
    let id = parts.join("_");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if id.len() <= LONGEST && id.chars().all(is_plain) {
        return id;
    }
    let hash = hex::encode(digest::digest(&digest::SHA256, id.as_bytes()));
    let kept: String = id.chars().filter(|c| is_plain(*c)).take(LONGEST - HASH_DIGITS - 2).collect();
    // Two underscores: no name is empty, so no id of whole names has them.
    format!("{kept}__{}", &hash[..HASH_DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_fit_are_joined() {
        assert_eq!(resource_id(&["shop", "orders.v2", "0"]), "shop_orders.v2_0");
    }

    #[test]
    fn long_names_are_shortened_and_stay_different() {
        let (one, other) = ("n".repeat(80), format!("{}m", "n".repeat(79)));
        assert_eq!(resource_id(&[&one]).len(), 64);
        assert_ne!(resource_id(&[&one]), resource_id(&[&other]));
        assert_eq!(resource_id(&[&one]), resource_id(&[&one]));
    }
}
