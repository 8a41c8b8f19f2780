//! `listen` and `status`: the addresses of a node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};
use weir_gateway::snapshot::{ListenerProtocol, ListenerSettings, Transport};

use super::resource::ResourceOrigin;
use crate::keys;
use crate::keys::MapKeys;
use crate::keys::kinds::{Custom, Flag, Or, Words, custom, flag, words};
use crate::keys::schema::Definitions;
use crate::text::read::{MapReader, NodeReader, shortened};
use crate::text::tree::{NodeKind, TextPosition};

/// One address to accept clients on.
#[derive(Clone, Debug)]
pub struct Listen {
    pub address: ListenAddress,
    pub settings: ListenerSettings,
    /// HTTP/3 is served beside HTTP/1.1 and HTTP/2, on the UDP port of the same number.
    pub http3: bool,
    /// The port that clients use, if it is not that of the address.
    pub public_port: Option<u16>,
    /// Where it is written.
    pub origin: ResourceOrigin,
}

impl Listen {
    /// The address `:9080` of a node whose file names none.
    pub(super) fn by_default() -> Listen {
        let origin = ResourceOrigin { path: "listen".into(), place: TextPosition::default() };
        let address = ListenAddress::Everywhere(DEFAULT_PORT);
        Listen { address, settings: ListenerProtocol::Http.into(), http3: false, public_port: None, origin }
    }

    /// Whether both serve HTTP/3 on one port, one of them at every address: the kernel would give a datagram to either.
    fn has_datagrams_of(&self, other: &Listen) -> bool {
        let [one, two] = [self, other].map(|listen| listen.address.socket_addr());
        let is_everywhere = one.ip().is_unspecified() || two.ip().is_unspecified();
        self.http3 && other.http3 && one.port() != 0 && one.port() == two.port() && is_everywhere
    }

    /// Whether both cannot have sockets of their own: the address and the transport are the same.
    pub fn is_beside(&self, other: &Listen) -> bool {
        self.address.is_same(other.address) && self.shared_transport(other).is_some()
    }

    /// Whether one of them is for every address of the port, so that the other one cannot be opened.
    fn is_within(&self, other: &Listen) -> bool {
        let [one, two] = [self, other].map(|listen| listen.address.socket_addr());
        have_one_port(one, two) && one != two && self.shared_transport(other).is_some()
    }

    /// Whether another listener for TCP cannot be opened at this address.
    pub(super) fn takes(&self, address: SocketAddr) -> bool {
        self.uses(Transport::Tcp) && have_one_port(self.address.socket_addr(), address)
    }

    fn shared_transport(&self, other: &Listen) -> Option<Transport> {
        [Transport::Tcp, Transport::Udp].into_iter().find(|&transport| self.uses(transport) && other.uses(transport))
    }

    fn uses(&self, transport: Transport) -> bool {
        self.settings.protocol.transport() == transport || self.http3 && transport == Transport::Udp
    }
}

/// Whether two addresses are the same, or one of them is for every address of the port of the other one. Port 0 is a different one each time.
pub(super) fn have_one_port(one: SocketAddr, two: SocketAddr) -> bool {
    let covers = |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() != 0 && one.port() == two.port() && (one == two || covers(one, two) || covers(two, one))
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

/// If `status` is absent.
pub(super) const DEFAULT_STATUS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7085);
const DEFAULT_PORT: u16 = 9080;

keys! {
    /// An address on which Weir accepts client connections.
    pub(super) static LISTEN: ListenAddressKeys = "listen";

    /// A port on every interface (`":9080"`), or an IP address with a port.
    address: Custom<ListenAddress> = custom("`:PORT`, or IP address with port", address_schema, address), own(),
        required("add `address: \":9080\"`"), example("127.0.0.1:9443");
    /// Whether connections use TLS, with the certificates of `ssls` and `acme`.
    tls: Or<Flag> = flag().or(false), own(), guide("tls.md");
    /// Whether each connection begins with a PROXY header of a load balancer, version 1 or 2.
    proxy_protocol: Or<Flag> = flag().or(false), own();
    /// Whether connections use HTTP/2 without TLS, and nothing else.
    h2c: Or<Flag> = flag().or(false), own(), guide("http2.md");
    /// Whether HTTP/3 is served on the UDP port of the same number, beside HTTP/1.1 and HTTP/2 over TLS.
    http3: Or<Flag> = flag().or(false), own(), guide("http3.md");
    /// What clients send: HTTP, or anything else, which goes where `stream_routes` say: bytes over TCP (`tcp`), or datagrams (`udp`).
    protocol: Or<Words<Carried>> = words(CARRIED).or(Carried::Http), own(), guide("stream.md");
    /// Whether TLS is passed through by the server name in its handshake. Together with `tls`, each stream route decides.
    tls_passthrough: Or<Flag> = flag().or(false), own(), guide("stream.md#tls-passed-through");
}

