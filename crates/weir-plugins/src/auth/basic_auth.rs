use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Authenticator, Build, ConfigError, Credential, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::auth::credentials::{Unauthenticated, name_and_password};

mod names;

use names::NameTable;

/// Requires the name and password of a consumer (Basic authentication, RFC 7617).
///
/// A request with an unknown name takes as long as one with a wrong password, so response times do not reveal which
/// names exist.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BasicAuth {
    /// Removes the field `Authorization` before the request is forwarded. APISIX's default is `false`, which sends
    /// passwords to upstreams.
    #[serde(default = "yes")]
    hide_credentials: bool,
    /// The consumer that requests without a valid password are attributed to, instead of being refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "realm")]
    #[schemars(length(min = 1, max = 128))]
    realm: String,
}

/// A name and password of a consumer.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordCredential {
    /// The name that clients send. It can differ from the name of the consumer. Two consumers cannot have the same
    /// `username`.
    username: String,
    /// The password.
    password: String,
}

fn yes() -> bool {
    true
}

fn realm() -> String {
    "basic".to_owned()
}

impl Definition for BasicAuth {
    const NAME: &'static str = "basic-auth";
    const PRIORITY: i32 = 2520;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "basic-auth: { realm: orders }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        Ok(Arc::new(BasicAuthenticator {
            hide: self.hide_credentials,
            names: build.consumers().index(NameTable::new),
            unauthenticated: Unauthenticated::new("Basic", &self.realm, self.anonymous_consumer.as_deref(), build)?,
        }))
    }
}

impl Authenticator for BasicAuth {
    type Credential = PasswordCredential;

    fn check(credential: PasswordCredential) -> Result<String, ConfigError> {
        let PasswordCredential { username, password } = credential;
        if username.is_empty() || username.contains(':') {
            return Err(ConfigError::new("username", "must not be empty, and must not contain a colon (RFC 7617 §2)"));
        }
        if password.is_empty() {
            return Err(ConfigError::new("password", "is empty"));
        }
        Ok(username)
    }
}

struct BasicAuthenticator {
    hide: bool,
    names: Arc<NameTable>,
    unauthenticated: Unauthenticated,
}

impl BasicAuthenticator {
    /// Whose credential it is, and the name that was shown.
    fn find(&self, exchange: &Exchange) -> Result<(&Arc<Credential>, Vec<u8>), &'static str> {
        let (name, password) = name_and_password(exchange)?;
        let found = self.names.find(&name, &password).ok_or("Invalid user authorization")?;
        Ok((found, name))
    }
}

impl Plugin for BasicAuthenticator {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let (found, name) = match self.find(exchange) {
            Ok((credential, name)) => (Arc::clone(credential), name),
            Err(fault) => return self.unauthenticated.admit_or_refuse(exchange, fault).map(Flow::from),
        };
        if self.hide {
            exchange.set_remote_user(name);
            exchange.request.head.remove(b"Authorization");
        }
        exchange.identify(&found).map(Flow::from)
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use weir_plugin::{Variable, Variables};

    use super::*;
    use crate::testing::{body, build_with, exchange, on_request, refused, sent, with_consumers};

    fn door() -> Arc<dyn Plugin> {
        let shared = with_consumers(&[("jack", "basic-auth", json!({"username": "foo", "password": "b:r"}))]);
        build_with::<BasicAuth>(json!({}), &shared).unwrap_or_else(|error| panic!("{error}"))
    }

    fn with(credentials: &str) -> Exchange {
        exchange(&format!("GET / HTTP/1.1\nHost: h\nAuthorization: {credentials}"))
    }

    #[test]
    fn name_and_password_tell_who_somebody_is() {
        let mut exchange = with(&format!("basic  {}", STANDARD.encode("foo:b:r")));
        assert_eq!(on_request(&door(), &mut exchange), Ok(()));
        assert_eq!(&*exchange.identity.as_ref().expect("known").consumer.username, "jack");
        assert_eq!(exchange.request.head.value(b"authorization"), None);
        assert_eq!(exchange.variable(&Variable::RemoteUser).as_deref(), Some(&b"foo"[..]), "logs know it");
        assert_eq!(exchange.request.head.value(b"x-consumer-username"), Some(&b"jack"[..]));
    }

    #[test]
    fn p06_anything_else_is_refused() {
        let basic = |text: &[u8]| format!("Basic {}", STANDARD.encode(text));
        let (invalid, wrong) = ("Invalid authorization in request", "Invalid user authorization");
        for (credentials, fault) in [
            ("x".to_owned(), invalid),
            ("Bearer abcdefg".to_owned(), invalid),
            ("Basic %%%%".to_owned(), invalid),
            ("Basic Zm9vOmJhcg".to_owned(), invalid), // without its padding
            (basic(b"foo"), invalid),
            (basic(&[b'a'; 9000]), invalid),
            (basic(b"foo:bar"), wrong),
            (basic(b"foo:"), wrong),
            (basic(b"who:b:r"), wrong),
            (basic(b"\0:\xff"), wrong),
        ] {
            let mut exchange = with(&credentials);
            assert_eq!(on_request(&door(), &mut exchange), Err(Stop::Answered), "{credentials}");
            assert_eq!((exchange.response.status, body(&exchange)), (401, &*format!("{{\"message\":\"{fault}\"}}\n")));
            assert_eq!(sent(&exchange, "www-authenticate"), Some("Basic realm=\"basic\""));
        }
        let mut nothing = crate::testing::get("/");
        assert_eq!(on_request(&door(), &mut nothing), Err(Stop::Answered));
        assert_eq!(body(&nothing), "{\"message\":\"Missing authorization in request\"}\n");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let error = refused::<BasicAuth>(json!({"realm": ""}));
        assert!(error.starts_with("realm: must have from 1 to 128"), "{error}");
        let check = |username: &str, password: &str| {
            BasicAuth::check(PasswordCredential { username: username.to_owned(), password: password.to_owned() })
        };
        assert!(check("a", "b").is_ok());
        assert!(check("a:b", "c").is_err_and(|error| error.path == "username"));
        assert!(check("a", "").is_err_and(|error| error.path == "password"));
    }
}
