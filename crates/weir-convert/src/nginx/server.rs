//! `server` blocks: the requests that each one handles, and their certificates.

use super::Conversion;
use super::listening::{Listening, NodeAddresses, listened, rules};
use super::routes;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::output::ConvertedResource;
use crate::pattern::regex_quoted;
use crate::yaml::Yaml;

/// Routes of a server whose name is a regular expression have precedence over those of the default server on the same paths.
const EXPRESSION_PRIORITY: i64 = 10_000;

pub struct ServerBlock<'a> {
    pub directive: &'a Directive,
    names: Vec<&'a str>,
    listening: Vec<Listening>,
    pub scope: BlockScope<'a>,
}

/// The condition for requests to a server.
#[derive(Clone, Default)]
pub struct ServerSelector {
    pub hosts: Vec<String>,
    pub vars: Vec<Yaml>,
    /// Added to the priority of its routes.
    pub priority: i64,
}

pub fn carry_over(conversion: &mut Conversion) {
    let http = conversion.scope();
    let blocks = conversion.http.iter().filter(|directive| directive.name == "server");
    let mut servers = Vec::new();
    let mut addresses = NodeAddresses::default();
    for directive in blocks {
        let scope = http.inside(directive.children());
        let own = || directive.children().iter();
        let names = own().filter(|name| name.name == "server_name").flat_map(|name| name.arguments.iter());
        let names = names.map(String::as_str).filter(|name| !name.is_empty() && *name != "_").collect();
        let mut listening = Vec::new();
        for listen in own().filter(|listen| listen.name == "listen") {
            listening.extend(listened(conversion, listen, &mut addresses));
        }
        if own().all(|listen| listen.name != "listen") {
            listening.push(Listening { host: String::new(), port: 80, is_default: false });
            addresses.add(":80".to_owned(), false, false);
        }
        servers.push(ServerBlock { directive, names, listening, scope });
    }
    conversion.converted.settings.insert(0, ("listen".to_owned(), addresses.yaml()));
    for index in 0..servers.len() {
        let server = &servers[index];
        certificates(conversion, server);
        let wants = client_certificates(conversion, server);
        for mut selector in selectors(conversion, &servers, index) {
            match wants {
                ClientCertificates::NotChecked => {
                    routes::refuse(conversion, server, &selector);
                    continue;
                }
                ClientCertificates::Required if selector.hosts.is_empty() => selector.vars.push(has_certificate()),
                ClientCertificates::Required | ClientCertificates::NotRequired => {}
            }
            routes::carry_over(conversion, server, &selector);
        }
    }
}

/// The requests that a server handles: those for its names, and all others at addresses where it is the default.
fn selectors(conversion: &mut Conversion, servers: &[ServerBlock], index: usize) -> Vec<ServerSelector> {
    let server = &servers[index];
    let all: Vec<Listening> = servers.iter().flat_map(|server| server.listening.iter().cloned()).collect();
    let (default, mut named): (Vec<&Listening>, Vec<&Listening>) =
        server.listening.iter().partition(|listen| default_of(servers, listen) == Some(index));
    let mut selectors = Vec::new();
    if !default.is_empty() {
        let rules = rules(&default, &all).into_iter();
        selectors.extend(rules.map(|vars| ServerSelector { vars, ..ServerSelector::default() }));
    }
    // Elsewhere, requests for its names are among those that no other server takes.
    let is_contested = |listen: &&&Listening| {
        let mut others = servers.iter().enumerate().filter(|(other, _)| *other != index);
        others.any(|(_, other)| other.listens_on(listen) && other.has_patterns())
    };
    named.extend(default.iter().filter(is_contested));
    if !named.is_empty() {
        for vars in rules(&named, &all) {
            selectors.extend(by_name(conversion, servers, server, &vars));
        }
    }
    if selectors.is_empty() && !server.listening.is_empty() && !server.has_only_underscores() {
        let text = "a server without names that is not the default of its addresses: no request is known to be for it";
        conversion.lost(&server.directive.place, text);
    }
    selectors
}

impl ServerBlock<'_> {
    fn listens_on(&self, address: &Listening) -> bool {
        self.listening.iter().any(|listen| listen.is_same_as(address))
    }

    /// Whether one of its names may be a name of another server, too.
    fn has_patterns(&self) -> bool {
        self.names.iter().any(|name| name.starts_with(['~', '*', '.']) || name.ends_with(".*"))
    }

    /// Whether its names are such that no request is for it.
    fn has_only_underscores(&self) -> bool {
        let mut names = self.scope.own().iter().filter(|directive| directive.name == "server_name").peekable();
        names.peek().is_some() && names.all(|names| names.arguments.iter().all(|name| name == "_"))
    }

    /// Its names that are regular expressions, or can only be converted to one.
    fn expressions(&self) -> impl Iterator<Item = &str> {
        self.names.iter().copied().filter(|name| name.starts_with('~') || name.ends_with(".*"))
    }
}

/// The default server of an address, for hosts that no server there names.
fn default_of(servers: &[ServerBlock], address: &Listening) -> Option<usize> {
    let is_marked =
        |server: &ServerBlock| server.listening.iter().any(|listen| listen.is_same_as(address) && listen.is_default);
    let marked = servers.iter().position(is_marked);
    marked.or_else(|| servers.iter().position(|server| server.listens_on(address)))
}

