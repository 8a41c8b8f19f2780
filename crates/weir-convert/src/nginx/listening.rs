//! `listen`: the addresses of the node, and the requests that arrive at those of a server.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Conversion;
use super::syntax::Directive;
use crate::yaml::Yaml;

/// An address of a server. nginx looks for the server of a request among those that listen on the same address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listening {
    /// An IP address; empty for all addresses that no other server on the port lists.
    pub host: String,
    pub port: i64,
    pub is_default: bool,
}

impl Listening {
    pub fn is_same_as(&self, other: &Listening) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }
}

/// The addresses of all servers, for the setting `listen`.
#[derive(Default)]
pub struct ListenSetting(Vec<ListenSettingItem>);

struct ListenSettingItem {
    address: String,
    tls: bool,
    proxy_protocol: bool,
}

impl ListenSetting {
    /// Adds an address, or the switches to the same one: in nginx, each of them is one of the address, for all its servers.
    pub fn add(&mut self, address: String, tls: bool, proxy_protocol: bool) {
        match self.0.iter_mut().find(|known| known.address == address) {
            Some(known) => {
                known.tls |= tls;
                known.proxy_protocol |= proxy_protocol;
            }
            None => self.0.push(ListenSettingItem { address, tls, proxy_protocol }),
        }
    }

    pub fn yaml(self) -> Yaml {
        // A socket for all addresses of a port accepts the connections to each of them.
        let is_covered = |one: &ListenSettingItem| {
            let covers = |all: &ListenSettingItem| {
                let port = all.address.strip_prefix(':');
                !one.address.starts_with(':')
                    && port == one.address.rsplit_once(':').map(|(_, port)| port)
                    && (all.tls, all.proxy_protocol) == (one.tls, one.proxy_protocol)
            };
            self.0.iter().any(covers)
        };
        let mut addresses: Vec<Yaml> =
            self.0.iter().filter(|one| !is_covered(one)).map(ListenSettingItem::yaml).collect();
        if addresses.len() == 1 { addresses.remove(0) } else { Yaml::List(addresses) }
    }
}

impl ListenSettingItem {
    fn yaml(&self) -> Yaml {
        let mut members = vec![("address".to_owned(), Yaml::text(&self.address))];
        for (name, is_on) in [("tls", self.tls), ("proxy_protocol", self.proxy_protocol)] {
            if is_on {
                members.push((name.to_owned(), Yaml::Boolean(true)));
            }
        }
        if members.len() == 1 { members.remove(0).1 } else { Yaml::Map(members) }
    }
}

/// The address of a `listen`; `None` if Weir cannot listen there. `is_tls`: the server says `ssl on`.
pub fn listened(
    conversion: &mut Conversion,
    listen: &Directive,
    is_tls: bool,
    addresses: &mut ListenSetting,
) -> Option<Listening> {
    let address = listen.argument(0);
    let has = |name: &str| listen.after_first().iter().any(|argument| argument == name);
    let unsupported = match address {
        address if address.starts_with("unix:") => Some("Unix sockets are not supported"),
        _ if has("quic") => Some("for HTTP/3, write `http3: true` in `listen`"),
        _ => None,
    };
    if let Some(why) = unsupported {
        conversion.lost(&listen.place, format!("`{}`: {why}", listen.head()));
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
    let host = match host {
        "*" | "[::]" | "0.0.0.0" => "",
        "localhost" => "127.0.0.1",
        host => host,
    };
    let ip = host.trim_start_matches('[').trim_end_matches(']');
    if !host.is_empty() && ip.parse::<IpAddr>().is_err() {
        let text = format!("`{}`: write the IP address to listen on", listen.head());
        conversion.lost(&listen.place, text);
        return None;
    }
    if has("http2") && !is_tls && !has("ssl") {
        let text = "for HTTP/2 without TLS, add an address of its own with `h2c: true`";
        conversion.lost(&listen.place, format!("`{}`: {text}", listen.head()));
    }
    addresses.add(format!("{host}:{port}"), is_tls || has("ssl"), has("proxy_protocol"));
    Some(Listening { host: ip.to_owned(), port, is_default: has("default_server") || has("default") })
}

/// The rules for requests that arrive at these addresses, one list for each IP address that has to be told apart. `all` are the
/// addresses of all servers.
pub fn rules(here: &[&Listening], all: &[Listening]) -> Vec<Vec<Yaml>> {
    let ports: BTreeSet<i64> = all.iter().map(|listen| listen.port).collect();
    let hosts: BTreeSet<&str> = here.iter().map(|listen| listen.host.as_str()).collect();
    let ports_of = |host: &str| -> BTreeSet<i64> {
        here.iter().filter(|listen| listen.host == host).map(|listen| listen.port).collect()
    };
    // Where all servers on a port list the same IP address, it need not be looked at.
    let is_alone = |host: &str, port: i64| all.iter().all(|other| other.port != port || other.host == host);
    if here.iter().all(|listen| is_alone(&listen.host, listen.port)) {
        return vec![port_rule(&here.iter().map(|listen| listen.port).collect(), &ports)];
    }
    let rules = hosts.into_iter().flat_map(|host| {
        let (alone, shared): (BTreeSet<i64>, BTreeSet<i64>) =
            ports_of(host).into_iter().partition(|port| is_alone(host, *port));
        let mut rules = Vec::new();
        if !alone.is_empty() {
            rules.push(port_rule(&alone, &ports));
        }
        for port in shared {
            let mut rule = port_rule(&BTreeSet::from([port]), &ports);
            rule.push(address_rule(host, port, all));
            rules.push(rule);
        }
        rules
    });
    rules.collect()
}

fn port_rule(here: &BTreeSet<i64>, all: &BTreeSet<i64>) -> Vec<Yaml> {
    let text = |port: &i64| Yaml::text(port.to_string());
    if here == all {
        return Vec::new();
    }
    let (operator, value) = match here.first() {
        Some(port) if here.len() == 1 => ("==", text(port)),
        _ => ("in", Yaml::List(here.iter().map(text).collect())),
    };
    vec![Yaml::List(vec![Yaml::text("server_port"), Yaml::text(operator), value])]
}

/// Requests to an IP address, or to one that no server lists.
fn address_rule(host: &str, port: i64, all: &[Listening]) -> Yaml {
    let variable = Yaml::text("server_addr");
    if !host.is_empty() {
        return Yaml::List(vec![variable, Yaml::text("=="), Yaml::text(host)]);
    }
    let listed: BTreeSet<&str> =
        all.iter().filter(|other| other.port == port && !other.host.is_empty()).map(|other| &*other.host).collect();
    Yaml::List(vec![variable, Yaml::text("!"), Yaml::text("in"), Yaml::texts(listed)])
}
