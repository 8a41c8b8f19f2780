use std::borrow::Cow;
use std::io::Write;
use std::sync::Arc;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::authority::HostPort;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop, Template, Variable,
    Variables,
};

use crate::options::headers::{HeaderEdits, HeaderOptions, WithGroups};
use crate::options::pattern;

/// Changes the request before it goes to the upstream: path, method, host and header fields.
///
/// A new path is normalized like every path. If the value of a variable would change the structure of the new path
/// (`..`, an encoded slash), the request is answered with 400. The query of the request is kept; a query in the option
/// is put before it. Values cannot add arguments to that query, except `$args`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProxyRewrite {
    /// The new path, optionally with `?query`. `$variables` are replaced; their values are percent-encoded, except
    /// those that are already encoded, such as `$uri`. In the path, `$request_uri` and `$upstream_uri` are without their
    /// query, because the query of the request is kept in any case; `$is_args$args` at the end says the same.
    uri: Option<String>,
    /// Regular expressions and replacements in alternation. The first expression that matches the path is applied: the
    /// matched part is replaced. `$1`, `$2`... are the capture groups. Ignored if there is a `uri`.
    regex_uri: Option<Vec<String>>,
    /// The new method.
    method: Option<String>,
    /// The new `Host`, optionally with a port. It has no effect for an upstream whose `pass_host` is not `pass`.
    host: Option<String>,
    /// Header fields to add, set and remove, in this order; or a map of names and values, which are set. Values may
    /// contain `$variables`, and `$1`, `$2`... for the capture groups of `regex_uri`.
    headers: Option<HeaderOptions>,
    /// With `true`, APISIX sends the path to the upstream as the client wrote it, so the upstream can get a different
    /// path than the one that was checked. It has no effect in Weir and causes a warning.
    #[serde(default)]
    use_real_request_uri_unsafe: bool,
}

const METHODS: [&str; 14] = [
    "GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "MKCOL", "COPY", "MOVE", "PROPFIND", "LOCK",
    "UNLOCK",
];

impl Definition for ProxyRewrite {
    const NAME: &'static str = "proxy-rewrite";
    const PRIORITY: i32 = 1008;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = r#"proxy-rewrite: { regex_uri: ["^/v1/(.*)", "/$1"], headers: { set: { X-Api-Version: v1 }, remove: [X-Debug] } }"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let changes = self.uri.is_some()
            || self.regex_uri.is_some()
            || self.method.is_some()
            || self.host.is_some()
            || self.headers.is_some();
        if !changes && !self.use_real_request_uri_unsafe {
            return Err(ConfigError::new(
                "",
                "changes nothing; give `uri`, `regex_uri`, `method`, `host` or `headers`",
            ));
        }
        if self.use_real_request_uri_unsafe {
            let problem = "has no effect: the upstream always gets the path that was used for routing";
            build.warnings.push(ConfigError::new("use_real_request_uri_unsafe", problem));
        }
        let path = match (self.uri, self.regex_uri) {
            (Some(uri), _) => TargetTemplate::compile(&uri, "uri", build).map(|uri| Some(NewPath::Fixed(uri))),
            (None, Some(texts)) => rules(&texts, build).map(|rules| Some(NewPath::Matched(rules))),
            (None, None) => Ok(None),
        };
        if let Some(method) = &self.method
            && !METHODS.contains(&method.as_str())
        {
            build.fault("method", format!("is none of {}", METHODS.join(", ")));
        }
        if let Some(host) = &self.host
            && HostPort::parse(host.as_bytes()).is_err()
        {
            build.fault("host", "is not a host with an optional port, as api.example:8080");
        }
        let headers = self.headers.map(|options| options.compile("headers", build)).transpose();
        let headers = headers.map(Option::unwrap_or_default).and_then(|headers| {
            let changes_host = headers.names().any(|name| name.eq_ignore_ascii_case(b"host"));
            match changes_host {
                true => Err(ConfigError::new("headers", "cannot change `Host`; use the option `host`")),
                false => Ok(headers),
            }
        });
        let (path, headers) = (path, headers).all_of()?;
        Ok(Arc::new(ProxyRewriter {
            path,
            method: self.method.map(|method| method.into_bytes().into()),
            host: self.host.map(|host| host.into_bytes().into()),
            headers,
        }))
    }
}

