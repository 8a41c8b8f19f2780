//! The addresses that a node accepts clients on: the setting `listen`, and resources.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use serde_json::{Value, json};
use weir_gateway::snapshot::{ListenerProtocol, ListenerSettings};

use super::resource::{self, COMMON, ResourceOrigin, host};
use crate::keys::keys;
use crate::keys::kinds::{Custom, DistinctList, Flag, Or, ParsedText, Whole, custom, flag, set, whole};
use crate::keys::schema::Definitions;
use crate::text::read::{NodeReader, shortened};
use crate::text::tree::{NodeKind, TextPosition};

/// One address to accept clients on.
#[derive(Clone, Debug)]
pub struct Listen {
    pub address: ListenAddress,
    pub settings: ListenerSettings,
    /// The port that clients use, if it is not that of the address.
    pub public_port: Option<u16>,
    /// Where it is written.
    pub origin: ResourceOrigin,
}

impl Listen {
    /// The address `:9080` of a node whose file names none.
    pub(super) fn by_default() -> Listen {
        let origin = ResourceOrigin { path: "listen".into(), place: TextPosition::default() };
        let address = ListenAddress::Everywhere(9080);
        Listen { address, settings: ListenerProtocol::Http.into(), public_port: None, origin }
    }
}

/// A listener that is a resource.
#[derive(Clone, Debug)]
pub struct ListenerSpec {
    pub id: Box<str>,
    /// In lower case; empty: any host.
    pub hosts: Vec<String>,
    pub listen: Listen,
}

keys! {
    /// An address on which clients connect, beside those of the setting `listen`. The node's file decides which addresses resources may
    /// name: `resource_listeners`. Several listeners may share an address if their hosts are different.
    pub(super) static LISTENER: ListenerKeys = "listener", shared COMMON;

    /// The address: `":9443"` is port 9443 on every interface.
    address: Custom<ListenAddress> = custom("text: an IP address and a port; or a port", address_schema, address), own(),
        required("add `address: \":9443\"`"), example("\":9443\""), guide("listeners.md");
    /// The hosts that the listener serves: names, and wildcards such as `*.example.com`. A request belongs to the listener of its address
    /// with the most specific host, and gets 404 if there is none.
    hosts: DistinctList<ParsedText<String>> = set(host()), own(), absent("any that no other listener of the address has"),
        example("[www.example.com, \"*.example.org\"]"), guide("listeners.md#listeners-with-hosts");
    /// The port that clients use, if a load balancer or Kubernetes maps it to that of the address. It stands in the variables
    /// `public_port` and `public_port_suffix`, in `X-Forwarded-Port`, and in redirects to HTTPS.
    public_port: Whole<u16> = whole(1, u16::MAX), own(), absent("that of the address"), example("443");
    /// Whether connections use TLS, with the certificates of `ssls`.
    tls: Or<Flag> = flag().or(false), own(), guide("tls.md");
    /// Whether connections use HTTP/2 without TLS, and nothing else.
    h2c: Or<Flag> = flag().or(false), own();
    /// Whether each connection begins with a PROXY header of a load balancer, which must be in `trusted_addresses`.
    proxy_protocol: Or<Flag> = flag().or(false), own();
}

fn address_schema(_: &mut Definitions) -> Value {
    json!({ "oneOf": [
        { "type": "string", "minLength": 1, "maxLength": 64 },
        { "type": "integer", "minimum": 0, "maximum": u16::MAX },
    ] })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `:9080`: every interface, by IPv4 and, if available, IPv6.
    Everywhere(u16),
    One(SocketAddr),
}

impl ListenAddress {
    pub fn port(self) -> u16 {
        match self {
            ListenAddress::Everywhere(port) => port,
            ListenAddress::One(address) => address.port(),
        }
    }

    /// The address to bind a socket to. `[::]` accepts IPv4 clients as well.
    pub fn socket_addr(self) -> SocketAddr {
        match self {
            ListenAddress::Everywhere(port) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
            ListenAddress::One(addr) => addr,
        }
    }

    /// Whether both cannot be listened on. Port 0 means a different port each time.
    pub fn is_same(self, other: ListenAddress) -> bool {
        self.port() != 0 && self.socket_addr() == other.socket_addr()
    }
}

pub(super) fn read(at: &NodeReader) -> Vec<Listen> {
    if !at.is_list() {
        return one(at).into_iter().collect();
    }
    let mut listens: Vec<Listen> = Vec::new();
    for item in at.items() {
        let Some(listen) = one(&item) else { continue };
        match listens.iter().any(|other| other.address.is_same(listen.address)) {
            true => item.report_advising("the address is listed twice", "keep one"),
            false => listens.push(listen),
        }
    }
    if at.items().next().is_none() {
        at.report_advising("is empty", "add an address, or leave the key out for the default `:9080`");
    }
    listens
}

