//! An answer as far as checks and extractions look at it.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde_json::Value;

use super::redirect::is_redirect;

/// The longest part of a body that is kept.
const LARGEST_BODY: usize = 1024 * 1024;

/// The memory for a body that a connection keeps from one answer to the next.
const KEPT_BODY: usize = 64 * 1024;

/// The parts of an answer that a request needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NeededParts {
    pub(super) fields: bool,
    /// The fields of redirects.
    pub(super) location: bool,
    pub(super) body: bool,
}

/// An answer that is being received.
#[derive(Debug, Default)]
pub(in crate::engine) struct CapturedAnswer {
    /// Whether the plan looks at answers at all.
    is_used: bool,
    needs: NeededParts,
    /// Whether the fields of this head are kept.
    keeps_fields: bool,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    /// Why the body cannot be looked at, such as that it is longer than what is kept.
    unreadable: Option<String>,
}

impl CapturedAnswer {
    /// Prepares for an answer.
    pub(super) fn begin(&mut self, needs: NeededParts) {
        (self.is_used, self.needs) = (true, needs);
        self.restart(0);
    }

    /// A head begins: what an interim one contained is dropped.
    pub(in crate::engine) fn restart(&mut self, status: u16) {
        self.keeps_fields = self.needs.fields || (self.needs.location && is_redirect(status));
        self.fields.clear();
        self.body.clear();
        self.body.shrink_to(KEPT_BODY);
        self.unreadable = None;
    }

    pub(in crate::engine) fn is_used(&self) -> bool {
        self.is_used
    }

    pub(in crate::engine) fn field(&mut self, name: &str, value: &[u8]) {
        if self.keeps_fields {
            self.fields.push((name.to_owned(), value.to_owned()));
        }
    }

    pub(in crate::engine) fn content(&mut self, data: &[u8]) {
        if self.needs.body {
            let room = LARGEST_BODY - self.body.len();
            self.body.extend_from_slice(&data[..data.len().min(room)]);
            if data.len() > room {
                self.cut();
            }
        }
    }

    /// Whether bodies are looked at.
    pub(in crate::engine) fn keeps_body(&self) -> bool {
        self.needs.body
    }

    /// How many bytes of the body are still kept.
    pub(in crate::engine) fn room(&self) -> usize {
        LARGEST_BODY - self.body.len()
    }

    /// Whether more of the body makes a difference.
    pub(in crate::engine) fn takes_more(&self) -> bool {
        self.needs.body && self.unreadable.is_none()
    }

    /// A part of the body is missing, because it is too long.
    pub(in crate::engine) fn cut(&mut self) {
        self.cannot_be_read(format!("the body was longer than {} MiB", LARGEST_BODY >> 20));
    }

    /// The body cannot be looked at.
    pub(in crate::engine) fn cannot_be_read(&mut self, reason: String) {
        self.unreadable.get_or_insert(reason);
    }

    /// The values of a field, in their order.
    pub(super) fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let named = self.fields.iter().filter(move |(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_slice())
    }
}

/// Where in an answer a value is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerPart {
    Field(String),
    /// A JSON pointer (RFC 6901).
    Json(String),
    Body,
}

impl AnswerPart {
    /// The part that the keys `field` and `json` mean; the error says what is wrong with them.
    pub(super) fn read(field: Option<&str>, json: Option<&str>) -> Result<Self, String> {
        match (field, json) {
            (Some(_), Some(_)) => Err("has `field` and `json`; use one of them".to_owned()),
            (Some(""), None) => Err("`field` is empty; write the name of a header field".to_owned()),
            (Some(name), None) => Ok(AnswerPart::Field(name.to_owned())),
            (None, Some(pointer)) if pointer.is_empty() || pointer.starts_with('/') => {
                Ok(AnswerPart::Json(pointer.to_owned()))
            }
            (None, Some(pointer)) => {
                Err(format!("`json` is \"{pointer}\", which does not begin with /; try \"/{pointer}\""))
            }
            (None, None) => Ok(AnswerPart::Body),
        }
    }

    pub(super) fn needs(&self) -> NeededParts {
        let is_field = matches!(self, AnswerPart::Field(_));
        NeededParts { fields: is_field, body: !is_field, location: false }
    }
}

impl std::fmt::Display for AnswerPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AnswerPart::Field(name) => write!(f, "field {name}"),
            AnswerPart::Json(pointer) => write!(f, "JSON {pointer}"),
            AnswerPart::Body => f.write_str("body"),
        }
    }
}

