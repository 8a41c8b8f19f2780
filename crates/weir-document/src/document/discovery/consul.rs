//! `discovery.consul`: the agents of a Consul cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use weir_client::ServiceUrl;

use super::{MOST_INTERVAL_S, MOST_MS, MOST_WEIGHT};
use crate::keys::keys;
use crate::keys::kinds::{Flag, List, Or, ParsedText, SubMap, Whole, flag, list, refused, section, text, whole};
use crate::text::read::{MapReader, NodeReader, shortened};

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

/// Consul's own limit.
const MOST_WAIT_S: u32 = 600;

/// Of options of APISIX that are not built.
const NOT_YET: (&str, &str) = ("is not supported yet by this version", "leave it out");

keys! {
    /// The agents of a Consul cluster.
    pub(super) static CONSUL: ConsulKeys = "consul";

    /// The URLs of agents or servers. They are asked in this order until one answers.
    servers: List<ParsedText<Box<str>>> = list(text(1, 1_024).pattern("^https?://[^@?#]+$").parsed(server))
        .not_empty("write `servers: [\"http://127.0.0.1:8500\"]`, with all servers"),
        required("write `servers: [\"http://127.0.0.1:8500\"]`, with all servers"), example("[\"http://127.0.0.1:8500\"]");
    /// The ACL token of the requests.
    token: ParsedText<Box<str>> = text(1, 4_096).pattern("^[ -~]+$").parsed(token), secret(), absent("none"),
        example("0e0d9f5c-5d4b-4d3a-9a1f-2b0c6d1e7a55");
    /// Services that no upstream may use.
    skip_services: List<ParsedText<Box<str>>> = list(text(1, 256).pattern("^[A-Za-z0-9_.~-]+$").parsed(plain_name)), absent("none"),
        example("[consul]");
    /// The weight of instances that are registered without weights.
    weight: Or<Whole<u32>> = whole(1, MOST_WEIGHT).or(1);
    /// Whether a request waits at the server until the service changes (blocking queries). Otherwise the server is asked every
    /// `fetch_interval`.
    keepalive: Or<Flag> = flag().or(true);
    /// The time between two requests without `keepalive`.
    fetch_interval: Or<Whole<u32>> = whole(1, MOST_INTERVAL_S).or(3), unit("s");
    /// How long steps of a request may take.
    timeout: SubMap<ConsulTimes> = section(&CONSUL_TIMEOUT, times);

    refused {
        sort_type: refused(NOT_YET.0, NOT_YET.1);
        default_service: refused(NOT_YET.0, NOT_YET.1);
        dump: refused(NOT_YET.0, NOT_YET.1);
        shared_size: refused(NOT_YET.0, NOT_YET.1);
    }
}

keys! {
    /// How long steps of a request to Consul may take.
    static CONSUL_TIMEOUT: ConsulTimeoutKeys = "consul_timeout";

    /// For opening a connection.
    connect: Or<Whole<u32>> = whole(1, MOST_MS).or(2_000), unit("ms");
    /// For a response, beyond `wait`.
    read: Or<Whole<u32>> = whole(1, MOST_MS).or(2_000), unit("ms");
    /// How long the server waits for a change of the service.
    wait: Or<Whole<u32>> = whole(1, MOST_WAIT_S).or(60), unit("s");
}

/// In milliseconds and, the last one, seconds.
pub(super) struct ConsulTimes {
    connect: u32,
    read: u32,
    wait: u32,
}

fn times(fields: &MapReader) -> Option<ConsulTimes> {
    let [connect, read, wait] =
        [&CONSUL_TIMEOUT.connect, &CONSUL_TIMEOUT.read, &CONSUL_TIMEOUT.wait].map(|key| fields.value(key));
    Some(ConsulTimes { connect, read, wait })
}

pub(super) fn read(fields: &MapReader) -> Option<ConsulSettings> {
    let times = fields.section(&CONSUL.timeout)?;
    let milliseconds = |time: u32| Duration::from_millis(time.into());
    let seconds = |time: u32| Duration::from_secs(time.into());
    Some(ConsulSettings {
        servers: fields.read(&CONSUL.servers).unwrap_or_default(),
        token: fields.read(&CONSUL.token),
        skip_services: fields.read(&CONSUL.skip_services).unwrap_or_default().into_iter().collect(),
        weight: fields.value(&CONSUL.weight),
        is_blocking: fields.value(&CONSUL.keepalive),
        fetch_interval: seconds(fields.value(&CONSUL.fetch_interval)),
        connect_timeout: milliseconds(times.connect),
        read_timeout: milliseconds(times.read),
        wait: seconds(times.wait),
    })
}

/// The name of a service, which is a part of URLs.
pub(super) fn service_name(at: &NodeReader) -> Option<Box<str>> {
    plain_name(at, at.text_of(1..=256)?)
}

fn plain_name(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let is_name = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    if !is_name {
        let problem = format!("`{}` is not the name of a service in Consul", shortened(text));
        at.report_advising(problem, "use letters, digits, `-`, `_` and `.`");
    }
    is_name.then(|| text.into())
}

/// The token may not be repeated in a message.
fn token(at: &NodeReader, text: &str) -> Option<Box<str>> {
    // It is the value of a header field.
    let is_token = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if !is_token {
        at.report_advising("is not an ACL token", "use printable ASCII characters");
    }
    is_token.then(|| text.into())
}

fn server(at: &NodeReader, text: &str) -> Option<Box<str>> {
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
