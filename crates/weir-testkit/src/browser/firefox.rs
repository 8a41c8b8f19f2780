//! Firefox: WebDriver BiDi, JSON texts over a WebSocket.
//!
//! All tests of a process share one browser; each page is a window of a user context of its own, and with it has its own cookies
//! and storage.

use std::fs;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::connection::BrowserConnection;
use super::web_socket::{BrowserSocket, read_text, write_text};
use super::{BROWSER_DEADLINE, PageDriver, PressedKey};
use crate::place::TempDir;
use crate::skipped::skipped;
use crate::wait::eventually_some;

/// Starts the browser, and ends it when the process of the tests has ended, whose pipe it reads.
const SCRIPT: &str = "\"$0\" --headless --no-remote --remote-debugging-port=0 --profile \"$1\" about:blank \
    </dev/null >/dev/null 2>&1 & browser=$!; cat >/dev/null; kill $browser";

/// Violations of a page's policy are events of the page; this makes them lines of its console.
const TELL_VIOLATIONS: &str = "() => addEventListener('securitypolicyviolation', (event) =>
    console.error(event.violatedDirective, event.blockedURI, event.sourceFile, event.lineNumber))";

/// Texts of at most so many characters are typed key by key.
const TYPED: usize = 100;

fn firefox() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    let is_there =
        |name: &&str| Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let found = *FOUND.get_or_init(|| ["firefox-esr", "firefox"].into_iter().find(is_there));
    if found.is_none() {
        skipped("there is no Firefox");
    }
    found
}

struct FirefoxProcess {
    connection: BrowserConnection,
    _until: ChildStdin,
    _profile: TempDir,
}

impl FirefoxProcess {
    fn shared() -> Option<&'static FirefoxProcess> {
        static SHARED: OnceLock<FirefoxProcess> = OnceLock::new();
        let name = firefox()?;
        Some(SHARED.get_or_init(|| FirefoxProcess::start(name)))
    }

    fn start(name: &str) -> FirefoxProcess {
        let profile = TempDir::new();
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, name])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let until = child.stdin.take().expect("stdin is piped");
        let port = eventually_some("Firefox listens", BROWSER_DEADLINE, || {
            let text = fs::read(profile.join("WebDriverBiDiServer.json")).ok()?;
            let told: Value = serde_json::from_slice(&text).ok()?;
            u16::try_from(told["ws_port"].as_u64()?).ok()
        });
        let BrowserSocket { mut output, mut input } =
            BrowserSocket::connect(port, "/session").expect("Firefox accepts it");
        let send = move |message: &str| write_text(&mut output, message).expect("the browser reads");
        let browser = FirefoxProcess {
            connection: BrowserConnection::new(child, send, move || read_text(&mut input)),
            _until: until,
            _profile: profile,
        };
        browser.call("session.new", json!({ "capabilities": {} }));
        browser.call("session.subscribe", json!({ "events": ["log.entryAdded", "network.beforeRequestSent"] }));
        browser.call("script.addPreloadScript", json!({ "functionDeclaration": TELL_VIOLATIONS }));
        browser
    }

    #[track_caller]
    fn call(&self, method: &str, parameters: Value) -> Value {
        let answer = self.connection.call(json!({ "method": method, "params": parameters }));
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }
}

/// A page in Firefox. Dropping it closes the page.
pub(super) struct FirefoxPage {
    browser: &'static FirefoxProcess,
    context: String,
    user: String,
}

impl FirefoxPage {
    #[track_caller]
    pub(super) fn open() -> Option<FirefoxPage> {
        let browser = FirefoxProcess::shared()?;
        let text = |value: &Value| value.as_str().expect("ids are texts").to_owned();
        let user = text(&browser.call("browser.createUserContext", json!({}))["userContext"]);
        let window = json!({ "type": "window", "userContext": user });
        let context = text(&browser.call("browsingContext.create", window)["context"]);
        Some(FirefoxPage { browser, context, user })
    }

    /// Calls a method with this page as its context.
    #[track_caller]
    fn call(&self, method: &str, mut parameters: Value) -> Value {
        parameters["context"] = self.context.as_str().into();
        self.browser.call(method, parameters)
    }

    #[track_caller]
    fn act(&self, kind: &str, actions: Vec<Value>) {
        let source = json!({ "type": kind, "id": kind, "actions": actions });
        self.call("input.performActions", json!({ "actions": [source] }));
    }
}

