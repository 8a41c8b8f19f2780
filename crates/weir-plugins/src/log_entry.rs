//! What a record of an exchange says: everything, as Apache APISIX has it, or what a `log_format` asks for. One JSON
//! object each.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use weir_plugin::proto::Head;
use weir_plugin::{Build, ConfigError, Exchange, Logged, SecretFields, Template, Variable, Variables};

use crate::log_bodies::Bodies;

/// Fields whose values are secrets of somebody. Apache APISIX logs them.
const SECRET_FIELDS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-access-token", "x-id-token"];

/// Levels of a `log_format`.
const MAX_DEPTH: usize = 8;

/// How records are made.
pub struct Entry {
    /// Instead of everything.
    format: Option<Members>,
    /// Besides it.
    extra: Members,
    /// Fields that plugins have said to carry secrets.
    secrets: Arc<SecretFields>,
}

type Members = Vec<(String, Member)>;

enum Member {
    /// Left out where a variable alone is missing.
    Variable(Variable),
    Text(Template),
    Fixed(Value),
    Object(Members),
}

impl Entry {
    /// From the options `log_format` and `log_format_extra`.
    pub fn compile(
        format: Option<&Map<String, Value>>,
        extra: Option<&Map<String, Value>>,
        build: &mut Build,
    ) -> Result<Entry, ConfigError> {
        let format = format.map(|format| members(format, "log_format", 1, build)).transpose()?;
        let extra = extra.map_or(Ok(Vec::new()), |extra| members(extra, "log_format_extra", 1, build))?;
        Ok(Entry { format, extra, secrets: build.secret_fields() })
    }

    pub fn write(&self, exchange: &Exchange, bodies: &Bodies) -> Vec<u8> {
        let mut entry = match &self.format {
            None => {
                let mut entry = everything(exchange, &self.secrets);
                bodies.add_to(&mut entry, exchange);
                entry
            }
            Some(format) => {
                let mut entry = object(format, exchange);
                // As in APISIX, whatever the format says.
                for (name, variable) in [("route_id", Variable::RouteId), ("service_id", Variable::ServiceId)] {
                    if let Some(value) = text_of(exchange, &variable) {
                        entry.insert(name.to_owned(), value);
                    }
                }
                entry
            }
        };
        entry.extend(object(&self.extra, exchange));
        Value::Object(entry).to_string().into_bytes()
    }
}

fn members(format: &Map<String, Value>, path: &str, depth: usize, build: &mut Build) -> Result<Members, ConfigError> {
    if depth > MAX_DEPTH {
        return Err(ConfigError::new(path, format!("has more than {MAX_DEPTH} levels")));
    }
    let member = |(name, value): (&String, &Value)| {
        let path = format!("{path}.{name}");
        let member = match value {
            Value::Object(inner) => Member::Object(members(inner, &path, depth + 1, build)?),
            Value::String(text) => {
                let variable = text.strip_prefix('$').and_then(Variable::parse);
                match variable {
                    Some(variable) => Member::Variable(variable),
                    None => Member::Text(build.template_of_record(text, &path)),
                }
            }
            fixed => Member::Fixed(fixed.clone()),
        };
        Ok((name.clone(), member))
    };
    format.iter().map(member).collect()
}

fn object(members: &Members, exchange: &Exchange) -> Map<String, Value> {
    let value = |member: &Member| match member {
        Member::Variable(variable) => text_of(exchange, variable),
        Member::Text(template) => {
            let mut text = Vec::new();
            template.render(&Logged(exchange), &mut text);
            Some(text_from(&text))
        }
        Member::Fixed(value) => Some(value.clone()),
        Member::Object(inner) => Some(Value::Object(object(inner, exchange))),
    };
    members.iter().filter_map(|(name, member)| Some((name.clone(), value(member)?))).collect()
}

fn text_from(bytes: &[u8]) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

fn text_of(exchange: &Exchange, variable: &Variable) -> Option<Value> {
    Logged(exchange).variable(variable).map(|value| text_from(&value))
}

