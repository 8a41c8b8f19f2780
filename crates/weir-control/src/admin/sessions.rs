//! Sessions of browsers: after a log-in with a key or a token, a cookie and a header field stand for it.
//!
//! A cookie alone proves nothing on a loopback address: browsers send it to every port of the host, and with requests of pages of
//! every other port. So each request has a second secret in a field that only a script of the same origin can set, and scripts
//! cannot read the cookie. Sessions are in memory and end with the process.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use weir_proto::address::client_network;

use super::tokens::TokenCaller;
use crate::stores::live::now_ms;

/// How long a session lasts at most.
const LIFETIME: Duration = Duration::from_secs(8 * 60 * 60);
/// The most sessions of a node. Beyond that, a further log-in ends the oldest one of the key or token that has the most.
const MOST_SESSIONS: usize = 256;
/// The most sessions of one key or token; a further log-in ends the oldest.
const MOST_OF_CALLER: usize = 16;
/// A client address may fail to log in so often in a row, and then once in each [`LOG_IN_INTERVAL`].
const MOST_LOG_INS: u32 = 20;
const LOG_IN_INTERVAL: Duration = Duration::from_secs(6);
/// The most client addresses whose log-ins are counted. Beyond that, all others count together.
const MOST_ADDRESSES: usize = 4_096;
/// Random bytes of each secret.
const SECRET: usize = 32;

pub(super) type SecretHash = [u8; 32];

/// The sessions of a node.
#[derive(Default)]
pub(super) struct AdminSessions(Mutex<SessionTable>);

#[derive(Default)]
struct SessionTable {
    /// By the hash of the token.
    open: HashMap<SecretHash, AdminSession>,
    log_ins: HashMap<Option<IpAddr>, LogInBudget>,
}

/// What the log-in has proved. A key is looked up again at each request, so that a session ends with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SessionOrigin {
    /// The name and hash of a key.
    Key(Box<str>, [u8; 32]),
    /// A caller that a token has named, whose rights are those of the log-in. The session ends with the token at the latest.
    Token(TokenCaller),
}

/// An open session.
#[derive(Clone, Debug)]
pub(super) struct AdminSession {
    pub(super) origin: SessionOrigin,
    cookie: SecretHash,
    begun: Instant,
    /// How long it lasts.
    lifetime: Duration,
    /// In milliseconds since 1970.
    pub(super) expires_ms: u64,
}

/// The two secrets of a new session, in hexadecimal digits.
#[derive(Debug)]
pub(super) struct SessionSecrets {
    pub(super) token: String,
    pub(super) cookie: String,
    /// How long the session lasts.
    pub(super) lifetime: Duration,
    pub(super) expires_ms: u64,
}

/// The log-ins that a client address has left.
struct LogInBudget {
    left: u32,
    since: Instant,
}

/// Why no session begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionRefusal {
    /// All sessions are in use by others, each of which has one.
    TooMany,
    /// The random number generator failed.
    NoRandom,
}

impl AdminSessions {
    /// Begins a session.
    pub(super) fn begin(&self, origin: SessionOrigin) -> Result<SessionSecrets, SessionRefusal> {
        let (token, cookie) = (secret()?, secret()?);
        let now = Instant::now();
        let mut table = self.table();
        table.open.retain(|_, session| session.is_open(now));
        let is_own = |session: &AdminSession| session.origin.name() == origin.name();
        if table.open.values().filter(|session| is_own(session)).count() >= MOST_OF_CALLER {
            let own = table.open.iter().filter(|(_, session)| is_own(session));
            let oldest = own.min_by_key(|(_, session)| session.begun).map(|(token, _)| *token);
            oldest.map(|token| table.open.remove(&token));
        }
        if table.open.len() >= MOST_SESSIONS && !table.end_one_of_many() {
            return Err(SessionRefusal::TooMany);
        }
        let now_ms = now_ms();
        let lifetime = origin.lifetime(now_ms);
        let expires_ms = now_ms.saturating_add(lifetime.as_millis() as u64);
        let session = AdminSession { origin, cookie: hash(&cookie), begun: now, lifetime, expires_ms };
        table.open.insert(hash(&token), session);
        Ok(SessionSecrets { token, cookie, lifetime, expires_ms })
    }

