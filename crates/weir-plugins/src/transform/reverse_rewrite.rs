use std::borrow::Cow;
use std::sync::Arc;

use regex::bytes::{Captures, Match, Regex};
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::{Field, field};
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Phases, Plugin, Stage, Stop, Template};

use crate::options::headers::WithGroups;
use crate::options::pattern;

/// Changes what upstreams say about their own addresses: redirects, and the domains, paths and flags of cookies.
///
/// This is what `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path` and `proxy_cookie_flags` of nginx do. In each list, the
/// first rule that matches is applied. Only fields that the upstream has sent are changed: not those of the gateway, such as the cookie of
/// `persistence`, and not those of other plugins, which see the new values. Behind `proxy-cache` and `ext-proc`, the cookie of `persistence`
/// counts as one of the upstream. The handshake of a WebSocket, a response with the status 101, passes as it is.
///
/// A value that cannot be changed safely passes as it is: one that is longer than 16 KiB before or after the change, a cookie with more than
/// 32 attributes, and one to which a variable would add a line end or a further attribute.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReverseRewrite {
    /// Rules for redirects: the fields `Location` and `Refresh`. `from` is compared with the beginning.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    redirects: Vec<ReverseRule>,
    /// Rules for the attribute `Domain` of cookies. `from` is compared with the whole domain; case, and a dot at the beginning, are ignored.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    cookie_domains: Vec<ReverseRule>,
    /// Rules for the attribute `Path` of cookies. `from` is compared with the beginning.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    cookie_paths: Vec<ReverseRule>,
    /// Rules for the attributes `Secure`, `HttpOnly` and `SameSite` of cookies.
    #[serde(default)]
    #[schemars(length(max = MAX_RULES))]
    cookie_flags: Vec<CookieFlagRule>,
}

/// The most rules of a list.
const MAX_RULES: usize = 32;
/// The longest text of a rule, in bytes.
const MAX_TEXT: usize = 2048;
/// The longest value that is changed, and that a change makes, in bytes.
const MAX_VALUE: usize = 16 << 10;
/// The most attributes of a cookie that is changed. Each is compared with all rules; RFC 6265 and its successor define eight.
const MAX_ATTRIBUTES: usize = 32;

/// A text that is replaced, or an expression, and what takes its place.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReverseRule {
    /// The text that is replaced. It may contain `$variables`; where these have no value and nothing else is left, it matches nothing.
    #[schemars(length(min = 1, max = MAX_TEXT))]
    from: Option<String>,
    /// In place of `from`, a regular expression. If it matches, the whole value is replaced.
    #[schemars(length(min = 1))]
    regex: Option<String>,
    /// The expression ignores case.
    #[serde(default)]
    ignore_case: bool,
    /// With `from`, a regular expression for the path of the request, as routes are compared with it: the rule is for these requests alone,
    /// and `$1`, `$2`... in `to` are groups of this expression.
    #[schemars(length(min = 1))]
    path: Option<String>,
    /// What takes its place. It may contain `$variables`, and `$1`, `$2`... for the capture groups of `regex`.
    #[schemars(length(max = MAX_TEXT))]
    to: String,
}

/// The flags of some cookies; of all of them without a `name` and a `regex`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CookieFlagRule {
    /// The name of the cookie. Case is ignored.
    #[schemars(length(min = 1, max = MAX_TEXT))]
    name: Option<String>,
    /// In place of `name`, a regular expression that the name matches.
    #[schemars(length(min = 1))]
    regex: Option<String>,
    /// The expression ignores case.
    #[serde(default)]
    ignore_case: bool,
    /// The flags that the cookies get or, after `no`, lose.
    #[schemars(length(min = 1))]
    flags: Vec<CookieFlag>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
