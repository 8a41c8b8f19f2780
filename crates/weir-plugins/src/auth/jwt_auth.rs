use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AllOf, Authenticator, Build, CallerClaims, ConfigError, Consumers, Credential, Definition, Exchange, Flow,
    PerWorker, Plugin, Stage, Stop, Variable, Variables,
};
use weir_tokens::{Claims, WebToken};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::RSAPublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::auth::credentials::{OfferedCredential, Unauthenticated, hide_argument, hide_cookie};
use crate::options::headers::header_name;

mod verified;

use verified::{KeySet, VerifiedTokens};

/// Requires a JSON Web Token (RFC 7519) that is signed with the key of a consumer.
///
/// The consumer's credential determines the signature algorithm; a token whose header names a different algorithm is
/// refused. Each worker caches the tokens whose signature it has verified. Times such as `exp` are checked for every
/// request.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JwtAuth {
    /// The header field that contains the token, with or without the prefix `Bearer`. It takes precedence over the
    /// query.
    #[serde(default = "default_header")]
    header: String,
    /// The query argument that contains the token. It takes precedence over the cookie. Its value is masked in logs.
    #[serde(default = "default_jwt")]
    query: String,
    /// The cookie that contains the token.
    #[serde(default = "default_jwt")]
    cookie: String,
    /// Also accepts the token among the subprotocols of a WebSocket's handshake, after an entry with this name: with `bearer`,
    /// `Sec-WebSocket-Protocol: bearer, TOKEN`. Browsers can set no other field there. Unless the upstream chooses another
    /// subprotocol, the client gets this one as the answer.
    #[schemars(length(min = 1))]
    websocket_protocol: Option<String>,
    /// Removes the token before the request is forwarded. APISIX's default is `false`.
    #[serde(default = "default_true")]
    hide_credentials: bool,
    /// The claim that contains the `key` of the consumer's credential.
    #[serde(default = "default_key_claim_name")]
    #[schemars(length(min = 1))]
    key_claim_name: String,
    /// Claims that a token must have. Claims that are present are verified even if they are not in this list.
    #[serde(default)]
    claims_to_verify: Vec<TimeClaim>,
    /// The consumer that requests without a valid token are attributed to, instead of being refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "default_jwt")]
    #[schemars(length(min = 1, max = 128))]
    realm: String,
    /// Accepted for compatibility; has no effect.
    #[serde(default)]
    #[schemars(extend("deprecated" = true))]
    store_in_ctx: bool,
}

/// A claim about time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum TimeClaim {
    Exp,
    Nbf,
}

/// A key that tokens are signed with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenCredential {
    /// The value of the claim `key` in the tokens of this consumer. Two consumers cannot have the same `key`.
    #[schemars(length(min = 1))]
    key: String,
    /// The signature algorithm: HS256, HS384, HS512, RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or EdDSA.
    #[serde(default = "default_algorithm")]
    algorithm: String,
    /// The shared secret of the HS algorithms.
    secret: Option<String>,
    /// The public key of the other algorithms, as PEM.
    public_key: Option<String>,
    /// `secret` is written in base64.
    #[serde(default)]
    base64_secret: bool,
    /// How long a token is accepted after its expiry, in seconds, to allow for a clock difference between issuer and
    /// gateway; at most 60.
    #[serde(default)]
    #[schemars(range(max = MOST_GRACE_S))]
    #[schemars(extend("x-weir-unit" = "s"))]
    lifetime_grace_period: u32,
    /// Accepted for compatibility; has no effect, because the gateway does not sign tokens.
    #[allow(dead_code, reason = "an option of APISIX that existing files have")]
    #[schemars(extend("deprecated" = true))]
    exp: Option<u64>,
}

fn default_header() -> String {
    "authorization".to_owned()
}

fn default_jwt() -> String {
    "jwt".to_owned()
}

fn default_key_claim_name() -> String {
    "key".to_owned()
}

fn default_algorithm() -> String {
    "HS256".to_owned()
}

fn default_true() -> bool {
    true
}

