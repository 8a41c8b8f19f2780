//! What a record of an exchange says: everything, as Apache APISIX has it, or what a `log_format` asks for. One JSON
//! object each.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use weir_plugin::escape;
use weir_plugin::proto::Head;
use weir_plugin::{Build, ConfigError, Exchange, Logged, SecretFields, Template, Variable, Variables};

use crate::log::bodies::Bodies;

/// Fields whose values are secrets of somebody. Apache APISIX logs them.
const SECRET_FIELDS: [&str; 6] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-access-token", "x-id-token"];

/// Levels of a `log_format`.
const MAX_DEPTH: usize = 8;

/// How records are made.
pub struct RecordFormat {
    /// Instead of everything.
    format: Option<RecordFields>,
    /// Besides it.
    extra: RecordFields,
    /// Fields that plugins have said to carry secrets.
    secrets: Arc<SecretFields>,
    hostname: Vec<u8>,
}

type RecordFields = Vec<(String, RecordField)>;

enum RecordField {
    /// Left out where a variable alone is missing.
    Variable(Variable),
    Text(Template),
    Fixed(Value),
    JsonObjectWriter(RecordFields),
}

impl RecordFormat {
    /// From the options `log_format` and `log_format_extra`.
    pub fn compile(
        format: Option<&Map<String, Value>>,
        extra: Option<&Map<String, Value>>,
        build: &mut Build,
    ) -> Result<RecordFormat, ConfigError> {
        let format = format.map(|format| members(format, "log_format", 1, build)).transpose()?;
        let extra = extra.map_or(Ok(Vec::new()), |extra| members(extra, "log_format_extra", 1, build))?;
        let hostname = Exchange::default().variable(&Variable::Hostname).map(Cow::into_owned).unwrap_or_default();
        Ok(RecordFormat { format, extra, secrets: build.secret_fields(), hostname })
    }

    pub fn write(&self, exchange: &Exchange, bodies: &Bodies) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        let mut record = JsonObjectWriter::begin(&mut out);
        match &self.format {
            None => self.everything(&mut record, exchange, bodies),
            Some(format) => {
                // As in APISIX, whatever the format says.
                let own = [("route_id", Variable::RouteId), ("service_id", Variable::ServiceId)];
                let logged = Logged(exchange);
                let own = own.each_ref().map(|(name, variable)| (*name, logged.variable(variable)));
                let is_own = |name: &str| own.iter().any(|(own, value)| *own == name && value.is_some());
                record.members(format, exchange, |name| is_own(name) || self.is_extra(name));
                for (name, value) in own.iter().filter(|(name, _)| !self.is_extra(name)) {
                    record.text_if(name, value.as_deref());
                }
            }
        }
        record.members(&self.extra, exchange, |_| false);
        drop(record);
        out
    }

    /// What the extra says counts, whatever else would stand under the name.
    fn is_extra(&self, name: &str) -> bool {
        self.extra.iter().any(|(extra, _)| extra == name)
    }

    /// The record of Apache APISIX.
    fn everything(&self, record: &mut JsonObjectWriter<'_>, exchange: &Exchange, bodies: &Bodies) {
        let (logged, secrets) = (Logged(exchange), self.secrets.names());
        let value = |variable: &Variable| logged.variable(variable);
        let (latency_ms, upstream_ms) = latencies_ms(exchange);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1e3;
        if !self.is_extra("request") {
            let mut request = record.object("request");
            let target = value(&Variable::RequestUri).unwrap_or_default();
            request.text("url", &url(exchange, &target));
            request.text("uri", &target);
            request.text("method", &value(&Variable::Method).unwrap_or_default());
            fields(&mut request.object("headers"), &logged, &exchange.request.head, &secrets);
            query(&mut request.object("querystring"), value(&Variable::Query).as_deref().unwrap_or_default());
            request.number("size", exchange.request_bytes);
            bodies.with_request(exchange, |body| request.text("body", body));
        }
        if !self.is_extra("response") {
            let mut response = record.object("response");
            response.number("status", exchange.response.status.into());
            fields(&mut response.object("headers"), &logged, &exchange.response.head, &secrets);
            response.number("size", exchange.response_bytes);
            bodies.with_response(exchange, |body| response.text("body", body));
        }
        if !self.is_extra("server") {
            let mut server = record.object("server");
            server.text("hostname", &self.hostname);
            server.text("version", concat!("weir/", env!("CARGO_PKG_VERSION")).as_bytes());
        }
        let addr = exchange.upstream.addr.map(|addr| addr.to_string()).unwrap_or_default();
        for (name, text) in [
            ("upstream", Some(Cow::Borrowed(addr.as_bytes()))),
            ("service_id", Some(value(&Variable::ServiceId).unwrap_or_default())),
            ("route_id", Some(value(&Variable::RouteId).unwrap_or_default())),
            ("client_ip", value(&Variable::RemoteAddr)),
            ("error_cause", value(&Variable::ErrorCause)),
        ] {
            if !self.is_extra(name) {
                record.text_if(name, text.as_deref());
            }
        }
        if !self.is_extra("start_time") {
            record.number("start_time", (now_ms - latency_ms).round() as u64);
        }
        for (name, ms) in [
            ("latency", Some(latency_ms)),
            ("upstream_latency", upstream_ms),
            ("apisix_latency", Some(latency_ms - upstream_ms.unwrap_or_default())),
        ] {
            if !self.is_extra(name) {
                record.ms(name, ms);
            }
        }
        if !self.is_extra("consumer")
            && let Some(name) = value(&Variable::ConsumerName)
        {
            record.object("consumer").text("username", &name);
        }
    }
}

