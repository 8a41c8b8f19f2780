//! The keys of an upstream.

use weir_discovery::DiscoveryType;
use weir_gateway::snapshot::{AllDownPolicy, Concurrency, Keepalive, Queue, Timeouts};
use weir_net::proxy_protocol::ProxyProtocolVersion;
use weir_proto::h1::Tolerance;

use super::super::balance::{self, BalanceType, HashOn};
use super::super::certificate::{self, UPSTREAM_TLS, UpstreamTls};
use super::super::checks::{self, CHECKS, ReadChecks};
use super::super::persistence::{self, PERSISTENCE, PersistenceSpec};
use super::super::resource::{COMMON, host};
use super::super::scheme::{SCHEMES, Scheme};
use super::nodes_schema;
use crate::keys;
use crate::keys::kinds::{
    AnyWhole, ByteSize, Custom, Flag, Form, List, Or, ParsedText, SubMap, Text, Time, Whole, Words, any_text, any_time,
    any_whole, custom, flag, form, list, refused, section, size, text, time, whole, words,
};

keys! {
    /// Where requests are sent: the endpoints, how one of them is chosen, and how it is reached.
    pub(in crate::document) static UPSTREAM: UpstreamKeys = "upstream", shared COMMON;

    /// How an endpoint is chosen for a request. `random`, `least_time` and `ip_hash` are not in APISIX.
    r#type: Or<Words<BalanceType>> = words(balance::TYPES).or(BalanceType::RoundRobin), guide("balancing.md");
    /// The endpoints: a map from `host:port` to a weight, or a list of maps. The default port is that of `scheme`. IPv6 addresses are
    /// written in brackets: `"[::1]:8080"`. A node with weight 0 is drained: it keeps its clients and gets no new ones.
    nodes: Form = form("map: `host:port` to a weight; or a list of maps", nodes_schema).with(&super::NODE),
        example("{ \"10.0.0.1:8080\": 2, \"10.0.0.2:8080\": 1 }");
    /// The path of a file with the content of `nodes`, relative to the directory of the configuration. It is read again when it changes.
    nodes_file: Text = text(1, 4_096), own(), example("nodes.yaml");
    /// What is hashed with `type: chash`: a variable, a header, a cookie, the name of the consumer, or a text with variables.
    hash_on: Or<Words<HashOn>> = words(balance::HASH_ON).or(HashOn::Vars), guide("balancing.md#consistent-hashing");
    /// The variable, header, cookie or text that is hashed with `type: chash`.
    key: Text = any_text(), example("remote_addr"), guide("balancing.md#consistent-hashing");
    /// Health checks: requests that Weir sends to endpoints, and the results of ordinary traffic.
    checks: SubMap<ReadChecks> = section(&CHECKS, checks::read), guide("balancing.md#health");
    /// How many further endpoints are tried after the first.
    retries: Whole<u32> = whole(0, 65_535), absent("the number of nodes minus 1");
    /// No retry starts later than this time after the first attempt. 0 is no limit.
    retry_timeout: Time = any_time(), absent("no limit"), example("5s");
    /// The most retries, in percent of the requests that each worker has for this upstream. Each worker starts with a budget of 20
    /// retries. The default is enough for an endpoint that fails now and then, and too little to make an outage worse.
    retry_budget: Or<Whole<u32>> = whole(0, 1_000).or(20), own(), unit("%");
    /// What besides a failed connection is a reason to try another endpoint, if the method is idempotent: no response within
    /// `timeout.read`, and responses with these statuses, by the names of nginx. The first endpoint may have processed the request.
    retry_on: List<Words<Option<u16>>> = list(words(super::RETRY_REASONS)), own(), absent("nothing else"),
        example("[http_502, http_503]");
    /// Whether a retry goes to an endpoint that has been tried when no other is left. The default lets a request try each endpoint once.
    retry_same_endpoint: Or<Flag> = flag().or(false), own();
    /// What happens while every endpoint is out of rotation: `try` sends requests to them anyway, `refuse` answers with 503 at once.
    all_down: Or<Words<AllDownPolicy>> = words(super::ALL_DOWN).or(AllDownPolicy::Try), own();
    /// Malformed HTTP/1 responses that are passed on in place of a 502: statuses from 600 to 999, and several `Content-Length` fields
    /// of equal value.
    tolerate: List<Words<Tolerance>> = list(words(super::TOLERABLE)), own(), absent("none"), example("[extended_status]");
    /// The largest head of a response: status line and header fields together, after decompression with HTTP/2. A larger one is
    /// answered with 502 (`upstream_head_too_large`) and says nothing about the health of the endpoint.
    response_max_header_size: Or<ByteSize> = size(1 << 10, 1 << 20).or(64 << 10), own();
    /// The most header fields of a response; more are answered in the same way.
    response_max_header_count: Or<Whole<u32>> = whole(1, super::MAX_FIELDS).or(super::MAX_FIELDS), own();
    /// How long connecting, sending and reading may take.
    timeout: SubMap<Timeouts> = section(&TIMEOUT, super::timeouts), absent("60 s each");
    /// The protocol: `http`, `https`, or HTTP/2 without TLS (`grpc`) and with it (`grpcs`). The default port of nodes is 443 with TLS and
    /// 80 without. For stream routes: `tcp`, `tls` or `udp`, whose nodes need a port.
    scheme: Or<Words<Scheme>> = words(SCHEMES)
        .not_yet(&["kafka"], "write `http`, `https`, `grpc` or `grpcs`, or for stream routes `tcp`, `tls` or `udp`")
        .or(Scheme::Http), guide("tls.md#to-upstreams");
    /// Use HTTP/2 to the endpoints.
    http2: Or<Flag> = flag().or(false), own(), guide("http2.md#to-upstreams");
    /// The version of the PROXY header with the client's address that each connection begins with, before TLS. A connection is then
    /// reused for the same client only. It cannot be combined with HTTP/2.
    proxy_protocol: Words<ProxyProtocolVersion> = words(super::PROXY_VERSIONS), own(), absent("none");
    /// The `Host` that is sent: the client's (`pass`), the host of the node (`node`), or that of `upstream_host` (`rewrite`).
    pass_host: Or<Words<super::HostChoice>> = words(super::HOSTS).or(super::HostChoice::Pass);
    /// The `Host` that is sent with `pass_host: rewrite`.
    upstream_host: ParsedText<String> = host(), example("api.example.com");
    /// The pool of idle connections, for each worker and endpoint.
    keepalive_pool: SubMap<Keepalive> = section(&KEEPALIVE_POOL, super::keepalive);
    /// The most requests that one worker may have in flight at an endpoint: a number, `auto` (found by measuring), or `unlimited`.
    concurrency: Custom<Concurrency> = custom("`auto`, `unlimited`, or a whole number, 1 to 1000000",
        super::concurrency_schema, super::concurrency), own(), absent("`auto`"), example("64"), guide("balancing.md#requests-in-flight");
    /// Requests that wait for a permit of an endpoint.
    queue: SubMap<Queue> = section(&QUEUE, super::queue), own(), guide("balancing.md#waiting-for-a-permit");
    /// The time over which the share of an endpoint grows to its full value, after it was added or has returned to rotation.
    slow_start: Time = any_time(), own(), absent("the whole share at once"), example("30s"), guide("balancing.md#slow-start");
    /// How clients stay with their endpoint.
    persistence: SubMap<PersistenceSpec> = section(&PERSISTENCE, persistence::read), own(), absent("they need not"),
        guide("balancing.md#persistence");
    /// Certificates, and how those of the endpoints are verified.
    tls: SubMap<UpstreamTls> = section(&UPSTREAM_TLS, certificate::read_upstream), guide("tls.md#to-upstreams");
    /// The service whose instances are the nodes, in DNS or in a registry. `name:port` in DNS is one node; a name without a port is looked up
    /// as SRV records.
    service_name: Text = any_text(), example("orders");
    /// Where `service_name` is looked up.
    discovery_type: DiscoveryType = DiscoveryType, example("dns");

    refused {
        discovery_args: refused("is not supported yet by this version", "leave it out");
    }
}

