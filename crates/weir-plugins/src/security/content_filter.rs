use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::proto::Head;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

mod rule;
#[cfg(test)]
mod tests;

use rule::{ContentRejection, ContentRule, FilterAction, RuleTarget, pass_arguments, pass_fields};

use crate::answer::RefusalResponse;
use crate::content::coding;
use crate::content::json;
use crate::content::xml;
use crate::options::headers::header_name;
use crate::options::pattern;

/// Looks for patterns in requests and responses: in fields, arguments, and bodies, there also by JSON path, by XML path
/// or as they are. What is found is refused, is the only thing allowed, or is masked.
///
/// Patterns take time in proportion to what they look at, and no more, whatever the text. Content that is coded (gzip,
/// br) is decoded to be looked at. A request whose body cannot be looked at is refused; a response is looked at where it
/// says that it is JSON or XML, or by rules without a path.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContentFilter {
    /// The rules, in the order in which they are applied.
    #[schemars(length(min = 1))]
    rules: Vec<ContentRuleOptions>,
    /// The largest body looked at, in bytes, plain. A larger request is refused with 413, a larger response with 502.
    #[serde(default = "one_mebibyte")]
    #[schemars(range(min = 1))]
    max_body_size: u64,
    /// The status of a refusal, 400 to 599. A response is refused with 502.
    #[serde(default = "forbidden")]
    #[schemars(range(min = 400, max = 599))]
    rejected_code: u16,
    /// The text of a refusal, in `{"message": ...}`.
    #[serde(default = "default_message")]
    message: String,
}

/// What is looked for, where, and what is done about it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ContentRuleOptions {
    /// `request` or `response`.
    #[serde(default)]
    on: RuleDirection,
    /// `header`, `query` (of requests) or `body`.
    #[serde(rename = "in")]
    place: TextLocation,
    /// The name of a field or an argument. Without it all are looked at.
    name: Option<String>,
    /// A place in the body, and what is within it: in JSON as `$.card.number`, `$.items[*].id`, `$..password`; in XML as
    /// `/order/name`, `//password`, `//item/@id`. Without it the whole body is looked at, as it is.
    path: Option<String>,
    /// A regular expression, without look-around and back-references.
    pattern: String,
    /// Letters count in both cases.
    #[serde(default)]
    ignore_case: bool,
    /// `block` refuses what matches, `allow` refuses what does not, `mask` replaces what matches.
    action: FilterAction,
    /// What matches are replaced by; `$1`, `$2`... are groups of the pattern.
    #[serde(default = "stars")]
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

fn one_mebibyte() -> u64 {
    1 << 20
}

fn forbidden() -> u16 {
    403
}

fn default_message() -> String {
    "Not allowed".to_owned()
}

fn stars() -> String {
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
        if self.rules.is_empty() {
            return Err(ConfigError::new("rules", "is empty"));
        }
        if self.max_body_size == 0 {
            return Err(ConfigError::new("max_body_size", "must be at least 1"));
        }
        if !(400..=599).contains(&self.rejected_code) {
            return Err(ConfigError::new("rejected_code", "must be from 400 to 599"));
        }
        let rule = |(index, options): (usize, ContentRuleOptions)| options.compile(&format!("rules[{index}]"));
        let rules: Vec<_> = self.rules.into_iter().enumerate().map(rule).collect::<Result<_, _>>()?;
        let (requests, responses) = rules.into_iter().partition(|(side, _)| *side == RuleDirection::Request);
        let of = |rules: Vec<(RuleDirection, ContentRule)>, status| ContentRules {
            rules: rules.into_iter().map(|(_, rule)| rule).collect(),
            limit: self.max_body_size,
            refusal: RefusalResponse::new(status, "message", &self.message),
        };
        Ok(Arc::new(ContentFilterRules { requests: of(requests, self.rejected_code), responses: of(responses, 502) }))
    }
}

impl ContentRuleOptions {
    fn compile(self, path: &str) -> Result<(RuleDirection, ContentRule), ConfigError> {
        let wrong = |option: &str, problem: &str| Err(ConfigError::new(format!("{path}.{option}"), problem));
        if self.name.is_some() && self.place == TextLocation::Body {
            return wrong("name", "names nothing in a body; use `path`");
        }
        if self.path.is_some() && self.place != TextLocation::Body {
            return wrong("path", "leads into bodies only");
        }
        if self.place == TextLocation::Query && self.on == RuleDirection::Response {
            return wrong("in", "a response has no query");
        }
        let place = match (self.place, self.path) {
            (TextLocation::Header, _) => {
                let name = match &self.name {
                    Some(name) => Some(header_name(name, &format!("{path}.name"))?.into()),
                    None if self.action == FilterAction::Mask => return wrong("name", "is needed to mask a field"),
                    None => None,
                };
                RuleTarget::Fields(name)
            }
            (TextLocation::Query, _) => RuleTarget::Arguments(self.name.map(|name| name.into_bytes().into())),
            (TextLocation::Body, None) => RuleTarget::Raw,
            (TextLocation::Body, Some(text)) => {
                let found = match text.starts_with('$') {
                    true => json::path::JsonPath::parse(&text).map(RuleTarget::Json),
                    false => xml::XmlPath::parse(&text).map(RuleTarget::Xml),
                };
                let Some(place) = found else {
                    return wrong("path", "is neither a JSON path such as `$.a[*].b`, nor an XML path such as `/a/b`");
                };
                place
            }
        };
        let regex = pattern::compile(&self.pattern, self.ignore_case, &format!("{path}.pattern"))?;
        Ok((self.on, ContentRule { place, regex, action: self.action, replacement: self.replacement.into_bytes() }))
    }
}

struct ContentFilterRules {
    requests: ContentRules,
    responses: ContentRules,
}

/// The rules of one side.
struct ContentRules {
    rules: Box<[ContentRule]>,
    limit: u64,
    refusal: RefusalResponse,
}

impl ContentRules {
    fn look_into_bodies(&self) -> bool {
        self.rules.iter().any(ContentRule::is_for_bodies)
    }

    /// Fields and arguments. `false` refuses.
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

    /// The content as it goes on, plain; nothing if it stays as it came.
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

/// What was true of content as it came.
const OF_THE_CONTENT: [&[u8]; 4] = [b"Content-Encoding", b"Content-MD5", b"Content-Digest", b"Digest"];

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
                OF_THE_CONTENT.into_iter().for_each(|name| _ = exchange.request.head.remove(name));
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
            true => Ok(Some(self.responses.limit)),
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
                for name in OF_THE_CONTENT.into_iter().chain([&b"ETag"[..], b"Accept-Ranges"]) {
                    exchange.response.head.remove(name);
                }
                Ok(())
            }
            Err(_) => Err(self.responses.refusal.send(exchange)),
        }
    }
}
