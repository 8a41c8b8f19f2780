//! Routes and services.

use ipnet::IpNet;
use weir_gateway::snapshot::Timeouts;
use weir_plugin::vars::parse_network;
use weir_plugin::{ExchangePhase, Expression};

use super::condition;
use super::plugins::{self, PluginSpecs};
use super::resource::{self, COMMON, Reference, ResourceOrigin};
use super::upstream::{self, UpstreamSpec};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{MapReader, NodeReader, shortened};

/// APISIX `route`.
#[derive(Clone, Debug)]
pub struct RouteSpec {
    pub origin: ResourceOrigin,
    /// The fingerprint of the whole route, with its id.
    pub content: Fingerprint,
    pub id: Box<str>,
    pub name: Box<str>,
    /// At least one in a valid document.
    pub uris: Vec<String>,
    /// In lower case; empty: any host.
    pub hosts: Vec<String>,
    /// Empty: any method.
    pub methods: Vec<String>,
    /// Empty: any address.
    pub remote_addrs: Vec<IpNet>,
    pub priority: i64,
    pub vars: Option<Expression>,
    /// APISIX `status`: a disabled route matches no request.
    pub enabled: bool,
    pub timeouts: Option<Timeouts>,
    pub enable_websocket: Option<bool>,
    pub plugins: PluginSpecs,
    pub plugin_config_id: Option<Reference>,
    pub service_id: Option<Reference>,
    pub upstream_id: Option<Reference>,
    pub upstream: Option<Box<UpstreamSpec>>,
    /// The hub that answers requests, in place of an upstream.
    pub hub_id: Option<Reference>,
}

/// APISIX `service`: settings that several routes share.
#[derive(Clone, Debug)]
pub struct ServiceSpec {
    pub origin: ResourceOrigin,
    /// The fingerprint of the whole service.
    pub content: Fingerprint,
    pub id: Box<str>,
    pub name: Box<str>,
    /// For routes without hosts of their own.
    pub hosts: Vec<String>,
    pub enable_websocket: Option<bool>,
    pub plugins: PluginSpecs,
    pub upstream_id: Option<Reference>,
    pub upstream: Option<UpstreamSpec>,
}

const METHODS: &[(&str, &str)] = &[
    ("GET", "GET"),
    ("POST", "POST"),
    ("PUT", "PUT"),
    ("DELETE", "DELETE"),
    ("PATCH", "PATCH"),
    ("HEAD", "HEAD"),
    ("OPTIONS", "OPTIONS"),
    ("CONNECT", "CONNECT"),
    ("TRACE", "TRACE"),
    ("PURGE", "PURGE"),
];

const LUA: &[&str] = &["filter_func", "script", "script_id"];

pub(super) fn read_route(at: &NodeReader, index: usize) -> Option<RouteSpec> {
    const OWN: &[&str] = &[
        "uri",
        "uris",
        "host",
        "hosts",
        "methods",
        "remote_addr",
        "remote_addrs",
        "priority",
        "vars",
        "filter_func",
        "script",
        "script_id",
        "plugins",
        "plugin_config_id",
        "upstream",
        "upstream_id",
        "service_id",
        "hub_id",
        "timeout",
        "enable_websocket",
        "status",
    ];
    let fields = at.fields(&[OWN, COMMON].concat())?;
    let id = resource::id(&fields, index);
    refuse_lua(&fields);
    require_something_to_do(&fields);
    fields.exactly_one("uri", "uris");
    fields.at_most_one("host", "hosts");
    fields.at_most_one("remote_addr", "remote_addrs");
    Some(RouteSpec {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of((&id, Fingerprint::of_node(at.node()))),
        id,
        name: resource::common(&fields),
        uris: one_or_many(&fields, "uri", "uris", uri),
        hosts: one_or_many(&fields, "host", "hosts", resource::host_pattern),
        methods: methods(&fields),
        remote_addrs: networks(&fields),
        priority: fields.get("priority").and_then(|at| at.whole()).unwrap_or(0),
        vars: fields.get("vars").and_then(|at| condition::read(&at, ExchangePhase::Routing)),
        enabled: fields.get("status").and_then(|at| at.integer(0..=1)).unwrap_or(1) == 1,
        timeouts: fields.get("timeout").and_then(|at| upstream::timeouts(&at)),
        enable_websocket: fields.get("enable_websocket").and_then(|at| at.boolean()),
        plugins: plugins::read(&fields),
        plugin_config_id: resource::reference(&fields, "plugin_config_id"),
        service_id: resource::reference(&fields, "service_id"),
        upstream_id: upstream_id(&fields),
        upstream: fields.get("upstream").and_then(|at| upstream::read_inline(&at)).map(Box::new),
        hub_id: hub_id(&fields),
    })
}