enum CookieFlag {
    #[serde(rename = "secure")]
    Secure,
    #[serde(rename = "nosecure")]
    NoSecure,
    #[serde(rename = "httponly")]
    HttpOnly,
    #[serde(rename = "nohttponly")]
    NoHttpOnly,
    #[serde(rename = "samesite=strict")]
    SameSiteStrict,
    #[serde(rename = "samesite=lax")]
    SameSiteLax,
    #[serde(rename = "samesite=none")]
    SameSiteNone,
    #[serde(rename = "nosamesite")]
    NoSameSite,
}

impl CookieFlag {
    fn change(self) -> FlagChange {
        let (name, text): (&str, &[u8]) = match self {
            CookieFlag::Secure => ("Secure", b" Secure"),
            CookieFlag::NoSecure => ("Secure", b""),
            CookieFlag::HttpOnly => ("HttpOnly", b" HttpOnly"),
            CookieFlag::NoHttpOnly => ("HttpOnly", b""),
            CookieFlag::SameSiteStrict => ("SameSite", b" SameSite=Strict"),
            CookieFlag::SameSiteLax => ("SameSite", b" SameSite=Lax"),
            CookieFlag::SameSiteNone => ("SameSite", b" SameSite=None"),
            CookieFlag::NoSameSite => ("SameSite", b""),
        };
        FlagChange { name, text }
    }
}

impl Definition for ReverseRewrite {
    const NAME: &'static str = "reverse-rewrite";
    const PRIORITY: i32 = 898;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"reverse-rewrite:
  redirects: [{ from: "http://app.internal:8080/", to: "https://$host/app/" }]
  cookie_domains: [{ from: app.internal, to: $host }]
  cookie_paths: [{ from: /, to: /app/ }]
  cookie_flags: [{ name: session, flags: [secure, httponly, samesite=lax] }]"#;

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let redirects = compiled(self.redirects, RewrittenValue::Redirect, "redirects", build);
        let domains = compiled(self.cookie_domains, RewrittenValue::Domain, "cookie_domains", build);
        let paths = compiled(self.cookie_paths, RewrittenValue::Path, "cookie_paths", build);
        let flags = self.cookie_flags.into_iter().enumerate();
        let flags = flags.map(|(index, rule)| rule.compile(&format!("cookie_flags[{index}]"), build)).collect_all();
        let (redirects, domains, paths, flags) = (redirects, domains, paths, flags).all_of()?;
        let rewriter = ReverseRewriter { redirects, domains, paths, flags };
        if rewriter.redirects.is_empty() && !rewriter.sees_cookies() {
            let problem = "changes nothing; give `redirects`, `cookie_domains`, `cookie_paths` or `cookie_flags`";
            build.warnings.push(ConfigError::new("", problem));
        }
        Ok(Arc::new(rewriter))
    }
}

/// What a rule is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RewrittenValue {
    Redirect,
    Domain,
    Path,
}

impl RewrittenValue {
    /// Whether a text may stand in such a value. A `;` would begin another attribute of a cookie, and an escape character or the like
    /// may not stand in one (RFC 6265 §4.1.1).
    fn may_have(self, text: &[u8]) -> bool {
        let may_stand = |byte: &u8| *byte != b';' && !byte.is_ascii_control();
        field::is_value(text) && (self == RewrittenValue::Redirect || text.iter().all(may_stand))
    }
}

fn compiled(
    rules: Vec<ReverseRule>,
    value: RewrittenValue,
    place: &str,
    build: &mut Build,
) -> Result<Box<[ReverseReplacement]>, ConfigError> {
    let compile = |(index, rule): (usize, ReverseRule)| rule.compile(value, &format!("{place}[{index}]"), &mut *build);
    rules.into_iter().enumerate().map(compile).collect_all()
}

