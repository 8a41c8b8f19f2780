//! Serialises the data of an exchange for its record, on the worker. The sink's thread reads it with
//! [`super::captured`] and makes JSON of it. Secrets are masked here, so that none leaves the worker.
//!
//! ```text
//! record  = (1 | 2) end ms u64 | hidden | (everything, after a 1) | member*
//! hidden  = count u8 | text*
//! everything = facts text{8} fields fields
//! facts   = flags u8 | status u16 | port u16 | latency ns u64 | upstream ns u64 | sizes u64 u64 | address address u16
//! text    = length u32 | bytes
//! fields  = count u32 | (text text)*
//! member  = 0 | 1 text | 2 text text | 3 text text | 4 text text
//!           (end of an object, object, text, JSON, id of the record: its text is empty)
//! address = 0 | 4 | 6, then 16 bytes
//! ```

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use weir_plugin::proto::Head;
use weir_plugin::{Build, ConfigError, Exchange, LoggedExchange, SecretFields, Template, Variable, Variables};

/// Fields whose values are masked wherever they occur, because they contain secrets: those of HTTP, those in which
/// `openid-connect` forwards tokens, and usual names of keys. Apache APISIX logs them.
pub const SECRET_FIELDS: [&str; 11] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-access-token",
    "x-id-token",
    "x-raw-id-token",
    "x-refresh-token",
    "x-api-key",
    "apikey",
    "x-auth-token",
];
const MASK: &[u8] = b"***";

/// The deepest nesting of a `log_format`.
const MAX_DEPTH: usize = 8;

/// The first byte of a record: either with all members of Apache APISIX's records, or with those of a `log_format`.
pub(crate) const EVERYTHING: u8 = 1;
pub(crate) const FORMAT: u8 = 2;

pub(crate) const HTTPS: u8 = 1;
pub(crate) const UPSTREAM_TIMED: u8 = 2;
/// The record has the content of the request as an attachment.
pub(crate) const REQUEST_BODY: u8 = 4;
pub(crate) const RESPONSE_BODY: u8 = 8;
/// The content of the request is left out, because it could not be masked reliably.
pub(crate) const REQUEST_BODY_OMITTED: u8 = 16;
/// The content ends with a trailer that says how it is decoded; see [`super::decoding`].
pub(crate) const REQUEST_BODY_CODED: u8 = 32;
pub(crate) const RESPONSE_BODY_CODED: u8 = 64;
/// Content is left out, because the sink had no room for it when it came.
pub(crate) const BODIES_OMITTED: u8 = 128;

pub(crate) const END: u8 = 0;
pub(crate) const OBJECT: u8 = 1;
pub(crate) const TEXT: u8 = 2;
pub(crate) const JSON: u8 = 3;
pub(crate) const RECORD_ID: u8 = 4;

/// The value of a member that has the id of the record, which the sink knows. It is no variable of an exchange.
const RECORD_ID_NAME: &str = "$record_id";

/// The data of an exchange that is recorded.
pub(crate) struct Capture {
    /// The members of a `log_format`; without one, everything is recorded.
    format: Option<RecordFields>,
    /// The members of a `log_format_extra`.
    extra: RecordFields,
    /// Texts for the destination that are not part of the JSON.
    hidden: Vec<DestinationText>,
    /// `log_format_extra` defines members with the names that `route_id` and `service_id` would have.
    extra_has_route: bool,
    extra_has_service: bool,
    /// Whether what is sent has members, one of which can say that a record is a test.
    can_mark_tests: bool,
    /// Fields that plugins have declared to be secret. They are complete by the time of the first record.
    secrets: Arc<SecretFields>,
    secret_names: OnceLock<SecretNames>,
}

type RecordFields = Vec<(String, RecordField)>;

enum RecordField {
    /// Left out if the variable has no value.
    Variable(Variable),
    Text(Template),
    /// A constant, as JSON.
    Fixed(Vec<u8>),
    Object(RecordFields),
    RecordId,
}

/// A text for the destination.
enum DestinationText {
    Template(Template),
    /// The pattern of the route that fits the path.
    MatchedUri,
}

/// The names of fields that are masked.
pub(crate) struct SecretNames {
    names: Vec<Box<[u8]>>,
    /// Which of the names have this mark: nearly all other fields can be excluded by their mark alone.
    marked: [bool; 256],
}

impl SecretNames {
    pub(crate) fn of(secrets: &SecretFields) -> SecretNames {
        let ours = SECRET_FIELDS.iter().map(|name| name.as_bytes().into());
        let names: Vec<Box<[u8]>> = ours.chain(secrets.names().iter().cloned()).collect();
        let mut marked = [false; 256];
        names.iter().for_each(|name| marked[usize::from(SecretNames::mark(name))] = true);
        SecretNames { names, marked }
    }

