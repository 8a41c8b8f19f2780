//! `persistence` of an upstream, which APISIX does not have.

use std::time::Duration;

use weir_gateway::snapshot::{Endpoint, WhenEndpointGone};

use crate::keys;
use crate::keys::kinds::{Flag, Or, ParsedText, Text, Time, Words, any_text, flag, text, time, words};
use crate::text::read::{MapReader, NodeReader, shortened};

/// Session persistence: how clients stay with their endpoint, as written.
#[derive(Clone, PartialEq, Eq)]
pub enum PersistenceSpec {
    ClientIp,
    Cookie { name: Box<str>, attributes: Box<str>, secret: Option<Box<str>>, when_gone: WhenEndpointGone },
    AppCookie { name: Box<str>, idle: Duration, when_gone: WhenEndpointGone },
}

/// Without the secret.
impl std::fmt::Debug for PersistenceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PersistenceSpec::ClientIp => "ClientIp",
            PersistenceSpec::Cookie { .. } => "Cookie",
            PersistenceSpec::AppCookie { .. } => "AppCookie",
        })
    }
}

impl PersistenceSpec {
    /// `None` for `client_ip`, which is implemented by the balancer.
    pub fn compile(&self, endpoints: &[Endpoint]) -> Option<weir_gateway::snapshot::Persistence> {
        use weir_gateway::snapshot::Persistence as Compiled;
        match self {
            PersistenceSpec::ClientIp => None,
            PersistenceSpec::Cookie { name, attributes, secret, when_gone } => {
                Some(Compiled::gateway_cookie(name, attributes, secret.as_deref(), *when_gone, endpoints))
            }
            PersistenceSpec::AppCookie { name, idle, when_gone } => {
                Some(Compiled::application_cookie(name, *idle, *when_gone))
            }
        }
    }
}

/// `type` of `persistence`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum PersistenceType {
    None,
    ClientIp,
    Cookie,
    AppCookie,
}

const TYPES: &[(&str, PersistenceType)] = &[
    ("none", PersistenceType::None),
    ("client_ip", PersistenceType::ClientIp),
    ("cookie", PersistenceType::Cookie),
    ("app_cookie", PersistenceType::AppCookie),
];
const WHEN_GONE: &[(&str, WhenEndpointGone)] =
    &[("another", WhenEndpointGone::Another), ("refuse", WhenEndpointGone::Refuse)];
const SAME_SITE: &[(&str, &str)] = &[("Lax", "Lax"), ("Strict", "Strict"), ("None", "None")];

const DEFAULT_NAME: &str = "weir_endpoint";
/// The default session time-out of most application servers.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// In characters; shorter secrets could be guessed.
const MIN_SECRET: usize = 16;

keys! {
    /// How clients stay with their endpoint.
    pub(super) static PERSISTENCE: PersistenceKeys = "persistence";

    /// By the address of the client (`client_ip`), by a cookie that Weir sets (`cookie`), or by one of the application (`app_cookie`).
    r#type: Words<PersistenceType> = words(TYPES), own(), required("add `type: cookie`");
    /// The name of the cookie. For `app_cookie` there is no default.
    name: ParsedText<Box<str>> = any_text().pattern("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$").parsed(cookie_name), own(),
        only_if("type", BOTH), absent("`weir_endpoint`"), example("JSESSIONID");
    /// The attribute `Path` of the cookie.
    path: ParsedText<Box<str>> = any_text().parsed(attribute), own(), only_if("type", COOKIE), absent("`/`");
    /// The attribute `Domain` of the cookie.
    domain: ParsedText<Box<str>> = any_text().parsed(attribute), own(), only_if("type", COOKIE), absent("none"),
        example("example.com");
    /// How long browsers keep the cookie.
    max_age: Time = time(), own(), only_if("type", COOKIE), absent("until the browser is closed"), example("1d");
    /// Whether browsers send the cookie over TLS only.
    secure: Or<Flag> = flag().or(false), own(), only_if("type", COOKIE);
    /// Whether the cookie is hidden from scripts.
    http_only: Or<Flag> = flag().or(true), own(), only_if("type", COOKIE);
    /// The attribute `SameSite` of the cookie.
    same_site: Or<Words<&'static str>> = words(SAME_SITE).or("Lax"), own(), only_if("type", COOKIE);
    /// The key that values of the cookie are made with. Nodes with the same secret accept one another's cookies, also after a restart.
    secret: Text = text(MIN_SECRET, 1_024), own(), secret(), only_if("type", COOKIE), absent("random, new at every start");
    /// How long the gateway remembers a cookie that no request carries.
    idle: Or<Time> = time().or(IDLE), own(), only_if("type", &["app_cookie"]);
    /// What becomes of a request whose endpoint is out of use: it goes to `another`, or is refused with 503.
    when_gone: Or<Words<WhenEndpointGone>> = words(WHEN_GONE).or(WhenEndpointGone::Another), own(), only_if("type", BOTH);
}

