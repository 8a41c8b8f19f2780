//! Requests in OpenAI's chat format: the messages of a body are read, or messages are put before and after them, while the rest of the
//! body stays as it is.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_plugin::proto::Head;
use weir_plugin::{Exchange, Flow, NoteKey, Stop};

use crate::answer::RefusalResponse;
use crate::content::coding::{self, Opaque};
use crate::content::elsewhere::{elsewhere, is_long};
use crate::content::json::{Container, JsonError, JsonToken, Scanner};
use crate::content::{forget_request_content, quoted};

/// The deepest nesting of a body.
const MOST_DEPTH: usize = 100;
/// The most tokens in a body: each takes about a hundred bytes as a value, however short it is.
const MOST_TOKENS: usize = 200_000;

/// The default of `max_req_body_size`.
pub(crate) fn default_max_req_body_size() -> u64 {
    64 << 20
}

/// Refuses a request for what is wrong with it.
pub(crate) fn refuse(exchange: &mut Exchange, plugin: &str, problem: &str) -> Stop {
    RefusalResponse::new(400, "message", &format!("{plugin}: {problem}")).send(exchange)
}

/// Refuses a request without a body.
pub(crate) fn need_body(exchange: &mut Exchange, plugin: &str) -> Result<Flow<'static>, Stop> {
    match exchange.request.framing.has_body() || exchange.request_body().is_some() {
        true => Ok(Flow::Continue),
        false => Err(refuse(exchange, plugin, "The request has no body")),
    }
}

/// Reads a body, without its coding, and then goes on with what was read. Long bodies are read on another thread.
///
/// # Errors
/// The body cannot be decoded, or what `then` returns.
pub(crate) fn read<'a, T: Send + 'static>(
    exchange: &'a mut Exchange,
    limit: u64,
    body: &'a mut Vec<u8>,
    read: impl FnOnce(&[u8]) -> T + Send + 'static,
    then: impl FnOnce(&mut Exchange, &mut Vec<u8>, T) -> Result<(), Stop> + 'a,
) -> Result<Flow<'a>, Stop> {
    let plain = move |head: &Head, body: &[u8]| coding::plain(head, body, limit).map(|plain| read(&plain));
    let opaque = |opaque: Opaque| Stop::Respond(opaque.status());
    if !is_long(&exchange.request.head, body) {
        let found = plain(&exchange.request.head, body).map_err(opaque)?;
        return Ok(then(exchange, body, found)?.into());
    }
    Ok(Flow::wait(async move {
        let (head, content) = (exchange.request.head.clone(), std::mem::take(body));
        let work = move || {
            let found = plain(&head, &content);
            (content, found)
        };
        let (content, found) = elsewhere(exchange.client.addr, work).await?;
        *body = content;
        then(exchange, body, found.map_err(opaque)?)
    }))
}

/// Puts a new body in the place of the body of a request, or refuses the request for what is wrong with it.
pub(crate) fn replace(
    exchange: &mut Exchange,
    plugin: &str,
    body: &mut Vec<u8>,
    made: Result<Vec<u8>, String>,
) -> Result<(), Stop> {
    *body = made.map_err(|problem| refuse(exchange, plugin, &problem))?;
    forget_request_content(exchange);
    Ok(())
}

/// A message that the gateway writes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptMessage {
    /// In whose name the message is.
    pub(crate) role: PromptRole,
    /// The text of the message.
    #[schemars(length(min = 1))]
    pub(crate) content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PromptRole {
    System,
    User,
    Assistant,
}

/// Why a body is no request in the chat format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChatFault {
    /// It is not an object in JSON.
    NotJson,
    /// It is, and is refused whatever it is for: why.
    Unclear(String),
}

impl ChatFault {
    /// What is wrong, as a sentence.
    pub(crate) fn text(&self) -> &str {
        match self {
            ChatFault::NotJson => "The body is not an object in JSON",
            ChatFault::Unclear(problem) => problem,
        }
    }
}

/// A body that is an object in JSON.
#[derive(Debug)]
pub(crate) struct ChatBody<'a> {
    body: &'a [u8],
    /// The names of its members, without escapes.
    names: HashSet<Cow<'a, str>>,
    /// Where the list of messages is, with its brackets.
    messages: Option<Range<usize>>,
}

/// A message of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChatMessage {
    pub(crate) role: String,
    /// All texts of its content.
    pub(crate) text: String,
}

