use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, percent_encode};
use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::{Known, Method};
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop, Template};

use crate::options::headers::WithGroups;
use crate::options::pattern;

/// Redirects clients: to HTTPS, to a fixed location, or to a location that a regular expression builds from the path.
///
/// Path and query are those of the client's request, whatever `proxy-rewrite` or an auth plugin has changed for the upstream.
/// Characters that are not allowed in a URI are percent-encoded. A variable at the start of `uri` cannot redirect to
/// another host with a value that begins with `//`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redirect {
    /// Redirects HTTP requests to the same URL over HTTPS, with 301 for GET and HEAD and 308 for other methods, or with
    /// `http_to_https_code`. Requests that arrived over HTTPS, or for which a trusted proxy reports HTTPS in `X-Forwarded-Proto`, are not
    /// redirected.
    #[serde(default)]
    http_to_https: bool,
    /// The HTTPS port for `http_to_https`. The default is the port of the node's first listener with TLS. Set it if
    /// clients use a different port.
    #[schemars(extend("x-weir-only-if" = { "http_to_https": [true] }))]
    #[schemars(range(min = 1))]
    https_port: Option<u16>,
    /// The status of redirects by `http_to_https`, for all methods: 301, 302, 303, 307 or 308. Not in APISIX.
    #[schemars(extend("x-weir-only-if" = { "http_to_https": [true] }))]
    #[schemars(extend("enum" = [301, 302, 303, 307, 308]))]
    http_to_https_code: Option<u16>,
    /// The target of the redirect, which may contain `$variables`. Write a literal dollar sign as `\$`.
    #[schemars(length(min = 1))]
    uri: Option<String>,
    /// A regular expression for the path, and the target of the redirect, with `$1`, `$2`... for the capture groups.
    /// Requests that do not match are not redirected.
    regex_uri: Option<Vec<String>>,
    /// The status of the redirect, 200 to 999. Ignored with `http_to_https`.
    #[serde(default = "default_ret_code")]
    #[schemars(range(min = 200, max = 999))]
    ret_code: u16,
    /// Percent-encodes the target of the redirect, except its delimiters.
    #[serde(default)]
    encode_uri: bool,
    /// Appends the query of the request to the target.
    #[serde(default)]
    append_query_string: bool,
}

fn default_ret_code() -> u16 {
    302
}

impl Definition for Redirect {
    const NAME: &'static str = "redirect";
    const PRIORITY: i32 = 900;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str = "redirect: { uri: https://www.example.com$request_uri, ret_code: 301 }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let https_code = self.http_to_https_code;
        if self.https_port.is_some() && !self.http_to_https {
            build.fault("https_port", "can be used with `http_to_https` only");
        }
        if https_code.is_some() && !self.http_to_https {
            build.fault("http_to_https_code", "can be used with `http_to_https` only; set `ret_code`");
        }
        let place = match (self.http_to_https, self.uri, self.regex_uri) {
            (true, None, None) if self.append_query_string => {
                let problem = "has no use with `http_to_https`, which keeps the query anyway; leave it out";
                build.fault("append_query_string", problem);
                RedirectTarget::Https(Box::default(), https_code)
            }
            (true, None, None) => {
                let port = self.https_port.or(build.https_port()).filter(|port| *port != 443);
                let port = port.map(|port| format!(":{port}").into_bytes().into()).unwrap_or_default();
                RedirectTarget::Https(port, https_code)
            }
            (false, Some(uri), None) => RedirectTarget::Fixed(build.template(&uri, "uri")),
            (false, None, Some(texts)) => match &texts[..] {
                [expression, place] => {
                    let expression = pattern::compile(expression, false, "regex_uri[0]")?;
                    RedirectTarget::Matched(expression, build.template(place, "regex_uri[1]"))
                }
                _ => return Err(ConfigError::new("regex_uri", "must contain one regular expression and one target")),
            },
            (https, uri, pattern) => {
                let options = [("uri", uri.is_some()), ("regex_uri", pattern.is_some()), ("http_to_https", https)];
                return Err(ConfigError::one_of(&options));
            }
        };
        let Redirect { ret_code: status, encode_uri, append_query_string, .. } = self;
        Ok(Arc::new(Redirection { place, status, encode_uri, append_query_string }))
    }
}

struct Redirection {
    place: RedirectTarget,
    status: u16,
    encode_uri: bool,
    append_query_string: bool,
}

enum RedirectTarget {
    /// To `https` on this port, written as `:port`; empty for the default port. The status, if it does not depend on the
    /// method.
    Https(Box<[u8]>, Option<u16>),
    Fixed(Template),
    Matched(Arc<Regex>, Template),
}

