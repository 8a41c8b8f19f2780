//! The input of a policy: what OPA is told of a request.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use weir_plugin::{Exchange, form};

use crate::clock;

/// Parts of the input that are there only if asked for.
#[derive(Clone, Copy)]
pub(super) struct InputParts {
    pub route: bool,
    pub service: bool,
    pub consumer: bool,
}

/// The document of a query, with the names of APISIX.
pub(super) fn document(exchange: &Exchange, parts: InputParts) -> Value {
    let client = &exchange.client;
    let mut input = json!({
        "type": "http",
        "request": request(exchange),
        "var": {
            "server_addr": client.local.ip().to_canonical().to_string(),
            "server_port": client.local.port().to_string(),
            "remote_addr": client.addr.to_canonical().to_string(),
            "remote_port": client.port.to_string(),
            "timestamp": clock::now().as_secs(),
        },
    });
    if parts.route {
        input["route"] = route(exchange);
    }
    if let (true, Some(service)) = (parts.service, service(exchange)) {
        input["service"] = service;
    }
    if let (true, Some(consumer)) = (parts.consumer, consumer(exchange)) {
        input["consumer"] = consumer;
    }
    json!({ "input": input })
}

/// The request as the client has sent it, so that a policy judges what routes are matched with.
fn request(exchange: &Exchange) -> Value {
    let request = &exchange.request;
    json!({
        "scheme": exchange.scheme(),
        "method": text(request.client_method_name()),
        "host": text(request.host()),
        "port": exchange.client.public_port,
        "path": text(request.client_path()),
        "query": query(request.client_query().unwrap_or_default()),
        "headers": headers(exchange),
    })
}

/// The fields that are forwarded, with names in lower case. `host` is the client's, also over HTTP/2, where it is no field.
fn headers(exchange: &Exchange) -> Value {
    let head = &exchange.request.head;
    let mut fields = Map::new();
    for (name, value) in head.fields().filter(|(name, _)| !name.eq_ignore_ascii_case(b"host")) {
        add(&mut fields, text(name).to_ascii_lowercase(), text(value).into());
    }
    fields.insert("host".to_owned(), text(exchange.request.client_authority()).into());
    fields.into()
}

/// The arguments of a query, decoded; one without `=` is `true`.
fn query(query: &[u8]) -> Value {
    let mut arguments = Map::new();
    for pair in query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()) {
        let (name, value) = form::halves(pair);
        let value: Value = if pair.contains(&b'=') { text(&form::decoded(value)).into() } else { Value::Bool(true) };
        add(&mut arguments, text(&form::decoded(name)).into_owned(), value);
    }
    arguments.into()
}

/// Adds a member; several of one name become an array.
fn add(members: &mut Map<String, Value>, name: String, value: Value) {
    match members.get_mut(&name) {
        None => drop(members.insert(name, value)),
        Some(Value::Array(values)) => values.push(value),
        Some(first) => *first = Value::Array(vec![first.take(), value]),
    }
}

fn route(exchange: &Exchange) -> Value {
    let Some(route) = &exchange.route else { return json!({}) };
    json!({
        "id": route.route_id,
        "name": route.route_name,
        "uris": route.uris,
        "hosts": route.hosts,
        "service_id": route.service_id,
    })
}

fn service(exchange: &Exchange) -> Option<Value> {
    let route = exchange.route.as_ref().filter(|route| !route.service_id.is_empty())?;
    Some(json!({ "id": route.service_id, "name": route.service_name }))
}

/// The client's consumer, without its credentials, which are secrets.
fn consumer(exchange: &Exchange) -> Option<Value> {
    let credential = exchange.identity.as_ref()?;
    let consumer = &credential.consumer;
    let labels: Map<String, Value> =
        consumer.labels.iter().map(|(name, value)| (name.to_string(), Value::from(&**value))).collect();
    Some(json!({
        "username": consumer.username,
        "group_id": consumer.group_id,
        "labels": labels,
        "credential_id": credential.id,
    }))
}

/// Bytes that are not UTF-8 become U+FFFD, which no policy compares with.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{exchange, identify};

    const ALL: InputParts = InputParts { route: true, service: true, consumer: true };
    const NONE: InputParts = InputParts { route: false, service: false, consumer: false };

    #[test]
    fn the_input_describes_the_request_of_the_client() {
        let mut request = exchange(
            "POST /public/%2e%2e/orders?a=1&b=two+words&a=%32&flag&e= HTTP/1.1\nHost: H.example:8080\n\
             X-Role: a\nx-role: b\nAuthorization: Bearer t\nConnection: close\nX-Bytes: \u{e9}",
        );
        request.client.public_port = 8080;
        request.request.set_path(b"/internal", Some(b"y=1")).expect("valid");
        let input = &document(&request, NONE)["input"];
        let want = json!({
            "scheme": "http",
            "method": "POST",
            "host": "h.example",
            "port": 8080,
            "path": "/orders",
            "query": {"a": ["1", "2"], "b": "two words", "flag": true, "e": ""},
            "headers": {
                "host": "H.example:8080",
                "x-role": ["a", "b"],
                "authorization": "Bearer t",
                "x-bytes": "\u{e9}",
            },
        });
        assert_eq!((&input["type"], &input["request"]), (&json!("http"), &want));
        let var = &input["var"];
        assert_eq!(
            [&var["remote_addr"], &var["server_addr"], &var["server_port"]],
            [&json!("192.0.2.7"), &json!("0.0.0.0"), &json!("0")]
        );
        assert!(var["remote_port"].is_string() && var["timestamp"].as_u64() > Some(1_600_000_000), "{var}");
        assert_eq!(input.as_object().expect("a map").len(), 3, "{input}");
    }

    #[test]
    fn consumers_are_described_without_their_secrets() {
        let mut request = exchange("GET / HTTP/1.1\nHost: h");
        let input = &document(&request, ALL)["input"];
        assert!(input.get("consumer").is_none() && input.get("service").is_none(), "{input}");
        identify(&mut request, &[("team", "blue")]);
        let want = json!({"username": "jack", "group_id": "", "labels": {"team": "blue"}, "credential_id": ""});
        assert_eq!(document(&request, ALL)["input"]["consumer"], want);
        assert!(document(&request, NONE)["input"].get("consumer").is_none());
    }
}