impl ReverseRule {
    fn compile(self, value: RewrittenValue, place: &str, build: &mut Build) -> Result<ReverseReplacement, ConfigError> {
        let ReverseRule { from, regex, ignore_case, path, to } = self;
        if ignore_case && regex.is_none() {
            build.fault(format!("{place}.ignore_case"), "is for `regex`, which is not given");
        }
        if path.is_some() && from.is_none() {
            build.fault(format!("{place}.path"), "is for `from`, which is not given");
        }
        let wanted = match (from, regex) {
            (Some(from), None) => template(&from, value, &format!("{place}.from"), build).map(ReplacedPart::Text),
            (None, Some(regex)) => {
                pattern::compile(&regex, ignore_case, &format!("{place}.regex")).map(ReplacedPart::Expression)
            }
            _ => Err(ConfigError::new(place, "needs either `from` or `regex`")),
        };
        let path = path.map(|path| pattern::compile(&path, false, &format!("{place}.path"))).transpose();
        let to = template(&to, value, &format!("{place}.to"), build);
        let (wanted, path, to) = (wanted, path, to).all_of()?;
        Ok(ReverseReplacement { value, wanted, path, to })
    }
}

fn template(text: &str, value: RewrittenValue, place: &str, build: &mut Build) -> Result<Template, ConfigError> {
    match value.may_have(text.as_bytes()) {
        true => Ok(build.template(text, place)),
        false => Err(ConfigError::new(place, "has a character that is not allowed there, such as a line end or `;`")),
    }
}

impl CookieFlagRule {
    fn compile(self, place: &str, build: &mut Build) -> Result<CompiledFlags, ConfigError> {
        let CookieFlagRule { name, regex, ignore_case, flags } = self;
        if ignore_case && regex.is_none() {
            build.fault(format!("{place}.ignore_case"), "is for `regex`, which is not given");
        }
        let changes: Box<[FlagChange]> = flags.into_iter().map(CookieFlag::change).collect();
        let is_twice = |change: &&FlagChange| changes.iter().filter(|other| other.name == change.name).count() > 1;
        if let Some(twice) = changes.iter().find(is_twice) {
            build.fault(format!("{place}.flags"), format!("has two flags for `{}`", twice.name));
        }
        let cookies = match (name, regex) {
            (None, None) => Ok(FlaggedCookies::All),
            (Some(name), None) => Ok(FlaggedCookies::Named(name.into_bytes().into())),
            (None, Some(regex)) => {
                pattern::compile(&regex, ignore_case, &format!("{place}.regex")).map(FlaggedCookies::Matching)
            }
            (Some(_), Some(_)) => Err(ConfigError::new(place, "has both `name` and `regex`; give one of them")),
        };
        Ok(CompiledFlags { cookies: cookies?, changes })
    }
}

struct ReverseRewriter {
    redirects: Box<[ReverseReplacement]>,
    domains: Box<[ReverseReplacement]>,
    paths: Box<[ReverseReplacement]>,
    flags: Box<[CompiledFlags]>,
}

impl Plugin for ReverseRewriter {
    fn phases(&self) -> Phases {
        // Other plugins must not have their own redirects and cookies changed.
        Phases { first_in_responses: true, ..Phases::RESPONSE }
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        if exchange.is_answered_here() {
            return Ok(());
        }
        if !self.redirects.is_empty() {
            rewrite(exchange, b"location", |exchange, value| first(&self.redirects, exchange, value))?;
            rewrite(exchange, b"refresh", |exchange, value| self.refresh(exchange, value))?;
        }
        if self.sees_cookies() {
            rewrite(exchange, b"set-cookie", |exchange, value| self.cookie(exchange, value))?;
        }
        Ok(())
    }
}

