//! Routes and services.

use std::time::Duration;

use ipnet::IpNet;
use serde_json::json;
use weir_gateway::snapshot::Timeouts;
use weir_plugin::vars::parse_network;
use weir_plugin::{ExchangePhase, Expression};

use super::condition;
use super::methods::METHODS;
use super::plugins::{PLUGINS, PluginSpecs};
use super::resource::{self, COMMON, IdOf, Reference, ResourceOrigin, host, id_of};
use super::upstream::{self, TIMEOUT, UPSTREAM, UpstreamSpec};
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{
    AnyWhole, Custom, DistinctList, Flag, List, Or, ParsedText, RefusedKey, SubMap, Time, Whole, Words, any_text,
    any_whole, custom, flag, list, refused, section, set, text, time, whole, words,
};
use crate::lua;
use crate::text::fingerprint::Fingerprint;
use crate::text::read::{NodeReader, shortened};

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
    /// Empty: any listener.
    pub listeners: Vec<Reference>,
    /// Empty: any method.
    pub methods: Vec<String>,
    /// Empty: any address.
    pub remote_addrs: Vec<IpNet>,
    pub priority: i64,
    pub vars: Option<Expression>,
    /// APISIX `status`: a disabled route matches no request.
    pub enabled: bool,
    pub timeouts: Option<Timeouts>,
    /// Not in APISIX: for the whole exchange.
    pub request_timeout: Option<Duration>,
    pub enable_websocket: Option<bool>,
    pub allow_encoded_slashes: Option<bool>,
    pub merge_slashes: Option<bool>,
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

keys! {
    /// Which requests a route takes, and how they are handled.
    pub(super) static ROUTE: RouteKeys = "route", shared COMMON, rules &[
        KeyRule::AnyOf {
            keys: &["upstream", "upstream_id", "service_id", "hub_id", "plugins", "plugin_config_id", "script"],
            problem: "does not say how to handle a request",
            advice: "add `upstream`, `upstream_id`, `service_id`, `hub_id`, `plugins` or `plugin_config_id`",
        },
        KeyRule::ExactlyOne("uri", "uris"),
        KeyRule::AtMostOne("host", "hosts"),
        KeyRule::AtMostOne("remote_addr", "remote_addrs"),
        KeyRule::AtMostOne("upstream", "upstream_id"),
        KeyRule::AtMostOne("upstream", "hub_id"),
        KeyRule::AtMostOne("upstream_id", "hub_id"),
    ];

    /// The path: `/orders` matches only this one, `/orders/*` every one below it, `/orders/:id` any single segment in place of `:id`, and
    /// `*` every path.
    uri: ParsedText<String> = URI, example("/orders/*");
    /// Several paths.
    uris: DistinctList<ParsedText<String>> = set(URI), example("[/orders, /orders/*]");
    /// The host name, or a wildcard such as `*.example.com`.
    host: ParsedText<String> = host(), absent("the hosts of the service, or any"), example("api.example.com");
    /// Several hosts.
    hosts: DistinctList<ParsedText<String>> = set(host()), absent("the hosts of the service, or any"),
        example("[api.example.com, \"*.example.org\"]");
    /// The methods. An empty list stands for all.
    methods: DistinctList<Words<&'static str>> = set(words(METHODS)).may_be_empty(), absent("any"), example("[GET, POST]");
    /// The listeners whose requests the route takes, by their ids.
    listeners: List<IdOf> = list(id_of("listeners")).not_empty("leave it out for all listeners"), own(), absent("any"),
        example("[internal]"), guide("listeners.md#routes-of-one-listener");
    /// The address of the client, or a range of addresses.
    remote_addr: ParsedText<String> = NETWORK, absent("any"), example("10.0.0.0/8");
    /// Several addresses and ranges.
    remote_addrs: DistinctList<ParsedText<String>> = set(NETWORK), absent("any"), example("[10.0.0.0/8, \"fd00::/8\"]");
    /// Among routes with the same path, the one with the higher priority is tried first.
    priority: Or<AnyWhole> = any_whole().or(0);
    /// Conditions on variables, all of which must hold.
    vars: Custom<Expression> = custom("list of conditions", |_| json!({ "type": "array" }),
        |at| condition::read(at, ExchangePhase::Routing)), absent("none"), example("[[arg_version, \"==\", \"2\"]]"),
        guide("configuration.md#conditions");
    /// The plugins that are applied, each with its options.
    plugins: Custom<PluginSpecs> = PLUGINS, example("{ key-auth: {} }");
    /// The `plugin_configs` entry whose plugins are applied.
    plugin_config_id: IdOf = id_of("plugin_configs");
    /// The upstream that requests are sent to.
    upstream: SubMap<UpstreamSpec> = section(&UPSTREAM, upstream::of_fields);
    /// The same by its id.
    upstream_id: IdOf = id_of("upstreams");
    /// The service that provides what the route does not say.
    service_id: IdOf = id_of("services");
    /// The hub that answers requests, in place of an upstream.
    hub_id: IdOf = id_of("hubs"), own(), guide("hub.md");
    /// How long steps of an exchange may take, in place of the upstream's `timeout`.
    timeout: SubMap<Timeouts> = section(&TIMEOUT, upstream::timeouts), absent("that of the upstream");
    /// How long a whole exchange may take, from the first byte of the request to the last of the response, with all retries. The answer
    /// is then 504, or a response that has begun is cut short. It applies to upstreams, and also to WebSockets and event streams.
    request_timeout: Time = time(), own(), absent("no limit"), example("10s");
    /// Whether WebSockets are passed on. With `false`, the upstream gets requests without `Upgrade`. In APISIX the default is `false`.
    enable_websocket: Flag = flag(), absent("as the service says, or `true`"), guide("websocket.md");
    /// Whether paths with `%2F` and `%5C` are forwarded, still encoded. Otherwise they are answered with 400.
    allow_encoded_slashes: Flag = flag(), own(), absent("as the node says, or `false`");
    /// Whether empty segments are removed from the path that is forwarded, as in `/a//b`. Routes are always chosen without them.
    merge_slashes: Flag = flag(), own(), absent("as the node says, or `false`");
    /// 0 disables the route.
    status: Or<Whole<u32>> = whole(0, 1).or(1);

    refused {
        filter_func: LUA.advising(vars_of_filter);
        script: LUA;
        script_id: LUA;
    }
}

