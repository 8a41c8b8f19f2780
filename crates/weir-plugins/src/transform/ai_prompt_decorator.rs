use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

use crate::content::chat::{self, ChatBody, PromptMessage};

/// Puts messages before and after those of requests to a language model, in OpenAI's chat format.
///
/// The rest of the body stays as it is. A request whose body has no list `messages` is answered with 400: bind the plugin to routes that
/// have only such requests. It runs after `ai-prompt-template` and before `ai-prompt-guard`, for which
/// an added message is never the last one of a user. Bodies of more than 16 KiB, and compressed ones, are read on another thread.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AiPromptDecorator {
    /// The messages before those of the request.
    #[serde(default)]
    prepend: Vec<PromptMessage>,
    /// The messages after those of the request.
    #[serde(default)]
    append: Vec<PromptMessage>,
    /// The largest body of a request, in bytes, also after decoding. A larger request is refused with 413.
    #[serde(default = "chat::default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
}

impl Definition for AiPromptDecorator {
    const NAME: &'static str = "ai-prompt-decorator";
    const PRIORITY: i32 = 1070;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        "ai-prompt-decorator: { prepend: [{ role: system, content: \"Answer in one sentence.\" }] }";

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        if self.prepend.is_empty() && self.append.is_empty() {
            return Err(ConfigError::new("", "adds nothing; give `prepend` or `append`"));
        }
        Ok(Arc::new(PromptDecoration {
            added: Arc::new(AddedMessages { before: chat::written(&self.prepend), after: chat::written(&self.append) }),
            counts: (self.prepend.len(), self.append.len()),
            limit: self.max_req_body_size,
        }))
    }
}

/// Messages as texts of JSON.
struct AddedMessages {
    before: String,
    after: String,
}

struct PromptDecoration {
    added: Arc<AddedMessages>,
    /// How many are before and after those of a request.
    counts: (usize, usize),
    limit: u64,
}

impl Plugin for PromptDecoration {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        chat::need_body(exchange, AiPromptDecorator::NAME)
    }

    fn whole_request(&self, _: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(Some(self.limit))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let added = Arc::clone(&self.added);
        let read = move |plain: &[u8]| {
            let chat = ChatBody::read(plain).map_err(|fault| fault.text().to_owned())?;
            let no_list = || "The body has no list `messages`".to_owned();
            chat.with_messages(&added.before, &added.after).ok_or_else(no_list)
        };
        chat::read(exchange, self.limit, body, read, |exchange, body, made| {
            chat::replace(exchange, AiPromptDecorator::NAME, body, made)?;
            chat::note_added(exchange, self.counts.0, self.counts.1);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::content::elsewhere::MOST_AT_ONCE;
    use crate::testing::{body, build, exchange, finished, get, on_request, on_request_body, refused};

    #[test]
    fn messages_are_added_or_the_request_is_refused() {
        let own = |content: &str| json!([{"role": "system", "content": content}]);
        let step = build::<AiPromptDecorator>(json!({"prepend": own("a"), "append": own("b")}));
        let head = "POST / HTTP/1.1\nHost: h\nContent-Length: 9\nDigest: x";
        for (content, want) in [
            (
                r#"{"messages": [{}]}"#,
                Ok(r#"{"messages": [{"role":"system","content":"a"}, {}, {"role":"system","content":"b"}]}"#),
            ),
            (r#"{"prompt": "a"}"#, Err("{\"message\":\"ai-prompt-decorator: The body has no list `messages`\"}\n")),
            ("a", Err("{\"message\":\"ai-prompt-decorator: The body is not an object in JSON\"}\n")),
        ] {
            let (mut exchange, mut content) = (exchange(head), content.as_bytes().to_vec());
            on_request(&step, &mut exchange).expect("it has a body");
            let end = step.on_request_body(&mut exchange, &mut content).map(drop);
            match want {
                Ok(made) => assert_eq!((String::from_utf8(content).as_deref(), end), (Ok(made), Ok(()))),
                Err(said) => assert_eq!((body(&exchange), end), (said, Err(Stop::Answered))),
            }
            assert_eq!(exchange.request.head.value(b"digest").is_none(), want.is_ok());
        }
        let mut without = get("/");
        assert_eq!(on_request(&step, &mut without), Err(Stop::Answered));
        assert_eq!(without.response.status, 400);
        let small = build::<AiPromptDecorator>(json!({"append": own("b"), "max_req_body_size": 5}));
        assert_eq!(small.whole_request(&mut get("/")), Ok(Some(5)));
    }

    #[test]
    fn long_bodies_are_read_elsewhere() {
        let step = build::<AiPromptDecorator>(json!({"append": [{"role": "user", "content": "b"}]}));
        let with = |length: usize| format!("{{\"messages\": [{}]}}", " ".repeat(length));
        for (content, is_read_elsewhere) in [(with(100), false), (with(MOST_AT_ONCE), true)] {
            let (mut exchange, mut made) = (get("/"), content.clone().into_bytes());
            let turn = step.on_request_body(&mut exchange, &mut made);
            assert_eq!(matches!(turn, Ok(Flow::Wait(_))), is_read_elsewhere);
            finished(turn).expect("it has a list");
            let made = String::from_utf8(made).expect("text");
            assert_eq!(made, r#"{"messages": [{"role":"user","content":"b"}]}"#);
            assert_eq!(chat::added(&exchange), (0, 1));
        }
        let mut refused = get("/");
        assert_eq!(on_request_body(&step, &mut refused, &" ".repeat(MOST_AT_ONCE + 1)), Err(Stop::Answered));
        assert_eq!(body(&refused), "{\"message\":\"ai-prompt-decorator: The body is not an object in JSON\"}\n");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "adds nothing; give `prepend` or `append`"),
            (json!({"prepend": [], "append": []}), "adds nothing"),
            (json!({"prepend": [{"role": "tool", "content": "a"}]}), "prepend[0].role: "),
            (json!({"append": [{"role": "user", "content": ""}]}), "append[0].content: "),
            (json!({"append": [{"role": "user"}]}), "append[0]: the option `content` is missing"),
        ] {
            let error = refused::<AiPromptDecorator>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
