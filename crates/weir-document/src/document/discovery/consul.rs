//! `discovery.consul`: the agents of a Consul cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use weir_client::ServiceUrl;

use super::MOST_MS;
use crate::text::read::{NodeReader, shortened};

/// APISIX `discovery.consul`.
#[derive(Clone, PartialEq, Eq)]
pub struct ConsulSettings {
    /// The URLs of agents or servers, without a slash at the end, as `http://127.0.0.1:8500`. Asked in this order until one answers.
    pub servers: Vec<Box<str>>,
    /// An ACL token.
    pub token: Option<Box<str>>,
    /// Services that no upstream may use.
    pub skip_services: BTreeSet<Box<str>>,
    /// The weight of instances that are registered without weights.
    pub weight: u32,
    /// APISIX `keepalive`: a request waits at the server until the service changes (blocking queries). Otherwise the server is
    /// asked every `fetch_interval`.
    pub is_blocking: bool,
    pub fetch_interval: Duration,
    pub connect_timeout: Duration,
    /// For a response, beyond the time that the server waits for a change.
    pub read_timeout: Duration,
    /// How long the server waits for a change.
    pub wait: Duration,
}

impl fmt::Debug for ConsulSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulSettings").field("servers", &self.servers).finish_non_exhaustive()
    }
}

const DEFAULT_WEIGHT: u32 = 1;
const MOST_WEIGHT: u32 = 100_000;
const DEFAULT_INTERVAL_S: u64 = 3;
const DEFAULT_TIMEOUT_MS: u64 = 2_000;
const DEFAULT_WAIT_S: u64 = 60;
/// Consul's own limit.
const MOST_WAIT_S: u64 = 600;

const KEYS: &[&str] = &["servers", "token", "skip_services", "weight", "keepalive", "fetch_interval", "timeout"];
/// Options of APISIX that are not built.
const NOT_BUILT: &[&str] = &["sort_type", "default_service", "dump", "shared_size"];

pub(super) fn read(at: &NodeReader) -> Option<ConsulSettings> {
    let fields = at.fields(&[KEYS, NOT_BUILT].concat())?;
    fields.unsupported(NOT_BUILT);
    if fields.get("servers").is_none_or(|at| at.is_list() && at.items().next().is_none()) {
        at.report_advising("has no `servers`", "write `servers: [\"http://127.0.0.1:8500\"]`, with all servers");
    }
    let servers = fields.get("servers").map(|at| at.items().filter_map(|at| server(&at)).collect());
    let skipped = fields.get("skip_services").map(|at| at.items().filter_map(|at| service_name(&at)).collect());
    let timeout = fields.get("timeout");
    let timeout = timeout.as_ref().and_then(|at| at.fields(&["connect", "read", "wait"]));
    let written = |key: &str, most: u64| timeout.as_ref().and_then(|fields| fields.get(key)?.integer(1..=most));
    let milliseconds = |key: &str| Duration::from_millis(written(key, MOST_MS).unwrap_or(DEFAULT_TIMEOUT_MS));
    let interval = fields.get("fetch_interval").and_then(|at| at.integer(1..=86_400_u64));
    Some(ConsulSettings {
        servers: servers.unwrap_or_default(),
        token: fields.get("token").and_then(|at| token(&at)),
        skip_services: skipped.unwrap_or_default(),
        weight: fields.get("weight").and_then(|at| at.integer(1..=MOST_WEIGHT)).unwrap_or(DEFAULT_WEIGHT),
        is_blocking: fields.get("keepalive").and_then(|at| at.boolean()).unwrap_or(true),
        fetch_interval: Duration::from_secs(interval.unwrap_or(DEFAULT_INTERVAL_S)),
        connect_timeout: milliseconds("connect"),
        read_timeout: milliseconds("read"),
        wait: Duration::from_secs(written("wait", MOST_WAIT_S).unwrap_or(DEFAULT_WAIT_S)),
    })
}

/// The name of a service, which is a part of URLs.
pub(super) fn service_name(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=256)?;
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    if !is_name {
        let problem = format!("`{}` is not the name of a service in Consul", shortened(text));
        at.report_advising(problem, "use letters, digits, `-`, `_` and `.`");
    }
    is_name.then(|| text.into())
}

/// The token may not be repeated in a message.
fn token(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=4_096)?;
    // It is the value of a header field.
    let is_token = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if !is_token {
        at.report_advising("is not an ACL token", "use printable ASCII characters");
    }
    is_token.then(|| text.into())
}

fn server(at: &NodeReader) -> Option<Box<str>> {
    let text = at.text_of(1..=1_024)?;
    let url = text.trim_end_matches('/');
    let is_plain = !url.contains(['@', '?', '#']);
    if !is_plain || ServiceUrl::parse(&format!("{url}/v1/")).is_err() {
        at.report_advising(
            "is not the URL of a Consul server",
            "write as `http://127.0.0.1:8500`; the token is `token`",
        );
        return None;
    }
    Some(url.into())
}
