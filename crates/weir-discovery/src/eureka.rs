//! A Eureka registry: its list of applications is fetched at intervals. A server that does not answer, and an application without
//! instances, leave the last instances in use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION};
use http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;

use weir_client::{CallSettings, HttpClient, ServiceUrl};
use weir_keys::keys;
use weir_keys::keys::DeclaredKey;
use weir_keys::keys::kinds::{Form, Or, ParsedText, SubMap, Whole, form, section, text, whole};
use weir_keys::text::read::{MapReader, NodeReader, shortened};

use crate::registry::{
    FollowingTask, MOST_INTERVAL_S, MOST_MS, MOST_WEIGHT, ServiceRegistry, RegistryKind, RegistryLog, RegistryNews, ServiceInstance,
    Tell, WantedServices, pause_after, put_in_order,
};

pub(crate) static KIND: RegistryKind = RegistryKind {
    key: DeclaredKey::new("eureka", &["The servers of a Eureka registry."], section(&EUREKA, settings))
        .absent("none")
        .guide("configuration.md#service-discovery-by-eureka"),
    title: "Eureka",
    example: "{ host: [\"http://127.0.0.1:8761\"] }",
    service_name,
};

/// The most bytes of a list of applications: about 50,000 instances.
const MOST_CONTENT: usize = 64 << 20;

/// The instances of each application, by its name in upper case.
type Applications = BTreeMap<Box<str>, Vec<ServiceInstance>>;

/// APISIX `discovery.eureka`: the servers of a Eureka registry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EurekaSettings {
    /// Asked in this order until one answers.
    servers: Vec<EurekaServer>,
    fetch_interval: Duration,
    /// The weight of instances whose metadata has none.
    weight: u32,
    connect_timeout: Duration,
    /// For the request and its response, without connecting.
    timeout: Duration,
}

#[derive(Clone, PartialEq, Eq)]
struct EurekaServer {
    /// With the prefix, as `http://10.0.0.5:8761/eureka/`.
    url: Box<str>,
    /// `user:password`.
    credentials: Option<Box<str>>,
}

impl fmt::Debug for EurekaServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EurekaServer").field("url", &self.url).finish_non_exhaustive()
    }
}

const DEFAULT_PREFIX: &str = "/eureka/";

