//! The gateway's own token at Keycloak, with which it looks up resources. Each worker keeps one for each plugin.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use weir_plugin::PerWorker;

/// How long no token is asked for after one was refused: each request would ask again, and those that wait would do so one by one.
const PAUSE: Duration = Duration::from_secs(1);

/// How long a kind of token lives.
#[derive(Clone, Copy)]
pub(crate) struct TokenLife {
    /// If Keycloak does not state it.
    default_s: u64,
    /// It is not used in its last seconds.
    leeway_s: u64,
}

impl TokenLife {
    pub(crate) fn new(default_s: u64, leeway_s: u64) -> TokenLife {
        TokenLife { default_s, leeway_s }
    }

    /// How long a token is used whose lifetime is a member of an answer. One second is for its way.
    fn usable(self, stated: Option<&Value>) -> Duration {
        let life_s = stated.and_then(Value::as_u64).unwrap_or(self.default_s).min(u64::from(u32::MAX));
        Duration::from_secs(life_s.saturating_sub(1 + self.leeway_s))
    }
}

/// The tokens of a plugin.
pub(crate) struct OwnTokens {
    pub access: TokenLife,
    pub refresh: TokenLife,
    pub kept_for: Duration,
    pub state: PerWorker<OwnTokenState>,
}

/// What a worker knows.
#[derive(Default)]
pub(crate) struct OwnTokenState {
    known: RefCell<KnownToken>,
    /// Held while a token is asked for; other exchanges wait for it.
    pub asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct KnownToken {
    access: Option<(Rc<str>, Instant)>,
    refresh: Option<(Rc<str>, Instant)>,
    /// When the last request for a token has failed, and why.
    failed: Option<(Instant, Rc<str>)>,
}

impl OwnTokens {
    /// The token that is kept, or why there was none a moment ago.
    pub(crate) fn find(&self) -> Option<Result<Rc<str>, Rc<str>>> {
        let state = self.state.get();
        let known = state.known.borrow();
        let now = Instant::now();
        let access = known.access.as_ref().filter(|(_, until)| now < *until).map(|(token, _)| Ok(Rc::clone(token)));
        let failed = known.failed.as_ref().filter(|(at, _)| at.elapsed() < PAUSE);
        access.or_else(|| failed.map(|(_, why)| Err(Rc::clone(why))))
    }

    /// The refresh token that is kept. It is used once.
    pub(crate) fn take_refresh(&self) -> Option<Rc<str>> {
        let refresh = self.state.get().known.borrow_mut().refresh.take()?;
        (Instant::now() < refresh.1).then_some(refresh.0)
    }

    /// Keeps the tokens of an answer of the token endpoint. `None` if it has none.
    pub(crate) fn keep(&self, answer: &Map<String, Value>) -> Option<Rc<str>> {
        let text = |name: &str| answer.get(name).and_then(Value::as_str).map(Rc::<str>::from);
        let access = text("access_token")?;
        let until = |life: Duration| Instant::now() + life.min(self.kept_for);
        let access_until = until(self.access.usable(answer.get("expires_in")));
        let refresh_until = until(self.refresh.usable(answer.get("refresh_expires_in")));
        *self.state.get().known.borrow_mut() = KnownToken {
            access: Some((Rc::clone(&access), access_until)),
            refresh: text("refresh_token").map(|token| (token, refresh_until)),
            failed: None,
        };
        Some(access)
    }

    /// Forgets a token that Keycloak does not accept, if it is still the one that is kept.
    pub(crate) fn forget(&self, token: &str) {
        let state = self.state.get();
        let known = &mut *state.known.borrow_mut();
        if known.access.as_ref().is_some_and(|(kept, _)| **kept == *token) {
            *known = KnownToken::default();
        }
    }

    /// Forgets a new token that Keycloak does not accept, and keeps the reason. A token that has taken its place meanwhile stays.
    pub(crate) fn refused(&self, token: &str, why: &str) {
        self.forget(token);
        let is_replaced = self.state.get().known.borrow().access.is_some();
        if !is_replaced {
            self.fail(why);
        }
    }

    /// Keeps the reason why there is no token.
    pub(crate) fn fail(&self, why: &str) {
        let failed = Some((Instant::now(), why.into()));
        *self.state.get().known.borrow_mut() = KnownToken { failed, ..KnownToken::default() };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_plugin::Build;

    use super::*;

    fn tokens(access: TokenLife) -> OwnTokens {
        let build = Build::default();
        let state = build.per_worker("test-own-token", &format!("{}", access.default_s), OwnTokenState::default);
        OwnTokens { access, refresh: TokenLife::new(60, 0), kept_for: Duration::from_secs(100), state }
    }

    fn answer(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn tokens_are_used_until_shortly_before_their_end() {
        let life = TokenLife::new(300, 10);
        assert_eq!(life.usable(None), Duration::from_secs(289));
        assert_eq!(life.usable(Some(&json!(60))), Duration::from_secs(49));
        assert_eq!(life.usable(Some(&json!(5))), Duration::ZERO);
    }

    #[test]
    fn a_token_is_kept_until_its_end_or_until_it_is_refused() {
        let tokens = tokens(TokenLife::new(50, 0));
        assert_eq!(tokens.find(), None);
        assert_eq!(tokens.keep(&answer(json!({"expires_in": 5}))), None, "there is no token in it");
        let kept = tokens.keep(&answer(json!({"access_token": "a", "refresh_token": "r"})));
        assert_eq!((kept.as_deref(), tokens.find()), (Some("a"), Some(Ok("a".into()))));
        tokens.forget("another");
        assert_eq!(tokens.find(), Some(Ok("a".into())));
        assert_eq!((tokens.take_refresh().as_deref(), tokens.take_refresh()), (Some("r"), None));
        tokens.forget("a");
        assert_eq!(tokens.find(), None);
        tokens.keep(&answer(json!({"access_token": "b", "expires_in": 1})));
        assert_eq!(tokens.find(), None, "it is at its end");
        tokens.keep(&answer(json!({"access_token": "c"})));
        tokens.refused("b", "not accepted");
        assert_eq!(tokens.find(), Some(Ok("c".into())), "it was kept after `b` was refused");
        tokens.refused("c", "not accepted");
        assert_eq!(tokens.find(), Some(Err("not accepted".into())));
        tokens.fail("gone");
        assert_eq!((tokens.find(), tokens.take_refresh()), (Some(Err("gone".into())), None));
    }
}
