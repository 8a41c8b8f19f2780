//! Helpers for the plugins' tests: exchanges with requests, and plugins built from options.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use weir_plugin::proto::h1::{Limits, parse_request};
use weir_plugin::{
    AnswersInPlace, Build, BuildContext, ConfigError, Consumer, Credential, Definition, Entry, Exchange, Flow, Plugin,
    Proof, Stop, Template,
};
use weir_records::Record;

use crate::log::capture::Capture;

/// An exchange with this request head, as after routing. Lines end in ` ` here.
pub(crate) fn exchange(head: &str) -> Exchange {
    let mut exchange = Exchange::default();
    let head = head.trim_end().replace('\n', "\r\n") + "\r\n\r\n";
    parse_request(head.as_bytes(), &Limits::default(), &mut exchange.request).expect("valid").expect("complete");
    exchange.client.peer = ([192, 0, 2, 7], 40000).into();
    exchange.client.addr = exchange.client.peer.ip();
    exchange
}

/// A log record with these members as its JSON object.
pub(crate) fn captured(sequence: u64, members: Value) -> Record {
    captured_at(0, sequence, members, &[])
}

/// The same for an exchange that ended at `end_ms` since 1970; `hidden` are the templates that only the destination uses.
pub(crate) fn captured_at(end_ms: u64, sequence: u64, members: Value, hidden: &[&[u8]]) -> Record {
    let hidden = hidden.iter().map(|text| Template::compile(&String::from_utf8_lossy(text))).collect();
    let capture =
        Capture::compile(members.as_object(), None, &mut Build::default()).expect("valid").with_hidden(hidden);
    let mut payload = Vec::new();
    capture.write(&Exchange::default(), 0, &mut payload);
    payload[1..9].copy_from_slice(&end_ms.to_le_bytes());
    Record { boot: 1, sequence, payload, attachments: Vec::new() }
}

/// A GET of this target from `h.example`.
pub(crate) fn get(target: &str) -> Exchange {
    exchange(&format!("GET {target} HTTP/1.1\nHost: h.example"))
}

/// A plugin built from its options as JSON.
pub(crate) fn build<D: Definition>(options: Value) -> Arc<dyn Plugin> {
    try_build::<D>(options).unwrap_or_else(|error| panic!("{error}"))
}

/// The error that these options cause.
#[track_caller]
pub(crate) fn refused<D: Definition>(options: Value) -> String {
    match try_build::<D>(options) {
        Ok(_) => panic!("these options should have been refused"),
        Err(error) => error.to_string(),
    }
}

/// The same, for options that name upstreams, which get the numbers 0, 1 and so on.
pub(crate) fn build_with_upstreams<D: Definition>(options: Value) -> Arc<dyn Plugin> {
    let mut build = Build::default().with_upstreams(upstreams(&options));
    (Entry::of::<D>().build)(&options, &mut build).unwrap_or_else(|error| panic!("{error}"))
}

/// Numbers for the upstreams that the options name, as the compiler of a document assigns them.
pub(crate) fn upstreams(options: &Value) -> Vec<(Box<str>, u32)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut places = Vec::new();
    for (rule, options) in list(&options["rules"]).iter().enumerate() {
        for (index, share) in list(&options["weighted_upstreams"]).iter().enumerate() {
            if share.get("upstream").or(share.get("upstream_id")).is_some() {
                places.push(format!("rules[{rule}].weighted_upstreams[{index}]").into());
            }
        }
    }
    places.into_iter().zip(0..).collect()
}

/// Builds the plugin for a resource that no other test uses, so that no state is shared.
fn try_build<D: Definition>(options: Value) -> Result<Arc<dyn Plugin>, ConfigError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let owner = format!("test/{}", NEXT.fetch_add(1, Ordering::Relaxed));
    (Entry::of::<D>().build)(&options, &mut Build::of(owner, &Rc::default()))
}

/// Builds a plugin with the context that all plugins of a document share.
pub(crate) fn build_with<D: Definition>(
    options: Value,
    shared: &Rc<BuildContext>,
) -> Result<Arc<dyn Plugin>, ConfigError> {
    (Entry::of::<D>().build)(&options, &mut Build::of("test".to_owned(), shared))
}

/// A context with consumers, each with one credential: user name, plugin, options.
pub(crate) fn with_consumers(consumers: &[(&str, &str, Value)]) -> Rc<BuildContext> {
    let mut shared = BuildContext::default();
    for (username, plugin, options) in consumers {
        let consumer = Consumer { username: (*username).into(), ..Consumer::default() };
        let proof = Proof { plugin: (*plugin).into(), id: Box::default(), options: options.clone() };
        shared.consumers.add(consumer, [proof]);
    }
    Rc::new(shared)
}

/// Identifies the client as a consumer with these labels.
pub(crate) fn identify(exchange: &mut Exchange, labels: &[(&str, &str)]) {
    let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let consumer = Arc::new(Consumer { username: "jack".into(), labels, ..Consumer::default() });
    let credential = Credential { consumer, id: Box::default(), options: Value::Null };
    exchange.identify(&Arc::new(credential)).expect("a valid name");
}

/// Runs a plugin's request phase.
pub(crate) fn on_request(step: &Arc<dyn Plugin>, exchange: &mut Exchange) -> Result<(), Stop> {
    let end = finished(step.on_request(exchange));
    let says_so = step.answers_in_place() != AnswersInPlace::Never;
    assert!(says_so || exchange.responder().is_none(), "the plugin says that it sets no responder");
    end
}

/// Passes the whole content of a request to a plugin.
pub(crate) fn on_request_body(step: &Arc<dyn Plugin>, exchange: &mut Exchange, content: &str) -> Result<(), Stop> {
    let mut content = content.as_bytes().to_vec();
    finished(step.on_request_body(exchange, &mut content))
}

/// What becomes of a turn that may wait.
pub(crate) fn finished(turn: Result<Flow<'_>, Stop>) -> Result<(), Stop> {
    match turn {
        Ok(Flow::Wait(waiting)) => waited(waiting),
        turn => turn.map(|_| ()),
    }
}

/// Runs the future in a runtime with a paused clock, which advances to the next deadline at once.
fn waited<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime").block_on(future)
}

/// The options of an entry's example.
pub(crate) fn example(entry: &Entry) -> Value {
    let document: Value =
        serde_saphyr::from_str(entry.example).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
    document.get(entry.name).unwrap_or_else(|| panic!("the example of {} names it", entry.name)).clone()
}

/// The value of a response field, as text.
pub(crate) fn sent<'a>(exchange: &'a Exchange, name: &str) -> Option<&'a str> {
    exchange.response.head.value(name.as_bytes()).map(|value| std::str::from_utf8(value).expect("test values are text"))
}

/// The body of an answer, as text.
pub(crate) fn body(exchange: &Exchange) -> &str {
    std::str::from_utf8(&exchange.body).expect("test bodies are text")
}