fn one(at: &NodeReader) -> Option<Listen> {
    let origin = ResourceOrigin::of(at);
    if !at.is_map() {
        return address(at).map(|address| Listen {
            address,
            settings: ListenerProtocol::Http.into(),
            public_port: None,
            origin,
        });
    }
    let fields = at.fields(&["address", "tls", "proxy_protocol", "h2c"])?;
    let Some(at) = fields.get("address") else {
        at.report_advising("has no `address`", "add `address: \":9080\"`");
        return None;
    };
    let flag = |key: &str| fields.get(key).and_then(|at| at.boolean()).unwrap_or(false);
    let protocol = protocol(flag("tls"), flag("h2c"), fields.get("h2c"));
    let settings = ListenerSettings { protocol, proxy_protocol: flag("proxy_protocol") };
    address(&at).map(|address| Listen { address, settings, public_port: None, origin })
}

fn protocol(tls: bool, h2c: bool, at: Option<NodeReader>) -> ListenerProtocol {
    if let (true, true, Some(at)) = (tls, h2c, at) {
        at.report_advising(
            "is HTTP/2 without TLS, and the address has `tls`",
            "leave it out: with TLS, HTTP/2 is negotiated by ALPN",
        );
    }
    match (tls, h2c) {
        (true, _) => ListenerProtocol::Https,
        (false, true) => ListenerProtocol::Http2,
        (false, false) => ListenerProtocol::Http,
    }
}

/// A listener that is a resource.
pub(super) fn read_resource(at: &NodeReader, index: usize) -> Option<ListenerSpec> {
    let fields = at.keys(&LISTENER)?;
    resource::common(&fields);
    let id = resource::id(&fields, index);
    let (tls, h2c) = (fields.value(&LISTENER.tls), fields.value(&LISTENER.h2c));
    let settings = ListenerSettings {
        protocol: protocol(tls, h2c, fields.get(&LISTENER.h2c)),
        proxy_protocol: fields.value(&LISTENER.proxy_protocol),
    };
    let address = fields.read(&LISTENER.address)?;
    let public_port = fields.read(&LISTENER.public_port);
    let hosts = fields.read(&LISTENER.hosts).unwrap_or_default();
    Some(ListenerSpec { id, hosts, listen: Listen { address, settings, public_port, origin: ResourceOrigin::of(at) } })
}

/// An entry of `resource_listeners`: addresses that resources may listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedAddresses {
    /// `None`: any.
    host: Option<IpAddr>,
    ports: RangeInclusive<u16>,
}

impl AllowedAddresses {
    /// Every address.
    pub const ALL: AllowedAddresses = AllowedAddresses { host: None, ports: 0..=u16::MAX };

    fn new(first: ListenAddress, last: u16) -> AllowedAddresses {
        AllowedAddresses { host: Some(first.socket_addr().ip()), ports: first.port()..=last }
    }

    pub fn contain(&self, address: ListenAddress) -> bool {
        let addr = address.socket_addr();
        self.host.is_none_or(|host| host == addr.ip()) && self.ports.contains(&addr.port())
    }
}

/// `:9443`, `127.0.0.1:9443`, or a range of ports, `:9000-9099`.
pub(super) fn allowed(at: &NodeReader) -> Option<AllowedAddresses> {
    if let NodeKind::Text(text) = &at.node().kind
        && let Some((first, last)) = text.rsplit_once('-')
        && let (Some(first), Ok(last)) = (parse(first), last.parse::<u16>())
    {
        if last < first.port() {
            at.report(format!("the last port of `{}` is below the first", shortened(text)));
            return None;
        }
        return Some(AllowedAddresses::new(first, last));
    }
    let address = address(at)?;
    Some(AllowedAddresses::new(address, address.port()))
}

/// Parses `:9080`, `127.0.0.1:9080`, `[::1]:9080`, or a port alone, as in APISIX's `node_listen`.
pub(super) fn address(at: &NodeReader) -> Option<ListenAddress> {
    if let NodeKind::Number(_) = &at.node().kind {
        return at.integer(0..=u16::MAX).map(ListenAddress::Everywhere);
    }
    let text = at.text()?;
    let address = parse(text);
    if address.is_none() {
        let problem = format!("`{}` is not an address to listen on", shortened(text));
        at.report_advising(problem, advice(text));
    }
    address
}

fn parse(text: &str) -> Option<ListenAddress> {
    let port = text.strip_prefix(':').filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match port.and_then(|port| port.parse().ok()) {
        Some(port) => Some(ListenAddress::Everywhere(port)),
        None => text.parse().ok().map(ListenAddress::One),
    }
}

/// What was probably meant by a text that is no address.
fn advice(text: &str) -> String {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if text.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()) {
        format!("add the port: `{text}:9080`")
    } else if host.parse::<Ipv6Addr>().is_ok() && is_number {
        format!("write an IPv6 address in brackets: `[{host}]:{port}`")
    } else if is_number && port.parse::<u16>().is_err() {
        "use a port from 0 to 65535".to_owned()
    } else if host == "*" && is_number {
        format!("write `:{port}` for all addresses of this machine")
    } else if host == "localhost" && is_number {
        format!("write the IP address in place of the name: `127.0.0.1:{port}`")
    } else if text.ends_with(" ssl") || text.ends_with(" tls") {
        "write `{ address: \":443\", tls: true }`".to_owned()
    } else {
        "write as `:9080`, `127.0.0.1:9080` or `[::1]:9080`; names of hosts are not possible".to_owned()
    }
}
