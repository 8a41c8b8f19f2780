//! A browser as far as logins need one: it keeps cookies and follows redirects.

use std::collections::BTreeMap;

use weir_testkit::{Client, Response};

/// Cookies by the port they came from.
#[derive(Default)]
pub(super) struct Browser(pub BTreeMap<u16, BTreeMap<String, String>>);

impl Browser {
    /// Asks `http://127.0.0.1:port` once.
    pub(super) fn ask(&mut self, port: u16, method: &str, target: &str) -> Response {
        self.send(port, method, target, "", "")
    }

    /// The same with further fields, each ended by CR LF, and with a body.
    pub(super) fn send(&mut self, port: u16, method: &str, target: &str, fields: &str, body: &str) -> Response {
        let cookies = self.0.entry(port).or_default();
        let pairs: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cookie = if pairs.is_empty() { String::new() } else { format!("Cookie: {}\r\n", pairs.join("; ")) };
        let host = if fields.contains("Host:") { String::new() } else { format!("Host: 127.0.0.1:{port}\r\n") };
        let length = body.len();
        let request =
            format!("{method} {target} HTTP/1.1\r\n{host}{cookie}{fields}Content-Length: {length}\r\n\r\n{body}");
        let answer = Client::connect(([127, 0, 0, 1], port).into()).ask(request).expect("an answer");
        for cookie in answer.headers.all("set-cookie") {
            let (name, value) = cookie.split(';').next().and_then(|pair| pair.split_once('=')).expect("a pair");
            match value.is_empty() || cookie.contains("Jan 1970") {
                true => cookies.remove(name),
                false => cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        answer
    }

    /// Goes wherever it is sent, until there is an answer.
    pub(super) fn follow(&mut self, port: u16, target: &str) -> (String, Response) {
        let (mut port, mut target) = (port, target.to_owned());
        for _ in 0..12 {
            let answer = self.ask(port, "GET", &target);
            let Some(location) = answer.headers.get("location").filter(|_| (300..400).contains(&answer.status)) else {
                return (target, answer);
            };
            target = location.to_owned();
            if let Some(rest) = location.strip_prefix("http://127.0.0.1:") {
                let at = rest.find('/').expect("a path");
                (port, target) = (rest[..at].parse().expect("a port"), rest[at..].to_owned());
            }
        }
        panic!("sent on and on, at last to {target}");
    }
}