/// The priority of the routes for a name. nginx tries the longest name with a `*` at the end, and then expressions in the order of
/// the file.
fn priority(servers: &[ServerBlock], name: &str) -> i64 {
    let (mut all, expressions): (Vec<&str>, Vec<&str>) =
        servers.iter().flat_map(ServerBlock::expressions).partition(|name| !name.starts_with('~'));
    all.sort_by_key(|name| std::cmp::Reverse(name.len()));
    all.extend(expressions);
    let position = all.iter().position(|known| *known == name).unwrap_or(0);
    (all.len() - position) as i64 * EXPRESSION_PRIORITY
}

fn by_name(
    conversion: &mut Conversion,
    servers: &[ServerBlock],
    server: &ServerBlock,
    rules: &[Yaml],
) -> Vec<ServerSelector> {
    let mut hosts = Vec::new();
    let mut selectors = Vec::new();
    for name in &server.names {
        let pattern = match (name.strip_prefix('~'), name.strip_suffix(".*")) {
            (Some(pattern), _) => pattern.to_owned(),
            (None, Some(begin)) => format!("^{}\\..+$", regex_quoted(begin)),
            (None, None) => {
                match name.strip_prefix('.') {
                    Some(domain) => {
                        hosts.extend([domain.to_ascii_lowercase(), format!("*.{domain}").to_ascii_lowercase()])
                    }
                    None => hosts.push(name.to_ascii_lowercase()),
                }
                continue;
            }
        };
        let text = format!("`server_name {name}`: a more specific path of the default server takes precedence");
        conversion.differs(&server.directive.place, text);
        let mut vars = rules.to_vec();
        vars.push(Yaml::List(vec![Yaml::text("host"), Yaml::text("~*"), Yaml::text(pattern)]));
        selectors.push(ServerSelector { vars, priority: priority(servers, name), ..ServerSelector::default() });
    }
    if !hosts.is_empty() {
        selectors.insert(0, ServerSelector { hosts, vars: rules.to_vec(), priority: 0 });
    }
    selectors
}

fn certificates(conversion: &mut Conversion, server: &ServerBlock) {
    let scope = &server.scope;
    let Some((cert, key)) = scope.value("ssl_certificate").zip(scope.value("ssl_certificate_key")) else { return };
    for other in scope.all("ssl_certificate").iter().rev().skip(1) {
        conversion.lost(&other.place, format!("`{}`: an entry of `ssls` has one certificate", other.head()));
    }
    let names: Vec<_> = server.names.iter().filter(|name| !name.starts_with('~') && !name.ends_with(".*")).collect();
    if names.is_empty() {
        conversion.lost(
            &server.directive.place,
            "`ssl_certificate` of a server without names: an entry of `ssls` needs `snis`",
        );
        return;
    }
    let snis = names.iter().flat_map(|name| match name.strip_prefix('.') {
        Some(domain) => vec![domain.to_ascii_lowercase(), format!("*.{domain}").to_ascii_lowercase()],
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
    if let Some(ca) = client_authority(scope).filter(|_| scope.is_on("ssl_verify_client")) {
        let mut client = vec![("ca".to_owned(), Yaml::text(ca))];
        let depth = scope.value("ssl_verify_depth").and_then(|depth| depth.parse().ok());
        client.extend(depth.map(|depth| ("depth".to_owned(), Yaml::Integer(depth))));
        members.push(("client".to_owned(), Yaml::Map(client)));
    }
    conversion.converted.ssls.push(ConvertedResource::new(&server.directive.place, "ssl_certificate", members));
}

/// Whether clients of a server have to show certificates.
#[derive(Clone, Copy)]
enum ClientCertificates {
    NotRequired,
    Required,
    /// The authority that they have to be of is not known.
    NotChecked,
}

fn client_authority<'a>(scope: &BlockScope<'a>) -> Option<&'a str> {
    scope.value("ssl_client_certificate").or_else(|| scope.value("ssl_trusted_certificate"))
}

fn client_certificates(conversion: &mut Conversion, server: &ServerBlock) -> ClientCertificates {
    let scope = &server.scope;
    let Some(verify) = scope.last("ssl_verify_client").filter(|_| scope.last("ssl_certificate").is_some()) else {
        return ClientCertificates::NotRequired;
    };
    match verify.argument(0) {
        "on" if client_authority(scope).is_some() => ClientCertificates::Required,
        "on" => {
            let text =
                format!("`{}`: there is no `ssl_client_certificate`; the server answers with 503", verify.head());
            conversion.lost(&verify.place, text);
            ClientCertificates::NotChecked
        }
        "off" => ClientCertificates::NotRequired,
        _ => {
            let text = format!(
                "`{}`: clients are not asked for certificates; `$ssl_client_verify` is always `NONE`",
                verify.head()
            );
            conversion.lost(&verify.place, text);
            ClientCertificates::NotRequired
        }
    }
}

/// Routes without a host are reached by requests on connections for any name. Those of a server that demands certificates are not
/// for connections on which none was shown.
fn has_certificate() -> Yaml {
    let rule = |name, value| Yaml::texts([name, "==", value]);
    Yaml::List(vec![Yaml::text("OR"), rule("ssl_client_verify", "SUCCESS"), rule("scheme", "http")])
}
