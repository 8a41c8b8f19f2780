//! Names and the digests of their passwords, in a table whose lookup takes the same steps for a name that exists and
//! for one that does not: no early exit, and no branch that depends on it.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Context, SHA256};
use weir_plugin::{Consumers, Credential, Definition};

use super::hashes::PasswordHash;
use super::{BasicAuth, PasswordCredential};

/// Slots of a bucket; a lookup compares all of them.
const BUCKET: usize = 8;

pub(super) struct NameTable {
    /// The secret seed of the hashes, so that clients cannot compute them.
    secret: RandomState,
    /// A power of two of buckets, at least one for each name, so that an overflow is rare.
    buckets: Box<[[NameSlot; BUCKET]]>,
    /// The first entry has no owner: names that do not exist are compared with it.
    known: Vec<KnownName>,
    /// The hash that the passwords of unknown names are verified with, so that they take as long as others. `None` if
    /// no password is kept as a hash.
    decoy: Option<Arc<PasswordHash>>,
}

/// The result of looking up a name and password.
pub(super) enum NameAndPassword<'t> {
    Right(&'t NameOwner),
    Wrong,
    /// The password must be verified with this hash, and is wrong if the name has no owner.
    Hashed(&'t Arc<PasswordHash>, Option<&'t NameOwner>),
}

/// Who has a name.
pub(super) enum NameOwner {
    Consumer(Arc<Credential>),
    /// A user of the route, who is no consumer.
    User,
}

#[derive(Clone, Copy, Default)]
struct NameSlot {
    hash: u64,
    known: u32,
}

struct KnownName {
    /// The digest of name and password; zeros if the password is kept as a hash.
    digest: [u8; 32],
    hash: Option<Arc<PasswordHash>>,
    owner: Option<NameOwner>,
}

impl NameTable {
    pub(super) fn of_consumers(consumers: &Consumers) -> NameTable {
        let named = consumers.credentials(BasicAuth::NAME).iter().filter_map(|credential| {
            let text = |option: &str| credential.options[option].as_str();
            // Credentials with other options are invalid, and have been reported by the document's checks.
            Some((text("username")?, text("password")?, NameOwner::Consumer(Arc::clone(credential))))
        });
        NameTable::new(named)
    }

    pub(super) fn of_users(users: &[PasswordCredential]) -> NameTable {
        NameTable::new(users.iter().map(|user| (&*user.username, &*user.password, NameOwner::User)))
    }

    /// A table of names with their passwords.
    fn new<'n>(named: impl Iterator<Item = (&'n str, &'n str, NameOwner)>) -> NameTable {
        let secret = RandomState::new();
        let mut known = vec![KnownName { digest: [0; 32], hash: None, owner: None }];
        let mut hashes = vec![];
        for (name, password, owner) in named {
            let hash = PasswordHash::parse(password).ok().flatten();
            hashes.push(secret.hash_one(name.as_bytes()));
            known.push(KnownName {
                digest: if hash.is_some() { [0; 32] } else { digest_of(name.as_bytes(), password.as_bytes()) },
                hash: hash.map(Arc::new),
                owner: Some(owner),
            });
        }
        let mut size = hashes.len().next_power_of_two();
        let buckets = loop {
            match buckets(&hashes, size) {
                Some(buckets) => break buckets,
                None => size *= 2,
            }
        };
        let decoy = known.iter().find_map(|known| known.hash.clone());
        NameTable { secret, buckets, known, decoy }
    }

    /// Looks up a name and password.
    pub(super) fn find(&self, name: &[u8], password: &[u8]) -> NameAndPassword<'_> {
        let shown = digest_of(name, password);
        let hash = self.secret.hash_one(name);
        let bucket = &self.buckets[hash as usize & (self.buckets.len() - 1)];
        // At most one slot matches. All of them are combined, the others as 0.
        let found = bucket.iter().fold(0, |found, place| {
            let mask = black_box(u32::from(place.hash == hash).wrapping_neg());
            found | place.known & mask
        });
        let known = &self.known[found as usize];
        // The zero digest of the first entry never matches, so the owner need not be tested before.
        if verify_slices_are_equal(&known.digest, &shown).is_ok()
            && let Some(owner) = &known.owner
        {
            return NameAndPassword::Right(owner);
        }
        match (&known.hash, &self.decoy) {
            (Some(hash), _) => NameAndPassword::Hashed(hash, known.owner.as_ref()),
            (None, Some(decoy)) => NameAndPassword::Hashed(decoy, None),
            (None, None) => NameAndPassword::Wrong,
        }
    }
}

/// Distributes the hashes by their lowest bits; `None` if a bucket overflows. Of equal names, the last one counts.
fn buckets(hashes: &[u64], size: usize) -> Option<Box<[[NameSlot; BUCKET]]>> {
    let mut buckets = vec![[NameSlot::default(); BUCKET]; size].into_boxed_slice();
    for (&hash, known) in hashes.iter().zip(1..) {
        let bucket = &mut buckets[hash as usize & (size - 1)];
        let place = bucket.iter_mut().find(|place| place.known == 0 || place.hash == hash)?;
        *place = NameSlot { hash, known };
    }
    Some(buckets)
}

