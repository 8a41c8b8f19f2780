use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Authenticator, Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::auth::credentials::{BasicOutcome, Unauthenticated, name_and_password};

mod apr1;
mod hashes;
mod names;

use hashes::{HashVerifier, PasswordHash};
use names::{NameAndPassword, NameOwner, NameTable};

/// Requires the name and password of a consumer, or of a user of the route (Basic authentication, RFC 7617).
///
/// A request with an unknown name takes as long as one with a wrong password, so response times do not reveal which
/// names exist.
///
/// Passwords can be stored as hashes. Hashes are deliberately slow to verify, so Weir verifies them on separate threads, on
/// at most half of the processors, and each worker caches a correct password for an hour. A request that waits longer than 5
/// seconds for its verification is answered with 503, and so is a request while 1024 others are waiting, or 256 of the same client
/// address. Clients take turns: one that sends many passwords does not delay the others. Use the same kind of hash with the same cost for all consumers: if one password is hashed, every wrong password takes as long as that hash, but
/// different costs can reveal which names exist.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BasicAuth {
    /// Removes the field `Authorization` before the request is forwarded. APISIX's default is `false`, which sends
    /// passwords to upstreams.
    #[serde(default = "default_true")]
    hide_credentials: bool,
    /// The consumer that requests without a valid password are attributed to, instead of being refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The users of the route: only they are admitted, and not the consumers. They are no consumers; `$remote_user` has the name. Of equal
    /// names the last one counts.
    users: Option<Vec<PasswordCredential>>,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "default_realm")]
    #[schemars(length(min = 1, max = 128))]
    realm: String,
}

/// A name and password of a consumer.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PasswordCredential {
    /// The name that clients send. It can differ from the name of the consumer. Two consumers cannot have the same
    /// `username`.
    username: String,
    /// The password, or a hash of it: Argon2 (`$argon2id$…`), bcrypt (`$2b$…`, or `$2y$…` as from `htpasswd -B`), or the old `$apr1$…` as
    /// from `htpasswd`, which protects a stolen list badly. A hash may cost at most 256 MiB and 16 passes (Argon2), or cost 15 (bcrypt).
    /// Other kinds of hashes are refused.
    #[schemars(length(min = 1))]
    password: String,
}

fn default_true() -> bool {
    true
}

fn default_realm() -> String {
    "basic".to_owned()
}

impl Definition for BasicAuth {
    const NAME: &'static str = "basic-auth";
    const PRIORITY: i32 = 2520;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "basic-auth: { realm: orders }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let names = match &self.users {
            None => build.consumers().index(NameTable::of_consumers),
            Some(users) => {
                for (index, user) in users.iter().enumerate() {
                    let at = |path: &str| format!("users[{index}].{path}");
                    if let Err(error) = user.check() {
                        build.fault(at(&error.path), error.problem);
                    }
                    if user.password.starts_with(apr1::BEGIN) {
                        let problem = "is hashed by MD5, which is too fast to protect it; hash it by `htpasswd -B`";
                        build.warnings.push(ConfigError::new(at("password"), problem));
                    }
                }
                Arc::new(NameTable::of_users(users))
            }
        };
        Ok(Arc::new(BasicAuthenticator {
            names,
            verifier: HashVerifier::new(build),
            outcome: BasicOutcome {
                hide: self.hide_credentials,
                unauthenticated: Unauthenticated::new("Basic", &self.realm, self.anonymous_consumer.as_deref(), build)?,
            },
        }))
    }
}

impl Authenticator for BasicAuth {
    type Credential = PasswordCredential;

    fn check(credential: PasswordCredential) -> Result<String, ConfigError> {
        credential.check()?;
        Ok(credential.username)
    }
}

impl PasswordCredential {
    fn check(&self) -> Result<(), ConfigError> {
        if self.username.is_empty() || self.username.contains(':') {
            return Err(ConfigError::new("username", "must not be empty, and must not contain a colon (RFC 7617 §2)"));
        }
        PasswordHash::parse(&self.password).map(drop).map_err(|problem| ConfigError::new("password", problem))
    }
}

struct BasicAuthenticator {
    names: Arc<NameTable>,
    verifier: HashVerifier,
    outcome: BasicOutcome,
}

const WRONG: &str = "Invalid user authorization";

impl BasicAuthenticator {
    fn admit(&self, exchange: &mut Exchange, owner: &NameOwner, name: Vec<u8>) -> Result<(), Stop> {
        match owner {
            NameOwner::Consumer(credential) => self.outcome.admit(exchange, credential, name),
            NameOwner::User => {
                self.outcome.admit_user(exchange, name);
                Ok(())
            }
        }
    }

