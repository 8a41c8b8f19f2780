//! What URLs in annotations and policies may lead to. They are written by users of a namespace, and the node sends the requests: from it, the
//! node's own services and those of its machine would be reached.

use std::net::IpAddr;

/// Refuses a URL whose host is the node itself or an address of its link, such as a cloud's metadata service. A name that resolves to
/// such an address is not found out here.
///
/// # Errors
/// The reason.
pub fn check(url: &str) -> Result<(), String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = &rest[..rest.find(['/', '?', '#', '$']).unwrap_or(rest.len())];
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    // An address without a port may be written without brackets.
    let name = if host.parse::<IpAddr>().is_ok() { host } else { name };
    let lower = name.trim_end_matches('.').to_ascii_lowercase();
    let is_local = match lower.parse::<IpAddr>() {
        Ok(address) => is_near(address.to_canonical()),
        Err(_) => lower == "localhost" || lower.ends_with(".localhost") || lower == "unix" || is_odd_address(&lower),
    };
    match is_local {
        true => Err(format!("`{url}` leads to the node itself or its link, which users of a namespace cannot reach")),
        false => Ok(()),
    }
}

/// Whether some programs read a name as an address: `127.1`, `0x7f000001`.
fn is_odd_address(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_hexadecimal = last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_hexadecimal || !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_unspecified() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local(),
    }
}

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
        ] {
            assert!(check(url).is_err(), "{url}");
        }
        for url in [
            "http://auth.example/verify",
            "http://10.0.0.8:8080",
            "https://[2001:db8::1]/",
            "http://localhost.example",
            "redis",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
    }
}
