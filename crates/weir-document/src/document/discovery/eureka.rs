//! `discovery.eureka`: the servers of a Eureka registry.

use std::fmt;
use std::time::Duration;

use weir_client::ServiceUrl;

use super::MOST_MS;
use crate::text::read::{NodeReader, shortened};

/// APISIX `discovery.eureka`: the servers of a Eureka registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EurekaSettings {
    /// Asked in this order until one answers.
    pub servers: Vec<EurekaServer>,
    pub fetch_interval: Duration,
    /// The weight of instances whose metadata has none.
    pub weight: u32,
    pub connect_timeout: Duration,
    /// For the request and its response, without connecting.
    pub timeout: Duration,
}

#[derive(Clone, PartialEq, Eq)]
pub struct EurekaServer {
    /// With the prefix, as `http://10.0.0.5:8761/eureka/`.
    pub url: Box<str>,
    /// `user:password`.
    pub credentials: Option<Box<str>>,
}

impl fmt::Debug for EurekaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EurekaServer").field("url", &self.url).finish_non_exhaustive()
    }
}

const DEFAULT_PREFIX: &str = "/eureka/";
const DEFAULT_INTERVAL_S: u64 = 30;
const DEFAULT_WEIGHT: u32 = 100;
const DEFAULT_CONNECT_MS: u64 = 2_000;
const DEFAULT_SEND_MS: u64 = 2_000;
const DEFAULT_READ_MS: u64 = 5_000;
const MOST_WEIGHT: u32 = 100_000;

pub(super) fn read(at: &NodeReader) -> Option<EurekaSettings> {
    let fields = at.fields(&["host", "prefix", "fetch_interval", "weight", "timeout"])?;
    let prefix = fields.get("prefix").map_or(Some(DEFAULT_PREFIX), |at| prefix(&at));
    if fields.get("host").is_none_or(|at| at.is_list() && at.items().next().is_none()) {
        at.report_advising("has no `host`", "write `host: [\"http://127.0.0.1:8761\"]`, with all servers");
    }
    let server = |at: &NodeReader| server(at, prefix.unwrap_or(DEFAULT_PREFIX));
    let servers = fields.get("host").map(|at| at.items().filter_map(|at| server(&at)).collect());
    let timeout = fields.get("timeout");
    let timeout = timeout.as_ref().and_then(|at| at.fields(&["connect", "send", "read"]));
    let time = |key: &str, default: u64| {
        let written = timeout.as_ref().and_then(|fields| fields.get(key)?.integer(1..=MOST_MS));
        Duration::from_millis(written.unwrap_or(default))
    };
    let interval = fields.get("fetch_interval").and_then(|at| at.integer(1..=86_400_u64));
    Some(EurekaSettings {
        servers: servers.unwrap_or_default(),
        fetch_interval: Duration::from_secs(interval.unwrap_or(DEFAULT_INTERVAL_S)),
        weight: fields.get("weight").and_then(|at| at.integer(0..=MOST_WEIGHT)).unwrap_or(DEFAULT_WEIGHT),
        connect_timeout: time("connect", DEFAULT_CONNECT_MS),
        timeout: time("send", DEFAULT_SEND_MS) + time("read", DEFAULT_READ_MS),
    })
}

fn prefix<'a>(at: &NodeReader<'a>) -> Option<&'a str> {
    let text = at.text_of(1..=1_024)?;
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    if !is_path {
        let problem = format!("`{}` is not the path of a Eureka server", shortened(text));
        at.report_advising(problem, "write as `/eureka/`");
    }
    is_path.then_some(text)
}

/// `http://user:password@host:port`, as in APISIX.
fn server(at: &NodeReader, prefix: &str) -> Option<EurekaServer> {
    let text = at.text_of(1..=1_024)?;
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let (credentials, host) = match rest.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials), host),
        None => (None, rest),
    };
    let url = format!("{scheme}://{}/{}/", host.trim_end_matches('/'), prefix.trim_matches('/'));
    // The text may contain a password, so it is not repeated.
    if ServiceUrl::parse(&url).is_err() || host.contains(['?', '#']) {
        at.report_advising("is not the URL of a Eureka server", "write as `http://127.0.0.1:8761`");
        return None;
    }
    if credentials.is_some_and(|text| !text.contains(':')) {
        at.report_advising(
            "has a user without a password",
            "write as `http://user:password@127.0.0.1:8761`, or leave the user out",
        );
        return None;
    }
    // With the prefix `/` there is one slash.
    let url = if prefix.trim_matches('/').is_empty() { url.trim_end_matches('/').to_owned() + "/" } else { url };
    Some(EurekaServer { url: url.into(), credentials: credentials.map(Box::from) })
}
