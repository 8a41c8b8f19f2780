//! What the protocols of both browsers have in common: calls with an id, their answers, and events of pages in between.

use std::collections::HashMap;
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use serde_json::Value;

use super::BROWSER_DEADLINE;

/// What has come from the browser.
#[derive(Default)]
struct ReceivedAnswers {
    answers: HashMap<u64, Value>,
    /// By page.
    events: HashMap<String, Vec<Value>>,
    has_ended: bool,
}

/// Sends a message.
type Sender = Box<dyn FnMut(&str) + Send>;

pub(super) struct BrowserConnection {
    send: Mutex<Sender>,
    received: Arc<(Mutex<ReceivedAnswers>, Condvar)>,
    next_id: AtomicU64,
}

impl BrowserConnection {
    /// To a browser that is this process. `next` waits for the next message; `None` is the end of the browser.
    pub(super) fn new(
        mut browser: Child,
        send: impl FnMut(&str) + Send + 'static,
        next: impl FnMut() -> Option<Vec<u8>> + Send + 'static,
    ) -> BrowserConnection {
        let received = Arc::<(Mutex<ReceivedAnswers>, Condvar)>::default();
        let kept = Arc::clone(&received);
        thread::spawn(move || {
            collect(next, &kept);
            // Reaps it.
            let _ = browser.wait();
        });
        BrowserConnection { send: Mutex::new(Box::new(send)), received, next_id: AtomicU64::new(1) }
    }

    fn state(&self) -> MutexGuard<'_, ReceivedAnswers> {
        lock(&self.received.0)
    }

    /// Sends a call and returns its result, or the text of its error.
    #[track_caller]
    pub(super) fn call(&self, mut message: Value) -> Result<Value, String> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        message["id"] = id.into();
        lock(&self.send)(&message.to_string());
        let method = &message["method"];
        let end = Instant::now() + BROWSER_DEADLINE;
        let mut state = self.state();
        loop {
            if let Some(mut answer) = state.answers.remove(&id) {
                let error = answer.get("error").map(|error| format!("{error} {}", answer["message"]));
                return error.map_or_else(|| Ok(answer["result"].take()), Err);
            }
            assert!(!state.has_ended, "{method}: the browser has ended");
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{method}: no answer of the browser within {BROWSER_DEADLINE:?}");
            state = self.received.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The parameters of the events of a page so far.
    pub(super) fn events(&self, page: &str, method: &str) -> Vec<Value> {
        let state = self.state();
        let all = state.events.get(page).into_iter().flatten();
        all.filter(|event| event["method"] == method).map(|event| event["params"].clone()).collect()
    }

    /// Drops the events of a page.
    pub(super) fn forget(&self, page: &str) {
        self.state().events.remove(page);
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The page that an event is of: a session in Chromium, a browsing context in Firefox.
fn page_of(event: &Value) -> Option<&str> {
    let parameters = &event["params"];
    [&event["sessionId"], &parameters["context"], &parameters["source"]["context"]].into_iter().find_map(Value::as_str)
}

/// Sorts what comes from the browser into answers and events.
fn collect(mut next: impl FnMut() -> Option<Vec<u8>>, received: &(Mutex<ReceivedAnswers>, Condvar)) {
    while let Some(text) = next() {
        let message: Value = serde_json::from_slice(&text).unwrap_or_default();
        let mut state = lock(&received.0);
        if let Some(id) = message["id"].as_u64() {
            state.answers.insert(id, message);
        } else if let Some(page) = page_of(&message).map(str::to_owned) {
            state.events.entry(page).or_default().push(message);
        }
        received.1.notify_all();
    }
    lock(&received.0).has_ended = true;
    received.1.notify_all();
}