keys! {
    /// How long steps of an exchange with an upstream may take.
    pub(in crate::document) static TIMEOUT: TimeoutKeys = "timeout";

    /// For opening a connection, TLS included.
    connect: Time = time(), required("add `connect: 60`"), example("5s");
    /// Between two writes of a request.
    send: Time = time(), required("add `send: 60`"), example("60s");
    /// Until a response begins, and between two reads of it.
    read: Time = time(), required("add `read: 60`"), example("60s");
}

keys! {
    /// The pool of idle connections to an endpoint, for each worker.
    pub(in crate::document) static KEEPALIVE_POOL: KeepaliveKeys = "keepalive_pool";

    /// The most idle connections.
    size: Or<Whole<u32>> = whole(1, 1_000_000).or(320);
    /// How long a connection may be idle. 0 is no limit.
    idle_timeout: Or<Time> = any_time().or(std::time::Duration::from_secs(60));
    /// The most requests over one connection.
    requests: Or<Whole<u32>> = whole(1, u32::MAX).or(1_000);
}

keys! {
    /// Requests that wait for a permit of an endpoint.
    pub(in crate::document) static QUEUE: QueueKeys = "queue";

    /// The most waiting requests, for each worker and endpoint. With 0, no request waits.
    size: Or<Whole<u32>> = whole(0, 1_000_000).or(16_384), own();
    /// The longest time that a request waits.
    timeout: Time = any_time(), own(), absent("`timeout.connect`"), example("2s");
}

keys! {
    /// A node of an upstream: a host, which may have several addresses, and a port.
    pub(in crate::document) static NODE: NodeKeys = "node";

    /// An address or a host name, without a port.
    host: Text = any_text(), required("add `host: 127.0.0.1`"), example("10.0.0.1");
    /// The port.
    port: Whole<u16> = whole(1, 65_535), absent("80, or 443 with TLS; none for stream routes");
    /// The share of requests, in relation to the weights of the other nodes. With 0 the node is drained.
    weight: Or<Whole<u32>> = whole(0, super::MAX_WEIGHT).or(1), required("add `weight: 1`");
    /// Nodes of the highest priority are used first; others while none of a higher one is usable.
    priority: Or<AnyWhole> = any_whole().or(0);
    /// Anything; it has no effect.
    metadata: Custom<()> = custom("map", |_| serde_json::json!({ "type": "object" }), |at| at.entries().map(drop));
}
