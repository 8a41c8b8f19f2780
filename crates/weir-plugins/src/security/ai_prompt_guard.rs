use std::sync::Arc;

use regex::bytes::RegexSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_plugin::{AllOf, Build, ConfigError, Definition, Exchange, Flow, Phases, Plugin, Stage, Stop};

use crate::answer::RefusalResponse;
use crate::content::chat::{self, ChatBody, ChatFault, ChatMessage};
use crate::content::content_type;
use crate::options::pattern;
use crate::rate_limited_log::RateLimitedLog;

/// Checks the messages of requests to a language model, in OpenAI's chat format, against patterns.
///
/// It checks the last message of a user in the request, before `ai-prompt-decorator` has appended others, or as `match_all_roles` and `match_all_conversation_history` say. Several messages are checked as
/// one text, with a space between them, and so are the parts of a content that is a list. Images, sound and files have no text and are
/// not checked. A message whose role or text cannot be told for certain (an unknown role, a part of an unknown type, a member twice) is
/// answered with 400, whatever the other options say. `ai-prompt-template` and `ai-prompt-decorator` run before it.
/// Bodies of more than 16 KiB, and compressed ones, are checked on another thread.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AiPromptGuard {
    /// Checks the messages of all roles. Otherwise only those of the role `user`.
    #[serde(default)]
    match_all_roles: bool,
    /// Checks all messages, also those that `ai-prompt-decorator` has added. Otherwise only the last one of the request.
    #[serde(default)]
    match_all_conversation_history: bool,
    /// Regular expressions, one of which must match: otherwise, the request is answered with 400.
    #[serde(default)]
    allow_patterns: Vec<String>,
    /// Regular expressions, none of which may match: otherwise, the request is answered with 400.
    #[serde(default)]
    deny_patterns: Vec<String>,
    /// What becomes of a request that cannot be checked: it has no body, or one of another format than OpenAI's chat.
    #[serde(default)]
    fail_mode: GuardFailMode,
    /// The largest body of a request, in bytes, also after decoding. A larger request is refused with 413.
    #[serde(default = "chat::default_max_req_body_size")]
    #[schemars(range(min = 1))]
    #[schemars(extend("x-weir-unit" = "bytes"))]
    max_req_body_size: u64,
}

/// What becomes of a request that cannot be checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum GuardFailMode {
    /// It passes.
    #[default]
    Skip,
    /// It passes, with a line in the error log, at most one in ten seconds.
    Warn,
    /// It is answered with 400.
    Error,
}

impl Definition for AiPromptGuard {
    const NAME: &'static str = "ai-prompt-guard";
    const PRIORITY: i32 = 1072;
    const STAGE: Stage = Stage::Access;
    const EXAMPLE: &'static str = r#"ai-prompt-guard: { match_all_conversation_history: true, deny_patterns: ['(?i)password'], fail_mode: error }"#;

    fn build(self, _: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let set = |texts: &[String], place: &str| match texts {
            [] => Ok(None),
            texts => pattern::compile_set(texts, false, place).map(Some),
        };
        let sets = (set(&self.allow_patterns, "allow_patterns"), set(&self.deny_patterns, "deny_patterns"));
        let (allowed, denied) = sets.all_of()?;
        let rules = PromptRules {
            allowed,
            denied,
            all_roles: self.match_all_roles,
            all_messages: self.match_all_conversation_history,
        };
        Ok(Arc::new(PromptChecks {
            rules: Arc::new(rules),
            fail_mode: self.fail_mode,
            limit: self.max_req_body_size,
            log: RateLimitedLog::default(),
        }))
    }
}

/// What messages are checked, and against what.
struct PromptRules {
    allowed: Option<Arc<RegexSet>>,
    denied: Option<Arc<RegexSet>>,
    all_roles: bool,
    all_messages: bool,
}

struct PromptChecks {
    rules: Arc<PromptRules>,
    fail_mode: GuardFailMode,
    limit: u64,
    log: RateLimitedLog,
}

/// Members by which other formats pass prompts.
const OTHER_PROMPTS: [&str; 4] = ["input", "instructions", "prompt", "system"];

/// How a request is judged that does not pass.
enum Judgement {
    Refused(String),
    /// It cannot be checked, and why.
    NotChecked(&'static str),
}

impl PromptRules {
    /// `added` are the numbers of messages that the gateway has put before and after those of the request.
    fn judge(&self, added: (u64, u64), is_json: bool, plain: &[u8]) -> Result<(), Judgement> {
        let refused = |fault: ChatFault| Judgement::Refused(fault.text().to_owned());
        let chat = match ChatBody::read(plain) {
            // Readers of JSON differ in what they still take for JSON.
            Err(ChatFault::NotJson) if !is_json => return Err(Judgement::NotChecked("its body is not JSON")),
            read => read.map_err(refused)?,
        };
        let Some(messages) = chat.messages().map_err(refused)? else {
            return Err(Judgement::NotChecked("its body has no `messages`"));
        };
        let messages = if self.all_messages { &messages[..] } else { chat::without_added(added, &messages) };
        self.check(messages).map_err(|problem| Judgement::Refused(problem.to_owned()))?;
        match OTHER_PROMPTS.iter().any(|name| chat.has(name)) {
            true => Err(Judgement::NotChecked("its body has prompts beside its `messages`")),
            false => Ok(()),
        }
    }

