//! Session tickets: what a server wants to remember of a session, sealed and left with the client (RFC 5077, RFC 8446
//! §4.6.1). The keys are the process's, not a configuration's, so tickets outlive reloads.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use rustls::server::ProducesTickets;

/// What must not differ between a session and its resumption, beside what TLS itself compares: who was asked to prove
/// what. A ticket that was made under one scope says nothing under another.
pub type Scope = [u8; 32];

/// A key seals for so long, and opens for as long again.
const ROTATION: Duration = Duration::from_secs(6 * 3600);
const NAME_LEN: usize = 16;
const SECRET_LEN: usize = 32;

/// The keys that seal tickets, shared by everybody in the process.
pub struct TicketKeys {
    keys: RwLock<Keys>,
}

struct Keys {
    current: Key,
    previous: Option<Key>,
}

struct Key {
    name: [u8; NAME_LEN],
    sealing: LessSafeKey,
    made: Instant,
}

impl Key {
    /// `None` if there is no randomness, which ends more than tickets.
    fn random(now: Instant) -> Option<Key> {
        let (mut name, mut secret) = ([0; NAME_LEN], [0; SECRET_LEN]);
        aws_lc_rs::rand::fill(&mut name).ok()?;
        aws_lc_rs::rand::fill(&mut secret).ok()?;
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &secret).ok()?);
        Some(Key { name, sealing, made: now })
    }
}

impl TicketKeys {
    /// Those of this process: what has happened, not what was configured, so every configuration seals with them.
    ///
    /// # Errors
    /// Where the system has no randomness.
    pub fn of_process() -> Result<Arc<TicketKeys>, Unspecified> {
        static KEYS: OnceLock<Arc<TicketKeys>> = OnceLock::new();
        match KEYS.get() {
            Some(keys) => Ok(Arc::clone(keys)),
            None => TicketKeys::new().map(|keys| Arc::clone(KEYS.get_or_init(|| keys))),
        }
    }

    fn new() -> Result<Arc<TicketKeys>, Unspecified> {
        let current = Key::random(Instant::now()).ok_or(Unspecified)?;
        Ok(Arc::new(TicketKeys { keys: RwLock::new(Keys { current, previous: None }) }))
    }

    fn seal(&self, scope: &Scope, plain: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.rotate(now);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = &keys.current;
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = Vec::with_capacity(NAME_LEN + NONCE_LEN + plain.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(&key.name);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let secret = &mut sealed[NAME_LEN + NONCE_LEN..];
        let tag = key.sealing.seal_in_place_separate_tag(nonce, Aad::from(scope), secret).ok()?;
        sealed.extend_from_slice(tag.as_ref());
        Some(sealed)
    }

    fn open(&self, scope: &Scope, sealed: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.rotate(now);
        let (name, rest) = sealed.split_at_checked(NAME_LEN)?;
        let (nonce, secret) = rest.split_at_checked(NONCE_LEN)?;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = [Some(&keys.current), keys.previous.as_ref()].into_iter().flatten().find(|key| key.name == *name)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut plain = secret.to_vec();
        let length = key.sealing.open_in_place(nonce, Aad::from(scope), &mut plain).ok()?.len();
        plain.truncate(length);
        Some(plain)
    }

    /// Makes a new key when it is time. What was sealed long ago cannot be opened any more then, by nobody.
    fn rotate(&self, now: Instant) {
        let is_due = |keys: &Keys| now.saturating_duration_since(keys.current.made) >= ROTATION;
        if !is_due(&self.keys.read().unwrap_or_else(PoisonError::into_inner)) {
            return;
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if is_due(&keys)
            && let Some(key) = Key::random(now)
        {
            let old = std::mem::replace(&mut keys.current, key);
            let fresh = now.saturating_duration_since(old.made) < 2 * ROTATION;
            keys.previous = fresh.then_some(old);
        }
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKeys")
    }
}

/// The tickets of configurations with the same scope.
#[derive(Debug)]
pub struct Tickets {
    keys: Arc<TicketKeys>,
    scope: Scope,
}

impl Tickets {
    pub fn new(keys: Arc<TicketKeys>, scope: Scope) -> Tickets {
        Tickets { keys, scope }
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        ROTATION.as_secs() as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys.seal(&self.scope, plain, Instant::now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys.open(&self.scope, cipher, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_opens_for_two_rotations_and_in_its_scope_alone() {
        let keys = TicketKeys::new().expect("there is randomness");
        let start = Instant::now();
        let (mine, other) = ([1; 32], [2; 32]);
        let sealed = keys.seal(&mine, b"a session", start).expect("it seals");
        assert_eq!(keys.open(&mine, &sealed, start).as_deref(), Some(&b"a session"[..]));
        assert_eq!(keys.open(&other, &sealed, start), None, "a session of other clients");
        let later = start + ROTATION + Duration::from_secs(1);
        assert!(keys.open(&mine, &sealed, later).is_some(), "the key before opens still");
        let much_later = later + ROTATION;
        assert_eq!(keys.open(&mine, &sealed, much_later), None, "its key is gone");
    }

    #[test]
    fn what_is_no_ticket_of_ours_does_not_open() {
        let keys = TicketKeys::new().expect("there is randomness");
        let now = Instant::now();
        let sealed = keys.seal(&[0; 32], b"a session", now).expect("it seals");
        for length in 0..sealed.len() {
            assert_eq!(keys.open(&[0; 32], &sealed[..length], now), None, "{length} bytes of it");
        }
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(keys.open(&[0; 32], &changed, now), None, "changed at {at}");
        }
        let stranger = TicketKeys::new().expect("there is randomness");
        assert_eq!(stranger.open(&[0; 32], &sealed, now), None);
    }
}