    /// The session of a token and a cookie, if both belong to it and it has not ended.
    pub(super) fn of(&self, token: &str, cookie: &str) -> Option<AdminSession> {
        let table = self.table();
        // The time of a look-up by hash says nothing about the token.
        let session = table.open.get(&hash(token))?;
        let is_own = verify_slices_are_equal(&session.cookie, &hash(cookie)).is_ok();
        (is_own && session.is_open(Instant::now())).then(|| session.clone())
    }

    /// Whether the session of a token has not ended.
    pub(super) fn is_open(&self, token: &str) -> bool {
        self.table().open.get(&hash(token)).is_some_and(|session| session.is_open(Instant::now()))
    }

    pub(super) fn end(&self, token: &str) {
        self.table().open.remove(&hash(token));
    }

    /// Takes a log-in that may fail from the budget of a client address; otherwise returns how long until there is one.
    pub(super) fn take_log_in(&self, address: Option<IpAddr>) -> Result<(), Duration> {
        let (now, mut table) = (Instant::now(), self.table());
        let refilled = |budget: &LogInBudget| {
            let more = now.duration_since(budget.since).as_secs() / LOG_IN_INTERVAL.as_secs();
            u32::try_from(more).unwrap_or(u32::MAX)
        };
        if table.log_ins.len() >= MOST_ADDRESSES {
            table.log_ins.retain(|_, budget| budget.left.saturating_add(refilled(budget)) < MOST_LOG_INS);
        }
        let network = address.map(client_network);
        let is_counted = table.log_ins.len() < MOST_ADDRESSES || table.log_ins.contains_key(&network);
        let budget = table.log_ins.entry(network.filter(|_| is_counted));
        let budget = budget.or_insert(LogInBudget { left: MOST_LOG_INS, since: now });
        let more = refilled(budget);
        budget.left = budget.left.saturating_add(more).min(MOST_LOG_INS);
        budget.since += LOG_IN_INTERVAL.saturating_mul(more);
        if budget.left == 0 {
            return Err(LOG_IN_INTERVAL.saturating_sub(now.duration_since(budget.since)));
        }
        if budget.left == MOST_LOG_INS {
            budget.since = now;
        }
        budget.left -= 1;
        Ok(())
    }

    /// Gives back what was taken for a log-in that has not failed.
    pub(super) fn give_back_log_in(&self, address: Option<IpAddr>) {
        let mut table = self.table();
        let key = address.map(client_network);
        // Where too many addresses are counted, the others share one budget.
        let key = if table.log_ins.contains_key(&key) { key } else { None };
        if let Some(budget) = table.log_ins.get_mut(&key) {
            budget.left = budget.left.saturating_add(1).min(MOST_LOG_INS);
        }
    }

    fn table(&self) -> MutexGuard<'_, SessionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    /// Ends the oldest session of the key or token that has the most; `false` if none has more than one.
    fn end_one_of_many(&mut self) -> bool {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for session in self.open.values() {
            *counts.entry(session.origin.name()).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
        let Some((name, _)) = most else { return false };
        let own = self.open.iter().filter(|(_, session)| session.origin.name() == name);
        let oldest = own.min_by_key(|(_, session)| session.begun).map(|(token, _)| *token);
        oldest.is_some_and(|token| self.open.remove(&token).is_some())
    }
}

impl AdminSession {
    fn is_open(&self, now: Instant) -> bool {
        now.duration_since(self.begun) < self.lifetime
    }
}

impl SessionOrigin {
    /// The name of the key or token.
    fn name(&self) -> &str {
        match self {
            SessionOrigin::Key(name, _) => name,
            SessionOrigin::Token(token) => &token.caller.name,
        }
    }

