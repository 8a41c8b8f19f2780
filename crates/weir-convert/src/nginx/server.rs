//! `server` blocks: their hosts and ports, and the routes of their locations.

use super::Conversion;
use super::location::{Location, Matching, Region, regions};
use super::rewrite;
use super::scope::BlockScope;
use super::syntax::Directive;
use super::{policies, proxy};
use crate::answer::answer;
use crate::output::{ConvertedResource, one_or_many};
use crate::pattern::regex_quoted;
use crate::yaml::{Yaml, YamlMembers};

/// Routes of an `if` have precedence over those of the locations beside or around it, and `rewrite`s of a server over these.
const IF_PRIORITY: i64 = 2_000;
const REWRITE_PRIORITY: i64 = 1_000;
/// Routes of a server whose name is a regular expression have precedence over those of the default server on the same paths.
const EXPRESSION_PRIORITY: i64 = 10_000;

/// An address of a `listen`.
struct Listening {
    port: i64,
    is_default: bool,
}

struct ServerBlock<'a> {
    directive: &'a Directive,
    names: Vec<&'a str>,
    listening: Vec<Listening>,
    scope: BlockScope<'a>,
}

/// The condition for requests to a server.
#[derive(Clone, Default)]
struct ServerSelector {
    hosts: Vec<String>,
    vars: Vec<Yaml>,
    /// Added to the priority of its routes.
    priority: i64,
}

pub fn carry_over(conversion: &mut Conversion) {
    let http = conversion.scope();
    let blocks = conversion.http.iter().filter(|directive| directive.name == "server");
    let mut servers = Vec::new();
    let mut addresses = Vec::new();
    for directive in blocks {
        let scope = http.inside(directive.children());
        let own = || directive.children().iter();
        let names = own().filter(|name| name.name == "server_name").flat_map(|name| name.arguments.iter());
        let names = names.map(String::as_str).filter(|name| !name.is_empty() && *name != "_").collect();
        let mut listening = Vec::new();
        for listen in own().filter(|listen| listen.name == "listen") {
            listening.extend(listened(conversion, listen, &mut addresses));
        }
        if listening.is_empty() {
            listening.push(Listening { port: 80, is_default: false });
            add_address(&mut addresses, Yaml::text(":80"));
        }
        servers.push(ServerBlock { directive, names, listening, scope });
    }
    let listen = if addresses.len() == 1 { addresses.remove(0) } else { Yaml::List(addresses) };
    conversion.converted.settings.insert(0, ("listen".to_owned(), listen));
    for index in 0..servers.len() {
        certificates(conversion, &servers[index]);
        for selector in selectors(conversion, &servers, index) {
            routes(conversion, &servers[index], &selector);
        }
    }
}

fn add_address(addresses: &mut Vec<Yaml>, address: Yaml) {
    if !addresses.contains(&address) {
        addresses.push(address);
    }
}

fn listened(conversion: &mut Conversion, listen: &Directive, addresses: &mut Vec<Yaml>) -> Option<Listening> {
    let address = listen.argument(0);
    if address.starts_with("unix:") {
        conversion.lost(&listen.place, format!("`{}`: Unix sockets are not supported", listen.head()));
        return None;
    }
    let (host, port) = match address.parse::<i64>() {
        Ok(port) => ("", port),
        Err(_) => {
            let (host, port) = super::upstream::host_and_port(address);
            (host, port.unwrap_or(80))
        }
    };
    // One dual-stack socket serves IPv4 and IPv6.
    let host = if ["*", "[::]", "0.0.0.0"].contains(&host) { "" } else { host };
    let has = |name: &str| listen.after_first().iter().any(|argument| argument == name);
    let mut members = vec![("address".to_owned(), Yaml::text(format!("{host}:{port}")))];
    for (theirs, ours) in [("ssl", "tls"), ("proxy_protocol", "proxy_protocol")] {
        if has(theirs) {
            members.push((ours.to_owned(), Yaml::Boolean(true)));
        }
    }
    let address = if members.len() == 1 { members.remove(0).1 } else { Yaml::Map(members) };
    add_address(addresses, address);
    Some(Listening { port, is_default: has("default_server") })
}