impl PageDriver for FirefoxPage {
    fn visit(&self, url: &str) {
        self.call("browsingContext.navigate", json!({ "url": url, "wait": "interactive" }));
    }

    fn evaluate(&self, expression: &str) -> Result<Value, String> {
        let target = json!({ "context": self.context });
        let parameters = json!({ "expression": expression, "target": target, "awaitPromise": true });
        let answer = self.browser.connection.call(json!({ "method": "script.evaluate", "params": parameters }))?;
        match answer.get("exceptionDetails") {
            Some(thrown) => Err(thrown["text"].to_string()),
            None => Ok(plain(&answer["result"])),
        }
    }

    fn resize(&self, width: u32, height: u32) {
        self.call("browsingContext.setViewport", json!({ "viewport": { "width": width, "height": height } }));
    }

    fn click(&self, x: f64, y: f64) {
        let place = json!({ "type": "pointerMove", "x": x.round() as i64, "y": y.round() as i64 });
        let button = |kind: &str| json!({ "type": kind, "button": 0 });
        self.act("pointer", vec![place, button("pointerDown"), button("pointerUp")]);
    }

    fn press(&self, key: PressedKey<'_>) {
        let value = match key.name {
            "Enter" => "\u{e006}",
            "Escape" => "\u{e00c}",
            "Delete" => "\u{e017}",
            "ArrowDown" => "\u{e015}",
            "ArrowUp" => "\u{e013}",
            "Tab" => "\u{e004}",
            letter => letter,
        };
        let control = "\u{e009}";
        let mut all = vec![("keyDown", value), ("keyUp", value)];
        if key.with_control {
            all.insert(0, ("keyDown", control));
            all.push(("keyUp", control));
        }
        self.act("key", all.into_iter().map(|(kind, value)| json!({ "type": kind, "value": value })).collect());
    }

    fn write(&self, text: &str) {
        if text.chars().count() > TYPED || text.contains(char::is_control) {
            let inserted = self.evaluate(&format!("document.execCommand('insertText', false, {})", Value::from(text)));
            assert_eq!(inserted, Ok(Value::Bool(true)), "what has the focus takes text");
            return;
        }
        let keys = text.chars().flat_map(|letter| ["keyDown", "keyUp"].map(|kind| (kind, letter.to_string())));
        self.act("key", keys.map(|(kind, value)| json!({ "type": kind, "value": value })).collect());
    }

    /// It needs no permission after a key or a click.
    fn allow_clipboard(&self) {}

    fn complaints(&self) -> Vec<String> {
        let all = self.browser.connection.events(&self.context, "log.entryAdded").into_iter();
        let loud = all.filter(|entry| matches!(entry["level"].as_str(), Some("error" | "warn")));
        loud.map(|entry| entry.to_string()).collect()
    }

    fn requested(&self) -> Vec<String> {
        let sent = self.browser.connection.events(&self.context, "network.beforeRequestSent").into_iter();
        sent.filter_map(|event| event["request"]["url"].as_str().map(str::to_owned)).collect()
    }
}

/// A value as the protocol describes it, as JSON.
fn plain(value: &Value) -> Value {
    let list = || value["value"].as_array().into_iter().flatten();
    match value["type"].as_str() {
        Some("string" | "boolean") => value["value"].clone(),
        // `NaN` and the infinities are texts there, and have no JSON.
        Some("number") => Some(&value["value"]).filter(|number| number.is_number()).cloned().unwrap_or_default(),
        Some("array") => list().map(plain).collect(),
        Some("object") => {
            let member = |pair: &Value| Some((pair[0].as_str()?.to_owned(), plain(&pair[1])));
            Value::Object(list().filter_map(member).collect())
        }
        Some("null" | "undefined") | None => Value::Null,
        // An element, for example.
        Some(_) => json!({}),
    }
}

impl Drop for FirefoxPage {
    fn drop(&mut self) {
        let call = |method: &str, parameters: Value| {
            let _ = self.browser.connection.call(json!({ "method": method, "params": parameters }));
        };
        call("browsingContext.close", json!({ "context": self.context }));
        call("browser.removeUserContext", json!({ "userContext": self.user }));
        self.browser.connection.forget(&self.context);
    }
}
