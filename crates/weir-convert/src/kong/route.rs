//! Routes: their conditions, and the path for the upstream.

use super::plugins;
use super::upstream::{self, variable};
use crate::answer::answer;
use crate::conversion::DocumentConversion;
use crate::document::DocumentValue;
use crate::output::ConvertedResource;
use crate::pattern::{regex_quoted, supported};
use crate::yaml::{Yaml, YamlMembers};

/// Kong prefers routes with conditions on methods or headers.
const RULE_PRIORITY: i64 = 1_000;

/// The members of a route that are converted, or reported where they would be. Bodies are streamed, whatever the two switches for
/// buffering say.
const ROUTE: [&str; 19] = [
    "name",
    "protocols",
    "methods",
    "hosts",
    "paths",
    "headers",
    "https_redirect_status_code",
    "regex_priority",
    "strip_path",
    "path_handling",
    "preserve_host",
    "snis",
    "sources",
    "destinations",
    "expression",
    "service",
    "plugins",
    "request_buffering",
    "response_buffering",
];

pub(super) fn carry_over(conversion: &mut DocumentConversion) {
    let root = conversion.root;
    for service in root.list("services") {
        for route in service.list("routes") {
            convert(conversion, Some(service), route);
        }
    }
    for route in root.list("routes") {
        let name = route.get("service").and_then(|service| service.as_text().or_else(|| service.text("name")));
        let service = root.list("services").iter().find(|service| name.is_some() && service.text("name") == name);
        convert(conversion, service, route);
    }
    let is_named = |route: &ConvertedResource| route.members.iter().any(|(name, _)| name == "hosts");
    let named = conversion.converted.routes.iter().filter(|route| is_named(route)).count();
    if named > 0 && named < conversion.converted.routes.len() {
        let text = "routes with a host take precedence over all routes without one; Kong counts kinds of conditions";
        conversion.differs(root, text);
    }
}

fn convert(conversion: &mut DocumentConversion, service: Option<&DocumentValue>, route: &DocumentValue) {
    let address = service.and_then(upstream::address);
    let protocols = route.texts("protocols");
    let has = |names: [&str; 2]| protocols.is_empty() || protocols.iter().any(|name| names.contains(name));
    let (plain, tls) = (has(["http", "grpc"]), has(["https", "grpcs"]));
    if !plain && !tls {
        return conversion.lost(route, format!("a route for {}: only HTTP is converted", protocols.join(", ")));
    }
    report_rest(conversion, route);
    let mut common = conditions(conversion, route);
    let mut closed = common.closed;
    let (mut members, path) = match (service, &address) {
        (Some(service), Some(address)) if service.is_true("enabled", true) => {
            let id = upstream::registered(conversion, service, address, route.is_true("preserve_host", false));
            (vec![("upstream_id".to_owned(), Yaml::text(id))], address.path.as_str())
        }
        _ => {
            conversion.lost(route, "the route has no HTTP service that is enabled; it answers with 503");
            closed = true;
            (YamlMembers::new(), "")
        }
    };
    let mut chain = plugins::effective(conversion, service, route);
    closed |= chain.closed;
    if closed {
        members.clear();
        chain.plugins = vec![answer(503, "", None)];
    }
    if plain != tls {
        let rule = |scheme: &str| Yaml::List(vec![Yaml::text("scheme"), Yaml::text("=="), Yaml::text(scheme)]);
        if tls {
            refuse_plain(conversion, route, &common, rule("http"));
        }
        common.vars.push(rule(if tls { "https" } else { "http" }));
    }
    let paths = route.texts("paths");
    let (plain_paths, expressions): (Vec<&str>, Vec<&str>) = paths.iter().partition(|path| !path.starts_with('~'));
    if !plain_paths.is_empty() || paths.is_empty() {
        let uris = if paths.is_empty() {
            vec!["/*".to_owned()]
        } else {
            plain_paths.iter().map(|path| format!("{path}*")).collect()
        };
        let pairs = prefix_pairs(&plain_paths, strips(route), path);
        let parts = RouteParts { uris, pairs, ..RouteParts::new(&members, &chain.plugins, closed) };
        add(conversion, route, &common, parts);
    }
    for expression in expressions {
        let parts = RouteParts::new(&members, &chain.plugins, closed);
        add_expression(conversion, route, &common, expression, path, parts);
    }
}

/// Reports what of a route is not converted.
fn report_rest(conversion: &mut DocumentConversion, route: &DocumentValue) {
    super::report_others(conversion, route, "a route", &ROUTE);
    if route.text("path_handling") == Some("v1") {
        conversion
            .differs(route, "`path_handling: v1`: a slash between the paths of service and route is never left out");
    }
}

