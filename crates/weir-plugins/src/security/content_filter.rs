use std::iter;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::proto::Head;
use weir_plugin::{AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

mod rule;
#[cfg(test)]
mod tests;

use rule::{ContentRejection, ContentRule, FilterAction, RuleTarget, pass_arguments, pass_fields};

use crate::answer::RefusalResponse;
use crate::content::coding::Opaque;
use crate::content::json;
use crate::content::streams::StreamHandling;
use crate::content::xml;
use crate::content::{DIGESTS, coding};
use crate::options::headers::header_name;
use crate::options::pattern;

/// Matches regular expressions against header fields, query arguments and bodies of requests and responses, and blocks,
/// requires or masks what matches. In a body, a rule applies to the values at a JSON path or an XML path, or to the raw
/// text.
///
/// Matching takes time in proportion to the length of the text (there is no backtracking). Compressed bodies (gzip, br)
/// are decoded before matching. A request whose body cannot be decoded or parsed is refused. A rule with a JSON path
/// applies only to responses with a JSON `Content-Type`, a rule with an XML path only to responses with an XML
/// `Content-Type`. A rule without a path applies to every response.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentFilter {
    /// The rules, in the order in which they are applied.
    #[schemars(length(min = 1))]
    rules: Vec<ContentRuleOptions>,
    /// The largest body that rules can read, in bytes after decoding. A larger request is refused with 413, a larger
    /// response with 502.
    #[serde(default = "default_max_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_body_size: u64,
    /// The status of a refused request, 400 to 599. A refused response is replaced by a response with the status 502.
    #[serde(default = "default_rejected_code")]
    #[schemars(range(min = 400, max = 599))]
    rejected_code: u16,
    /// The text of a refusal, in `{"message": ...}`.
    #[serde(default = "default_message")]
    message: String,
    /// What becomes of a stream (`text/event-stream`, `multipart/x-mixed-replace`) that rules for the body of responses would hold
    /// back until its end: `refuse` or `pass`.
    #[serde(default)]
    streams: StreamHandling,
}

/// What is looked for, where, and what is done about it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ContentRuleOptions {
    /// Whether the rule applies to the `request` or the `response`.
    #[serde(default)]
    on: RuleDirection,
    /// The part of the message that is matched: `header`, `query` (requests only) or `body`.
    #[serde(rename = "in")]
    place: TextLocation,
    /// The name of a header field or a query argument. Without it, the rule applies to all of them.
    name: Option<String>,
    /// A path in the body; everything below this path is matched too. Examples for JSON: `$.card.number`,
    /// `$.items[*].id`, `$..password`; for XML: `/order/name`, `//password`, `//item/@id`. Without it, the pattern is
    /// matched against the raw body.
    path: Option<String>,
    /// A regular expression, without look-around and back-references.
    pattern: String,
    /// Ignores case.
    #[serde(default)]
    ignore_case: bool,
    /// `block` refuses a message if the pattern matches, `allow` refuses a message if the pattern does not match,
    /// `mask` replaces the matches.
    action: FilterAction,
    /// The text that replaces a match; `$1`, `$2`... are the capture groups of the pattern.
    #[serde(default = "default_replacement")]
    replacement: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum RuleDirection {
    #[default]
    Request,
    Response,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum TextLocation {
    Header,
    Query,
    Body,
}

fn default_max_body_size() -> u64 {
    1 << 20
}

fn default_rejected_code() -> u16 {
    403
}

fn default_message() -> String {
    "Not allowed".to_owned()
}

fn default_replacement() -> String {
    "***".to_owned()
}

impl Definition for ContentFilter {
    const NAME: &'static str = "content-filter";
    const PRIORITY: i32 = 2850;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"content-filter:
  rules:
    - { in: query, pattern: "union\\s+select", ignore_case: true, action: block }
    - { in: header, name: X-Tenant, pattern: "^[a-z]{1,16}$", action: allow }
    - { on: response, in: body, path: $..card, pattern: "\\d{12}(\\d{4})", action: mask, replacement: "****$1" }"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let rule = |(index, options): (usize, ContentRuleOptions)| options.compile(&format!("rules[{index}]"));
        let rules: Vec<_> = self.rules.into_iter().enumerate().map(rule).collect_all()?;
        let (requests, responses) = rules.into_iter().partition(|(side, _)| *side == RuleDirection::Request);
        let of = |rules: Vec<(RuleDirection, ContentRule)>, status| ContentRules {
            rules: rules.into_iter().map(|(_, rule)| rule).collect(),
            limit: self.max_body_size,
            refusal: RefusalResponse::new(status, "message", &self.message),
        };
        Ok(Arc::new(ContentFilterRules {
            requests: of(requests, self.rejected_code),
            responses: of(responses, 502),
            streams: self.streams,
        }))
    }
}

impl ContentRuleOptions {
    fn compile(self, path: &str) -> Result<(RuleDirection, ContentRule), ConfigError> {
        let regex = pattern::compile(&self.pattern, self.ignore_case, &format!("{path}.pattern"));
        let (place, regex) = (self.target(path), regex).all_of()?;
        Ok((self.on, ContentRule { place, regex, action: self.action, replacement: self.replacement.into_bytes() }))
    }

