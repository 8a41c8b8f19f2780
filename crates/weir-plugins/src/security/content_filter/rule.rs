//! A rule of the filter, and its application to fields, arguments and bodies.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::Head;
use weir_plugin::{Exchange, Stop, form};

use crate::content::coding::Opaque;
use crate::content::content_type;
use crate::content::json;
use crate::content::xml;

/// The deepest nesting of bodies that are inspected by path.
const MAX_DEPTH: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FilterAction {
    Block,
    Allow,
    Mask,
}

/// A rule: the place to inspect, the expression to match, and the action.
pub(super) struct ContentRule {
    pub place: RuleTarget,
    pub regex: Arc<Regex>,
    pub action: FilterAction,
    pub replacement: Vec<u8>,
}

/// The place that a rule inspects.
pub(super) enum RuleTarget {
    /// Fields of this name, or all.
    Fields(Option<Box<[u8]>>),
    Arguments(Option<Box<[u8]>>),
    Raw,
    Json(json::path::JsonPath),
    Xml(xml::XmlPath),
}

/// The result of applying a rule to one text.
enum MatchOutcome {
    Pass,
    Refuse,
    Replace(Vec<u8>),
}

impl ContentRule {
    fn judge(&self, text: &[u8]) -> MatchOutcome {
        match (self.action, self.regex.is_match(text)) {
            (FilterAction::Block, true) | (FilterAction::Allow, false) => MatchOutcome::Refuse,
            (FilterAction::Mask, true) => {
                MatchOutcome::Replace(self.regex.replace_all(text, self.replacement.as_slice()).into_owned())
            }
            _ => MatchOutcome::Pass,
        }
    }

    pub(super) fn is_for_bodies(&self) -> bool {
        matches!(self.place, RuleTarget::Raw | RuleTarget::Json(_) | RuleTarget::Xml(_))
    }

    /// Whether a response of this type is inspected. Requests always are, because clients could send a wrong type.
    pub(super) fn suits(&self, head: &Head) -> bool {
        // An ambiguous type is inspected as every type that it may be.
        let may_be = |test: fn(&[u8]) -> bool| content_type::of(head).map_or(true, |said| said.is_some_and(test));
        match self.place {
            RuleTarget::Json(_) => may_be(content_type::is_json),
            RuleTarget::Xml(_) => may_be(content_type::is_xml),
            _ => true,
        }
    }

    /// The changed content; `None` if it stays as it is.
    pub(super) fn apply(&self, content: &[u8]) -> Result<Option<Vec<u8>>, ContentRejection> {
        let mut edits: Vec<(Range<usize>, Vec<u8>)> = Vec::new();
        match &self.place {
            RuleTarget::Fields(_) | RuleTarget::Arguments(_) => return Ok(None),
            RuleTarget::Raw => {
                return match self.judge(content) {
                    MatchOutcome::Pass => Ok(None),
                    MatchOutcome::Refuse => Err(ContentRejection::Refused),
                    MatchOutcome::Replace(content) => Ok(Some(content)),
                };
            }
            RuleTarget::Json(path) => {
                for found in path.find(content, MAX_DEPTH).map_err(|_| ContentRejection::Unreadable)? {
                    let written = &content[found.span.clone()];
                    let text = match found.is_text {
                        true => Cow::Owned(
                            serde_json::from_slice::<String>(written).map_err(|_| ContentRejection::Unreadable)?.into(),
                        ),
                        false => Cow::Borrowed(written),
                    };
                    match self.judge(&text) {
                        MatchOutcome::Pass => {}
                        MatchOutcome::Refuse => return Err(ContentRejection::Refused),
                        MatchOutcome::Replace(new) => {
                            let new = serde_json::to_vec(&String::from_utf8_lossy(&new))
                                .map_err(|_| ContentRejection::Unreadable)?;
                            edits.push((found.span, new));
                        }
                    }
                }
            }
            RuleTarget::Xml(path) => {
                for found in path.find(content, MAX_DEPTH).map_err(|_| ContentRejection::Unreadable)? {
                    match self.judge(found.text.as_bytes()) {
                        MatchOutcome::Pass => {}
                        MatchOutcome::Refuse => return Err(ContentRejection::Refused),
                        MatchOutcome::Replace(new) => {
                            // The new text replaces the first part; the other parts are removed.
                            let new = xml::escaped(&String::from_utf8_lossy(&new)).into_bytes();
                            let news = std::iter::once(new).chain(std::iter::repeat(Vec::new()));
                            edits.extend(found.spans.into_iter().zip(news));
                        }
                    }
                }
            }
        }
        Ok((!edits.is_empty()).then(|| edited(content, edits)))
    }
}

