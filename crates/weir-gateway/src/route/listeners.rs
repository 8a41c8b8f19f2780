//! The listener that a request belongs to: by the address on which the client has connected, and the host.
//!
//! Several listeners may share an address if their hosts are different. A request belongs to the one with the most specific host
//! that matches, in the order of the hosts of routes; then only its routes count, also if none of them takes the request (listener
//! isolation of the Gateway API).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::host::Host;

/// The description of one listener.
#[derive(Clone, Debug)]
pub struct ListenerRule {
    /// `None` for one that routes cannot name.
    pub id: Option<Box<str>>,
    /// Where it listens. `[::]` is every interface, for IPv4 as well.
    pub addr: SocketAddr,
    /// As in [`super::RouteRule::hosts`]; an empty list is every host.
    pub hosts: Vec<String>,
    /// The port that clients use; 0: that on which they have connected.
    pub public_port: u16,
}

/// The listeners of a configuration that has listeners with an id. Without such, it is empty.
#[derive(Clone, Debug, Default)]
pub struct ListenerTable {
    addresses: HashMap<SocketAddr, HostsOfAddress>,
    /// For an address that no listener names: a connection outlives its listener for some seconds, and the port may be chosen by
    /// the system.
    other: ListenerEntry,
}

/// What requests need of their listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerEntry {
    pub id: Option<Box<str>>,
    /// 0: that on which the client has connected.
    pub public_port: u16,
}

#[derive(Clone, Debug, Default)]
struct HostsOfAddress {
    listeners: Vec<ListenerEntry>,
    /// Numbers in `listeners`.
    names: HashMap<Box<[u8]>, usize>,
    /// The longest first.
    suffixes: Vec<(Box<[u8]>, usize)>,
    any: Option<usize>,
}

/// A listener that cannot be there beside the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerConflict {
    /// This host, of this index, is not valid.
    Host(usize, String),
    /// Another listener of the address has this host; the empty text is any host.
    SameHost(String),
}

impl ListenerTable {
    /// # Errors
    /// What is wrong with the rule. It is then not added, or only in part.
    pub fn add(&mut self, rule: ListenerRule) -> Result<(), ListenerConflict> {
        let hosts = self.addresses.entry(rule.addr).or_default();
        let number = hosts.listeners.len();
        hosts.listeners.push(ListenerEntry { id: rule.id, public_port: rule.public_port });
        if rule.hosts.is_empty() {
            return match hosts.any.replace(number) {
                None => Ok(()),
                Some(_) => Err(ListenerConflict::SameHost(String::new())),
            };
        }
        for (index, written) in rule.hosts.iter().enumerate() {
            let host = Host::parse(written).map_err(|reason| ListenerConflict::Host(index, reason))?;
            if hosts.set(host, number) {
                return Err(ListenerConflict::SameHost(written.clone()));
            }
        }
        Ok(())
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The listener of a request to a host, in lower case, on a connection to `local`. `None` if the listeners of the address have
    /// hosts, and not this one.
    pub fn find(&self, local: SocketAddr, host: &[u8]) -> Option<&ListenerEntry> {
        match self.hosts_of(local) {
            Some(hosts) => hosts.find(host),
            None => Some(&self.other),
        }
    }

    /// The listener of a request to a host and a port that clients use, on whatever address; for diagnosis.
    pub fn find_by_port(&self, port: u16, host: &[u8]) -> Option<&ListenerEntry> {
        let has_port = |entry: &ListenerEntry, addr: &SocketAddr| match entry.public_port {
            0 => addr.port() == port,
            public => public == port || addr.port() == port,
        };
        let of_port = self.addresses.iter().filter(|(addr, hosts)| hosts.listeners.iter().any(|it| has_port(it, addr)));
        match of_port.min_by_key(|(addr, _)| **addr) {
            Some((_, hosts)) => hosts.find(host),
            None => Some(&self.other),
        }
    }

    /// Whether requests to `host` must not come on a connection whose handshake named `server_name`: another listener of the
    /// address has the host (RFC 9110 §15.5.20, 421).
    pub fn is_misdirected(&self, local: SocketAddr, server_name: &[u8], host: &[u8]) -> bool {
        let Some(wanted) = self.find(local, host) else { return false };
        self.find(local, server_name).is_none_or(|named| !std::ptr::eq(named, wanted))
    }

    /// Of the listeners that a connection to `local` may belong to, those with the most specific address.
    fn hosts_of(&self, local: SocketAddr) -> Option<&HostsOfAddress> {
        let port = local.port();
        let at = |ip: IpAddr| self.addresses.get(&SocketAddr::new(ip, port));
        let of_every_ipv4 = || local.is_ipv4().then(|| at(Ipv4Addr::UNSPECIFIED.into())).flatten();
        at(local.ip()).or_else(of_every_ipv4).or_else(|| at(std::net::Ipv6Addr::UNSPECIFIED.into()))
    }
}

impl HostsOfAddress {
    /// Whether another listener has it.
    fn set(&mut self, host: Host, number: usize) -> bool {
        match host {
            Host::Name(name) => self.names.insert(name.into_boxed_bytes(), number).is_some(),
            Host::Suffix(suffix) => {
                let suffix = suffix.into_boxed_bytes();
                let is_taken = self.suffixes.iter().any(|(known, _)| *known == suffix);
                let place = self.suffixes.partition_point(|(known, _)| known.len() >= suffix.len());
                self.suffixes.insert(place, (suffix, number));
                is_taken
            }
        }
    }