fn rules(texts: &[String], build: &mut Build) -> Result<PathRules, ConfigError> {
    if texts.is_empty() || !texts.len().is_multiple_of(2) {
        return Err(ConfigError::new("regex_uri", "must contain pairs of a regular expression and a replacement"));
    }
    let rule = |(index, pair): (usize, &[String])| {
        let (expression, replacement) = (format!("regex_uri[{}]", 2 * index), format!("regex_uri[{}]", 2 * index + 1));
        if has_lone_dollar(&pair[1]) {
            let problem =
                "has a `$` that is not followed by the name of a group or a variable; write `\\$` for a dollar sign";
            build.fault(replacement.as_str(), problem);
        }
        let (regex, target) =
            (pattern::compile(&pair[0], false, &expression), TargetTemplate::part(&pair[1], &replacement, build));
        (regex, target).all_of()
    };
    texts.chunks(2).enumerate().map(rule).collect_all()
}

/// Whether the text has a `$` that no name or group follows, which the regular-expression engine of APISIX refuses.
fn has_lone_dollar(text: &str) -> bool {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        let is_name = after.starts_with(|next: char| next.is_ascii_alphanumeric() || matches!(next, '_' | '{' | '$'));
        if !before.ends_with('\\') && !is_name {
            return true;
        }
        rest = after.strip_prefix('$').unwrap_or(after);
    }
    false
}

struct ProxyRewriter {
    path: Option<NewPath>,
    method: Option<Box<[u8]>>,
    host: Option<Box<[u8]>>,
    headers: HeaderEdits,
}

/// What paths must match, each with what replaces it.
type PathRules = Box<[(Arc<Regex>, TargetTemplate)]>;

enum NewPath {
    Fixed(TargetTemplate),
    Matched(PathRules),
}

/// The templates of a path, or of a part of one, and of its query.
struct TargetTemplate {
    path: Template,
    query: Option<Template>,
}

impl TargetTemplate {
    fn compile(text: &str, option: &str, build: &mut Build) -> Result<TargetTemplate, ConfigError> {
        match text.starts_with('/') {
            true => TargetTemplate::part(text, option, build),
            false => Err(ConfigError::new(option, "must start with `/`")),
        }
    }

    fn part(text: &str, option: &str, build: &mut Build) -> Result<TargetTemplate, ConfigError> {
        let (path, query) = match text.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (text, None),
        };
        let path = without_kept_query(path);
        if names_query_mark(path) {
            let problem = "has `$is_args` in its path; the query of the request is kept anyway: leave `$is_args` out, \
                           or write `$is_args$args` at the end";
            return Err(ConfigError::new(option, problem));
        }
        if text.bytes().any(|byte| byte <= b' ' || byte == b'#' || byte >= 0x7f) {
            return Err(ConfigError::new(option, "has a character that must be percent-encoded in a path"));
        }
        if path.split('/').any(is_dots) {
            return Err(ConfigError::new(option, "has a `.` or `..` segment; write the path without such segments"));
        }
        Ok(TargetTemplate {
            path: build.template(path, option),
            query: query.map(|query| build.template(query, option)),
        })
    }
}

/// The path without `$is_args$args` at its end, as configurations of nginx have it to keep the query of the request. It is kept in
/// any case.
fn without_kept_query(path: &str) -> &str {
    let variables = |name: &str| [format!("${name}"), format!("${{{name}}}")];
    let strip = |text: &'_ str, names: &[&str]| {
        names.iter().flat_map(|name| variables(name)).find_map(|variable| text.strip_suffix(&*variable).map(str::len))
    };
    let kept = strip(path, &["args", "query_string"]).and_then(|length| strip(&path[..length], &["is_args"]));
    kept.map_or(path, |length| &path[..length])
}

/// Whether a path contains `$is_args`, whose `?` would be a part of the path.
fn names_query_mark(path: &str) -> bool {
    let is_name = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
    path.contains("${is_args}") || path.split("$is_args").skip(1).any(is_name)
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

impl Plugin for ProxyRewriter {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let groups = match &self.path {
            Some(path) => path.replace(exchange)?,
            None => Vec::new(),
        };
        if let Some(method) = &self.method {
            assert!(exchange.request.set_method(method), "checked when it was built");
        }
        if let Some(host) = &self.host {
            exchange.request.set_authority(host).expect("checked when it was built");
        }
        // The names have been checked; a value is invalid only because of the content of a variable.
        let edited = self.headers.apply(exchange, |exchange| &mut exchange.request.head, &groups);
        edited.map(Flow::from).map_err(|_| Stop::Respond(400))
    }
}