    fn target(&self, path: &str) -> Result<RuleTarget, ConfigError> {
        let wrong = |option: &str, problem: &str| Err(ConfigError::new(format!("{path}.{option}"), problem));
        if self.name.is_some() && self.place == TextLocation::Body {
            return wrong("name", "cannot be used with `in: body`; use `path`");
        }
        if self.path.is_some() && self.place != TextLocation::Body {
            return wrong("path", "can be used with `in: body` only");
        }
        if self.place == TextLocation::Query && self.on == RuleDirection::Response {
            return wrong("in", "a response has no query");
        }
        let place = match (self.place, &self.path) {
            (TextLocation::Header, _) => {
                let name = match &self.name {
                    Some(name) => Some(header_name(name, &format!("{path}.name"))?.into()),
                    None if self.action == FilterAction::Mask => return wrong("name", "is needed to mask a field"),
                    None => None,
                };
                RuleTarget::Fields(name)
            }
            (TextLocation::Query, _) => RuleTarget::Arguments(self.name.as_ref().map(|name| name.as_bytes().into())),
            (TextLocation::Body, None) => RuleTarget::Raw,
            (TextLocation::Body, Some(text)) => {
                let found = match text.starts_with('$') {
                    true => json::path::JsonPath::parse(text).map(RuleTarget::Json),
                    false => xml::XmlPath::parse(text).map(RuleTarget::Xml),
                };
                let Some(place) = found else {
                    return wrong("path", "is neither a JSON path such as `$.a[*].b`, nor an XML path such as `/a/b`");
                };
                place
            }
        };
        Ok(place)
    }
}

struct ContentFilterRules {
    requests: ContentRules,
    responses: ContentRules,
    streams: StreamHandling,
}

/// The rules for requests, or for responses.
struct ContentRules {
    rules: Box<[ContentRule]>,
    limit: u64,
    refusal: RefusalResponse,
}

impl ContentRules {
    fn look_into_bodies(&self) -> bool {
        self.rules.iter().any(ContentRule::is_for_bodies)
    }

    /// Applies the rules for fields and arguments. `false` refuses.
    fn pass_head(&self, exchange: &mut Exchange, side: RuleDirection) -> Result<bool, Stop> {
        for rule in &self.rules {
            let passes = match &rule.place {
                RuleTarget::Fields(name) => {
                    let head = match side {
                        RuleDirection::Request => &mut exchange.request.head,
                        RuleDirection::Response => &mut exchange.response.head,
                    };
                    pass_fields(rule, name.as_deref(), head)?
                }
                RuleTarget::Arguments(name) => pass_arguments(rule, name.as_deref(), exchange)?,
                _ => true,
            };
            if !passes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The changed content, without its coding; `None` if it stays as it is.
    fn pass_body(&self, head: &Head, body: &[u8], side: RuleDirection) -> Result<Option<Vec<u8>>, ContentRejection> {
        let plain = coding::plain(head, body, self.limit).map_err(ContentRejection::Opaque)?;
        let mut content: Option<Vec<u8>> = None;
        for rule in self.rules.iter().filter(|rule| side == RuleDirection::Request || rule.suits(head)) {
            if let Some(new) = rule.apply(content.as_deref().unwrap_or(&plain))? {
                content = Some(new);
            }
        }
        Ok(content)
    }
}

/// Fields that describe the content before the change.
fn of_the_content() -> impl Iterator<Item = &'static [u8]> {
    iter::once(&b"Content-Encoding"[..]).chain(DIGESTS)
}

impl Plugin for ContentFilterRules {
    fn phases(&self) -> Phases {
        let mut phases = Phases::REQUEST;
        if self.requests.look_into_bodies() {
            phases = phases.and(Phases::REQUEST_BODY);
        }
        if !self.responses.rules.is_empty() {
            phases = phases.and(Phases::RESPONSE);
        }
        if self.responses.look_into_bodies() {
            phases = phases.and(Phases::RESPONSE_BODY);
        }
        phases
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if !self.requests.pass_head(exchange, RuleDirection::Request)? {
            return Err(self.requests.refusal.send(exchange));
        }
        if self.responses.look_into_bodies() {
            coding::ask_for_plain(exchange);
        }
        Ok(Flow::Continue)
    }

    fn whole_request(&self, _: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(Some(self.requests.limit))
    }

    fn on_request_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<Flow<'static>, Stop> {
        if body.is_empty() {
            return Ok(Flow::Continue);
        }
        match self.requests.pass_body(&exchange.request.head, body, RuleDirection::Request) {
            Ok(None) => Ok(Flow::Continue),
            Ok(Some(content)) => {
                *body = content;
                of_the_content().for_each(|name| _ = exchange.request.head.remove(name));
                Ok(Flow::Continue)
            }
            Err(ContentRejection::Refused) => Err(self.requests.refusal.send(exchange)),
            Err(ContentRejection::Unreadable) => Err(Stop::Respond(400)),
            Err(ContentRejection::Opaque(opaque)) => Err(Stop::Respond(opaque.status())),
        }
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        match self.responses.pass_head(exchange, RuleDirection::Response)? {
            true => Ok(()),
            false => Err(self.responses.refusal.send(exchange)),
        }
    }

    fn whole_response(&self, exchange: &mut Exchange) -> Result<Option<u64>, Stop> {
        let mut rules = self.responses.rules.iter().filter(|rule| rule.is_for_bodies());
        match rules.any(|rule| rule.suits(&exchange.response.head)) {
            true => self.streams.whole(ContentFilter::NAME, exchange, self.responses.limit),
            false => Ok(None),
        }
    }

    fn on_response_body(&self, exchange: &mut Exchange, body: &mut Vec<u8>) -> Result<(), Stop> {
        if body.is_empty() {
            return Ok(());
        }
        match self.responses.pass_body(&exchange.response.head, body, RuleDirection::Response) {
            Ok(None) => Ok(()),
            Ok(Some(content)) => {
                *body = content;
                for name in of_the_content().chain([&b"ETag"[..], b"Accept-Ranges"]) {
                    exchange.response.head.remove(name);
                }
                Ok(())
            }
            Err(ContentRejection::Opaque(Opaque::TooLarge)) => Err(Stop::ResponseTooLarge),
            Err(_) => Err(self.responses.refusal.send(exchange)),
        }
    }
}
