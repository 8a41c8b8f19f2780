//! The hash of `htpasswd` without options (`$apr1$`): MD5, a thousand times. It is verified for lists of users that exist already.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use md5::{Digest, Md5};

pub(super) const BEGIN: &str = "$apr1$";
const ROUNDS: usize = 1_000;
const LONGEST_SALT: usize = 8;
/// The characters of 128 bits.
const ENCODED: usize = 22;
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The bytes of the digest that stand together, the highest first.
const GROUPS: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];

/// The salt and the encoded digest of a hash; `None` if it is incomplete.
pub(super) fn parts(text: &str) -> Option<(&str, &str)> {
    let (salt, digest) = text.strip_prefix(BEGIN)?.split_once('$')?;
    let is_digest = digest.len() == ENCODED && digest.bytes().all(|byte| DIGITS.contains(&byte));
    (is_digest && (1..=LONGEST_SALT).contains(&salt.len())).then_some((salt, digest))
}

/// Whether the hash is that of the password.
pub(super) fn is_of(text: &str, password: &[u8]) -> bool {
    parts(text).is_some_and(|(salt, digest)| {
        verify_slices_are_equal(&encoded(hash(password, salt.as_bytes())), digest.as_bytes()).is_ok()
    })
}

fn hash(password: &[u8], salt: &[u8]) -> [u8; 16] {
    let other: [u8; 16] = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize().into();
    let mut context = Md5::new().chain_update(password).chain_update(BEGIN).chain_update(salt);
    for part in password.chunks(other.len()) {
        context.update(&other[..part.len()]);
    }
    let mut bits = password.len();
    while bits > 0 {
        context.update(if bits & 1 == 1 { &[0][..] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest: [u8; 16] = context.finalize().into();
    for round in 0..ROUNDS {
        let is_odd = round % 2 == 1;
        let mut context = Md5::new().chain_update(if is_odd { password } else { &digest[..] });
        if round % 3 != 0 {
            context.update(salt);
        }
        if round % 7 != 0 {
            context.update(password);
        }
        context.update(if is_odd { &digest[..] } else { password });
        digest = context.finalize().into();
    }
    digest
}

fn encoded(digest: [u8; 16]) -> Vec<u8> {
    let digits = |value: u32, count: usize| (0..count).map(move |place| DIGITS[(value >> (6 * place)) as usize & 63]);
    let group = |[high, middle, low]: [usize; 3]| {
        u32::from(digest[high]) << 16 | u32::from(digest[middle]) << 8 | u32::from(digest[low])
    };
    GROUPS.into_iter().flat_map(|places| digits(group(places), 4)).chain(digits(digest[11].into(), 2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `openssl passwd -apr1`.
    const HASHES: [(&str, &str); 4] = [
        ("myPassword", "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/"),
        ("secret", "$apr1$r31.....$G/cElGhD0cboYkZN5h5Ne/"),
        ("a-password-longer-than-sixteen-characters", "$apr1$r31.....$JsfCvjFn7TOpdCZ.fjO1N0"),
        ("", "$apr1$xy$43..WIhbfuznGvwoCyUek/"),
    ];

    #[test]
    fn hashes_of_htpasswd_are_verified() {
        for (password, hash) in HASHES {
            assert!(is_of(hash, password.as_bytes()), "{hash}");
            assert!(!is_of(hash, format!("{password}x").as_bytes()), "{hash}");
        }
    }

    #[test]
    fn a_hash_that_is_incomplete_is_of_no_password() {
        for text in
            ["$apr1$", "$apr1$a$b", "$apr1$$HqJZimcKQFAMYayBlzkrA/", "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA", "x"]
        {
            assert_eq!(parts(text), None, "{text}");
        }
    }
}