/// Adds a route whose path is a regular expression, which gives `parts` their URIs and rewriting.
fn add_expression(
    conversion: &mut DocumentConversion,
    route: &DocumentValue,
    common: &RouteConditions,
    path_expression: &str,
    path: &str,
    parts: RouteParts<'_>,
) {
    let pattern = supported(&path_expression[1..]).map(|pattern| format!("^(?:{pattern})"));
    let uris = vec![format!("{}*", fixed_prefix(&path_expression[1..]))];
    let Some(pattern) = pattern else {
        let text = "look-around and back-references are not supported";
        conversion.lost(route, format!("`{path_expression}`: {text}; `{}` answers with 503", uris[0]));
        let refusal = [answer(503, "", None)];
        add(conversion, route, common, RouteParts { uris, ..RouteParts::new(&[], &refusal, true) });
        return;
    };
    conversion.differs(route, format!("`{path_expression}`: a route with a longer plain path takes precedence"));
    let strips = strips(route);
    let pairs = match (strips, path) {
        (true, path) => vec![format!("{pattern}/?"), format!("{path}/")],
        (false, "") => Vec::new(),
        (false, path) => vec!["^/(.*)".to_owned(), format!("{path}/$1")],
    };
    add(conversion, route, common, RouteParts { uris, pairs, expression: Some(pattern), ..parts });
}

/// Whether the path of the route is removed. Kong does not for gRPC, whose paths name the method.
fn strips(route: &DocumentValue) -> bool {
    let is_grpc = route.texts("protocols").iter().any(|protocol| protocol.starts_with("grpc"));
    !is_grpc && route.is_true("strip_path", true)
}

/// The rewriting of paths for the upstream: the service's path, and what follows the route's path.
fn prefix_pairs(paths: &[&str], strips: bool, service_path: &str) -> Vec<String> {
    let takes_all = !strips || paths.is_empty() || paths.contains(&"/");
    let mut paths: Vec<&str> =
        paths.iter().map(|path| path.trim_end_matches('/')).filter(|path| !path.is_empty()).collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
    let mut pairs = Vec::new();
    for path in paths.into_iter().filter(|_| strips) {
        let quoted = regex_quoted(path);
        if !service_path.is_empty() {
            pairs.extend([format!("^{quoted}$"), service_path.to_owned()]);
        }
        pairs.extend([format!("^{quoted}/?(.*)"), format!("{service_path}/$1")]);
    }
    if takes_all && !service_path.is_empty() {
        pairs.extend(["^/(.*)".to_owned(), format!("{service_path}/$1")]);
    }
    pairs
}

/// The fixed prefix of all paths that an expression matches, up to a slash.
fn fixed_prefix(expression: &str) -> &str {
    let expression = expression.strip_prefix('^').unwrap_or(expression);
    if expression.contains('|') {
        return "/";
    }
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/_-".contains(char);
    let mut end = expression.find(|char: char| !is_plain(char)).unwrap_or(expression.len());
    if expression[end..].starts_with(['?', '*', '+', '{']) {
        end = end.saturating_sub(1);
    }
    expression[..end].rfind('/').map_or("/", |slash| &expression[..=slash])
}

#[derive(Default)]
struct RouteConditions {
    members: YamlMembers,
    vars: Vec<Yaml>,
    priority: i64,
    closed: bool,
}

fn conditions(conversion: &mut DocumentConversion, route: &DocumentValue) -> RouteConditions {
    let mut conditions = RouteConditions::default();
    let hosts: Vec<String> = route.texts("hosts").iter().map(|host| host.to_ascii_lowercase()).collect();
    if hosts.iter().any(|host| host.contains(':')) {
        conversion.lost(route, "`hosts` with a port: the route is for every port, and answers with 503");
        conditions.closed = true;
    }
    let hosts: Vec<&str> = hosts.iter().map(|host| host.split(':').next().unwrap_or_default()).collect();
    if hosts.iter().any(|host| host.ends_with(".*")) {
        conversion.differs(route, "`hosts` with a wildcard at the end: a route with a plain host takes precedence");
        let pattern = |host: &&str| format!("^{}$", regex_quoted(host).replace("\\*", ".+"));
        let patterns: Vec<String> = hosts.iter().map(pattern).collect();
        conditions.vars.push(Yaml::texts(["host", "~*", &patterns.join("|")]));
        conditions.priority += RULE_PRIORITY;
    } else if !hosts.is_empty() {
        conditions.members.push(("hosts".to_owned(), Yaml::texts(hosts)));
    }
    let snis = route.texts("snis");
    if !snis.is_empty() {
        conditions.vars.push(Yaml::List(vec![Yaml::text("ssl_server_name"), Yaml::text("in"), Yaml::texts(&snis)]));
        conditions.priority += RULE_PRIORITY;
    }
    let methods = route.texts("methods");
    if !methods.is_empty() {
        conditions.members.push(("methods".to_owned(), Yaml::texts(methods)));
        conditions.priority += RULE_PRIORITY;
    }
    for (name, values) in route.get("headers").map_or(&[][..], DocumentValue::members) {
        let pattern = |value: &str| match value.strip_prefix("~*") {
            Some(pattern) => supported(pattern),
            None => Some(format!("^{}$", regex_quoted(value))),
        };
        let patterns: Option<Vec<_>> = values.items().iter().filter_map(DocumentValue::as_text).map(pattern).collect();
        let Some(patterns) = patterns else {
            let text = "look-around and back-references are not supported; the route answers with 503";
            conversion.lost(values, format!("`{name}` of `headers`: {text}"));
            conditions.closed = true;
            continue;
        };
        let rule = [format!("http_{}", variable(name)), "~*".to_owned(), patterns.join("|")];
        conditions.vars.push(Yaml::texts(rule));
        conditions.priority += RULE_PRIORITY;
    }
    conditions.priority += route.number("regex_priority").unwrap_or(0);
    for name in ["sources", "destinations", "expression"] {
        if let Some(value) = route.get(name) {
            conversion.lost(
                value,
                format!(
                    "`{name}` of a route: the condition cannot be converted; the route answers with 503, also requests that it is not for"
                ),
            );
            conditions.closed = true;
        }
    }
    conditions
}

