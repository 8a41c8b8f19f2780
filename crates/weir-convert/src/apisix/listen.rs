//! Converts the addresses for clients: `node_listen`, `ssl.listen`, `proxy_protocol` and `stream_proxy`.

use super::{NodeConversion, stream};
use crate::document::{DocumentValue, ValueKind};
use crate::yaml::Yaml;

/// The protocols at the beginning of connections to an address.
#[derive(Clone, Copy, PartialEq, Eq)]
struct AddressKind {
    tls: bool,
    http3: bool,
    proxy_protocol: bool,
    /// Where no address is named, it is all of IPv4 in place of all of both.
    ipv4_alone: bool,
}

pub(super) fn carry_over(settings: &mut NodeConversion) {
    let mut all = Vec::new();
    let ipv4_alone = settings.text("apisix.enable_ipv6") == Some("false");
    let plain = AddressKind { tls: false, http3: false, proxy_protocol: false, ipv4_alone };
    let tls = AddressKind { tls: true, ..plain };
    match settings.take("apisix.node_listen") {
        Some(listen) => addresses(settings, listen, plain, "9080", &mut all),
        None => all.push(address(None, "9080", plain)),
    }
    let is_tls = settings.text("apisix.ssl.enable").is_none_or(|text| text == "true");
    match settings.take("apisix.ssl.listen").filter(|_| is_tls) {
        Some(listen) => addresses(settings, listen, tls, "9443", &mut all),
        None if is_tls => all.push(address(None, "9443", tls)),
        None => {}
    }
    let announced = [("listen_http_port", plain), ("listen_https_port", tls)];
    let before = all.len();
    for (member, kind) in announced {
        if let Some(port) = settings.text(&format!("apisix.proxy_protocol.{member}")) {
            all.push(address(None, port, AddressKind { proxy_protocol: true, ..kind }));
        }
    }
    if all.len() > before
        && settings.take("apisix.trusted_addresses").is_none()
        && let Some(at) = settings.conversion.root.at_pointer("#/apisix/proxy_protocol")
    {
        let text = "`apisix.proxy_protocol`: only `trusted_addresses` may connect to these ports; add the load balancers' addresses";
        settings.conversion.differs(at, text);
    }
    all.extend(stream::addresses(settings, ipv4_alone));
    settings.set("listen", Yaml::List(all));
}

/// A port, or a list of ports and of maps with `ip` and `port`.
fn addresses(settings: &mut NodeConversion, at: &DocumentValue, kind: AddressKind, port: &str, all: &mut Vec<Yaml>) {
    if let Some(port) = at.as_text() {
        return all.push(address(None, port, kind));
    }
    let items = if matches!(at.kind, ValueKind::List(_)) { at.items() } else { std::slice::from_ref(at) };
    for item in items {
        // `enable_quic` is the name before APISIX 3.9.
        let is_quic = ["enable_http3", "enable_quic"].iter().any(|name| item.is_true(name, false));
        let kind = AddressKind { http3: is_quic && kind.tls, ..kind };
        all.push(address(item.text("ip"), item.as_text().or_else(|| item.text("port")).unwrap_or(port), kind));
        report_others(settings, item);
        if is_quic && !kind.tls {
            settings.conversion.lost(item, "`enable_http3` without TLS: HTTP/3 needs an address of `ssl.listen`");
        }
        // `enable_http2` needs nothing: an address in the clear serves HTTP/2 to clients that begin with it.
    }
}

/// Reports members of an entry that are not converted.
fn report_others(settings: &mut NodeConversion, item: &DocumentValue) {
    const KNOWN: [&str; 5] = ["ip", "port", "enable_http2", "enable_http3", "enable_quic"];
    for (name, value) in item.members().iter().filter(|(name, _)| !KNOWN.contains(&name.as_str())) {
        settings.conversion.lost(value, format!("`{name}` of an address: there is no such setting"));
    }
}

fn address(ip: Option<&str>, port: &str, kind: AddressKind) -> Yaml {
    let ip = ip.filter(|ip| !["0.0.0.0", "*"].contains(ip)).unwrap_or(if kind.ipv4_alone { "0.0.0.0" } else { "" });
    let text = Yaml::text(if ip.contains(':') && !ip.starts_with('[') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    });
    let mut members = vec![("address".to_owned(), text.clone())];
    let marks = [("tls", kind.tls), ("http3", kind.http3), ("proxy_protocol", kind.proxy_protocol)];
    members
        .extend(marks.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| ((*name).to_owned(), Yaml::Boolean(true))));
    if members.len() == 1 { text } else { Yaml::Map(members) }
}
