//! The credentials of a client at a provider, and how it shows them (RFC 6749 §2.3.1, RFC 7523 §2.2).

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use jsonwebtoken::{EncodingKey, Header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_client::form;

/// How the gateway authenticates at an endpoint of the provider (OpenID Connect Core 1.0 §9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum ClientAuthMethod {
    #[default]
    #[serde(rename = "client_secret_basic")]
    Basic,
    #[serde(rename = "client_secret_post")]
    Post,
    /// By an assertion that the client secret signs.
    #[serde(rename = "client_secret_jwt")]
    SecretJwt,
    /// By an assertion that the client's private key signs.
    #[serde(rename = "private_key_jwt")]
    PrivateKeyJwt,
}

/// The credentials of a client at its provider.
pub struct OpenidClient {
    pub id: String,
    pub secret: Option<String>,
    /// Sign assertions with the secret and with the private key, if there is one.
    pub by_secret: Option<AssertionSigner>,
    pub by_key: Option<AssertionSigner>,
    /// The audience of assertions; `None` for the URL of the endpoint that gets them.
    pub audience: Option<String>,
    /// The lifetime of assertions.
    pub lifetime_s: u64,
}

/// Signs assertions.
pub struct AssertionSigner {
    pub header: Header,
    pub key: EncodingKey,
}

impl OpenidClient {
    /// A client that has a secret at most, and no private key to sign assertions with.
    pub fn with_secret(id: &str, secret: Option<&str>) -> OpenidClient {
        OpenidClient {
            id: id.to_owned(),
            secret: secret.map(str::to_owned),
            by_secret: None,
            by_key: None,
            audience: None,
            lifetime_s: 0,
        }
    }

    /// Whether this client has what the method needs.
    pub fn can_prove(&self, method: ClientAuthMethod) -> bool {
        match method {
            ClientAuthMethod::PrivateKeyJwt => self.by_key.is_some(),
            _ => self.secret.is_some(),
        }
    }

    /// Adds the credentials to the fields and the body of a form that is sent to `url`.
    ///
    /// # Errors
    /// If an assertion cannot be signed.
    pub fn prove(
        &self,
        method: ClientAuthMethod,
        url: &str,
        fields: &mut HeaderMap,
        body: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        let secret = self.secret.as_deref().unwrap_or_default();
        let signer = match method {
            ClientAuthMethod::Basic => {
                fields.insert(AUTHORIZATION, basic(&self.id, secret));
                return Ok(());
            }
            ClientAuthMethod::Post => {
                append(body, &[("client_id", &self.id), ("client_secret", secret)]);
                return Ok(());
            }
            ClientAuthMethod::SecretJwt => &self.by_secret,
            ClientAuthMethod::PrivateKeyJwt => &self.by_key,
        };
        let assertion = signer.as_ref().and_then(|signer| self.assertion(signer, url));
        let assertion = assertion.ok_or("the assertion for the provider could not be signed")?;
        let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
        append(body, &[("client_id", &self.id), ("client_assertion_type", kind), ("client_assertion", &assertion)]);
        Ok(())
    }

    /// RFC 7523 §3: what an assertion must contain.
    fn assertion(&self, signer: &AssertionSigner, url: &str) -> Option<String> {
        let mut id = [0; 16];
        rand::fill(&mut id).ok()?;
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({
            "iss": self.id,
            "sub": self.id,
            "aud": self.audience.as_deref().unwrap_or(url),
            "jti": URL_SAFE_NO_PAD.encode(id),
            "iat": now_s,
            "exp": now_s + self.lifetime_s,
        });
        jsonwebtoken::encode(&signer.header, &claims, &signer.key).ok()
    }
}

/// RFC 6749 §2.3.1: id and secret are each encoded as in a form.
fn basic(id: &str, secret: &str) -> HeaderValue {
    let mut shown = Vec::new();
    form::write_encoded(id.as_bytes(), &mut shown);
    shown.push(b':');
    form::write_encoded(secret.as_bytes(), &mut shown);
    let value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(shown)));
    let mut value = value.expect("base64 is visible ASCII");
    value.set_sensitive(true);
    value
}

/// Adds pairs to a form. A `client_id` that is already among its parameters is not repeated.
fn append(body: &mut Vec<u8>, pairs: &[(&str, &str)]) {
    let has_id = form::pairs(body).any(|(name, _)| *name == *b"client_id");
    for pair in pairs.iter().filter(|(name, _)| !has_id || *name != "client_id") {
        if !body.is_empty() {
            body.push(b'&');
        }
        body.append(&mut form::encoded_pairs(&[*pair]));
    }
}
