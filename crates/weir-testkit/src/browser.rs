//! A Chromium that a test drives: over two pipes, with Chrome's DevTools protocol as JSON texts that end with a zero byte.
//!
//! All tests of a process share one browser; each page has a context of its own, and with it its own cookies and storage. The
//! browser ends when its pipe does.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::place::TempDir;
use crate::skipped::skipped;

/// How long a test waits for the browser. A browser on a machine that runs other tests can take long for a page.
pub const BROWSER_DEADLINE: Duration = Duration::from_secs(90);
/// The interval at which a page is asked for a fact.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

const FLAGS: &str = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --mute-audio \
    --disable-extensions --no-first-run --disable-background-networking --force-color-profile=srgb --remote-debugging-pipe";

/// The name of the program. `None`, with a line that reports the test as skipped, if there is none.
pub fn chromium() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    let is_there =
        |name: &&str| Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let found = *FOUND.get_or_init(|| ["chromium", "chromium-browser", "google-chrome"].into_iter().find(is_there));
    if found.is_none() {
        skipped("there is no Chromium");
    }
    found
}

/// What has come from the browser.
#[derive(Default)]
struct FromBrowser {
    answers: HashMap<u64, Value>,
    /// By session.
    events: HashMap<String, Vec<Value>>,
    has_ended: bool,
}

struct Browser {
    input: Mutex<ChildStdin>,
    received: Arc<(Mutex<FromBrowser>, Condvar)>,
    next_id: AtomicU64,
    _profile: TempDir,
}

