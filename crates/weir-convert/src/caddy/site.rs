//! Sites: their addresses, the ports to listen on, and the routes of each.

use super::address::{self, SiteAddress};
use super::conditions::{Conditions, host_covers, rule};
use super::matcher::NamedMatchers;
use super::options::{self, GlobalOptions};
use super::order::DirectiveOrder;
use super::steps::{RouteDraft, SiteWalk};
use super::{routes, tls};
use crate::answer::answer;
use crate::directive::Directive;
use crate::output::{Converted, ConvertedResource};
use crate::yaml::{Yaml, YamlMembers};

struct Site<'a> {
    directive: &'a Directive,
    addresses: Vec<SiteAddress>,
}

/// An address to listen on.
#[derive(Clone, PartialEq)]
struct SiteListener {
    host: String,
    port: u16,
    is_tls: bool,
}

/// The addresses of a site with the same hosts and the same path.
struct SiteGroup {
    path: String,
    /// Empty for every host.
    hosts: Vec<String>,
    ports: Vec<u16>,
}

/// Converts all sites of a file.
pub(super) fn carry_over(
    converted: &mut Converted,
    options: &mut GlobalOptions,
    order: &DirectiveOrder,
    sites: &[Directive],
) {
    let sites: Vec<Site> = sites.iter().map(|directive| read(converted, options, directive)).collect();
    let listening = listening(options, &sites);
    let addresses: Vec<Yaml> = listening.iter().map(listen).collect();
    let value = match addresses.as_slice() {
        [address @ Yaml::Text(_)] => address.clone(),
        _ => Yaml::List(addresses),
    };
    converted.settings.insert(0, ("listen".to_owned(), value));
    let mut ports: Vec<u16> = listening.iter().map(|listening| listening.port).collect();
    ports.sort_unstable();
    ports.dedup();
    unknown_hosts(converted, &sites);
    let is_redirected = redirect(converted, options, &sites, &ports);
    let mut walked = Vec::new();
    for site in &sites {
        tls::carry_over(converted, options, site.directive, &site.addresses);
        beside(converted, site.directive);
        for mut group in groups(&site.addresses) {
            let drafts = walk(converted, order, site.directive, &group);
            if is_redirected {
                group.ports.push(options.http_port);
            }
            walked.push((site.directive, group, drafts));
        }
    }
    // Caddy tries sites with more specific hosts first.
    walked.sort_by_key(|(_, group, _)| (group.hosts.is_empty(), group.hosts.iter().any(|host| host.starts_with('*'))));
    for at in 0..walked.len() {
        let drafts = std::mem::take(&mut walked[at].2);
        let (directive, group, _) = &walked[at];
        let others = walked.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, (_, group, _))| group);
        let is_closed = others.into_iter().any(|other| is_wider(other, group));
        let drafts = without_end(converted, directive, drafts, is_closed);
        routes::add(converted, drafts, &port_rule(&group.ports, &ports));
    }
}

/// Reports that Caddy responds to requests for unknown hosts on ports without TLS.
fn unknown_hosts(converted: &mut Converted, sites: &[Site]) {
    let addresses = || sites.iter().flat_map(|site| site.addresses.iter().map(move |address| (site, address)));
    let is_open = |port: u16| addresses().any(|(_, address)| address.port == port && address.host.is_empty());
    let first = addresses().find(|(_, address)| !address.is_https && !is_open(address.port));
    if let Some((site, _)) = first {
        let text = "requests for hosts that no site names get 404; Caddy answers them with 200 and no content";
        converted.differs(&site.directive.place, text);
    }
}

/// Whether a request that no route of `group` matches could match a route of `other`.
fn is_wider(other: &SiteGroup, group: &SiteGroup) -> bool {
    let covers = |host: &String| {
        other.hosts.is_empty() || other.hosts.iter().any(|wide| host_covers(wide, host) && wide != host)
    };
    group.ports.iter().any(|port| other.ports.contains(port)) && group.hosts.iter().any(covers)
}