/// Changes the fields of this name that the upstream has sent, unless `change` returns `None` for all of them.
fn rewrite(
    exchange: &mut Exchange,
    name: &[u8],
    change: impl Fn(&Exchange, &[u8]) -> Option<Vec<u8>>,
) -> Result<(), Stop> {
    let sent: &Exchange = exchange;
    let head = &sent.response.head;
    let fields: Vec<&Field> = head.present().filter(|field| field::same_name(head.slice(field.name), name)).collect();
    let changed = |field: &&Field| {
        let value = head.slice(field.value);
        let may_change = !field.added && value.len() <= MAX_VALUE;
        may_change.then(|| change(sent, value)).flatten().filter(|new| new.len() <= MAX_VALUE)
    };
    let changes: Vec<Option<Vec<u8>>> = fields.iter().map(changed).collect();
    if changes.iter().all(Option::is_none) {
        return Ok(());
    }
    // All of them are written again, so that they keep their order.
    let line = |(field, change): (&Field, Option<Vec<u8>>)| {
        (head.slice(field.name).to_vec(), change.unwrap_or_else(|| head.slice(field.value).to_vec()))
    };
    let lines: Vec<(Vec<u8>, Vec<u8>)> = fields.into_iter().zip(changes).map(line).collect();
    if !lines.iter().all(|(_, value)| field::is_value(value)) {
        return Ok(());
    }
    exchange.response.head.remove(name);
    for (name, value) in &lines {
        exchange.response.head.add(name, value).map_err(|_| Stop::Internal)?;
    }
    Ok(())
}

/// The value that the first matching rule makes; `None` if none matches, or if what it makes may not stand there.
fn first(rules: &[ReverseReplacement], exchange: &Exchange, value: &[u8]) -> Option<Vec<u8>> {
    let (rule, new) = rules.iter().find_map(|rule| Some((rule, rule.applied(exchange, value)?)))?;
    // A value with white space at an end is malformed in HTTP/2 (RFC 9113 §8.2.1), and a redirect has to lead somewhere.
    let new = field::trim(&new);
    let is_lost = new.is_empty() && rule.value == RewrittenValue::Redirect;
    (!is_lost && rule.value.may_have(new)).then(|| new.to_vec())
}

impl ReverseRewriter {
    fn sees_cookies(&self) -> bool {
        !(self.domains.is_empty() && self.paths.is_empty() && self.flags.is_empty())
    }

    /// The value of `Refresh`, as `5; url=http://...`, with another URL.
    fn refresh(&self, exchange: &Exchange, value: &[u8]) -> Option<Vec<u8>> {
        let start = value.windows(4).position(|bytes| bytes.eq_ignore_ascii_case(b"url="))? + 4;
        let url = first(&self.redirects, exchange, &value[start..])?;
        Some([&value[..start], &url].concat())
    }

    /// The cookie with other attributes.
    fn cookie(&self, exchange: &Exchange, value: &[u8]) -> Option<Vec<u8>> {
        let mut parts: Vec<Cow<'_, [u8]>> =
            value.split(|byte| *byte == b';').take(MAX_ATTRIBUTES + 2).map(Cow::Borrowed).collect();
        if parts.len() > MAX_ATTRIBUTES + 1 {
            return None;
        }
        for part in parts.iter_mut().skip(1) {
            let rules = match attribute(part) {
                name if name.eq_ignore_ascii_case(b"domain") => &self.domains,
                name if name.eq_ignore_ascii_case(b"path") => &self.paths,
                _ => continue,
            };
            let Some(equals) = part.iter().position(|byte| *byte == b'=') else { continue };
            if let Some(new) = first(rules, exchange, field::trim(&part[equals + 1..])) {
                *part = Cow::Owned([&part[..=equals], &new].concat());
            }
        }
        let name = attribute(&parts[0]);
        if let Some(flags) = self.flags.iter().find(|flags| flags.cookies.include(name)) {
            flags.changes.iter().for_each(|change| change.apply(&mut parts));
        }
        let new = parts.join(&b';');
        (new != value).then_some(new)
    }
}

/// The name of a cookie or of an attribute.
fn attribute(part: &[u8]) -> &[u8] {
    field::trim(part.split(|byte| *byte == b'=').next().unwrap_or_default())
}