impl Plugin for Redirection {
    fn answers_all(&self) -> bool {
        matches!(self.place, RedirectTarget::Fixed(_))
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let mut place = Vec::new();
        let mut status = self.status;
        match &self.place {
            RedirectTarget::Https(port, code) => {
                if came_over_https(exchange) || exchange.request.host().is_empty() {
                    return Ok(Flow::Continue);
                }
                let keeps_method = !matches!(exchange.request.method, Method::Get | Method::Head);
                status = code.unwrap_or(if keeps_method { 308 } else { 301 });
                let request = &exchange.request;
                let path = [b"https://", request.host(), port, request.client_unmerged_path()].concat();
                place.extend_from_slice(&path);
                push_query(exchange, &mut place);
            }
            RedirectTarget::Fixed(template) => {
                template.render(exchange, &mut place);
                if template.constant().is_none() {
                    keep_own_host(&mut place);
                }
            }
            RedirectTarget::Matched(expression, template) => {
                let path = exchange.request.client_unmerged_path();
                let Some(captures) = expression.captures(path) else { return Ok(Flow::Continue) };
                let whole = captures.get(0).expect("group 0 is the match");
                let group = |group: Option<regex::bytes::Match>| group.map(|group| group.as_bytes().to_vec());
                let groups: Vec<Vec<u8>> = captures.iter().map(|found| group(found).unwrap_or_default()).collect();
                place.extend_from_slice(&path[..whole.start()]);
                template.render(&WithGroups { exchange, groups: &groups }, &mut place);
                place.extend_from_slice(&path[whole.end()..]);
                keep_own_host(&mut place);
            }
        }
        if self.append_query_string {
            push_query(exchange, &mut place);
        }
        let location = percent_encode(&place, if self.encode_uri { RESERVED } else { INVALID }).to_string();
        let body = format!("{status} {}\n", weir_plugin::proto::head::reason(status));
        let stop = exchange.respond(status, "text/plain; charset=utf-8", body.as_bytes());
        exchange.response.head.add(b"Location", location.as_bytes()).map_err(|_| Stop::Internal)?;
        Err(stop)
    }
}

fn came_over_https(exchange: &Exchange) -> bool {
    let said = exchange.client.trusted.then(|| exchange.request.head.known(Known::XForwardedProto)).flatten();
    said.map_or(exchange.client.tls, |said| said.eq_ignore_ascii_case(b"https"))
}

fn push_query(exchange: &Exchange, place: &mut Vec<u8>) {
    if let Some(query) = exchange.request.client_query().filter(|query| !query.is_empty()) {
        place.push(if place.contains(&b'?') { b'&' } else { b'?' });
        place.extend_from_slice(query);
    }
}

/// Values of variables may turn the path into one with a leading `//`, which would name another host (RFC 3986 §4.2).
fn keep_own_host(place: &mut Vec<u8>) {
    let slashes = place.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    if slashes > 1 {
        place.drain(..slashes - 1);
        place[0] = b'/';
    }
}

/// Bytes that a URI must not contain (RFC 3986 §2).
const INVALID: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'\\').add(b'^').add(b'`').add(b'{').add(b'|').add(b'}');

