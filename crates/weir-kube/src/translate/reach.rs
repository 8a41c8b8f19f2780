//! What URLs in annotations and policies may lead to. They are written by users of a namespace, and the node sends the requests: from it, the
//! node's own services and those of its machine would be reached.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Refuses a URL whose host is the node itself or an address of its link, such as a cloud's metadata service. A name that resolves to
/// such an address is not found out here.
///
/// # Errors
/// The reason.
pub fn check(url: &str) -> Result<(), String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = &rest[..rest.find(['/', '?', '#', '$']).unwrap_or(rest.len())];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let Some(names) = names(host) else {
        return Err(format!(
            "`{url}` has no host that can be checked: write `name:port`, or `[address]:port` for IPv6"
        ));
    };
    match names.into_iter().any(is_local) {
        true => Err(format!("`{url}` leads to the node itself or its link, which users of a namespace cannot reach")),
        false => Ok(()),
    }
}

/// What programs can read as the name in a host with or without a port; `None` if that is not clear.
fn names(host: &str) -> Option<Vec<&str>> {
    let is_odd = |char: char| char.is_whitespace() || char.is_control() || matches!(char, '%' | '\\' | '@');
    if host.is_empty() || host.contains(is_odd) {
        return None;
    }
    if let Some(rest) = host.strip_prefix('[') {
        let (name, port) = rest.split_once(']')?;
        return (port.is_empty() || port.starts_with(':')).then(|| vec![name]);
    }
    let Some((before, _)) = host.rsplit_once(':') else { return Some(vec![host]) };
    if !before.contains(':') {
        return (!before.is_empty()).then(|| vec![before]);
    }
    // An address of IPv6 without brackets: what follows its last colon can be a port.
    let readings: Vec<&str> = [host, before].into_iter().filter(|text| text.parse::<IpAddr>().is_ok()).collect();
    (!readings.is_empty()).then_some(readings)
}

fn is_local(name: &str) -> bool {
    let lower = name.trim_end_matches('.').to_ascii_lowercase();
    match lower.parse::<IpAddr>() {
        Ok(address) => is_near(address.to_canonical()),
        Err(_) => LOCAL_NAMES.contains(&&*lower) || lower.ends_with(".localhost") || is_odd_address(&lower),
    }
}

/// Names that machines have for themselves, and the scheme of Unix sockets.
const LOCAL_NAMES: [&str; 8] =
    ["", "localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "localhost.localdomain", "unix"];

/// Whether some programs read a name as an address: `127.1`, `0x7f000001`.
fn is_odd_address(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_hexadecimal = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_hexadecimal || !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let is_of_cloud = CLOUD_SERVICES.contains(&address);
            let is_everyone = address.is_multicast() || address.is_broadcast() || address.octets()[0] == 0;
            address.is_loopback() || address.is_link_local() || is_everyone || is_of_cloud
        }
        IpAddr::V6(address) => {
            // NAT64 (RFC 6052) has an address of IPv4 within.
            let within = match address.segments() {
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))),
                _ => None,
            };
            let is_own = address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local();
            is_own
                || address.is_multicast()
                || address == CLOUD_SERVICE_V6
                || within.is_some_and(|address| is_near(IpAddr::V4(address)))
        }
    }
}

/// Where clouds serve metadata to a machine beside 169.254.169.254.
const CLOUD_SERVICES: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
const CLOUD_SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_do_not_lead_to_the_node() {
        for url in [
            "http://127.0.0.1:7085/status",
            "http://127.9.9.9",
            "https://[::1]:9180/x",
            "http://[::ffff:127.0.0.1]/",
            "http://localhost/",
            "http://LocalHost.:80$request_uri",
            "http://a.localhost",
            "http://user@127.0.0.1/",
            "http://0.0.0.0:9180",
            "http://169.254.169.254/latest/meta-data",
            "http://[fe80::1]/",
            "::1",
            "127.0.0.1:6379",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f000001/",
            "unix:/run/other.sock",
            "::1:6379",
            "::ffff:127.0.0.1:6379",
            "fe80::1:16379",
            "fe80::1%eth0",
            "http://a\\@127.0.0.1/",
            "http://ip6-localhost:80",
            "http://[64:ff9b::7f00:1]/",
            "http://[::1",
            "http://:80/",
            "http://0.1.2.3/",
            "ff02::1",
            "239.0.0.1:514",
            "http://100.100.100.200/latest",
        ] {
            assert!(check(url).is_err(), "{url}");
        }
        for url in [
            "http://auth.example/verify",
            "http://10.0.0.8:8080",
            "https://[2001:db8::1]/",
            "http://localhost.example",
            "redis",
            "redis:6379",
            "2001:db8::1",
            "[2001:db8::1]:6379",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }
}
