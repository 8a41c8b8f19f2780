//! Stream routes: which connections are carried without HTTP, and where to.

use std::time::Duration;

use ipnet::IpNet;
use weir_plugin::vars::parse_network;

use super::plugins::{PLUGINS, PluginSpecs};
use super::resource::{self, COMMON, IdOf, Reference, ResourceOrigin, host, id_of};
use super::route::NETWORK;
use super::upstream::{self, UPSTREAM, UpstreamSpec};
use crate::keys;
use crate::keys::KeyRule;
use crate::keys::kinds::{
    Custom, DistinctList, Flag, List, Or, ParsedText, SubMap, Time, Whole, flag, list, refused, section, set, time,
    whole,
};
use crate::text::fingerprint::Fingerprint;
use crate::text::read::NodeReader;

/// APISIX `stream_route`.
#[derive(Clone, Debug)]
pub struct StreamRouteSpec {
    pub origin: ResourceOrigin,
    /// The fingerprint of the whole stream route, with its id.
    pub content: Fingerprint,
    pub id: Box<str>,
    pub name: Box<str>,
    /// In lower case; empty: any name, and none.
    pub snis: Vec<String>,
    pub remote_addr: Option<IpNet>,
    pub server_addr: Option<IpNet>,
    pub server_port: Option<u16>,
    /// Not in APISIX.
    pub listeners: Vec<Reference>,
    pub tls_passthrough: bool,
    /// Not in APISIX.
    pub idle_timeout: Option<Duration>,
    pub plugins: PluginSpecs,
    pub service_id: Option<Reference>,
    pub upstream_id: Option<Reference>,
    pub upstream: Option<Box<UpstreamSpec>>,
}

keys! {
    /// Which connections are carried as they are, without HTTP, and where to. They come from listeners with `protocol: tcp` or `udp`.
    pub(super) static STREAM_ROUTE: StreamRouteKeys = "stream_route", shared COMMON, rules &[
        KeyRule::AnyOf {
            keys: &["upstream", "upstream_id", "service_id"],
            problem: "does not say where connections go",
            advice: "add `upstream`, `upstream_id` or `service_id`",
        },
        KeyRule::AtMostOne("sni", "snis"),
        KeyRule::AtMostOne("upstream", "upstream_id"),
    ];

    /// The port on which the client has connected.
    server_port: Whole<u16> = whole(1, u16::MAX), absent("any"), example("9100"), guide("stream.md");
    /// The address on which the client has connected, or a range of addresses.
    server_addr: ParsedText<String> = NETWORK, absent("any"), example("10.0.0.5");
    /// The address of the client, or a range of addresses.
    remote_addr: ParsedText<String> = NETWORK, absent("any"), example("10.0.0.0/8");
    /// The server name in the TLS handshake, or a wildcard such as `*.example.com`, which stands for any number of labels.
    sni: ParsedText<String> = host(), absent("any, and none"), example("db.example.com");
    /// Several server names. `*` is any, and none.
    snis: DistinctList<ParsedText<String>> = set(host()), absent("any, and none"),
        example("[db.example.com, \"*.db.example.com\"]");
    /// The listeners over TCP whose connections are taken, by their ids.
    listeners: List<IdOf> = list(id_of("listeners")).not_empty("leave it out for all listeners"), own(), absent("any"),
        example("[databases]"), guide("stream.md#which-stream-route-takes-a-connection");
    /// Whether TLS is passed through to the endpoint, on a listener that has both `tls` and `tls_passthrough`. Otherwise it ends here, with
    /// the certificates of `ssls`.
    tls_passthrough: Or<Flag> = flag().or(false), guide("stream.md#tls-passed-through");
    /// How long nothing may come from either side before the connection is closed.
    idle_timeout: Time = time(), own(), absent("the longer of `timeout.read` and `timeout.send` of the upstream, or 10 minutes"),
        example("1h");
    /// The plugins that are applied, each with its options. Not every plugin works without HTTP.
    plugins: Custom<PluginSpecs> = PLUGINS, example("{ ip-restriction: { whitelist: [10.0.0.0/8] } }"),
        guide("stream.md#plugins");
    /// The upstream that connections go to.
    upstream: SubMap<UpstreamSpec> = section(&UPSTREAM, upstream::of_fields);
    /// The same by its id.
    upstream_id: IdOf = id_of("upstreams");
    /// The service that provides the upstream, if the stream route has none, and further plugins.
    service_id: IdOf = id_of("services");

    refused {
        protocol: refused("names a protocol for xRPC, which Weir does not read",
            "leave it out: the bytes are carried as they are, whatever their protocol");
    }
}

pub(super) fn read(at: &NodeReader, index: usize) -> Option<StreamRouteSpec> {
    let fields = at.keys(&STREAM_ROUTE)?;
    let id = resource::id(&fields, index);
    let network = |text: Option<String>| text.and_then(|text| parse_network(&text));
    let mut snis = fields.read(&STREAM_ROUTE.snis).unwrap_or_default();
    snis.extend(fields.read(&STREAM_ROUTE.sni));
    if snis.iter().any(|name| name == "*") {
        snis.clear();
    }
    Some(StreamRouteSpec {
        origin: ResourceOrigin::of(at),
        content: Fingerprint::of(("stream_route", &id, Fingerprint::of_node(at.node()))),
        id,
        name: resource::common(&fields),
        snis,
        remote_addr: network(fields.read(&STREAM_ROUTE.remote_addr)),
        server_addr: network(fields.read(&STREAM_ROUTE.server_addr)),
        server_port: fields.read(&STREAM_ROUTE.server_port),
        listeners: fields.read(&STREAM_ROUTE.listeners).unwrap_or_default(),
        tls_passthrough: fields.value(&STREAM_ROUTE.tls_passthrough),
        idle_timeout: fields.read(&STREAM_ROUTE.idle_timeout),
        plugins: fields.read(&STREAM_ROUTE.plugins).unwrap_or_default(),
        service_id: fields.read(&STREAM_ROUTE.service_id),
        upstream_id: fields.read(&STREAM_ROUTE.upstream_id),
        upstream: fields.read(&STREAM_ROUTE.upstream).map(Box::new),
    })
}
