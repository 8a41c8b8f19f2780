//! Plugins and consumers.

use super::transformers;
use crate::answer::answer;
use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::output::ConvertedResource;
use crate::yaml::{Yaml, YamlMembers};

/// Plugins whose absence affects neither access control nor responses.
const HARMLESS: [&str; 13] = [
    "prometheus",
    "http-log",
    "file-log",
    "tcp-log",
    "udp-log",
    "syslog",
    "loggly",
    "datadog",
    "statsd",
    "zipkin",
    "opentelemetry",
    "proxy-cache",
    "correlation-id",
];

const AUTH: [&str; 3] = ["key-auth", "basic-auth", "jwt"];

/// The label of a consumer that has its groups of `acls`.
const GROUPS: &str = "groups";

/// The plugins of a route. `closed`: one that controls access could not be converted.
#[derive(Default)]
pub struct PluginChain {
    pub plugins: YamlMembers,
    pub closed: bool,
}

fn name_of<'a>(value: &'a DocumentValue, member: &str) -> Option<&'a str> {
    let value = value.get(member)?;
    value.as_text().or_else(|| value.text("name"))
}

/// The most specific instance of each plugin: of the route, of its service, or global.
pub fn effective(
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
    let mut seen: Vec<&str> = Vec::new();
    let mut chain = PluginChain::default();
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
    let (known, converted) = match options(config, name) {
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
    if !config.is_true("run_on_preflight", true) {
        conversion.differs(plugin, "`run_on_preflight: false`: OPTIONS requests have to authenticate, too");
    }
    if name == "rate-limiting" {
        conversion.differs(
            plugin,
            "`rate-limiting`: windows begin with the first request, and each route and gateway counts for itself",
        );
    }
    if let Some(how) = transformers::difference(config, name) {
        conversion.differs(plugin, how);
    }
    chain.plugins.push(converted);
    if name == "acl" && !config.is_true("hide_groups_header", false) {
        let headers = Yaml::map([("X-Consumer-Groups", Yaml::text(format!("${GROUPS}")))]);
        chain.plugins.push(("attach-consumer-label".to_owned(), Yaml::map([("headers", headers)])));
    }
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
        // Unused, since other policies are refused.
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

type ConvertedPlugin = (&'static [&'static str], (String, Yaml));

/// The supported options, and the converted plugin; or why it cannot be converted.
fn options(config: &DocumentValue, name: &str) -> Result<ConvertedPlugin, &'static str> {
    // Long, since there is one arm per plugin.
    let hides = ("hide_credentials", Yaml::Boolean(config.is_true("hide_credentials", false)));
    let plugin = |name: &str, options: Yaml| (name.to_owned(), options);
    Ok(match name {
        "key-auth" => {
            let names = config.texts("key_names");
            let key = match names.as_slice() {
                [] => "apikey",
                [name] => name,
                _ => return Err("several `key_names`"),
            };
            let places = ["key_in_header", "key_in_query"].map(|place| config.is_true(place, true));
            if places != [true, true] {
                return Err("keys that are read at one place only");
            }
            let options = Yaml::map([("header", Yaml::text(key)), ("query", Yaml::text(key)), hides]);
            (
                &["key_names", "hide_credentials", "key_in_header", "key_in_query", "run_on_preflight"],
                plugin(name, options),
            )
        }
        "basic-auth" => (&["hide_credentials", "run_on_preflight"], plugin(name, Yaml::map([hides]))),
        "jwt" => {
            let claim = Yaml::text(config.text("key_claim_name").unwrap_or("iss"));
            // Kong passes the token on.
            let mut options =
                vec![("key_claim_name".to_owned(), claim), ("hide_credentials".to_owned(), Yaml::Boolean(false))];
            let claims = config.texts("claims_to_verify");
            if !claims.is_empty() {
                options.push(("claims_to_verify".to_owned(), Yaml::texts(claims)));
            }
            (&["key_claim_name", "claims_to_verify", "run_on_preflight"], plugin("jwt-auth", Yaml::Map(options)))
        }
        "acl" => {
            let (list, groups) = allow_or_deny(config, ["allow_labels", "deny_labels"])?;
            let options = Yaml::map([
                (list, Yaml::map([(GROUPS, groups)])),
                ("rejected_msg", Yaml::text("You cannot consume this service")),
            ]);
            (&["allow", "deny", "hide_groups_header"], plugin(name, options))
        }
        "ip-restriction" => {
            (&["allow", "deny"], plugin(name, Yaml::map([allow_or_deny(config, ["whitelist", "blacklist"])?])))
        }
        "rate-limiting" => (
            &["second", "minute", "hour", "day", "limit_by", "policy", "fault_tolerant"],
            plugin("limit-count", limits(config)?),
        ),
        "request-size-limiting" => {
            let factor = match config.text("size_unit").unwrap_or("megabytes") {
                "megabytes" => 1 << 20,
                "kilobytes" => 1 << 10,
                _ => 1,
            };
            let size =
                config.number("allowed_payload_size").unwrap_or(128).checked_mul(factor).filter(|&size| size > 0);
            let size = size.ok_or("a size that is not positive")?;
            let options = Yaml::map([("max_body_size", Yaml::Integer(size))]);
            (&["allowed_payload_size", "size_unit"], plugin("client-control", options))
        }
        "request-termination" => {
            let status = config.number("status_code").unwrap_or(503);
            let body = config.text("body").unwrap_or("");
            let message = config.text("message").map(|message| serde_json::json!({ "message": message }).to_string());
            let kind = message.as_ref().map(|_| "application/json; charset=utf-8").or(config.text("content_type"));
            let body = message.as_deref().unwrap_or(body);
            (&["status_code", "body", "content_type", "message"], answer(status, body, kind))
        }
        "correlation-id" => {
            let header = config.text("header_name").unwrap_or("Kong-Request-ID");
            let options = Yaml::map([
                ("header_name", Yaml::text(header)),
                ("include_in_response", Yaml::Boolean(config.is_true("echo_downstream", false))),
            ]);
            (&["header_name", "generator", "echo_downstream"], plugin("request-id", options))
        }
        "cors" => (&transformers::CORS, plugin(name, transformers::cors(config)?)),
        "request-transformer" => (&transformers::STEPS, plugin("proxy-rewrite", transformers::headers(config)?)),
        "response-transformer" => (&transformers::STEPS, plugin("response-rewrite", transformers::headers(config)?)),
        _ => return Err("there is no conversion for it"),
    })
}

