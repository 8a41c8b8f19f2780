use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    AllOf, Authenticator, Build, ConfigError, Consumers, Credential, Definition, Exchange, Flow, Plugin, Stage, Stop,
    Variable, Variables,
};

use crate::auth::credentials::{OfferedCredential, Unauthenticated, hide_argument};
use crate::options::headers::header_name;

/// Requires the key of a consumer, in a header field or in the query.
///
/// The time to look up a key does not depend on the number of consumers, nor on how much of a wrong key is correct.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyAuth {
    /// The header field that contains the key. It takes precedence over the query.
    #[serde(default = "default_apikey")]
    header: String,
    /// The query argument that contains the key. Its value is masked in logs.
    #[serde(default = "default_apikey")]
    query: String,
    /// Also accepts the key among the subprotocols of a WebSocket's handshake, after an entry with this name: with `bearer`,
    /// `Sec-WebSocket-Protocol: bearer, KEY`. Browsers can set no other field there. Unless the upstream chooses another
    /// subprotocol, the client gets this one as the answer.
    #[schemars(length(min = 1))]
    websocket_protocol: Option<String>,
    /// Removes the key before the request is forwarded. APISIX's default is `false`, which sends keys to upstreams and
    /// into their logs.
    #[serde(default = "default_true")]
    hide_credentials: bool,
    /// The consumer that requests without a valid key are attributed to, instead of being refused.
    #[schemars(length(min = 1))]
    anonymous_consumer: Option<String>,
    /// The `realm` parameter in the field `WWW-Authenticate` of a refusal.
    #[serde(default = "default_realm")]
    #[schemars(length(min = 1, max = 128))]
    realm: String,
}

/// A key of a consumer.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyCredential {
    /// The key. Two consumers cannot have the same key.
    #[schemars(length(min = 1))]
    key: String,
}

fn default_apikey() -> String {
    "apikey".to_owned()
}

fn default_true() -> bool {
    true
}

fn default_realm() -> String {
    "key".to_owned()
}

impl Definition for KeyAuth {
    const NAME: &'static str = "key-auth";
    const PRIORITY: i32 = 2500;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "key-auth: { header: X-Api-Key }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let query_name: Arc<[u8]> = self.query.as_bytes().into();
        build.secret_argument(&query_name);
        build.secret_field(self.header.as_bytes());
        let offered = self.websocket_protocol.as_deref().map(|name| OfferedCredential::new(name, build)).transpose();
        let unauthenticated = Unauthenticated::new("apikey", &self.realm, self.anonymous_consumer.as_deref(), build);
        let (header, offered, unauthenticated) =
            (header_name(&self.header, "header"), offered, unauthenticated).all_of()?;
        Ok(Arc::new(KeyAuthenticator {
            header: header.into(),
            query: Variable::Argument(self.query.as_str().into()),
            query_name,
            offered,
            hide: self.hide_credentials,
            keys: build.consumers().index(ApiKeys::new),
            unauthenticated,
        }))
    }
}

impl Authenticator for KeyAuth {
    type Credential = KeyCredential;

    fn check(credential: KeyCredential) -> Result<String, ConfigError> {
        Ok(credential.key)
    }
}

/// The keys of all consumers, by a hash with a secret seed, which clients cannot compute.
struct ApiKeys {
    secret: RandomState,
    /// The map needs no seed of its own, because its keys are hashes with a secret seed.
    by_hash: HashMap<u64, Vec<ApiKey>, foldhash::fast::RandomState>,
}

struct ApiKey {
    key: Box<[u8]>,
    credential: Arc<Credential>,
}

impl ApiKeys {
    fn new(consumers: &Consumers) -> ApiKeys {
        let mut keys = ApiKeys { secret: RandomState::new(), by_hash: HashMap::default() };
        for credential in consumers.credentials(KeyAuth::NAME) {
            // Credentials with other options are invalid, and have been reported by the document's checks.
            if let Some(key) = credential.options["key"].as_str() {
                let hash = keys.hash(key.as_bytes());
                let known = ApiKey { key: key.as_bytes().into(), credential: Arc::clone(credential) };
                keys.by_hash.entry(hash).or_default().push(known);
            }
        }
        keys
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let mut hasher = self.secret.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    /// The time that a wrong key takes reveals nothing about valid keys: it depends only on whether the key's hash
    /// exists, and clients can neither predict hashes nor approach one step by step.
    fn find(&self, key: &[u8]) -> Option<&Arc<Credential>> {
        let candidates = self.by_hash.get(&self.hash(key))?;
        let found = candidates.iter().find(|known| verify_slices_are_equal(&known.key, key).is_ok())?;
        Some(&found.credential)
    }
}

struct KeyAuthenticator {
    header: Box<[u8]>,
    query: Variable,
    query_name: Arc<[u8]>,
    offered: Option<OfferedCredential>,
    hide: bool,
    keys: Arc<ApiKeys>,
    unauthenticated: Unauthenticated,
}

impl KeyAuthenticator {
    /// Removes the key before the request is forwarded, if it is to be hidden, and answers the offer of a WebSocket.
    fn hide(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if self.hide {
            // Removed from both places: the key that was not used is as secret as the one that was.
            exchange.request.head.remove(&self.header);
            if exchange.variable(&self.query).is_some() {
                hide_argument(exchange, &self.query_name)?;
            }
        }
        match &self.offered {
            Some(offered) => offered.accept(exchange, self.hide),
            None => Ok(()),
        }
    }
}

impl Plugin for KeyAuthenticator {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let (found, in_query) = match exchange.request.head.value(&self.header).filter(|key| !key.is_empty()) {
            Some(key) => (Some(self.keys.find(key)), false),
            None => match exchange.variable(&self.query) {
                Some(key) => (Some(self.keys.find(&key)), true),
                None => (
                    self.offered.as_ref().and_then(|offered| offered.shown(exchange)).map(|key| self.keys.find(key)),
                    false,
                ),
            },
        };
        if in_query && found.is_some() {
            exchange.hide_argument(Arc::clone(&self.query_name));
        }
        let found = match found {
            Some(Some(credential)) => Arc::clone(credential),
            other => {
                let fault = if other.is_some() { "Invalid API key in request" } else { "Missing API key in request" };
                let hide = |exchange: &mut Exchange| self.hide(exchange);
                return self.unauthenticated.admit_or_refuse(exchange, fault, hide).map(Flow::from);
            }
        };
        self.hide(exchange)?;
        exchange.identify(&found).map(Flow::from)
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use serde_json::json;
    use weir_testkit::timing::assert_same_time;