/// Drops the route for requests that no directive responds to, unless another site would match these.
fn without_end(
    converted: &mut Converted,
    site: &Directive,
    mut drafts: Vec<RouteDraft>,
    is_closed: bool,
) -> Vec<RouteDraft> {
    if is_closed || !drafts.last().is_some_and(|last| last.is_unanswered) {
        return drafts;
    }
    if let Some(last) = drafts.pop()
        && !drafts.iter().any(|draft| draft.conditions.cover(&last.conditions))
    {
        let text = "requests that no directive answers get 404; Caddy answers them with 200 and no content";
        converted.differs(&site.place, text);
    }
    drafts
}

/// The routes of a group of addresses, in the order in which Caddy would reach them.
fn walk(converted: &mut Converted, order: &DirectiveOrder, site: &Directive, group: &SiteGroup) -> Vec<RouteDraft> {
    let mut conditions = Conditions { hosts: group.hosts.clone(), ..Conditions::default() };
    if !["", "/", "/*"].contains(&group.path.as_str()) {
        conditions.uris.push(group.path.clone());
    }
    let mut walk = SiteWalk::new(converted, order, site);
    walk.run(conditions.clone(), &NamedMatchers::new());
    if !walk.is_too_much {
        return walk.drafts;
    }
    let text = "the matchers of this site divide its requests into too many routes; the site answers with 503";
    converted.lost(&site.place, text);
    vec![closed(site, conditions)]
}

fn closed(site: &Directive, conditions: Conditions) -> RouteDraft {
    let plugins = vec![answer(503, "", None)];
    let (place, head) = (site.place.clone(), site.head());
    RouteDraft { place, head, conditions, plugins, target: Vec::new(), is_unanswered: false }
}

/// A rule for the ports, unless they are all ports of the node.
fn port_rule(own: &[u16], all: &[u16]) -> Vec<Yaml> {
    if all.iter().all(|port| own.contains(port)) {
        return Vec::new();
    }
    match own {
        [port] => vec![rule("server_port", "==", &port.to_string())],
        ports => {
            let ports = Yaml::texts(ports.iter().map(u16::to_string));
            vec![Yaml::List(vec![Yaml::text("server_port"), Yaml::text("in"), ports])]
        }
    }
}

/// Groups the addresses of a site by path and hosts.
fn groups(addresses: &[SiteAddress]) -> Vec<SiteGroup> {
    let mut by_port: Vec<SiteGroup> = Vec::new();
    for address in addresses {
        let is_same = |group: &&mut SiteGroup| group.path == address.path && group.ports == [address.port];
        match by_port.iter_mut().find(is_same) {
            Some(group) if address.host.is_empty() => group.hosts.clear(),
            Some(group) if group.hosts.is_empty() => {}
            Some(group) => group.hosts.push(address.host.clone()),
            None => {
                let hosts = (!address.host.is_empty()).then(|| address.host.clone()).into_iter().collect();
                by_port.push(SiteGroup { path: address.path.clone(), hosts, ports: vec![address.port] });
            }
        }
    }
    let mut all: Vec<SiteGroup> = Vec::new();
    for group in by_port {
        match all.iter_mut().find(|known| known.path == group.path && known.hosts == group.hosts) {
            Some(known) => known.ports.extend(group.ports),
            None => all.push(group),
        }
    }
    all
}

fn read<'a>(converted: &mut Converted, options: &GlobalOptions, directive: &'a Directive) -> Site<'a> {
    let has_tls = directive.children().iter().any(|child| child.name == "tls");
    let words = std::iter::once(&directive.name).chain(&directive.arguments);
    let mut addresses: Vec<SiteAddress> = Vec::new();
    for word in words.flat_map(|word| word.split(',')).filter(|word| !word.is_empty()) {
        let address = address::parse(converted, &directive.place, word, options, has_tls);
        addresses.extend(address.filter(|address| !addresses.contains(address)));
    }
    for host in addresses.iter().filter(|address| address.host.starts_with("*.")) {
        let text = format!("`{}`: the wildcard stands for any number of labels", host.host);
        converted.differs(&directive.place, text);
    }
    Site { directive, addresses }
}