/// Includes the length of the name, so that other divisions of the same bytes have other digests.
fn digest_of(name: &[u8], password: &[u8]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(&(name.len() as u64).to_be_bytes());
    context.update(name);
    context.update(password);
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_testkit::timing::assert_same_time;

    use super::*;
    use crate::testing::with_consumers;

    /// A table of `count` names `name0000` and so on, all with this password.
    fn names(count: usize, password: &str) -> Arc<NameTable> {
        let named: Vec<String> = (0..count).map(|number| format!("name{number:04}")).collect();
        let consumer = |name| (name, "basic-auth", json!({ "username": name, "password": password }));
        let consumers: Vec<_> = named.iter().map(|name| consumer(name.as_str())).collect();
        with_consumers(&consumers).consumers.index(NameTable::of_consumers)
    }

    fn credential_of(owner: &NameOwner) -> Option<&Arc<Credential>> {
        match owner {
            NameOwner::Consumer(credential) => Some(credential),
            NameOwner::User => None,
        }
    }

    /// The credential of a name and password, in a table without hashed passwords.
    fn user_of<'t>(names: &'t NameTable, name: &[u8], password: &[u8]) -> Option<&'t Arc<Credential>> {
        match names.find(name, password) {
            NameAndPassword::Right(owner) => credential_of(owner),
            NameAndPassword::Wrong => None,
            NameAndPassword::Hashed(..) => panic!("no password is kept as a hash"),
        }
    }

    #[test]
    fn every_name_is_found_with_its_password_and_no_other_is() {
        for count in [0, 1, 5000] {
            let names = names(count, "right");
            for number in 0..count {
                let name = format!("name{number:04}");
                let found = user_of(&names, name.as_bytes(), b"right").expect("it is there");
                assert_eq!(*found.consumer.username, *name);
                assert!(user_of(&names, name.as_bytes(), b"wrong").is_none());
            }
            assert!(user_of(&names, b"nobody", b"right").is_none());
        }
    }

    #[test]
    fn of_equal_names_the_last_counts_however_many_there_are() {
        let password = |number: usize| format!("p{number}");
        let consumers: Vec<_> = (0..20)
            .map(|number| ("jack", "basic-auth", json!({"username": "jack", "password": password(number)})))
            .collect();
        let names = with_consumers(&consumers).consumers.index(NameTable::of_consumers);
        assert!(user_of(&names, b"jack", b"p19").is_some());
        assert!(user_of(&names, b"jack", b"p18").is_none());
    }

    #[test]
    fn wrong_passwords_take_as_long_as_a_hashed_one() {
        const HASH: &str = "$2y$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC";
        let consumer = |name, password| (name, "basic-auth", json!({ "username": name, "password": password }));
        let shared = with_consumers(&[consumer("hashed", HASH), consumer("plain", "secret")]);
        let names = shared.consumers.index(NameTable::of_consumers);
        let name_of = |owner| credential_of(owner).map_or("", |credential| &*credential.consumer.username);
        let user = |name: &[u8], password: &[u8]| match names.find(name, password) {
            NameAndPassword::Right(owner) => format!("{} at once", name_of(owner)),
            NameAndPassword::Hashed(_, Some(owner)) => format!("{} by hash", name_of(owner)),
            NameAndPassword::Hashed(_, None) => "nobody by hash".to_owned(),
            NameAndPassword::Wrong => "nobody at once".to_owned(),
        };
        assert_eq!(user(b"plain", b"secret"), "plain at once");
        assert_eq!(user(b"hashed", b"right"), "hashed by hash");
        assert_eq!(user(b"hashed", HASH.as_bytes()), "hashed by hash", "the hash is not the password");
        assert_eq!(user(b"plain", b"wrong"), "nobody by hash");
        assert_eq!(user(b"nobody", b"wrong"), "nobody by hash");
    }

    #[test]
    fn p04_time_says_nothing_of_names_and_passwords() {
        let (name, right) = (*b"name0000", *b"0123456789abcdefghijklmnopqrstuv");
        let names = names(1_000, std::str::from_utf8(&right).expect("ASCII"));
        assert!(user_of(&names, &name, &right).is_some());
        let find = |(name, password): &([u8; 8], [u8; 32])| _ = black_box(user_of(&names, name, password));
        assert_same_time(
            "basic-auth: passwords that begin as the right one does, and others",
            |begins_right, random| (name, if begins_right { random.beginning_as(&right) } else { random.text() }),
            find,
        );
        assert_same_time(
            "basic-auth: a name that exists, and one that does not",
            |exists, random| (if exists { name } else { *b"nobody00" }, random.text()),
            find,
        );
    }
}