/// The requests that a server handles: those for its names, and all others on ports where it is the default.
fn selectors(conversion: &mut Conversion, servers: &[ServerBlock], index: usize) -> Vec<ServerSelector> {
    let server = &servers[index];
    let ports = |servers: &[ServerBlock]| {
        let mut ports: Vec<_> = servers.iter().flat_map(|server| &server.listening).map(|listen| listen.port).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    };
    let all = ports(servers);
    let (default, named): (Vec<i64>, Vec<i64>) =
        ports(&servers[index..=index]).into_iter().partition(|&port| default_of(servers, port) == Some(index));
    let port_rule = |ports: &[i64]| match ports {
        ports if ports.len() == all.len() => Vec::new(),
        [port] => vec![Yaml::List(vec![Yaml::text("server_port"), Yaml::text("=="), Yaml::text(port.to_string())])],
        ports => {
            let ports = ports.iter().map(|port| Yaml::text(port.to_string())).collect();
            vec![Yaml::List(vec![Yaml::text("server_port"), Yaml::text("in"), Yaml::List(ports)])]
        }
    };
    let mut selectors = Vec::new();
    if !default.is_empty() {
        selectors.push(ServerSelector { vars: port_rule(&default), ..ServerSelector::default() });
    }
    if !named.is_empty() {
        selectors.extend(by_name(conversion, server, &port_rule(&named)));
    }
    selectors
}

/// The default server of a port, for hosts that no server names.
fn default_of(servers: &[ServerBlock], port: i64) -> Option<usize> {
    let on_port = |server: &ServerBlock| {
        server.listening.iter().find(|listen| listen.port == port).map(|listen| listen.is_default)
    };
    let marked = servers.iter().position(|server| on_port(server) == Some(true));
    marked.or_else(|| servers.iter().position(|server| on_port(server).is_some()))
}

fn by_name(conversion: &mut Conversion, server: &ServerBlock, ports: &[Yaml]) -> Vec<ServerSelector> {
    let mut hosts = Vec::new();
    let mut selectors = Vec::new();
    for name in &server.names {
        let pattern = match (name.strip_prefix('~'), name.strip_suffix(".*")) {
            (Some(pattern), _) => pattern.to_owned(),
            (None, Some(begin)) => format!("^{}\\..+$", regex_quoted(begin)),
            (None, None) => {
                match name.strip_prefix('.') {
                    Some(domain) => hosts.extend([domain.to_owned(), format!("*.{domain}")]),
                    None => hosts.push(name.to_ascii_lowercase()),
                }
                continue;
            }
        };
        let text = format!("`server_name {name}`: a more specific path of the default server takes precedence");
        conversion.differs(&server.directive.place, text);
        let mut vars = ports.to_vec();
        vars.push(Yaml::List(vec![Yaml::text("host"), Yaml::text("~*"), Yaml::text(pattern)]));
        selectors.push(ServerSelector { vars, priority: EXPRESSION_PRIORITY, ..ServerSelector::default() });
    }
    if !hosts.is_empty() {
        selectors.insert(0, ServerSelector { hosts, vars: ports.to_vec(), priority: 0 });
    }
    selectors
}

fn certificates(conversion: &mut Conversion, server: &ServerBlock) {
    let scope = &server.scope;
    let Some((cert, key)) = scope.value("ssl_certificate").zip(scope.value("ssl_certificate_key")) else { return };
    let names: Vec<_> = server.names.iter().filter(|name| !name.starts_with('~') && !name.ends_with(".*")).collect();
    if names.is_empty() {
        conversion.lost(
            &server.directive.place,
            "`ssl_certificate` of a server without names: an entry of `ssls` needs `snis`",
        );
        return;
    }
    let snis = names.iter().flat_map(|name| match name.strip_prefix('.') {
        Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
        None => vec![name.to_ascii_lowercase()],
    });
    let mut members = vec![
        ("snis".to_owned(), Yaml::texts(snis)),
        ("cert".to_owned(), Yaml::text(cert)),
        ("key".to_owned(), Yaml::text(key)),
    ];
    if let Some(protocols) = scope.last("ssl_protocols") {
        let known = protocols.arguments.iter().filter(|version| ["TLSv1.2", "TLSv1.3"].contains(&version.as_str()));
        members.push(("ssl_protocols".to_owned(), Yaml::texts(known)));
        if protocols.arguments.iter().any(|version| ["TLSv1", "TLSv1.1"].contains(&version.as_str())) {
            conversion
                .lost(&protocols.place, format!("`{}`: TLS 1.2 is the oldest supported version", protocols.head()));
        }
    }
    if let Some(ca) = scope.value("ssl_client_certificate").filter(|_| scope.is_on("ssl_verify_client")) {
        members.push(("client".to_owned(), Yaml::map([("ca", Yaml::text(ca))])));
    }
    conversion.converted.ssls.push(ConvertedResource::new(&server.directive.place, "ssl_certificate", members));
}

