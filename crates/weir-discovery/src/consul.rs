//! A Consul cluster: one blocking query for each service, which its server answers when the service changes. A server that does not
//! answer, and a service without passing instances, leave the last instances in use.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use serde_json::Value;
use tokio::sync::watch::Receiver;
use tokio::task::{AbortHandle, JoinSet};

use weir_client::{CallSettings, HttpClient, ServiceUrl};
use weir_keys::keys;
use weir_keys::keys::DeclaredKey;
use weir_keys::keys::kinds::{Flag, List, Or, ParsedText, SubMap, Whole, flag, list, refused, section, text, whole};
use weir_keys::text::read::{MapReader, NodeReader, shortened};

use crate::registry::{
    FollowingTask, MOST_INTERVAL_S, MOST_MS, MOST_WEIGHT, ServiceRegistry, RegistryKind, RegistryLog, RegistryNews, ServiceInstance,
    Tell, WantedServices, pause_after, put_in_order,
};

pub(crate) static KIND: RegistryKind = RegistryKind {
    key: DeclaredKey::new("consul", &["The agents of a Consul cluster."], section(&CONSUL, settings))
        .absent("none")
        .guide("configuration.md#service-discovery-by-consul"),
    title: "Consul",
    example: "{ servers: [\"http://127.0.0.1:8500\"] }",
    service_name,
};

/// The pause between two queries for a service, so that changes in quick succession are fetched together.
const LEAST_BETWEEN: Duration = Duration::from_millis(100);
/// The most time between two attempts while no server answers.
const MOST_PAUSE: Duration = Duration::from_secs(30);
/// The most bytes of an answer: about 30,000 instances of a service.
const MOST_CONTENT: usize = 64 << 20;

/// APISIX `discovery.consul`.
#[derive(Clone, PartialEq, Eq)]
struct ConsulSettings {
    /// The URLs of agents or servers, without a slash at the end, as `http://127.0.0.1:8500`. Asked in this order until one answers.
    servers: Vec<Box<str>>,
    /// An ACL token.
    token: Option<Box<str>>,
    /// Services that no upstream may use.
    skip_services: BTreeSet<Box<str>>,
    /// The weight of instances that are registered without weights.
    weight: u32,
    /// APISIX `keepalive`: a request waits at the server until the service changes (blocking queries). Otherwise the server is
    /// asked every `fetch_interval`.
    is_blocking: bool,
    fetch_interval: Duration,
    connect_timeout: Duration,
    /// For a response, beyond the time that the server waits for a change.
    read_timeout: Duration,
    /// How long the server waits for a change.
    wait: Duration,
}

impl fmt::Debug for ConsulSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulSettings").field("servers", &self.servers).finish_non_exhaustive()
    }
}

/// Consul's own limit.
const MOST_WAIT_S: u32 = 600;

/// Of options of APISIX that are not supported.
const NOT_YET: (&str, &str) = ("is not supported yet by this version", "leave it out");