/// The largest tolerance for clock differences: an expired token stays usable for this time. `iat` always has this
/// tolerance, independent of the credential's, because it does not lengthen the life of a token.
const MOST_GRACE_S: u32 = 60;

impl Definition for JwtAuth {
    const NAME: &'static str = "jwt-auth";
    const PRIORITY: i32 = 2510;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "jwt-auth: { claims_to_verify: [exp] }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.store_in_ctx {
            build.warnings.push(ConfigError::new("store_in_ctx", "has no effect; leave it out"));
        }
        let query_name: Arc<[u8]> = self.query.as_bytes().into();
        build.secret_argument(&query_name);
        build.secret_field(self.header.as_bytes());
        let offered = self.websocket_protocol.as_deref().map(|name| OfferedCredential::new(name, build)).transpose();
        let unauthenticated = Unauthenticated::new("Bearer", &self.realm, self.anonymous_consumer.as_deref(), build);
        let (header, offered, unauthenticated) =
            (header_name(&self.header, "header"), offered, unauthenticated).all_of()?;
        Ok(Arc::new(JwtAuthenticator {
            header: header.into(),
            query: Variable::Argument(self.query.as_str().into()),
            query_name,
            cookie: Variable::Cookie(self.cookie.as_str().into()),
            cookie_name: self.cookie.into_bytes().into(),
            offered,
            hide: self.hide_credentials,
            claim: self.key_claim_name.into(),
            needs_exp: self.claims_to_verify.contains(&TimeClaim::Exp),
            needs_nbf: self.claims_to_verify.contains(&TimeClaim::Nbf),
            keys: build.consumers().index(JwtKeys::new),
            verified: build.per_worker("jwt-verified", "", VerifiedTokens::default),
            unauthenticated,
        }))
    }
}

impl Authenticator for JwtAuth {
    type Credential = TokenCredential;

    fn check(credential: TokenCredential) -> Result<String, ConfigError> {
        credential.decoding_key()?;
        Ok(credential.key)
    }
}

impl TokenCredential {
    fn decoding_key(&self) -> Result<(Algorithm, DecodingKey), ConfigError> {
        let algorithm = match self.algorithm.as_str() {
            "HS256" => Algorithm::HS256,
            "HS384" => Algorithm::HS384,
            "HS512" => Algorithm::HS512,
            "RS256" => Algorithm::RS256,
            "RS384" => Algorithm::RS384,
            "RS512" => Algorithm::RS512,
            "PS256" => Algorithm::PS256,
            "PS384" => Algorithm::PS384,
            "PS512" => Algorithm::PS512,
            "ES256" => Algorithm::ES256,
            "ES384" => Algorithm::ES384,
            "EdDSA" => Algorithm::EdDSA,
            "ES512" => return Err(ConfigError::new("algorithm", "`ES512` is not supported; use `ES384` or `EdDSA`")),
            _ => {
                return Err(ConfigError::new(
                    "algorithm",
                    "is not a supported algorithm; write HS256, RS256, PS256, ES256, EdDSA or the like",
                ));
            }
        };
        if self.algorithm.starts_with("HS") {
            let secret = self.secret.as_deref().filter(|secret| !secret.is_empty());
            let secret = secret.ok_or_else(|| ConfigError::new("", format!("{} needs `secret`", self.algorithm)))?;
            let secret = match self.base64_secret {
                true => Cow::Owned(STANDARD.decode(secret).map_err(|_| ConfigError::new("secret", "is not base64"))?),
                false => Cow::Borrowed(secret.as_bytes()),
            };
            return Ok((algorithm, DecodingKey::from_secret(&secret)));
        }
        let pem = self.public_key.as_deref();
        let pem = pem.ok_or_else(|| ConfigError::new("", format!("{} needs `public_key`", self.algorithm)))?.as_bytes();
        let (key, kind) = match algorithm {
            Algorithm::EdDSA => (DecodingKey::from_ed_pem(pem), "Ed25519"),
            Algorithm::ES256 | Algorithm::ES384 => (DecodingKey::from_ec_pem(pem), "EC"),
            _ => (DecodingKey::from_rsa_pem(pem), "RSA"),
        };
        if kind == "RSA" && rsa_bits(pem).is_some_and(|bits| bits < LEAST_RSA_BITS) {
            let problem = format!(
                "is an RSA key of less than {LEAST_RSA_BITS} bits; tokens that are signed with it would be refused"
            );
            return Err(ConfigError::new("public_key", problem));
        }
        let key = key.map_err(|_| ConfigError::new("public_key", format!("is not a public {kind} key in PEM")))?;
        Ok((algorithm, key))
    }
}

