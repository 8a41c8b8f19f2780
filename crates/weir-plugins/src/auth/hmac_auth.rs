use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::field;
use weir_plugin::{
    Authenticator, Build, ConfigError, Consumers, Credential, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop,
};

use crate::auth::credentials::{Unauthenticated, hide_authorization};
use crate::clock;
use crate::store::counters::{CounterTable, PackedCounter};

mod body;

use body::Digested;

/// Requires requests that are signed with the secret of a consumer (HMAC). The secret itself is never sent.
///
/// A request has the field `Authorization: Signature keyId="...",algorithm="hmac-sha256",headers="@request-target
/// date", signature="..."`. The signed text consists of lines that each end in a line feed: first the key id, then one
/// line for each entry of `headers`. The line for `@request-target` is the method and the request target, the line for
/// a header field is `name: value`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HmacAuth {
    /// The algorithms that are accepted.
    #[serde(default = "default_allowed_algorithms")]
    #[schemars(length(min = 1))]
    allowed_algorithms: Vec<HmacAlgorithm>,
    /// The maximum difference between the field `Date` and the gateway's clock, in seconds. So a client has to sign `date`,
    /// even if it is not in `signed_headers`: an attacker could change the date of a captured request if it were not signed.
    #[serde(default = "default_clock_skew")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "s"))]
    clock_skew: u64,
    /// Header fields that clients must sign. The default leaves the method and the target unsigned, so an attacker who
    /// captures a request can reuse its signature for a different request; `weir check` warns of that.
    #[serde(default = "default_signed_headers")]
    signed_headers: Vec<String>,
    /// Refuses a signature that was already used within `clock_skew`, on any worker of this gateway. Clients that send
    /// identical requests within one second need a signed field that differs, such as `X-Nonce`. Not in APISIX.
    #[serde(default)]
    refuse_replays: bool,
    /// Verifies the body against the field `Digest: SHA-256=...`, which is then required. An unsigned digest proves
    /// nothing, so add `digest` to `signed_headers`.
    #[serde(default)]
    validate_request_body: bool,
    /// The largest body that is read for the digest, in bytes. A larger body is refused with 413.
    #[serde(default = "default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
    /// Removes the field `Authorization` before the request is forwarded. APISIX's default is `false`.
    #[serde(default = "default_true")]
    hide_credentials: bool,
    /// The consumer that requests without a valid signature are attributed to, instead of being refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "default_realm")]
    #[schemars(length(min = 1, max = 128))]
    realm: String,
}

/// A secret that requests are signed with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SigningCredential {
    /// The `keyId` in requests, which identifies the secret. Two consumers cannot have the same `key_id`.
    #[schemars(length(min = 1, max = 256))]
    key_id: String,
    /// The secret.
    #[schemars(length(min = 1, max = 256))]
    secret_key: String,
}

/// How a request is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum HmacAlgorithm {
    #[serde(rename = "hmac-sha1")]
    Sha1,
    #[serde(rename = "hmac-sha256")]
    Sha256,
    #[serde(rename = "hmac-sha512")]
    Sha512,
}

impl HmacAlgorithm {
    fn parse(name: &str) -> Option<HmacAlgorithm> {
        Some(match name {
            "hmac-sha1" => HmacAlgorithm::Sha1,
            "hmac-sha256" => HmacAlgorithm::Sha256,
            "hmac-sha512" => HmacAlgorithm::Sha512,
            _ => return None,
        })
    }