/// Why content is refused.
pub(super) enum ContentRejection {
    Refused,
    /// It is not a JSON or XML text, as the rule's path needs.
    Unreadable,
    Opaque(Opaque),
}

/// The content with the given ranges replaced.
fn edited(content: &[u8], mut edits: Vec<(Range<usize>, Vec<u8>)>) -> Vec<u8> {
    edits.sort_by_key(|(span, _)| span.start);
    let mut out = Vec::with_capacity(content.len());
    let mut copied = 0;
    for (span, new) in edits {
        out.extend_from_slice(&content[copied..span.start]);
        out.extend_from_slice(&new);
        copied = span.end;
    }
    out.extend_from_slice(&content[copied..]);
    out
}

/// Applies a rule to the fields of this name, or to all. `false` refuses.
pub(super) fn pass_fields(rule: &ContentRule, name: Option<&[u8]>, head: &mut Head) -> Result<bool, Stop> {
    let Some(name) = name else {
        let refused = head.fields().any(|(_, value)| matches!(rule.judge(value), MatchOutcome::Refuse));
        return Ok(!refused);
    };
    let verdicts: Vec<_> = head.values(name).map(|value| (rule.judge(value), value.to_vec())).collect();
    if verdicts.iter().any(|(verdict, _)| matches!(verdict, MatchOutcome::Refuse)) {
        return Ok(false);
    }
    if verdicts.iter().any(|(verdict, _)| matches!(verdict, MatchOutcome::Replace(_))) {
        head.remove(name);
        for (verdict, value) in verdicts {
            let value = if let MatchOutcome::Replace(new) = verdict { new } else { value };
            head.add(name, &value).map_err(|_| Stop::Internal)?;
        }
    }
    Ok(true)
}

/// Applies a rule to the arguments of this name, or to all. `false` refuses.
pub(super) fn pass_arguments(rule: &ContentRule, wanted: Option<&[u8]>, exchange: &mut Exchange) -> Result<bool, Stop> {
    let Some(text) = exchange.request.query() else { return Ok(true) };
    let mut query = Vec::with_capacity(text.len());
    let mut is_changed = false;
    for (index, pair) in text.split(|&byte| byte == b'&').enumerate() {
        if index > 0 {
            query.push(b'&');
        }
        let (written, value) = form::halves(pair);
        let (name, value) = (form::decoded(written), form::decoded(value));
        if wanted.is_some_and(|wanted| *name != *wanted) {
            query.extend_from_slice(pair);
            continue;
        }
        // Names of arguments are inspected as well.
        if wanted.is_none() && rule.action == FilterAction::Block && matches!(rule.judge(&name), MatchOutcome::Refuse) {
            return Ok(false);
        }
        match rule.judge(&value) {
            MatchOutcome::Pass => query.extend_from_slice(pair),
            MatchOutcome::Refuse => return Ok(false),
            MatchOutcome::Replace(new) => {
                is_changed = true;
                query.extend_from_slice(written);
                query.push(b'=');
                form::write_encoded(&new, &mut query);
            }
        }
    }
    if is_changed {
        exchange.request.set_query(&query).map_err(|_| Stop::Internal)?;
    }
    Ok(true)
}