    use super::*;
    use crate::testing::{body, build_with, exchange, get, on_request, refused, sent, with_consumers};

    fn door(options: serde_json::Value) -> Arc<dyn Plugin> {
        let shared =
            with_consumers(&[("jack", "key-auth", json!({"key": "k1"})), ("rose", "key-auth", json!({"key": "k2"}))]);
        build_with::<KeyAuth>(options, &shared).unwrap_or_else(|error| panic!("{error}"))
    }

    fn username(exchange: &Exchange) -> Option<&str> {
        exchange.identity.as_ref().map(|identity| &*identity.consumer.username)
    }

    #[test]
    fn a_key_tells_who_somebody_is() {
        let step = door(json!({}));
        let mut exchange = exchange("GET /?a=1 HTTP/1.1\nHost: h\nApiKey: k2\nX-Consumer-Username: admin");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        assert_eq!(username(&exchange), Some("rose"));
        let head = &exchange.request.head;
        assert_eq!(head.values(b"x-consumer-username").collect::<Vec<_>>(), [b"rose"]);
        assert_eq!(head.value(b"apikey"), None);
        let mut exchange = get("/uri?apikey=k1&a=1&apikey=x");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        assert_eq!((username(&exchange), exchange.request.query()), (Some("jack"), Some(&b"a=1"[..])));
        let shows = door(json!({"hide_credentials": false}));
        let mut exchange = get("/uri?apikey=k1&a=1");
        assert_eq!(on_request(&shows, &mut exchange), Ok(()));
        assert_eq!(exchange.request.query(), Some(&b"apikey=k1&a=1"[..]));
    }

    #[test]
    fn missing_and_wrong_keys_are_refused() {
        let step = door(json!({"realm": "my keys"}));
        for (head, fault) in [
            ("GET / HTTP/1.1\nHost: h", "Missing API key in request"),
            ("GET / HTTP/1.1\nHost: h\nApiKey: k", "Invalid API key in request"),
            ("GET /?apikey=k1x HTTP/1.1\nHost: h", "Invalid API key in request"),
            ("GET /?apikey=k1 HTTP/1.1\nHost: h\nApiKey: wrong", "Invalid API key in request"),
        ] {
            let mut exchange = exchange(head);
            assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
            assert_eq!((exchange.response.status, body(&exchange)), (401, &*format!("{{\"message\":\"{fault}\"}}\n")));
            assert_eq!(sent(&exchange, "www-authenticate"), Some("apikey realm=\"my keys\""));
            assert_eq!(username(&exchange), None);
        }
    }

    #[test]
    fn p04_time_says_nothing_of_keys() {
        let valid = *b"0123456789abcdefghijklmnopqrstuv";
        let text = std::str::from_utf8(&valid).expect("ASCII");
        let others: Vec<String> = (0..1_000).map(|number| format!("k{number}")).collect();
        let every = others.iter().map(String::as_str).chain([text]);
        let consumers: Vec<_> = every.map(|key| (key, "key-auth", json!({ "key": key }))).collect();
        let keys = with_consumers(&consumers).consumers.index(ApiKeys::new);
        assert!(keys.find(&valid).is_some());
        assert_same_time(
            "key-auth: keys that begin as a valid one does, and others",
            |begins_right, random| if begins_right { random.beginning_as(&valid) } else { random.text() },
            |key| _ = black_box(keys.find(key)),
        );
    }

    #[test]
    fn the_anonymous_consumer_stands_for_everybody_else() {
        let step = door(json!({"anonymous_consumer": "rose"}));
        let mut exchange = get("/");
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
        assert_eq!(username(&exchange), Some("rose"));
    }

    #[test]
    fn a_key_that_was_not_accepted_does_not_reach_the_upstream() {
        for (hides, left) in [(true, None), (false, Some(&b"wrong"[..]))] {
            let step = door(json!({"anonymous_consumer": "rose", "hide_credentials": hides}));
            let mut exchange = exchange("GET /?apikey=wrong&a=1 HTTP/1.1\nHost: h\nApiKey: wrong");
            assert_eq!(on_request(&step, &mut exchange), Ok(()));
            assert_eq!(username(&exchange), Some("rose"));
            assert_eq!(exchange.request.head.value(b"apikey"), left);
            assert_eq!(exchange.request.query() == Some(b"a=1"), hides);
        }
        let mut refused = exchange("GET / HTTP/1.1\nHost: h\nApiKey: wrong");
        assert_eq!(on_request(&door(json!({})), &mut refused), Err(Stop::Answered));
        assert_eq!(refused.request.head.value(b"apikey"), Some(&b"wrong"[..]), "another plugin may accept it");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"header": "a b"}), "header: is not the name"),
            (json!({"realm": "a\"b"}), "realm: must be printable ASCII characters, without quotes"),
            (json!({"anonymous_consumer": "nobody"}), "anonymous_consumer: `nobody` is not a consumer"),
        ] {
            let error = refused::<KeyAuth>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