/// A JSON object that is written as it comes: a tree of values would cost several times as much. Its brace is closed when it
/// is dropped.
struct JsonObjectWriter<'a> {
    out: &'a mut Vec<u8>,
    is_empty: bool,
}

/// A name and a value.
type Pair<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// As many pairs are compared with each other; more are sorted.
const FEW: usize = 32;

impl JsonObjectWriter<'_> {
    fn begin(out: &mut Vec<u8>) -> JsonObjectWriter<'_> {
        out.push(b'{');
        JsonObjectWriter { out, is_empty: true }
    }

    fn name(&mut self, name: &[u8]) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
        text(self.out, name);
        self.out.push(b':');
    }

    fn object(&mut self, name: &str) -> JsonObjectWriter<'_> {
        self.name(name.as_bytes());
        JsonObjectWriter::begin(self.out)
    }

    fn text(&mut self, name: &str, value: &[u8]) {
        self.name(name.as_bytes());
        text(self.out, value);
    }

    fn text_if(&mut self, name: &str, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name.as_bytes());
        self.out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }

    fn ms(&mut self, name: &str, value: Option<f64>) {
        self.name(name.as_bytes());
        serde_json::to_writer(&mut *self.out, &value).expect("a Vec takes everything");
    }

    /// Each value under its name; those of one name as a list.
    fn grouped(&mut self, mut pairs: Vec<Pair<'_>>) {
        if pairs.len() > FEW {
            pairs.sort_by(|(one, _), (other, _)| one.cmp(other));
            for alike in pairs.chunk_by(|(one, _), (other, _)| one == other) {
                self.values(&alike[0].0, alike.iter().map(|(_, value)| &**value));
            }
            return;
        }
        for (index, (name, _)) in pairs.iter().enumerate() {
            if !pairs[..index].iter().any(|(earlier, _)| earlier == name) {
                let alike = pairs[index..].iter().filter(|(other, _)| other == name);
                self.values(name, alike.map(|(_, value)| &**value));
            }
        }
    }

    /// One value, or a list of several.
    fn values<'v>(&mut self, name: &[u8], values: impl Iterator<Item = &'v [u8]>) {
        self.name(name);
        let start = self.out.len();
        for (index, value) in values.enumerate() {
            if index == 1 {
                self.out.insert(start, b'[');
            }
            if index > 0 {
                self.out.push(b',');
            }
            text(self.out, value);
        }
        if self.out[start] == b'[' {
            self.out.push(b']');
        }
    }

    /// What a format says, but for some names.
    fn members(&mut self, members: &RecordFields, exchange: &Exchange, is_left_out: impl Fn(&str) -> bool) {
        for (name, member) in members.iter().filter(|(name, _)| !is_left_out(name)) {
            match member {
                RecordField::Variable(variable) => self.text_if(name, Logged(exchange).variable(variable).as_deref()),
                RecordField::Text(template) => {
                    let mut value = Vec::new();
                    template.render(&Logged(exchange), &mut value);
                    self.text(name, &value);
                }
                RecordField::Fixed(value) => {
                    self.name(name.as_bytes());
                    serde_json::to_writer(&mut *self.out, value).expect("a Vec takes everything");
                }
                RecordField::JsonObjectWriter(inner) => self.object(name).members(inner, exchange, no_name),
            }
        }
    }
}