    /// The same for names that are the same, in any case.
    #[inline]
    fn mark(name: &[u8]) -> u8 {
        let [Some(first), Some(last)] = [name.first(), name.last()].map(|byte| byte.map(|byte| byte | 0x20)) else {
            return 0;
        };
        first.wrapping_mul(5) ^ last.wrapping_mul(29) ^ (name.len() as u8).wrapping_mul(77)
    }

    #[inline]
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.marked[usize::from(SecretNames::mark(name))] && self.is_among(name)
    }

    fn is_among(&self, name: &[u8]) -> bool {
        self.names.iter().any(|secret| secret.eq_ignore_ascii_case(name))
    }
}

/// The variables of an exchange for records: secret header fields are masked, even if a format names them.
struct RecordVariables<'a> {
    logged: &'a LoggedExchange<'a>,
    secrets: &'a SecretNames,
}

impl Variables for RecordVariables<'_> {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        let value = self.logged.variable(variable);
        match variable {
            Variable::Header(name) | Variable::SentHeader(name) | Variable::UpstreamHeader(name)
                if self.secrets.has(name.as_bytes()) =>
            {
                value.map(|_| Cow::Borrowed(MASK))
            }
            _ => value,
        }
    }
}

impl Capture {
    /// From the options `log_format` and `log_format_extra`.
    pub(crate) fn compile(
        format: Option<&Map<String, Value>>,
        extra: Option<&Map<String, Value>>,
        build: &mut Build,
    ) -> Result<Capture, ConfigError> {
        let extra = extra.map_or(Ok(Vec::new()), |extra| members(extra, "log_format_extra", 1, build))?;
        let mut format = format.map(|format| members(format, "log_format", 1, build)).transpose()?;
        let is_extra = |name: &str| extra.iter().any(|(extra, _)| extra == name);
        if let Some(format) = &mut format {
            // A member of the extra format replaces one of the same name.
            format.retain(|(name, _)| !is_extra(name));
        }
        let (extra_has_route, extra_has_service) = (is_extra("route_id"), is_extra("service_id"));
        let (secrets, hidden) = (build.secret_fields(), Vec::new());
        Ok(Capture {
            format,
            extra,
            hidden,
            extra_has_route,
            extra_has_service,
            can_mark_tests: true,
            secrets,
            secret_names: OnceLock::new(),
        })
    }

    /// Adds texts for the destination, such as names of indices or labels, to be read with [`super::captured::hidden`].
    pub(crate) fn with_hidden(self, hidden: Vec<Template>) -> Capture {
        Capture { hidden: hidden.into_iter().map(DestinationText::Template).collect(), ..self }
    }

    /// Adds one more such text: the `uri` of the route that fits the path.
    pub(crate) fn with_matched_uri(mut self) -> Capture {
        self.hidden.push(DestinationText::MatchedUri);
        self
    }

    /// For a destination that is sent no members, but figures, or events that cost money: no test records.
    pub(crate) fn without_tests(self) -> Capture {
        Capture { can_mark_tests: false, ..self }
    }

    pub(crate) fn can_mark_tests(&self) -> bool {
        self.can_mark_tests
    }

    /// Whether records contain everything, including content.
    pub(crate) fn has_everything(&self) -> bool {
        self.format.is_none()
    }

    /// Whether `log_format_extra` has a member of this name.
    pub(crate) fn has_extra(&self, name: &str) -> bool {
        self.extra.iter().any(|(extra, _)| extra == name)
    }

    /// Appends a record. `bodies` are the flags of the attachments.
    pub(crate) fn write(&self, exchange: &Exchange, bodies: u8, out: &mut Vec<u8>) {
        let logged = LoggedExchange(exchange);
        let secrets = self.secret_names.get_or_init(|| SecretNames::of(&self.secrets));
        let shown = RecordVariables { logged: &logged, secrets };
        let route = exchange.route.as_ref();
        self.begin(&shown, || route.map_or("", |route| route.matched_uri(exchange.request.path())), out);
        match &self.format {
            None => {
                everything(exchange, &shown, bodies, out);
                if !exchange.request_id().is_empty() && !self.has_extra("request_id") {
                    member(out, TEXT, "request_id", exchange.request_id());
                }
            }
            Some(format) => {
                // As in APISIX, these are recorded with every format.
                let own = [
                    ("route_id", Variable::RouteId, self.extra_has_route),
                    ("service_id", Variable::ServiceId, self.extra_has_service),
                ];
                let own =
                    own.each_ref().map(|(name, variable, is_extra)| (*name, logged.variable(variable), *is_extra));
                let is_own = |name: &str| own.iter().any(|(own, value, _)| *own == name && value.is_some());
                write_members(format, &shown, &is_own, out);
                for (name, value, _) in own.iter().filter(|(_, _, is_extra)| !is_extra) {
                    if let Some(value) = value {
                        member(out, TEXT, name, value);
                    }
                }
            }
        }
        write_members(&self.extra, &shown, &|_| false, out);
    }
}

