//! The table of stream routes: which one takes a connection that carries no HTTP.
//!
//! A rule may name listeners; then it takes their connections alone. The most specific rule wins: the server name itself, then the
//! longest wildcard, then rules without names; among these a rule with the port before one without, then one with listeners, then the longer range of the server's address, then that of the client's, then the order of the
//! rules. A connection without a server name is taken only by rules without names. The order of APISIX is that of its
//! rules; where that makes sense there, the result is the same here.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use weir_net::listener::Transport;

use super::host::Host;

/// The conditions of a stream route, all of which must hold.
#[derive(Clone, Debug)]
pub struct StreamRule {
    /// Names and wildcards, as the hosts of routes; empty: any name, and none.
    pub server_names: Vec<String>,
    pub server_port: Option<u16>,
    pub server_addr: Option<IpNet>,
    pub remote_addr: Option<IpNet>,
    /// The ids of the listeners whose connections it takes; an empty list is every listener.
    pub listeners: Box<[Box<str>]>,
    /// `None`: any, since its upstream says nothing of it.
    pub transport: Option<Transport>,
    pub taken: TakenStream,
}

/// What a connection needs to know of the rule that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenStream {
    /// The number of the route.
    pub route: u32,
    /// TLS is passed through, on a listener where the route decides.
    pub tls_passthrough: bool,
    /// `None`: as the upstream says.
    pub idle_timeout: Option<Duration>,
}

/// A connection without HTTP, when it begins.
#[derive(Clone, Copy, Debug)]
pub struct StreamLookup<'a> {
    /// Where the client has connected.
    pub local: SocketAddr,
    pub client: IpAddr,
    /// The id of the listener that the connection belongs to, by its address and the server name.
    pub listener: Option<&'a str>,
    /// In lower case; `None` without TLS, or without a name in its handshake.
    pub server_name: Option<&'a str>,
}

/// A table for each transport.
#[derive(Clone, Debug, Default)]
pub struct StreamTables {
    tcp: StreamTable,
    udp: StreamTable,
}

impl StreamTables {
    /// # Errors
    /// The index of a rule, that of its name that is not valid, and what is wrong with it.
    pub fn build(rules: &[StreamRule]) -> Result<StreamTables, (usize, usize, String)> {
        let mut tables = StreamTables::default();
        for (index, rule) in rules.iter().enumerate() {
            for (transport, table) in [(Transport::Tcp, &mut tables.tcp), (Transport::Udp, &mut tables.udp)] {
                if rule.transport.is_none_or(|only| only == transport) {
                    table.add(rule).map_err(|(name, reason)| (index, name, reason))?;
                }
            }
        }
        Ok(tables)
    }

