//! How the node treats clients: limits and times of their connections and requests.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use weir_gateway::snapshot::{ClientSettings, ConnectionShare, TracedClients};
use weir_plugin::HeldLimits;
use weir_proto::field::is_token_byte;
use weir_proto::limits::{Limits, MAX_FIELDS};

use super::super::network::network;
use crate::keys;
use crate::keys::kinds::{
    ByteSize, Flag, List, Or, ParsedText, Time, Whole, any_text, flag, list, size, text, time, whole,
};
use crate::text::read::{MapReader, NodeReader, shortened};

/// The most concurrent streams that can be set: each stream can hold memory that its client does not release.
const MOST_STREAMS: u32 = 10_000;
const MOST_HEAD: u64 = 1 << 20;
const MOST_HELD: u64 = 1 << 40;

const UNLIMITED_CONNECTIONS: &str =
    "0 is no limit; without this setting, a client address may have half of the connections that the node has room for";

keys! {
    /// Connections and requests of clients.
    pub(super) static CLIENTS: ClientsKeys = "clients";

    /// Addresses and address ranges of trusted peers. Only from these Weir accepts the headers whose names begin with `X-Forwarded-`,
    /// and `X-Real-IP`, `X-Original-URL` and `Forwarded`. In requests from all other peers, these headers are overwritten or removed.
    /// Only trusted peers may connect to an address with `proxy_protocol: true`.
    trusted_addresses: List<ParsedText<IpNet>> = list(any_text().parsed(network)), absent("none"), example("[10.0.0.0/8]"),
        guide("security.md");
    /// The longest time from accepting a TLS connection to the end of the TLS handshake.
    ssl_handshake_timeout: Or<Time> = time().or(Duration::from_secs(10)), own();
    /// The longest time from accepting a connection to the first byte of the first request, or to the first stream over HTTP/2. If
    /// `keepalive_timeout` is shorter, that applies instead.
    client_first_byte_timeout: Or<Time> = time().or(Duration::from_secs(60)), own();
    /// The most simultaneous connections from one client address (for IPv6: from one /64), over all workers. Further connections are
    /// reset. 0 is no limit. Clients in `trusted_addresses` have no limit; without this setting, clients on the same machine have none either.
    client_max_connections: Whole<u32> = whole(0, u32::MAX).instead_of_word(UNLIMITED_CONNECTIONS), own(), absent("half of those that the node has room for"), example("1000");
    /// The longest time from the first to the last byte of a request head.
    client_header_timeout: Or<Time> = time().or(Duration::from_secs(10));
    /// The largest request head: request line and header fields together. A larger one is answered with 431.
    client_max_header_size: Or<ByteSize> = size(1 << 10, MOST_HEAD).or(32 << 10), own();
    /// The most header fields of a request. A request with more is answered with 431.
    client_max_header_count: Or<Whole<u32>> = whole(1, MAX_FIELDS as u32).or(100), own();
    /// The longest path and query together. A longer one is answered with 414.
    client_max_uri_size: Or<ByteSize> = size(1 << 8, MOST_HEAD).or(16 << 10), own();
    /// The largest request body. 0 is no limit. A larger one is answered with 413.
    client_max_body_size: Or<ByteSize> = size(0, u64::MAX).or(0);
    /// The lowest average rate of a request body. 0 is no minimum. A slower one is answered with 408.
    client_body_min_rate: Or<ByteSize> = size(0, u64::MAX).or(240), own(), unit("bytes/s");
    /// The time from the start of a request body after which `client_body_min_rate` is enforced.
    client_body_grace: Or<Time> = time().or(Duration::from_secs(10)), own();
    /// The most content that the node holds in memory at a time: messages that plugins need whole, copies for logs and mirrors, events
    /// that `sse-fanout` keeps, and log records that wait to be sent. Above it, a request that needs memory is answered with 503, and
    /// copies are cut off.
    held_content_max: Or<ByteSize> = size(1 << 20, MOST_HELD).or(256 << 20), own();
    /// The same for one client address. Above it, a request is answered with 413. Raise it if all clients connect through one load
    /// balancer that is not in `trusted_addresses`.
    held_content_max_per_client: ByteSize = size(1 << 16, MOST_HELD), own(), absent("a quarter of `held_content_max`"), example("128MiB");
    /// How long an exchange continues after the client has closed the sending side of its connection.
    client_half_close_timeout: Or<Time> = time().or(Duration::from_secs(1)), own();
    /// How long a connection may be idle before the next request.
    keepalive_timeout: Or<Time> = time().or(Duration::from_secs(75));
    /// The most requests on one connection, which is closed afterwards. 0 is no limit.
    keepalive_requests: Or<Whole<u32>> = whole(0, u32::MAX).or(0), own();
    /// Whether clients may use HTTP/2.
    enable_http2: Or<Flag> = flag().or(true), guide("http2.md");
    /// The most concurrent requests on one HTTP/2 connection.
    http2_max_concurrent_streams: Or<Whole<u32>> = whole(1, MOST_STREAMS).or(128), own();
    /// Clients whose connections over HTTP/3 are traced, as addresses and address ranges: each connection in a file (qlog) in the
    /// directory `qlog` of `data_dir`, of 4 MiB at most. With 100 files, no more are written.
    http3_qlog: List<ParsedText<IpNet>> = list(any_text().parsed(network)), own(), absent("none"), example("[192.0.2.7]"),
        guide("http3.md#traces");
    /// How long Weir waits for a client that does not read the response.
    send_timeout: Or<Time> = time().or(Duration::from_secs(30));
    /// If the target of a request is absolute (`GET http://a.example/`) and `Host` names another authority, route the request to
    /// `a.example`, as RFC 9112 §3.2.2 specifies. Otherwise such a request is answered with 400.
    absolute_target_replaces_host: Or<Flag> = flag().or(false), own(), compiles_routes();
    /// The name of the gateway in the header `Via` (RFC 9110 §7.6.3) of forwarded requests and responses. Weir does not detect loops.
    via: ParsedText<Box<str>> = text(1, 255).pattern("^[!#$%&'*+.^_`|~0-9A-Za-z:\\[\\]-]+$").parsed(via), own(), absent("no `Via`"),
        example("edge-1");
    /// Answer requests with `;` or `%3B` in the path with 400, for upstreams that read `/admin;x` as `/admin`, as Java servlets do.
    refuse_path_parameters: Or<Flag> = flag().or(false), own(), compiles_routes();
    /// Forward header fields with `_` in their names. Otherwise they are removed.
    underscores_in_headers: Or<Flag> = flag().or(false), compiles_routes();
}