    fn key(self, secret: &[u8]) -> hmac::Key {
        let algorithm = match self {
            HmacAlgorithm::Sha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            HmacAlgorithm::Sha256 => hmac::HMAC_SHA256,
            HmacAlgorithm::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::Key::new(algorithm, secret)
    }
}

fn default_allowed_algorithms() -> Vec<HmacAlgorithm> {
    vec![HmacAlgorithm::Sha1, HmacAlgorithm::Sha256, HmacAlgorithm::Sha512]
}

fn default_clock_skew() -> u64 {
    300
}

fn default_signed_headers() -> Vec<String> {
    vec!["date".to_owned()]
}

fn default_max_req_body_size() -> u64 {
    64 << 20
}

fn default_true() -> bool {
    true
}

fn default_realm() -> String {
    "hmac".to_owned()
}

impl Definition for HmacAuth {
    const NAME: &'static str = "hmac-auth";
    const PRIORITY: i32 = 2530;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        "hmac-auth: { allowed_algorithms: [hmac-sha256], signed_headers: [\"@request-target\", date] }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.validate_request_body && !self.signed_headers.iter().any(|name| name.eq_ignore_ascii_case("digest")) {
            let problem = "lets clients leave the digest of the body unsigned; add `digest` to `signed_headers`";
            build.warnings.push(ConfigError::new("validate_request_body", problem));
        }
        for (index, name) in self.signed_headers.iter().enumerate() {
            if name != TARGET && !field::is_name(name.as_bytes()) {
                let problem = format!("is neither the name of a header field nor `{TARGET}`");
                build.fault(format!("signed_headers[{index}]"), problem);
            }
        }
        if !self.signed_headers.iter().any(|name| name == TARGET) {
            let problem = format!(
                "leaves the method and the target unsigned: a captured signature works for other requests for {} s; \
                 add `{TARGET}`",
                self.clock_skew
            );
            build.warnings.push(ConfigError::new("signed_headers", problem));
        }
        Ok(Arc::new(HmacAuthenticator {
            used: self.refuse_replays.then(|| UsedSignatures::new(self.clock_skew, build)),
            algorithms: self.allowed_algorithms,
            skew: Duration::from_secs(self.clock_skew),
            required: self.signed_headers,
            hide: self.hide_credentials,
            body: self.validate_request_body.then(|| Digested::new(self.max_req_body_size)),
            keys: build.consumers().index(HmacKeys::new),
            unauthenticated: Unauthenticated::new("hmac", &self.realm, self.anonymous_consumer.as_deref(), build)?,
        }))
    }
}

impl Authenticator for HmacAuth {
    type Credential = SigningCredential;

    fn check(credential: SigningCredential) -> Result<String, ConfigError> {
        if credential.key_id.contains(['"', '\n', '\r']) {
            return Err(ConfigError::new(
                "key_id",
                "must not contain quotes or line ends, because a request cannot send them",
            ));
        }
        Ok(credential.key_id)
    }
}

/// The secrets of all consumers, by id.
struct HmacKeys(HashMap<Box<str>, HmacKey>);

struct HmacKey {
    secret: Box<[u8]>,
    credential: Arc<Credential>,
}

impl HmacKeys {
    fn new(consumers: &Consumers) -> HmacKeys {
        let known = consumers.credentials(HmacAuth::NAME).iter().filter_map(|credential| {
            let SigningCredential { key_id, secret_key } = HmacAuth::read(credential)?;
            let known = HmacKey { secret: secret_key.into_bytes().into(), credential: Arc::clone(credential) };
            Some((key_id.into(), known))
        });
        HmacKeys(known.collect())
    }
}

/// In the list of signed fields, stands for the method and the target.
const TARGET: &str = "@request-target";

/// The parameters of the signature in a request.
#[derive(Default)]
struct SignatureFields<'a> {
    key_id: Option<&'a str>,
    algorithm: Option<&'a str>,
    headers: Option<&'a str>,
    signature: Option<&'a str>,
}

impl<'a> SignatureFields<'a> {
    /// Parses `name="value"` separated by commas; `None` if a parameter is unknown, repeated or malformed.
    fn parse(text: &'a str) -> Option<SignatureFields<'a>> {
        let mut shown = SignatureFields::default();
        let mut rest = text.trim_ascii();
        loop {
            let (name, after) = rest.split_once("=\"")?;
            let (value, after) = after.split_once('"')?;
            let place = match name.trim_ascii() {
                "keyId" => &mut shown.key_id,
                "algorithm" => &mut shown.algorithm,
                "headers" => &mut shown.headers,
                "signature" => &mut shown.signature,
                _ => return None,
            };
            if place.replace(value).is_some() {
                return None;
            }
            rest = after.trim_ascii_start();
            match rest.strip_prefix(',') {
                Some(after) => rest = after,
                None => return rest.is_empty().then_some(shown),
            }
        }
    }
}

/// Signatures that have been used, kept for as long as they could be replayed.
struct UsedSignatures {
    table: Arc<CounterTable<UsedSignature>>,
    /// For how long, in seconds: by the largest `clock_skew` of all routes, since a signature may be replayed on another route than
    /// that of its first use.
    kept_s: Arc<AtomicU64>,
}

/// The time until which a signature must not be used again, in seconds since 1970.
#[derive(Clone, Copy)]
struct UsedSignature(u64);

impl PackedCounter for UsedSignature {
    fn from_bits(bits: u128) -> UsedSignature {
        UsedSignature(bits as u64)
    }

