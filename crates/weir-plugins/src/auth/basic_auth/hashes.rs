//! Passwords that are kept as hashes. Verifying one is slow by intention, so it is done on separate threads, a few at a
//! time, and right passwords are cached for a while.

use std::cell::RefCell;
use std::net::IpAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, Instant};

use argon2::password_hash::PasswordVerifier;
use argon2::password_hash::phc;
use argon2::{Argon2, Params};
use weir_plugin::{Build, PerWorker, Stop};

use super::apr1;
use crate::auth::recent::{RecentResults, SecretDigest};
use crate::fair_turns::FairTurns;

/// The highest costs of a hash: verifying a more expensive one would delay all other requests.
const MAX_MEMORY_KIB: u32 = 256 << 10;
const MAX_PASSES: u32 = 16;
const MAX_LANES: u32 = 16;
const MAX_BCRYPT_COST: u32 = 15;

/// The most requests that wait to be verified, over all workers, a quarter of them of one client, and the longest wait of each.
const MAX_WAITING: usize = 1_024;
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The most right passwords that each worker caches, and for how long. A changed hash has another cache key.
const REMEMBERED: usize = 4_096;
const REMEMBERED_FOR: Duration = Duration::from_secs(3600);

/// A hash of a password, in its encoded form with algorithm and parameters.
#[derive(Debug)]
pub(super) enum PasswordHash {
    Argon2(Box<str>),
    Bcrypt(Box<str>),
    Apr1(Box<str>),
}

impl PasswordHash {
    /// `None` if the text is a plain password.
    ///
    /// # Errors
    /// If it is a hash that is incomplete, too expensive, or of an unsupported kind.
    pub(super) fn parse(text: &str) -> Result<Option<PasswordHash>, String> {
        if ["$2a$", "$2b$", "$2y$"].iter().any(|start| text.starts_with(start)) {
            let parts: bcrypt::HashParts = text
                .parse()
                .map_err(|_| "is not a complete bcrypt hash; copy it again, all 60 characters".to_owned())?;
            return match parts.get_cost() <= MAX_BCRYPT_COST {
                true => Ok(Some(PasswordHash::Bcrypt(text.into()))),
                false => Err(format!("has a bcrypt cost above {MAX_BCRYPT_COST}; hash the password with a lower cost")),
            };
        }
        if ["$argon2id$", "$argon2i$", "$argon2d$"].iter().any(|start| text.starts_with(start)) {
            let params = phc::PasswordHash::new(text).ok().filter(|hash| hash.hash.is_some());
            let params = params.and_then(|hash| Params::try_from(&hash).ok());
            let params = params.ok_or("is not a complete Argon2 hash; copy it again")?;
            let is_affordable =
                params.m_cost() <= MAX_MEMORY_KIB && params.t_cost() <= MAX_PASSES && params.p_cost() <= MAX_LANES;
            return match is_affordable {
                true => Ok(Some(PasswordHash::Argon2(text.into()))),
                false => Err(format!(
                    "costs too much to verify; hash the password with at most m={MAX_MEMORY_KIB}, t={MAX_PASSES} and \
                     p={MAX_LANES}"
                )),
            };
        }
        if text.starts_with(apr1::BEGIN) {
            let is_complete = apr1::parts(text).is_some();
            let problem = || "is not a complete hash of `htpasswd`; copy it again".to_owned();
            return is_complete.then(|| Some(PasswordHash::Apr1(text.into()))).ok_or_else(problem);
        }
        const OTHERS: [&str; 8] = ["$1$", "$5$", "$6$", "$7$", "$2x$", "$y$", "{SHA}", "{SSHA}"];
        match OTHERS.iter().find(|start| text.starts_with(**start)) {
            None => Ok(None),
            Some(start) => Err(format!(
                "begins with `{start}`, a hash of a kind that is not supported; use Argon2 (`$argon2id$`) or bcrypt \
                 (`$2y$`, as from `htpasswd -B`)"
            )),
        }
    }

    fn text(&self) -> &str {
        match self {
            PasswordHash::Argon2(text) | PasswordHash::Bcrypt(text) | PasswordHash::Apr1(text) => text,
        }
    }

