mod token;

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AllOf, Authenticator, Build, ConfigError, Consumers, Credential, Definition, Exchange, Flow, Plugin, Stage, Stop,
};

use crate::answer::RefusalResponse;
use crate::options::headers::header_name;

use token::{ContentKey, EncryptedToken, KEY_BYTES};

/// Decrypts a JSON Web Encryption (JWE) token in a header field with the secret of a consumer, and sends the content to the
/// upstream in a header field.
///
/// The token has the compact form of RFC 7516, with the algorithm `dir` and the encryption `A256GCM`. Its header names the
/// `key` of the consumer as `kid`. Tokens of APISIX's own endpoint, whose header is not authenticated, are accepted, too. The
/// request is attributed to the consumer, because only holders of its secret can make such a token; APISIX does not do this.
/// A token does not expire: put what limits it into the content, which the upstream judges.
///
/// A request with a token that is not valid, or whose content is not allowed in a header field, is refused with 400.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct JweDecrypt {
    /// The header field that contains the token, which may follow `Bearer`.
    #[serde(default = "default_header")]
    header: String,
    /// The header field in which the upstream gets the content. It replaces fields of this name in the client's request.
    #[serde(default = "default_header")]
    forward_header: String,
    /// Refuses requests without a token with 403. If `false`, they are forwarded, without the field `forward_header`.
    #[serde(default = "default_true")]
    strict: bool,
}

/// A secret that tokens are encrypted with.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EncryptionCredential {
    /// The `kid` in the header of the tokens of this consumer. Two consumers cannot have the same `key`.
    #[schemars(length(min = 1))]
    key: String,
    /// The secret, of 32 bytes.
    #[schemars(length(min = 32))]
    secret: String,
    /// `secret` is written in base64.
    #[serde(default)]
    is_base64_encoded: bool,
}

fn default_header() -> String {
    "Authorization".to_owned()
}

fn default_true() -> bool {
    true
}

impl Definition for JweDecrypt {
    const NAME: &'static str = "jwe-decrypt";
    const PRIORITY: i32 = 2509;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "jwe-decrypt: { header: Authorization, forward_header: X-Claims }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if build.is_part() {
            // Another plugin would get its turn only after a 401, and without `strict` this one accepts every client.
            let problem = "cannot be one of several auth plugins; add it to the route directly";
            return Err(ConfigError::new("", problem));
        }
        build.secret_field(self.header.as_bytes());
        build.secret_field(self.forward_header.as_bytes());
        let names = (header_name(&self.header, "header"), header_name(&self.forward_header, "forward_header"));
        let (header, forward_header) = names.all_of()?;
        let refusal = |status, text| RefusalResponse::new(status, "message", text);
        Ok(Arc::new(JweDecryptor {
            header: header.into(),
            forward_header: forward_header.into(),
            missing: self.strict.then(|| refusal(403, "missing JWE token in request")),
            invalid: refusal(400, "JWE token invalid"),
            unknown_key: refusal(400, "invalid kid in JWE token"),
            undecryptable: refusal(400, "failed to decrypt JWE token"),
            keys: build.consumers().index(ContentKeys::new),
        }))
    }
}

impl Authenticator for JweDecrypt {
    type Credential = EncryptionCredential;

    fn check(credential: EncryptionCredential) -> Result<String, ConfigError> {
        credential.content_key()?;
        Ok(credential.key)
    }
}

impl EncryptionCredential {
    fn content_key(&self) -> Result<ContentKey, ConfigError> {
        let not_base64 = |_| ConfigError::new("secret", "is not base64");
        let secret = match self.is_base64_encoded {
            true => STANDARD.decode(&self.secret).map_err(not_base64)?,
            false => self.secret.as_bytes().to_vec(),
        };
        ContentKey::new(&secret).ok_or_else(|| {
            let problem = format!("has {} bytes, and A256GCM needs {KEY_BYTES}", secret.len());
            ConfigError::new("secret", problem)
        })
    }
}

/// The keys of all consumers, by the `kid` that names them.
struct ContentKeys(HashMap<Box<str>, ConsumerKey>);

struct ConsumerKey {
    key: ContentKey,
    credential: Arc<Credential>,
}

impl ContentKeys {
    fn new(consumers: &Consumers) -> ContentKeys {
        let known = consumers.credentials(JweDecrypt::NAME).iter().filter_map(|credential| {
            // Credentials with other options are invalid, and have been reported by the document's checks.
            let options: EncryptionCredential = serde_json::from_value(credential.options.clone()).ok()?;
            let known = ConsumerKey { key: options.content_key().ok()?, credential: Arc::clone(credential) };
            Some((options.key.into(), known))
        });
        ContentKeys(known.collect())
    }
}

struct JweDecryptor {
    header: Box<[u8]>,
    forward_header: Box<[u8]>,
    /// The refusal of requests without a token; `None` lets them pass.
    missing: Option<RefusalResponse>,
    invalid: RefusalResponse,
    unknown_key: RefusalResponse,
    undecryptable: RefusalResponse,
    keys: Arc<ContentKeys>,
}

impl Plugin for JweDecryptor {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let Some(token) = exchange.request.head.value(&self.header) else {
            if let Some(missing) = &self.missing {
                return Err(missing.send(exchange));
            }
            // Only a token may set what the upstream takes for decrypted.
            exchange.request.head.remove(&self.forward_header);
            return Ok(Flow::Continue);
        };
        let (content, credential) = match self.decrypt(without_scheme(token)) {
            Ok(decrypted) => decrypted,
            Err(refusal) => return Err(refusal.send(exchange)),
        };
        if exchange.request.head.set(&self.forward_header, &content).is_err() {
            return Err(self.invalid.send(exchange));
        }
        exchange.mark_personal(&self.forward_header);
        exchange.identify(credential).map(Flow::from)
    }
}