impl Drop for JsonObjectWriter<'_> {
    fn drop(&mut self) {
        self.out.push(b'}');
    }
}

fn no_name(_: &str) -> bool {
    false
}

fn text(out: &mut Vec<u8>, value: &[u8]) {
    out.push(b'"');
    escape::json(out, value);
    out.push(b'"');
}

/// As the client has asked, with the port.
fn url(exchange: &Exchange, target: &[u8]) -> Vec<u8> {
    let authority = exchange.request.client_authority();
    let mut url = [exchange.scheme().as_bytes(), b"://", authority].concat();
    let colon = authority.iter().rposition(|&byte| byte == b':');
    if !colon.is_some_and(|colon| authority[colon + 1..].iter().all(u8::is_ascii_digit)) {
        url.push(b':');
        url.extend_from_slice(itoa::Buffer::new().format(exchange.client.local.port()).as_bytes());
    }
    url.extend_from_slice(target);
    url
}

fn members(
    format: &Map<String, Value>,
    path: &str,
    depth: usize,
    build: &mut Build,
) -> Result<RecordFields, ConfigError> {
    if depth > MAX_DEPTH {
        return Err(ConfigError::new(path, format!("has more than {MAX_DEPTH} levels")));
    }
    let member = |(name, value): (&String, &Value)| {
        let path = format!("{path}.{name}");
        let member = match value {
            Value::Object(inner) => RecordField::JsonObjectWriter(members(inner, &path, depth + 1, build)?),
            Value::String(text) => {
                let variable = text.strip_prefix('$').and_then(Variable::parse);
                match variable {
                    Some(variable) => RecordField::Variable(variable),
                    None => RecordField::Text(build.template_of_record(text, &path)),
                }
            }
            fixed => RecordField::Fixed(fixed.clone()),
        };
        Ok((name.clone(), member))
    };
    format.iter().map(member).collect()
}

/// Of the exchange, and of the upstream where one was asked.
pub fn latencies_ms(exchange: &Exchange) -> (f64, Option<f64>) {
    let between = |from_ns: u64, to_ns: u64| to_ns.saturating_sub(from_ns) as f64 / 1e6;
    let upstream = &exchange.upstream;
    let asked = upstream.started_ns != 0 && upstream.ended_ns != 0;
    (between(exchange.started_ns, exchange.ended_ns), asked.then(|| between(upstream.started_ns, upstream.ended_ns)))
}

/// Names in lower case; a field that comes several times is a list.
fn fields(object: &mut JsonObjectWriter<'_>, logged: &Logged<'_>, head: &Head, secrets: &BTreeSet<Box<[u8]>>) {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for (name, value) in head.fields() {
        let name = name.to_ascii_lowercase();
        let is_secret = SECRET_FIELDS.iter().any(|secret| secret.as_bytes() == name) || secrets.contains(&*name);
        let value = if is_secret { Cow::Borrowed(&b"***"[..]) } else { logged.field(&name, value) };
        pairs.push((Cow::Owned(name), value));
    }
    object.grouped(pairs);
}

