use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::field;
use weir_plugin::{
    AllOf, Build, CollectAll, ConfigError, Definition, Exchange, Filter, Flow, NoteKey, Phases, Plugin, Stage, Stop,
};

use crate::content::{coding, replace_response_content};
use crate::options::headers::{Scalar, header_name};

/// Puts texts before and after the body of responses, or replaces it, and sets header fields of them, to try things out.
///
/// It applies to every response of the route, including those that the gateway or another plugin generates. It asks the upstream for
/// complete content without compression; a response that is compressed all the same (`Content-Encoding`) or is a part (206) gets no
/// texts around it. Where the body is replaced, the status 206 becomes 200. `response-rewrite` has variables, conditions and replacements.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Echo {
    /// The text before the body.
    before_body: Option<String>,
    /// The text that replaces the body.
    body: Option<String>,
    /// The text after the body.
    after_body: Option<String>,
    /// Header fields that the response gets, in place of those with the same names.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Scalar>")]
    headers: BTreeMap<String, Scalar>,
}

impl Definition for Echo {
    const NAME: &'static str = "echo";
    const PRIORITY: i32 = 412;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str =
        "echo: { before_body: \"before \", after_body: \" after\", headers: { X-Echo: \"1\" } }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let texts = match (&self.before_body, &self.body, &self.after_body) {
            (None, None, None) => Err(ConfigError::new("", "needs one of `before_body`, `body` and `after_body`")),
            _ => Ok(()),
        };
        let headers = self.headers.iter().map(|(name, value)| {
            let path = format!("headers.{name}");
            let checked = header_name(name, &path)?;
            match field::is_value(value.text().as_bytes()) {
                true => Ok((checked.into(), value.text().as_bytes().into())),
                false => Err(ConfigError::new(path, "has a character that is not allowed in a header field")),
            }
        });
        let ((), headers) = (texts, headers.collect_all()).all_of()?;
        let bytes = |text: Option<String>| text.map(String::into_bytes).unwrap_or_default();
        let (before, after) = (bytes(self.before_body), bytes(self.after_body));
        let whole = self.body.map(|body| [&before, body.as_bytes(), &after].concat());
        let around = NoteKey::unique();
        Ok(Arc::new(EchoedTexts { before: before.into(), after: after.into(), whole, headers, around }))
    }
}

/// The name and the value of a field.
type EchoField = (Box<[u8]>, Box<[u8]>);

struct EchoedTexts {
    before: Arc<[u8]>,
    after: Arc<[u8]>,
    /// The body with the texts around it, if it is replaced.
    whole: Option<Vec<u8>>,
    headers: Box<[EchoField]>,
    /// Under which an exchange keeps whether its response gets the texts around it: the head that decides about it is changed before the
    /// content comes.
    around: NoteKey,
}

/// Whether texts can be put around the content of a response.
fn is_whole_and_plain(exchange: &Exchange) -> bool {
    !matches!(exchange.response.status, 204 | 206 | 304) && exchange.response.head.value(b"content-encoding").is_none()
}

impl Plugin for EchoedTexts {
    fn phases(&self) -> Phases {
        match self.whole {
            Some(_) => Phases::REQUEST.and(Phases::RESPONSE),
            // Before `gzip` and `brotli`, which compress the texts as well.
            None => Phases::REQUEST.and(Phases::RESPONSE_FIRST),
        }
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        coding::ask_for_plain(exchange);
        Ok(Flow::Continue)
    }

    fn on_response(&self, exchange: &mut Exchange) -> Result<(), Stop> {
        let end = self.whole.as_ref().map(|whole| {
            if exchange.response.status == 206 {
                exchange.response.set_status(200);
            }
            replace_response_content(exchange, whole)
        });
        let is_around = end.is_none() && is_whole_and_plain(exchange);
        exchange.notes.write(self.around, [is_around.into(), 0, 0]);
        if is_around {
            exchange.forget_response_content();
        }
        for (name, value) in &self.headers {
            exchange.response.head.remove(name);
            exchange.response.head.add(name, value).map_err(|_| Stop::Internal)?;
        }
        end.map_or(Ok(()), Err)
    }

    fn response_filter(&self, exchange: &mut Exchange) -> Result<Option<Box<dyn Filter>>, Stop> {
        if exchange.notes.read(self.around).is_none_or(|[is_around, ..]| is_around == 0) {
            return Ok(None);
        }
        exchange.response.head.remove(b"Content-Length");
        Ok(Some(Box::new(EchoFilter { before: Some(Arc::clone(&self.before)), after: Arc::clone(&self.after) })))
    }
}

/// Puts the texts around content that passes.
struct EchoFilter {
    /// Until it was written.
    before: Option<Arc<[u8]>>,
    after: Arc<[u8]>,
}

impl Filter for EchoFilter {
    fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Stop> {
        out.extend_from_slice(&self.before.take().unwrap_or_default());
        out.extend_from_slice(piece);
        Ok(())
    }