keys! {
    /// The agents of a Consul cluster.
    static CONSUL: ConsulKeys = "consul";

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
struct ConsulTimes {
    connect: u32,
    read: u32,
    wait: u32,
}

fn times(fields: &MapReader) -> Option<ConsulTimes> {
    let [connect, read, wait] =
        [&CONSUL_TIMEOUT.connect, &CONSUL_TIMEOUT.read, &CONSUL_TIMEOUT.wait].map(|key| fields.value(key));
    Some(ConsulTimes { connect, read, wait })
}

fn settings(fields: &MapReader) -> Option<Arc<dyn ServiceRegistry>> {
    let times = fields.section(&CONSUL.timeout)?;
    let milliseconds = |time: u32| Duration::from_millis(time.into());
    let seconds = |time: u32| Duration::from_secs(time.into());
    Some(Arc::new(ConsulSettings {
        servers: fields.read(&CONSUL.servers).unwrap_or_default(),
        token: fields.read(&CONSUL.token),
        skip_services: fields.read(&CONSUL.skip_services).unwrap_or_default().into_iter().collect(),
        weight: fields.value(&CONSUL.weight),
        is_blocking: fields.value(&CONSUL.keepalive),
        fetch_interval: seconds(fields.value(&CONSUL.fetch_interval)),
        connect_timeout: milliseconds(times.connect),
        read_timeout: milliseconds(times.read),
        wait: seconds(times.wait),
    }))
}

/// The name of a service, which is a part of URLs.
fn service_name(at: &NodeReader) -> Option<Box<str>> {
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

/// The state that the queries of all services share.
struct ConsulState {
    tell: Tell,
    log: RegistryLog,
    /// The last news of each service.
    last: BTreeMap<Box<str>, Result<Vec<ServiceInstance>, String>>,
}

/// Why a query has no result.
enum QueryFailure {
    /// No server answers as it should.
    Away(String),
    /// A server answers and refuses this query.
    Refused(String),
}

impl ServiceRegistry for ConsulSettings {
    fn refusal(&self, service: &str) -> Option<(&'static str, &'static str)> {
        let is_skipped = self.skip_services.contains(service);
        is_skipped.then_some(("is a service in `discovery.consul.skip_services`", "remove it from this list"))
    }

    fn follow(self: Arc<Self>, wanted: Receiver<WantedServices>, tell: Tell) -> FollowingTask {
        Box::pin(follow(self, wanted, tell))
    }
}

async fn follow(settings: Arc<ConsulSettings>, mut wanted: Receiver<WantedServices>, tell: Tell) {
    let state = ConsulState { tell, log: RegistryLog::of(KIND.title), last: BTreeMap::new() };
    let state = Rc::new(RefCell::new(state));
    // Dropping it ends the queries.
    let mut queries = JoinSet::new();
    let mut following: HashMap<Box<str>, AbortHandle> = HashMap::new();
    loop {
        let now = wanted.borrow_and_update().clone();
        following.retain(|name, query| {
            let stays = now.services.contains(name);
            if !stays {
                query.abort();
            }
            stays
        });
        state.borrow_mut().keep(&now.services);
        for name in &now.services {
            following.entry(name.clone()).or_insert_with(|| {
                let (settings, state) = (Arc::clone(&settings), Rc::clone(&state));
                queries.spawn_local(follow_service(name.clone(), settings, now.http.clone(), state))
            });
        }
        if wanted.changed().await.is_err() {
            return;
        }
        // Queries that were ended.
        while queries.try_join_next().is_some() {}
    }
}

impl ConsulState {
    /// Forgets other services, and tells the last news of these again: a name may have been forgotten and wanted again meanwhile.
    fn keep(&mut self, wanted: &BTreeSet<Box<str>>) {
        self.log.keep(wanted);
        self.last.retain(|name, _| wanted.contains(name));
        for (name, news) in &self.last {
            (self.tell)(RegistryNews::Service(name, news.clone()));
        }
    }

    fn learn(&mut self, name: &str, fetched: &Result<Vec<ServiceInstance>, QueryFailure>) {
        let answered = match fetched {
            Ok(_) | Err(QueryFailure::Refused(_)) => Ok(()),
            Err(QueryFailure::Away(problem)) => Err(problem.as_str()),
        };
        self.log.answered(answered);
        (self.tell)(RegistryNews::Answered(answered.is_ok()));
        let news = match fetched {
            Ok(instances) if instances.is_empty() => {
                Err("Consul has no instance of this name whose checks are passing".to_owned())
            }
            Ok(instances) => Ok(instances.clone()),
            Err(QueryFailure::Refused(problem)) => Err(problem.clone()),
            Err(QueryFailure::Away(problem)) => Err(format!("no Consul server answers: {problem}")),
        };
        if answered.is_ok() {
            self.log.service(name, news.as_ref().err().map(String::as_str));
        }
        (self.tell)(RegistryNews::Service(name, news.clone()));
        self.last.insert(name.into(), news);
    }
}

async fn follow_service(
    name: Box<str>,
    settings: Arc<ConsulSettings>,
    http: HttpClient,
    state: Rc<RefCell<ConsulState>>,
) {
    let (mut index, mut failures) = (0_u64, 0_u32);
    loop {
        let begun = Instant::now();
        let (fetched, pause) = match fetch(&name, &settings, &http, index).await {
            Ok((instances, next)) => {
                failures = 0;
                let pause = pause_after_answer(&settings, (index, next), begun.elapsed());
                // An index that went back belongs to a server with another history, which must be read from its start.
                index = if next < index { 0 } else { next };
                (Ok(instances), pause)
            }
            Err(failure) => {
                (index, failures) = (0, failures.saturating_add(1));
                (Err(failure), pause_after(failures, MOST_PAUSE))
            }
        };
        state.borrow_mut().learn(&name, &fetched);
        tokio::time::sleep(pause).await;
    }
}

/// The pause before the next query, after an answer that took this long. `index` and `next` are those of the query and of the
/// answer.
fn pause_after_answer(settings: &ConsulSettings, (index, next): (u64, u64), took: Duration) -> Duration {
    // Without an index the server does not wait. One that answers at once without a change does not wait either: for example, a
    // proxy in between answers from its cache.
    let does_wait = next > index || (next == index && took >= settings.fetch_interval.min(settings.wait));
    if settings.is_blocking && next > 0 && does_wait { LEAST_BETWEEN } else { settings.fetch_interval }
}

/// Asks the servers in their order; the error lists the problem of each. Returns the instances, and the index of this state.
async fn fetch(
    name: &str,
    settings: &ConsulSettings,
    http: &HttpClient,
    index: u64,
) -> Result<(Vec<ServiceInstance>, u64), QueryFailure> {
    let (mut problems, mut refusal) = (Vec::new(), None);
    for server in &settings.servers {
        match ask(server, name, settings, http, index).await {
            Ok(answer) => return Ok(answer),
            Err(QueryFailure::Away(problem)) => problems.push(format!("{server}: {problem}")),
            // Another server may have room.
            Err(QueryFailure::Refused(problem)) => refusal = Some(problem),
        }
    }
    Err(refusal.map_or_else(|| QueryFailure::Away(problems.join("; ")), QueryFailure::Refused))
}

async fn ask(
    server: &str,
    name: &str,
    settings: &ConsulSettings,
    http: &HttpClient,
    index: u64,
) -> Result<(Vec<ServiceInstance>, u64), QueryFailure> {
    let away = |problem: String| QueryFailure::Away(problem);
    let (mut query, mut waits) = ("passing=true".to_owned(), Duration::ZERO);
    if settings.is_blocking && index > 0 {
        query.push_str(&format!("&index={index}&wait={}s", settings.wait.as_secs()));
        // The server adds up to a sixteenth, so that not all clients come back at once.
        waits = settings.wait + settings.wait / 16;
    }
    let url = ServiceUrl::parse(&format!("{server}/v1/health/service/{name}?{query}"));
    let url = url.map_err(|error| away(error.to_string()))?;
    let mut request = Request::get(url.target().as_str());
    if let Some(token) = &settings.token {
        request = request.header("X-Consul-Token", &**token);
    }
    let request = request.body(Bytes::new()).map_err(|error| away(error.to_string()))?;
    let limits = CallSettings {
        connect_timeout: settings.connect_timeout,
        timeout: settings.connect_timeout + settings.read_timeout + waits,
        max_content_bytes: MOST_CONTENT,
        ..CallSettings::default()
    };
    let answer = http.call(&url, request, &limits).await.map_err(|error| away(error.to_string()))?;
    read(&answer, settings.weight)
}

fn read(answer: &Response<Bytes>, weight: u32) -> Result<(Vec<ServiceInstance>, u64), QueryFailure> {
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let problem = "the `token` of `discovery.consul` may not read this service";
            return Err(QueryFailure::Refused(problem.to_owned()));
        }
        // The limit of connections of one client is 200 by default, and each service has one.
        StatusCode::TOO_MANY_REQUESTS => {
            let problem = "Consul refuses further requests of this node (429): raise `limits.http_max_conns_per_client` of its \
                           agent above the number of services, or set `keepalive: false` in `discovery.consul`";
            return Err(QueryFailure::Refused(problem.to_owned()));
        }
        StatusCode::NOT_FOUND => {
            return Err(QueryFailure::Away("nothing is there (404); check the URL".to_owned()));
        }
        status => {
            let told = String::from_utf8_lossy(answer.body()).trim().chars().take(200).collect::<String>();
            return Err(QueryFailure::Away(format!("it answered with {status}: {told}")));
        }
    }
    let away = |problem: &str| QueryFailure::Away(problem.to_owned());
    let content: Value = serde_json::from_slice(answer.body()).map_err(|_| away("its answer is not JSON"))?;
    let list = content.as_array().ok_or_else(|| away("its answer is not a list"))?;
    let mut instances: Vec<ServiceInstance> = list.iter().filter_map(|entry| instance(entry, weight)).collect();
    put_in_order(&mut instances);
    let index = answer.headers().get("X-Consul-Index").and_then(|value| value.to_str().ok()?.parse().ok());
    Ok((instances, index.unwrap_or_default()))
}

