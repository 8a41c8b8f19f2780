//! A client of the Admin API.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use weir_testkit::{Client, Gateway, Response};

/// Keys of the nodes under test, by role.
pub(crate) const ADMIN: &str = "the-key-of-an-admin";
pub(crate) const EDITOR: &str = "the-key-of-an-editor";
pub(crate) const VIEWER: &str = "the-key-of-a-viewer";

/// Longer than an answer takes: a node waits for etcd for up to 25 seconds, and on a busy machine for its turn and its disk.
const LONGEST: Duration = Duration::from_secs(60);

/// A file with these keys; the address is whatever is free.
pub(crate) fn file() -> String {
    format!(
        "admin:\n  listen: \"127.0.0.1:0\"\n  keys:\n  - {{ name: ann, key: {ADMIN}, role: admin }}\n  \
         - {{ name: ed, key: {EDITOR}, role: editor }}\n  - {{ name: vi, key: {VIEWER}, role: viewer }}\n"
    )
}

/// Where the Admin API of a node is.
#[track_caller]
pub(crate) fn admin_addr(gateway: &Gateway) -> SocketAddr {
    let line = gateway.wait_stderr("its admin address", |line| line.starts_with("weir: admin on "));
    line.trim_start_matches("weir: admin on ").parse().expect("an address")
}

/// A connection to an Admin API, with a key.
pub(crate) struct Api {
    client: Client,
    key: &'static str,
}

impl Api {
    #[track_caller]
    pub(crate) fn of(gateway: &Gateway) -> Api {
        Api::with_key(admin_addr(gateway), ADMIN)
    }

    #[track_caller]
    pub(crate) fn with_key(address: SocketAddr, key: &'static str) -> Api {
        let client = Client::connect(address);
        client.set_deadline(LONGEST);
        Api::over(client, key)
    }

    /// Uses a connection that is open.
    pub(crate) fn over(client: Client, key: &'static str) -> Api {
        Api { client, key }
    }

    /// Sends a request to a path below `/apisix/admin/`, or to one that begins with `/`, with further fields, each ended by
    /// CR LF.
    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, path: &str, fields: &str, body: &str) -> Response {
        let key = self.key;
        let length = body.len();
        let base = if path.starts_with('/') { "" } else { "/apisix/admin/" };
        let request = format!(
            "{method} {base}{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-KEY: {key}\r\n{fields}\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.client.ask(request).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Value {
        let answer = self.ask("GET", path, "", "");
        assert_eq!(answer.status, 200, "GET {path}: {}", answer.text());
        json(&answer)
    }

    #[track_caller]
    pub(crate) fn put(&mut self, path: &str, body: &str) -> Response {
        let answer = self.ask("PUT", path, "", body);
        assert!(matches!(answer.status, 200 | 201), "PUT {path}: {} {}", answer.status, answer.text());
        answer
    }
}

#[track_caller]
pub(crate) fn json(answer: &Response) -> Value {
    serde_json::from_str(&answer.text()).unwrap_or_else(|error| panic!("{error}: {}", answer.text()))
}
