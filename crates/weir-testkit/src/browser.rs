//! A browser that a test drives: Chromium, or Firefox.

mod chromium;
mod connection;
mod firefox;
mod web_socket;

use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use chromium::ChromiumPage;
pub use chromium::chromium;
use firefox::FirefoxPage;

/// How long a test waits for the browser. A browser on a machine that runs other tests can take long for a page.
pub const BROWSER_DEADLINE: Duration = Duration::from_secs(90);
/// The interval at which a page is asked for a fact.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a page is asked for in the protocol of its browser. What a browser refuses is a panic with a description.
trait PageDriver {
    fn visit(&self, url: &str);
    /// The value of an expression, after the promise if it is one, or what it throws.
    fn evaluate(&self, expression: &str) -> Result<Value, String>;
    fn resize(&self, width: u32, height: u32);
    /// Moves the pointer to a place of the page, and clicks.
    fn click(&self, x: f64, y: f64);
    fn press(&self, key: PressedKey<'_>);
    fn write(&self, text: &str);
    fn allow_clipboard(&self);
    fn complaints(&self) -> Vec<String>;
    fn requested(&self) -> Vec<String>;
    /// For what only Chromium can do.
    fn chromium(&self) -> Option<&ChromiumPage> {
        None
    }
}

/// A key: a letter, or a name as of `KeyboardEvent.key`.
#[derive(Clone, Copy)]
struct PressedKey<'a> {
    name: &'a str,
    with_control: bool,
}

/// How a page was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    pub clicks: usize,
    /// Keys that were pressed, other than those of a text.
    pub keys: usize,
    /// Texts that were typed.
    pub texts: usize,
}

/// A page in a browser. Every call panics with a description if the browser refuses it. Dropping it closes the page.
pub struct BrowserPage {
    driver: Box<dyn PageDriver>,
    uses: Cell<Uses>,
}

impl BrowserPage {
    /// An empty page of Chromium, of 1280 by 800 pixels. `None`, with a line that reports the test as skipped, if there is no browser.
    #[track_caller]
    pub fn open() -> Option<BrowserPage> {
        Some(BrowserPage::of(Box::new(ChromiumPage::open()?)))
    }

    /// The same in Firefox.
    #[track_caller]
    pub fn in_firefox() -> Option<BrowserPage> {
        Some(BrowserPage::of(Box::new(FirefoxPage::open()?)))
    }

    #[track_caller]
    fn of(driver: Box<dyn PageDriver>) -> BrowserPage {
        let page = BrowserPage { driver, uses: Cell::default() };
        page.resize(1280, 800);
        page
    }

    fn chromium(&self) -> &ChromiumPage {
        self.driver.chromium().expect("only Chromium can do this")
    }

    /// Calls a method of Chromium's protocol for this page.
    #[track_caller]
    pub fn call(&self, method: &str, parameters: &Value) -> Value {
        self.chromium().call(method, parameters)
    }

    #[track_caller]
    pub fn resize(&self, width: u32, height: u32) {
        self.driver.resize(width, height);
    }

    /// The colours that the system prefers: `light` or `dark`. Only in Chromium.
    #[track_caller]
    pub fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    #[track_caller]
    pub fn visit(&self, url: &str) {
        self.driver.visit(url);
    }

    /// The value of an expression, after the promise if it is one. Panics if it throws.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Value {
        self.driver.evaluate(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Waits until an expression is neither false nor empty, and returns its value. What it throws counts as false: the page may be
    /// on its way.
    #[track_caller]
    pub fn wait(&self, what: &str, expression: &str) -> Value {
        let end = Instant::now() + BROWSER_DEADLINE;
        loop {
            let value = self.driver.evaluate(expression).unwrap_or_default();
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
        let text = self.driver.evaluate("location.href + '\\n' + document.body.innerText").unwrap_or_default();
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
        self.used(|uses| uses.clicks += 1);
        let at = |axis: usize| place[axis].as_f64().expect("a number");
        self.driver.click(at(0), at(1));
    }

    fn used(&self, count: impl Fn(&mut Uses)) {
        let mut uses = self.uses.get();
        count(&mut uses);
        self.uses.set(uses);
    }

    /// How the page was used since this was asked last.
    pub fn take_uses(&self) -> Uses {
        self.uses.take()
    }

    /// How often [`BrowserPage::click`] was called since the uses were asked last.
    pub fn take_clicks(&self) -> usize {
        self.take_uses().clicks
    }

    /// Presses a key: a letter, a name as of `KeyboardEvent.key`, or either after `Ctrl+`.
    #[track_caller]
    pub fn press(&self, key: &str) {
        self.used(|uses| uses.keys += 1);
        let (with_control, name) = key.strip_prefix("Ctrl+").map_or((false, key), |name| (true, name));
        self.driver.press(PressedKey { name, with_control });
    }

    /// Types a text into what has the focus.
    #[track_caller]
    pub fn write(&self, text: &str) {
        self.used(|uses| uses.texts += 1);
        self.driver.write(text);
    }

    /// Lets the page write to the clipboard.
    #[track_caller]
    pub fn allow_clipboard(&self) {
        self.driver.allow_clipboard();
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

    /// A picture of what is visible, as WebP in base64. Only in Chromium.
    #[track_caller]
    pub fn screenshot(&self) -> String {
        let answer = self.call("Page.captureScreenshot", &json!({ "format": "webp", "quality": 82 }));
        answer["data"].as_str().expect("a picture").to_owned()
    }

    /// Errors and warnings of the page: what it threw, logged and violated. Answers of the node that are no success are not among
    /// them.
    pub fn complaints(&self) -> Vec<String> {
        self.driver.complaints()
    }

    /// The URLs of all requests so far.
    pub fn requested(&self) -> Vec<String> {
        self.driver.requested()
    }
}
