//! A cache of secrets from secret managers: fetched when a configuration is loaded, and again when their time to live is over.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::{Map, Value};
use weir_client::{CallSettings, HttpClient, ServiceUrl};

use crate::document::{Document, SecretManager, SecretReference};

/// The time limit of a request to a manager.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A path of one manager.
type SecretPath = (SecretManager, Box<str>);
type SecretContent = Map<String, Value>;

/// The secrets fetched so far.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    kept: HashMap<SecretPath, CachedSecret>,
    /// The client for requests to managers, with the settings of the last document.
    http: HttpClient,
    /// If set, all secrets are fetched again for the next document.
    distrusted: bool,
}

#[derive(Debug)]
struct CachedSecret {
    content: Result<SecretContent, String>,
    /// When it was fetched, or when fetching last failed.
    at: Instant,
}

impl Secrets {
    /// Puts secrets into a document, and drops those without a reference. If a manager does not respond, values fetched before
    /// are used; the second result lists these failures.
    pub(super) fn put_into(&mut self, document: Document, http: HttpClient) -> (Document, Vec<String>) {
        self.http = http;
        let mut before = std::mem::take(&mut self.kept);
        let distrusted = std::mem::take(&mut self.distrusted);
        let mut complaints = Vec::new();
        for (manager, secret) in document.secrets() {
            let place = (manager.clone(), secret.path.clone());
            if self.kept.contains_key(&place) {
                continue;
            }
            let known = before.remove(&place);
            let young = |kept: &CachedSecret| !distrusted && kept.content.is_ok() && kept.at.elapsed() < manager.ttl;
            let kept = match known {
                Some(kept) if young(&kept) => kept,
                known => renewed(&self.http, &place, known.map(|kept| kept.content), &mut complaints),
            };
            self.kept.insert(place, kept);
        }
        let value = |manager: &SecretManager, secret: &SecretReference| {
            let kept = self.kept.get(&(manager.clone(), secret.path.clone())).expect("it was fetched above");
            kept.content.as_ref().map_err(Clone::clone).and_then(|content| secret.of(content))
        };
        (document.with_secrets(value), complaints)
    }

    /// Makes the next load fetch all secrets again, on the operator's request.
    pub(super) fn distrust(&mut self) {
        self.distrusted = true;
    }

    /// Fetches secrets again whose time to live is over. Returns whether any has changed, and the failures.
    pub(super) fn refresh(&mut self) -> (bool, Vec<String>) {
        let (mut changed, mut complaints) = (false, Vec::new());
        for (place, kept) in &mut self.kept {
            if kept.at.elapsed() < place.0.ttl {
                continue;
            }
            let before = kept.content.clone();
            *kept = renewed(&self.http, place, Some(before.clone()), &mut complaints);
            changed |= kept.content != before;
        }
        (changed, complaints)
    }
}

fn renewed(
    http: &HttpClient,
    place: &SecretPath,
    before: Option<Result<SecretContent, String>>,
    complaints: &mut Vec<String>,
) -> CachedSecret {
    let content = match (asked(http, place), before) {
        (Err(problem), Some(Ok(content))) => {
            complaints.push(format!(
                "secrets of `{}` under `{}` could not be refreshed and may be out of date: {problem}",
                place.0.id, place.1
            ));
            Ok(content)
        }
        (content, _) => content,
    };
    CachedSecret { content, at: Instant::now() }
}

/// Runs on a separate thread, since the caller may be inside an async runtime, where blocking is not allowed.
fn asked(http: &HttpClient, place: &SecretPath) -> Result<SecretContent, String> {
    let asking = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| error.to_string())?.block_on(read(http, place))
    };
    thread::scope(|scope| scope.spawn(asking).join()).unwrap_or_else(|_| Err("the request failed".to_owned()))
}

/// Reads a path of a key/value engine, version 1 or 2 (Vault's HTTP API).
async fn read(http: &HttpClient, (manager, path): &SecretPath) -> Result<SecretContent, String> {
    let SecretManager { uri, prefix, token, namespace, .. } = manager;
    let url = ServiceUrl::parse(&format!("{uri}/v1/{prefix}/{path}")).map_err(|error| error.to_string())?;
    let mut request = Request::get(url.target().as_str()).header("X-Vault-Token", &**token);
    if let Some(namespace) = namespace {
        request = request.header("X-Vault-Namespace", &**namespace);
    }
    let request = request.body(Bytes::new()).map_err(|error| error.to_string())?;
    let settings = CallSettings { connect_timeout: TIMEOUT, timeout: TIMEOUT, ..CallSettings::default() };
    let answer = http.call(&url, request, &settings).await.map_err(|error| error.to_string())?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err("there is no secret under this path".to_owned()),
        StatusCode::FORBIDDEN => return Err("the token is not allowed to read this path".to_owned()),
        status => return Err(format!("the secrets manager answered with {status}")),
    }
    let Ok(Value::Object(mut answer)) = serde_json::from_slice(answer.body()) else {
        return Err("the answer of the secrets manager is not JSON".to_owned());
    };
    match answer.remove("data") {
        // Version 2 nests the content one level deeper, beside its metadata.
        Some(Value::Object(mut data)) if data.get("metadata").is_some_and(Value::is_object) => {
            match data.remove("data") {
                Some(Value::Object(content)) => Ok(content),
                _ => Err("the secret has been deleted".to_owned()),
            }
        }
        Some(Value::Object(content)) => Ok(content),
        _ => Err("the answer of the secrets manager has no `data`".to_owned()),
    }
}
