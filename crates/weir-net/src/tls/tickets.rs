//! Session tickets: the state of a session, encrypted and stored by the client (RFC 5077, RFC 8446 §4.6.1). The keys belong to
//! the process and not to a configuration, so tickets survive reloads; they are handed to the process that replaces this one, so
//! tickets survive that as well.

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use rustls::server::ProducesTickets;

/// A digest of what must not differ between a session and its resumption, in addition to what TLS itself compares: the
/// requirements of client certificates. A ticket issued under one scope is invalid under another.
pub type Scope = [u8; 32];

/// A key encrypts tickets for this time, and decrypts them for the same time afterwards.
const ROTATION: Duration = Duration::from_secs(6 * 3600);
const NAME_LEN: usize = 16;
const SECRET_LEN: usize = 32;

static OF_PROCESS: OnceLock<Arc<TicketKeys>> = OnceLock::new();

/// The ticket keys, shared by all workers.
pub struct TicketKeys {
    keys: RwLock<TicketKeyPair>,
}

struct TicketKeyPair {
    current: Key,
    previous: Option<Key>,
}

struct Key {
    name: [u8; NAME_LEN],
    secret: [u8; SECRET_LEN],
    sealing: LessSafeKey,
    made: Instant,
}

/// Length of a key as handed over: name, secret, and its age in seconds.
const HANDED_LEN: usize = NAME_LEN + SECRET_LEN + size_of::<u64>();

impl Key {
    /// `None` if the system provides no randomness.
    fn random(now: Instant) -> Option<Key> {
        let (mut name, mut secret) = ([0; NAME_LEN], [0; SECRET_LEN]);
        aws_lc_rs::rand::fill(&mut name).ok()?;
        aws_lc_rs::rand::fill(&mut secret).ok()?;
        Key::new(name, secret, now)
    }

    fn new(name: [u8; NAME_LEN], secret: [u8; SECRET_LEN], made: Instant) -> Option<Key> {
        let sealing = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &secret).ok()?);
        Some(Key { name, secret, sealing, made })
    }

    fn hand_over(&self, now: Instant) -> [u8; HANDED_LEN] {
        let age = now.saturating_duration_since(self.made).as_secs().to_be_bytes();
        let mut handed = [0; HANDED_LEN];
        handed[..NAME_LEN].copy_from_slice(&self.name);
        handed[NAME_LEN..][..SECRET_LEN].copy_from_slice(&self.secret);
        handed[NAME_LEN + SECRET_LEN..].copy_from_slice(&age);
        handed
    }

    fn take_over(handed: &[u8; HANDED_LEN], now: Instant) -> Option<Key> {
        let (name, rest) = handed.split_first_chunk().expect("as long as its parts");
        let (secret, age) = rest.split_first_chunk().expect("as long as its parts");
        let age = u64::from_be_bytes(age.try_into().expect("what is left"));
        Key::new(*name, *secret, now.checked_sub(Duration::from_secs(age))?)
    }
}

impl TicketKeys {
    /// The keys of this process, used by every configuration.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub fn of_process() -> Result<Arc<TicketKeys>, Unspecified> {
        match OF_PROCESS.get() {
            Some(keys) => Ok(Arc::clone(keys)),
            None => TicketKeys::new().map(|keys| Arc::clone(OF_PROCESS.get_or_init(|| keys))),
        }
    }

    /// The keys in the form in which another process takes them over. They are secret. Empty if none were made.
    pub fn hand_over() -> Vec<u8> {
        OF_PROCESS.get().map_or_else(Vec::new, |keys| keys.handed_over(Instant::now()))
    }

    /// Takes over the keys of another process, if this one has none yet. `false` if they are invalid or not needed.
    pub fn take_over(handed: &[u8]) -> bool {
        let taken = TicketKeys::taken_over(handed, Instant::now());
        taken.is_some_and(|keys| OF_PROCESS.set(Arc::new(keys)).is_ok())
    }

    fn handed_over(&self, now: Instant) -> Vec<u8> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        [Some(&keys.current), keys.previous.as_ref()].into_iter().flatten().flat_map(|key| key.hand_over(now)).collect()
    }

    fn taken_over(handed: &[u8], now: Instant) -> Option<TicketKeys> {
        let (keys, rest) = handed.as_chunks();
        let mut keys = keys.iter().map(|key| Key::take_over(key, now));
        let (current, previous) = (keys.next()??, keys.next());
        let whole = rest.is_empty() && keys.next().is_none();
        let keys = TicketKeyPair { current, previous: previous.flatten() };
        whole.then(|| TicketKeys { keys: RwLock::new(keys) })
    }

    fn new() -> Result<Arc<TicketKeys>, Unspecified> {
        let current = Key::random(Instant::now()).ok_or(Unspecified)?;
        Ok(Arc::new(TicketKeys { keys: RwLock::new(TicketKeyPair { current, previous: None }) }))
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

    /// Makes a new key when the current one is old enough. The key before the previous one is discarded, so that tickets
    /// encrypted with it can never be decrypted.
    fn rotate(&self, now: Instant) {
        let is_due = |keys: &TicketKeyPair| now.saturating_duration_since(keys.current.made) >= ROTATION;
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

/// The ticketer of configurations with the same scope.
#[derive(Debug)]
pub(super) struct Tickets {
    keys: Arc<TicketKeys>,
    scope: Scope,
}

impl Tickets {
    pub(super) fn new(keys: Arc<TicketKeys>, scope: Scope) -> Tickets {
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

/// Issues tickets and accepts none, so every handshake is a full one.
#[derive(Debug)]
pub(super) struct FullHandshakes(pub Arc<Tickets>);

impl ProducesTickets for FullHandshakes {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(plain)
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
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
    fn handed_over_keys_open_earlier_tickets_and_keep_their_rotation() {
        let keys = TicketKeys::new().expect("there is randomness");
        let start = Instant::now();
        let older = keys.seal(&[1; 32], b"older", start).expect("it seals");
        let later = start + ROTATION + Duration::from_secs(1);
        let newer = keys.seal(&[1; 32], b"newer", later).expect("it seals");
        let handed = keys.handed_over(later + Duration::from_secs(10));
        assert_eq!(handed.len(), 2 * HANDED_LEN);
        let next = TicketKeys::taken_over(&handed, later + Duration::from_secs(10)).expect("they are whole");
        for sealed in [&older, &newer] {
            assert!(next.open(&[1; 32], sealed, later + Duration::from_secs(10)).is_some());
        }
        let much_later = later + ROTATION;
        assert_eq!(next.open(&[1; 32], &older, much_later), None, "its key has had its time");
        assert!(next.open(&[1; 32], &newer, much_later).is_some());
        for length in 0..handed.len() {
            let part = TicketKeys::taken_over(&handed[..length], later);
            assert_eq!(part.is_some(), length == HANDED_LEN, "{length} bytes of it");
        }
    }

    #[test]
    fn foreign_and_changed_tickets_do_not_open() {
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
