//! A provider that sends what a test wants: attacks that no real provider makes.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use weir_testkit::{Answer, Authority, Origin, TlsServer};

use crate::tokens::{Signer, now_s};

/// The client at all providers.
pub(super) const CLIENT: &str = "web";

pub(super) struct ScriptedProvider {
    pub origin: Origin,
    pub url: String,
    pub signer: Arc<Signer>,
    /// The answer of the token endpoint, and more members of the metadata.
    script: Arc<Mutex<(Answer, Value)>>,
}

impl ScriptedProvider {
    pub(super) fn start() -> ScriptedProvider {
        ScriptedProvider::start_over(false)
    }

    pub(super) fn start_over(tls: bool) -> ScriptedProvider {
        let signer = Arc::new(Signer::new("one"));
        let script = Arc::new(Mutex::new((Answer::status(400, r#"{"error": "invalid_grant"}"#), json!({}))));
        let scheme = if tls { "https" } else { "http" };
        let answering = {
            let (signer, script) = (Arc::clone(&signer), Arc::clone(&script));
            move |request: &weir_testkit::Request| {
                let host = request.headers.get("host").expect("a host");
                let url = format!("{scheme}://{host}");
                let script = script.lock().expect("no test panics here");
                match &*request.target {
                    "/keys" => Answer::ok(json!({ "keys": [signer.public()] }).to_string()),
                    "/token" => script.0.clone(),
                    "/.well-known/openid-configuration" => {
                        let mut metadata = json!({
                            "issuer": url, "jwks_uri": format!("{url}/keys"), "token_endpoint": format!("{url}/token"),
                            "authorization_endpoint": format!("{url}/auth"),
                        });
                        let own = metadata.as_object_mut().expect("a map");
                        own.extend(script.1.as_object().expect("a map").clone());
                        Answer::ok(metadata.to_string())
                    }
                    _ => Answer::status(404, ""),
                }
            }
        };
        let origin = match tls {
            true => Origin::serving_tls(&TlsServer::new(&Authority::of_tests().identity(&["localhost"])), answering),
            false => Origin::serving(answering),
        };
        let url = format!("{scheme}://localhost:{}", origin.addr().port());
        ScriptedProvider { origin, url, signer, script }
    }

    /// Further members of the metadata.
    pub(super) fn says(&self, metadata: Value) {
        self.script.lock().expect("no test panics here").1 = metadata;
    }

    /// Each code is answered with this.
    pub(super) fn answers(&self, answer: Answer) {
        self.script.lock().expect("no test panics here").0 = answer;
    }

    /// Each code is answered with this ID token.
    pub(super) fn gives(&self, token: &str) {
        let tokens =
            json!({ "id_token": token, "access_token": "an-access-token", "refresh_token": "a-refresh-token" });
        self.answers(Answer::ok(tokens.to_string()));
    }

    /// The claims of an admin, for the log-in that was sent here.
    pub(super) fn claims(&self, sent_to: &str) -> Value {
        json!({
            "iss": self.url, "aud": CLIENT, "sub": "alice", "exp": now_s() + 60, "groups": ["gateway-admins"],
            "nonce": argument(sent_to, "nonce"),
        })
    }
}

/// An argument of a URL.
#[track_caller]
pub(super) fn argument(url: &str, name: &str) -> String {
    let query = url.split_once('?').expect("a query").1;
    let found = query.split('&').find_map(|pair| pair.split_once('=').filter(|(own, _)| *own == name));
    found.unwrap_or_else(|| panic!("no {name} in {url}")).1.to_owned()
}
