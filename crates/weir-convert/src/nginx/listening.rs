//! `listen`: the addresses of the node, and the requests that arrive at those of a server.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Conversion;
use super::scope::BlockScope;
use super::syntax::Directive;
use crate::SourcePlace;
use crate::yaml::Yaml;

/// An address of a server. nginx looks for the server of a request among those that listen on the same address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Listening {
    /// An IP address; empty for all addresses that no other server on the port lists.
    pub host: String,
    pub port: i64,
    pub is_default: bool,
    pub is_tls: bool,
}

impl Listening {
    pub(super) fn is_same_as(&self, other: &Listening) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }
}

/// The addresses of all servers, for the setting `listen`.
#[derive(Default)]
pub(super) struct ListenSetting {
    items: Vec<ListenSettingItem>,
    /// Where `listen` says `quic`.
    quic: Vec<QuicListen>,
}

struct QuicListen {
    address: String,
    head: String,
    place: SourcePlace,
}

#[derive(Default)]
pub(super) struct ListenSettingItem {
    pub address: String,
    /// `tcp` or `udp`, without HTTP.
    pub protocol: Option<&'static str>,
    pub tls: bool,
    /// HTTP/3 as well.
    pub http3: bool,
    pub tls_passthrough: bool,
    pub proxy_protocol: bool,
}

impl ListenSetting {
    /// Adds an address, or the switches to the same one: in nginx, each of them is one of the address, for all its servers.
    pub(super) fn add(&mut self, item: ListenSettingItem) {
        match self.items.iter_mut().find(|known| (&known.address, known.protocol) == (&item.address, item.protocol)) {
            Some(known) => {
                known.tls |= item.tls;
                known.tls_passthrough |= item.tls_passthrough;
                known.proxy_protocol |= item.proxy_protocol;
            }
            None => self.items.push(item),
        }
    }

    /// Adds HTTP/3 to the addresses with TLS where a `listen` says `quic`. Weir has it beside TLS only, and one without is reported.
    pub(super) fn add_http3(&mut self, conversion: &mut Conversion) {
        for quic in std::mem::take(&mut self.quic) {
            let is_same = |item: &&mut ListenSettingItem| item.address == quic.address && item.tls;
            let why = match self.items.iter_mut().filter(|item| item.protocol.is_none()).find(is_same) {
                Some(item) if item.proxy_protocol => {
                    "an address with `proxy_protocol` has no HTTP/3; write one of its own in `listen`".to_owned()
                }
                Some(item) => {
                    item.http3 = true;
                    continue;
                }
                None => format!(
                    "HTTP/3 is served beside HTTPS only; write `{{ address: \"{}\", tls: true, http3: true }}` in `listen`",
                    quic.address
                ),
            };
            conversion.lost(&quic.place, format!("`{}`: {why}", quic.head));
        }
    }

    /// The item for all addresses of the port, whose socket accepts the connections to this one, too.
    fn covering(&self, one: &ListenSettingItem) -> Option<usize> {
        let covers = |all: &ListenSettingItem| {
            let port = all.address.strip_prefix(':');
            !one.address.starts_with(':')
                && port == one.address.rsplit_once(':').map(|(_, port)| port)
                && all.has_switches_of(one)
        };
        self.items.iter().position(covers)
    }

    pub(super) fn yaml(mut self) -> Yaml {
        let covering: Vec<Option<usize>> = self.items.iter().map(|one| self.covering(one)).collect();
        let with_http3 = self.items.iter().zip(&covering).filter(|(item, _)| item.http3);
        let with_http3: Vec<usize> = with_http3.filter_map(|(_, covering)| *covering).collect();
        with_http3.into_iter().for_each(|number| self.items[number].http3 = true);
        let open = self.items.iter().zip(&covering).filter(|(_, covering)| covering.is_none());
        let mut addresses: Vec<Yaml> = open.map(|(item, _)| item.yaml()).collect();
        if addresses.len() == 1 { addresses.remove(0) } else { Yaml::List(addresses) }
    }
}