    fn find(&self, host: &[u8]) -> Option<&ListenerEntry> {
        let of_suffix = || self.suffixes.iter().find(|(suffix, _)| host.ends_with(suffix)).map(|(_, number)| *number);
        let number = self.names.get(host).copied().or_else(of_suffix).or(self.any)?;
        self.listeners.get(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(id: &str, addr: &str, hosts: &[&str]) -> ListenerRule {
        let hosts = hosts.iter().map(|host| host.to_string()).collect();
        ListenerRule { id: Some(id.into()), addr: addr.parse().expect("an address"), hosts, public_port: 0 }
    }

    fn table(rules: Vec<ListenerRule>) -> ListenerTable {
        let mut table = ListenerTable::default();
        rules.into_iter().for_each(|rule| table.add(rule).expect("right"));
        table
    }

    fn found<'t>(table: &'t ListenerTable, local: &str, host: &str) -> Option<Option<&'t str>> {
        let entry = table.find(local.parse().expect("an address"), host.as_bytes())?;
        Some(entry.id.as_deref())
    }

    #[test]
    fn the_most_specific_host_decides() {
        let table = table(vec![
            rule("any", "[::]:80", &[]),
            rule("com", "[::]:80", &["*.com"]),
            rule("example", "[::]:80", &["*.example.com"]),
            rule("exact", "[::]:80", &["www.example.com", "example.com"]),
        ]);
        let of = |host| found(&table, "10.0.0.1:80", host).flatten();
        assert_eq!(of("www.example.com"), Some("exact"));
        assert_eq!(of("a.b.example.com"), Some("example"));
        assert_eq!(of("x.com"), Some("com"));
        assert_eq!(of("x.org"), Some("any"));
        assert_eq!(of(""), Some("any"));
    }

    #[test]
    fn a_host_that_no_listener_of_the_address_has_belongs_to_none() {
        let table = table(vec![rule("a", "[::]:80", &["a.example"]), rule("b", "[::]:81", &[])]);
        assert_eq!(found(&table, "[::1]:80", "b.example"), None);
        assert_eq!(found(&table, "[::1]:81", "b.example"), Some(Some("b")));
        assert_eq!(found(&table, "[::1]:82", "b.example"), Some(None), "no listener is known there");
    }

    #[test]
    fn the_most_specific_address_decides() {
        let all = ["[::]:80", "0.0.0.0:80", "10.0.0.1:80"];
        let table = table(all.map(|addr| rule(addr, addr, &[])).into());
        assert_eq!(found(&table, "10.0.0.1:80", "a"), Some(Some("10.0.0.1:80")));
        assert_eq!(found(&table, "10.0.0.2:80", "a"), Some(Some("0.0.0.0:80")));
        assert_eq!(found(&table, "[::1]:80", "a"), Some(Some("[::]:80")));
    }

    #[test]
    fn a_host_of_another_listener_is_misdirected() {
        let table =
            table(vec![rule("a", "[::]:443", &["a.example", "b.example"]), rule("wild", "[::]:443", &["*.example"])]);
        let is_misdirected = |name: &str, host: &str| {
            table.is_misdirected("10.0.0.1:443".parse().expect("an address"), name.as_bytes(), host.as_bytes())
        };
        assert!(!is_misdirected("a.example", "b.example"), "the same listener");
        assert!(is_misdirected("a.example", "c.example"));
        assert!(is_misdirected("c.example", "a.example"));
        assert!(!is_misdirected("a.example", "a.test"), "no listener has it: 404");
    }

    #[test]
    fn a_host_has_one_listener() {
        let mut table = table(vec![rule("a", "[::]:80", &["a.example", "*.test"]), rule("b", "[::]:80", &[])]);
        let same = |host: &str| Err(ListenerConflict::SameHost(host.to_owned()));
        assert_eq!(table.add(rule("c", "[::]:80", &["A.example"])), same("A.example"));
        assert_eq!(table.add(rule("c", "[::]:80", &["*.test"])), same("*.test"));
        assert_eq!(table.add(rule("c", "[::]:80", &[])), same(""));
        assert_eq!(table.add(rule("c", "0.0.0.0:80", &["a.example"])), Ok(()));
        assert!(matches!(table.add(rule("d", "[::]:81", &["a.*"])), Err(ListenerConflict::Host(0, _))));
    }
}