/// Shorter keys can be broken (NIST SP 800-131A), and the library refuses every signature made with them.
const LEAST_RSA_BITS: usize = 2048;

/// The length of a public RSA key in bits; `None` if it is not one.
fn rsa_bits(pem: &[u8]) -> Option<usize> {
    let (_, pem) = parse_x509_pem(pem).ok()?;
    let key = match SubjectPublicKeyInfo::from_der(&pem.contents) {
        Ok((_, info)) => return Some(info.parsed().ok()?.key_size()),
        Err(_) => RSAPublicKey::from_der(&pem.contents).ok()?.1,
    };
    Some(key.key_size())
}

/// The keys of all consumers, by the value of the claim that names them.
struct JwtKeys {
    by_name: HashMap<Box<str>, u32>,
    known: Vec<JwtKey>,
    number: KeySet,
}

struct JwtKey {
    algorithm: Algorithm,
    key: DecodingKey,
    grace_s: f64,
    credential: Arc<Credential>,
}

impl JwtKeys {
    fn new(consumers: &Consumers) -> JwtKeys {
        let mut keys = JwtKeys { by_name: HashMap::new(), known: Vec::new(), number: KeySet::new() };
        for credential in consumers.credentials(JwtAuth::NAME) {
            let Some(options) = JwtAuth::read(credential) else { continue };
            let Ok((algorithm, key)) = options.decoding_key() else { continue };
            keys.by_name.insert(options.key.into(), keys.known.len() as u32);
            let grace_s = f64::from(options.lifetime_grace_period);
            keys.known.push(JwtKey { algorithm, key, grace_s, credential: Arc::clone(credential) });
        }
        keys
    }
}

struct JwtAuthenticator {
    header: Box<[u8]>,
    query: Variable,
    query_name: Arc<[u8]>,
    cookie: Variable,
    cookie_name: Box<[u8]>,
    offered: Option<OfferedCredential>,
    hide: bool,
    claim: Box<str>,
    needs_exp: bool,
    needs_nbf: bool,
    keys: Arc<JwtKeys>,
    unauthenticated: Unauthenticated,
    verified: PerWorker<VerifiedTokens>,
}

/// Where a token was found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenSource {
    Header,
    Query,
    Cookie,
    Subprotocol,
}

/// The owner of a valid token.
struct TokenOwner<'a> {
    credential: &'a Arc<Credential>,
    /// When the token expires.
    ends_at: Option<Duration>,
    /// The token itself.
    token: Rc<[u8]>,
}

