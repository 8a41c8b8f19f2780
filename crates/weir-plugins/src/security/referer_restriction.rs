use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::authority::HostPort;
use weir_plugin::{Build, CollectAll, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;

/// Allows or refuses requests by the host in their `Referer`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RefererRestriction {
    /// Allows requests without a `Referer`, or whose `Referer` has no host.
    #[serde(default)]
    bypass_missing: bool,
    /// Hosts that are allowed; all others are refused. `*.example.com` matches every subdomain of `example.com`, `*`
    /// matches every host.
    #[schemars(length(min = 1))]
    whitelist: Option<Vec<String>>,
    /// Hosts that are refused; all others are allowed.
    #[schemars(length(min = 1))]
    blacklist: Option<Vec<String>>,
    /// The message in the body of a refusal, whose status is 403: `{"message":"..."}`.
    #[serde(default = "default_message")]
    #[schemars(length(min = 1, max = 1024))]
    message: String,
}

fn default_message() -> String {
    "Your referer host is not allowed".to_owned()
}

impl Definition for RefererRestriction {
    const NAME: &'static str = "referer-restriction";
    const PRIORITY: i32 = 2990;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"referer-restriction: { whitelist: [example.com, "*.example.com"] }"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let (texts, path, allowed) = match (self.whitelist, self.blacklist) {
            (Some(texts), None) => (texts, "whitelist", true),
            (None, Some(texts)) => (texts, "blacklist", false),
            (allowed, blocked) => {
                let options = [("whitelist", allowed.is_some()), ("blacklist", blocked.is_some())];
                return Err(ConfigError::one_of(&options));
            }
        };
        let host = |(index, text): (usize, &String)| {
            HostPattern::compile(text).ok_or_else(|| {
                let problem = format!("`{text}` is not a host; write as example.com or *.example.com");
                ConfigError::new(format!("{path}[{index}]"), problem)
            })
        };
        Ok(Arc::new(RefererAccessList {
            hosts: texts.iter().enumerate().map(host).collect_all()?,
            allowed,
            bypass_missing: self.bypass_missing,
            refusal: RefusalResponse::new(403, "message", &self.message),
        }))
    }
}

/// A host, or the suffix that a host must have.
enum HostPattern {
    Whole(Box<[u8]>),
    End(Box<[u8]>),
}

impl HostPattern {
    fn compile(text: &str) -> Option<HostPattern> {
        let lower = text.to_ascii_lowercase();
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
        let rest = lower.strip_prefix('*').unwrap_or(&lower);
        if lower.is_empty() || !rest.bytes().all(allowed) {
            return None;
        }
        Some(match lower.starts_with('*') {
            true => HostPattern::End(rest.as_bytes().into()),
            false => HostPattern::Whole(rest.as_bytes().into()),
        })
    }

    fn matches(&self, host: &[u8]) -> bool {
        match self {
            HostPattern::Whole(whole) => host == &**whole,
            HostPattern::End(end) => host.ends_with(end),
        }
    }
}

struct RefererAccessList {
    hosts: Box<[HostPattern]>,
    /// Whether these hosts are allowed, and others refused, or the reverse.
    allowed: bool,
    bypass_missing: bool,
    refusal: RefusalResponse,
}

impl Plugin for RefererAccessList {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        let passes = match exchange.request.head.value(b"referer").and_then(host_of) {
            None => self.bypass_missing,
            Some(host) => self.hosts.iter().any(|pattern| pattern.matches(&host)) == self.allowed,
        };
        if passes { Ok(Flow::Continue) } else { Err(self.refusal.send(exchange)) }
    }
}

/// The host of an absolute URL (RFC 3986 §3.2), in lower case, without user information.
fn host_of(reference: &[u8]) -> Option<Vec<u8>> {
    let scheme_end = reference.windows(3).position(|window| window == b"://")?;
    let rest = &reference[scheme_end + 3..];
    let end = rest.iter().position(|byte| b"/?#\\".contains(byte)).unwrap_or(rest.len());
    let authority = rest[..end].rsplit(|&byte| byte == b'@').next()?;
    Some(HostPort::parse(authority).ok()?.host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, refused};

    fn passes(options: Value, referer: &str) -> bool {
        let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\nReferer: {referer}"));
        on_request(&build::<RefererRestriction>(options), &mut exchange).is_ok()
    }

    #[test]
    fn lists_let_through_and_refuse() {
        let list = json!({"whitelist": ["a.com", "*.b.com"]});
        for (referer, want) in [
            ("http://a.com/x", true),
            ("https://A.com:8443", true),
            ("http://sub.b.com?x", true),
            ("http://b.com/", false),
            ("http://evil.com/a.com", false),
            ("http://a.com@evil.com/", false),
            ("http://evil.com#@a.com", false),
            ("http://evil.com\\@a.com/", false),
            ("a.com", false),
        ] {
            assert_eq!(passes(list.clone(), referer), want, "{referer}");
        }
        assert!(!passes(json!({"blacklist": ["a.com"]}), "http://a.com/"));
        assert!(passes(json!({"blacklist": ["a.com"]}), "http://b.com/"));
        assert!(passes(json!({"whitelist": ["*"]}), "http://b.com/"));
    }

    #[test]
    fn a_missing_referer_is_refused_unless_told() {
        let mut exchange = get("/");
        let step = build::<RefererRestriction>(json!({"whitelist": ["a.com"]}));
        assert_eq!(on_request(&step, &mut exchange), Err(Stop::Answered));
        assert_eq!(exchange.response.status, 403);
        assert_eq!(body(&exchange), "{\"message\":\"Your referer host is not allowed\"}\n");
        let step = build::<RefererRestriction>(json!({"whitelist": ["a.com"], "bypass_missing": true}));
        assert_eq!(on_request(&step, &mut exchange), Ok(()));
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"bypass_missing": true}), "needs one of"),
            (json!({"whitelist": []}), "whitelist: is empty"),
            (json!({"whitelist": ["a.com", "http://b.com/"]}), "whitelist[1]: `http://b.com/` is not a host"),
        ] {
            let error = refused::<RefererRestriction>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