    fn check(&self, messages: &[ChatMessage]) -> Result<(), &'static str> {
        let mut wanted: Vec<&str> = messages
            .iter()
            .filter(|message| self.all_roles || message.role == "user")
            .map(|message| &*message.text)
            .collect();
        if !self.all_messages {
            wanted.drain(..wanted.len().saturating_sub(1));
        }
        let text = wanted.join(" ");
        if self.allowed.as_ref().is_some_and(|set| !set.is_match(text.as_bytes())) {
            return Err("Request doesn't match allow patterns");
        }
        match self.denied.as_ref().is_some_and(|set| set.is_match(text.as_bytes())) {
            true => Err("Request contains prohibited content"),
            false => Ok(()),
        }
    }
}

impl PromptChecks {
    /// Decides about a request that cannot be checked.
    fn not_checked(&self, exchange: &mut Exchange, reason: &str) -> Result<(), Stop> {
        match self.fail_mode {
            GuardFailMode::Skip => Ok(()),
            GuardFailMode::Warn => {
                let route = exchange.route.as_ref().map_or("", |route| &route.route_id);
                self.log.error(format_args!("ai-prompt-guard lets a request of the route `{route}` pass: {reason}"));
                Ok(())
            }
            GuardFailMode::Error => {
                let text = format!("The request cannot be checked: {reason}");
                Err(RefusalResponse::new(400, "message", &text).send(exchange))
            }
        }
    }
}

