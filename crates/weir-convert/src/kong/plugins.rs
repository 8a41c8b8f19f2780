//! The plugins of a route: which of them are in effect, and what becomes of those that cannot be converted.

use super::consumers::{GROUPS, are_whole, has_groups_of_others};
use super::{HARMLESS, bodies, mtls, name_of, observers, options, tracing, transformers};
use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

const AUTH: [&str; 4] = ["key-auth", "basic-auth", "jwt", "mtls-auth"];

/// The plugins of a route. `closed`: one that controls access could not be converted.
#[derive(Default)]
pub(super) struct PluginChain {
    pub plugins: YamlMembers,
    pub closed: bool,
    /// Requests that pass have a consumer.
    authenticates: bool,
}

/// The most specific instance of each plugin: of the route, of its service, or global.
pub(super) fn effective(
    conversion: &mut DocumentConversion,
    service: Option<&DocumentValue>,
    route: &DocumentValue,
) -> PluginChain {
    let all = conversion.root.list("plugins");
    let own_name = |of: Option<&DocumentValue>| of.and_then(|of| of.text("name")).map(str::to_owned);
    let (route_name, service_name) = (own_name(Some(route)), own_name(service));
    let top = |wanted: (Option<&str>, Option<&str>)| -> Vec<&DocumentValue> {
        all.iter().filter(|plugin| (name_of(plugin, "route"), name_of(plugin, "service")) == wanted).collect()
    };
    let mut candidates: Vec<&DocumentValue> = route.list("plugins").iter().collect();
    if route_name.is_some() {
        candidates.extend(top((route_name.as_deref(), None)));
    }
    candidates.extend(service.map_or(&[][..], |service| service.list("plugins")));
    if service_name.is_some() {
        candidates.extend(top((None, service_name.as_deref())));
    }
    candidates.extend(top((None, None)));
    let authenticates = AUTH.iter().any(|name| {
        let is_it = |plugin: &&&DocumentValue| plugin.is_true("enabled", true) && plugin.text("name") == Some(name);
        candidates.iter().find(is_it).is_some_and(|plugin| finds_consumer(plugin))
    });
    let mut seen: Vec<&str> = Vec::new();
    let mut chain = PluginChain { authenticates, ..PluginChain::default() };
    for plugin in candidates {
        let name = plugin.text("name").unwrap_or_default();
        let is_narrower = plugin.get("consumer").is_some() || plugin.get("consumer_group").is_some();
        // A disabled instance is ignored, so that of a wider level applies.
        if !plugin.is_true("enabled", true) || seen.contains(&name) && !is_narrower {
            continue;
        }
        if is_narrower {
            refuse(
                conversion,
                plugin,
                &mut chain,
                "it applies to one consumer or consumer group, and such plugins are not converted",
            );
            continue;
        }
        seen.push(name);
        one(conversion, plugin, name, &mut chain);
    }
    if seen.iter().filter(|name| AUTH.contains(name)).count() > 1 {
        conversion.lost(route, "the route has several plugins that authenticate; it answers with 503");
        chain.closed = true;
    }
    unplaced(conversion, &mut chain);
    chain
}

/// Whether requests that pass a plugin that authenticates have a consumer.
fn finds_consumer(plugin: &DocumentValue) -> bool {
    plugin.get("config").is_none_or(|config| !mtls::skips_lookup(config))
}

/// Plugins whose service or route cannot be found: they may control access to any route.
fn unplaced(conversion: &mut DocumentConversion, chain: &mut PluginChain) {
    let root = conversion.root;
    let services = root.list("services");
    let routes = || services.iter().flat_map(|service| service.list("routes")).chain(root.list("routes"));
    for plugin in root.list("plugins").iter().filter(|plugin| plugin.is_true("enabled", true)) {
        let (of_service, of_route) = (plugin.get("service"), plugin.get("route"));
        let service = name_of(plugin, "service");
        let route = name_of(plugin, "route");
        let is_placed = match (of_service, of_route) {
            (None, None) => true,
            (Some(_), None) => services.iter().any(|known| service.is_some() && known.text("name") == service),
            (None, Some(_)) => routes().any(|known| route.is_some() && known.text("name") == route),
            (Some(_), Some(_)) => false,
        };
        if !is_placed {
            refuse(conversion, plugin, chain, "its service or route is not found by one name");
        }
    }
}

/// Reports a plugin that was not converted, and closes the route unless the plugin is harmless.
fn refuse(conversion: &mut DocumentConversion, at: &DocumentValue, chain: &mut PluginChain, why: &str) {
    let name = at.text("name").unwrap_or_default();
    if HARMLESS.contains(&name) {
        return conversion.lost(at, format!("plugin `{name}`: {why}"));
    }
    conversion.lost(at, format!("the plugin `{name}`: {why}; the routes that it applies to answer with 503"));
    chain.closed = true;
}

