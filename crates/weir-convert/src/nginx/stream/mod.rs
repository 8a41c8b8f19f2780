//! The `stream` block: connections and datagrams without HTTP, as stream routes.

mod directives;
mod listening;
mod names;
#[cfg(test)]
mod tests;

use super::Conversion;
use super::addresses::is_network;
use super::addresses::{self, NO_CLIENT};
use super::listening::{ListenSetting, ListenSettingItem};
use super::proxy;
use super::scope::{BlockScope, seconds};
use super::selector::ServerBlock;
use super::server::{FOR_OTHERS, certificates, client_authority};
use super::syntax::Directive;
use super::upstream;
use crate::output::{ConvertedResource, one_or_many};
use crate::yaml::{Yaml, YamlMembers};
pub(super) use directives::report;
use directives::{CLOSED, closes};
use listening::StreamListen;
use names::{NamedTarget, server_names, targets};

/// The default of `proxy_timeout`, in seconds. It is Weir's, too, for connections, but not for datagrams.
const IDLE: f64 = 600.0;
/// The default of `proxy_connect_timeout`, in seconds, and Weir's.
const CONNECT: f64 = 60.0;

/// Converts the servers. Their addresses are added to those of the node.
pub(super) fn carry_over(conversion: &mut Conversion, addresses: &mut ListenSetting) {
    let stream = conversion.stream;
    let scope = BlockScope::new(stream);
    let servers: Vec<&Directive> = stream.iter().filter(|directive| directive.name == "server").collect();
    let listens = listening::all(conversion, &servers);
    for (index, directive) in servers.into_iter().enumerate() {
        let names = directive.children().iter().filter(|name| name.name == "server_name");
        let names = names.flat_map(|name| name.arguments.iter()).map(String::as_str).collect();
        let scope = scope.inside(directive.children());
        let server = ServerBlock { directive, names, listening: Vec::new(), scope };
        add_routes(conversion, index, server, &listens, addresses);
    }
    trusted_peers(conversion, &scope, &listens);
}

/// A server with a target.
struct StreamServer<'a, 'l> {
    block: ServerBlock<'a>,
    pass: &'a Directive,
    /// The addresses of all servers.
    listens: &'l [StreamListen<'a>],
}

/// Adds the stream routes of a server, for each of its addresses and each of its targets.
fn add_routes<'a>(
    conversion: &mut Conversion<'a>,
    index: usize,
    block: ServerBlock<'a>,
    listens: &[StreamListen<'a>],
    addresses: &mut ListenSetting,
) {
    let Some(pass) = block.scope.own().iter().find(|directive| directive.name == "proxy_pass") else {
        let text = "a server of `stream` without `proxy_pass`: its addresses are not listened on";
        return conversion.lost(&block.directive.place, text);
    };
    let mut server = StreamServer { block, pass, listens };
    let targets = targets(conversion, pass);
    let own: Vec<&StreamListen> = listens.iter().filter(|listen| listen.server == index).collect();
    let is_tls = own.iter().any(|listen| listen.has("ssl"));
    let reads_names = is_tls || server.block.scope.is_on("ssl_preread");
    let mut is_closed = closes(&server.block.scope);
    if is_tls {
        is_closed |= !is_authenticated(conversion, &server.block);
        add_certificate(conversion, &mut server.block);
    }
    let plugins = restriction(conversion, &server.block.scope, is_closed);
    for listen in own {
        let of_server = match reads_names && !listen.is_udp {
            true => server_names(conversion, &server.block, listen, listens),
            false => vec![Vec::new()],
        };
        let mut by_name = false;
        for target in &targets {
            let lists = if target.names.is_empty() { &of_server[..] } else { std::slice::from_ref(&target.names) };
            for names in lists {
                by_name |= !names.is_empty();
                let plugins = if target.is_closed { closed() } else { plugins.clone() };
                add_route(conversion, &server, listen, target, names, plugins);
            }
        }
        addresses.add(ListenSettingItem {
            protocol: Some(if listen.is_udp { "udp" } else { "tcp" }),
            tls: listen.has("ssl"),
            tls_passthrough: by_name && !is_tls && !listen.is_udp,
            proxy_protocol: listen.has("proxy_protocol"),
            ..ListenSettingItem::at(listen.address.text())
        });
    }
}

