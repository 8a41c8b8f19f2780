//! A realm of Keycloak: a stand-in that answers as Keycloak 26 does, and a real one.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{
    Answer, Client, Origin, Program, Request, TempDir, eventually, free_port, runs_for_minutes, skipped,
};

/// Options of the gateway as a client of the realm.
pub(super) const CLIENT: &str = "client_id: orders, client_secret: the-secret-of-orders";

/// Where a realm is.
pub(super) struct KeycloakRealm {
    pub(super) url: String,
    token_path: &'static str,
}

impl KeycloakRealm {
    /// A user's token, for the password.
    pub(super) fn token(&self, user: &str, password: &str) -> String {
        let form = format!(
            "grant_type=password&client_id=orders&client_secret=the-secret-of-orders&username={user}&password={password}"
        );
        let rest = self.url.strip_prefix("http://").expect("plain HTTP");
        let (address, realm) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let post = format!(
            "POST {realm}{} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
            self.token_path,
            form.len()
        );
        let answer = Client::connect(address.parse().expect("an address")).ask(post).expect("an answer");
        let answer: Value = serde_json::from_slice(&answer.body).expect("JSON");
        answer["access_token"].as_str().unwrap_or_else(|| panic!("no token: {answer}")).to_owned()
    }
}

/// A real Keycloak.
pub(super) struct RealKeycloak {
    pub(super) realm: KeycloakRealm,
    _program: Program,
}

/// It starts in 45 seconds on an idle machine.
const START: Duration = Duration::from_secs(400);

impl RealKeycloak {
    /// `None` without `WEIR_TEST_FULL`, and where there is no Java, or no Keycloak.
    pub(super) fn start() -> Option<RealKeycloak> {
        if !runs_for_minutes("Keycloak starts in a minute") {
            return None;
        }
        Program::java()?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let installed = root.join(".cache/keycloak");
        let script = installed.join("bin/kc.sh");
        if !script.exists() {
            skipped("there is no Keycloak");
            return None;
        }
        let imported = installed.join("data/import");
        std::fs::create_dir_all(&imported).expect("the folder is ours");
        std::fs::write(imported.join("shop.json"), include_str!("realm.json")).expect("the folder is ours");
        let mut command = Command::new(script);
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}/realms/shop");
        command.args(["start", "--optimized", "--cache=local", "--http-enabled=true", "--hostname-strict=false"]);
        command.args(["--http-host=127.0.0.1", &format!("--http-port={port}"), "--import-realm"]);
        let realm = KeycloakRealm { url, token_path: "/protocol/openid-connect/token" };
        let keycloak = RealKeycloak { realm, _program: Program::start(command, TempDir::new()) };
        eventually("Keycloak answers", START, || {
            let client = Client::try_connect(([127, 0, 0, 1], port).into());
            let answer = client.ok().and_then(|mut client| client.get("/realms/shop").ok());
            answer.is_some_and(|answer| answer.status == 200)
        });
        Some(keycloak)
    }
}

/// What the stand-in has been asked for.
#[derive(Default)]
struct Counts {
    discoveries: AtomicUsize,
    own_tokens: AtomicUsize,
    refreshes: AtomicUsize,
}

/// What the stand-in knows.
#[derive(Default)]
struct State {
    counts: Counts,
    /// The tokens of the gateway that are valid.
    valid: Mutex<BTreeSet<String>>,
    refuses: AtomicBool,
}

/// Answers as Keycloak does. Jack has the scope `GET` of orders, and Jill all scopes of orders and reports.
pub(super) struct StandIn {
    pub(super) realm: KeycloakRealm,
    state: Arc<State>,
    _origin: Origin,
}

impl StandIn {
    pub(super) fn start() -> StandIn {
        let state = Arc::<State>::default();
        let own = Arc::clone(&state);
        let origin = Origin::serving(move |request| own.answer(request));
        let realm = KeycloakRealm { url: format!("http://{}", origin.addr()), token_path: "/token" };
        StandIn { realm, state, _origin: origin }
    }

    pub(super) fn discoveries(&self) -> usize {
        self.state.counts.discoveries.load(SeqCst)
    }

    /// How often the gateway has asked for a token by its credentials.
    pub(super) fn own_tokens(&self) -> usize {
        self.state.counts.own_tokens.load(SeqCst)
    }

    pub(super) fn refreshes(&self) -> usize {
        self.state.counts.refreshes.load(SeqCst)
    }