/// The roles that messages of the format have.
const ROLES: [&str; 6] = ["assistant", "developer", "function", "system", "tool", "user"];
/// The types of parts whose member `text` is their text.
const TYPES_OF_TEXT: [&str; 3] = ["input_text", "output_text", "text"];
/// The types of parts that have no text.
const TYPES_WITHOUT_TEXT: [&str; 3] = ["file", "image_url", "input_audio"];

impl<'a> ChatBody<'a> {
    /// # Errors
    /// The body is no object, is too large to be read, or has a member twice: readers differ in which of them counts.
    pub(crate) fn read(body: &'a [u8]) -> Result<ChatBody<'a>, ChatFault> {
        let fault = |error| match error {
            JsonError::Syntax(_) => ChatFault::NotJson,
            JsonError::Depth => ChatFault::Unclear("The body is nested too deep".to_owned()),
        };
        let mut scanner = Scanner::new(body, MOST_DEPTH).map_err(fault)?;
        let (mut names, mut messages) = (HashSet::new(), None);
        // The names in the open objects but the first one; `None` for a list.
        let mut open: Vec<Option<HashSet<Cow<'a, str>>>> = Vec::new();
        let (mut is_messages, mut started, mut count) = (false, None, 0_usize);
        while let Some(token) = scanner.token().map_err(fault)? {
            count += 1;
            if count > MOST_TOKENS {
                return Err(ChatFault::Unclear(format!("The body has more than {MOST_TOKENS} values")));
            }
            match token {
                JsonToken::Open(container) => {
                    if open.is_empty() && container == Container::List {
                        return Err(ChatFault::NotJson);
                    }
                    if open.len() == 1 && is_messages && container == Container::List {
                        started = Some(scanner.position() - 1);
                    }
                    open.push((container == Container::Object).then(HashSet::new));
                }
                JsonToken::Close(_) => {
                    let inner = open.pop().flatten();
                    match open.len() {
                        0 => names = inner.unwrap_or_default(),
                        1 => messages = started.take().map(|start| start..scanner.position()).or(messages),
                        _ => {}
                    }
                }
                JsonToken::Name(span) => {
                    let name = scanner.unquoted(&span).map_err(fault)?;
                    if open.len() == 1 {
                        is_messages = name == "messages";
                    }
                    let told = name.clone();
                    if open.last_mut().and_then(Option::as_mut).is_some_and(|names| !names.insert(name)) {
                        let told = quoted(&told);
                        return Err(ChatFault::Unclear(format!("The body has the member `{told}` twice in an object")));
                    }
                }
                JsonToken::Text(_) | JsonToken::Plain(_) if open.is_empty() => return Err(ChatFault::NotJson),
                JsonToken::Text(_) | JsonToken::Plain(_) => {}
            }
        }
        let chat = ChatBody { body, names, messages };
        not_like(chat.names.iter().map(|name| &**name), &["messages"]).map_err(ChatFault::Unclear)?;
        match chat.messages.is_none() && chat.has("messages") {
            true => Err(ChatFault::Unclear("The member `messages` is not a list".to_owned())),
            false => Ok(chat),
        }
    }

    /// Whether it has a member of this name, which is given in lower case; case is ignored, as by some readers.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|own| folded(own) == name)
    }

    /// The whole body as a value.
    pub(crate) fn value(&self) -> Result<Value, ChatFault> {
        serde_json::from_slice(self.body).map_err(|_| ChatFault::NotJson)
    }

    /// The messages; `None` if the body has no list of messages.
    ///
    /// # Errors
    /// A message whose role or text cannot be told for certain.
    pub(crate) fn messages(&self) -> Result<Option<Vec<ChatMessage>>, ChatFault> {
        let Some(span) = &self.messages else { return Ok(None) };
        let values: Vec<Value> = serde_json::from_slice(&self.body[span.clone()]).map_err(|_| ChatFault::NotJson)?;
        let messages = values.iter().enumerate().map(|(index, value)| {
            ChatMessage::read(value).map_err(|problem| ChatFault::Unclear(format!("messages[{index}]: {problem}")))
        });
        messages.collect::<Result<_, _>>().map(Some)
    }

    /// The body with these messages, texts of JSON with commas between them, before and after its own; `None` if it has no list of
    /// messages.
    pub(crate) fn with_messages(&self, before: &str, after: &str) -> Option<Vec<u8>> {
        let span = self.messages.clone()?;
        let own = self.body[span.start + 1..span.end - 1].trim_ascii();
        let lists = [before.as_bytes(), own, after.as_bytes()];
        let middle = lists.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>().join(&b", "[..]);
        Some([&self.body[..=span.start], &middle, &self.body[span.end - 1..]].concat())
    }
}