impl Capture {
    /// Writes what each record begins with, and the texts for the destination.
    fn begin<'u>(&self, shown: &impl Variables, matched_uri: impl Fn() -> &'u str, out: &mut Vec<u8>) {
        out.push(if self.format.is_none() { EVERYTHING } else { FORMAT });
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        out.extend_from_slice(&now_ms.to_le_bytes());
        out.push(self.hidden.len() as u8);
        for hidden in &self.hidden {
            match hidden {
                DestinationText::Template(template) => rendered(template, shown, out),
                DestinationText::MatchedUri => text(out, matched_uri().as_bytes()),
            }
        }
    }

    /// A test record. It has the form of all other records, as of a request that no client has sent. Its member [`TEST_RECORD`] is its id.
    pub(crate) fn test_record(&self, id: &str) -> Vec<u8> {
        let (shown, mut out) = (TestVariables, Vec::new());
        self.begin(&shown, || TEST_TARGET, &mut out);
        let is_mark = |name: &str| name == TEST_RECORD;
        match &self.format {
            None => test_everything(&mut out),
            Some(format) => write_members(format, &shown, &is_mark, &mut out),
        }
        write_members(&self.extra, &shown, &is_mark, &mut out);
        member(&mut out, TEXT, TEST_RECORD, id.as_bytes());
        out
    }
}

/// The member of a record that says that it is a test.
pub(crate) const TEST_RECORD: &str = "weir_test_record";
/// The request that a test record tells of.
const TEST_TARGET: &str = "/weir-test-record";
const TEST_STATUS: u16 = 200;

/// The variables of a test record: those that most formats have. Others have no value, as if the request did not have them.
struct TestVariables;

impl Variables for TestVariables {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        let value: &'static [u8] = match variable {
            Variable::Method => b"GET",
            Variable::Uri | Variable::RequestUri => TEST_TARGET.as_bytes(),
            Variable::Status => b"200",
            Variable::Host => b"localhost",
            Variable::RemoteAddr => b"127.0.0.1",
            _ => return None,
        };
        Some(value.into())
    }
}

/// Writes what [`everything`] writes of an exchange.
fn test_everything(out: &mut Vec<u8>) {
    let mut facts = [0; 73];
    facts[1..3].copy_from_slice(&TEST_STATUS.to_le_bytes());
    address(Some(Ipv4Addr::LOCALHOST.into()), &mut facts[37..54]);
    out.extend_from_slice(&facts);
    let (query, route, service, cause, consumer) = ("", "", "", "", "");
    for fact in [TEST_TARGET, query, "GET", "localhost", route, service, cause, consumer] {
        text(out, fact.as_bytes());
    }
    // No header fields, of the request and of the response.
    out.extend_from_slice(&[0; 8]);
}

/// Writes the members of a record of Apache APISIX.
fn everything(exchange: &Exchange, shown: &RecordVariables<'_>, bodies: u8, out: &mut Vec<u8>) {
    let (logged, secrets) = (shown.logged, shown.secrets);
    let (request, response) = (&exchange.request, &exchange.response);
    // Large enough for nearly all records, so that the buffer grows only once.
    out.reserve(512 + request.head.bytes().len() + response.head.bytes().len() + request.target().len());
    facts(exchange, bodies, out);
    match exchange.secret_arguments().is_empty() {
        true => {
            text(out, &request.origin_form());
            text(out, request.query().unwrap_or_default());
        }
        false => {
            text(out, &logged.variable(&Variable::RequestUri).unwrap_or_default());
            text(out, &logged.variable(&Variable::Query).unwrap_or_default());
        }
    }
    text(out, request.method_name());
    text(out, request.client_authority());
    let (route, service) = exchange.route.as_deref().map_or(("", ""), |route| (&*route.route_id, &*route.service_id));
    text(out, route.as_bytes());
    text(out, service.as_bytes());
    text(out, exchange.stop().map_or("", |stop| stop.ending().name).as_bytes());
    text(out, exchange.identity.as_ref().map_or("", |identity| &*identity.consumer.username).as_bytes());
    fields(out, &request.head, logged, secrets);
    fields(out, &response.head, logged, secrets);
}

