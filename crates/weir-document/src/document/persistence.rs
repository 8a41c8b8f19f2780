//! `persistence` of an upstream, which APISIX does not have.

use std::time::Duration;

use weir_gateway::snapshot::{Endpoint, WhenEndpointGone};

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

#[derive(Clone, Copy)]
enum PersistenceType {
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

pub(super) fn read(at: &NodeReader) -> Option<PersistenceSpec> {
    let any = at.fields(&[
        "type",
        "name",
        "path",
        "domain",
        "max_age",
        "secure",
        "http_only",
        "same_site",
        "secret",
        "idle",
        "when_gone",
    ])?;
    let Some(kind_at) = any.get("type") else {
        at.report_advising("has no `type`", "add `type: cookie`");
        return None;
    };
    let kind = kind_at.choice(TYPES)?;
    let own: &[&str] = match kind {
        PersistenceType::None | PersistenceType::ClientIp => &["type"],
        PersistenceType::Cookie => {
            &["type", "name", "path", "domain", "max_age", "secure", "http_only", "same_site", "secret", "when_gone"]
        }
        PersistenceType::AppCookie => &["type", "name", "idle", "when_gone"],
    };
    let fields = at.fields(own)?;
    let name = fields.get("name").and_then(|at| cookie_name(&at));
    let when_gone = fields.get("when_gone").and_then(|at| at.choice(WHEN_GONE)).unwrap_or_default();
    match kind {
        PersistenceType::None => None,
        PersistenceType::ClientIp => Some(PersistenceSpec::ClientIp),
        PersistenceType::AppCookie => {
            if !fields.has("name") {
                at.report_advising("has no `name`", "add the name of the application's cookie: `name: JSESSIONID`");
            }
            let idle = fields.get("idle").and_then(|at| at.duration()).unwrap_or(IDLE);
            Some(PersistenceSpec::AppCookie { name: name?, idle, when_gone })
        }
        PersistenceType::Cookie => {
            let secret = fields.get("secret").and_then(|at| at.text_of(MIN_SECRET..=1_024)).map(Box::from);
            let name = name.unwrap_or(DEFAULT_NAME.into());
            Some(PersistenceSpec::Cookie { name, attributes: attributes(at, &fields).into(), secret, when_gone })
        }
    }
}

/// The attributes that follow the value in `Set-Cookie`.
fn attributes(at: &NodeReader, fields: &MapReader) -> String {
    let part = |key: &str| fields.get(key).and_then(|at| attribute(&at));
    let secure = fields.get("secure").and_then(|at| at.boolean()).unwrap_or(false);
    let http_only = fields.get("http_only").and_then(|at| at.boolean()).unwrap_or(true);
    let same_site = fields.get("same_site").and_then(|at| at.choice(SAME_SITE)).unwrap_or("Lax");
    if same_site == "None" && !secure {
        at.report_advising("browsers accept `same_site: None` only with `secure: true`", "add `secure: true`");
    }
    let mut attributes = format!("; Path={}", part("path").unwrap_or("/"));
    if let Some(domain) = part("domain") {
        attributes += &format!("; Domain={domain}");
    }
    if let Some(age) = fields.get("max_age").and_then(|at| at.duration()) {
        attributes += &format!("; Max-Age={}", age.as_secs().max(1));
    }
    attributes += if http_only { "; HttpOnly" } else { "" };
    attributes += if secure { "; Secure" } else { "" };
    attributes += &format!("; SameSite={same_site}");
    attributes
}

/// A cookie name is a token (RFC 6265 §4.1.1, RFC 9110 §5.6.2).
fn cookie_name(at: &NodeReader) -> Option<Box<str>> {
    let name = at.text()?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        at.report_advising(format!("`{}` is not a cookie name", shortened(name)), "use letters, digits, `-` and `_`");
        return None;
    }
    Some(name.into())
}

fn attribute<'a>(at: &NodeReader<'a>) -> Option<&'a str> {
    let text = at.text()?;
    if text.is_empty() || text.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b';') {
        at.report_advising(format!("`{}` is not allowed in a cookie", shortened(text)), "leave out `;` and spaces");
        return None;
    }
    Some(text)
}