const COOKIE: &[&str] = &["cookie"];
const BOTH: &[&str] = &["cookie", "app_cookie"];

pub(super) fn read(fields: &MapReader) -> Option<PersistenceSpec> {
    let kind = fields.read(&PERSISTENCE.r#type)?;
    let name = fields.read(&PERSISTENCE.name);
    let when_gone = fields.value(&PERSISTENCE.when_gone);
    match kind {
        PersistenceType::None => None,
        PersistenceType::ClientIp => Some(PersistenceSpec::ClientIp),
        PersistenceType::AppCookie => {
            if !fields.has(&PERSISTENCE.name) {
                let advice = "add the name of the application's cookie: `name: JSESSIONID`";
                fields.at().report_advising("has no `name`", advice);
            }
            let idle = fields.value(&PERSISTENCE.idle);
            Some(PersistenceSpec::AppCookie { name: name?, idle, when_gone })
        }
        PersistenceType::Cookie => {
            let secret = fields.read(&PERSISTENCE.secret);
            let name = name.unwrap_or(DEFAULT_NAME.into());
            Some(PersistenceSpec::Cookie { name, attributes: attributes(fields).into(), secret, when_gone })
        }
    }
}

/// The attributes that follow the value in `Set-Cookie`.
fn attributes(fields: &MapReader) -> String {
    let (secure, http_only) = (fields.value(&PERSISTENCE.secure), fields.value(&PERSISTENCE.http_only));
    let same_site = fields.value(&PERSISTENCE.same_site);
    if same_site == "None" && !secure {
        let problem = "browsers accept `same_site: None` only with `secure: true`";
        fields.at().report_advising(problem, "add `secure: true`");
    }
    let path = fields.read(&PERSISTENCE.path);
    let mut attributes = format!("; Path={}", path.as_deref().unwrap_or("/"));
    if let Some(domain) = fields.read(&PERSISTENCE.domain) {
        attributes += &format!("; Domain={domain}");
    }
    if let Some(age) = fields.read(&PERSISTENCE.max_age) {
        attributes += &format!("; Max-Age={}", age.as_secs().max(1));
    }
    attributes += if http_only { "; HttpOnly" } else { "" };
    attributes += if secure { "; Secure" } else { "" };
    attributes += &format!("; SameSite={same_site}");
    attributes
}

/// A cookie name is a token (RFC 6265 §4.1.1, RFC 9110 §5.6.2).
fn cookie_name(at: &NodeReader, name: &str) -> Option<Box<str>> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        at.report_advising(format!("`{}` is not a cookie name", shortened(name)), "use letters, digits, `-` and `_`");
        return None;
    }
    Some(name.into())
}

fn attribute(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if text.is_empty() || text.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b';') {
        at.report_advising(format!("`{}` is not allowed in a cookie", shortened(text)), "leave out `;` and spaces");
        return None;
    }
    Some(text.into())
}