impl NewPath {
    /// Replaces path and query; returns the groups of the regular expression that matched.
    fn replace(&self, exchange: &mut Exchange) -> Result<Vec<Vec<u8>>, Stop> {
        match self {
            NewPath::Fixed(target) => {
                let mut path = Vec::new();
                render(&target.path, TargetPart::Path, exchange, &[], &mut path);
                set(exchange, &path, target.query.as_ref(), &[])?;
                Ok(Vec::new())
            }
            NewPath::Matched(rules) => {
                let old = exchange.request.unmerged_path();
                let found = rules.iter().find_map(|(expression, target)| Some((expression.captures(old)?, target)));
                let Some((captures, target)) = found else { return Ok(Vec::new()) };
                let whole = captures.get(0).expect("group 0 is the match");
                let groups: Vec<Vec<u8>> = captures
                    .iter()
                    .map(|group| group.map(|group| group.as_bytes().to_vec()).unwrap_or_default())
                    .collect();
                let mut path = old[..whole.start()].to_vec();
                render(&target.path, TargetPart::Path, exchange, &groups, &mut path);
                path.extend_from_slice(&old[whole.end()..]);
                set(exchange, &path, target.query.as_ref(), &groups)?;
                Ok(groups)
            }
        }
    }
}

/// The part of a target that a template makes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TargetPart {
    Path,
    Query,
}

/// Renders a part of a target. Values are encoded, so that they cannot add a query, an argument, a fragment or an escape.
fn render(template: &Template, part: TargetPart, exchange: &Exchange, groups: &[Vec<u8>], out: &mut Vec<u8>) {
    template.render(&Encoded { part, values: WithGroups { exchange, groups } }, out);
}

/// Percent-encodes the values of variables. Those that are encoded already keep their escapes.
struct Encoded<'a> {
    part: TargetPart,
    values: WithGroups<'a>,
}

impl Variables for Encoded<'_> {
    fn variable(&self, variable: &Variable) -> Option<Cow<'_, [u8]>> {
        use Variable::{Capture, Query, RequestUri, UpstreamUri, Uri};
        let value = self.values.variable(variable)?;
        let is_plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        Some(match (self.part, variable) {
            (_, Query) | (TargetPart::Path, Capture(_)) => value,
            (TargetPart::Path, Uri) => Cow::Borrowed(self.values.exchange.request.client_unmerged_path()),
            (TargetPart::Path, RequestUri | UpstreamUri) => match memchr::memchr(b'?', &value) {
                None => value,
                Some(mark) => Cow::Owned(value[..mark].to_vec()),
            },
            // In a path these are plain (RFC 3986 §3.3), and `+` in a query is a space.
            (TargetPart::Query, Uri | Capture(_) | RequestUri | UpstreamUri) => {
                encoded(value, |byte| !b"&+;#?=".contains(byte))
            }
            _ => encoded(value, is_plain),
        })
    }
}