fn routes(conversion: &mut Conversion, server: &ServerBlock, selector: &ServerSelector) {
    let scope = &server.scope;
    let regions = regions(scope);
    let mut everywhere = vec!["/*".to_owned()];
    for uri in regions.iter().flat_map(|region| &region.uris) {
        if !everywhere.contains(uri) {
            everywhere.push(uri.clone());
        }
    }
    conditions(conversion, scope, selector, (&everywhere, IF_PRIORITY));
    if let Some(returns) = scope.own().iter().find(|directive| directive.name == "return") {
        let plugins = rewrite::returned(conversion, scope, returns, None);
        return add(
            conversion,
            selector,
            returns,
            ConvertedRoute { uris: vec!["/*".to_owned()], plugins, ..ConvertedRoute::default() },
        );
    }
    rewrites(conversion, server, selector, &everywhere);
    for region in &regions {
        convert_location(conversion, selector, region);
        with_slash(conversion, selector, region, &everywhere);
    }
    let is_for_all = regions.iter().any(|region| region.priority == 0 && region.uris == ["/*"]);
    if !is_for_all && !selector.hosts.is_empty() {
        // Otherwise, routes of another server would match requests that no location of this one matches.
        let plugins = vec![answer(404, "", None)];
        add(
            conversion,
            selector,
            server.directive,
            ConvertedRoute { uris: vec!["/*".to_owned()], plugins, ..ConvertedRoute::default() },
        );
    }
}

/// Converts the `rewrite`s of a server that redirect; others are reported.
fn rewrites(conversion: &mut Conversion, server: &ServerBlock, selector: &ServerSelector, everywhere: &[String]) {
    let rewrites: Vec<_> = server.scope.own().iter().filter(|directive| directive.name == "rewrite").collect();
    for (position, directive) in rewrites.iter().enumerate() {
        let Some((pattern, plugin)) = rewrite::redirecting(directive) else {
            let text =
                format!("`{}` outside of a location: write `proxy-rewrite` in the affected routes", directive.head());
            conversion.lost(&directive.place, text);
            continue;
        };
        let vars = vec![Yaml::List(vec![Yaml::text("uri"), Yaml::text("~~"), Yaml::text(pattern)])];
        let priority = REWRITE_PRIORITY - position as i64;
        let route = ConvertedRoute {
            uris: everywhere.to_vec(),
            vars,
            priority,
            plugins: vec![plugin],
            ..ConvertedRoute::default()
        };
        add(conversion, selector, directive, route);
    }
}

#[derive(Default)]
struct ConvertedRoute {
    uris: Vec<String>,
    vars: Vec<Yaml>,
    priority: i64,
    plugins: YamlMembers,
    /// The members `upstream`, `upstream_id` and `timeout`.
    target: YamlMembers,
}

fn add(conversion: &mut Conversion, selector: &ServerSelector, from: &Directive, route: ConvertedRoute) {
    let mut members = YamlMembers::new();
    members.extend(one_or_many("uri", "uris", &route.uris));
    members.extend(one_or_many("host", "hosts", &selector.hosts));
    let vars = [selector.vars.clone(), route.vars].concat();
    if !vars.is_empty() {
        members.push(("vars".to_owned(), Yaml::List(vars)));
    }
    let priority = selector.priority + route.priority;
    if priority != 0 {
        members.push(("priority".to_owned(), Yaml::Integer(priority)));
    }
    members.extend(route.target);
    if !route.plugins.is_empty() {
        members.push(("plugins".to_owned(), Yaml::Map(route.plugins)));
    }
    let item = ConvertedResource::new(&from.place, from.head(), members);
    conversion.converted.routes.push(item);
}

fn convert_location(conversion: &mut Conversion, selector: &ServerSelector, region: &Region) {
    let Region { location, uris, priority } = region;
    if location.is_internal {
        return;
    }
    let vars = match &location.matching {
        Matching::Regex { pattern, ignores_case } => {
            let operator = if *ignores_case { "~*" } else { "~~" };
            vec![Yaml::List(vec![Yaml::text("uri"), Yaml::text(operator), Yaml::text(pattern)])]
        }
        _ => Vec::new(),
    };
    let inner = ServerSelector { vars: [selector.vars.clone(), vars.clone()].concat(), ..selector.clone() };
    conditions(conversion, &location.scope, &inner, (uris, IF_PRIORITY - 1_000 + priority));
    let (plugins, target) = handled(conversion, location);
    let route = ConvertedRoute { uris: uris.clone(), vars, priority: *priority, plugins, target };
    add(conversion, selector, location.directive, route);
}