    /// Admits the client if the hash is that of the password, and if the name has an owner.
    async fn admit_by_hash(
        &self,
        exchange: &mut Exchange,
        hash: &Arc<PasswordHash>,
        owner: Option<&NameOwner>,
        (name, password): (Vec<u8>, Vec<u8>),
    ) -> Result<(), Stop> {
        let is_right = self.verifier.is_right(exchange.client.addr, hash, password).await?;
        match owner.filter(|_| is_right) {
            Some(owner) => self.admit(exchange, owner, name),
            None => self.outcome.admit_or_refuse(exchange, WRONG),
        }
    }
}

impl Plugin for BasicAuthenticator {
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Result<Flow<'a>, Stop> {
        let (name, password) = match name_and_password(exchange) {
            Ok(shown) => shown,
            Err(fault) => return self.outcome.admit_or_refuse(exchange, fault).map(Flow::from),
        };
        match self.names.find(&name, &password) {
            NameAndPassword::Right(owner) => self.admit(exchange, owner, name).map(Flow::from),
            NameAndPassword::Wrong => self.outcome.admit_or_refuse(exchange, WRONG).map(Flow::from),
            NameAndPassword::Hashed(hash, Some(owner)) if self.verifier.remembers(hash, &password) => {
                self.admit(exchange, owner, name).map(Flow::from)
            }
            NameAndPassword::Hashed(hash, owner) => {
                Ok(Flow::wait(self.admit_by_hash(exchange, hash, owner, (name, password))))
            }
        }
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
    fn hashed_passwords_tell_who_somebody_is_and_right_ones_are_remembered() {
        const HASH: &str = "$2y$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC";
        let shared = with_consumers(&[
            ("jack", "basic-auth", json!({"username": "jack", "password": HASH})),
            ("jill", "basic-auth", json!({"username": "jill", "password": "plain"})),
        ]);
        let door = build_with::<BasicAuth>(json!({}), &shared).unwrap_or_else(|error| panic!("{error}"));
        let shown = |text: &str| with(&format!("Basic {}", STANDARD.encode(text)));
        for wrong in ["jack:wrong", &format!("jack:{HASH}"), "jill:right", "joe:right", "jack:"] {
            let mut exchange = shown(wrong);
            assert_eq!(on_request(&door, &mut exchange), Err(Stop::Answered), "{wrong}");
            assert_eq!(body(&exchange), "{\"message\":\"Invalid user authorization\"}\n");
            assert!(matches!(door.on_request(&mut shown(wrong)), Ok(Flow::Wait(_))), "{wrong} is not remembered");
        }
        for name in ["jack:right", "jill:plain"] {
            let mut exchange = shown(name);
            assert_eq!(on_request(&door, &mut exchange), Ok(()));
            assert_eq!(&*exchange.identity.as_ref().expect("known").consumer.username, &name[..4]);
            assert!(matches!(door.on_request(&mut shown(name)), Ok(Flow::Continue)), "{name} takes no time");
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let error = refused::<BasicAuth>(json!({"realm": "a\"b"}));
        assert!(error.starts_with("realm: must be printable ASCII characters, without quotes"), "{error}");
        let check = |username: &str, password: &str| {
            BasicAuth::check(PasswordCredential { username: username.to_owned(), password: password.to_owned() })
        };
        assert!(check("a", "b").is_ok());
        assert!(check("a:b", "c").is_err_and(|error| error.path == "username"));
        assert!(check("a", "$apr1$a$b").is_err_and(|error| error.path == "password"));
        let error = refused::<BasicAuth>(json!({"users": [{"username": "a", "password": "{SHA}b"}]}));
        assert!(error.starts_with("users[0].password: begins with `{SHA}`"), "{error}");
    }

    #[test]
    fn users_of_a_route_are_admitted_and_consumers_are_not() {
        let shared = with_consumers(&[("jack", "basic-auth", json!({"username": "jack", "password": "secret"}))]);
        let users =
            json!({"users": [{"username": "jill", "password": "plain"}, {"username": "joe", "password": "other"}]});
        let door = build_with::<BasicAuth>(users, &shared).unwrap_or_else(|error| panic!("{error}"));
        for (shown, outcome) in [
            ("jill:plain", Ok(())),
            ("joe:other", Ok(())),
            ("joe:plain", Err(Stop::Answered)),
            ("jack:secret", Err(Stop::Answered)),
        ] {
            let mut exchange = with(&format!("Basic {}", STANDARD.encode(shown)));
            assert_eq!(on_request(&door, &mut exchange), outcome, "{shown}");
            assert!(exchange.identity.is_none());
            if outcome.is_ok() {
                let name = shown.split(':').next().map(str::as_bytes);
                assert_eq!(exchange.variable(&Variable::RemoteUser).as_deref(), name);
                assert_eq!(exchange.request.head.value(b"authorization"), None);
            }
        }
    }
}