/// Why an answer has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoValue {
    /// The answer has been looked at, and does not have it.
    Absent(&'static str),
    /// The answer could not be looked at.
    Unreadable(String),
}

impl From<NoValue> for String {
    fn from(reason: NoValue) -> Self {
        match reason {
            NoValue::Absent(text) => text.to_owned(),
            NoValue::Unreadable(text) => text,
        }
    }
}

/// A complete answer, whose JSON is parsed at most once.
pub(super) struct CompleteAnswer<'a> {
    captured: &'a CapturedAnswer,
    json: OnceCell<Result<Value, NoValue>>,
}

impl<'a> CompleteAnswer<'a> {
    pub(super) fn new(captured: &'a CapturedAnswer) -> Self {
        Self { captured, json: OnceCell::new() }
    }

    /// The value of a part; the error says why there is none.
    pub(super) fn value(&self, part: &AnswerPart) -> Result<Cow<'_, [u8]>, NoValue> {
        match part {
            AnswerPart::Field(name) => {
                let named = self.captured.fields.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
                let values: Vec<&[u8]> = named.map(|(_, value)| value.as_slice()).collect();
                match values.as_slice() {
                    [] => Err(NoValue::Absent("there was no such field")),
                    [value] => Ok(Cow::Borrowed(value)),
                    several => Ok(Cow::Owned(several.join(&b", "[..]))),
                }
            }
            _ if self.captured.unreadable.is_some() => {
                Err(NoValue::Unreadable(self.captured.unreadable.clone().unwrap_or_default()))
            }
            AnswerPart::Body => Ok(Cow::Borrowed(&self.captured.body)),
            AnswerPart::Json(pointer) => {
                let json = self.json.get_or_init(|| {
                    serde_json::from_slice(&self.captured.body)
                        .map_err(|error| NoValue::Unreadable(format!("the body was not JSON: {error}")))
                });
                match json.as_ref().map_err(Clone::clone)?.pointer(pointer) {
                    None => Err(NoValue::Absent("there was no such place")),
                    Some(Value::String(text)) => Ok(Cow::Borrowed(text.as_bytes())),
                    Some(other) => Ok(Cow::Owned(other.to_string().into_bytes())),
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::engine::flow) fn captured(fields: &[(&str, &str)], body: &str) -> CapturedAnswer {
        let mut answer = CapturedAnswer::default();
        answer.begin(NeededParts { fields: true, body: true, location: false });
        fields.iter().for_each(|(name, value)| answer.field(name, value.as_bytes()));
        answer.content(body.as_bytes());
        answer
    }

    #[test]
    fn parts_of_an_answer_are_found() {
        let answer = captured(&[("X-A", "1"), ("x-a", "2"), ("B", "3")], r#"{"a": {"b": ["x", 5, null]}}"#);
        let complete = CompleteAnswer::new(&answer);
        let value = |field, json| {
            let part = AnswerPart::read(field, json).expect("a good part");
            complete.value(&part).map(|value| String::from_utf8_lossy(&value).into_owned())
        };
        assert_eq!(value(Some("x-A"), None).as_deref(), Ok("1, 2"));
        assert_eq!(value(Some("c"), None), Err(NoValue::Absent("there was no such field")));
        assert_eq!(value(None, Some("/a/b/0")).as_deref(), Ok("x"));
        assert_eq!(value(None, Some("/a/b/1")).as_deref(), Ok("5"));
        assert_eq!(value(None, Some("/a/c")), Err(NoValue::Absent("there was no such place")));
        assert!(value(None, None).is_ok_and(|body| body.starts_with("{\"a\"")));
    }

    #[test]
    fn bodies_are_kept_up_to_their_bound() {
        let mut answer = captured(&[], "");
        answer.content(&vec![b'x'; LARGEST_BODY]);
        assert!(CompleteAnswer::new(&answer).value(&AnswerPart::Body).is_ok());
        answer.content(b"x");
        assert_eq!(
            CompleteAnswer::new(&answer).value(&AnswerPart::Body),
            Err(NoValue::Unreadable("the body was longer than 1 MiB".to_owned()))
        );
    }

    #[test]
    fn fault_of_a_part_says_what_would_be_right() {
        assert_eq!(
            AnswerPart::read(None, Some("a/b")),
            Err("`json` is \"a/b\", which does not begin with /; try \"/a/b\"".to_owned())
        );
        assert!(AnswerPart::read(Some("a"), Some("/b")).is_err());
    }
}
