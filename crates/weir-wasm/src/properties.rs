//! The properties of an exchange and of the plugin, by the names of Envoy's attributes. A path has a NUL between its parts. Numbers are
//! eight bytes, the lowest first; times are nanoseconds.

use weir_plugin::Exchange;
use weir_proto::RequestHead;

use crate::pairs;
use crate::state::{Access, HostState};

/// The value of a property; `None` if there is none, or not in this call.
pub(crate) fn get(state: &mut HostState, path: &[u8]) -> Option<Vec<u8>> {
    let set = state.current().and_then(|context| context.properties.as_ref());
    if let Some(value) = set.and_then(|set| set.values.get(path)) {
        return Some(value.clone());
    }
    let parts: Vec<&[u8]> = path.split(|byte| *byte == 0).filter(|part| !part.is_empty()).collect();
    let exchange: &Exchange = &state.exchange;
    match *parts.first()? {
        b"plugin_name" => return Some(state.facts.name.into()),
        // Each configuration of a plugin has instances of its own, so these two tell nothing apart.
        b"plugin_root_id" | b"plugin_vm_id" => return Some(Vec::new()),
        b"listener_direction" => return Some(number(1)),
        _ => {}
    }
    if state.rights.request == Access::None {
        return None;
    }
    match (parts[0], parts.get(1).copied(), parts.get(2).copied()) {
        (b"request", Some(name), field) => of_request(exchange, name, field),
        (b"response", Some(name), field) if state.rights.response != Access::None => of_response(exchange, name, field),
        (b"source", Some(b"address"), _) => Some(format!("{}", address(exchange)).into_bytes()),
        (b"source", Some(b"port"), _) => Some(number(exchange.client.port.into())),
        (b"destination", Some(b"address"), _) => Some(exchange.client.local.to_string().into_bytes()),
        (b"destination", Some(b"port"), _) => Some(number(exchange.client.local.port().into())),
        (b"connection", Some(name), _) => of_connection(exchange, name),
        (b"upstream", Some(b"address"), _) => exchange.upstream.addr.map(|addr| addr.to_string().into_bytes()),
        (b"upstream", Some(b"port"), _) => exchange.upstream.addr.map(|addr| number(addr.port().into())),
        (b"route_name", ..) | (b"xds", Some(b"route_name"), _) => of_route(exchange),
        (b"cluster_name", ..) | (b"xds", Some(b"cluster_name"), _) => {
            exchange.route.as_ref().map(|route| route.service_id.as_bytes().to_vec())
        }
        _ => None,
    }
}

fn number(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn truth(value: bool) -> Vec<u8> {
    vec![value.into()]
}

/// The client's address with its port, as plugins and logs of the gateway know it.
fn address(exchange: &Exchange) -> std::net::SocketAddr {
    std::net::SocketAddr::new(exchange.client.addr, exchange.client.port)
}

fn of_route(exchange: &Exchange) -> Option<Vec<u8>> {
    let route = exchange.route.as_ref()?;
    let name = if route.route_name.is_empty() { &route.route_id } else { &route.route_name };
    Some(name.as_bytes().to_vec())
}

fn of_request(exchange: &Exchange, name: &[u8], field: Option<&[u8]>) -> Option<Vec<u8>> {
    let head = &exchange.request;
    let value = |name: &[u8]| head.head.value(name).map(<[u8]>::to_vec);
    match name {
        b"path" => Some(path(head)),
        b"url_path" => Some(head.unmerged_path().to_vec()),
        b"query" => Some(head.query().unwrap_or_default().to_vec()),
        b"host" => Some(head.authority().to_vec()),
        b"scheme" => Some(exchange.scheme().into()),
        b"method" => Some(head.method_name().to_vec()),
        b"protocol" => Some(head.version.name().into()),
        b"headers" => match field {
            Some(name) => value(name),
            None => Some(pairs::encode(head.head.fields().collect::<Vec<_>>().into_iter())),
        },
        b"referer" => value(b"referer"),
        b"useragent" => value(b"user-agent"),
        b"id" if !exchange.request_id().is_empty() => Some(exchange.request_id().to_vec()),
        b"id" => value(b"x-request-id"),
        b"size" | b"total_size" => Some(number(exchange.request_bytes)),
        b"duration" if exchange.ended_ns > 0 => Some(number(exchange.ended_ns - exchange.started_ns)),
        _ => None,
    }
}

fn of_response(exchange: &Exchange, name: &[u8], field: Option<&[u8]>) -> Option<Vec<u8>> {
    let head = &exchange.response;
    match name {
        b"code" => Some(number(head.status.into())),
        b"headers" => match field {
            Some(name) => head.head.value(name).map(<[u8]>::to_vec),
            None => Some(pairs::encode(head.head.fields().collect::<Vec<_>>().into_iter())),
        },
        b"size" => Some(number(exchange.body_bytes)),
        b"total_size" => Some(number(exchange.response_bytes)),
        _ => None,
    }
}

fn of_connection(exchange: &Exchange, name: &[u8]) -> Option<Vec<u8>> {
    let tls = exchange.tls.as_deref();
    let certificate = tls.and_then(|tls| tls.certificate.as_ref());
    match name {
        b"id" => Some(number(exchange.client.connection)),
        b"mtls" => Some(truth(certificate.is_some())),
        b"requested_server_name" => Some(tls?.server_name.as_deref()?.as_bytes().to_vec()),
        b"tls_version" => Some(tls?.version.into()),
        b"subject_peer_certificate" => Some(certificate?.subject.as_bytes().to_vec()),
        b"uri_san_peer_certificate" => first(&certificate?.san_uri),
        b"dns_san_peer_certificate" => first(&certificate?.san_dns),
        _ => None,
    }
}

/// The first name of a list.
fn first(names: &str) -> Option<Vec<u8>> {
    names.split(',').next().filter(|name| !name.is_empty()).map(|name| name.as_bytes().to_vec())
}

/// Path and query as they are forwarded.
pub(crate) fn path(head: &RequestHead) -> Vec<u8> {
    let mut path = Vec::new();
    write_path(head, &mut path);
    path
}

pub(crate) fn write_path(head: &RequestHead, out: &mut Vec<u8>) {
    out.extend_from_slice(head.unmerged_path());
    if let Some(query) = head.query() {
        out.push(b'?');
        out.extend_from_slice(query);
    }
}