/// Adds the certificate of a server. Without names, it is for all.
fn add_certificate(conversion: &mut Conversion, block: &mut ServerBlock) {
    if block.names.is_empty() {
        if conversion.converted.ssls.iter().any(|ssl| ssl.members[0].1.has_text(FOR_OTHERS)) {
            let text = "a second certificate for all names: write an entry of `ssls` with `snis`";
            return conversion.lost(&block.directive.place, text);
        }
        block.names.push(FOR_OTHERS);
    }
    certificates(conversion, block, false);
}

fn add_route(
    conversion: &mut Conversion,
    server: &StreamServer,
    listen: &StreamListen,
    target: &NamedTarget,
    names: &[String],
    plugins: YamlMembers,
) {
    let Some(upstream) = upstream_of(conversion, server, listen, target) else { return };
    let mut members = vec![("server_port".to_owned(), Yaml::Integer(listen.address.port))];
    if listen.shares_port(server.listens) && !listen.address.host.is_empty() {
        members.push(("server_addr".to_owned(), Yaml::text(listen.address.ip())));
    }
    members.extend(one_or_many("sni", "snis", names));
    let (idle, connect) = times(&server.block.scope);
    if listen.is_udp || idle != IDLE || connect != CONNECT {
        members.push(("idle_timeout".to_owned(), Yaml::number(idle)));
    }
    if !plugins.is_empty() {
        members.push(("plugins".to_owned(), Yaml::Map(plugins)));
    }
    members.push(upstream);
    let place = &listen.directive.place;
    conversion.converted.stream_routes.push(ConvertedResource::new(place, listen.directive.head(), members));
}

/// `proxy_timeout` and `proxy_connect_timeout`, in seconds.
fn times(scope: &BlockScope) -> (f64, f64) {
    let time = |name, default| scope.value(name).and_then(seconds).filter(|time| *time > 0.0).unwrap_or(default);
    (time("proxy_timeout", IDLE), time("proxy_connect_timeout", CONNECT))
}

/// The member of a stream route that says where connections go.
fn upstream_of(
    conversion: &mut Conversion,
    server: &StreamServer,
    listen: &StreamListen,
    target: &NamedTarget,
) -> Option<(String, Yaml)> {
    let authority = target.authority.as_str();
    let rest = upstream_members(conversion, &server.block.scope, server.pass, listen.is_udp);
    let block = conversion.stream.iter().find(|block| block.name == "upstream" && block.argument(0) == authority);
    if let Some(block) = block {
        let id = upstream::registered(conversion, authority, block, rest);
        return Some(("upstream_id".to_owned(), Yaml::text(id)));
    }
    if authority.starts_with("unix:") || upstream::host_and_port(authority).1.is_none() {
        let text = format!("`{authority}` is neither `host:port` nor the name of an upstream");
        conversion.lost(target.place.unwrap_or(&server.pass.place), text);
        return None;
    }
    let mut members = vec![("nodes".to_owned(), Yaml::map([(authority, Yaml::Integer(1))]))];
    members.extend(rest);
    Some(("upstream".to_owned(), Yaml::Map(members)))
}

fn upstream_members(conversion: &mut Conversion, scope: &BlockScope, pass: &Directive, is_udp: bool) -> YamlMembers {
    let has_tls = scope.is_on("proxy_ssl") && !is_udp;
    let scheme = match (is_udp, has_tls) {
        (true, _) => "udp",
        (false, true) => "tls",
        (false, false) => "tcp",
    };
    let mut members = vec![("scheme".to_owned(), Yaml::text(scheme))];
    if let Some(proxy_protocol) = scope.last("proxy_protocol").filter(|switch| switch.argument(0) == "on") {
        match is_udp {
            true => conversion.lost(&proxy_protocol.place, "`proxy_protocol on`: datagrams have no PROXY header"),
            false => members.push(("proxy_protocol".to_owned(), Yaml::text("v1"))),
        }
    }
    match scope.value("proxy_next_upstream") {
        Some("off") => members.push(("retries".to_owned(), Yaml::Integer(0))),
        _ => members.extend(proxy::tries(scope, "proxy")),
    }
    let limit = scope.value("proxy_next_upstream_timeout").and_then(seconds).filter(|limit| *limit > 0.0);
    members.extend(limit.map(|limit| ("retry_timeout".to_owned(), Yaml::number(limit))));
    let (_, connect) = times(scope);
    if connect != CONNECT {
        let times = [("connect", connect), ("send", 60.0), ("read", 60.0)];
        members.push(("timeout".to_owned(), Yaml::map(times.map(|(name, time)| (name, Yaml::number(time))))));
    }
    if has_tls {
        let tls = proxy::tls(conversion, scope, pass, "proxy");
        members.push(("tls".to_owned(), Yaml::Map(tls)));
    }
    members
}