/// An entry of `GET /v1/health/service/NAME`; `None` without an IP address or a port.
fn instance(entry: &Value, weight: u32) -> Option<ServiceInstance> {
    let service = &entry["Service"];
    // A service registered without an address is at that of its node.
    let address = |of: &Value| of["Address"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let address = address(service).or_else(|| address(&entry["Node"]))?;
    let port = service["Port"].as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)?;
    let own = service["Weights"]["Passing"].as_u64().filter(|own| *own <= MOST_WEIGHT.into());
    Some(ServiceInstance {
        address: address.parse().ok()?,
        port: Some(port),
        secure_port: Some(port),
        host: address.into(),
        weight: own.map_or(weight, |own| own as u32),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(status: StatusCode, body: &Value) -> Response<Bytes> {
        let mut answer = Response::new(Bytes::from(body.to_string()));
        *answer.status_mut() = status;
        answer.headers_mut().insert("X-Consul-Index", 17.into());
        answer
    }

    fn entry(node: &str, service: Value) -> Value {
        json!({ "Node": { "Address": node }, "Service": service })
    }

    #[test]
    fn instances_have_the_address_of_the_service_or_of_its_node() {
        let list = json!([
            entry("10.0.0.9", json!({"Address": "10.0.0.2", "Port": 80, "Weights": {"Passing": 7, "Warning": 1}})),
            entry("10.0.0.1", json!({"Address": "", "Port": 81})),
            entry("10.0.0.1", json!({"Address": "", "Port": 0})),
            entry("10.0.0.1", json!({"Address": "host.example", "Port": 80})),
        ]);
        let Ok((instances, index)) = read(&answer(StatusCode::OK, &list), 3) else { panic!("it is a list") };
        let told: Vec<_> = instances.iter().map(|one| (one.address.to_string(), one.port, one.weight)).collect();
        assert_eq!(told, [("10.0.0.1".to_owned(), Some(81), 3), ("10.0.0.2".to_owned(), Some(80), 7)]);
        assert_eq!(index, 17);
    }

    #[test]
    fn other_answers_are_no_lists() {
        let of = |status: StatusCode, body: Value| match read(&answer(status, &body), 1) {
            Ok(_) => panic!("it is no list"),
            Err(QueryFailure::Away(problem)) => format!("away: {problem}"),
            Err(QueryFailure::Refused(problem)) => format!("refused: {problem}"),
        };
        assert!(of(StatusCode::OK, json!({})).starts_with("away: its answer is not a list"));
        assert!(of(StatusCode::FORBIDDEN, json!("x")).starts_with("refused: the `token`"));
        assert!(of(StatusCode::TOO_MANY_REQUESTS, json!("")).starts_with("refused: Consul refuses further requests"));
        assert!(of(StatusCode::INTERNAL_SERVER_ERROR, json!("No cluster leader")).contains("No cluster leader"));
        assert!(of(StatusCode::NOT_FOUND, json!("")).contains("404"));
    }

    #[test]
    fn a_server_that_does_not_wait_is_not_asked_continually() {
        let settings = ConsulSettings {
            servers: Vec::new(),
            token: None,
            skip_services: BTreeSet::new(),
            weight: 1,
            is_blocking: true,
            fetch_interval: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            read_timeout: Duration::from_secs(1),
            wait: Duration::from_secs(60),
        };
        let at_once = Duration::from_millis(1);
        for (indexes, took, want) in [
            ((0, 7), at_once, LEAST_BETWEEN),
            ((7, 8), at_once, LEAST_BETWEEN),
            ((7, 7), settings.wait, LEAST_BETWEEN),
            ((7, 7), at_once, settings.fetch_interval),
            ((7, 6), at_once, settings.fetch_interval),
            ((0, 0), at_once, settings.fetch_interval),
        ] {
            assert_eq!(pause_after_answer(&settings, indexes, took), want, "{indexes:?} {took:?}");
        }
        let polled = ConsulSettings { is_blocking: false, ..settings };
        assert_eq!(pause_after_answer(&polled, (7, 8), at_once), polled.fetch_interval);
    }
}
