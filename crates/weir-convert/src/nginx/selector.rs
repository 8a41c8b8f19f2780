//! The requests that each `server` handles: by address, and by name.

use super::Conversion;
use super::listening::{Listening, rules};
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::pattern::{regex_quoted, supported};
use crate::yaml::{Yaml, YamlMembers};

/// Routes of a server whose name is a regular expression have precedence over those of the default server on the same paths.
const EXPRESSION_PRIORITY: i64 = 10_000;

pub(super) struct ServerBlock<'a> {
    pub directive: &'a Directive,
    pub names: Vec<&'a str>,
    pub listening: Vec<Listening>,
    pub scope: BlockScope<'a>,
}

/// The condition for requests to a server.
#[derive(Clone, Default)]
pub(super) struct ServerSelector {
    pub hosts: Vec<String>,
    pub vars: Vec<Yaml>,
    /// Added to the priority of its routes.
    pub priority: i64,
    /// The paths of other servers, for a selector that its priority has to put before their routes: these have precedence only
    /// among routes for the same path.
    pub elsewhere: Vec<String>,
    /// Plugins of each of its routes, before those of the route.
    pub plugins: YamlMembers,
}

/// The requests that a server handles: those for its names, and all others at addresses where it is the default.
pub(super) fn selectors(conversion: &mut Conversion, servers: &[ServerBlock], index: usize) -> Vec<ServerSelector> {
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
pub(super) fn default_of(servers: &[ServerBlock], address: &Listening) -> Option<usize> {
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
        let Some(pattern) = supported(&pattern) else {
            let text = format!(
                "`server_name {name}`: look-around and back-references are not supported; requests for these names go to \
                 other servers"
            );
            conversion.lost(&server.directive.place, text);
            continue;
        };
        let mut vars = rules.to_vec();
        vars.push(Yaml::List(vec![Yaml::text("host"), Yaml::text("~*"), Yaml::text(pattern)]));
        selectors.push(ServerSelector { vars, priority: priority(servers, name), ..ServerSelector::default() });
    }
    if !hosts.is_empty() {
        selectors.insert(0, ServerSelector { hosts, vars: rules.to_vec(), ..ServerSelector::default() });
    }
    selectors
}
