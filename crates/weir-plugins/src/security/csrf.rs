use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::proto::{Method, field};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop, Variable, Variables};

use crate::answer::RefusalResponse;

/// Protects against cross-site request forgery (CSRF) with a double-submit token.
///
/// Every response sets the token as a cookie. A request with a method other than GET, HEAD and OPTIONS must send the
/// token twice: as the cookie, which browsers add to requests from any page, and as a header field, which only pages of
/// this origin can set. Otherwise the request is refused with 401.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Csrf {
    /// The secret that tokens are signed with.
    #[schemars(length(min = 1))]
    key: String,
    /// The name of the cookie and of the header field.
    #[serde(default = "default_name")]
    name: String,
    /// The lifetime of a token, in seconds; 0 means that tokens do not expire.
    #[serde(default = "default_expires")]
    #[schemars(range(max = MAX_EXPIRES))]
    #[schemars(extend("x-weir-unit" = "s"))]
    expires: u64,
}

fn default_name() -> String {
    "apisix-csrf-token".to_owned()
}

fn default_expires() -> u64 {
    7200
}

impl Definition for Csrf {
    const NAME: &'static str = "csrf";
    const PRIORITY: i32 = 2980;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = "csrf: { key: a-long-secret, expires: 3600 }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if !field::is_name(self.name.as_bytes()) {
            return Err(ConfigError::new("name", "is not a valid name for a cookie and a header field"));
        }
        Ok(Arc::new(Guard {
            key: hmac::Key::new(hmac::HMAC_SHA256, self.key.as_bytes()),
            cookie: Variable::Cookie(self.name.as_str().into()),
            name: self.name,
            expires: self.expires,
        }))
    }
}

/// Browsers keep no cookie for longer than 400 days.
const MAX_EXPIRES: u64 = 400 * 86_400;

struct Guard {
    key: hmac::Key,
    name: String,
    cookie: Variable,
    expires: u64,
}

/// The content of a token: JSON, in base64.
#[derive(Serialize, Deserialize)]
struct CsrfToken {
    random: String,
    /// Seconds since 1970.
    expires: u64,
    sign: String,
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Guard {
    fn issue(&self, now: u64) -> String {
        let random = format!("{:032x}", rand::random::<u128>());
        let expires = now + self.expires;
        let sign = STANDARD.encode(hmac::sign(&self.key, signed(&random, expires).as_bytes()));
        STANDARD.encode(serde_json::to_vec(&CsrfToken { random, expires, sign }).expect("strings and numbers are JSON"))
    }

    /// Whether the token was issued with this key, and has not expired.
    fn is_good(&self, token: &[u8], now: u64) -> bool {
        let parsed = STANDARD.decode(token).ok().and_then(|json| serde_json::from_slice::<CsrfToken>(&json).ok());
        let Some(CsrfToken { random, expires, sign }) = parsed else { return false };
        let Ok(sign) = STANDARD.decode(sign) else { return false };
        let is_ours = hmac::verify(&self.key, signed(&random, expires).as_bytes(), &sign).is_ok();
        is_ours && (self.expires == 0 || now <= expires)
    }

    /// Why a request is refused; `None` if it is allowed.
    fn fault(&self, exchange: &Exchange) -> Option<&'static str> {
        let Some(in_header) = exchange.request.head.value(self.name.as_bytes()).filter(|token| !token.is_empty())
        else {
            return Some("no csrf token in headers");
        };
        let Some(in_cookie) = exchange.variable(&self.cookie) else {
            return Some("no csrf cookie");
        };
        if in_header != &*in_cookie {
            return Some("csrf token mismatch");
        }
        (!self.is_good(in_header, unix_seconds())).then_some("Failed to verify the csrf token signature")
    }
}

fn signed(random: &str, expires: u64) -> String {
    format!("{random}.{expires}")
}

impl Plugin for Guard {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::RESPONSE)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if matches!(exchange.request.method, Method::Get | Method::Head | Method::Options) {
            return Ok(Flow::Continue);
        }
        match self.fault(exchange) {
            None => Ok(Flow::Continue),
            Some(fault) => Err(RefusalResponse::new(401, "error_msg", fault).send(exchange)),
        }
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let now = unix_seconds();
        let mut cookie = format!("{}={};path=/;SameSite=Lax", self.name, self.issue(now));
        if self.expires > 0 {
            let until = UNIX_EPOCH + Duration::from_secs(now + self.expires);
            cookie.push_str(&format!(";Expires={}", httpdate::fmt_http_date(until)));
        }
        exchange.response.head.add(b"Set-Cookie", cookie.as_bytes()).map_err(|_| Stop::Internal)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, refused, sent};

    /// The token in the cookie of a response.
    fn token(step: &Arc<dyn Plugin>) -> String {
        let mut exchange = get("/");
        assert_eq!(on_request(step, &mut exchange), Ok(()));
        step.on_response(&mut exchange).expect("let through");
        let cookie = sent(&exchange, "set-cookie").expect("a cookie").to_owned();
        assert!(cookie.contains(";path=/;SameSite=Lax;Expires="), "{cookie}");
        let value = cookie.strip_prefix("apisix-csrf-token=").expect("its name");
        value.split(';').next().expect("a value").to_owned()
    }

    fn post(step: &Arc<dyn Plugin>, fields: &str) -> Result<(), String> {
        let mut exchange = exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Length: 0\n{fields}"));
        on_request(step, &mut exchange).map_err(|stop| {
            assert_eq!((stop, exchange.response.status), (Stop::Answered, 401));
            body(&exchange).to_owned()
        })
    }

    #[test]
    fn the_token_must_come_twice() {
        let step = build::<Csrf>(json!({"key": "k"}));
        let (token, other) = (token(&step), token(&step));
        let said = |text: &str| Err(format!("{{\"error_msg\":\"{text}\"}}\n"));
        assert_eq!(post(&step, &format!("apisix-csrf-token: {token}\nCookie: a=b; apisix-csrf-token={token}")), Ok(()));
        assert_eq!(post(&step, &format!("Cookie: apisix-csrf-token={token}")), said("no csrf token in headers"));
        assert_eq!(post(&step, &format!("apisix-csrf-token: {token}")), said("no csrf cookie"));
        let mixed = format!("apisix-csrf-token: {token}\nCookie: apisix-csrf-token={other}");
        assert_eq!(post(&step, &mixed), said("csrf token mismatch"));
        for forged in ["x", "e30=", &build_forged()] {
            let fields = format!("apisix-csrf-token: {forged}\nCookie: apisix-csrf-token={forged}");
            assert_eq!(post(&step, &fields), said("Failed to verify the csrf token signature"), "{forged}");
        }
    }

    /// A token signed with another key.
    fn build_forged() -> String {
        token(&build::<Csrf>(json!({"key": "another"})))
    }

    #[test]
    fn tokens_expire() {
        let guard = |expires| Guard {
            key: hmac::Key::new(hmac::HMAC_SHA256, b"k"),
            cookie: Variable::Cookie("t".into()),
            name: "t".to_owned(),
            expires,
        };
        let token = guard(10).issue(1000);
        assert!(guard(10).is_good(token.as_bytes(), 1010));
        assert!(!guard(10).is_good(token.as_bytes(), 1011));
        assert!(guard(0).is_good(token.as_bytes(), 9999));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `key` is missing"),
            (json!({"key": ""}), "key: is empty"),
            (json!({"key": "k", "name": "a b"}), "name: is not a valid name"),
        ] {
            let error = refused::<Csrf>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