/// Whether clients show certificates as the server demands; if not, its stream routes have to be closed.
fn is_authenticated(conversion: &mut Conversion, server: &ServerBlock) -> bool {
    let scope = &server.scope;
    let Some(verify) = scope.last("ssl_verify_client").filter(|verify| verify.argument(0) != "off") else {
        return true;
    };
    let why = match (client_authority(scope), verify.argument(0)) {
        (Some(_), "optional") => return true,
        // A certificate for another name may be chosen, which does not demand one of the client.
        (Some(_), "on") if server.names.is_empty() => "the server needs a `server_name`",
        (Some(_), "on") => return true,
        (None, "on" | "optional") => "there is no `ssl_client_certificate`",
        _ => "certificates of clients are verified or not asked for",
    };
    conversion.lost(&verify.place, format!("`{}`: {why}; {CLOSED}", verify.head()));
    false
}

/// The plugins for `allow` and `deny`.
fn restriction(conversion: &mut Conversion, scope: &BlockScope, is_closed: bool) -> YamlMembers {
    match addresses::options(&scope.all_of(&["allow", "deny"])) {
        _ if is_closed => closed(),
        Ok(options) => options.into_iter().map(|options| ("ip-restriction".to_owned(), options)).collect(),
        Err(addresses::WrongRule(rule, why)) => {
            conversion.lost(&rule.place, format!("`{}`: {why}; {CLOSED}", rule.head()));
            closed()
        }
    }
}

/// The plugin of a stream route that refuses all clients.
fn closed() -> YamlMembers {
    vec![("ip-restriction".to_owned(), Yaml::map([("whitelist", Yaml::texts([NO_CLIENT]))]))]
}

/// `set_real_ip_from`: who may send the PROXY header.
fn trusted_peers(conversion: &mut Conversion, scope: &BlockScope, listens: &[StreamListen]) {
    let Some(listen) = listens.iter().find(|listen| listen.has("proxy_protocol")) else { return };
    let servers = scope.own().iter().filter(|directive| directive.name == "server");
    let all = scope.own().iter().chain(servers.flat_map(Directive::children));
    let lines: Vec<&Directive> = all.filter(|directive| directive.name == "set_real_ip_from").collect();
    let Some(first) = lines.first() else {
        let text = "only peers in `trusted_addresses` may connect; there is no `set_real_ip_from` that names them";
        return conversion.lost(&listen.directive.place, format!("`{}`: {text}", listen.directive.head()));
    };
    if conversion.http.iter().any(|directive| directive.name == "server") {
        let text = "these peers are trusted at the addresses for HTTP, too";
        conversion.differs(&first.place, format!("`{}`: {text}", first.head()));
    }
    for line in lines {
        let peer = line.argument(0);
        if !is_network(peer) {
            conversion.lost(&line.place, format!("`{}`: only addresses and networks are trusted", line.head()));
            continue;
        }
        let settings = &mut conversion.converted.settings;
        match settings.iter_mut().find(|(name, _)| name == "trusted_addresses") {
            Some((_, Yaml::List(known))) if known.contains(&Yaml::text(peer)) => {}
            Some((_, Yaml::List(known))) => known.push(Yaml::text(peer)),
            _ => settings.push(("trusted_addresses".to_owned(), Yaml::texts([peer]))),
        }
    }
}