    /// Tokens that the gateway has are not valid any more, as after a restart.
    pub(super) fn forget_own_tokens(&self) {
        self.state.valid.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// No token of the gateway is accepted.
    pub(super) fn refuse_own_tokens(&self) {
        self.state.refuses.store(true, SeqCst);
    }
}

fn json(status: u16, value: &Value) -> Answer {
    Answer::with(status, "Content-Type: application/json\r\n", value.to_string())
}

fn refusal(status: u16, error: &str, description: &str) -> Answer {
    json(status, &json!({ "error": error, "error_description": description }))
}

impl State {
    fn answer(&self, request: &Request) -> Answer {
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let bearer = request.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("");
        match (&*request.method, path) {
            ("GET", "/.well-known/uma2-configuration") => {
                self.counts.discoveries.fetch_add(1, SeqCst);
                let base = format!("http://{}", request.headers.get("host").expect("a host"));
                json(
                    200,
                    &json!({
                        "issuer": base, "token_endpoint": format!("{base}/token"),
                        "resource_registration_endpoint": format!("{base}/resource_set"),
                    }),
                )
            }
            ("GET", "/resource_set") => self.resources(&pairs(query.as_bytes()), bearer),
            ("POST", "/token") => self.token(&pairs(&request.body), bearer),
            _ => refusal(404, "not_found", "HTTP 404 Not Found"),
        }
    }

    fn resources(&self, query: &[(String, String)], bearer: &str) -> Answer {
        let is_valid = self.valid.lock().unwrap_or_else(PoisonError::into_inner).contains(bearer);
        if !is_valid || self.refuses.load(SeqCst) {
            return refusal(403, "invalid_bearer_token", "Could not obtain bearer access_token from request.");
        }
        assert_eq!(find(query, "matchingUri"), ["true"]);
        let path = find(query, "uri");
        let fits = ["orders", "reports"].into_iter().filter(|name| path[0].starts_with(&format!("/{name}/")));
        json(200, &fits.collect::<Vec<_>>().into())
    }

    fn token(&self, form: &[(String, String)], bearer: &str) -> Answer {
        let grant = find(form, "grant_type")[0];
        if grant == "urn:ietf:params:oauth:grant-type:uma-ticket" {
            return decision(form, bearer);
        }
        let client = [find(form, "client_id"), find(form, "client_secret")].concat();
        if client != ["orders", "the-secret-of-orders"] {
            return refusal(401, "unauthorized_client", "Invalid client or Invalid client credentials");
        }
        match grant {
            "password" => match [find(form, "username"), find(form, "password")].concat()[..] {
                ["jack", "jacks-word"] => json(200, &json!({ "access_token": "of-jack" })),
                ["jill", "jills-word"] => json(200, &json!({ "access_token": "of-jill" })),
                _ => refusal(401, "invalid_grant", "Invalid user credentials"),
            },
            "client_credentials" => self.own_token(&self.counts.own_tokens, "first"),
            "refresh_token" if find(form, "refresh_token")[0].starts_with("again-") => {
                self.own_token(&self.counts.refreshes, "refreshed")
            }
            _ => refusal(400, "unsupported_grant_type", "Unsupported grant_type"),
        }
    }

    fn own_token(&self, count: &AtomicUsize, name: &str) -> Answer {
        let number = count.fetch_add(1, SeqCst);
        let token = format!("{name}-{number}");
        self.valid.lock().unwrap_or_else(PoisonError::into_inner).insert(token.clone());
        let refresh = format!("again-{token}");
        json(
            200,
            &json!({ "access_token": token, "expires_in": 300, "refresh_token": refresh, "refresh_expires_in": 1800 }),
        )
    }
}

/// Of several permissions one has to be granted, and without any all are asked for.
fn decision(form: &[(String, String)], bearer: &str) -> Answer {
    assert_eq!([find(form, "audience"), find(form, "response_mode")].concat(), ["orders", "decision"]);
    let (of_orders, of_reports): (&[&str], &[&str]) = match bearer {
        "of-jack" => (&["GET"], &[]),
        "of-jill" => (&["GET", "DELETE"], &["GET"]),
        _ => return refusal(401, "invalid_grant", "Invalid bearer token"),
    };
    let mut is_granted = false;
    let asked = find(form, "permission");
    for permission in &asked {
        let (resource, scope) = permission.split_once('#').unwrap_or((permission, ""));
        // Behind a second `#` nothing is read.
        let scope = scope.split('#').next().unwrap_or_default();
        let scopes = match resource {
            "orders" => of_orders,
            "reports" => of_reports,
            _ => return refusal(400, "invalid_resource", "Resource with id [nothing] does not exist."),
        };
        if !["", "GET", "DELETE"].contains(&scope) {
            return refusal(400, "invalid_scope", "One of the given scopes is invalid");
        }
        is_granted |= if scope.is_empty() { !scopes.is_empty() } else { scopes.contains(&scope) };
    }
    match is_granted || asked.is_empty() {
        true => json(200, &json!({ "result": true })),
        false => refusal(403, "access_denied", "not_authorized"),
    }
}

/// The pairs of a query or a form, decoded.
fn pairs(text: &[u8]) -> Vec<(String, String)> {
    weir_client::form::pairs(text)
        .map(|(name, value)| {
            (String::from_utf8_lossy(&name).into_owned(), String::from_utf8_lossy(&value).into_owned())
        })
        .collect()
}

fn find<'a>(pairs: &'a [(String, String)], wanted: &str) -> Vec<&'a str> {
    pairs.iter().filter(|(name, _)| name == wanted).map(|(_, value)| &**value).collect()
}
