//! Server names for TLS connections.

use rustls::pki_types::ServerName;

/// The name or address in `host`, `host:port`, `[v6]` or `[v6]:port`, without the port.
pub fn server_name(host: &str) -> Option<ServerName<'static>> {
    let bare = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    ServerName::try_from(bare.to_ascii_lowercase()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_without_their_ports() {
        let shown = |host| server_name(host).map(|name| name.to_str().into_owned());
        assert_eq!(shown("A.test:8443").as_deref(), Some("a.test"));
        assert_eq!(shown("a.test").as_deref(), Some("a.test"));
        assert_eq!(shown("127.0.0.1:1").as_deref(), Some("127.0.0.1"));
        assert_eq!(shown("[::1]:1").as_deref(), Some("::1"));
        assert_eq!(shown("[::1]").as_deref(), Some("::1"));
        assert!(matches!(server_name("10.0.0.1"), Some(ServerName::IpAddress(_))));
        assert_eq!(shown(""), None);
        assert_eq!(shown("no name"), None);
    }
}