impl ListenSettingItem {
    pub(super) fn at(address: impl Into<String>) -> ListenSettingItem {
        ListenSettingItem { address: address.into(), ..ListenSettingItem::default() }
    }

    /// Apart from HTTP/3, which the address for all gets if one of those that it covers has it.
    fn has_switches_of(&self, other: &ListenSettingItem) -> bool {
        let switches = |item: &ListenSettingItem| (item.protocol, item.tls, item.tls_passthrough, item.proxy_protocol);
        switches(self) == switches(other)
    }

    fn yaml(&self) -> Yaml {
        let mut members = vec![("address".to_owned(), Yaml::text(&self.address))];
        members.extend(self.protocol.map(|protocol| ("protocol".to_owned(), Yaml::text(protocol))));
        let switches = [
            ("tls", self.tls),
            ("http3", self.http3),
            ("tls_passthrough", self.tls_passthrough),
            ("proxy_protocol", self.proxy_protocol),
        ];
        for (name, is_on) in switches {
            if is_on {
                members.push((name.to_owned(), Yaml::Boolean(true)));
            }
        }
        if members.len() == 1 { members.remove(0).1 } else { Yaml::Map(members) }
    }
}

/// The host and the port of a `listen`; `None` if Weir cannot listen there.
pub(super) struct ListenPlace<'a> {
    /// As in a URL; empty for all addresses.
    pub host: &'a str,
    pub port: i64,
}

impl<'a> ListenPlace<'a> {
    pub(super) fn of(
        conversion: &mut Conversion,
        listen: &'a Directive,
        default_port: Option<i64>,
    ) -> Option<ListenPlace<'a>> {
        let address = listen.argument(0);
        let mut lost = |why: &str| {
            conversion.lost(&listen.place, format!("`{}`: {why}", listen.head()));
            None
        };
        if address.starts_with("unix:") {
            return lost("Unix sockets are not supported");
        }
        let (host, port) = match address.parse::<i64>() {
            Ok(port) => ("", Some(port)),
            Err(_) => super::upstream::host_and_port(address),
        };
        let Some(port) = port.or(default_port) else { return lost("write a `listen` with one port for each") };
        // One dual-stack socket serves IPv4 and IPv6.
        let host = match host {
            "*" | "[::]" | "0.0.0.0" => "",
            "localhost" => "127.0.0.1",
            host => host,
        };
        let found = ListenPlace { host, port };
        if !host.is_empty() && found.ip().parse::<IpAddr>().is_err() {
            return lost("write the IP address to listen on");
        }
        Some(found)
    }

    /// The host without the brackets of IPv6.
    pub(super) fn ip(&self) -> &'a str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    pub(super) fn text(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// The address of a `listen` of a server for HTTP; `None` if Weir cannot listen there, or if it is for HTTP/3 alone.
pub(super) fn listened(
    conversion: &mut Conversion,
    listen: &Directive,
    scope: &BlockScope,
    addresses: &mut ListenSetting,
) -> Option<Listening> {
    let has = |name: &str| listen.after_first().iter().any(|argument| argument == name);
    let address = ListenPlace::of(conversion, listen, Some(80))?;
    if has("quic") {
        // HTTP/3 is on unless it is switched off.
        if scope.value("http3") != Some("off") {
            let (head, place) = (listen.head(), listen.place.clone());
            addresses.quic.push(QuicListen { address: address.text(), head, place });
        }
        return None;
    }
    // `http2` needs nothing: an address serves HTTP/2 to clients that choose it by ALPN, or begin with it in the clear.
    let is_tls = scope.is_on("ssl") || has("ssl");
    addresses.add(ListenSettingItem {
        tls: is_tls,
        proxy_protocol: has("proxy_protocol"),
        ..ListenSettingItem::at(address.text())
    });
    let is_default = has("default_server") || has("default");
    Some(Listening { host: address.ip().to_owned(), port: address.port, is_default, is_tls })
}

/// The rules for requests that arrive at these addresses, one list for each IP address that has to be told apart. `all` are the
/// addresses of all servers.
pub(super) fn rules(here: &[&Listening], all: &[Listening]) -> Vec<Vec<Yaml>> {
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