struct RouteParts<'a> {
    uris: Vec<String>,
    pairs: Vec<String>,
    expression: Option<String>,
    members: &'a [(String, Yaml)],
    plugins: &'a [(String, Yaml)],
    closed: bool,
}

impl<'a> RouteParts<'a> {
    fn new(members: &'a [(String, Yaml)], plugins: &'a [(String, Yaml)], closed: bool) -> RouteParts<'a> {
        RouteParts { uris: Vec::new(), pairs: Vec::new(), expression: None, members, plugins, closed }
    }
}

fn add(conversion: &mut DocumentConversion, route: &DocumentValue, conditions: &RouteConditions, parts: RouteParts) {
    let mut members = vec![("uris".to_owned(), Yaml::texts(&parts.uris))];
    members.extend(conditions.members.iter().cloned());
    let mut vars = conditions.vars.clone();
    vars.extend(parts.expression.map(|pattern| Yaml::texts(["uri".to_owned(), "~~".to_owned(), pattern])));
    if !vars.is_empty() {
        members.push(("vars".to_owned(), Yaml::List(vars)));
    }
    if conditions.priority != 0 {
        members.push(("priority".to_owned(), Yaml::Integer(conditions.priority)));
    }
    members.extend(parts.members.iter().cloned());
    let mut plugins = parts.plugins.to_vec();
    if !parts.pairs.is_empty() && !parts.closed {
        let pairs = ("regex_uri".to_owned(), Yaml::texts(parts.pairs));
        match plugins.iter_mut().find(|(name, _)| name == "proxy-rewrite") {
            Some((_, Yaml::Map(options))) => options.insert(0, pairs),
            _ => plugins.push(("proxy-rewrite".to_owned(), Yaml::Map(vec![pairs]))),
        }
    }
    if !plugins.is_empty() {
        members.push(("plugins".to_owned(), Yaml::Map(plugins)));
    }
    let what = format!("route {}", route.text("name").unwrap_or("without a name"));
    conversion.converted.routes.push(ConvertedResource::new(&conversion.place(route), what, members));
}

/// Adds a route with Kong's response to requests without TLS for a route that allows only HTTPS.
fn refuse_plain(conversion: &mut DocumentConversion, route: &DocumentValue, conditions: &RouteConditions, rule: Yaml) {
    let plugin = match route.number("https_redirect_status_code").unwrap_or(426) {
        code @ (301 | 302 | 307 | 308) => {
            let uri = Yaml::text("https://$host$request_uri");
            ("redirect".to_owned(), Yaml::map([("uri", uri), ("ret_code", Yaml::Integer(code))]))
        }
        code => answer(code, "", None),
    };
    let paths = route.texts("paths");
    let uri = |path: &&str| match path.strip_prefix('~') {
        Some(expression) => format!("{}*", fixed_prefix(expression)),
        None => format!("{path}*"),
    };
    let uris = if paths.is_empty() { vec!["/*".to_owned()] } else { paths.iter().map(uri).collect() };
    let mut inner = RouteConditions {
        members: conditions.members.clone(),
        vars: conditions.vars.clone(),
        ..RouteConditions::default()
    };
    inner.priority = conditions.priority;
    inner.vars.push(rule);
    add(
        conversion,
        route,
        &inner,
        RouteParts { uris, pairs: Vec::new(), expression: None, members: &[], plugins: &[plugin], closed: true },
    );
}