fn one(conversion: &mut DocumentConversion, plugin: &DocumentValue, name: &str, chain: &mut PluginChain) {
    let empty = DocumentValue::default();
    let config = plugin.get("config").unwrap_or(&empty);
    let (known, converted) = match options::converted(config, name, chain.authenticates) {
        Ok(options) => options,
        Err(why) => return refuse(conversion, plugin, chain, why),
    };
    let is_unknown = |(option, value): &&(String, DocumentValue)| {
        !known.contains(&option.as_str()) && matters(value) && !is_default(option, value)
    };
    if let Some((option, _)) = config.members().iter().find(is_unknown) {
        return refuse(conversion, plugin, chain, &format!("its option `{option}` is not converted"));
    }
    if name == "acl" && has_groups_of_others(conversion.root) {
        return refuse(conversion, plugin, chain, "not all `acls` name a consumer of this file");
    }
    if name == "mtls-auth" {
        if mtls::authorities(conversion.root).is_none() {
            let why = "its `ca_certificates` are not all in this file, or differ from those of another instance";
            return refuse(conversion, plugin, chain, why);
        }
        if mtls::finds_by_names(config) && !are_whole(conversion.root) {
            let why =
                "it finds consumers by their names, and plugins, groups or certificates of consumers are not converted";
            return refuse(conversion, plugin, chain, why);
        }
        conversion.differs(plugin, mtls::DIFFERENCE);
    }
    if !config.is_true("run_on_preflight", true) {
        conversion.differs(plugin, "`run_on_preflight: false`: OPTIONS requests have to authenticate, too");
    }
    if name == "rate-limiting" {
        let counts = match config.text("policy") {
            Some("redis") => "each route",
            _ => "each route and gateway",
        };
        let text = format!("`rate-limiting`: windows begin with the first request, and {counts} counts for itself");
        conversion.differs(plugin, text);
    }
    if let Some(Ok(metadata)) = (name == "opentelemetry").then(|| tracing::metadata(config))
        && !with_metadata(conversion, plugin, metadata)
    {
        let why = "the collector is set once for the node: `plugin_metadata` of `opentelemetry`";
        return refuse(conversion, plugin, chain, why);
    }
    let how = transformers::difference(config, name).or_else(|| observers::difference(config, name));
    if let Some(how) = how.or_else(|| bodies::difference(name)) {
        conversion.differs(plugin, how);
    }
    chain.plugins.push(converted);
    if name == "acl" && !config.is_true("hide_groups_header", false) {
        let headers = Yaml::map([("X-Consumer-Groups", Yaml::text(format!("${GROUPS}")))]);
        chain.plugins.push(("attach-consumer-label".to_owned(), Yaml::map([("headers", headers)])));
    }
}

/// Adds the metadata of a plugin; `false` if the plugin has others already.
fn with_metadata(conversion: &mut DocumentConversion, plugin: &DocumentValue, metadata: YamlMembers) -> bool {
    let all = &conversion.converted.plugin_metadata;
    if let Some(known) = all.iter().find(|known| known.members[0] == metadata[0]) {
        return known.members == metadata;
    }
    let item = ConvertedResource::new(&conversion.place(plugin), "plugin", metadata);
    conversion.converted.plugin_metadata.push(item);
    true
}

/// Whether an option has the default value that `deck dump` writes.
fn is_default(option: &str, value: &DocumentValue) -> bool {
    let texts: Vec<&str> =
        value.as_text().into_iter().chain(value.items().iter().filter_map(DocumentValue::as_text)).collect();
    match option {
        "header_names" => texts == ["authorization"],
        "uri_param_names" => texts == ["jwt"],
        "maximum_expiration" => texts == ["0"],
        "error_code" => texts == ["429"],
        "error_message" => texts == ["API rate limit exceeded"],
        "sync_rate" => texts == ["-1"],
        "revocation_check_mode" => texts == ["SKIP"] || texts == ["IGNORE_CA_ERROR"],
        // Read with the limit, or unused without Redis.
        option if option == "redis" || option.starts_with("redis_") => true,
        _ => false,
    }
}

/// Whether an option has any effect: it is neither null, nor false, nor empty.
fn matters(value: &DocumentValue) -> bool {
    use crate::document::ValueKind::{List, Map, Null, Scalar};
    match &value.kind {
        Null => false,
        Scalar(text, _) => text != "false",
        List(items) => !items.is_empty(),
        Map(members) => members.iter().any(|(_, value)| matters(value)),
    }
}