pub(super) fn read(fields: &MapReader) -> ClientSettings {
    let node = fields.value(&CLIENTS.held_content_max);
    let share = fields.read(&CLIENTS.held_content_max_per_client);
    ClientSettings {
        limits: Limits {
            head_bytes: in_memory(fields.value(&CLIENTS.client_max_header_size)),
            fields: fields.value(&CLIENTS.client_max_header_count) as usize,
            target_bytes: in_memory(fields.value(&CLIENTS.client_max_uri_size)),
            underscores_in_names: fields.value(&CLIENTS.underscores_in_headers),
            target_replaces_host: fields.value(&CLIENTS.absolute_target_replaces_host),
            refuse_path_parameters: fields.value(&CLIENTS.refuse_path_parameters),
        },
        handshake_timeout: fields.value(&CLIENTS.ssl_handshake_timeout),
        body_bytes: Some(fields.value(&CLIENTS.client_max_body_size)).filter(|most| *most > 0),
        header_timeout: fields.value(&CLIENTS.client_header_timeout),
        body_min_rate: fields.value(&CLIENTS.client_body_min_rate),
        body_grace: fields.value(&CLIENTS.client_body_grace),
        idle_timeout: fields.value(&CLIENTS.keepalive_timeout),
        first_byte_timeout: fields.value(&CLIENTS.client_first_byte_timeout),
        write_timeout: fields.value(&CLIENTS.send_timeout),
        keepalive_requests: Some(fields.value(&CLIENTS.keepalive_requests)).filter(|most| *most > 0).map(u64::from),
        http2: fields.value(&CLIENTS.enable_http2),
        concurrent_streams: fields.value(&CLIENTS.http2_max_concurrent_streams),
        half_close_timeout: fields.value(&CLIENTS.client_half_close_timeout),
        via: fields.read(&CLIENTS.via),
        connections: match fields.read(&CLIENTS.client_max_connections) {
            None => ConnectionShare::default(),
            Some(0) => ConnectionShare::Unlimited,
            Some(most) => ConnectionShare::AtMost(most),
        },
        held: HeldLimits { node, client: share.unwrap_or(node / 4) },
        trusted_addresses: fields.read(&CLIENTS.trusted_addresses).unwrap_or_default(),
        traced: TracedClients {
            networks: fields.read(&CLIENTS.http3_qlog).unwrap_or_default(),
            // It depends on the place of the file.
            directory: PathBuf::new(),
        },
    }
}

/// The bound of the key keeps the size below that of the memory.
fn in_memory(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Parses a pseudonym: the `received-by` of RFC 9110 §7.6.3.
fn via(at: &NodeReader, text: &str) -> Option<Box<str>> {
    if text.bytes().all(|byte| is_token_byte(byte) || b":[]".contains(&byte)) {
        return Some(text.into());
    }
    let problem = format!("`{}` is neither a name nor a host with a port", shortened(text));
    at.report_advising(problem, "write one word, such as `edge-1` or `proxy.example.com:443`");
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::NodeSettings;

    #[test]
    fn defaults_are_those_of_the_gateway() {
        let declared = NodeSettings::default().clients;
        assert_eq!(format!("{declared:?}"), format!("{:?}", ClientSettings::default()));
    }
}