/// The record of Apache APISIX.
fn everything(exchange: &Exchange, secrets: &SecretFields) -> Map<String, Value> {
    let logged = Logged(exchange);
    let text =
        |variable: &Variable| logged.variable(variable).map(|value| String::from_utf8_lossy(&value).into_owned());
    let target = text(&Variable::RequestUri).unwrap_or_default();
    let authority = String::from_utf8_lossy(exchange.request.client_authority());
    let port = match authority.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => String::new(),
        _ => format!(":{}", exchange.client.local.port()),
    };
    let (latency_ms, upstream_ms) = latencies_ms(exchange);
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3;
    let mut entry = json!({
        "request": {
            "url": format!("{}://{authority}{port}{target}", exchange.scheme()),
            "uri": target,
            "method": text(&Variable::Method),
            "headers": fields(&exchange.request.head, secrets),
            "querystring": query(text(&Variable::Query).as_deref()),
            "size": exchange.request_bytes,
        },
        "response": {
            "status": exchange.response.status,
            "headers": fields(&exchange.response.head, secrets),
            "size": exchange.response_bytes,
        },
        "server": { "hostname": text(&Variable::Hostname), "version": concat!("weir/", env!("CARGO_PKG_VERSION")) },
        "upstream": exchange.upstream.addr.map(|addr| addr.to_string()).unwrap_or_default(),
        "service_id": text(&Variable::ServiceId).unwrap_or_default(),
        "route_id": text(&Variable::RouteId).unwrap_or_default(),
        "client_ip": exchange.client.addr.to_string(),
        "start_time": (now_ms - latency_ms).round() as u64,
        "latency": latency_ms,
        "upstream_latency": upstream_ms,
        "apisix_latency": latency_ms - upstream_ms.unwrap_or_default(),
    });
    if let Some(username) = text(&Variable::ConsumerName) {
        entry["consumer"] = json!({ "username": username });
    }
    if let Some(cause) = text(&Variable::ErrorCause) {
        entry["error_cause"] = json!(cause);
    }
    match entry {
        Value::Object(members) => members,
        _ => unreachable!("it is written as an object"),
    }
}

/// Of the exchange, and of the upstream where one was asked.
pub fn latencies_ms(exchange: &Exchange) -> (f64, Option<f64>) {
    let between = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns) as f64 / 1e6;
    let upstream = &exchange.upstream;
    let asked = upstream.started_ns != 0 && upstream.ended_ns != 0;
    (between(exchange.started_ns, exchange.ended_ns), asked.then(|| between(upstream.started_ns, upstream.ended_ns)))
}

/// Names in lower case; a field that comes several times is a list.
fn fields(head: &Head, secrets: &SecretFields) -> Map<String, Value> {
    let mut fields = Map::new();
    for (name, value) in head.fields() {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let value = match SECRET_FIELDS.contains(&&*name) || secrets.contains(name.as_bytes()) {
            true => Cow::Borrowed("***"),
            false => String::from_utf8_lossy(value),
        };
        insert(&mut fields, name, value.into_owned());
    }
    fields
}

/// Not decoded.
fn query(query: Option<&str>) -> Map<String, Value> {
    let mut arguments = Map::new();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        insert(&mut arguments, name.to_owned(), value.to_owned());
    }
    arguments
}

fn insert(members: &mut Map<String, Value>, name: String, value: String) {
    match members.get_mut(&name) {
        None => drop(members.insert(name, Value::String(value))),
        Some(Value::Array(values)) => values.push(Value::String(value)),
        Some(first) => *first = json!([first.take(), value]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::exchange;

    fn written(entry: &Entry, exchange: &Exchange) -> Value {
        let none = serde_json::from_value(json!({})).expect("all have defaults");
        let text = entry.write(exchange, &Bodies::compile(&none, &mut Build::default()).expect("valid"));
        assert!(!text.contains(&b'\n'), "one record is one line");
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn p14_everything_is_one_line_without_secrets() {
        let mut exchange = exchange(
            "GET /a?b=1&key=k&b=2%0a HTTP/1.1\nHost: h.example\nAuthorization: Bearer t\nX-Key: k\nX: a\nX: \u{2028}\"b",
        );
        exchange.secret_arguments.push(b"key"[..].into());
        (exchange.started_ns, exchange.ended_ns) = (1, 2_000_001);
        exchange.response.status = 200;
        let mut build = Build::default();
        let compiled = Entry::compile(None, None, &mut build).expect("valid");
        build.secret_field(b"X-Key");
        let entry = written(&compiled, &exchange);
        let request = &entry["request"];
        assert_eq!(request["headers"]["x-key"], "***", "whoever was built first");
        assert_eq!(request["uri"], "/a?b=1&key=***&b=2%0a");
        assert_eq!(request["querystring"], json!({"b": ["1", "2%0a"], "key": "***"}));
        assert_eq!(request["headers"]["authorization"], "***");
        assert_eq!(request["headers"]["x"], json!(["a", "\u{2028}\"b"]));
        assert_eq!((&entry["client_ip"], &entry["response"]["status"]), (&json!("192.0.2.7"), &json!(200)));
        assert_eq!((&entry["latency"], &entry["upstream_latency"]), (&json!(2.0), &Value::Null));
    }

    #[test]
    fn a_format_says_what_stands_in_a_record() {
        let format = json!({"host": "$host", "none": "$arg_x", "line": "$request_method of $host", "n": 1,
            "inner": {"path": "$uri"}});
        let entry = Entry::compile(format.as_object(), None, &mut Build::default()).expect("valid");
        let exchange = exchange("GET /a HTTP/1.1\nHost: h");
        let expected = json!({"host": "h", "line": "GET of h", "n": 1, "inner": {"path": "/a"}});
        assert_eq!(written(&entry, &exchange), expected);
        let extra = json!({"team": "a"});
        let entry = Entry::compile(None, extra.as_object(), &mut Build::default()).expect("valid");
        let record = written(&entry, &exchange);
        assert_eq!((&record["team"], &record["request"]["method"]), (&json!("a"), &json!("GET")));
    }
}