/// The messages as texts of JSON, with commas between them.
pub(crate) fn written(messages: &[PromptMessage]) -> String {
    let json = |message| serde_json::to_string(message).expect("two texts are JSON");
    messages.iter().map(json).collect::<Vec<_>>().join(", ")
}

/// The numbers of messages that the gateway has put before and after those of a request.
static ADDED: LazyLock<NoteKey> = LazyLock::new(NoteKey::unique);

/// Notes that so many messages were put before and after those of a request.
pub(crate) fn note_added(exchange: &mut Exchange, before: usize, after: usize) {
    let [sum_before, sum_after, _] = exchange.notes.read(*ADDED).unwrap_or_default();
    exchange.notes.write(*ADDED, [sum_before + before as u64, sum_after + after as u64, 0]);
}

/// How many messages the gateway has put before and after those of a request.
pub(crate) fn added(exchange: &Exchange) -> (u64, u64) {
    let [before, after, _] = exchange.notes.read(*ADDED).unwrap_or_default();
    (before, after)
}

/// The messages without those that the gateway has put before and after them.
pub(crate) fn without_added((before, after): (u64, u64), messages: &[ChatMessage]) -> &[ChatMessage] {
    let end = messages.len().saturating_sub(after as usize);
    // If another plugin has removed messages since, none can be told from the others.
    messages.get(before as usize..end).unwrap_or(messages)
}

impl ChatMessage {
    fn read(value: &Value) -> Result<ChatMessage, String> {
        let Value::Object(members) = value else { return Err("is not an object".to_owned()) };
        not_like(members.keys().map(String::as_str), &["role", "content"])?;
        let role = members.get("role").and_then(Value::as_str).filter(|role| ROLES.contains(role));
        let role = role.ok_or_else(|| format!("has no role, or another one than {}", ROLES.join(", ")))?.to_owned();
        let text = match members.get("content") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(parts)) => parts.iter().map(part_text).collect::<Result<Vec<_>, _>>()?.join(" "),
            Some(_) => return Err("has a content that is neither a text nor a list of parts".to_owned()),
        };
        Ok(ChatMessage { role, text })
    }
}

/// The text of a part of a content.
fn part_text(part: &Value) -> Result<&str, String> {
    let members: &Map<String, Value> = match part {
        Value::String(text) => return Ok(text),
        Value::Object(members) => members,
        _ => return Err("has a part that is not an object".to_owned()),
    };
    not_like(members.keys().map(String::as_str), &["type", "text", "refusal"])?;
    let kind = members.get("type").and_then(Value::as_str).unwrap_or_default();
    let name = match kind {
        kind if TYPES_OF_TEXT.contains(&kind) => "text",
        "refusal" => "refusal",
        kind if TYPES_WITHOUT_TEXT.contains(&kind) => return Ok(""),
        _ => return Err("has a part whose type is not known".to_owned()),
    };
    let text = members.get(name).and_then(Value::as_str);
    text.ok_or_else(|| format!("has a part whose `{name}` is no text"))
}

/// A name without differences of case. Unicode has letters that are `s` or `k` only in upper or in lower case.
fn folded(name: &str) -> String {
    name.to_uppercase().to_lowercase()
}