struct ReverseReplacement {
    value: RewrittenValue,
    wanted: ReplacedPart,
    /// What the path of the request has to match.
    path: Option<Arc<Regex>>,
    to: Template,
}

/// What values are compared with.
enum ReplacedPart {
    Text(Template),
    Expression(Arc<Regex>),
}

impl ReverseReplacement {
    fn applied(&self, exchange: &Exchange, value: &[u8]) -> Option<Vec<u8>> {
        match &self.wanted {
            ReplacedPart::Expression(regex) => {
                regex.captures(value).map(|found| self.replacement(exchange, Some(&found)))
            }
            ReplacedPart::Text(from) => {
                let mut wanted = Vec::new();
                from.render(exchange, &mut wanted);
                if wanted.is_empty() {
                    return None;
                }
                // First, since it costs less than the path.
                let (dot, rest) = match self.value {
                    RewrittenValue::Domain => (before_domain(value, &wanted)?, &b""[..]),
                    RewrittenValue::Redirect | RewrittenValue::Path => (&b""[..], value.strip_prefix(&*wanted)?),
                };
                let found = match &self.path {
                    Some(path) => Some(path.captures(exchange.request.client_path())?),
                    None => None,
                };
                let to = self.replacement(exchange, found.as_ref());
                let to = if self.value == RewrittenValue::Domain { to.strip_prefix(b".").unwrap_or(&to) } else { &to };
                Some([dot, to, rest].concat())
            }
        }
    }

    fn replacement(&self, exchange: &Exchange, found: Option<&Captures<'_>>) -> Vec<u8> {
        let group = |group: Option<Match<'_>>| group.map_or_else(Vec::new, |group| group.as_bytes().to_vec());
        let groups: Vec<Vec<u8>> = found.map(|found| found.iter().map(group).collect()).unwrap_or_default();
        let mut text = Vec::new();
        // A value that would be longer stays as it is, whatever follows.
        self.to.render_within(MAX_VALUE + 1, &WithGroups { exchange, groups: &groups }, &mut text);
        text
    }
}

/// What stands before the wanted domain in a value: nothing or a dot, which stays.
fn before_domain<'v>(value: &'v [u8], wanted: &[u8]) -> Option<&'v [u8]> {
    let wanted = wanted.strip_prefix(b".").unwrap_or(wanted);
    let start = usize::from(value.starts_with(b"."));
    value[start..].eq_ignore_ascii_case(wanted).then(|| &value[..start])
}

struct CompiledFlags {
    cookies: FlaggedCookies,
    changes: Box<[FlagChange]>,
}

enum FlaggedCookies {
    All,
    Named(Box<[u8]>),
    Matching(Arc<Regex>),
}

impl FlaggedCookies {
    fn include(&self, name: &[u8]) -> bool {
        match self {
            FlaggedCookies::All => true,
            FlaggedCookies::Named(wanted) => wanted.eq_ignore_ascii_case(name),
            FlaggedCookies::Matching(regex) => regex.is_match(name),
        }
    }
}

/// An attribute without a value of its own.
struct FlagChange {
    name: &'static str,
    /// As it stands between two `;`. Empty if the attribute is removed.
    text: &'static [u8],
}