/// With `encode_uri`, all but unreserved characters and `/:?&=#%`.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/')
    .remove(b':')
    .remove(b'?')
    .remove(b'&')
    .remove(b'=')
    .remove(b'#')
    .remove(b'%');

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::{Value, json};
    use weir_plugin::BuildContext;

    use super::*;
    use crate::testing::{build, build_with, exchange, get, on_request, refused, sent};

    /// Status and `Location`; `None` if the request is not redirected.
    fn redirected(options: Value, exchange: &mut Exchange) -> Option<(u16, String)> {
        match on_request(&build::<Redirect>(options), exchange) {
            Ok(()) => None,
            Err(stop) => {
                assert_eq!(stop, Stop::Answered);
                Some((exchange.response.status, sent(exchange, "location").expect("a place").to_owned()))
            }
        }
    }

    #[test]
    fn to_https_by_method() {
        let options = json!({"http_to_https": true});
        let to = |status, place: &str| Some((status, place.to_owned()));
        assert_eq!(redirected(options.clone(), &mut get("/hello?a=1")), to(301, "https://h.example/hello?a=1"));
        let mut post = exchange("POST /hello HTTP/1.1\nHost: H.example:9080\nContent-Length: 0");
        assert_eq!(redirected(options.clone(), &mut post), to(308, "https://h.example/hello"));
        let permanent = json!({"http_to_https": true, "http_to_https_code": 308});
        assert_eq!(redirected(permanent, &mut get("/hello?a=1")), to(308, "https://h.example/hello?a=1"));
        let mut over_tls = get("/");
        over_tls.client.tls = true;
        let elsewhere = json!({"http_to_https": true, "https_port": 9443});
        assert_eq!(redirected(elsewhere, &mut get("/")), to(301, "https://h.example:9443/"));
        let usual = json!({"http_to_https": true, "https_port": 443});
        assert_eq!(redirected(usual, &mut get("/")), to(301, "https://h.example/"));
        let shared = Rc::new(BuildContext::new(Some(19443)));
        let step = build_with::<Redirect>(options.clone(), &shared).unwrap_or_else(|error| panic!("{error}"));
        let mut plain = get("/a");
        assert_eq!(on_request(&step, &mut plain), Err(Stop::Answered));
        assert_eq!(sent(&plain, "location"), Some("https://h.example:19443/a"), "where this node speaks TLS");
        assert_eq!(redirected(options.clone(), &mut over_tls), None);
        let mut said = exchange("GET / HTTP/1.1\nHost: h\nX-Forwarded-Proto: https");
        assert_eq!(redirected(options.clone(), &mut said), to(301, "https://h/"), "anybody can say so");
        said.client.trusted = true;
        assert_eq!(redirected(options, &mut said), None);
    }

    #[test]
    fn to_a_fixed_place() {
        for (options, target, want) in [
            (json!({"uri": "/x$uri", "append_query_string": true}), "/hello?a=1", "/x/hello?a=1"),
            (json!({"uri": "/x?b=2", "append_query_string": true}), "/hello?a=1", "/x?b=2&a=1"),
            (json!({"uri": "/a\\$b"}), "/", "/a$b"),
            (json!({"uri": "/$arg_a", "encode_uri": true}), "/?a=b+(c)", "/b%20%28c%29"),
        ] {
            assert_eq!(redirected(options, &mut get(target)), Some((302, want.to_owned())), "{target}");
        }
    }

    #[test]
    fn to_what_an_expression_makes_of_the_path() {
        let options = json!({"regex_uri": ["^/old/(.*)$", "/new/$1"], "ret_code": 308});
        assert_eq!(redirected(options.clone(), &mut get("/old/a?q")), Some((308, "/new/a".to_owned())));
        assert_eq!(redirected(options, &mut get("/other")), None);
    }

    #[test]
    fn the_location_is_made_from_what_the_client_asked_for() {
        for (options, want) in [
            (json!({"http_to_https": true}), "https://h.example/old/a?key=1&x=2"),
            (json!({"regex_uri": ["^/old/(.*)$", "/new/$1"], "append_query_string": true}), "/new/a?key=1&x=2"),
        ] {
            let mut exchange = get("/old/./a?key=1&x=2");
            exchange.request.set_path(b"/internal", Some(b"x=2")).expect("valid");
            let location = redirected(options, &mut exchange).expect("redirected").1;
            assert_eq!(location, want, "whatever goes to the upstream");
        }
    }

    #[test]
    fn p15_values_bring_neither_fields_nor_hosts() {
        let options = json!({"uri": "/to/$arg_a"});
        let place = redirected(options, &mut get("/?a=x%0d%0aSet-Cookie:%20y")).expect("redirected").1;
        assert_eq!(place, "/to/x%0D%0ASet-Cookie:%20y");
        for (uri, target) in [("$request_uri", "//evil.example/x"), ("$arg_a", "/?a=//evil.example/x")] {
            let place = redirected(json!({"uri": uri}), &mut get(target)).expect("redirected").1;
            assert_eq!(place, "/evil.example/x", "{uri}");
        }
        let place =
            redirected(json!({"regex_uri": ["^/go", "/"]}), &mut get("/go/evil.example")).expect("redirected").1;
        assert_eq!(place, "/evil.example");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs one of"),
            (json!({"uri": "/", "http_to_https": true}), "has `uri` and `http_to_https`; keep one of them"),
            (json!({"uri": ""}), "uri: is empty"),
            (json!({"regex_uri": ["a"]}), "regex_uri: must contain one regular expression and one target"),
            (json!({"regex_uri": ["(", "b"]}), "regex_uri[0]: is not a regular expression"),
            (
                json!({"http_to_https": true, "http_to_https_code": 304}),
                "http_to_https_code: expected one of `301`, `302`, `303`, `307`, `308`",
            ),
            (json!({"uri": "/", "http_to_https_code": 308}), "http_to_https_code: can be used with"),
            (json!({"http_to_https": true, "append_query_string": true}), "append_query_string: has no use"),
        ] {
            let error = refused::<Redirect>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