/// What the connections of a listener carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    Http,
    /// Bytes for stream routes.
    Tcp,
    /// Datagrams for stream routes.
    Udp,
}

pub(super) const CARRIED: &[(&str, Carried)] = &[("http", Carried::Http), ("tcp", Carried::Tcp), ("udp", Carried::Udp)];

/// One address, or a list.
pub(super) fn listens(at: &NodeReader) -> Option<Vec<Listen>> {
    if !at.is_list() {
        return Some(one_listen(at).into_iter().collect());
    }
    let mut listens: Vec<Listen> = Vec::new();
    for item in at.items() {
        let Some(listen) = one_listen(&item) else { continue };
        match listens.iter().any(|other| other.is_beside(&listen)) {
            true => item.report_advising("the address is listed twice", "keep one"),
            false if listens.iter().any(|other| other.has_datagrams_of(&listen)) => item.report_advising(
                "`http3` cannot be served at an address and at all addresses of the same port",
                "keep it at one of the two: that of all addresses serves this one as well",
            ),
            false if listens.iter().any(|other| other.is_within(&listen)) => item.report_advising(
                "cannot be opened beside the address for all of the same port",
                "keep one: that of all addresses serves this one as well",
            ),
            false => listens.push(listen),
        }
    }
    if at.items().next().is_none() {
        at.report_advising("is empty", "add an address, or leave the key out for the default `:9080`");
    }
    Some(listens)
}

fn one_listen(at: &NodeReader) -> Option<Listen> {
    let origin = ResourceOrigin::of(at);
    if !at.is_map() {
        let settings = ListenerProtocol::Http.into();
        return address(at).map(|address| Listen { address, settings, http3: false, public_port: None, origin });
    }
    let fields = at.keys(&LISTEN)?;
    let written = WrittenProtocol {
        carried: fields.value(&LISTEN.protocol),
        proxy_protocol: fields.get(&LISTEN.proxy_protocol).filter(|_| fields.value(&LISTEN.proxy_protocol)),
        tls: fields.get(&LISTEN.tls).filter(|_| fields.value(&LISTEN.tls)),
        h2c: fields.get(&LISTEN.h2c).filter(|_| fields.value(&LISTEN.h2c)),
        tls_passthrough: fields.get(&LISTEN.tls_passthrough).filter(|_| fields.value(&LISTEN.tls_passthrough)),
    };
    let settings = written.settings();
    let http3 = http3(&fields, settings);
    fields.read(&LISTEN.address).map(|address| Listen { address, settings, http3, public_port: None, origin })
}

/// Whether HTTP/3 is served. Reports keys that contradict it.
fn http3(fields: &MapReader, settings: ListenerSettings) -> bool {
    let Some(at) = fields.get(&LISTEN.http3).filter(|_| fields.value(&LISTEN.http3)) else { return false };
    if settings.protocol != ListenerProtocol::Https {
        let advice = match settings.protocol {
            ListenerProtocol::Http | ListenerProtocol::Http2 => "add `tls: true`",
            _ => "leave out `protocol`, or `http3`",
        };
        at.report_advising("is for addresses with HTTP over TLS", advice);
    } else if settings.proxy_protocol {
        at.report_advising(
            "cannot be used with `proxy_protocol`, which is one of TCP",
            "use an address of its own for the load balancer",
        );
    }
    true
}

/// The keys of a listener that decide on its protocol. A flag that is not set has no reader.
pub(super) struct WrittenProtocol<'a> {
    pub carried: Carried,
    pub proxy_protocol: Option<NodeReader<'a>>,
    pub tls: Option<NodeReader<'a>>,
    pub h2c: Option<NodeReader<'a>>,
    pub tls_passthrough: Option<NodeReader<'a>>,
}