/// The list of `allow` or `deny`, whichever there is, under one of our names; an error if there is not exactly one of them.
fn allow_or_deny(config: &DocumentValue, names: [&'static str; 2]) -> Result<(&'static str, Yaml), &'static str> {
    let (allow, deny) = (config.texts("allow"), config.texts("deny"));
    match (allow.is_empty(), deny.is_empty()) {
        (false, true) => Ok((names[0], Yaml::texts(allow))),
        (true, false) => Ok((names[1], Yaml::texts(deny))),
        _ => Err("it needs either `allow` or `deny`"),
    }
}

/// The only limit of `rate-limiting`, as options of `limit-count`.
fn limits(config: &DocumentValue) -> Result<Yaml, &'static str> {
    if config.text("policy").is_some_and(|policy| policy == "redis") {
        return Err("the policy `redis`");
    }
    let windows = [("second", 1), ("minute", 60), ("hour", 3_600), ("day", 86_400)];
    let mut limits = windows.iter().filter_map(|(name, seconds)| Some((config.number(name)?, *seconds)));
    let (count, seconds) = limits.next().ok_or("it has no limit for a second, minute, hour or day")?;
    if limits.next().is_some() {
        return Err("several windows; see `rules` of `limit-count`");
    }
    let key = match config.text("limit_by").unwrap_or("consumer") {
        // Without a consumer, the address is used, as in Kong.
        "consumer" => "consumer_name",
        "ip" => "remote_addr",
        _ => return Err("what it counts by"),
    };
    Ok(Yaml::map([
        ("count", Yaml::Integer(count)),
        ("time_window", Yaml::Integer(seconds)),
        ("key", Yaml::text(key)),
        ("rejected_code", Yaml::Integer(429)),
    ]))
}

/// Entities of a list at the top of the file that belong to a consumer.
fn of_consumer<'a>(
    root: &'a DocumentValue,
    list: &str,
    consumer: &'a DocumentValue,
) -> impl Iterator<Item = &'a DocumentValue> + use<'a> {
    root.list(list).iter().filter(|entity| is_of(entity, consumer))
}

fn is_of(entity: &DocumentValue, consumer: &DocumentValue) -> bool {
    let name = entity.text("consumer").or_else(|| {
        let consumer = entity.get("consumer")?;
        consumer.text("username").or(consumer.text("name")).or(consumer.text("id"))
    });
    name.is_some() && [consumer.text("username"), consumer.text("id")].contains(&name)
}

/// Whether groups at the top of the file belong to consumers that the file has not.
fn has_groups_of_others(root: &DocumentValue) -> bool {
    let is_known = |acl: &DocumentValue| root.list("consumers").iter().any(|consumer| is_of(acl, consumer));
    root.list("acls").iter().any(|acl| !is_known(acl))
}

