//! Hosts of servers, whose port is another option.

use std::net::Ipv6Addr;

use weir_plugin::ConfigError;

/// Refuses what is no host at `place` of the options, such as a URL, or a host with its port.
pub(crate) fn check(host: &str, place: impl Into<String>) -> Result<(), ConfigError> {
    let is_wrong = |char: char| char.is_whitespace() || "/@".contains(char);
    let has_port = host.contains(':') && host.parse::<Ipv6Addr>().is_err();
    if !host.is_empty() && !host.contains(is_wrong) && !has_port {
        return Ok(());
    }
    let alone = host.rsplit_once("://").map_or(host, |(_, rest)| rest);
    // What is before an `@` may be a password.
    let alone = alone.rsplit_once('@').map_or(alone, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let alone = match alone.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => alone.split(':').next().unwrap_or_default(),
    };
    let problem = match host.contains('@') {
        true => "is neither a host name nor an IP address".to_owned(),
        false => format!("`{host}` is neither a host name nor an IP address"),
    };
    let is_useful = !alone.is_empty() && alone != host && !alone.contains(is_wrong);
    let advice =
        if is_useful { format!("; write `{alone}` here, and the port in its own option") } else { String::new() };
    Err(ConfigError::new(place, problem + &advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_neither_scheme_nor_port() {
        for host in ["redis", "10.0.0.1", "a.example", "::1", "fe80::1", "redis_1"] {
            assert!(check(host, "host").is_ok(), "{host}");
        }
        for (host, advice) in [
            ("redis://127.0.0.1:6379", Some("write `127.0.0.1` here")),
            ("a.example:514", Some("write `a.example` here")),
            ("[::1]:514", Some("write `::1` here")),
            ("https://u:secret@a.example/x", Some("write `a.example` here")),
            ("a b", None),
            ("", None),
        ] {
            let problem = check(host, "host").expect_err(host).to_string();
            assert!(problem.starts_with("host: "), "{problem}");
            assert_eq!(problem.contains("write"), advice.is_some(), "{problem}");
            assert!(advice.is_none_or(|advice| problem.contains(advice)), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