impl JwtAuthenticator {
    fn shown<'a>(&self, exchange: &'a Exchange) -> Option<(TokenSource, Cow<'a, [u8]>)> {
        if let Some(value) = exchange.request.head.value(&self.header).filter(|value| !value.is_empty()) {
            let bare = match value.split_at_checked(7) {
                Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
                _ => value,
            };
            return Some((TokenSource::Header, Cow::Borrowed(bare)));
        }
        let in_query = exchange.variable(&self.query).map(|token| (TokenSource::Query, token));
        let in_cookie = || exchange.variable(&self.cookie).map(|token| (TokenSource::Cookie, token));
        let offered = || Some((TokenSource::Subprotocol, Cow::Borrowed(self.offered.as_ref()?.shown(exchange)?)));
        in_query.or_else(in_cookie).or_else(offered)
    }

    /// Removes the token before the request is forwarded, if it is to be hidden, and answers the offer of a WebSocket.
    fn hide(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if self.hide {
            // Removed from all places: a token that was not used is as secret as the one that was.
            exchange.request.head.remove(&self.header);
            if exchange.variable(&self.query).is_some() {
                hide_argument(exchange, &self.query_name)?;
            }
            if exchange.variable(&self.cookie).is_some() {
                hide_cookie(exchange, &self.cookie_name)?;
            }
        }
        match &self.offered {
            Some(offered) => offered.accept(exchange, self.hide),
            None => Ok(()),
        }
    }

    /// The owner of a valid token.
    fn find(&self, shown: &[u8]) -> Result<TokenOwner<'_>, &'static str> {
        let (verified, token) =
            self.verified.get().find(self.keys.number, shown, &self.claim).map_or_else(|| self.verify(shown), Ok)?;
        let known = &self.keys.known[verified.known as usize];
        let Claims { exp, nbf, iat } = verified.claims;
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let missing = (self.needs_exp && exp.is_none()) || (self.needs_nbf && nbf.is_none());
        let expired = exp.is_some_and(|exp| now_s > exp + known.grace_s);
        let early = nbf.is_some_and(|nbf| now_s < nbf - known.grace_s);
        let unborn = iat.is_some_and(|iat| now_s < iat - f64::from(MOST_GRACE_S));
        if missing || expired || early || unborn {
            return Err("failed to verify jwt");
        }
        let ends_at = exp.and_then(|exp| Duration::try_from_secs_f64(exp + known.grace_s).ok());
        Ok(TokenOwner { credential: &known.credential, ends_at, token })
    }

    /// Verifies what does not depend on the time, and caches the result.
    fn verify(&self, shown: &[u8]) -> Result<(verified::Verified, Rc<[u8]>), &'static str> {
        let token = WebToken::parse(shown).ok_or("JWT token invalid")?;
        let name = token.text(&self.claim).ok_or("missing user key in JWT token")?;
        let known = *self.keys.by_name.get(name).ok_or("Invalid user key in JWT token")?;
        let JwtKey { algorithm, key, .. } = &self.keys.known[known as usize];
        let claims = token.claims().ok_or("failed to verify jwt")?;
        // RFC 8725 §3.1: the credential determines the algorithm, and the token's header has to agree.
        let agrees = token.algorithm() == Some(*algorithm);
        if !agrees || !crypto::verify(token.signature, token.signed, key, *algorithm).unwrap_or(false) {
            return Err("failed to verify jwt");
        }
        let verified = verified::Verified { known, claims };
        Ok((verified, self.verified.get().remember(self.keys.number, shown, &self.claim, verified)))
    }
}

