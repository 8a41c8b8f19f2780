//! Somebody who logs in: a browser, and what the page of the console keeps in it.

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use weir_testkit::Response;

use super::browser::Browser;

pub(super) const CALLBACK: &str = "/weir/v1/session/oidc/callback";

/// A browser at the console of the node with this port.
pub(super) struct Person {
    pub browser: Browser,
    pub kept: String,
    /// The fragment of the URL that the node has sent it back to.
    pub ticket: String,
    port: u16,
}

impl Person {
    pub(super) fn at(port: u16) -> Person {
        Person {
            browser: Browser::default(),
            kept: "what only this page keeps".to_owned(),
            ticket: String::new(),
            port,
        }
    }

    /// The target that the log-in begins with.
    pub(super) fn begins_at(&self) -> String {
        let hash = digest(&SHA256, self.kept.as_bytes());
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("/weir/v1/session/oidc?page={hash}")
    }

    /// Begins a log-in, and returns the URL that the browser is sent to.
    #[track_caller]
    pub(super) fn begin(&mut self) -> String {
        let answer = self.browser.ask(self.port, "GET", &self.begins_at());
        assert_eq!(answer.status, 302, "{}", answer.text());
        answer.headers.get("location").expect("a location").to_owned()
    }

    /// Goes to the provider and back, and returns the target of the callback.
    #[track_caller]
    pub(super) fn visit(&mut self, url: &str) -> String {
        let own = format!("http://127.0.0.1:{}", self.port);
        let mut url = url.to_owned();
        let mut base = url.clone();
        for _ in 0..8 {
            if let Some(target) = url.strip_prefix(&own) {
                return target.to_owned();
            }
            if url.starts_with('/') {
                url = format!("{base}{url}");
            }
            let rest = url.strip_prefix("http://127.0.0.1:").expect("the provider is here");
            let (port, target) = rest.split_at(rest.find('/').expect("a path"));
            base = format!("http://127.0.0.1:{port}");
            let answer = self.browser.ask(port.parse().expect("a port"), "GET", target);
            let location = answer.headers.get("location");
            url = location.unwrap_or_else(|| panic!("{} {}", answer.status, answer.text())).to_owned();
        }
        panic!("sent on and on, at last to {url}");
    }

    /// Comes back to the node.
    pub(super) fn come_back(&mut self, target: &str) -> Response {
        let answer = self.browser.ask(self.port, "GET", target);
        if let Some((_, ticket)) = answer.headers.get("location").and_then(|location| location.split_once('#')) {
            ticket.clone_into(&mut self.ticket);
        }
        answer
    }

    /// What the page does at the end of a log-in.
    pub(super) fn redeem(&mut self) -> Response {
        let body = json!({ "oidc": self.kept, "ticket": self.ticket }).to_string();
        self.browser.send(self.port, "POST", "/weir/v1/session", "Sec-Fetch-Site: same-origin\r\n", &body)
    }

    /// The whole way; the answer is that of a log-in.
    #[track_caller]
    pub(super) fn log_in(&mut self) -> Value {
        let url = self.begin();
        let target = self.visit(&url);
        let back = self.come_back(&target);
        assert_eq!(back.status, 303, "{}", back.text());
        let answer = self.redeem();
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_str(&answer.text()).expect("JSON")
    }

    /// Asks with the session of this token.
    pub(super) fn ask(&mut self, token: &str, method: &str, path: &str, body: &str) -> Response {
        self.browser.send(self.port, method, path, &format!("X-Weir-Session: {token}\r\n"), body)
    }

    /// The value of a cookie of the node.
    pub(super) fn cookie(&self, name: &str) -> Option<String> {
        self.browser.0.get(&self.port)?.get(name).cloned()
    }
}
