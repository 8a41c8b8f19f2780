//! How requests are answered.

use std::time::Duration;

use serde_json::{Value, json};
use weir_testkit::{OriginConnection, Request};

use super::Shared;
use super::store::{Change, ObjectPath};

/// How long a watch is silent at most before it is looked whether the client is still there.
const LOOK: Duration = Duration::from_millis(200);

/// A request for objects.
struct Asked {
    path: ObjectPath,
    is_status: bool,
    /// Server-side apply, which creates an object that is not there.
    is_apply: bool,
    query: Vec<(String, String)>,
}

/// Answers the requests of a connection.
pub(super) fn answer_all(shared: &Shared, connection: &mut OriginConnection) {
    while let Ok(request) = connection.request() {
        shared.wait();
        let answered = match shared.fault() {
            Some(status) => send(connection, status, &failure(status)),
            None => answer(shared, connection, &request),
        };
        if answered.is_err() {
            return;
        }
    }
}

fn send(connection: &mut OriginConnection, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.send((head + &body).as_bytes())
}

fn failure(status: u16) -> Value {
    let reason = match status {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let message = format!("refused with {status}");
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": status })
}

fn answer(shared: &Shared, connection: &mut OriginConnection, request: &Request) -> std::io::Result<()> {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (version, rest) = match segments[..] {
        ["api", version, ref rest @ ..] => (version.to_owned(), rest),
        ["apis", group, version, ref rest @ ..] => (format!("{group}/{version}"), rest),
        _ => return send(connection, 404, &failure(404)),
    };
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.replace("%3D", "=").replace("%2F", "/"))
    };
    let query = query.split('&').map(pair).collect();
    let mut asked = match *rest {
        [] => return send_kinds(shared, connection, &version),
        ["namespaces", namespace, plural, ref name @ ..] => asked(Some(namespace), plural, name, query),
        [plural, ref name @ ..] => asked(None, plural, name, query),
    };
    asked.is_apply = request.headers.get("content-type") == Some("application/apply-patch+yaml");
    if shared.objects.is_missing(&asked.path.plural) {
        return send(connection, 404, &failure(404));
    }
    if shared.is_forbidden(&asked.path.plural) {
        let verb = if request.method == "POST" { "create" } else { "get" };
        let mut refused = failure(403);
        refused["message"] = format!("User \"weir\" cannot {verb} resource \"{}\"", asked.path.plural).into();
        return send(connection, 403, &refused);
    }
    match (request.method.as_str(), asked.value("watch")) {
        ("GET", Some(_)) => watch(shared, connection, &asked),
        ("GET", None) if asked.path.name.is_none() => send(connection, 200, &list(shared, &asked)),
        _ => {
            let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
            if asked.path.plural == "tokenreviews" {
                return send(connection, 201, &reviewed(shared, body));
            }
            let (status, answer) = change(shared, &request.method, &asked, body);
            send(connection, status, &answer)
        }
    }
}

fn asked(namespace: Option<&str>, plural: &str, name: &[&str], query: Vec<(String, String)>) -> Asked {
    let path = ObjectPath {
        plural: plural.to_owned(),
        namespace: namespace.map(str::to_owned),
        name: name.first().map(|name| (*name).to_owned()),
    };
    Asked { path, is_status: name.get(1) == Some(&"status"), is_apply: false, query }
}

impl Asked {
    fn value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    fn has(&self, object: &Value) -> bool {
        let is_there =
            self.path.namespace.is_none() || object["metadata"]["namespace"].as_str() == self.path.namespace.as_deref();
        let fields = self.value("fieldSelector").is_none_or(|selector| {
            let (field, value) = selector.split_once('=').expect("the selectors of Weir are equations");
            field.split('.').fold(object, |object, key| &object[key]).as_str() == Some(value)
        });
        let labels = self.value("labelSelector").is_none_or(|label| object["metadata"]["labels"].get(label).is_some());
        is_there && fields && labels
    }
}

fn send_kinds(shared: &Shared, connection: &mut OriginConnection, version: &str) -> std::io::Result<()> {
    let kinds = shared.objects.kinds(version);
    match kinds.is_empty() {
        true => send(connection, 404, &failure(404)),
        false => send(
            connection,
            200,
            &json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": kinds }),
        ),
    }
}