    pub fn of(&self, transport: Transport) -> &StreamTable {
        match transport {
            Transport::Tcp => &self.tcp,
            Transport::Udp => &self.udp,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct StreamTable {
    names: HashMap<Box<str>, ByPort>,
    /// Each begins with a dot.
    suffixes: HashMap<Box<str>, ByPort>,
    any: ByPort,
}

/// The rules of one name.
#[derive(Clone, Debug, Default)]
struct ByPort {
    ports: HashMap<u16, Vec<AddressRule>>,
    any: Vec<AddressRule>,
}

/// What is left of a rule under its name and port. The more specific stand before others.
#[derive(Clone, Debug)]
struct AddressRule {
    server_addr: Option<IpNet>,
    remote_addr: Option<IpNet>,
    listeners: Box<[Box<str>]>,
    taken: TakenStream,
}

impl StreamTable {
    /// # Errors
    /// The index of a name that is not valid, and what is wrong with it.
    fn add(&mut self, rule: &StreamRule) -> Result<(), (usize, String)> {
        let StreamRule { server_names, server_port, server_addr, remote_addr, listeners, taken, transport: _ } = rule;
        let (server_addr, remote_addr, listeners) = (*server_addr, *remote_addr, listeners.clone());
        let address = AddressRule { server_addr, remote_addr, listeners, taken: *taken };
        if server_names.is_empty() {
            self.any.add(*server_port, address.clone());
        }
        for (place, written) in server_names.iter().enumerate() {
            let of_name = match Host::parse(written).map_err(|reason| (place, reason))? {
                Host::Name(name) => self.names.entry(name).or_default(),
                Host::Suffix(suffix) if suffix.is_empty() => &mut self.any,
                Host::Suffix(suffix) if suffix.starts_with('.') => self.suffixes.entry(suffix).or_default(),
                Host::Suffix(_) => {
                    let reason = format!("{written:?} has no dot after the `*`; write a pattern such as *.example.com");
                    return Err((place, reason));
                }
            };
            of_name.add(*server_port, address.clone());
        }
        Ok(())
    }

    pub fn find(&self, stream: &StreamLookup<'_>) -> Option<TakenStream> {
        self.matching(stream).next()
    }

    /// Every rule that matches, the most specific first.
    pub fn matching<'t>(&'t self, stream: &'t StreamLookup<'_>) -> impl Iterator<Item = TakenStream> {
        let name = stream.server_name.unwrap_or_default();
        let suffixes = name.match_indices('.').filter_map(|(dot, _)| self.suffixes.get(&name[dot..]));
        let named = self.names.get(name).into_iter().chain(suffixes);
        named.chain([&self.any]).flat_map(|rules| rules.matching(stream))
    }
}

impl ByPort {
    fn add(&mut self, port: Option<u16>, rule: AddressRule) {
        let rules = match port {
            Some(port) => self.ports.entry(port).or_default(),
            None => &mut self.any,
        };
        let place = rules.partition_point(|known| known.precision() >= rule.precision());
        rules.insert(place, rule);
    }

    fn matching<'t>(&'t self, stream: &'t StreamLookup<'_>) -> impl Iterator<Item = TakenStream> {
        let of_port = self.ports.get(&stream.local.port());
        of_port.into_iter().flatten().chain(&self.any).filter(|rule| rule.takes(stream)).map(|rule| rule.taken)
    }
}

impl AddressRule {
    /// Whether it names listeners, and the length of both prefixes.
    fn precision(&self) -> (bool, [Option<u8>; 2]) {
        let lengths = [self.server_addr, self.remote_addr].map(|network| network.map(|network| network.prefix_len()));
        (!self.listeners.is_empty(), lengths)
    }

