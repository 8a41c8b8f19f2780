//! What managers of secrets keep: fetched when a configuration is loaded, and again when it is old.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::{Map, Value};
use weir_client::{CallSettings, HttpClient, ServiceUrl};

use crate::document::{Document, SecretManager, SecretReference};

/// A manager answers within this time, or does not.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What is kept under one path of one manager.
type SecretPath = (SecretManager, Box<str>);
type SecretContent = Map<String, Value>;

/// What has been fetched.
#[derive(Debug, Default)]
pub(super) struct Secrets {
    kept: HashMap<SecretPath, CachedSecret>,
    /// Asks for them, as the last document says.
    http: HttpClient,
    /// All of it is fetched again for the next document.
    distrusted: bool,
}

#[derive(Debug)]
struct CachedSecret {
    content: Result<SecretContent, String>,
    /// When it was fetched, or when that was tried.
    at: Instant,
}

impl Secrets {
    /// Puts them into a document; what nothing refers to any more is forgotten. Where nobody answers, what was fetched
    /// before still holds: the second value says why it was needed.
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

    /// Whatever is asked for next is fetched again: somebody knows that it has changed.
    pub(super) fn distrust(&mut self) {
        self.distrusted = true;
    }

    /// Fetches again what is old. Says whether anything has changed, and what could not be fetched.
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

/// Asks on a thread of its own, since who calls may be part of a runtime, where nothing may block.
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
        // Version 2 has the content one level deeper, beside what it knows about it.
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