fn list(shared: &Shared, asked: &Asked) -> Value {
    // The revision from before, so that a watch misses nothing.
    let revision = shared.objects.revision().to_string();
    let items = shared.objects.find(&asked.path.plural, |object| asked.has(object));
    json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": revision }, "items": items })
}

fn watch(shared: &Shared, connection: &mut OriginConnection, asked: &Asked) -> std::io::Result<()> {
    let ends = shared.objects.ends();
    let mut after: u64 = asked.value("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
    connection.send(b"HTTP/1.1 200 X\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    loop {
        let changes = match shared.objects.next(after, ends, LOOK) {
            Ok(changes) => changes,
            Err(is_forgotten) => {
                if is_forgotten {
                    send_event(connection, &json!({ "type": "ERROR", "object": failure(410) }))?;
                }
                return connection.send(b"0\r\n\r\n");
            }
        };
        for change in changes {
            let Change { revision, verb, plural, object } = &*change;
            after = *revision;
            if *plural == asked.path.plural && asked.has(object) {
                shared.wait();
                let event = json!({ "type": verb, "object": object });
                if shared.takes_cut() {
                    let line = event.to_string();
                    let half = format!("{:x}\r\n{}", line.len() + 1, &line[..line.len() / 2]);
                    connection.send(half.as_bytes())?;
                    return Err(std::io::ErrorKind::ConnectionAborted.into());
                }
                send_event(connection, &event)?;
            }
        }
    }
}

fn send_event(connection: &mut OriginConnection, event: &Value) -> std::io::Result<()> {
    let line = event.to_string() + "\n";
    connection.send(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
}

fn reviewed(shared: &Shared, mut review: Value) -> Value {
    let audiences = review["spec"]["audiences"].as_array().cloned().unwrap_or_default();
    let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
    review["status"] = match shared.user_of(&token, &audiences) {
        Some((user, audience)) => {
            let extra = json!({ "authentication.kubernetes.io/pod-name": ["weir-1"] });
            json!({ "authenticated": true, "audiences": [audience], "user": { "username": user, "extra": extra } })
        }
        None => json!({ "authenticated": false, "error": "it is unknown, or for others" }),
    };
    review["spec"]["token"] = "".into();
    review
}

/// Makes a change, and returns the status of the answer with its body.
fn change(shared: &Shared, method: &str, asked: &Asked, body: Value) -> (u16, Value) {
    let objects = &shared.objects;
    let mut path = asked.path.clone();
    if method == "POST" {
        let named = body["metadata"]["name"].as_str().map(str::to_owned);
        path.name = Some(named.unwrap_or_else(|| format!("generated-{}", objects.revision())));
    }
    let known = objects.get(&path);
    let is_current = |known: &Value| {
        let based_on = body["metadata"]["resourceVersion"].as_str();
        based_on.is_none_or(|version| known["metadata"]["resourceVersion"].as_str() == Some(version))
    };
    match (method, known) {
        ("GET", Some(known)) => (200, known),
        ("POST", Some(_)) => (409, failure(409)),
        ("PUT" | "PATCH", Some(known)) if !is_current(&known) => (409, failure(409)),
        ("POST", None) => (201, written(shared, &path, body, false)),
        ("PUT", Some(known)) => {
            let version = known["metadata"]["resourceVersion"].clone();
            match objects.put_over(&path, Some(&version), body, false) {
                Some(object) => (200, object),
                None => (409, failure(409)),
            }
        }
        ("PATCH", Some(mut known)) => {
            let version = known["metadata"]["resourceVersion"].clone();
            merge(&mut known, &body);
            match objects.put_over(&path, Some(&version), known, asked.is_status) {
                Some(object) => (200, object),
                // Changed meanwhile: the patch is applied to what is there now, as a control plane does.
                None => change(shared, method, asked, body),
            }
        }
        ("PATCH", None) if asked.is_apply => (201, written(shared, &path, body, false)),
        _ => (404, failure(404)),
    }
}

fn written(shared: &Shared, path: &ObjectPath, object: Value, is_status: bool) -> Value {
    shared.objects.wrote(path);
    shared.objects.put(path, object, is_status)
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        match value {
            Value::Null => drop(target.as_object_mut().and_then(|target| target.remove(name))),
            value => merge(&mut target[name.as_str()], value),
        }
    }
}