    fn bits(self) -> u128 {
        u128::from(self.0)
    }

    fn is_live(self, now_s: u64) -> bool {
        self.0 > now_s
    }

    /// When the table is full, the entry that expires first is replaced first.
    fn weight(self, _: u64) -> u64 {
        self.0
    }
}

/// The most signatures at a time: a million, in at most 16 MiB.
const MOST_SIGNATURES: usize = 1 << 20;

impl UsedSignatures {
    fn new(skew_s: u64, build: &Build) -> UsedSignatures {
        // Twice the skew: a date may be ahead of the gateway's clock by as much as it may be behind.
        let kept_s = skew_s.saturating_mul(2).saturating_add(1);
        let longest: Arc<AtomicU64> = build.shared("hmac-used-for", "", AtomicU64::default);
        longest.fetch_max(kept_s, Ordering::Relaxed);
        let table = build.shared("hmac-used", "", || CounterTable::passed_on("hmac-auth", MOST_SIGNATURES));
        UsedSignatures { table, kept_s: longest }
    }

    /// Whether the signature is used for the first time.
    fn take(&self, signature: &[u8]) -> bool {
        let now_s = clock::now().as_secs();
        let until = UsedSignature(now_s.saturating_add(self.kept_s.load(Ordering::Relaxed)));
        self.table.update(self.table.key(0, signature), now_s, |used| match used.is_live(now_s) {
            true => (None, false),
            false => (Some(until), true),
        })
    }
}

struct HmacAuthenticator {
    used: Option<UsedSignatures>,
    algorithms: Vec<HmacAlgorithm>,
    skew: Duration,
    required: Vec<String>,
    hide: bool,
    body: Option<Digested>,
    keys: Arc<HmacKeys>,
    unauthenticated: Unauthenticated,
}

const INVALID: &str = "client request can't be validated";

impl HmacAuthenticator {
    fn find(&self, exchange: &Exchange) -> Result<&Arc<Credential>, &'static str> {
        let value = exchange.request.head.value(b"authorization");
        let value = value.ok_or("client request can't be validated: missing Authorization header")?;
        let text = str::from_utf8(value).map_err(|_| INVALID)?;
        let text = text
            .strip_prefix("Signature")
            .filter(|rest| rest.starts_with([' ', '\t']))
            .ok_or("client request can't be validated: Authorization header does not start with 'Signature'")?;
        self.verified(exchange, text).ok_or(INVALID)
    }

    fn verified(&self, exchange: &Exchange, text: &str) -> Option<&Arc<Credential>> {
        let shown = SignatureFields::parse(text)?;
        let (key_id, signature) = (shown.key_id?, STANDARD.decode(shown.signature?).ok()?);
        let algorithm =
            HmacAlgorithm::parse(shown.algorithm?).filter(|algorithm| self.algorithms.contains(algorithm))?;
        let signed: Vec<&str> = shown.headers.unwrap_or_default().split_ascii_whitespace().collect();
        let is_signed = |name: &str| signed.iter().any(|signed| signed.eq_ignore_ascii_case(name));
        // Without a signed date a captured request would pass for ever, with a new date.
        if !self.required.iter().all(|name| is_signed(name)) || !is_signed("date") {
            return None;
        }
        self.is_fresh(exchange).then_some(())?;
        let known = self.keys.0.get(key_id);
        // An unknown key takes as long as a wrong signature.
        let key = algorithm.key(known.map_or(b"nobody", |known| &known.secret));
        let is_right = hmac::verify(&key, &signing_text(exchange, key_id, &signed), &signature).is_ok();
        // Only valid signatures are stored, so that clients without a secret cannot fill the table.
        let is_first = || self.used.as_ref().is_none_or(|used| used.take(&signature));
        known.filter(|_| is_right && is_first()).map(|known| &known.credential)
    }

    fn admit_or_refuse(&self, exchange: &mut Exchange, fault: &str) -> Result<(), Stop> {
        self.unauthenticated.admit_or_refuse(exchange, fault, |exchange| {
            if self.hide {
                hide_authorization(exchange, b"Signature");
            }
            Ok(())
        })
    }

    /// An old request may be a replay.
    fn is_fresh(&self, exchange: &Exchange) -> bool {
        let date = exchange.request.head.value(b"date").and_then(|date| str::from_utf8(date).ok());
        let Some(Ok(date)) = date.map(httpdate::parse_http_date) else { return false };
        let now = SystemTime::now();
        let apart = now.duration_since(date).or_else(|_| date.duration_since(now)).unwrap_or(Duration::MAX);
        apart <= self.skew
    }
}