pub(super) fn read_service(at: &NodeReader, index: usize) -> Option<ServiceSpec> {
    const OWN: &[&str] = &["plugins", "upstream", "upstream_id", "script", "enable_websocket", "hosts"];
    let fields = at.fields(&[OWN, COMMON].concat())?;
    refuse_lua(&fields);
    Some(ServiceSpec {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of_node(at.node()),
        id: resource::id(&fields, index),
        name: resource::common(&fields),
        hosts: fields.get("hosts").map(|at| at.texts(resource::host_pattern)).unwrap_or_default(),
        enable_websocket: fields.get("enable_websocket").and_then(|at| at.boolean()),
        plugins: plugins::read(&fields),
        upstream_id: upstream_id(&fields),
        upstream: fields.get("upstream").and_then(|at| upstream::read_inline(&at)),
    })
}

fn refuse_lua(fields: &MapReader) {
    for at in LUA.iter().filter_map(|key| fields.get(key)) {
        at.report_advising("is Lua code, which Weir does not run", "use `vars` or a plugin instead");
    }
}

fn require_something_to_do(fields: &MapReader) {
    const ONE_OF: &[&str] =
        &["upstream", "upstream_id", "service_id", "hub_id", "plugins", "plugin_config_id", "script"];
    if !ONE_OF.iter().any(|key| fields.has(key)) {
        fields.at().report_advising(
            "does not say how to handle a request",
            "add `upstream`, `upstream_id`, `service_id`, `hub_id`, `plugins` or `plugin_config_id`",
        );
    }
}

fn upstream_id(fields: &MapReader) -> Option<Reference> {
    fields.at_most_one("upstream", "upstream_id");
    resource::reference(fields, "upstream_id")
}

fn hub_id(fields: &MapReader) -> Option<Reference> {
    fields.at_most_one("upstream", "hub_id");
    fields.at_most_one("upstream_id", "hub_id");
    resource::reference(fields, "hub_id")
}

fn one_or_many(fields: &MapReader, one: &str, many: &str, read: impl Fn(&NodeReader) -> Option<String>) -> Vec<String> {
    match (fields.get(one), fields.get(many)) {
        (Some(at), _) => read(&at).into_iter().collect(),
        (None, Some(at)) => at.texts(read),
        (None, None) => Vec::new(),
    }
}

fn uri(at: &NodeReader) -> Option<String> {
    let text = at.text_of(1..=4096)?;
    if text == "*" {
        return Some("/*".to_owned());
    }
    if !text.starts_with('/') {
        let problem = format!("`{}` matches no request: every path begins with `/`", shortened(text));
        let advice = match text.split_once("://") {
            Some((_, rest)) => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                format!("write `uri: /{}`, and `host: {}`", shortened(path), shortened(host))
            }
            None if text.starts_with(['~', '^']) => {
                "write the fixed part as `uri: /a*`, and the expression as `vars: [[uri, \"~~\", \"^/a[0-9]\"]]`"
                    .to_owned()
            }
            None => format!("try `/{}`", shortened(text)),
        };
        at.report_advising(problem, advice);
        return None;
    }
    if let Some(separator) = text.find(['?', '#']) {
        let problem = format!("`{}` is not part of a path", &text[separator..=separator]);
        at.report_advising(problem, "match the query with `vars: [[arg_name, \"==\", value]]`");
        return None;
    }
    Some(text.to_owned())
}

fn methods(fields: &MapReader) -> Vec<String> {
    let Some(at) = fields.get("methods") else { return Vec::new() };
    // An empty list means all, as in APISIX.
    if at.is_list() && at.items().next().is_none() {
        return Vec::new();
    }
    at.texts(|item| item.choice(METHODS).map(str::to_owned))
}

fn networks(fields: &MapReader) -> Vec<IpNet> {
    let texts = one_or_many(fields, "remote_addr", "remote_addrs", |at| {
        let text = at.text()?;
        if parse_network(text).is_none() {
            let problem = format!("`{}` is neither an address nor a range", shortened(text));
            at.report_advising(problem, "write as `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`");
            return None;
        }
        Some(text.to_owned())
    });
    texts.iter().filter_map(|text| parse_network(text)).collect()
}
