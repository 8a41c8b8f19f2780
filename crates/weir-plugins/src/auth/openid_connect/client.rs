//! The options of this gateway's credentials at a provider.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_plugin::ConfigError;
use weir_tokens::{AssertionSigner, ClientAuthMethod, OpenidClient};

/// The options of assertions.
#[derive(Deserialize, JsonSchema)]
pub(super) struct AssertionOptions {
    /// The private key that signs assertions (`private_key_jwt`), as PEM: RSA, or EC on P-256.
    client_rsa_private_key: Option<String>,
    /// The `kid` of assertions: the name of the key at the provider.
    client_rsa_private_key_id: Option<String>,
    /// The signature algorithm of assertions. Without it, `RS256` for `private_key_jwt` and `HS256` for
    /// `client_secret_jwt`. APISIX also has `ES512`, which the library does not support.
    client_jwt_assertion_alg: Option<AssertionAlgorithm>,
    /// The audience of assertions. Without it, the URL of the endpoint that gets the assertion.
    client_jwt_assertion_audience: Option<String>,
    /// The lifetime of assertions, in seconds.
    #[serde(default = "default_client_jwt_assertion_expires_in")]
    #[schemars(range(min = 1, max = 3600))]
    #[schemars(extend("x-weir-unit" = "s"))]
    client_jwt_assertion_expires_in: u64,
}

fn default_client_jwt_assertion_expires_in() -> u64 {
    60
}

/// The signature algorithms of assertions.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
enum AssertionAlgorithm {
    HS256,
    HS512,
    RS256,
    RS512,
    ES256,
}

impl AssertionAlgorithm {
    fn of_library(self) -> Algorithm {
        match self {
            AssertionAlgorithm::HS256 => Algorithm::HS256,
            AssertionAlgorithm::HS512 => Algorithm::HS512,
            AssertionAlgorithm::RS256 => Algorithm::RS256,
            AssertionAlgorithm::RS512 => Algorithm::RS512,
            AssertionAlgorithm::ES256 => Algorithm::ES256,
        }
    }
}

impl AssertionOptions {
    /// # Errors
    /// If the private key is not one that the algorithm uses.
    pub(super) fn client(&self, id: &str, secret: Option<&str>) -> Result<OpenidClient, ConfigError> {
        use Algorithm::{HS256, HS512, RS256};
        let stated = self.client_jwt_assertion_alg.map(AssertionAlgorithm::of_library);
        let (of_secret, of_key) = match stated {
            Some(stated @ (HS256 | HS512)) => (stated, RS256),
            Some(stated) => (HS256, stated),
            None => (HS256, RS256),
        };
        let by_key = match &self.client_rsa_private_key {
            Some(pem) => Some(private_signer(pem, of_key, self.client_rsa_private_key_id.clone())?),
            None => None,
        };
        let by_secret = secret.map(|secret| AssertionSigner {
            header: Header::new(of_secret),
            key: EncodingKey::from_secret(secret.as_bytes()),
        });
        Ok(OpenidClient {
            id: id.to_owned(),
            secret: secret.map(str::to_owned),
            by_secret,
            by_key,
            audience: self.client_jwt_assertion_audience.clone(),
            lifetime_s: self.client_jwt_assertion_expires_in,
        })
    }
}

fn private_signer(pem: &str, algorithm: Algorithm, id: Option<String>) -> Result<AssertionSigner, ConfigError> {
    let key = match algorithm {
        Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
        _ => EncodingKey::from_rsa_pem(pem.as_bytes()),
    };
    let header = Header { kid: id, ..Header::new(algorithm) };
    let signer = key.map(|key| AssertionSigner { header, key });
    // A key on another curve is found only by a signature.
    let signer =
        signer.and_then(|signer| jsonwebtoken::encode(&signer.header, &json!({}), &signer.key).map(|_| signer));
    signer.map_err(|_| {
        let kind = if algorithm == Algorithm::ES256 { "an EC key on P-256" } else { "an RSA key" };
        let problem = format!(
            "is not {kind} in PEM, which `{algorithm:?}` needs; `client_jwt_assertion_alg` is `RS256`, `RS512` or `ES256`"
        );
        ConfigError::new("client_rsa_private_key", problem)
    })
}

/// Checks that a client has what the method needs.
///
/// # Errors
/// If it has not: at the option that is missing, with this problem.
pub(super) fn check_proof(client: &OpenidClient, method: ClientAuthMethod, problem: &str) -> Result<(), ConfigError> {
    if client.can_prove(method) {
        return Ok(());
    }
    let option = match method {
        ClientAuthMethod::PrivateKeyJwt => "client_rsa_private_key",
        _ => "client_secret",
    };
    Err(ConfigError::new(option, problem))
}