keys! {
    /// Settings that several routes share.
    pub(super) static SERVICE: ServiceKeys = "service", shared COMMON, rules &[KeyRule::AtMostOne("upstream", "upstream_id")];

    /// The plugins that are applied, each with its options.
    plugins: Custom<PluginSpecs> = PLUGINS;
    /// The upstream that requests are sent to.
    upstream: SubMap<UpstreamSpec> = section(&UPSTREAM, upstream::of_fields);
    /// The same by its id.
    upstream_id: IdOf = id_of("upstreams");
    /// Whether WebSockets are passed on. With `false`, the upstream gets requests without `Upgrade`. In APISIX the default is `false`.
    enable_websocket: Flag = flag(), absent("`true`"), guide("websocket.md");
    /// Hosts for routes that have none.
    hosts: DistinctList<ParsedText<String>> = set(host()), absent("any"), example("[api.example.com]");

    refused {
        script: LUA;
    }
}

const LUA: RefusedKey = refused("is Lua code, which Weir does not run", "use `vars` or a plugin instead");

/// The `vars` in place of a `filter_func`.
fn vars_of_filter(function: &str) -> Option<String> {
    let vars = lua::vars_of(function).ok()?.to_string();
    let hidden = if vars.contains(lua::HIDDEN) { lua::ABOUT_HIDDEN } else { "" };
    Some(format!(
        "write `vars: {vars}` instead, which holds for the same requests; a `vars` that is there keeps its rules{hidden}"
    ))
}

const URI: ParsedText<String> = text(1, 4096).pattern(r"^(/[^?#]*|\*)$").parsed(uri);
/// An address or a range of addresses.
pub(super) const NETWORK: ParsedText<String> = any_text().parsed(network);

pub(super) fn read_route(at: &NodeReader, index: usize) -> Option<RouteSpec> {
    let fields = at.keys(&ROUTE)?;
    let id = resource::id(&fields, index);
    let remote_addrs = one_or_many(fields.get(&ROUTE.remote_addr).is_some(), fields.read(&ROUTE.remote_addr), || {
        fields.read(&ROUTE.remote_addrs)
    });
    Some(RouteSpec {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of((&id, Fingerprint::of_node(at.node()))),
        id,
        name: resource::common(&fields),
        uris: one_or_many(fields.has(&ROUTE.uri), fields.read(&ROUTE.uri), || fields.read(&ROUTE.uris)),
        hosts: one_or_many(fields.has(&ROUTE.host), fields.read(&ROUTE.host), || fields.read(&ROUTE.hosts)),
        methods: fields.read(&ROUTE.methods).unwrap_or_default().into_iter().map(str::to_owned).collect(),
        listeners: fields.read(&ROUTE.listeners).unwrap_or_default(),
        remote_addrs: remote_addrs.iter().filter_map(|text| parse_network(text)).collect(),
        priority: fields.value(&ROUTE.priority),
        vars: fields.read(&ROUTE.vars),
        enabled: fields.value(&ROUTE.status) == 1,
        timeouts: fields.read(&ROUTE.timeout),
        request_timeout: fields.read(&ROUTE.request_timeout),
        enable_websocket: fields.read(&ROUTE.enable_websocket),
        allow_encoded_slashes: fields.read(&ROUTE.allow_encoded_slashes),
        merge_slashes: fields.read(&ROUTE.merge_slashes),
        plugins: fields.read(&ROUTE.plugins).unwrap_or_default(),
        plugin_config_id: fields.read(&ROUTE.plugin_config_id),
        service_id: fields.read(&ROUTE.service_id),
        upstream_id: fields.read(&ROUTE.upstream_id),
        upstream: fields.read(&ROUTE.upstream).map(Box::new),
        hub_id: fields.read(&ROUTE.hub_id),
    })
}

pub(super) fn read_service(at: &NodeReader, index: usize) -> Option<ServiceSpec> {
    let fields = at.keys(&SERVICE)?;
    Some(ServiceSpec {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of_node(at.node()),
        id: resource::id(&fields, index),
        name: resource::common(&fields),
        hosts: fields.read(&SERVICE.hosts).unwrap_or_default(),
        enable_websocket: fields.read(&SERVICE.enable_websocket),
        plugins: fields.read(&SERVICE.plugins).unwrap_or_default(),
        upstream_id: fields.read(&SERVICE.upstream_id),
        upstream: fields.read(&SERVICE.upstream),
    })
}

/// The value of the first of two keys if it is there, otherwise those of the second.
fn one_or_many(has_one: bool, one: Option<String>, many: impl FnOnce() -> Option<Vec<String>>) -> Vec<String> {
    if has_one { one.into_iter().collect() } else { many().unwrap_or_default() }
}

fn uri(at: &NodeReader, text: &str) -> Option<String> {
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

fn network(at: &NodeReader, text: &str) -> Option<String> {
    if parse_network(text).is_none() {
        let problem = format!("`{}` is neither an address nor a range", shortened(text));
        at.report_advising(problem, "write as `10.0.0.1`, `10.0.0.0/8` or `fd00::/8`");
        return None;
    }
    Some(text.to_owned())
}