impl WrittenProtocol<'_> {
    /// Reports keys that contradict each other.
    pub(super) fn settings(self) -> ListenerSettings {
        self.report_contradictions();
        let proxy_protocol = self.proxy_protocol.is_some() && self.carried != Carried::Udp;
        let protocol = match (self.carried, self.tls.is_some(), self.h2c.is_some(), self.tls_passthrough.is_some()) {
            (Carried::Http, true, ..) => ListenerProtocol::Https,
            (Carried::Http, false, true, _) => ListenerProtocol::Http2,
            (Carried::Http, false, false, _) => ListenerProtocol::Http,
            (Carried::Tcp, false, _, false) => ListenerProtocol::Tcp,
            (Carried::Tcp, true, _, false) => ListenerProtocol::Tls,
            (Carried::Tcp, false, _, true) => ListenerProtocol::TlsPassthrough,
            (Carried::Tcp, true, _, true) => ListenerProtocol::TlsByRoute,
            (Carried::Udp, ..) => ListenerProtocol::Udp,
        };
        ListenerSettings { protocol, proxy_protocol }
    }

    fn report_contradictions(&self) {
        let WrittenProtocol { carried, proxy_protocol, tls, h2c, tls_passthrough } = self;
        match (carried, tls, h2c, tls_passthrough) {
            (Carried::Http, Some(_), Some(h2c), _) => h2c.report_advising(
                "is HTTP/2 without TLS, and the address has `tls`",
                "leave it out: with TLS, HTTP/2 is negotiated by ALPN",
            ),
            (Carried::Http, _, _, Some(passthrough)) => {
                passthrough.report_advising("is for stream routes, and the address has HTTP", "add `protocol: tcp`");
            }
            (Carried::Tcp, _, Some(h2c), _) => {
                h2c.report_advising("is HTTP, and the address has `protocol: tcp`", "leave it out");
            }
            (Carried::Udp, ..) => {
                for key in [proxy_protocol, tls, h2c, tls_passthrough].into_iter().flatten() {
                    key.report_advising("is for connections, and datagrams have none", "leave it out");
                }
            }
            _ => {}
        }
    }
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
        at.report_advising(problem, listen_advice(text));
    }
    address
}

pub(super) fn parse(text: &str) -> Option<ListenAddress> {
    let port = text.strip_prefix(':').filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    match port.and_then(|port| port.parse().ok()) {
        Some(port) => Some(ListenAddress::Everywhere(port)),
        None => text.parse().ok().map(ListenAddress::One),
    }
}

/// What was probably meant by a text that is no address.
fn listen_advice(text: &str) -> String {
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

/// `false`, or an address.
pub(super) fn status_address(at: &NodeReader) -> Option<Option<SocketAddr>> {
    if matches!(at.node().kind, NodeKind::Bool(false)) {
        return Some(None);
    }
    match address(at)? {
        ListenAddress::One(address) => Some(Some(address)),
        ListenAddress::Everywhere(port) => {
            let advice = format!("write `127.0.0.1:{port}`, or `0.0.0.0:{port}` if every client may read it");
            at.report_advising("the status address must include the IP address of an interface", advice);
            None
        }
    }
}

/// An IP address with a port, in which an IPv6 address has brackets.
const ADDRESS: &str = r"^([0-9.]+|\[[0-9a-fA-F:.%]+\]):[0-9]{1,5}$";

pub(super) fn address_schema(_: &mut Definitions) -> Value {
    let text = json!({ "type": "string", "pattern": format!("^:[0-9]{{1,5}}$|{ADDRESS}") });
    json!({ "oneOf": [text, { "type": "integer", "minimum": 0, "maximum": u16::MAX }] })
}

pub(super) fn schema(definitions: &mut Definitions) -> Value {
    let one = json!({ "oneOf": [address_schema(definitions), { "$ref": definitions.reference(LISTEN.table()) }] });
    json!({ "oneOf": [one, { "type": "array", "items": one, "minItems": 1 }] })
}

pub(super) fn status_schema(_: &mut Definitions) -> Value {
    json!({ "oneOf": [{ "type": "string", "pattern": ADDRESS }, { "const": false }] })
}