keys! {
    /// The servers of a Eureka registry.
    static EUREKA: EurekaKeys = "eureka";

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

struct EurekaTimes {
    connect: Duration,
    exchange: Duration,
}

fn times(fields: &MapReader) -> Option<EurekaTimes> {
    let [connect, send, read] = [&EUREKA_TIMEOUT.connect, &EUREKA_TIMEOUT.send, &EUREKA_TIMEOUT.read]
        .map(|key| Duration::from_millis(fields.value(key).into()));
    Some(EurekaTimes { connect, exchange: send + read })
}

fn settings(fields: &MapReader) -> Option<Arc<dyn ServiceRegistry>> {
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
    Some(Arc::new(EurekaSettings {
        servers: servers.unwrap_or_default(),
        fetch_interval: Duration::from_secs(fields.value(&EUREKA.fetch_interval).into()),
        weight: fields.value(&EUREKA.weight),
        connect_timeout: times.connect,
        timeout: times.exchange,
    }))
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

/// The name of an application, in upper case, as Eureka keeps it.
fn service_name(at: &NodeReader) -> Option<Box<str>> {
    Some(at.text_of(1..=256)?.to_uppercase().into())
}

/// The state between two fetches.
struct EurekaPoll {
    settings: Arc<EurekaSettings>,
    log: RegistryLog,
    last: Result<Applications, String>,
    failures: u32,
}

impl ServiceRegistry for EurekaSettings {
    fn follow(self: Arc<Self>, wanted: Receiver<WantedServices>, tell: Tell) -> FollowingTask {
        Box::pin(follow(self, wanted, tell))
    }
}

async fn follow(settings: Arc<EurekaSettings>, mut wanted: Receiver<WantedServices>, tell: Tell) {
    let mut poll = EurekaPoll::new(settings);
    let (mut is_time, mut fetched) = (true, Instant::now());
    loop {
        let now = wanted.borrow_and_update().clone();
        if is_time {
            poll.fetch(&now, &tell).await;
            fetched = Instant::now();
        } else {
            poll.tell(&now.services, &tell);
        }
        let pause = poll.pause().saturating_sub(fetched.elapsed());
        is_time = match tokio::time::timeout(pause, wanted.changed()).await {
            Ok(Ok(())) => false,
            Ok(Err(_)) => return,
            Err(_) => true,
        };
    }
}

impl EurekaPoll {
    fn new(settings: Arc<EurekaSettings>) -> EurekaPoll {
        let last = Err("no Eureka server was asked yet".to_owned());
        EurekaPoll { settings, log: RegistryLog::of(KIND.title), last, failures: 0 }
    }

    fn pause(&self) -> Duration {
        match self.failures {
            0 => self.settings.fetch_interval,
            failures => pause_after(failures, self.settings.fetch_interval),
        }
    }

    async fn fetch(&mut self, wanted: &WantedServices, tell: &Tell) {
        let fetched = fetch(&self.settings, &wanted.http).await;
        tell(RegistryNews::Answered(fetched.is_ok()));
        self.log.answered(fetched.as_ref().map(|_| ()).map_err(String::as_str));
        self.failures = if fetched.is_ok() { 0 } else { self.failures.saturating_add(1) };
        self.last = fetched;
        self.log.keep(&wanted.services);
        self.tell(&wanted.services, tell);
    }

    /// Tells of the last list. With every set of names: a name may have been forgotten and wanted again meanwhile.
    fn tell(&mut self, wanted: &BTreeSet<Box<str>>, tell: &Tell) {
        for name in wanted {
            let instances = match &self.last {
                Ok(all) => of_application(all, name),
                Err(reason) => Err(format!("no Eureka server answers: {reason}")),
            };
            if self.last.is_ok() {
                self.log.service(name, instances.as_ref().err().map(String::as_str));
            }
            tell(RegistryNews::Service(name, instances));
        }
    }
}

fn of_application(all: &Applications, name: &str) -> Result<Vec<ServiceInstance>, String> {
    match all.get(name) {
        Some(instances) if !instances.is_empty() => Ok(instances.clone()),
        Some(_) => Err("it is registered in Eureka, and none of its instances is UP".to_owned()),
        None => Err("Eureka has no application of this name".to_owned()),
    }
}

/// Asks the servers in their order; the error lists the problem of each.
async fn fetch(settings: &EurekaSettings, http: &HttpClient) -> Result<Applications, String> {
    let mut problems = Vec::new();
    for server in &settings.servers {
        match ask(server, settings, http).await {
            Ok(applications) => return Ok(applications),
            Err(problem) => problems.push(format!("{}: {problem}", server.url)),
        }
    }
    Err(problems.join("; "))
}

async fn ask(
    server: &EurekaServer,
    settings: &EurekaSettings,
    http: &HttpClient,
) -> Result<Applications, String> {
    let url = ServiceUrl::parse(&format!("{}apps", server.url)).map_err(|error| error.to_string())?;
    let mut request = Request::get(url.target().as_str()).header(ACCEPT, "application/json");
    if let Some(credentials) = &server.credentials {
        request = request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(credentials.as_bytes())));
    }
    let request = request.body(Bytes::new()).map_err(|error| error.to_string())?;
    let limits = CallSettings {
        connect_timeout: settings.connect_timeout,
        timeout: settings.connect_timeout + settings.timeout,
        max_content_bytes: MOST_CONTENT,
        ..CallSettings::default()
    };
    let answer = http.call(&url, request, &limits).await.map_err(|error| error.to_string())?;
    match answer.status() {
        StatusCode::OK => applications(answer.body(), settings.weight),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err("user and password are not accepted".to_owned()),
        StatusCode::NOT_FOUND => Err("nothing is there (404); check `prefix`".to_owned()),
        status => Err(format!("it answered with {status}")),
    }
}

/// Reads `GET /eureka/apps` in its JSON form.
fn applications(content: &[u8], weight: u32) -> Result<Applications, String> {
    let content: Value = serde_json::from_slice(content).map_err(|error| format!("its answer is not JSON: {error}"))?;
    let list = content.get("applications").ok_or("its answer has no `applications`")?;
    let mut all = Applications::new();
    for application in one_or_many(&list["application"]) {
        let Some(name) = application["name"].as_str() else { continue };
        let up = one_or_many(&application["instance"]).iter().filter_map(|one| instance(one, weight));
        let instances = all.entry(name.to_uppercase().into()).or_default();
        instances.extend(up);
    }
    all.values_mut().for_each(put_in_order);
    Ok(all)
}

/// Some encoders write a list with one element as the element.
fn one_or_many(value: &Value) -> &[Value] {
    match value {
        Value::Array(many) => many,
        Value::Null => &[],
        one => std::slice::from_ref(one),
    }
}