/// Refuses names that some readers take for one of these: they do not tell upper and lower case apart.
fn not_like<'n>(mut names: impl Iterator<Item = &'n str>, members: &[&str]) -> Result<(), String> {
    match names.find(|name| !members.contains(name) && members.contains(&folded(name).as_str())) {
        Some(name) => Err(format!("The member `{}` is not allowed", quoted(name))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(body: &str) -> Result<Vec<(String, String)>, String> {
        let told = |fault: ChatFault| fault.text().to_owned();
        let chat = ChatBody::read(body.as_bytes()).map_err(told)?;
        let messages = chat.messages().map_err(told)?.ok_or("no messages")?;
        Ok(messages.into_iter().map(|message| (message.role, message.text)).collect())
    }

    #[test]
    fn texts_are_read_from_contents_of_every_form() {
        let body = r#"{"model": "m", "messages": [
            {"role": "system", "content": "a\u0062"},
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "image_url", "image_url": {"url": "u"}}, {"type": "input_text", "text": "d"}, "e"]},
            {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "tool"}], "n": {"messages": [1]}}"#;
        let want = [("system", "ab"), ("user", "c  d e"), ("assistant", ""), ("assistant", "no"), ("tool", "")];
        let want: Vec<_> = want.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect();
        assert_eq!(texts(body), Ok(want));
        assert_eq!(texts(r#"{"messages": []}"#), Ok(Vec::new()));
        assert_eq!(texts(r#"{"a": {"messages": []}, "b": []}"#), Err("no messages".to_owned()));
    }

    #[test]
    fn bodies_and_messages_that_readers_may_read_in_another_way_are_refused() {
        for (body, want) in [
            ("", "The body is not an object in JSON"),
            ("[{}]", "The body is not an object in JSON"),
            ("\"a\"", "The body is not an object in JSON"),
            ("{} {}", "The body is not an object in JSON"),
            (r#"{"messages": [], "messages": []}"#, "The body has the member `messages` twice in an object"),
            (r#"{"messages": [], "mess\u0061ges": []}"#, "The body has the member `messages` twice in an object"),
            (r#"{"messages": [{"content": "a", "content": "b"}]}"#, "The body has the member `content` twice"),
            (r#"{"messages": [], "Messages": []}"#, "The member `Messages` is not allowed"),
            (r#"{"meſſages": []}"#, "The member `meſſages` is not allowed"),
            (r#"{"messages": {}}"#, "The member `messages` is not a list"),
            (r#"{"messages": "a", "b": []}"#, "The member `messages` is not a list"),
            (r#"{"messages": ["a"]}"#, "messages[0]: is not an object"),
            (r#"{"messages": [{"role": "user"}, {"role": "User"}]}"#, "messages[1]: has no role, or another one than"),
            (r#"{"messages": [{"content": "a"}]}"#, "messages[0]: has no role"),
            (r#"{"messages": [{"role": "user", "Content": "a"}]}"#, "messages[0]: The member `Content` is not allowed"),
            (r#"{"messages": [{"role": "user", "content": {"text": "a"}}]}"#, "messages[0]: has a content that is"),
            (r#"{"messages": [{"role": "user", "content": [1]}]}"#, "messages[0]: has a part that is not an object"),
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": ["a"]}]}]}"#,
                "messages[0]: has a part whose `text` is no text",
            ),
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "words", "words": "a"}]}]}"#,
                "messages[0]: has a part whose type is not known",
            ),
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "words", "text": "a", "words": "b"}]}]}"#,
                "messages[0]: has a part whose type is not known",
            ),
        ] {
            let told = texts(body).expect_err(body);
            assert!(told.starts_with(want), "{body}: {told}");
        }
        let long = "é".repeat(1000);
        let twice = texts(&format!("{{\"{long}\": 1, \"{long}\": 2}}")).expect_err("twice");
        assert_eq!(twice, format!("The body has the member `{}` twice in an object", "é".repeat(30)));
        let deep = format!("{{\"a\": {}", "[".repeat(MOST_DEPTH));
        assert_eq!(texts(&deep), Err("The body is nested too deep".to_owned()));
        let long = format!("{{\"a\": [{}1]}}", "1,".repeat(MOST_TOKENS));
        assert_eq!(texts(&long), Err("The body has more than 200000 values".to_owned()));
    }

    #[test]
    fn messages_are_put_around_those_of_a_body_whose_rest_stays() {
        let with = |body: &str, before: &str, after: &str| {
            let chat = ChatBody::read(body.as_bytes()).expect("valid");
            chat.with_messages(before, after).map(|made| String::from_utf8(made).expect("text"))
        };
        let body = r#"{"temperature": 1.10, "messages": [ {"a": [1]} ], "seed": 12345678901234567890123}"#;
        let want = r#"{"temperature": 1.10, "messages": [1, {"a": [1]}, 2, 3], "seed": 12345678901234567890123}"#;
        assert_eq!(with(body, "1", "2, 3").as_deref(), Some(want));
        assert_eq!(with(r#"{"messages": [ ]}"#, "1", "2").as_deref(), Some(r#"{"messages": [1, 2]}"#));
        assert_eq!(with(r#"{"messages":[4]}"#, "", "2").as_deref(), Some(r#"{"messages":[4, 2]}"#));
        assert_eq!(with("{}", "1", "2"), None);
        let own = PromptMessage { role: PromptRole::System, content: "say \"hi\"".to_owned() };
        assert_eq!(written(&[own.clone(), own]).matches(r#"{"role":"system","content":"say \"hi\""}"#).count(), 2);
    }
}