impl JweDecryptor {
    /// The content of a token, and the credential whose secret it was encrypted with.
    fn decrypt(&self, token: &[u8]) -> Result<(Vec<u8>, &Arc<Credential>), &RefusalResponse> {
        let token = EncryptedToken::parse(token).ok_or(&self.invalid)?;
        let known = self.keys.0.get(&*token.kid).ok_or(&self.unknown_key)?;
        Ok((token.decrypt(&known.key).ok_or(&self.undecryptable)?, &known.credential))
    }
}

fn without_scheme(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") => token.trim_ascii(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::token::tests::{encrypted, encrypted_without_header};
    use super::*;
    use crate::testing::{body, build_with, exchange, get, on_request, refused, with_consumers};

    const SECRET: &str = "0123456789abcdefghijklmnopqrstuv";

    fn door(options: serde_json::Value) -> Arc<dyn Plugin> {
        let rose = json!({"key": "r", "secret": STANDARD.encode([7; 32]), "is_base64_encoded": true});
        let jack = json!({"key": "j", "secret": SECRET});
        let shared = with_consumers(&[("jack", "jwe-decrypt", jack), ("rose", "jwe-decrypt", rose)]);
        build_with::<JweDecrypt>(options, &shared).unwrap_or_else(|error| panic!("{error}"))
    }

    fn with_token(token: &str) -> Exchange {
        exchange(&format!("GET / HTTP/1.1\nHost: h\nX-Claims: forged\nAuthorization: {token}"))
    }

    #[test]
    fn the_upstream_gets_the_content_of_a_token() {
        let step = door(json!({"forward_header": "X-Claims"}));
        let header = json!({"kid": "j", "alg": "dir", "enc": "A256GCM"});
        for token in [
            encrypted(&header, SECRET.as_bytes(), b"{\"sub\":1}"),
            format!("bearer {}", encrypted_without_header(&header, SECRET.as_bytes(), b"{\"sub\":1}")),
        ] {
            let mut request = with_token(&token);
            assert_eq!(on_request(&step, &mut request), Ok(()), "{token}");
            let claims = request.request.head.values(b"x-claims").collect::<Vec<_>>();
            assert_eq!(claims, [b"{\"sub\":1}"]);
            let consumer = request.identity.as_ref().map(|identity| &*identity.consumer.username);
            assert_eq!(consumer, Some("jack"));
        }
        let header = json!({"kid": "r", "alg": "dir", "enc": "A256GCM"});
        let mut request = with_token(&encrypted(&header, &[7; 32], b"token of rose"));
        assert_eq!(on_request(&door(json!({})), &mut request), Ok(()));
        assert_eq!(request.request.head.value(b"authorization"), Some(&b"token of rose"[..]));
    }

    #[test]
    fn wrong_tokens_are_refused() {
        let step = door(json!({}));
        let token = |kid: &str, secret: &[u8], content: &[u8]| {
            encrypted(&json!({"kid": kid, "alg": "dir", "enc": "A256GCM"}), secret, content)
        };
        for (token, message) in [
            ("Basic amFjazpqYWNr".to_owned(), "JWE token invalid"),
            (token("x", SECRET.as_bytes(), b"a"), "invalid kid in JWE token"),
            (token("r", SECRET.as_bytes(), b"a"), "failed to decrypt JWE token"),
            (token("j", SECRET.as_bytes(), b"a\r\nX-Role: admin"), "JWE token invalid"),
        ] {
            let mut request = with_token(&token);
            assert_eq!(on_request(&step, &mut request), Err(Stop::Answered), "{token}");
            let said = format!("{{\"message\":\"{message}\"}}\n");
            assert_eq!((request.response.status, body(&request)), (400, &*said), "{token}");
            assert!(request.identity.is_none());
        }
    }

    #[test]
    fn requests_without_a_token_pass_only_if_it_is_not_strict_and_bring_no_content() {
        let mut request = get("/");
        assert_eq!(on_request(&door(json!({})), &mut request), Err(Stop::Answered));
        assert_eq!(request.response.status, 403);
        let mut request = exchange("GET / HTTP/1.1\nHost: h\nX-Claims: forged");
        let lenient = door(json!({"forward_header": "X-Claims", "strict": false}));
        assert_eq!(on_request(&lenient, &mut request), Ok(()));
        assert_eq!(request.request.head.value(b"x-claims"), None);
        assert!(request.identity.is_none());
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        assert!(refused::<JweDecrypt>(json!({"header": "a b"})).starts_with("header: is not the name"));
        for (secret, is_base64_encoded, want) in [
            (SECRET[1..].to_owned(), false, "secret"),
            (format!("{SECRET}x"), false, "secret: has 33 bytes, and A256GCM needs 32"),
            ("%".repeat(44), true, "secret: is not base64"),
            (STANDARD.encode([7; 31]), true, "secret: has 31 bytes, and A256GCM needs 32"),
        ] {
            let options = json!({"key": "k", "secret": secret, "is_base64_encoded": is_base64_encoded});
            let credential = weir_plugin::Entry::authenticating::<JweDecrypt>().credential.expect("it has one");
            let error = (credential.check)(&options).expect_err("refused").to_string();
            assert!(error.starts_with(want) && !error.contains(&secret), "{error}");
        }
    }
}