    /// How long a session lasts that begins at this time.
    fn lifetime(&self, now_ms: u64) -> Duration {
        match self {
            SessionOrigin::Key(..) => LIFETIME,
            SessionOrigin::Token(token) => LIFETIME.min(Duration::from_millis(token.until_ms.saturating_sub(now_ms))),
        }
    }
}

pub(super) fn hash(secret: &str) -> SecretHash {
    digest(&SHA256, secret.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Random bytes in hexadecimal digits.
pub(super) fn secret() -> Result<String, SessionRefusal> {
    let mut random = [0; SECRET];
    aws_lc_rs::rand::fill(&mut random).map_err(|_| SessionRefusal::NoRandom)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::keys::Caller;
    use super::*;
    use crate::document::AdminRole;

    fn of_key(name: &str) -> SessionOrigin {
        SessionOrigin::Key(name.into(), [1; 32])
    }

    #[test]
    fn a_session_needs_both_secrets_of_its_own() {
        let sessions = AdminSessions::default();
        let one = sessions.begin(of_key("a")).expect("a session");
        let two = sessions.begin(of_key("a")).expect("a session");
        assert_eq!(sessions.of(&one.token, &one.cookie).map(|session| session.origin), Some(of_key("a")));
        for (token, cookie) in [(&one.token, &two.cookie), (&one.cookie, &one.token), (&one.token, &String::new())] {
            assert!(sessions.of(token, cookie).is_none());
        }
        sessions.end(&one.token);
        assert!(sessions.of(&one.token, &one.cookie).is_none() && !sessions.is_open(&one.token));
        assert!(sessions.of(&two.token, &two.cookie).is_some());
    }

    #[test]
    fn a_session_ends_with_the_token_that_it_was_begun_with() {
        let sessions = AdminSessions::default();
        let begin = |until_ms: u64| {
            let caller = Caller { name: "token:a".into(), role: AdminRole::Viewer, scopes: Arc::default() };
            sessions.begin(SessionOrigin::Token(TokenCaller { caller, until_ms })).expect("a session")
        };
        let ended = begin(now_ms());
        assert!(sessions.of(&ended.token, &ended.cookie).is_none() && !sessions.is_open(&ended.token));
        let until_ms = now_ms() + 60_000;
        let short = begin(until_ms);
        assert!(sessions.is_open(&short.token) && short.expires_ms <= until_ms, "{short:?}");
        assert_eq!(begin(u64::MAX).lifetime, LIFETIME);
    }

    #[test]
    fn sessions_are_bounded_for_each_key_and_in_all() {
        let sessions = AdminSessions::default();
        let first = sessions.begin(of_key("a")).expect("a session");
        let own: Vec<_> = (0..MOST_OF_CALLER).map(|_| sessions.begin(of_key("a")).expect("a session")).collect();
        assert!(!sessions.is_open(&first.token), "the oldest gives way");
        assert!(own.iter().all(|session| sessions.is_open(&session.token)));
        for number in 0..MOST_SESSIONS - MOST_OF_CALLER {
            sessions.begin(of_key(&format!("k{number}"))).expect("a session");
        }
        sessions.begin(of_key("b")).expect("in place of one of many");
        assert!(
            !sessions.is_open(&own[0].token) && sessions.is_open(&own[1].token),
            "the oldest of those that have most"
        );
        for number in 1..MOST_OF_CALLER - 1 {
            sessions.begin(of_key(&format!("b{number}"))).expect("in place of one of many");
        }
        assert_eq!(sessions.begin(of_key("c")).err(), Some(SessionRefusal::TooMany), "each has one");
    }

    #[test]
    fn log_ins_of_an_address_are_limited_and_those_of_others_are_not() {
        let sessions = AdminSessions::default();
        let [one, other] = [Some([10, 0, 0, 1].into()), Some([10, 0, 0, 2].into())];
        for _ in 0..MOST_LOG_INS {
            sessions.take_log_in(one).expect("within the limit");
        }
        sessions.give_back_log_in(one);
        sessions.take_log_in(one).expect("the one that has not failed");
        let wait = sessions.take_log_in(one).expect_err("beyond the limit");
        assert!(wait <= LOG_IN_INTERVAL && !wait.is_zero(), "{wait:?}");
        sessions.take_log_in(other).expect("another address");
        for number in 0..2 * MOST_ADDRESSES as u32 {
            let _ = sessions.take_log_in(Some(std::net::Ipv4Addr::from(number).into()));
        }
        assert!(sessions.table().log_ins.len() <= MOST_ADDRESSES + 1);
        assert!(sessions.take_log_in(one).is_err(), "it is not forgotten");
    }
}
