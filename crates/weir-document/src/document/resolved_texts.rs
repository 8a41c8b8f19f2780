//! Keeps the values of references out of messages. A user who writes `$env://NAME` where the value is refused must not learn the value
//! from the message, so the message names the reference instead.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::text::diagnostic::Diagnostic;

/// The shortest part of a value that a message about the same options must not contain.
const SHORTEST_PART: usize = 4;
/// The shortest value that is looked for in messages about other places. A shorter one may be an ordinary word.
const SHORTEST_ELSEWHERE: usize = 8;

/// A reference that was replaced by its value.
#[derive(Clone, PartialEq, Eq)]
pub struct ResolvedText {
    /// Where it is written, such as `routes[r1].plugins.limit-count.count`.
    pub(super) path: String,
    /// How many bytes of the path lead to the options that contain it, `routes[r1].plugins.limit-count`: a message about any of them
    /// may quote it.
    pub(super) scope_bytes: usize,
    /// As written: `$env://NAME`.
    pub(super) reference: Box<str>,
    pub(super) value: Box<str>,
}

impl fmt::Debug for ResolvedText {
    /// Without the value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResolvedText").field("path", &self.path).field("reference", &self.reference).finish()
    }
}

/// The references of a document that were replaced by their values.
#[derive(Clone, Debug, Default)]
pub(super) struct ResolvedTexts {
    pub(super) own: Vec<ResolvedText>,
    /// Those of the resources of a store that are read separately.
    pub(super) of_lists: Vec<Arc<[ResolvedText]>>,
}

impl ResolvedTexts {
    fn iter(&self) -> impl Iterator<Item = &ResolvedText> {
        self.own.iter().chain(self.of_lists.iter().flat_map(|of_one| of_one.iter()))
    }

    /// The same diagnostic with references in place of their values.
    pub(super) fn hidden_in(&self, diagnostic: Diagnostic) -> Diagnostic {
        hidden(self.iter(), diagnostic)
    }
}

/// The same diagnostic with these references in place of their values.
pub(super) fn hidden<'t>(texts: impl Iterator<Item = &'t ResolvedText>, mut diagnostic: Diagnostic) -> Diagnostic {
    for text in texts {
        if is_about(&diagnostic.path, &text.path[..text.scope_bytes]) {
            text.hide_in_own(&mut diagnostic);
        } else {
            text.hide_in_other(&mut diagnostic);
        }
    }
    diagnostic
}

/// Whether a message about the value at `path` may be about the options in `scope`: one of the paths leads to the other.
fn is_about(path: &str, scope: &str) -> bool {
    let leads = |shorter: &str, longer: &str| {
        longer.strip_prefix(shorter).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    leads(scope, path) || !path.is_empty() && leads(path, scope)
}

impl ResolvedText {
    /// The same in a resource at this path.
    pub(super) fn below(&mut self, path: &str) {
        self.path = format!("{path}.{}", self.path);
        self.scope_bytes += path.len() + 1;
    }

    /// In a message about the same options no part of the value may remain: a message may quote a piece of it, such as the host of a
    /// URL, or change it.
    fn hide_in_own(&self, diagnostic: &mut Diagnostic) {
        let Diagnostic { problem, advice, path, .. } = diagnostic;
        *problem = self.in_place_of_value(problem).into_owned();
        if self.is_in(problem) {
            *problem = format!("the value of `{}` is not allowed here", self.reference);
        }
        if *path == self.path && !problem.contains(&*self.reference) {
            *problem = format!("{problem}; it is the value of `{}`", self.reference);
        }
        *advice = advice.take().map(|text| self.in_place_of_value(&text).into_owned()).filter(|text| !self.is_in(text));
    }

    fn hide_in_other(&self, diagnostic: &mut Diagnostic) {
        if self.value.len() < SHORTEST_ELSEWHERE {
            return;
        }
        for text in std::iter::once(&mut diagnostic.problem).chain(&mut diagnostic.advice) {
            if text.contains(&*self.value) {
                *text = text.replace(&*self.value, &self.reference);
            }
        }
    }

    /// A text with the reference in place of the whole value, where it is quoted.
    fn in_place_of_value<'m>(&self, text: &'m str) -> Cow<'m, str> {
        let quoted = format!("`{}`", self.value);
        match text.contains(&quoted) {
            true => Cow::Owned(text.replace(&quoted, &format!("`{}`", self.reference))),
            false => Cow::Borrowed(text),
        }
    }

    /// Whether a text contains a part of the value, in any case.
    fn is_in(&self, text: &str) -> bool {
        let text = text.replace(&*self.reference, "").to_lowercase();
        let value: Vec<char> = self.value.to_lowercase().chars().collect();
        let part = value.len().min(SHORTEST_PART);
        if part == 0 || value.len() < SHORTEST_PART {
            // A value this short is told apart from ordinary words by its quotes.
            return part > 0 && quotes(&text, &self.value.to_lowercase());
        }
        let text: Vec<char> = text.chars().collect();
        let parts: std::collections::HashSet<&[char]> = value.windows(part).collect();
        text.windows(part).any(|window| parts.contains(window))
    }
}

