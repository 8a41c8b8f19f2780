//! `discovery.eureka`: the servers of a Eureka registry.

use std::fmt;
use std::time::Duration;

use weir_client::ServiceUrl;

use serde_json::json;

use super::{MOST_INTERVAL_S, MOST_MS, MOST_WEIGHT};
use crate::keys::keys;
use crate::keys::kinds::{Form, Or, ParsedText, SubMap, Whole, form, section, text, whole};
use crate::text::read::{MapReader, NodeReader, shortened};

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

keys! {
    /// The servers of a Eureka registry.
    pub(super) static EUREKA: EurekaKeys = "eureka";

    /// The URLs of the servers, which may have a user and a password. They are asked in this order until one answers.
    host: Form = form("list: URL", |_| json!({ "type": "array", "minItems": 1, "items": { "type": "string", "pattern": "^https?://" } })),
        secret(), required(ADD_HOST), example("[\"http://127.0.0.1:8761\"]");
    /// The path of the registry at its servers.
    prefix: ParsedText<Box<str>> = text(1, 1_024).pattern("^/[^?#]*$").parsed(prefix), absent("`/eureka/`"), example("/eureka/");
    /// The time between two requests for the services.
    fetch_interval: Or<Whole<u32>> = whole(1, MOST_INTERVAL_S).or(30), unit("s");
    /// The weight of instances whose metadata has none.
    weight: Or<Whole<u32>> = whole(0, MOST_WEIGHT).or(100);
    /// How long steps of a request may take.
    timeout: SubMap<EurekaTimes> = section(&EUREKA_TIMEOUT, times);
}

const ADD_HOST: &str = "write `host: [\"http://127.0.0.1:8761\"]`, with all servers";

keys! {
    /// How long steps of a request to Eureka may take.
    static EUREKA_TIMEOUT: EurekaTimeoutKeys = "eureka_timeout";

    /// For opening a connection.
    connect: Or<Whole<u32>> = whole(1, MOST_MS).or(2_000), unit("ms");
    /// For sending a request.
    send: Or<Whole<u32>> = whole(1, MOST_MS).or(2_000), unit("ms");
    /// For receiving a response.
    read: Or<Whole<u32>> = whole(1, MOST_MS).or(5_000), unit("ms");
}

pub(super) struct EurekaTimes {
    connect: Duration,
    exchange: Duration,
}

fn times(fields: &MapReader) -> Option<EurekaTimes> {
    let [connect, send, read] = [&EUREKA_TIMEOUT.connect, &EUREKA_TIMEOUT.send, &EUREKA_TIMEOUT.read]
        .map(|key| Duration::from_millis(fields.value(key).into()));
    Some(EurekaTimes { connect, exchange: send + read })
}

pub(super) fn read(fields: &MapReader) -> Option<EurekaSettings> {
    let prefix = fields.read(&EUREKA.prefix);
    let prefix = prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
    let hosts = fields.get(&EUREKA.host);
    if let Some(at) = &hosts
        && at.is_list()
        && at.items().next().is_none()
    {
        at.report_advising("is empty", ADD_HOST);
    }
    let servers = hosts.map(|at| at.items().filter_map(|at| server(&at, prefix)).collect());
    let times = fields.section(&EUREKA.timeout)?;
    Some(EurekaSettings {
        servers: servers.unwrap_or_default(),
        fetch_interval: Duration::from_secs(fields.value(&EUREKA.fetch_interval).into()),
        weight: fields.value(&EUREKA.weight),
        connect_timeout: times.connect,
        timeout: times.exchange,
    })
}

fn prefix(at: &NodeReader, text: &str) -> Option<Box<str>> {
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte));
    if !is_path {
        let problem = format!("`{}` is not the path of a Eureka server", shortened(text));
        at.report_advising(problem, "write as `/eureka/`");
    }
    is_path.then(|| text.into())
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