/// Not decoded.
fn query(object: &mut JsonObjectWriter<'_>, query: &[u8]) {
    let pairs = query.split(|&byte| byte == b'&').filter(|pair| !pair.is_empty()).map(|pair| -> Pair<'_> {
        let equals = pair.iter().position(|&byte| byte == b'=').unwrap_or(pair.len());
        (Cow::Borrowed(&pair[..equals]), Cow::Borrowed(pair.get(equals + 1..).unwrap_or_default()))
    });
    object.grouped(pairs.collect());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::exchange;

    fn written(entry: &RecordFormat, exchange: &Exchange) -> Value {
        let none = serde_json::from_value(json!({})).expect("all have defaults");
        let text = entry.write(exchange, &Bodies::compile(&none, &mut Build::default()).expect("valid"));
        assert!(!text.contains(&b'\n'), "one record is one line");
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn p14_everything_is_one_line_without_secrets() {
        let mut exchange = exchange(
            "GET /a?b=1&key=k&b=2%0a HTTP/1.1\nHost: h.example\nAuthorization: Bearer t\nReferer: /a?key=k\nX-Key: k\nX: a\nX: \u{2028}\"b",
        );
        exchange.secret_arguments.push(b"key"[..].into());
        (exchange.started_ns, exchange.ended_ns) = (1, 2_000_001);
        exchange.response.status = 200;
        let mut build = Build::default();
        let compiled = RecordFormat::compile(None, None, &mut build).expect("valid");
        build.secret_field(b"X-Key");
        let entry = written(&compiled, &exchange);
        let request = &entry["request"];
        assert_eq!(request["headers"]["x-key"], "***", "whoever was built first");
        assert_eq!(request["uri"], "/a?b=1&key=***&b=2%0a");
        assert_eq!(request["querystring"], json!({"b": ["1", "2%0a"], "key": "***"}));
        assert_eq!(request["headers"]["authorization"], "***");
        assert_eq!(request["headers"]["referer"], "/a?key=***");
        assert_eq!(request["headers"]["x"], json!(["a", "\u{2028}\"b"]));
        assert_eq!((&entry["client_ip"], &entry["response"]["status"]), (&json!("192.0.2.7"), &json!(200)));
        assert_eq!((&entry["latency"], &entry["upstream_latency"]), (&json!(2.0), &Value::Null));
    }

    #[test]
    fn a_format_says_what_stands_in_a_record() {
        let format = json!({"host": "$host", "none": "$arg_x", "line": "$request_method of $host", "n": 1,
            "inner": {"path": "$uri"}});
        let entry = RecordFormat::compile(format.as_object(), None, &mut Build::default()).expect("valid");
        let exchange = exchange("GET /a HTTP/1.1\nHost: h");
        let expected = json!({"host": "h", "line": "GET of h", "n": 1, "inner": {"path": "/a"}});
        assert_eq!(written(&entry, &exchange), expected);
        let extra = json!({"team": "a", "response": {"code": "$status"}, "route_id": "mine"});
        let entry = RecordFormat::compile(None, extra.as_object(), &mut Build::default()).expect("valid");
        let record = written(&entry, &exchange);
        assert_eq!((&record["team"], &record["request"]["method"]), (&json!("a"), &json!("GET")));
        assert_eq!((&record["route_id"], &record["response"]), (&json!("mine"), &json!({})), "the extra counts");
    }

    #[test]
    fn values_of_one_name_are_a_list_however_many_names_there_are() {
        let entry = RecordFormat::compile(None, None, &mut Build::default()).expect("valid");
        for names in [1, 40] {
            let query: Vec<String> = (0..3 * names).map(|number| format!("n{}={number}", number % names)).collect();
            let record = written(&entry, &exchange(&format!("GET /?{} HTTP/1.1\nHost: h", query.join("&"))));
            let arguments = record["request"]["querystring"].as_object().expect("an object");
            assert_eq!(arguments.len(), names);
            assert_eq!(arguments["n0"], json!(["0", names.to_string(), (2 * names).to_string()]));
        }
    }
}