/// Percent-encodes all bytes that are not plain.
fn encoded(value: Cow<'_, [u8]>, is_plain: impl Fn(&u8) -> bool) -> Cow<'_, [u8]> {
    if value.iter().all(&is_plain) {
        return value;
    }
    let mut encoded = Vec::with_capacity(3 * value.len());
    for byte in value.iter() {
        match is_plain(byte) {
            true => encoded.push(*byte),
            false => write!(encoded, "%{byte:02X}").expect("a Vec takes everything"),
        }
    }
    Cow::Owned(encoded)
}

/// Sets the path of the request, with `query` before the client's query. Refuses paths that are ambiguous because of values.
fn set(exchange: &mut Exchange, path: &[u8], query: Option<&Template>, groups: &[Vec<u8>]) -> Result<(), Stop> {
    let rooted = [b"/", path];
    let path = if path.starts_with(b"/") { Cow::Borrowed(path) } else { Cow::Owned(rooted.concat()) };
    if path.split(|&byte| byte == b'/').any(|segment| matches!(segment, b"." | b"..")) {
        return Err(Stop::Respond(400));
    }
    let query = query.map(|template| {
        let mut query = Vec::new();
        render(template, TargetPart::Query, exchange, groups, &mut query);
        if let Some(old) = exchange.request.query().filter(|old| !old.is_empty()) {
            query.push(b'&');
            query.extend_from_slice(old);
        }
        query
    });
    exchange.request.set_path(&path, query.as_deref()).map_err(|_| Stop::Respond(400))?;
    let has_separator = |escape: &[u8]| matches!(escape, b"%2F" | b"%5C");
    match !exchange.request.encoded_separator && exchange.request.path().windows(3).any(has_separator) {
        true => Err(Stop::Respond(400)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{build, get, on_request, refused};

    /// The path and query that are sent to the upstream.
    fn rewritten(options: &Value, target: &str) -> Result<String, Stop> {
        let mut exchange = get(target);
        on_request(&build::<ProxyRewrite>(options.clone()), &mut exchange)?;
        Ok(String::from_utf8(exchange.variable(&Variable::UpstreamUri).expect("always there").into_owned())
            .expect("ASCII"))
    }

    #[test]
    fn a_new_path_keeps_the_query() {
        for (uri, target, want) in [
            ("/uri", "/hello?q=1", "/uri?q=1"),
            ("/uri", "/hello", "/uri"),
            ("/x$uri", "/a%20b?q", "/x/a%20b?q"),
            ("/uri?a=1", "/hello?q=1", "/uri?a=1&q=1"),
            ("/uri?a=$arg_q", "/hello", "/uri?a="),
            ("/by/$arg_q/end?h=$host", "/?q=a%20b%26%3F/c", "/by/a%20b%26%3F/c/end?h=h.example&q=a%20b%26%3F/c"),
            ("/x$request_uri", "/a?q=1", "/x/a?q=1"),
            ("/x$request_uri", "/a", "/x/a"),
            ("/x$upstream_uri?a=1", "/a?q=1", "/x/a?a=1&q=1"),
            ("/x$is_args$args", "/a?q=1", "/x?q=1"),
            ("/x$is_args$args", "/a", "/x"),
            ("/x$uri${is_args}${query_string}", "/a?q=1", "/x/a?q=1"),
        ] {
            assert_eq!(rewritten(&json!({"uri": uri}), target).as_deref(), Ok(want), "{uri} {target}");
        }
    }

    #[test]
    fn the_first_expression_that_matches_replaces_what_it_matched() {
        let options = json!({"regex_uri": ["^/v1/(.*)/(.*)", "/$2_x/${1}", "^/v2", "", "/old$", "/new?from=old"]});
        for (target, want) in [
            ("/v1/a/b?q=1", "/b_x/a?q=1"),
            ("/v2/a", "/a"),
            ("/very/old?q=1", "/very/new?from=old&q=1"),
            ("/other", "/other"),
        ] {
            assert_eq!(rewritten(&options, target).as_deref(), Ok(want), "{target}");
        }
        let both = json!({"uri": "/fixed", "regex_uri": ["^/a", "/b"]});
        assert_eq!(rewritten(&both, "/a").as_deref(), Ok("/fixed"));
    }

    #[test]
    fn values_cannot_add_arguments() {
        for (options, target, want) in [
            (
                json!({"regex_uri": ["^/user/(.*)$", "/api?role=user&id=$1"]}),
                "/user/7&role=admin;a+b=%26%20",
                "/api?role=user&id=7%26role%3Dadmin%3Ba%2Bb%3D%26%20",
            ),
            (json!({"uri": "/api?path=$uri"}), "/a&b=c?q=1", "/api?path=/a%26b%3Dc&q=1"),
            (json!({"uri": "/login?next=$request_uri"}), "/a?x=1", "/login?next=/a%3Fx%3D1&x=1"),
            (json!({"uri": "/api?first=1&$args"}), "/a?x=1&y=2", "/api?first=1&x=1&y=2&x=1&y=2"),
        ] {
            assert_eq!(rewritten(&options, target).as_deref(), Ok(want), "{options} {target}");
        }
    }

    #[test]
    fn values_cannot_lead_out_of_the_new_path() {
        let options = json!({"uri": "/files/$arg_name"});
        for target in ["/?name=../admin", "/?name=%2e%2e/admin", "/?name=..%5Cadmin", "/?name=a%00"] {
            assert_eq!(rewritten(&options, target), Err(Stop::Respond(400)), "{target}");
        }
        // A double encoding stays as it is: `%252e%252e` is a name, not a parent directory.
        assert_eq!(rewritten(&options, "/?name=%252e%252e").as_deref(), Ok("/files/%252e%252e?name=%252e%252e"));
        let options = json!({"regex_uri": ["^/a(.*)", "/.$1"]});
        assert_eq!(rewritten(&options, "/a./etc"), Err(Stop::Respond(400)));
    }

    #[test]
    fn method_host_and_fields() {
        let options = json!({"method": "POST", "host": "Other.example:81", "regex_uri": ["^/v(\\d)/(.*)", "/$2"],
            "headers": {"add": {"X-A": ["1", 2]}, "set": {"X-Version": "$1 $remote_addr"}, "remove": ["User-Agent"]}});
        let mut exchange =
            crate::testing::exchange("GET /v7/a HTTP/1.1\nHost: h\nX-A: 0\nX-Version: 1\nx-version: 2\nUser-Agent: u");
        on_request(&build::<ProxyRewrite>(options), &mut exchange).expect("let through");
        let request = &exchange.request;
        assert_eq!((request.method_name(), request.path()), (&b"POST"[..], &b"/a"[..]));
        assert_eq!(request.authority(), b"Other.example:81");
        assert_ne!(request.client_authority(), request.authority(), "the upstream is told in X-Forwarded-Host");
        let all = |name: &str| {
            request.head.values(name.as_bytes()).map(|value| value.escape_ascii().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(all("x-a"), ["0", "1", "2"]);
        assert_eq!(all("x-version"), ["7 192.0.2.7"]);
        assert_eq!(all("user-agent"), [""; 0]);
    }

    #[test]
    fn flat_headers_are_set_and_cannot_be_split() {
        let step = build::<ProxyRewrite>(json!({"headers": {"X-A": "$arg_a"}}));
        let mut exchange = get("/?a=1");
        on_request(&step, &mut exchange).expect("let through");
        assert_eq!(exchange.request.head.value(b"x-a"), Some(&b"1"[..]));
        assert_eq!(on_request(&step, &mut get("/?a=1%0d%0aX-B:%202")), Err(Stop::Respond(400)));
    }

    #[test]
    fn the_new_value_of_a_field_may_contain_the_old_one() {
        let step =
            build::<ProxyRewrite>(json!({"headers": {"set": {"X-A": "$http_x_a b", "X-C": "${http_x_c ?? none}"}}}));
        let mut exchange = crate::testing::exchange("GET / HTTP/1.1\nHost: h\nX-A: a\nX-C: c");
        on_request(&step, &mut exchange).expect("let through");
        let head = &exchange.request.head;
        assert_eq!((head.value(b"x-a"), head.value(b"x-c")), (Some(&b"a b"[..]), Some(&b"c"[..])));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "changes nothing; give"),
            (json!({"uri": "hello"}), "uri: must start with `/`"),
            (json!({"uri": "/a b"}), "uri: has a character"),
            (json!({"uri": "/a/../b"}), "uri: has a `.` or `..` segment"),
            (json!({"regex_uri": ["^/a"]}), "regex_uri: must contain pairs of a regular expression and a replacement"),
            (json!({"regex_uri": ["^/a", "/b", "(", "/c"]}), "regex_uri[2]: is not a regular expression"),
            (json!({"regex_uri": ["^/a", "/b$"]}), "regex_uri[1]: has a `$` that is not followed by"),
            (json!({"method": "get"}), "method: is none of GET, POST"),
            (json!({"host": "a/b"}), "host: is not a host"),
            (json!({"headers": {"set": {"a b": "1"}}}), "headers.set.a b: is not the name of a header field"),
            (json!({"headers": {"remove": ["Content-Length"]}}), "headers.remove[0]: controls the framing"),
            (json!({"headers": {"set": {"X": "a\r\nb"}}}), "headers.set.X: has a character that is not allowed"),
            (json!({"headers": {"set": {"X": []}}}), "headers.set.X: needs at least one value"),
            (
                json!({"headers": {"set": {"X": "1"}, "delete": ["Y"]}}),
                "headers.delete: the option `delete` is not known; the options are `add`, `set`, `remove`",
            ),
            (json!({"headers": {"remove": "X"}}), "headers.remove: must be a list of names"),
            (json!({"headers": {"set": "X: a"}}), "headers.set: must be a map"),
            (json!({"headers": {"Host": "x"}}), "headers: cannot change `Host`; use the option `host`"),
            (json!({"scheme": "https"}), "scheme: the option `scheme` is not known"),
        ] {
            let error = refused::<ProxyRewrite>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }

    #[test]
    fn the_unsafe_path_of_apisix_is_accepted_with_a_warning() {
        let mut build = Build::default();
        let options: ProxyRewrite =
            serde_json::from_value(json!({"use_real_request_uri_unsafe": true})).expect("valid");
        let step = options.build(&mut build).expect("accepted");
        assert_eq!(build.warnings.len(), 1);
        let mut exchange = get("/a/../b");
        on_request(&step, &mut exchange).expect("let through");
        assert_eq!(exchange.request.path(), b"/b");
    }
}