#[cfg(test)]
mod tests {
    use http::header::HeaderMap;
    use serde_json::Value;
    use weir_testkit::{Authority, KeyKind};

    use weir_plugin::form;
    use weir_tokens::WebToken;

    use super::*;

    fn client(options: Value, secret: Option<&str>) -> Result<OpenidClient, String> {
        let options: AssertionOptions = serde_json::from_value(options).expect("options");
        options.client("us", secret).map_err(|error| error.to_string())
    }

    fn private_key(kind: KeyKind) -> String {
        Authority::of_tests().identity_with(&["us"], kind, |_| ()).key
    }

    /// The pairs of a form after the credentials have been added.
    fn proved(client: &OpenidClient, method: ClientAuthMethod, pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut body = form::encoded_pairs(pairs);
        client.prove(method, "https://a/token", &mut HeaderMap::new(), &mut body).expect("proved");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        form::pairs(&body).map(|(name, value)| (text(&name), text(&value))).collect()
    }

    #[test]
    fn an_assertion_names_the_client_the_endpoint_and_its_key() {
        let options = json!({"client_rsa_private_key": private_key(KeyKind::Rsa), "client_rsa_private_key_id": "k1"});
        let client = client(options, None).expect("built");
        let pairs = proved(&client, ClientAuthMethod::PrivateKeyJwt, &[("a", "b")]);
        let names: Vec<&str> = pairs.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["a", "client_id", "client_assertion_type", "client_assertion"]);
        let token = WebToken::parse(pairs[3].1.as_bytes()).expect("a token");
        assert_eq!((token.algorithm(), token.key_id()), (Some(Algorithm::RS256), Some("k1")));
        let claims = token.payload();
        assert_eq!(
            (&claims["iss"], &claims["sub"], &claims["aud"]),
            (&json!("us"), &json!("us"), &json!("https://a/token"))
        );
        assert_eq!(claims["exp"].as_u64().zip(claims["iat"].as_u64()).map(|(exp, iat)| exp - iat), Some(60));
        let again = proved(&client, ClientAuthMethod::PrivateKeyJwt, &[]);
        assert_ne!(again.last(), pairs.last(), "each has an id of its own");
    }

    #[test]
    fn options_of_assertions_are_applied() {
        let options = json!({
            "client_rsa_private_key": private_key(KeyKind::Ecdsa), "client_jwt_assertion_alg": "ES256",
            "client_jwt_assertion_audience": "https://a", "client_jwt_assertion_expires_in": 5
        });
        let client = client(options, Some("a secret")).expect("built");
        for (method, algorithm) in
            [(ClientAuthMethod::PrivateKeyJwt, Algorithm::ES256), (ClientAuthMethod::SecretJwt, Algorithm::HS256)]
        {
            let pairs = proved(&client, method, &[]);
            let token = WebToken::parse(pairs[2].1.as_bytes()).expect("a token");
            assert_eq!((token.algorithm(), &token.payload()["aud"]), (Some(algorithm), &json!("https://a")));
            let (exp, iat) = (token.payload()["exp"].as_u64(), token.payload()["iat"].as_u64());
            assert_eq!(exp, iat.map(|iat| iat + 5));
        }
    }

    #[test]
    fn the_client_id_stands_in_a_form_once() {
        let client = client(json!({}), Some("a secret")).expect("built");
        for method in [ClientAuthMethod::Post, ClientAuthMethod::SecretJwt] {
            let pairs = proved(&client, method, &[("client_id", "us"), ("scope", "openid")]);
            assert_eq!(pairs.iter().filter(|(name, _)| name == "client_id").count(), 1, "{pairs:?}");
        }
    }

    #[test]
    fn each_method_is_checked_for_the_options_it_needs() {
        let of = |key: String, algorithm: &str| {
            client(json!({"client_rsa_private_key": key, "client_jwt_assertion_alg": algorithm}), None).err()
        };
        for (key, algorithm, want) in [
            ("x".to_owned(), "RS256", "client_rsa_private_key: is not an RSA key"),
            (private_key(KeyKind::Ecdsa), "RS512", "client_rsa_private_key: is not an RSA key"),
            (private_key(KeyKind::Rsa), "ES256", "client_rsa_private_key: is not an EC key on P-256"),
        ] {
            let error = of(key, algorithm).expect("refused");
            assert!(error.starts_with(want), "{error}");
        }
        let client = client(json!({}), None).expect("built");
        for (method, want) in [
            (ClientAuthMethod::PrivateKeyJwt, "client_rsa_private_key: is needed"),
            (ClientAuthMethod::SecretJwt, "client_secret: is needed"),
            (ClientAuthMethod::Basic, "client_secret: is needed"),
        ] {
            assert_eq!(check_proof(&client, method, "is needed").expect_err("refused").to_string(), want);
        }
    }
}