impl Browser {
    /// The browser of this process, started by the first who asks. `None`, with a line that reports the test as skipped, if there is
    /// none.
    fn shared() -> Option<&'static Browser> {
        static SHARED: OnceLock<Browser> = OnceLock::new();
        let name = chromium()?;
        Some(SHARED.get_or_init(|| Browser::start(name)))
    }

    fn start(name: &str) -> Browser {
        let profile = TempDir::new();
        // Descriptors 3 and 4 are the pipes, which only a shell can arrange without `unsafe`.
        let script =
            format!("exec {name} {FLAGS} --user-data-dir=\"$0\" about:blank 3<&0 4>&1 </dev/null >/dev/null 2>&1");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let input = Mutex::new(child.stdin.take().expect("stdin is piped"));
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let received = Arc::<(Mutex<FromBrowser>, Condvar)>::default();
        let kept = Arc::clone(&received);
        thread::spawn(move || {
            collect(output, &kept);
            // Reaps it.
            let _ = child.wait();
        });
        Browser { input, received, next_id: AtomicU64::new(1), _profile: profile }
    }

    fn state(&self) -> MutexGuard<'_, FromBrowser> {
        self.received.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a method and returns its result, or the text of its error.
    #[track_caller]
    fn call(&self, session: Option<&str>, method: &str, parameters: &Value) -> Result<Value, String> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.input.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text).expect("the browser reads");
        let end = Instant::now() + BROWSER_DEADLINE;
        let mut state = self.state();
        loop {
            if let Some(mut answer) = state.answers.remove(&id) {
                let error = answer["error"]["message"].as_str().map(str::to_owned);
                return error.map_or_else(|| Ok(answer["result"].take()), Err);
            }
            assert!(!state.has_ended, "{method}: the browser has ended");
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{method}: no answer of the browser within {BROWSER_DEADLINE:?}");
            state = self.received.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Sorts what comes from the browser into answers and events.
fn collect(mut output: impl BufRead, received: &(Mutex<FromBrowser>, Condvar)) {
    let mut text = Vec::new();
    while output.read_until(0, &mut text).is_ok_and(|length| length > 0) {
        if text.last() == Some(&0) {
            text.pop();
        }
        let message: Value = serde_json::from_slice(&text).unwrap_or_default();
        text.clear();
        let mut state = received.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = message["id"].as_u64() {
            state.answers.insert(id, message);
        } else if let Some(session) = message["sessionId"].as_str() {
            state.events.entry(session.to_owned()).or_default().push(message);
        }
        received.1.notify_all();
    }
    received.0.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
    received.1.notify_all();
}

/// A page in a browser. Every call panics with a description if the browser refuses it. Dropping it closes the page.
pub struct BrowserPage {
    browser: &'static Browser,
    session: String,
    context: String,
    clicks: Cell<usize>,
}

impl BrowserPage {
    /// An empty page of 1280 by 800 pixels. `None`, with a line that reports the test as skipped, if there is no browser.
    #[track_caller]
    pub fn open() -> Option<BrowserPage> {
        let browser = Browser::shared()?;
        let ask = |method: &str, parameters: Value| {
            browser.call(None, method, &parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
        };
        let text = |value: &Value| value.as_str().expect("ids are texts").to_owned();
        let context = text(&ask("Target.createBrowserContext", json!({}))["browserContextId"]);
        let target = ask("Target.createTarget", json!({ "url": "about:blank", "browserContextId": context }));
        let attached = ask("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        let page = BrowserPage { browser, session: text(&attached["sessionId"]), context, clicks: Cell::new(0) };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), &json!({}));
        }
        page.resize(1280, 800);
        Some(page)
    }

    /// Calls a method of the protocol for this page.
    #[track_caller]
    pub fn call(&self, method: &str, parameters: &Value) -> Value {
        self.browser.call(Some(&self.session), method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    #[track_caller]
    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// The colours that the system prefers: `light` or `dark`.
    #[track_caller]
    pub fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    #[track_caller]
    pub fn visit(&self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
    }

    /// The value of an expression, after the promise if it is one. Panics if it throws.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Value {
        self.try_evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    fn try_evaluate(&self, expression: &str) -> Result<Value, String> {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.browser.call(Some(&self.session), "Runtime.evaluate", &parameters)?;
        match answer.get("exceptionDetails") {
            Some(thrown) => Err(thrown.to_string()),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    /// Waits until an expression is neither false nor empty, and returns its value. What it throws counts as false: the page may be
    /// on its way.
    #[track_caller]
    pub fn wait(&self, what: &str, expression: &str) -> Value {
        let end = Instant::now() + BROWSER_DEADLINE;
        loop {
            let value = self.try_evaluate(expression).unwrap_or_default();
            let is_fact = !matches!(&value, Value::Null | Value::Bool(false)) && value != "" && value != 0;
            if is_fact {
                return value;
            }
            assert!(Instant::now() < end, "not within {BROWSER_DEADLINE:?}: {what}\n{}", self.describe());
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// What the page shows, and what it complains of, for the message of a failure.
    fn describe(&self) -> String {
        let text = self.try_evaluate("location.href + '\\n' + document.body.innerText").unwrap_or_default();
        format!("{}\n{:?}", text.as_str().unwrap_or_default(), self.complaints())
    }

    /// Clicks with the pointer in the middle of the first visible element of a selector, as soon as there is one that can be clicked.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        let quoted = Value::from(selector);
        let place = self.wait(
            &format!("`{selector}` can be clicked"),
            &format!(
                "(() => {{ const element = [...document.querySelectorAll({quoted})].find((one) => one.checkVisibility({{ visibilityProperty: true }}));
                if (!element || element.disabled) return null;
                element.scrollIntoView({{ block: 'center', inline: 'center', behavior: 'instant' }});
                const box = element.getBoundingClientRect();
                const at = [box.x + box.width / 2, box.y + box.height / 2];
                const top = document.elementFromPoint(...at);
                return top && (element.contains(top) || top.contains(element)) ? at : null; }})()"
            ),
        );
        self.clicks.set(self.clicks.get() + 1);
        for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": button, "buttons": buttons, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    /// How often [`BrowserPage::click`] was called since this was asked last.
    pub fn take_clicks(&self) -> usize {
        self.clicks.take()
    }

    /// Presses a key: a letter, a name as of `KeyboardEvent.key`, or either after `Ctrl+`.
    #[track_caller]
    pub fn press(&self, key: &str) {
        let (modifiers, name) = key.strip_prefix("Ctrl+").map_or((0, key), |name| (2, name));
        let code = match name {
            "Enter" => 13,
            "Escape" => 27,
            "Delete" => 46,
            "ArrowDown" => 40,
            "ArrowUp" => 38,
            "Tab" => 9,
            _ => 0,
        };
        let mut event =
            json!({ "type": "rawKeyDown", "key": name, "modifiers": modifiers, "windowsVirtualKeyCode": code });
        let text = if name == "Enter" { "\r" } else { name };
        if modifiers == 0 && text.chars().count() == 1 {
            event["type"] = "keyDown".into();
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", &event);
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", &event);
    }

    /// Types a text into what has the focus.
    #[track_caller]
    pub fn write(&self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Focuses the first element of a selector, selects what it holds, and types a text in its place. This is not a click.
    #[track_caller]
    pub fn fill(&self, selector: &str, text: &str) {
        let quoted = Value::from(selector);
        self.wait(
            &format!("`{selector}` takes text"),
            &format!(
                "(() => {{ const element = [...document.querySelectorAll({quoted})].find((one) => one.checkVisibility() && !one.disabled);
                element?.focus(); element?.select?.(); return Boolean(element); }})()"
            ),
        );
        self.write(text);
    }

    /// A picture of what is visible, as WebP in base64.
    #[track_caller]
    pub fn screenshot(&self) -> String {
        let answer = self.call("Page.captureScreenshot", &json!({ "format": "webp", "quality": 82 }));
        answer["data"].as_str().expect("a picture").to_owned()
    }

    fn events(&self, method: &str) -> Vec<Value> {
        let state = self.browser.state();
        let all = state.events.get(&self.session).into_iter().flatten();
        all.filter(|event| event["method"] == method).map(|event| event["params"].clone()).collect()
    }

    /// Errors and warnings of the page: what it threw, logged and violated. Answers of the node that are no success are not among
    /// them.
    pub fn complaints(&self) -> Vec<String> {
        let is_loud = |kind: &Value| matches!(kind.as_str(), Some("error" | "warning" | "assert"));
        let thrown =
            self.events("Runtime.exceptionThrown").into_iter().map(|event| event["exceptionDetails"].to_string());
        let said = self.events("Runtime.consoleAPICalled").into_iter().filter(|event| is_loud(&event["type"]));
        let logged = self.events("Log.entryAdded").into_iter().map(|event| event["entry"].clone());
        let logged = logged.filter(|entry| is_loud(&entry["level"]) && entry["source"] != "network");
        thrown.chain(said.map(|event| event["args"].to_string())).chain(logged.map(|entry| entry.to_string())).collect()
    }

    /// The URLs of all requests so far.
    pub fn requested(&self) -> Vec<String> {
        let sent = self.events("Network.requestWillBeSent").into_iter();
        sent.filter_map(|event| event["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    /// How many bytes the answers so far had as they were sent.
    pub fn received_bytes(&self) -> f64 {
        self.events("Network.loadingFinished").iter().filter_map(|event| event["encodedDataLength"].as_f64()).sum()
    }
}

impl Drop for BrowserPage {
    fn drop(&mut self) {
        let _ = self.browser.call(None, "Target.disposeBrowserContext", &json!({ "browserContextId": self.context }));
        self.browser.state().events.remove(&self.session);
    }
}