    fn takes(&self, stream: &StreamLookup<'_>) -> bool {
        let is_named = |id: &str| self.listeners.iter().any(|named| **named == *id);
        (self.listeners.is_empty() || stream.listener.is_some_and(is_named))
            && self.server_addr.is_none_or(|network| network.contains(&stream.local.ip()))
            && self.remote_addr.is_none_or(|network| network.contains(&stream.client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(route: u32, names: &[&str], port: Option<u16>, [server, remote]: [&str; 2]) -> StreamRule {
        let network = |text: &str| (!text.is_empty()).then(|| text.parse().expect("a network"));
        StreamRule {
            server_names: names.iter().map(|name| name.to_string()).collect(),
            server_port: port,
            server_addr: network(server),
            remote_addr: network(remote),
            listeners: Box::default(),
            transport: None,
            taken: TakenStream { route, tls_passthrough: false, idle_timeout: None },
        }
    }

    fn table(rules: &[StreamRule]) -> StreamTable {
        StreamTables::build(rules).expect("right").tcp
    }

    fn found(table: &StreamTable, local: &str, client: &str, name: &str) -> Option<u32> {
        let server_name = (!name.is_empty()).then_some(name);
        let (local, client) = (local.parse().expect("an address"), client.parse().expect("an address"));
        table.find(&StreamLookup { local, client, listener: None, server_name }).map(|taken| taken.route)
    }

    #[test]
    fn a_rule_of_a_listener_takes_no_connection_of_another_one() {
        let of = |listener: &str, mut rule: StreamRule| {
            rule.listeners = [listener.into()].into();
            rule
        };
        let rules = [
            of("wide", rule(0, &["api.bank.example"], Some(443), ["", ""])),
            of("bank", rule(1, &["*.bank.example"], Some(443), ["", ""])),
            rule(2, &[], Some(443), ["", "10.0.0.0/8"]),
            of("wide", rule(3, &[], Some(443), ["", ""])),
        ];
        let table = table(&rules);
        let found = |listener, server_name| {
            let (local, client) =
                ("10.0.0.1:443".parse().expect("an address"), "10.0.0.2".parse().expect("an address"));
            let lookup = StreamLookup { local, client, listener, server_name: Some(server_name) };
            table.find(&lookup).map(|taken| taken.route)
        };
        assert_eq!(found(Some("bank"), "api.bank.example"), Some(1));
        assert_eq!(found(Some("wide"), "api.bank.example"), Some(0));
        assert_eq!(found(Some("wide"), "other.example"), Some(3));
        assert_eq!(found(Some("third"), "api.bank.example"), Some(2));
        assert_eq!(found(None, "other.example"), Some(2));
    }

    #[test]
    fn the_most_specific_rule_takes_a_connection_whatever_its_place() {
        let table = table(&[
            rule(0, &[], None, ["", ""]),
            rule(1, &[], Some(9100), ["", ""]),
            rule(2, &[], Some(9100), ["", "10.0.0.0/8"]),
            rule(3, &[], Some(9100), ["", "10.1.0.0/16"]),
            rule(4, &[], Some(9100), ["192.0.2.1/32", ""]),
        ]);
        let of = |local, client| found(&table, local, client, "");
        assert_eq!(of("192.0.2.9:9200", "10.1.2.3"), Some(0));
        assert_eq!(of("192.0.2.9:9100", "172.16.0.1"), Some(1));
        assert_eq!(of("192.0.2.9:9100", "10.2.0.1"), Some(2));
        assert_eq!(of("192.0.2.9:9100", "10.1.2.3"), Some(3));
        assert_eq!(of("192.0.2.1:9100", "10.1.2.3"), Some(4));
    }

    #[test]
    fn names_are_more_specific_than_ports_and_wildcards_stand_for_any_labels() {
        let rules = [
            rule(0, &[], Some(443), ["", ""]),
            rule(1, &["*.example.com"], None, ["", ""]),
            rule(2, &["*.db.example.com"], None, ["", ""]),
            rule(3, &["a.db.example.com", "b.example.com"], None, ["", ""]),
        ];
        let table = table(&rules);
        let of = |name| found(&table, "10.0.0.1:443", "10.0.0.2", name);
        assert_eq!(of(""), Some(0));
        assert_eq!(of("other.org"), Some(0));
        assert_eq!(of("example.com"), Some(0));
        assert_eq!(of("x.y.example.com"), Some(1));
        assert_eq!(of("x.y.db.example.com"), Some(2));
        assert_eq!((of("a.db.example.com"), of("b.example.com")), (Some(3), Some(3)));
    }

    #[test]
    fn a_connection_without_a_name_is_taken_only_by_rules_without_names() {
        let of = |name: &str| found(&table(&[rule(1, &[name], None, ["", ""])]), "10.0.0.1:443", "10.0.0.2", "");
        assert_eq!((of("*.example.com"), of("*")), (None, Some(1)));
    }

    #[test]
    fn a_rule_whose_address_does_not_match_leaves_the_connection_to_a_less_specific_one() {
        let rules = [rule(0, &[], None, ["", ""]), rule(1, &["a.example"], Some(1), ["", "10.0.0.0/8"])];
        let table = table(&rules);
        assert_eq!(found(&table, "10.0.0.1:1", "192.0.2.1", "a.example"), Some(0));
        assert_eq!(found(&table, "10.0.0.1:1", "10.0.0.7", "a.example"), Some(1));
    }

    #[test]
    fn a_wildcard_without_a_dot_is_refused() {
        let refused = StreamTables::build(&[rule(0, &["a.example", "*example"], None, ["", ""])]);
        assert_eq!(refused.map_err(|(rule, name, _)| (rule, name)).err(), Some((0, 1)));
    }

    #[test]
    fn a_rule_is_in_the_tables_of_its_transports() {
        let mut rules = [rule(0, &[], None, ["", ""]), rule(1, &[], Some(53), ["", ""])];
        rules[1].transport = Some(Transport::Udp);
        let tables = StreamTables::build(&rules).expect("right");
        let of = |transport, local| found(tables.of(transport), local, "10.0.0.2", "");
        assert_eq!((of(Transport::Tcp, "10.0.0.1:53"), of(Transport::Udp, "10.0.0.1:53")), (Some(0), Some(1)));
        assert_eq!(of(Transport::Udp, "10.0.0.1:54"), Some(0));
    }
}