/// Reports credentials and groups of consumers that the file has not.
fn report_of_others(conversion: &mut DocumentConversion) {
    let root = conversion.root;
    for list in KINDS.iter().map(|(kind, _)| *kind).chain(["acls"]) {
        for entity in root.list(list) {
            if !root.list("consumers").iter().any(|consumer| is_of(entity, consumer)) {
                conversion.lost(entity, format!("`{list}`: its consumer is not in this file"));
            }
        }
    }
}

/// Converts consumers, with each credential as a resource of its own.
pub fn consumers(conversion: &mut DocumentConversion) {
    report_of_others(conversion);
    for consumer in conversion.root.list("consumers") {
        let Some(username) = consumer.text("username") else {
            conversion.lost(consumer, "a consumer without `username`");
            continue;
        };
        let mut credentials = Vec::new();
        for (kind, fields) in KINDS {
            for credential in consumer.list(kind).iter().chain(of_consumer(conversion.root, kind, consumer)) {
                match self::credential(kind, credential, fields) {
                    Some(options) => credentials.push((credential, options)),
                    None => conversion.lost(credential, format!("`{kind}`: a credential that cannot be converted")),
                }
            }
        }
        for (name, value) in consumer.members() {
            let is_known = ["id", "username", "tags", "acls"].contains(&name.as_str())
                || KINDS.iter().any(|(kind, _)| kind == name);
            if !is_known {
                conversion.lost(value, format!("`{name}` of the consumer `{username}`"));
            }
        }
        if consumer.get("plugins").is_some() {
            conversion.lost(
                consumer,
                format!("credentials of `{username}`: left out, as plugins of this consumer are not converted"),
            );
            credentials.clear();
        }
        let mut members = vec![("username".to_owned(), Yaml::text(username))];
        match groups(conversion.root, consumer) {
            Some(groups) if groups.is_empty() => {}
            Some(groups) => members.push(("labels".to_owned(), Yaml::map([(GROUPS, Yaml::text(groups))]))),
            None => {
                let why = "its groups do not fit into a label: text without spaces and commas, 256 characters in total";
                conversion.lost(consumer, format!("credentials of `{username}`: left out, as {why}"));
                credentials.clear();
            }
        }
        let place = conversion.place(consumer);
        conversion.converted.consumers.push(ConvertedResource::new(&place, "consumer", members));
        for (number, (at, options)) in credentials.into_iter().enumerate() {
            let id = format!("{username}/credentials/{}", number + 1);
            let members = vec![("id".to_owned(), Yaml::text(id)), ("plugins".to_owned(), Yaml::Map(vec![options]))];
            let item = ConvertedResource::new(&conversion.place(at), "credential", members);
            conversion.converted.consumers.push(item);
        }
    }
}

/// The groups of a consumer, as the value of a label; `None` if a label cannot hold them.
fn groups(root: &DocumentValue, consumer: &DocumentValue) -> Option<String> {
    let is_plain =
        |group: &&str| !group.is_empty() && !group.starts_with(['[', '$']) && !group.contains([',', ' ', '\t']);
    let groups: Option<Vec<&str>> = consumer
        .list("acls")
        .iter()
        .chain(of_consumer(root, "acls", consumer))
        .map(|acl| acl.text("group").filter(is_plain))
        .collect();
    Some(groups?.join(",")).filter(|groups| groups.chars().count() <= 256)
}

const KINDS: [(&str, &[&str]); 3] = [
    ("keyauth_credentials", &["key"]),
    ("basicauth_credentials", &["username", "password"]),
    ("jwt_secrets", &["key", "secret"]),
];

fn credential(kind: &str, credential: &DocumentValue, fields: &[&str]) -> Option<(String, Yaml)> {
    let plugin = match kind {
        "keyauth_credentials" => "key-auth",
        "basicauth_credentials" => "basic-auth",
        _ => "jwt-auth",
    };
    // Without its expiry, a key would be valid for ever; and a dump contains the hash of a password, which would become the
    // password.
    let is_hash = |password: &str| password.len() == 40 && password.chars().all(|char| char.is_ascii_hexdigit());
    if credential.get("ttl").is_some() || credential.text("password").is_some_and(is_hash) {
        return None;
    }
    let mut options = Vec::new();
    let algorithm = credential.text("algorithm").unwrap_or("HS256");
    let is_public = plugin == "jwt-auth" && !algorithm.starts_with("HS");
    for name in fields {
        let (theirs, ours) =
            if is_public && *name == "secret" { ("rsa_public_key", "public_key") } else { (*name, *name) };
        let value = credential.text(theirs).filter(|value| !value.is_empty() && !value.starts_with("{vault"))?;
        options.push((ours.to_owned(), Yaml::text(value)));
    }
    if plugin == "jwt-auth" {
        options.push(("algorithm".to_owned(), Yaml::text(algorithm)));
    }
    Some((plugin.to_owned(), Yaml::Map(options)))
}