/// Converts the directives of a site that do not handle requests.
fn beside(converted: &mut Converted, site: &Directive) {
    for log in site.children().iter().filter(|child| child.name == "log") {
        options::access_log(converted, log);
    }
}

fn listening(options: &GlobalOptions, sites: &[Site]) -> Vec<SiteListener> {
    let mut all: Vec<SiteListener> = Vec::new();
    let mut add = |listening: SiteListener| {
        let is_known = |known: &SiteListener| {
            known.port == listening.port && (known.host == listening.host || known.host.is_empty())
        };
        if !all.iter().any(is_known) {
            all.push(listening);
        }
    };
    for site in sites {
        let bind = site.directive.children().iter().find(|child| child.name == "bind");
        let hosts: Vec<String> = match bind.map_or(&options.bind[..], |bind| &bind.arguments) {
            [] => vec![String::new()],
            hosts => hosts
                .iter()
                .map(|host| if host == "0.0.0.0" || host == "[::]" { String::new() } else { host.clone() })
                .collect(),
        };
        for address in &site.addresses {
            for host in &hosts {
                if address.is_https && options.has_redirects && !address.host.is_empty() {
                    add(SiteListener { host: host.clone(), port: options.http_port, is_tls: false });
                }
                add(SiteListener { host: host.clone(), port: address.port, is_tls: address.is_https });
            }
        }
    }
    all.sort_by_key(|listening| listening.is_tls);
    all
}

fn listen(listening: &SiteListener) -> Yaml {
    let address = Yaml::text(format!("{}:{}", listening.host, listening.port));
    if listening.is_tls { Yaml::map([("address", address), ("tls", Yaml::Boolean(true))]) } else { address }
}

/// A `redirect` to the same URL over HTTPS, like Caddy's on the HTTP port.
fn to_https(port: u16) -> YamlMembers {
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    vec![
        ("uri".to_owned(), Yaml::text(format!("https://$host{port}$request_uri"))),
        ("ret_code".to_owned(), Yaml::Integer(308)),
    ]
}

/// Redirects requests without TLS to HTTPS: by a global rule if that applies to all sites, and otherwise by routes for the hosts
/// concerned. Returns whether it is a global rule.
fn redirect(converted: &mut Converted, options: &GlobalOptions, sites: &[Site], ports: &[u16]) -> bool {
    let addresses = || sites.iter().flat_map(|site| &site.addresses);
    let serves_plain = |host: &str| {
        addresses().any(|address| !address.is_https && address.port == options.http_port && address.host == host)
    };
    let redirects =
        |address: &SiteAddress| address.is_https && !address.host.is_empty() && !serves_plain(&address.host);
    let Some(first) = sites.first().filter(|_| options.has_redirects && addresses().any(redirects)) else {
        return false;
    };
    if addresses().all(|address| redirects(address) && address.port == options.https_port) {
        let mut redirect = to_https(options.https_port);
        let filter = Yaml::List(vec![rule("scheme", "==", "http")]);
        redirect.push(("_meta".to_owned(), Yaml::map([("filter", filter)])));
        let members = vec![
            ("id".to_owned(), Yaml::text("https")),
            ("plugins".to_owned(), Yaml::map([("redirect", Yaml::Map(redirect))])),
        ];
        let place = &first.directive.place;
        converted.global_rules.push(ConvertedResource::new(place, "automatic HTTPS", members));
        return true;
    }
    for site in sites {
        for address in site.addresses.iter().filter(|address| redirects(address)) {
            let conditions = Conditions { hosts: vec![address.host.clone()], ..Conditions::default() };
            let plugins = vec![("redirect".to_owned(), Yaml::Map(to_https(address.port)))];
            let draft = RouteDraft { plugins, ..closed(site.directive, conditions) };
            routes::add(converted, vec![draft], &port_rule(&[options.http_port], ports));
        }
    }
    false
}
