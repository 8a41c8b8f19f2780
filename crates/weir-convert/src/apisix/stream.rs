//! Converts `stream_proxy`: the ports of stream routes.

use super::NodeConversion;
use crate::document::DocumentValue;
use crate::yaml::Yaml;

/// The addresses of `stream_proxy`, as entries of `listen`.
pub(super) fn addresses(settings: &mut NodeConversion, ipv4_alone: bool) -> Vec<Yaml> {
    settings.take("apisix.proxy_mode");
    let announced = settings.text("apisix.proxy_protocol.enable_tcp_pp") == Some("true");
    if let Some(at) = settings.take("apisix.proxy_protocol.enable_tcp_pp_to_upstream")
        && at.as_text() == Some("true")
    {
        to_upstream(settings, at);
    }
    settings.take("apisix.stream_proxy.only");
    let [tcp, udp] = ["tcp", "udp"].map(|protocol| {
        let key = format!("apisix.stream_proxy.{protocol}");
        let items = settings.take(&key).map(DocumentValue::items).unwrap_or_default();
        let announced = announced && protocol == "tcp";
        let listen =
            items.iter().flat_map(|item| ports(settings, item, protocol, StreamDefaults { announced, ipv4_alone }));
        listen.collect::<Vec<Yaml>>()
    });
    [tcp, udp].concat()
}

/// What an entry means that does not say it.
#[derive(Clone, Copy)]
struct StreamDefaults {
    announced: bool,
    /// Where no address is named, it is all of IPv4 in place of all of both.
    ipv4_alone: bool,
}

/// A port, `ip:port`, a range of ports, or a map with `addr`.
fn ports(settings: &mut NodeConversion, item: &DocumentValue, protocol: &str, defaults: StreamDefaults) -> Vec<Yaml> {
    let Some(addr) = item.as_text().or_else(|| item.text("addr")) else { return Vec::new() };
    if item.is_true("proxy_protocol_to_upstream", false) {
        to_upstream(settings, item);
    }
    let (ip, port) = addr.rsplit_once(':').unwrap_or(("", addr));
    let ip = match ip {
        "" | "0.0.0.0" | "*" if defaults.ipv4_alone => "0.0.0.0",
        "0.0.0.0" | "*" => "",
        ip => ip,
    };
    let (first, last) = port.split_once('-').unwrap_or((port, port));
    let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) else {
        settings.conversion.lost(item, format!("`{addr}` is neither a port nor a range of ports"));
        return Vec::new();
    };
    let is_announced = item.is_true("proxy_protocol", defaults.announced);
    let marks = [
        ("tls", item.is_true("tls", false)),
        ("tls_passthrough", item.is_true("tls_passthrough", false)),
        ("proxy_protocol", is_announced),
    ];
    let entry = |port: u16| {
        let text = |value: &str| Yaml::text(value.to_owned());
        let mut members =
            vec![("address".to_owned(), text(&format!("{ip}:{port}"))), ("protocol".to_owned(), text(protocol))];
        let set = marks.iter().filter(|(_, is_set)| *is_set);
        members.extend(set.map(|(name, _)| ((*name).to_owned(), Yaml::Boolean(true))));
        Yaml::Map(members)
    };
    (first..=last).map(entry).collect()
}

fn to_upstream(settings: &mut NodeConversion, at: &DocumentValue) {
    let text = "the PROXY header for endpoints is a matter of the upstream: write `proxy_protocol: v1` there";
    settings.conversion.lost(at, text);
}