/// Adds nginx's redirect for the path of a proxied location without its final slash.
fn with_slash(conversion: &mut Conversion, selector: &ServerSelector, region: &Region, known: &[String]) {
    let Region { location, .. } = region;
    let Matching::Prefix { path, .. } = &location.matching else { return };
    let is_proxied =
        location.directive.children().iter().any(|child| ["proxy_pass", "grpc_pass"].contains(&child.name.as_str()));
    let Some(without) = path.strip_suffix('/').filter(|without| !without.is_empty() && is_proxied) else { return };
    if known.iter().any(|uri| uri == without || uri.strip_suffix('*') == Some(without)) {
        return;
    }
    let uri = Yaml::text(format!("{path}$is_args$args"));
    let plugins = vec![("redirect".to_owned(), Yaml::map([("uri", uri), ("ret_code", Yaml::Integer(301))]))];
    let route = ConvertedRoute { uris: vec![without.to_owned()], plugins, ..ConvertedRoute::default() };
    add(conversion, selector, location.directive, route);
}

/// The plugins of a location, and the members for its upstream.
fn handled(conversion: &mut Conversion, location: &Location) -> (YamlMembers, YamlMembers) {
    let Location { directive, matching, scope, .. } = location;
    let own = |name: &str| directive.children().iter().find(|child| child.name == name);
    let mut plugins = policies::plugins(conversion, scope);
    if let Some(returns) = own("return") {
        plugins.extend(rewrite::returned(conversion, scope, returns, Some(matching)));
        return (plugins, Vec::new());
    }
    if let Some((_, plugin)) =
        directive.children().iter().filter(|child| child.name == "rewrite").find_map(rewrite::redirecting)
    {
        plugins.push(plugin);
    }
    let Some(pass) = own("proxy_pass").or_else(|| own("grpc_pass")) else {
        let text = format!(
            "`location {}`: static files are not served; the route answers with 404",
            directive.arguments.join(" ")
        );
        conversion.lost(&directive.place, text);
        plugins.push(answer(404, "", None));
        return (plugins, Vec::new());
    };
    let mut rewritten = proxy::rewritten(conversion, scope, pass, matching);
    if let Some(paths) = rewrite::paths(conversion, directive.children()) {
        rewritten.retain(|(name, _)| name != "regex_uri" && name != "uri");
        rewritten.insert(0, paths);
    }
    if !rewritten.is_empty() {
        plugins.push(("proxy-rewrite".to_owned(), Yaml::Map(rewritten)));
    }
    match proxy::members(conversion, scope, pass) {
        Some(target) => (plugins, target),
        None => {
            plugins.push(answer(502, "", None));
            (plugins, Vec::new())
        }
    }
}

/// Adds routes with precedence for the `if` blocks that respond.
fn conditions(
    conversion: &mut Conversion,
    scope: &BlockScope,
    selector: &ServerSelector,
    (uris, priority): (&[String], i64),
) {
    let ifs: Vec<_> = scope.own().iter().filter(|directive| directive.name == "if").collect();
    for (position, directive) in ifs.iter().enumerate() {
        let returns = directive.children().iter().find(|child| child.name == "return");
        let redirects =
            directive.children().iter().filter(|child| child.name == "rewrite").find_map(rewrite::redirecting);
        let Some(mut vars) = rewrite::condition(directive) else {
            conversion.lost(&directive.place, format!("`{}`", directive.head()));
            continue;
        };
        let plugins = match (returns, redirects) {
            (Some(returns), _) => rewrite::returned(conversion, scope, returns, None),
            (None, Some((pattern, plugin))) => {
                vars.push(Yaml::List(vec![Yaml::text("uri"), Yaml::text("~~"), Yaml::text(pattern)]));
                vec![plugin]
            }
            (None, None) => {
                let text = format!(
                    "`{}`: only `return` and redirects inside `if` are converted; write a route with these `vars`",
                    directive.head()
                );
                conversion.lost(&directive.place, text);
                continue;
            }
        };
        let priority = priority - position as i64;
        add(
            conversion,
            selector,
            directive,
            ConvertedRoute { uris: uris.to_vec(), vars, priority, plugins, ..ConvertedRoute::default() },
        );
    }
}