/// Whether a text contains `value` as a word of its own.
fn quotes(text: &str, value: &str) -> bool {
    let is_part_of_word = |c: char| c.is_alphanumeric();
    text.match_indices(value).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + value.len()..].chars().next();
        !before.is_some_and(is_part_of_word) && !after.is_some_and(is_part_of_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(path: &str, problem: &str, advice: &str, value: &str) -> String {
        let text = ResolvedText {
            path: "routes[r].plugins.x.b".to_owned(),
            scope_bytes: "routes[r].plugins.x".len(),
            reference: "$env://NAME".into(),
            value: value.into(),
        };
        let diagnostic = Diagnostic::of_source(&"f".into(), problem).advise(advice);
        let found = hidden([text].iter(), Diagnostic { path: path.to_owned(), ..diagnostic });
        format!("{}; {}", found.problem, found.advice.as_deref().unwrap_or("-"))
    }

    #[test]
    fn a_message_about_a_value_names_the_reference() {
        let own = "routes[r].plugins.x.a";
        let generic = "the value of `$env://NAME` is not allowed here";
        for (problem, advice, value, expected) in [
            ("found `hunter2`", "write a number", "hunter2", "found `$env://NAME`; write a number".to_owned()),
            ("the host `inner.exa…` is wrong", "mend it", "http://inner.example", format!("{generic}; mend it")),
            ("the host `INNER` is wrong", "mend it", "http://inner", format!("{generic}; mend it")),
            ("expected a list", "write `[hunter2]`", "hunter2", "expected a list; -".to_owned()),
            ("found `7`", "write a list", "7", "found `$env://NAME`; write a list".to_owned()),
            ("found the number 7", "a", "7", format!("{generic}; a")),
            ("takes 17 at most", "a", "7", "takes 17 at most; a".to_owned()),
            ("is empty", "a", "", "is empty; a".to_owned()),
            ("found `a\\nlong text`", "a", "a\nlong text", format!("{generic}; a")),
        ] {
            assert_eq!(told(own, problem, advice, value), expected, "{problem}");
        }
        let own = told("routes[r].plugins.x.b", "is too long", "a", "abcd");
        assert_eq!(own, "is too long; it is the value of `$env://NAME`; a");
        for path in ["routes[r].plugins.x", "routes[r].plugins", "routes[r]"] {
            assert_eq!(told(path, "with abcd", "a", "abcd"), format!("{generic}; a"), "{path}");
        }
    }

    #[test]
    fn a_message_about_another_place_is_changed_only_for_a_whole_value_that_is_no_word() {
        for path in ["routes[r2].plugins.x", "routes[r].plugins.xy", "", "upstreams[1]"] {
            assert_eq!(told(path, "found redis", "a", "redis"), "found redis; a", "{path}");
            assert_eq!(told(path, "found hunter2hunter2", "a", "hunter2hunter2"), "found $env://NAME; a", "{path}");
        }
    }
}