impl Plugin for PromptChecks {
    fn phases(&self) -> Phases {
        Phases::REQUEST.and(Phases::REQUEST_BODY)
    }

    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if !exchange.request.framing.has_body() && exchange.request_body().is_none() {
            self.not_checked(exchange, "it has no body")?;
        }
        Ok(Flow::Continue)
    }

    fn whole_request(&self, _: &mut Exchange) -> Result<Option<u64>, Stop> {
        Ok(Some(self.limit))
    }

    fn on_request_body<'a>(&'a self, exchange: &'a mut Exchange, body: &'a mut Vec<u8>) -> Result<Flow<'a>, Stop> {
        let is_json = content_type::of_request(exchange)?.is_none_or(content_type::is_json);
        let (rules, added) = (Arc::clone(&self.rules), chat::added(exchange));
        let read = move |plain: &[u8]| rules.judge(added, is_json, plain);
        chat::read(exchange, self.limit, body, read, |exchange, _, judgement| match judgement {
            Ok(()) => Ok(()),
            Err(Judgement::NotChecked(reason)) => self.not_checked(exchange, reason),
            Err(Judgement::Refused(text)) => Err(RefusalResponse::new(400, "message", &text).send(exchange)),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::content::elsewhere::MOST_AT_ONCE;
    use crate::testing::{body, build, exchange, get, on_request, on_request_body, refused};

    const NOT_ALLOWED: Option<&str> = Some("Request doesn't match allow patterns");
    const DENIED: Option<&str> = Some("Request contains prohibited content");

    /// The message of the refusal; `None` if the request passes.
    fn message(step: &Arc<dyn Plugin>, content_type: &str, content: &str) -> Option<String> {
        let mut exchange =
            exchange(&format!("POST / HTTP/1.1\nHost: h\nContent-Type: {content_type}\nContent-Length: 9"));
        on_request(step, &mut exchange).expect("it has a body");
        on_request_body(step, &mut exchange, content).err()?;
        let told: Value = serde_json::from_str(body(&exchange)).expect("JSON");
        assert_eq!(exchange.response.status, 400);
        Some(told["message"].as_str().expect("a message").to_owned())
    }

    fn conversation(messages: &[(&str, &str)]) -> String {
        let messages: Vec<Value> =
            messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        json!({ "messages": messages }).to_string()
    }

    #[test]
    fn messages_of_the_wanted_roles_and_times_are_checked() {
        let all =
            [("system", "good"), ("user", "bad"), ("assistant", "fine"), ("user", "good"), ("assistant", "worse")];
        for (roles, history, allow, deny, want) in [
            (false, false, "good", "bad", None),
            (false, false, "fine", "bad", NOT_ALLOWED),
            (false, true, "good", "bad", DENIED),
            (false, true, "bad good$", "worse|fine", None),
            (true, false, "worse", "good", None),
            (true, false, "good", "bad", NOT_ALLOWED),
            (true, false, "", "worse", DENIED),
            (true, true, "^good bad fine good worse$", "ugly", None),
        ] {
            let step = build::<AiPromptGuard>(json!({
                "match_all_roles": roles, "match_all_conversation_history": history,
                "allow_patterns": [allow, "never"], "deny_patterns": ["never", deny],
            }));
            let told = message(&step, "application/json", &conversation(&all));
            assert_eq!(told.as_deref(), want, "{roles} {history} {allow} {deny}");
        }
        let allow = build::<AiPromptGuard>(json!({"allow_patterns": ["good"]}));
        let none_of_users = conversation(&[("system", "good")]);
        assert_eq!(message(&allow, "application/json", &none_of_users).as_deref(), NOT_ALLOWED);
        let nothing = build::<AiPromptGuard>(json!({}));
        assert_eq!(message(&nothing, "application/json", &conversation(&all)), None);
    }

    #[test]
    fn parts_of_contents_are_checked_or_refused() {
        let step = build::<AiPromptGuard>(json!({"deny_patterns": ["bad"]}));
        let with = |part: Value| {
            let parts = json!([{"type": "text", "text": "fine"}, part]);
            let content = json!({"messages": [{"role": "user", "content": parts}]}).to_string();
            message(&step, "application/json", &content)
        };
        assert_eq!(with(json!({"type": "text", "text": "bad"})).as_deref(), DENIED);
        let escaped = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "b\u0061d"}]}]}"#;
        assert_eq!(message(&step, "application/json", escaped).as_deref(), DENIED);
        assert_eq!(with(json!({"type": "input_text", "text": "bad"})).as_deref(), DENIED);
        assert_eq!(with(json!({"type": "image_url", "image_url": {"url": "https://bad.example"}})), None);
        let unknown = with(json!({"type": "poem", "text": "fine", "verses": ["bad"]})).expect("refused");
        assert!(unknown.starts_with("messages[0]: has a part whose type is not known"), "{unknown}");
    }

    #[test]
    fn requests_that_cannot_be_checked_are_up_to_the_option_but_unclear_ones_are_refused() {
        let step = |mode: &str| build::<AiPromptGuard>(json!({"deny_patterns": ["bad"], "fail_mode": mode}));
        for (content_type, content, want) in [
            ("text/plain", "bad", "The request cannot be checked: its body is not JSON"),
            ("application/json", "{\"prompt\": \"bad\"}", "The request cannot be checked: its body has no `messages`"),
            (
                "application/json",
                "{\"Input\": \"bad\", \"messages\": []}",
                "The request cannot be checked: its body has prompts beside its `messages`",
            ),
        ] {
            assert_eq!(message(&step("error"), content_type, content).as_deref(), Some(want), "{content}");
            assert_eq!(message(&step("skip"), content_type, content), None, "{content}");
            assert_eq!(message(&step("warn"), content_type, content), None, "{content}");
        }
        let of_text = conversation(&[("user", "bad")]);
        assert_eq!(message(&step("skip"), "text/plain", &of_text).as_deref(), DENIED, "whatever the type says");
        for content in ["{\"messages\": [", "{\"messages\": [], \"messages\": []}", "{\"Messages\": []}", "[]"] {
            assert!(message(&step("skip"), "application/json", content).is_some(), "{content}");
        }
        assert_eq!(on_request(&step("skip"), &mut get("/")), Ok(()));
        assert_eq!(on_request(&step("error"), &mut get("/")), Err(Stop::Answered));
        let small = build::<AiPromptGuard>(json!({"max_req_body_size": 5}));
        assert_eq!(small.whole_request(&mut get("/")), Ok(Some(5)));
    }

    #[test]
    fn long_bodies_are_checked_elsewhere() {
        let step = build::<AiPromptGuard>(json!({"deny_patterns": ["bad"]}));
        for (end, want) in [("good", None), ("bad", DENIED)] {
            let long = conversation(&[("user", &format!("{}{end}", " ".repeat(MOST_AT_ONCE)))]);
            let mut content = long.clone().into_bytes();
            let mut exchange = get("/");
            assert!(matches!(step.on_request_body(&mut exchange, &mut content), Ok(Flow::Wait(_))));
            assert_eq!(message(&step, "application/json", &long).as_deref(), want);
        }
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({"deny_patterns": ["a", "("]}), "deny_patterns[1]: is not a regular expression"),
            (json!({"allow_patterns": ["(?=a)"]}), "allow_patterns[0]: is not a regular expression"),
            (json!({"fail_mode": "log"}), "fail_mode: "),
            (json!({"max_req_body_size": 0}), "max_req_body_size: "),
        ] {
            let error = refused::<AiPromptGuard>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