    fn end(&mut self, out: &mut Vec<u8>) -> Result<(), Stop> {
        out.extend_from_slice(&self.before.take().unwrap_or_default());
        out.extend_from_slice(&self.after);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{body, build, exchange, get, on_request, refused, sent};

    fn answered(fields: &[(&[u8], &[u8])]) -> Exchange {
        let mut exchange = get("/");
        exchange.response.set_status(200);
        fields.iter().for_each(|(name, value)| exchange.response.head.add(name, value).expect("valid"));
        exchange
    }

    fn filtered(options: Value, exchange: &mut Exchange, pieces: &[&str]) -> Option<String> {
        let step = build::<Echo>(options);
        step.on_response(exchange).expect("the head passes");
        let mut filter = step.response_filter(exchange).expect("it is asked")?;
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| filter.piece(piece.as_bytes(), &mut out).expect("it passes"));
        filter.end(&mut out).expect("it ends");
        Some(String::from_utf8(out).expect("text"))
    }

    #[test]
    fn texts_stand_before_and_after_the_body() {
        let around = json!({"before_body": "<", "after_body": ">", "headers": {"X-A": 1}});
        let mut exchange = answered(&[(b"Content-Length", b"4"), (b"ETag", b"\"1\""), (b"X-A", b"0")]);
        assert_eq!(filtered(around.clone(), &mut exchange, &["a", "bcd"]).as_deref(), Some("<abcd>"));
        assert_eq!((sent(&exchange, "content-length"), sent(&exchange, "etag")), (None, None));
        assert_eq!(exchange.response.head.values(b"x-a").collect::<Vec<_>>(), [b"1"]);
        assert_eq!(filtered(around.clone(), &mut answered(&[]), &[]).as_deref(), Some("<>"));
        assert_eq!(filtered(json!({"before_body": "<"}), &mut answered(&[]), &["a"]).as_deref(), Some("<a"));
        let mut compressed = answered(&[(b"Content-Encoding", b"gzip"), (b"Content-Length", b"4")]);
        assert_eq!(filtered(around, &mut compressed, &["abcd"]), None);
        assert_eq!(sent(&compressed, "content-length"), Some("4"));
        let mut part = answered(&[(b"Content-Range", b"bytes 0-3/9")]);
        part.response.set_status(206);
        assert_eq!(filtered(json!({"after_body": ">"}), &mut part, &["abcd"]), None);
    }

    #[test]
    fn upstream_is_asked_for_complete_plain_content() {
        for options in [json!({"after_body": ">"}), json!({"body": ""})] {
            let mut asked = exchange("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip\nRange: bytes=0-1");
            let step = build::<Echo>(options);
            assert!(step.phases().request);
            on_request(&step, &mut asked).expect("it passes");
            assert_eq!(
                (asked.request.head.value(b"accept-encoding"), asked.request.head.value(b"range")),
                (None, None)
            );
        }
    }

    #[test]
    fn fields_of_the_options_are_kept_and_those_of_the_replaced_content_are_not() {
        let fields = json!({"ETag": "\"new\"", "Content-Encoding": "own"});
        for (text, want) in [("after_body", Some("abcd>")), ("body", None)] {
            let old: [(&[u8], &[u8]); 3] =
                [(b"ETag", b"\"old\""), (b"Last-Modified", b"then"), (b"Content-Length", b"4")];
            let mut exchange = answered(&old);
            let options = json!({text: ">", "headers": fields});
            match want {
                Some(_) => assert_eq!(filtered(options, &mut exchange, &["abcd"]).as_deref(), want),
                None => assert_eq!(build::<Echo>(options).on_response(&mut exchange), Err(Stop::Answered)),
            }
            let told =
                ["etag", "content-encoding", "last-modified", "content-length"].map(|name| sent(&exchange, name));
            assert_eq!(told, [Some("\"new\""), Some("own"), None, None], "{text}");
        }
    }

    #[test]
    fn a_text_in_the_place_of_a_part_is_the_whole_content() {
        let mut part = answered(&[(b"Content-Range", b"bytes 0-3/9")]);
        part.response.set_status(206);
        assert_eq!(build::<Echo>(json!({"body": "new"})).on_response(&mut part), Err(Stop::Answered));
        assert_eq!((part.response.status, sent(&part, "content-range")), (200, None));
    }

    #[test]
    fn a_text_takes_the_place_of_the_body() {
        let step =
            build::<Echo>(json!({"before_body": "<", "body": "new", "after_body": ">", "headers": {"X-A": "b"}}));
        let mut exchange = answered(&[(b"Content-Encoding", b"gzip")]);
        assert_eq!(step.on_response(&mut exchange), Err(Stop::Answered));
        assert_eq!(
            (body(&exchange), sent(&exchange, "x-a"), sent(&exchange, "content-encoding")),
            ("<new>", Some("b"), None)
        );
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "needs one of `before_body`"),
            (json!({"headers": {"X-A": "b"}}), "needs one of `before_body`"),
            (json!({"body": "", "headers": {"a b": "c"}}), "headers.a b: "),
            (json!({"body": "", "headers": {"A": "b\nc"}}), "headers.A: has a character"),
            (json!({"body": "", "headers": {"Content-Length": "1"}}), "headers.Content-Length: controls"),
            (json!({"body": "", "auth_value": "a"}), "auth_value: "),
        ] {
            let error = refused::<Echo>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