impl FlagChange {
    /// Changes the parts of a cookie, of which the first is its name and value.
    fn apply(&self, parts: &mut Vec<Cow<'_, [u8]>>) {
        let is_it = |part: &[u8]| attribute(part).eq_ignore_ascii_case(self.name.as_bytes());
        if self.text.is_empty() {
            let mut index = 0;
            parts.retain(|part| {
                index += 1;
                index == 1 || !is_it(part)
            });
            return;
        }
        // Of several ones, the last counts (RFC 6265 §5.3), so all are changed.
        let mut has_it = false;
        for part in parts.iter_mut().skip(1).filter(|part| is_it(part)) {
            *part = Cow::Borrowed(self.text);
            has_it = true;
        }
        if !has_it {
            parts.push(Cow::Borrowed(self.text));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use weir_plugin::proto::Method;
    use weir_plugin::proto::h1::{Limits, Tolerance, parse_response};

    use super::*;
    use crate::testing::{build, get, refused};

    /// A response of an upstream with these fields.
    fn answered(fields: &str) -> Exchange {
        let mut exchange = get("/?line=a%0d%0aSet-Cookie:%20b&more=a%3b%20Secure&blank=%20");
        let head = format!("HTTP/1.1 302 Found\r\n{fields}Content-Length: 0\r\n\r\n");
        let limits = Limits { head_bytes: 1 << 17, ..Limits::default() };
        parse_response(head.as_bytes(), &limits, Tolerance::default(), Method::Get, &mut exchange.response)
            .expect("valid")
            .expect("complete");
        exchange.upstream.status = 302;
        exchange
    }

    fn values(exchange: &Exchange, name: &str) -> Vec<String> {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        exchange.response.head.values(name.as_bytes()).map(text).collect()
    }

    /// The values of a field with this value after the plugin.
    fn rewritten(options: &Value, name: &str, value: &str) -> String {
        let mut exchange = answered(&format!("{name}: {value}\r\n"));
        build::<ReverseRewrite>(options.clone()).on_response(&mut exchange).expect("it passes");
        values(&exchange, name).join(" + ")
    }

    #[test]
    fn redirects_lead_where_clients_can_go() {
        let options = json!({"redirects": [
            {"from": "http://app:8080/", "to": "https://$host/app/"},
            {"from": "http://$arg_none", "to": "/no-variable/"},
            {"regex": "^http://(?<zone>[a-z]+)\\.internal(/.*)?$", "ignore_case": true, "to": "https://$1.example$2"},
            {"from": "$arg_none", "to": "/nothing/"},
            {"from": "gone", "to": ""},
            {"from": "blank", "to": "$arg_blank"},
        ]});
        for (value, want) in [
            ("http://app:8080/a?b=c#d", "https://h.example/app/a?b=c#d"),
            ("http://app:8080", "/no-variable/app:8080"),
            ("HTTP://eu.Internal/a", "https://eu.example/a"),
            ("HTTP://eu.internal", "https://eu.example"),
            ("HTTP://app:8080/a", "HTTP://app:8080/a"),
            ("/a", "/a"),
            ("gone", "gone"),
            ("gone/a", "/a"),
            ("blank", "blank"),
        ] {
            assert_eq!(rewritten(&options, "Location", value), want);
        }
        assert_eq!(rewritten(&options, "Refresh", "5; URL=http://app:8080/a"), "5; URL=https://h.example/app/a");
        assert_eq!(rewritten(&options, "Refresh", "5"), "5");
        assert_eq!(rewritten(&options, "X-Location", "http://app:8080/"), "http://app:8080/");
    }

    #[test]
    fn rules_are_for_paths_whose_groups_they_know() {
        let step = build::<ReverseRewrite>(json!({
            "redirects": [
                {"from": "http://app/", "path": "(?i)^/shop/([a-z]+)(/|$)(.*)", "to": "https://$host/$1/$3/"},
                {"from": "http://app/", "to": "/others/"},
            ],
            "cookie_paths": [{"from": "/", "path": "^/SHOP/(.)", "to": "/$1/"}],
        }));
        let rewritten = |path: &str| {
            let mut exchange = get(path);
            let fields = "Location: http://app/x\r\nSet-Cookie: a=1; Path=/y\r\n";
            let head = format!("HTTP/1.1 302 Found\r\n{fields}Content-Length: 0\r\n\r\n");
            parse_response(
                head.as_bytes(),
                &Limits::default(),
                Tolerance::default(),
                Method::Get,
                &mut exchange.response,
            )
            .expect("valid")
            .expect("complete");
            exchange.upstream.status = 302;
            // What another plugin has made of the path does not count.
            exchange.request.set_path(b"/elsewhere", None).expect("a path");
            step.on_response(&mut exchange).expect("it passes");
            [values(&exchange, "location").join(" + "), values(&exchange, "set-cookie").join(" + ")]
        };
        assert_eq!(rewritten("/SHOP/eu/a?b=c"), ["https://h.example/eu/a/x", "a=1; Path=/e/y"]);
        assert_eq!(rewritten("/shop/eu"), ["https://h.example/eu//x", "a=1; Path=/y"]);
        assert_eq!(rewritten("/shop"), ["/others/x", "a=1; Path=/y"]);
    }

    #[test]
    fn attributes_of_cookies_are_changed_and_all_else_stays() {
        let options = json!({
            "cookie_domains": [{"from": ".app.internal", "to": ".$host"}, {"regex": "^x(\\d)$", "to": "y$1"}],
            "cookie_paths": [{"from": "/one/", "to": "/"}, {"regex": "^/two$", "to": "/2"}],
        });
        for (value, want) in [
            ("a=1; Domain=APP.internal; Path=/one/b", "a=1; Domain=h.example; Path=/b"),
            ("a=1;domain = .app.internal ;PATH=/two", "a=1;domain =.h.example;PATH=/2"),
            ("a=1; Domain=x7; Domain=app.internal", "a=1; Domain=y7; Domain=h.example"),
            ("path=/one/; Path=/one/; Secure", "path=/one/; Path=/; Secure"),
            ("a=Path=/one/; Path", "a=Path=/one/; Path"),
            ("a=1; Domain=b.app.internal; Path=/one", "a=1; Domain=b.app.internal; Path=/one"),
            ("a=\"; Path=/one/", "a=\"; Path=/"),
            ("", ""),
        ] {
            assert_eq!(rewritten(&options, "Set-Cookie", value), want);
        }
    }

    #[test]
    fn cookies_get_and_lose_flags() {
        let options = json!({"cookie_flags": [
            {"name": "plain", "flags": ["nosecure", "nohttponly", "nosamesite"]},
            {"regex": "^APP_", "ignore_case": true, "flags": ["samesite=strict"]},
            {"flags": ["secure", "httponly", "samesite=lax"]},
        ]});
        for (value, want) in [
            ("Plain=1; secure; Path=/; HttpOnly; samesite=none", "Plain=1; Path=/"),
            ("app_x=1; SameSite=None; SameSite", "app_x=1; SameSite=Strict; SameSite=Strict"),
            ("secure", "secure; Secure; HttpOnly; SameSite=Lax"),
            ("other=1; SECURE; Path=/", "other=1; Secure; Path=/; HttpOnly; SameSite=Lax"),
        ] {
            assert_eq!(rewritten(&options, "Set-Cookie", value), want);
        }
        let none = json!({"cookie_flags": [{"name": "a", "flags": ["samesite=none"]}]});
        assert_eq!(rewritten(&none, "Set-Cookie", "a=1"), "a=1; SameSite=None");
        assert_eq!(rewritten(&none, "Set-Cookie", "b=1"), "b=1");
    }

    #[test]
    fn values_of_clients_add_neither_lines_nor_attributes() {
        for variable in ["$arg_line", "$arg_more"] {
            let options = json!({
                "redirects": [{"from": "/", "to": variable}],
                "cookie_domains": [{"from": "b", "to": variable}],
                "cookie_paths": [{"from": "/", "to": variable}],
            });
            let cookie = "a=1; Domain=b; Path=/c";
            assert_eq!(rewritten(&options, "Set-Cookie", cookie), cookie, "{variable}");
            let location = rewritten(&options, "Location", "/d");
            let want = if variable == "$arg_line" { "/d" } else { "a; Secured" };
            assert_eq!(location, want, "{variable}");
        }
    }

    #[test]
    fn values_that_are_too_long_and_cookies_with_too_many_attributes_pass_unchanged() {
        let options = json!({
            "redirects": [{"from": "/", "to": "/to/"}],
            "cookie_paths": [{"from": "/", "to": "/to/"}],
        });
        let long = |length: usize| format!("/{}", "a".repeat(length - 1));
        for (length, is_changed) in [(MAX_VALUE - 3, true), (MAX_VALUE - 2, false), (MAX_VALUE + 1, false)] {
            let value = long(length);
            let want = if is_changed { format!("/to{value}") } else { value.clone() };
            assert!(rewritten(&options, "Location", &value) == want, "{length}");
        }
        let cookie = |attributes: usize| format!("a=1{}; Path=/", "; b".repeat(attributes - 1));
        let (most, more) = (cookie(MAX_ATTRIBUTES), cookie(MAX_ATTRIBUTES + 1));
        assert_eq!(rewritten(&options, "Set-Cookie", &most), format!("{most}to/"));
        assert_eq!(rewritten(&options, "Set-Cookie", &more), more);
    }

    #[test]
    fn only_what_the_upstream_has_sent_is_changed() {
        let step = build::<ReverseRewrite>(json!({
            "redirects": [{"from": "/", "to": "/to/"}],
            "cookie_paths": [{"from": "/", "to": "/to/"}],
        }));
        let mut exchange = answered("Set-Cookie: a=1; Path=/\r\nSet-Cookie: b=2\r\nSET-COOKIE: c=3; Path=/\r\n");
        exchange.response.head.add(b"Set-Cookie", b"own=4; Path=/").expect("valid");
        step.on_response(&mut exchange).expect("it passes");
        assert_eq!(values(&exchange, "set-cookie"), ["a=1; Path=/to/", "b=2", "c=3; Path=/to/", "own=4; Path=/"]);
        let mut exchange = get("/");
        let _ = exchange.respond(302, "text/plain", b"");
        exchange.response.head.add(b"Location", b"/a").expect("valid");
        step.on_response(&mut exchange).expect("it passes");
        assert_eq!(values(&exchange, "location"), ["/a"]);
        assert!(step.phases().first_in_responses && !step.phases().response_body);
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        let rule = |rule: Value| json!({"redirects": [{"from": "/", "to": "/"}, rule]});
        let flags = |rule: Value| json!({"cookie_flags": [rule]});
        for (options, want) in [
            (rule(json!({"to": "/"})), "redirects[1]: needs either `from` or `regex`"),
            (rule(json!({"from": "/", "regex": "/", "to": "/"})), "redirects[1]: needs either `from` or `regex`"),
            (rule(json!({"from": "", "to": "/"})), "redirects[1].from: "),
            (rule(json!({"from": "/", "to": "a\r\nb"})), "redirects[1].to: has a character"),
            (rule(json!({"regex": "(", "to": "/"})), "redirects[1].regex: is not a regular expression"),
            (rule(json!({"from": "/", "to": "/", "ignore_case": true})), "redirects[1].ignore_case: is for `regex`"),
            (rule(json!({"regex": "/", "to": "/", "path": "/"})), "redirects[1].path: is for `from`"),
            (rule(json!({"from": "/", "to": "/", "path": "("})), "redirects[1].path: is not a regular expression"),
            (json!({"cookie_paths": [{"from": "/", "to": "/; Secure"}]}), "cookie_paths[0].to: has a character"),
            (flags(json!({"flags": ["secure", "nosecure"]})), "cookie_flags[0].flags: has two flags for `Secure`"),
            (flags(json!({"name": "a", "regex": "b", "flags": ["secure"]})), "cookie_flags[0]: has both"),
            (flags(json!({"flags": ["Secure"]})), "cookie_flags[0].flags[0]: "),
            (flags(json!({"flags": []})), "cookie_flags[0].flags: "),
        ] {
            let error = refused::<ReverseRewrite>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
