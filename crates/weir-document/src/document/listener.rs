//! Listeners that are resources, and `resource_listeners`, which decides on what addresses those of a store may listen.

use std::ops::RangeInclusive;

use super::listen::{CARRIED, Carried, Listen, ListenAddress, WrittenProtocol, address, address_schema, parse};
use super::resource::{self, COMMON, ResourceOrigin, host};
use crate::keys;
use crate::keys::kinds::{Custom, DistinctList, Flag, Or, ParsedText, Whole, Words, custom, flag, set, whole, words};
use crate::keys::schema::Definitions;
use crate::text::read::{NodeReader, shortened};
use crate::text::tree::NodeKind;
use ipnet::IpNet;
use serde_json::{Value, json};

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
    /// What clients send: HTTP, or anything else, which goes where `stream_routes` say: bytes over TCP (`tcp`), or datagrams (`udp`).
    protocol: Or<Words<Carried>> = words(CARRIED).or(Carried::Http), own(), guide("stream.md");
    /// Whether TLS is passed through by the server name in its handshake. Together with `tls`, each stream route decides.
    tls_passthrough: Or<Flag> = flag().or(false), own(), guide("stream.md#tls-passed-through");
    /// Whether each connection begins with a PROXY header of a load balancer, which must be in `trusted_addresses`.
    proxy_protocol: Or<Flag> = flag().or(false), own();
}

/// A listener that is a resource.
pub(super) fn read_resource(at: &NodeReader, index: usize) -> Option<ListenerSpec> {
    let fields = at.keys(&LISTENER)?;
    resource::common(&fields);
    let id = resource::id(&fields, index);
    let written = WrittenProtocol {
        carried: fields.value(&LISTENER.protocol),
        proxy_protocol: fields.get(&LISTENER.proxy_protocol).filter(|_| fields.value(&LISTENER.proxy_protocol)),
        tls: fields.get(&LISTENER.tls).filter(|_| fields.value(&LISTENER.tls)),
        h2c: fields.get(&LISTENER.h2c).filter(|_| fields.value(&LISTENER.h2c)),
        tls_passthrough: fields.get(&LISTENER.tls_passthrough).filter(|_| fields.value(&LISTENER.tls_passthrough)),
    };
    let settings = written.settings();
    let address = fields.read(&LISTENER.address)?;
    let public_port = fields.read(&LISTENER.public_port);
    let hosts = fields.read(&LISTENER.hosts).unwrap_or_default();
    Some(ListenerSpec {
        id,
        hosts,
        listen: Listen { address, settings, http3: false, public_port, origin: ResourceOrigin::of(at) },
    })
}

/// Addresses that resources may listen on: an entry of `resource_listeners`, or those of Gateways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedAddresses {
    /// `None`: any.
    hosts: Option<IpNet>,
    ports: RangeInclusive<u16>,
}

impl AllowedAddresses {
    /// Every address.
    pub const ALL: AllowedAddresses = AllowedAddresses { hosts: None, ports: 0..=u16::MAX };

    /// Every port of each address of a network.
    pub(super) fn network(hosts: IpNet) -> AllowedAddresses {
        AllowedAddresses { hosts: Some(hosts), ports: 0..=u16::MAX }
    }

    fn new(first: ListenAddress, last: u16) -> AllowedAddresses {
        AllowedAddresses { hosts: Some(first.socket_addr().ip().into()), ports: first.port()..=last }
    }

    pub fn contain(&self, address: ListenAddress) -> bool {
        let addr = address.socket_addr();
        self.hosts.is_none_or(|hosts| hosts.contains(&addr.ip())) && self.ports.contains(&addr.port())
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

pub(super) fn allowed_schema(_: &mut Definitions) -> Value {
    json!({ "oneOf": [
        { "type": "string", "minLength": 1, "maxLength": 64 },
        { "type": "integer", "minimum": 0, "maximum": u16::MAX },
    ] })
}
