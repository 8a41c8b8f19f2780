//! The state of a request during the walk: its known properties, and the changes made to it so far.

use super::conditions::Conditions;
use super::fields::FieldChanges;
use super::path::PathState;
use super::placeholder::{self, PlaceholderText};
use crate::yaml::{Yaml, YamlMembers};

#[derive(Clone, Debug, Default)]
pub(super) struct RequestState {
    pub conditions: Conditions,
    pub path: PathState,
    /// Regular expressions that the path has matched, with the names of their matchers.
    pub captures: Vec<(String, String)>,
    pub method: Option<String>,
    pub request_fields: FieldChanges,
    pub response_fields: FieldChanges,
    /// Plugins that authenticate.
    pub auth: YamlMembers,
    /// Plugins that limit or compress.
    pub policies: YamlMembers,
}

/// Why a text cannot be converted.
#[derive(Debug)]
pub(super) struct TextFault(pub String);

/// A text with `$1` for the groups of a regular expression for the path.
pub(super) struct CapturedText {
    pub pattern: String,
    pub template: String,
}

/// A placeholder for the dollar sign of a group while other placeholders are translated.
const GROUP: char = '\u{1}';

impl RequestState {
    /// Translates the placeholders of a text to variables.
    pub(super) fn text(&self, text: &str) -> Result<String, TextFault> {
        let names_path = ["{uri}", "{path}", "{http.request.uri}", "{http.request.uri.path}"];
        if self.path != PathState::Same && names_path.iter().any(|name| text.contains(name)) {
            return Err(TextFault("the path was rewritten before".to_owned()));
        }
        match placeholder::template(text) {
            PlaceholderText::Template(template) => Ok(template),
            PlaceholderText::Unknown(name) => Err(TextFault(format!("Weir has no variable for `{{{name}}}`"))),
        }
    }

    /// The same for a text with groups of a regular expression; `None` if it has none.
    pub(super) fn captured(&self, text: &str) -> Option<Result<CapturedText, TextFault>> {
        let (pattern, marked) = self.captures.iter().find_map(|(name, pattern)| {
            let begins = match name.as_str() {
                "" => vec!["{re.".to_owned(), "{http.regexp.".to_owned()],
                name => vec![format!("{{re.{name}."), format!("{{http.regexp.{name}.")],
            };
            let marked = begins.iter().fold(text.to_owned(), |text, begin| marked(&text, begin));
            (marked != text).then_some((pattern, marked))
        })?;
        let template = self.text(&marked);
        Some(template.map(|template| CapturedText { pattern: pattern.clone(), template: template.replace(GROUP, "$") }))
    }

    /// The plugin that changes the request for the upstream.
    pub(super) fn proxy_rewrite(&self) -> Option<(String, Yaml)> {
        let mut options = self.path.rewritten(&self.conditions.uris);
        options.extend(self.method.iter().map(|method| ("method".to_owned(), Yaml::text(method))));
        options.extend(self.request_fields.headers().map(|headers| ("headers".to_owned(), headers)));
        (!options.is_empty()).then(|| ("proxy-rewrite".to_owned(), Yaml::Map(options)))
    }
}

/// Replaces `begin`, a group's number and the brace after it by a mark and the number.
fn marked(text: &str, begin: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(begin) {
        out.push_str(before);
        match after.split_once('}') {
            Some((number, after)) if number.parse::<u8>().is_ok() => {
                out.push(GROUP);
                out.push_str(number);
                rest = after;
            }
            _ => {
                out.push_str(begin);
                rest = after;
            }
        }
    }
    out + rest
}