impl Plugin for JwtAuthenticator {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let shown = self.shown(exchange);
        let source = shown.as_ref().map(|(source, _)| *source);
        let found = match &shown {
            Some((_, token)) => self.find(token),
            None => Err("Missing JWT token in request"),
        };
        drop(shown);
        if source == Some(TokenSource::Query) {
            exchange.hide_argument(Arc::clone(&self.query_name));
        }
        let TokenOwner { credential, ends_at, token } = match found {
            Ok(owner) => owner,
            Err(fault) => {
                let hide = |exchange: &mut Exchange| self.hide(exchange);
                return self.unauthenticated.admit_or_refuse(exchange, fault, hide).map(Flow::from);
            }
        };
        self.hide(exchange)?;
        if let Some(ends_at) = ends_at {
            exchange.set_identity_ends_at(ends_at);
        }
        exchange.set_token_claims(CallerClaims::Compact(token));
        exchange.identify(credential).map(Flow::from)
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac;
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build_with, exchange, get, on_request, refused, sent, with_consumers};

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn encode(value: &str) -> String {
        URL_SAFE_NO_PAD.encode(value)
    }

    /// A token signed with `secret`.
    fn hs256(header: &str, claims: &str, secret: &[u8]) -> String {
        let signed = format!("{}.{}", encode(header), encode(claims));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    fn good(claims: &Value) -> String {
        hs256(r#"{"alg":"HS256","typ":"JWT"}"#, &claims.to_string(), SECRET.as_bytes())
    }

    /// A public key as PEM: the DER prefix of its SubjectPublicKeyInfo (RFC 5280 §4.1.2.7), and the key.
    fn pem(prefix: &[u8], key: &[u8]) -> String {
        let text = STANDARD.encode([prefix, key].concat());
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    const ED25519: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    const P256: &[u8] = &[
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
        0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];

    fn door(options: Value, further: &[(&str, &str, Value)]) -> Arc<dyn Plugin> {
        let jack = ("jack", "jwt-auth", json!({"key": "k1", "secret": SECRET, "lifetime_grace_period": "5s"}));
        let shared = with_consumers(&[&[jack], further].concat());
        build_with::<JwtAuth>(options, &shared).unwrap_or_else(|error| panic!("{error}"))
    }

    fn with(token: &str) -> Exchange {
        exchange(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: Bearer {token}"))
    }

    fn fault(step: &Arc<dyn Plugin>, token: &str) -> Option<String> {
        let mut exchange = with(token);
        match on_request(step, &mut exchange) {
            Ok(()) => None,
            Err(stop) => {
                assert_eq!((stop, exchange.response.status), (Stop::Answered, 401));
                assert_eq!(sent(&exchange, "www-authenticate"), Some("Bearer realm=\"jwt\""));
                assert!(exchange.identity.is_none());
                let body: Value = serde_json::from_str(body(&exchange)).expect("JSON");
                Some(body["message"].as_str().expect("a text").to_owned())
            }
        }
    }

    fn now() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
    }

    #[test]
    fn u08_every_token_is_hidden_wherever_it_stands() {
        let token = good(&json!({"key": "k1"}));
        let head = format!(
            "GET /?a=1&jwt={token}&jwt=x HTTP/1.1\nHost: h\nAuthorization: {token}\nCookie: jwt={token}; jwt=x; c=d"
        );
        let mut shown = exchange(&head);
        assert_eq!(on_request(&door(json!({}), &[]), &mut shown), Ok(()));
        let request = &shown.request;
        assert_eq!((request.query(), request.head.value(b"authorization")), (Some(&b"a=1"[..]), None));
        assert_eq!(request.head.values(b"cookie").collect::<Vec<_>>(), [b"c=d"]);
        let mut kept = exchange(&head);
        assert_eq!(on_request(&door(json!({"hide_credentials": false}), &[]), &mut kept), Ok(()));
        assert!(kept.request.head.value(b"authorization").is_some());
    }

    #[test]
    fn a_token_tells_who_somebody_is_wherever_it_stands() {
        let step = door(json!({}), &[]);
        let token = good(&json!({"key": "k1", "exp": now() + 60, "nbf": now() - 60}));
        for _ in 0..2 {
            for head in [
                format!("GET /?a=1 HTTP/1.1\nHost: h\nAuthorization: bearer {token}"),
                format!("GET /?a=1 HTTP/1.1\nHost: h\nAuthorization: {token}"),
                format!("GET /?jwt={token}&a=1 HTTP/1.1\nHost: h"),
                format!("GET /?a=1 HTTP/1.1\nHost: h\nCookie: a=b; jwt={token}; c=d"),
            ] {
                let mut exchange = exchange(&head);
                assert_eq!(on_request(&step, &mut exchange), Ok(()), "{head}");
                assert_eq!(&*exchange.identity.as_ref().expect("known").consumer.username, "jack");
                assert_eq!(exchange.request.query(), Some(&b"a=1"[..]));
                let fields = &exchange.request.head;
                assert_eq!(fields.value(b"authorization"), None);
                assert!(matches!(fields.value(b"cookie"), None | Some(b"a=b; c=d")));
            }
        }
        assert_eq!(fault(&step, ""), Some("JWT token invalid".to_owned()));
        let mut nothing = get("/");
        assert_eq!(on_request(&step, &mut nothing), Err(Stop::Answered));
        assert_eq!(body(&nothing), "{\"message\":\"Missing JWT token in request\"}\n");
    }

    #[test]
    fn p03_nothing_a_token_says_decides_how_it_is_verified() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).expect("a seed");
        let public = pem(ED25519, pair.public_key().as_ref());
        let rose = ("rose", "jwt-auth", json!({"key": "k2", "algorithm": "EdDSA", "public_key": public}));
        let step = door(json!({}), &[rose]);
        let eddsa = |header: &str, claims: &str| {
            let signed = format!("{}.{}", encode(header), encode(claims));
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes())))
        };
        assert_eq!(fault(&step, &eddsa(r#"{"alg":"EdDSA"}"#, r#"{"key":"k2"}"#)), None);
        let (k1, k2) = (r#"{"key":"k1"}"#, r#"{"key":"k2"}"#);
        let mut tokens = Vec::new();
        for none in ["none", "None", "NONE", "nOnE", ""] {
            tokens.push(format!("{}.{}.", encode(&format!(r#"{{"alg":"{none}"}}"#)), encode(k1)));
        }
        let valid = good(&json!({"key": "k1"}));
        assert_eq!(fault(&step, &valid), None);
        let (signed, tag) = valid.rsplit_once('.').expect("three parts");
        tokens.extend([
            format!("{signed}."),
            signed.to_owned(),
            format!("{signed}.AAAA"),
            format!("{valid}."),
            format!("{valid}="),
            format!("{valid}A"),
            format!(".{signed}.{tag}"),
            format!("{signed}.{}", &tag[..tag.len() - 1]),
            // A token signed with HMAC, with the public key as the secret.
            hs256(r#"{"alg":"HS256"}"#, k2, public.as_bytes()),
            hs256(r#"{"alg":"EdDSA"}"#, k2, public.as_bytes()),
            // Another algorithm than the credential's.
            hs256(r#"{"alg":"HS384"}"#, k1, SECRET.as_bytes()),
            hs256(r#"{"alg":"hs256"}"#, k1, SECRET.as_bytes()),
            hs256(r#"{"alg":["HS256"]}"#, k1, SECRET.as_bytes()),
            hs256(r#"{}"#, k1, SECRET.as_bytes()),
            // A token with its own key.
            hs256(r#"{"alg":"HS256","jwk":{"kty":"oct","k":"QQ"}}"#, k1, b"A"),
            hs256(r#"{"alg":"HS256","jku":"http://evil.example/","kid":"../../dev/null"}"#, k1, b""),
            hs256(r#"{"alg":"HS256","x5u":"http://evil.example/"}"#, k1, b""),
            // RFC 7515 §4.1.11: a critical extension that is not supported.
            hs256(r#"{"alg":"HS256","crit":["exp"]}"#, k1, SECRET.as_bytes()),
            hs256(r#"{"alg":"HS256","b64":false,"crit":["b64"]}"#, k1, SECRET.as_bytes()),
            // Duplicate claims, which parsers may resolve differently.
            hs256(r#"{"alg":"HS256"}"#, r#"{"key":"k2","key":"k1"}"#, SECRET.as_bytes()),
            hs256(r#"{"alg":"none","alg":"HS256"}"#, k1, SECRET.as_bytes()),
            hs256(r#"{"alg":"HS256"}"#, r#"["key","k1"]"#, SECRET.as_bytes()),
            hs256(r#"{"alg":"HS256"}"#, r#"{"key":["k1"]}"#, SECRET.as_bytes()),
            hs256(r#"{"alg":"HS256"}"#, "{\"key\":\"k1\"}x", SECRET.as_bytes()),
            hs256(r#"{"alg":"HS256"}"#, r#"{}"#, SECRET.as_bytes()),
            hs256(r#"{"alg":"HS256"}"#, r#"{"key":"nobody"}"#, SECRET.as_bytes()),
            hs256(r#"{"alg":"HS256"}"#, k1, b"another secret"),
            good(&json!({"key": "k1", "long": "x".repeat(20_000)})),
            "....".to_owned(),
            "a.b.c".to_owned(),
        ]);
        for token in tokens {
            let fault = fault(&step, &token).unwrap_or_else(|| panic!("accepted: {token}"));
            assert!(!fault.contains("jack") && !fault.contains(SECRET), "{fault}");
        }
    }

    #[test]
    fn p03_signatures_of_nothing_are_none() {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let public = pem(P256, pair.public_key().as_ref());
        let step =
            door(json!({}), &[("rose", "jwt-auth", json!({"key": "k2", "algorithm": "ES256", "public_key": public}))]);
        let signed = format!("{}.{}", encode(r#"{"alg":"ES256"}"#), encode(r#"{"key":"k2"}"#));
        let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).expect("signed");
        assert_eq!(fault(&step, &format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))), None);
        let psychic = format!("{signed}.{}", URL_SAFE_NO_PAD.encode([0; 64]));
        assert_eq!(fault(&step, &psychic), Some("failed to verify jwt".to_owned()));
    }

    #[test]
    fn p03_times_are_looked_at_whenever_a_token_is_shown() {
        let step = door(json!({}), &[]);
        let verdict = |claims: Value| fault(&step, &good(&claims)).is_none();
        let now = now();
        assert!(verdict(json!({"key": "k1"})));
        assert!(verdict(json!({"key": "k1", "exp": now - 3})), "within the grace period");
        assert!(verdict(json!({"key": "k1", "exp": now as f64 + 60.5})));
        for exp in
            [json!(now - 60), json!(0), json!("9999999999"), json!(-1), json!(null), json!([now + 60]), json!(true)]
        {
            assert!(!verdict(json!({"key": "k1", "exp": exp})), "{exp}");
        }
        assert!(!verdict(json!({"key": "k1", "nbf": now + 60})));
        assert!(!verdict(json!({"key": "k1", "nbf": "0"})));
        assert!(verdict(json!({"key": "k1", "iat": now + 30})), "clocks differ");
        for iat in [json!(now + 120), json!(1e300), json!("0"), json!(-1), json!(null), json!({})] {
            assert!(!verdict(json!({"key": "k1", "iat": iat})), "{iat}");
        }
        let strict = door(json!({"claims_to_verify": ["exp"]}), &[]);
        assert!(fault(&strict, &good(&json!({"key": "k1"}))).is_some());
        assert!(fault(&strict, &good(&json!({"key": "k1", "exp": now + 60}))).is_none());
    }

    #[test]
    fn a_remembered_token_is_not_good_for_another_claim_or_other_consumers() {
        let token = good(&json!({"key": "k1", "sub": "k2"}));
        let rose = ("rose", "jwt-auth", json!({"key": "k2", "secret": "another secret"}));
        let shared = with_consumers(&[("jack", "jwt-auth", json!({"key": "k1", "secret": SECRET})), rose]);
        let build = |options| build_with::<JwtAuth>(options, &shared).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(fault(&build(json!({})), &token), None);
        assert!(fault(&build(json!({"key_claim_name": "sub"})), &token).is_some());
        let others = with_consumers(&[("jack", "jwt-auth", json!({"key": "k1", "secret": "changed"}))]);
        let others = build_with::<JwtAuth>(json!({}), &others).unwrap_or_else(|error| panic!("{error}"));
        assert!(fault(&others, &token).is_some());
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"header": "a b"}), "header: is not the name"),
            (json!({"key_claim_name": ""}), "key_claim_name: is empty"),
            (json!({"claims_to_verify": ["aud"]}), "claims_to_verify[0]: `aud` is not an allowed value"),
        ] {
            let error = refused::<JwtAuth>(options);
            assert!(error.starts_with(want), "{error}");
        }
        for (credential, want) in [
            (json!({"key": "k"}), "HS256 needs `secret`"),
            (json!({"key": "k", "secret": "%", "base64_secret": true}), "secret: is not base64"),
            (json!({"key": "k", "algorithm": "none"}), "algorithm: is not a supported algorithm"),
            (json!({"key": "k", "algorithm": "RS256", "secret": "s"}), "RS256 needs `public_key`"),
            (json!({"key": "k", "algorithm": "RS256", "public_key": "  "}), "public_key: is not a public RSA key"),
        ] {
            let credential = TokenCredential::deserialize(&credential).expect("the fields are known");
            let error = JwtAuth::check(credential).expect_err("refused").to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
