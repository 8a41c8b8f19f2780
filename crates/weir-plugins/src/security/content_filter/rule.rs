//! A rule of the filter, and what it does to fields, arguments and bodies.

use std::borrow::Cow;
use std::ops::Range;

use regex::bytes::Regex;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::Head;
use weir_plugin::{Exchange, Stop, form};

use crate::content::coding::Opaque;
use crate::content::content_type;
use crate::content::json;
use crate::content::xml;

/// How deep bodies may be nested that are looked into by path.
const MAX_DEPTH: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FilterAction {
    Block,
    Allow,
    Mask,
}

/// What is looked for, where, and what is done about it.
pub struct ContentRule {
    pub place: RuleTarget,
    pub regex: Regex,
    pub action: FilterAction,
    pub replacement: Vec<u8>,
}

/// Where a rule looks.
pub enum RuleTarget {
    /// Of this name; without one, all.
    Fields(Option<Box<[u8]>>),
    Arguments(Option<Box<[u8]>>),
    Raw,
    Json(json::path::JsonPath),
    Xml(xml::XmlPath),
}

/// What a rule makes of one text.
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

    pub fn is_for_bodies(&self) -> bool {
        matches!(self.place, RuleTarget::Raw | RuleTarget::Json(_) | RuleTarget::Xml(_))
    }

    /// Whether a response of this type is looked at. Requests are, whatever they say: who sends them is not believed.
    pub fn suits(&self, head: &Head) -> bool {
        // What some would read as one type and some as another is looked at as both.
        let may_be = |test: fn(&[u8]) -> bool| content_type::of(head).map_or(true, |said| said.is_some_and(test));
        match self.place {
            RuleTarget::Json(_) => may_be(content_type::is_json),
            RuleTarget::Xml(_) => may_be(content_type::is_xml),
            _ => true,
        }
    }

    /// The content as it goes on; nothing if it stays.
    pub fn apply(&self, content: &[u8]) -> Result<Option<Vec<u8>>, ContentRejection> {
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
                            // In the place of its first part; the others go.
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

/// Why content does not go on.
pub enum ContentRejection {
    Refused,
    /// It is not what a rule's path is for.
    Unreadable,
    Opaque(Opaque),
}

/// The content with some of its parts replaced.
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

/// Fields of this name, or all. `false` refuses.
pub fn pass_fields(rule: &ContentRule, name: Option<&[u8]>, head: &mut Head) -> Result<bool, Stop> {
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

/// Arguments of this name, or all. `false` refuses.
pub fn pass_arguments(rule: &ContentRule, wanted: Option<&[u8]>, exchange: &mut Exchange) -> Result<bool, Stop> {
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
        // An attack may stand in a name as well.
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
        let path = exchange.request.path().to_vec();
        exchange.request.set_path(&path, Some(&query)).map_err(|_| Stop::Internal)?;
    }
    Ok(true)
}