    fn is_of(&self, password: &[u8]) -> bool {
        match self {
            PasswordHash::Argon2(text) => Argon2::default().verify_password(password, &**text).is_ok(),
            PasswordHash::Bcrypt(text) => bcrypt::verify(password, text).unwrap_or(false),
            PasswordHash::Apr1(text) => apr1::is_of(text, password),
        }
    }
}

/// Verifies passwords.
pub(super) struct HashVerifier {
    /// Over all workers.
    turns: Arc<FairTurns>,
    right: PerWorker<RefCell<RecentResults<()>>>,
}

impl HashVerifier {
    pub(super) fn new(build: &Build) -> HashVerifier {
        HashVerifier {
            turns: build.shared("basic-auth", "turns", || {
                // At most half of the processors: workers need them as well.
                let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
                FairTurns::new((processors / 2).max(1), MAX_WAITING)
            }),
            right: build.per_worker("basic-auth", "right passwords", || RefCell::new(RecentResults::new(REMEMBERED))),
        }
    }

    /// Whether the cache contains the password as that of the hash.
    pub(super) fn remembers(&self, hash: &PasswordHash, password: &[u8]) -> bool {
        self.right.get().borrow().find(digest_of(hash, password)).is_some()
    }

    /// Whether the password is that of the hash.
    ///
    /// # Errors
    /// 503 if too many requests are waiting, or if this one has waited for too long.
    pub(super) async fn is_right(
        &self,
        client: IpAddr,
        hash: &Arc<PasswordHash>,
        password: Vec<u8>,
    ) -> Result<bool, Stop> {
        let turn = tokio::time::timeout(MAX_WAIT, self.turns.take(client)).await.ok().flatten();
        let turn = turn.ok_or(Stop::Respond(503))?;
        // Another request with the same password may have been verified while this one waited.
        if self.remembers(hash, &password) {
            return Ok(true);
        }
        let digest = digest_of(hash, &password);
        let hash = Arc::clone(hash);
        let verify = move || {
            let is_right = hash.is_of(&password);
            // The permit belongs to the verification: it continues even if its request has been cancelled.
            drop(turn);
            is_right
        };
        let is_right = tokio::task::spawn_blocking(verify).await.map_err(|_| Stop::Internal)?;
        if is_right {
            self.right.get().borrow_mut().keep(digest, (), Instant::now() + REMEMBERED_FOR);
        }
        Ok(is_right)
    }
}

fn digest_of(hash: &PasswordHash, password: &[u8]) -> SecretDigest {
    SecretDigest::of(&[hash.text().as_bytes(), password])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_others_are_verified() {
        // The first two are from the reference implementation of Argon2, the others from libxcrypt.
        for (text, password) in [
            ("$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4", "password"),
            ("$argon2i$v=19$m=256,t=2,p=1$c29tZXNhbHQ$iekCn0Y3spW+sCcFanM2xBT63UP2sghkUoHLIUpWRS8", "password"),
            ("$2y$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC", "right"),
            ("$2b$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC", "right"),
        ] {
            let hash = PasswordHash::parse(text).expect("it can be verified").expect("it is a hash");
            assert!(hash.is_of(password.as_bytes()), "{text}");
            for wrong in ["", "Right", "passwor", text] {
                assert!(!hash.is_of(wrong.as_bytes()), "{text}");
            }
        }
    }

    #[test]
    fn passwords_are_told_from_hashes_and_hashes_that_cannot_be_verified_are_refused() {
        for password in ["secret", "$", "$2", "argon2id", "{}", "$money$"] {
            assert!(PasswordHash::parse(password).is_ok_and(|hash| hash.is_none()), "{password}");
        }
        for (text, says) in [
            ("$2y$05$short", "is not a complete bcrypt hash"),
            ("$2y$16$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC", "has a bcrypt cost above 15"),
            ("$argon2id$v=19$m=256", "is not a complete Argon2 hash"),
            (
                "$argon2id$v=19$m=2097152,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
                "costs too much to verify",
            ),
            ("$apr1$salt$hash", "is not a complete hash of `htpasswd`"),
            ("$6$salt$hash", "begins with `$6$`, a hash of a kind that is not supported; use Argon2"),
            ("{SHA}fEqNCco3Yq9h5ZUglD3CZJT4lBs=", "begins with `{SHA}`"),
        ] {
            let error = PasswordHash::parse(text).expect_err("it is refused");
            assert!(error.starts_with(says), "{text}: {error}");
        }
    }
}