fn signing_text(exchange: &Exchange, key_id: &str, signed: &[&str]) -> Vec<u8> {
    let mut text = [key_id.as_bytes(), b"\n"].concat();
    for name in signed {
        if *name == TARGET {
            text.extend_from_slice(exchange.request.method_name());
            text.push(b' ');
            text.extend_from_slice(exchange.request.target());
        } else {
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b": ");
            let values: Vec<&[u8]> = exchange.request.head.values(name.as_bytes()).collect();
            text.extend_from_slice(&values.join(&b", "[..]));
        }
        text.push(b'\n');
    }
    text
}

impl Plugin for HmacAuthenticator {
    fn phases(&self) -> Phases {
        if self.body.is_some() { Phases::REQUEST.and(Phases::REQUEST_BODY) } else { Phases::REQUEST }
    }

    fn whole_request(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(self.body.as_ref().and_then(|body| body.wanted(exchange)))
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        match self.body.as_ref().is_none_or(|digested| digested.is_right(exchange, body)) {
            true => Ok(Flow::Continue),
            false => Err(self.unauthenticated.refuse(exchange, INVALID)),
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let found = match self.find(exchange) {
            Ok(credential) => Arc::clone(credential),
            Err(fault) => return self.admit_or_refuse(exchange, fault).map(Flow::from),
        };
        if self.body.as_ref().is_some_and(|body| !body.pass(exchange)) {
            return self.admit_or_refuse(exchange, INVALID).map(Flow::from);
        }
        if self.hide {
            exchange.request.head.remove(b"Authorization");
        }
        exchange.identify(&found).map(Flow::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build_with, exchange, on_request, refused, sent, with_consumers};

    fn door(options: Value) -> Arc<dyn Plugin> {
        let shared = with_consumers(&[("jack", "hmac-auth", json!({"key_id": "id", "secret_key": "secret"}))]);
        build_with::<HmacAuth>(options, &shared).unwrap_or_else(|error| panic!("{error}"))
    }

    fn now(offset_s: i64) -> String {
        let shift = Duration::from_secs(offset_s.unsigned_abs());
        let time = if offset_s < 0 { SystemTime::now() - shift } else { SystemTime::now() + shift };
        httpdate::fmt_http_date(time)
    }

    /// A request signed as the documentation of the plugin describes.
    fn signed(algorithm: HmacAlgorithm, name: &str, date: &str, headers: &str, secret: &str) -> String {
        let lines = headers.split(' ').map(|header| match header {
            TARGET => "GET /a?b=1\n".to_owned(),
            "date" => format!("date: {date}\n"),
            other => format!("{other}: x, y\n"),
        });
        let text = format!("id\n{}", lines.collect::<String>());
        let tag = STANDARD.encode(hmac::sign(&algorithm.key(secret.as_bytes()), text.as_bytes()));
        format!(
            "GET /a?b=1 HTTP/1.1\nHost: h\nX-A: x\nX-A: y\nDate: {date}\nAuthorization: Signature \
             keyId=\"id\",algorithm=\"{name}\",headers=\"{headers}\",signature=\"{tag}\""
        )
    }

    fn good() -> String {
        signed(HmacAlgorithm::Sha256, "hmac-sha256", &now(0), "@request-target date", "secret")
    }

    #[test]
    fn a_signature_tells_who_somebody_is() {
        for (algorithm, name) in [
            (HmacAlgorithm::Sha1, "hmac-sha1"),
            (HmacAlgorithm::Sha256, "hmac-sha256"),
            (HmacAlgorithm::Sha512, "hmac-sha512"),
        ] {
            let mut exchange = exchange(&signed(algorithm, name, &now(0), "@request-target date X-A", "secret"));
            assert_eq!(on_request(&door(json!({})), &mut exchange), Ok(()), "{name}");
            assert_eq!(&*exchange.identity.as_ref().expect("known").consumer.username, "jack");
            assert_eq!(exchange.request.head.value(b"authorization"), None);
        }
    }

    #[test]
    fn u08_a_signature_passes_once_where_that_is_wanted() {
        let (once, again) = (door(json!({"refuse_replays": true})), door(json!({})));
        let first = signed(HmacAlgorithm::Sha256, "hmac-sha256", &now(-7), "@request-target date", "secret");
        let other = signed(HmacAlgorithm::Sha256, "hmac-sha256", &now(-8), "@request-target date", "secret");
        let passes = |door: &Arc<dyn Plugin>, head: &str| on_request(door, &mut exchange(head)).is_ok();
        assert_eq!([passes(&once, &first), passes(&once, &first), passes(&once, &other)], [true, false, true]);
        assert_eq!([passes(&again, &first), passes(&again, &first)], [true, true]);
        // A door with a larger skew makes all doors remember for longer.
        door(json!({"refuse_replays": true, "clock_skew": 1000}));
        let used = UsedSignatures::new(1, &Build::default());
        assert!(used.kept_s.load(Ordering::Relaxed) >= 2001);
    }

    #[test]
    fn u08_a_signature_of_the_date_alone_is_warned_of() {
        let warnings = |options: Value| {
            let mut build = Build::default();
            HmacAuth::deserialize(options).expect("valid").build(&mut build).expect("valid");
            build.warnings.iter().map(ConfigError::to_string).collect::<Vec<_>>()
        };
        assert!(warnings(json!({}))[0].starts_with("signed_headers: leaves the method and the target unsigned"));
        assert_eq!(warnings(json!({"signed_headers": ["@request-target", "date"]})), [""; 0]);
    }

    #[test]
    fn anything_else_is_refused() {
        let sha256 = |date: &str, headers: &str, secret: &str| {
            signed(HmacAlgorithm::Sha256, "hmac-sha256", date, headers, secret)
        };
        let refused = |options: Value, head: &str| {
            let mut exchange = exchange(head);
            assert_eq!(on_request(&door(options), &mut exchange), Err(Stop::Answered), "{head}");
            assert_eq!(exchange.response.status, 401);
            assert_eq!(sent(&exchange, "www-authenticate"), Some("hmac realm=\"hmac\""));
            body(&exchange).to_owned()
        };
        let invalid = "{\"message\":\"client request can't be validated\"}\n";
        for head in [
            sha256(&now(0), "@request-target date", "wrong"),
            sha256(&now(-400), "date", "secret"),
            sha256(&now(400), "date", "secret"),
            sha256("yesterday", "date", "secret"),
            sha256(&now(0), "@request-target", "secret"),
            signed(HmacAlgorithm::Sha256, "hmac-sha512", &now(0), "date", "secret"),
            signed(HmacAlgorithm::Sha256, "none", &now(0), "date", "secret"),
            good().replace("/a?b=1", "/a?b=2"),
            good().replace("GET", "PUT"),
            good().replace("keyId=\"id\"", "keyId=\"other\""),
            good().replace(",signature", ",keyId=\"id\",signature"),
            good().replace(",signature", ",extra=\"1\",signature"),
            good().replace("signature=\"", "signature=\"%"),
            good().replace("algorithm=\"hmac-sha256\",", ""),
            "GET / HTTP/1.1\nHost: h\nAuthorization: Signature x".to_owned(),
            "GET / HTTP/1.1\nHost: h\nAuthorization: Signature ".to_owned() + "keyId=\"\"",
        ] {
            assert_eq!(refused(json!({}), &head), invalid, "{head}");
        }
        assert_eq!(refused(json!({"allowed_algorithms": ["hmac-sha512"]}), &good()), invalid);
        assert_eq!(refused(json!({"signed_headers": ["x-a"]}), &good()), invalid);
        let undated = sha256(&now(0), "@request-target", "secret");
        assert_eq!(refused(json!({"signed_headers": ["@request-target"]}), &undated), invalid, "the date is unsigned");
        let missing = refused(json!({}), "GET / HTTP/1.1\nHost: h");
        assert_eq!(missing, "{\"message\":\"client request can't be validated: missing Authorization header\"}\n");
        let other = refused(json!({}), "GET / HTTP/1.1\nHost: h\nAuthorization: SignatureX a");
        assert!(other.contains("does not start with 'Signature'"), "{other}");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"allowed_algorithms": ["md5"]}), "allowed_algorithms[0]: `md5` is not an allowed value"),
            (json!({"signed_headers": ["a b"]}), "signed_headers[0]: is neither"),
        ] {
            let error = refused::<HmacAuth>(options);
            assert!(error.starts_with(want), "{error}");
        }
        let check = |key_id: &str, secret_key: &str| {
            HmacAuth::check(SigningCredential { key_id: key_id.to_owned(), secret_key: secret_key.to_owned() })
        };
        assert!(check("a", "b").is_ok());
        assert!(check("a\"", "b").is_err_and(|error| error.path == "key_id"));
    }
}
