//! Chromium: over two pipes, with Chrome's DevTools protocol as JSON texts that end with a zero byte.
//!
//! All tests of a process share one browser; each page has a context of its own, and with it its own cookies and storage. The
//! browser ends when its pipe does.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::connection::BrowserConnection;
use super::{PageDriver, PressedKey};
use crate::place::TempDir;
use crate::skipped::skipped;

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

struct ChromiumProcess {
    connection: BrowserConnection,
    _profile: TempDir,
}

impl ChromiumProcess {
    /// The browser of this process, started by the first who asks. `None`, with a line that reports the test as skipped, if there is
    /// none.
    fn shared() -> Option<&'static ChromiumProcess> {
        static SHARED: OnceLock<ChromiumProcess> = OnceLock::new();
        let name = chromium()?;
        Some(SHARED.get_or_init(|| ChromiumProcess::start(name)))
    }

    fn start(name: &str) -> ChromiumProcess {
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
        let mut input = child.stdin.take().expect("stdin is piped");
        let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let send =
            move |message: &str| input.write_all(&[message.as_bytes(), &[0]].concat()).expect("the browser reads");
        let next = move || {
            let mut text = Vec::new();
            output.read_until(0, &mut text).ok().filter(|length| *length > 0)?;
            text.pop_if(|last| *last == 0);
            Some(text)
        };
        ChromiumProcess { connection: BrowserConnection::new(child, send, next), _profile: profile }
    }

    fn call(&self, session: Option<&str>, method: &str, parameters: &Value) -> Result<Value, String> {
        let mut message = json!({ "method": method, "params": parameters });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        self.connection.call(message)
    }
}

/// A page in Chromium. Dropping it closes the page.
pub(super) struct ChromiumPage {
    browser: &'static ChromiumProcess,
    session: String,
    context: String,
}

impl ChromiumPage {
    #[track_caller]
    pub(super) fn open() -> Option<ChromiumPage> {
        let browser = ChromiumProcess::shared()?;
        let ask = |method: &str, parameters: Value| {
            browser.call(None, method, &parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
        };
        let text = |value: &Value| value.as_str().expect("ids are texts").to_owned();
        let context = text(&ask("Target.createBrowserContext", json!({}))["browserContextId"]);
        let target = ask("Target.createTarget", json!({ "url": "about:blank", "browserContextId": context }));
        let attached = ask("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        let page = ChromiumPage { browser, session: text(&attached["sessionId"]), context };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(page)
    }

    /// Calls a method of the protocol for this page.
    #[track_caller]
    pub(super) fn call(&self, method: &str, parameters: &Value) -> Value {
        self.browser.call(Some(&self.session), method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn events(&self, method: &str) -> Vec<Value> {
        self.browser.connection.events(&self.session, method)
    }
}

impl PageDriver for ChromiumPage {
    fn visit(&self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
    }

    fn evaluate(&self, expression: &str) -> Result<Value, String> {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut answer = self.browser.call(Some(&self.session), "Runtime.evaluate", &parameters)?;
        match answer.get("exceptionDetails") {
            Some(thrown) => Err(thrown.to_string()),
            None => Ok(answer["result"]["value"].take()),
        }
    }

    fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    fn click(&self, x: f64, y: f64) {
        for (kind, buttons) in [("mouseMoved", 0), ("mousePressed", 1), ("mouseReleased", 0)] {
            let button = if kind == "mouseMoved" { "none" } else { "left" };
            let event = json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    fn press(&self, key: PressedKey<'_>) {
        let code = match key.name {
            "Enter" => 13,
            "Escape" => 27,
            "Delete" => 46,
            "ArrowDown" => 40,
            "ArrowUp" => 38,
            "Tab" => 9,
            " " => 32,
            // Those of letters and digits are the ASCII codes of capitals.
            name if name.len() == 1 => {
                name.bytes().find(u8::is_ascii_alphanumeric).map_or(0, |byte| byte.to_ascii_uppercase())
            }
            _ => 0,
        };
        let modifiers = if key.with_control { 2 } else { 0 };
        let mut event =
            json!({ "type": "rawKeyDown", "key": key.name, "modifiers": modifiers, "windowsVirtualKeyCode": code });
        let text = if key.name == "Enter" { "\r" } else { key.name };
        if !key.with_control && text.chars().count() == 1 {
            event["type"] = "keyDown".into();
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", &event);
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", &event);
    }

    fn write(&self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    fn allow_clipboard(&self) {
        let permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"];
        self.call("Browser.grantPermissions", &json!({ "permissions": permissions }));
    }

    fn complaints(&self) -> Vec<String> {
        let is_loud = |kind: &Value| matches!(kind.as_str(), Some("error" | "warning" | "assert"));
        let thrown =
            self.events("Runtime.exceptionThrown").into_iter().map(|event| event["exceptionDetails"].to_string());
        let said = self.events("Runtime.consoleAPICalled").into_iter().filter(|event| is_loud(&event["type"]));
        let logged = self.events("Log.entryAdded").into_iter().map(|event| event["entry"].clone());
        let logged = logged.filter(|entry| is_loud(&entry["level"]) && entry["source"] != "network");
        thrown.chain(said.map(|event| event["args"].to_string())).chain(logged.map(|entry| entry.to_string())).collect()
    }

    fn requested(&self) -> Vec<String> {
        let sent = self.events("Network.requestWillBeSent").into_iter();
        sent.filter_map(|event| event["request"]["url"].as_str().map(str::to_owned)).collect()
    }

    fn chromium(&self) -> Option<&ChromiumPage> {
        Some(self)
    }
}

impl Drop for ChromiumPage {
    fn drop(&mut self) {
        let _ = self.browser.call(None, "Target.disposeBrowserContext", &json!({ "browserContextId": self.context }));
        self.browser.connection.forget(&self.session);
    }
}