/// `None` unless the instance is UP and has an address and a port.
fn instance(value: &Value, weight: u32) -> Option<ServiceInstance> {
    let overridden = value.get("overriddenStatus").or_else(|| value.get("overriddenstatus")).and_then(Value::as_str);
    let status = overridden.filter(|status| *status != "UNKNOWN").or_else(|| value["status"].as_str())?;
    if status != "UP" {
        return None;
    }
    let (port, secure_port) = (enabled_port(&value["port"]), enabled_port(&value["securePort"]));
    port.or(secure_port)?;
    let address = value["ipAddr"].as_str()?;
    let own = number(&value["metadata"]["weight"]).and_then(|own| u32::try_from(own).ok());
    Some(ServiceInstance {
        address: address.parse().ok()?,
        port,
        secure_port,
        host: value["hostName"].as_str().filter(|name| !name.is_empty()).unwrap_or(address).to_lowercase().into(),
        weight: own.filter(|own| *own <= MOST_WEIGHT).unwrap_or(weight),
    })
}

/// `{ "$": 8080, "@enabled": "true" }`
fn enabled_port(port: &Value) -> Option<u16> {
    let is_enabled = port["@enabled"] == true || port["@enabled"] == "true";
    let port = number(&port["$"]).filter(|_| is_enabled)?;
    u16::try_from(port).ok().filter(|port| *port > 0)
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn up(address: &str, port: u16) -> Value {
        json!({
            "instanceId": format!("{address}:{port}"), "hostName": "A.example", "app": "ORDERS", "ipAddr": address,
            "status": "UP", "overriddenStatus": "UNKNOWN", "port": { "$": port, "@enabled": "true" },
            "securePort": { "$": 443, "@enabled": "false" }, "metadata": { "management.port": "8081" },
        })
    }

    fn read(instances: &Value) -> Vec<ServiceInstance> {
        let content = json!({ "applications": { "application": { "name": "orders", "instance": instances } } });
        let all = applications(content.to_string().as_bytes(), 100).expect("a list of applications");
        all["ORDERS"].clone()
    }

    #[test]
    fn only_instances_that_are_up_count() {
        let with = |key: &str, value: &str| {
            let mut one = up("10.0.0.9", 80);
            one[key] = value.into();
            one
        };
        let down = [with("status", "DOWN"), with("overriddenStatus", "OUT_OF_SERVICE"), with("ipAddr", "nowhere")];
        let all: Vec<Value> = down.into_iter().chain([up("10.0.0.2", 80), up("10.0.0.1", 80)]).collect();
        let found: Vec<String> = read(&all.into()).iter().map(|one| one.address.to_string()).collect();
        assert_eq!(found, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(read(&with("overriddenStatus", "UP")).len(), 1);
    }

    #[test]
    fn ports_count_if_they_are_enabled_and_weights_come_from_metadata() {
        let mut one = up("10.0.0.1", 8080);
        one["securePort"] = json!({ "$": "8443", "@enabled": true });
        one["metadata"]["weight"] = "7".into();
        let expected = ServiceInstance {
            address: [10, 0, 0, 1].into(),
            port: Some(8080),
            secure_port: Some(8443),
            host: "a.example".into(),
            weight: 7,
        };
        assert_eq!(read(&one), [expected]);
        let mut none = up("10.0.0.1", 8080);
        none["port"]["@enabled"] = "false".into();
        assert!(read(&none).is_empty());
        let mut heavy = up("10.0.0.1", 8080);
        heavy["metadata"]["weight"] = "heavy".into();
        assert_eq!(read(&heavy)[0].weight, 100);
    }

    #[test]
    fn other_answers_are_no_lists() {
        assert!(applications(b"<applications/>", 1).is_err());
        assert!(applications(b"{}", 1).is_err());
        let none = applications(br#"{"applications":{"versions__delta":"1","application":[]}}"#, 1);
        assert!(none.is_ok_and(|all| all.is_empty()));
    }

    #[test]
    fn pauses_after_failures_grow_to_the_interval() {
        let settings = EurekaSettings {
            servers: Vec::new(),
            fetch_interval: Duration::from_secs(5),
            weight: 100,
            connect_timeout: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        };
        let mut poll = EurekaPoll::new(Arc::new(settings));
        let pauses = [0, 1, 2, 3, 4, 100].map(|failures| {
            poll.failures = failures;
            poll.pause().as_secs()
        });
        assert_eq!(pauses, [5, 1, 2, 4, 5, 5]);
    }
}
