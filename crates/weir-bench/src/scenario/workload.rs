//! What clients ask, and when.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How load is made, unless a row says otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// HTTPS between the clients and the target.
    pub tls: bool,
    /// Requests per second over all clients, evenly spaced. Absent: a closed loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Closed loop: clients start one after another over this time, within the warm-up.
    pub ramp_up_s: f64,
    /// Closed loop: pause between a response and the client's next request.
    pub think_ms: f64,
    /// End after this many requests, if the time is not over first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    pub timeout_s: f64,
}

impl Default for Load {
    fn default() -> Self {
        Load { tls: false, rate: None, ramp_up_s: 0.0, think_ms: 0.0, count: None, timeout_s: 30.0 }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "snake_case", deny_unknown_fields)]
pub enum Speak {
    #[default]
    Http1,
    Http2 {
        streams: usize,
    },
    /// Messages echoed in reverse, each client sending `per_second`.
    WebSocket {
        message_bytes: usize,
        per_second: f64,
    },
    /// Events of `event_bytes` at `per_second` on each connection.
    Sse {
        event_bytes: usize,
        per_second: f64,
    },
    /// One topic, every client a subscriber, `per_second` publications.
    WebSub {
        payload_bytes: usize,
        per_second: f64,
    },
    /// Connections that are opened and held.
    Idle,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body_bytes: u64,
}

impl Default for Request {
    fn default() -> Self {
        Request { method: "GET".to_owned(), path: "/get".to_owned(), headers: BTreeMap::new(), body_bytes: 0 }
    }
}

impl Speak {
    /// Messages or events per second that one client causes; `None` for requests.
    pub fn per_second(&self) -> Option<f64> {
        match self {
            Speak::WebSocket { per_second, .. } | Speak::Sse { per_second, .. } | Speak::WebSub { per_second, .. } => {
                Some(*per_second)
            }
            Speak::Http1 | Speak::Http2 { .. } | Speak::Idle => None,
        }
    }
}