fn facts(exchange: &Exchange, bodies: u8, out: &mut Vec<u8>) {
    let upstream = &exchange.upstream;
    let is_timed = upstream.started_ns != 0 && upstream.ended_ns != 0;
    let flags = bodies | if exchange.client.tls { HTTPS } else { 0 } | if is_timed { UPSTREAM_TIMED } else { 0 };
    let mut facts = [0; 73];
    facts[0] = flags;
    facts[1..3].copy_from_slice(&exchange.response.status.to_le_bytes());
    facts[3..5].copy_from_slice(&exchange.client.local.port().to_le_bytes());
    let latency_ns = exchange.ended_ns.saturating_sub(exchange.started_ns);
    let upstream_ns = if is_timed { upstream.ended_ns.saturating_sub(upstream.started_ns) } else { 0 };
    let numbers = [latency_ns, upstream_ns, exchange.request_bytes, exchange.response_bytes];
    for (number, place) in numbers.iter().zip(facts[5..37].chunks_exact_mut(8)) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    address(Some(exchange.client.addr), &mut facts[37..54]);
    address(upstream.addr.map(|addr| addr.ip()), &mut facts[54..71]);
    facts[71..73].copy_from_slice(&upstream.addr.map_or(0, |addr| addr.port()).to_le_bytes());
    out.extend_from_slice(&facts);
}

fn address(address: Option<IpAddr>, out: &mut [u8]) {
    match address {
        None => out[0] = 0,
        Some(IpAddr::V4(address)) => {
            out[0] = 4;
            out[1..5].copy_from_slice(&address.octets());
        }
        Some(IpAddr::V6(address)) => {
            out[0] = 6;
            out[1..17].copy_from_slice(&address.octets());
        }
    }
}

#[inline]
fn text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

fn fields(out: &mut Vec<u8>, head: &Head, logged: &LoggedExchange<'_>, secrets: &SecretNames) {
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut count = 0_u32;
    let has_secret_arguments = !logged.0.secret_arguments().is_empty();
    for (name, value) in head.fields() {
        count += 1;
        text(out, name);
        match (secrets.has(name), has_secret_arguments) {
            (true, _) => text(out, MASK),
            (false, true) => text(out, &logged.field(name, value)),
            (false, false) => text(out, value),
        }
    }
    out[begin..begin + 4].copy_from_slice(&count.to_le_bytes());
}

fn member(out: &mut Vec<u8>, kind: u8, name: &str, value: &[u8]) {
    out.push(kind);
    text(out, name.as_bytes());
    text(out, value);
}

/// Writes the members of a format, without those for which `is_left_out` is true.
fn write_members(
    members: &RecordFields,
    shown: &impl Variables,
    is_left_out: &dyn Fn(&str) -> bool,
    out: &mut Vec<u8>,
) {
    for (name, field) in members.iter().filter(|(name, _)| !is_left_out(name)) {
        match field {
            RecordField::Variable(variable) => {
                if let Some(value) = shown.variable(variable) {
                    member(out, TEXT, name, &value);
                }
            }
            RecordField::Text(template) => {
                out.push(TEXT);
                text(out, name.as_bytes());
                rendered(template, shown, out);
            }
            RecordField::Fixed(json) => member(out, JSON, name, json),
            RecordField::RecordId => member(out, RECORD_ID, name, b""),
            RecordField::Object(inner) => {
                out.push(OBJECT);
                text(out, name.as_bytes());
                write_members(inner, shown, &|_| false, out);
                out.push(END);
            }
        }
    }
}

/// Writes the text of a template, preceded by its length.
fn rendered(template: &Template, shown: &impl Variables, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&[0; 4]);
    template.render(shown, out);
    let length = (out.len() - begin - 4) as u32;
    out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
}

fn members(
    format: &Map<String, Value>,
    path: &str,
    depth: usize,
    build: &mut Build,
) -> Result<RecordFields, ConfigError> {
    if depth > MAX_DEPTH {
        return Err(ConfigError::new(path, format!("is nested more than {MAX_DEPTH} levels deep")));
    }
    let member = |(name, value): (&String, &Value)| {
        let path = format!("{path}.{name}");
        let member = match value {
            Value::Object(inner) => RecordField::Object(members(inner, &path, depth + 1, build)?),
            Value::String(text) if text == RECORD_ID_NAME => RecordField::RecordId,
            Value::String(text) => {
                let variable = text.strip_prefix('$').and_then(Variable::parse);
                match variable {
                    Some(variable) => RecordField::Variable(variable),
                    None => RecordField::Text(build.template_of_record(text, &path)),
                }
            }
            fixed => RecordField::Fixed(fixed.to_string().into_bytes()),
        };
        Ok((name.clone(), member))
    };
    format.iter().map(member).collect()
}
