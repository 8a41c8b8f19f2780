use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::proto::field;
use weir_plugin::{AllOf, Build, ConfigError, Definition, Exchange, Flow, Plugin, Stage, Stop, Variable, Variables};

use crate::options::addresses::AddressSet;

/// Takes the client's address (and port, if present) from a variable, usually a header field that a proxy in front of
/// the gateway sets. The address is used by policies, in logs and for `X-Real-IP`.
///
/// Route matching happens before this plugin and uses the source address of the connection. A value that is not an
/// address is ignored. For a request in a batch, the variable is that of the request that brings the batch.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RealIp {
    /// The variable that contains the address, such as `http_x_forwarded_for`, `http_x_real_ip` or `arg_realip`. If it
    /// contains a list, the last address is used.
    #[schemars(length(min = 1))]
    source: String,
    /// Addresses and networks of trusted proxies. The plugin applies only to connections from these addresses. Without
    /// this list, every sender is trusted.
    trusted_addresses: Option<Vec<String>>,
    /// If `source` contains a list, uses the last address that is not in `trusted_addresses`.
    #[serde(default)]
    recursive: bool,
}

impl Definition for RealIp {
    const NAME: &'static str = "real-ip";
    const PRIORITY: i32 = 23000;
    const STAGE: Stage = Stage::Rewrite;
    const EXAMPLE: &'static str =
        "real-ip: { source: http_x_forwarded_for, trusted_addresses: [127.0.0.0/8], recursive: true }";

    fn build(self, build: &mut Build) -> Result<Arc<dyn Plugin>, ConfigError> {
        let source = Variable::parse(&self.source).ok_or_else(|| {
            let problem = format!("`{}` is not a variable; write as http_x_forwarded_for", self.source);
            ConfigError::new("source", problem)
        });
        let trusted = match &self.trusted_addresses {
            Some(texts) if texts.is_empty() => {
                Err(ConfigError::new("trusted_addresses", "is empty; name at least one address"))
            }
            Some(texts) => AddressSet::compile(texts, "trusted_addresses").map(Some),
            None => {
                let problem = "is missing, so every client can forge its address";
                build.warnings.push(ConfigError::new("trusted_addresses", problem));
                Ok(None)
            }
        };
        let (source, trusted) = (source, trusted).all_of()?;
        Ok(Arc::new(RealIpFinder { source, trusted, recursive: self.recursive }))
    }
}

struct RealIpFinder {
    source: Variable,
    trusted: Option<AddressSet>,
    recursive: bool,
}

impl Plugin for RealIpFinder {
    fn on_request(&self, exchange: &mut Exchange) -> Result<Flow<'static>, Stop> {
        if self.trusted.as_ref().is_some_and(|trusted| !trusted.contains(exchange.client.peer.ip())) {
            return Ok(Flow::Continue);
        }
        // Of a request that has come in the content of another one, the proxies in front have seen and completed only the other one.
        let told = exchange.carrier().map_or(&*exchange, |carrier| carrier);
        let found = told.variable(&self.source).and_then(|value| self.find(&value));
        if let Some((address, port)) = found {
            exchange.client.addr = address;
            exchange.client.port = port.unwrap_or(exchange.client.port);
        }
        Ok(Flow::Continue)
    }
}

impl RealIpFinder {
    /// Searches from the end, because each proxy appends an address. An element that is not an address ends the search:
    /// the elements before it cannot be trusted. Empty elements count for nothing (RFC 9110 §5.6.1).
    fn find(&self, list: &[u8]) -> Option<(IpAddr, Option<u16>)> {
        let skipped = self.trusted.as_ref().filter(|_| self.recursive);
        let mut last = None;
        for element in list.rsplit(|&byte| byte == b',').map(field::trim).filter(|element| !element.is_empty()) {
            let Some((address, port)) = address(element) else { break };
            last = Some((address, port));
            if skipped.is_none_or(|trusted| !trusted.contains(address)) {
                break;
            }
        }
        last
    }
}

/// An address, with or without a port.
fn address(text: &[u8]) -> Option<(IpAddr, Option<u16>)> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let (address, port) = match bare.parse::<IpAddr>() {
        Ok(address) => (address, None),
        Err(_) => text.parse().map(|address: SocketAddr| (address.ip(), Some(address.port()))).ok()?,
    };
    Some((address.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{build, exchange, on_request, refused};

    fn found(options: Value, forwarded: &str) -> String {
        let mut exchange = exchange(&format!("GET /?ip=5.5.5.5:80 HTTP/1.1\nHost: h\nX-Forwarded-For: {forwarded}"));
        on_request(&build::<RealIp>(options), &mut exchange).expect("let through"); // from 192.0.2.7
        exchange.client.addr.to_string()
    }

    #[test]
    fn the_last_address_that_is_no_proxy_counts() {
        let with = |trusted: Value, recursive: bool| json!({"source": "http_x_forwarded_for", "trusted_addresses": trusted, "recursive": recursive});
        let proxies = json!(["192.0.2.0/24", "10.0.0.0/8"]);
        for (options, forwarded, want) in [
            (with(proxies.clone(), false), "1.1.1.1, 10.0.0.1", "10.0.0.1"),
            (with(proxies.clone(), true), "6.6.6.6, 1.1.1.1, 10.0.0.1", "1.1.1.1"),
            (with(proxies.clone(), true), "10.0.0.2,10.0.0.1", "10.0.0.2"),
            (with(proxies.clone(), true), "6.6.6.6, junk, 10.0.0.1", "10.0.0.1"),
            (with(proxies.clone(), true), "6.6.6.6, 1.1.1.1,, 10.0.0.1, ,", "1.1.1.1"),
            (with(proxies.clone(), false), "1.1.1.1, ", "1.1.1.1"),
            (with(proxies.clone(), true), ", ,", "192.0.2.7"),
            (with(proxies.clone(), true), "junk", "192.0.2.7"),
            (with(proxies.clone(), true), "[2001:db8::1]:443", "2001:db8::1"),
            (with(proxies, true), "::ffff:1.1.1.1", "1.1.1.1"),
            (json!({"source": "arg_ip"}), "1.1.1.1", "5.5.5.5"),
        ] {
            assert_eq!(found(options, forwarded), want, "{forwarded}");
        }
    }

    #[test]
    fn u18_the_port_is_the_one_beside_the_address() {
        let port = |forwarded: &str| {
            let mut exchange = exchange(&format!("GET / HTTP/1.1\nHost: h\nX-Forwarded-For: {forwarded}"));
            let options = json!({"source": "http_x_forwarded_for", "trusted_addresses": ["192.0.2.0/24"]});
            on_request(&build::<RealIp>(options), &mut exchange).expect("let through");
            exchange.variable(&Variable::RemotePort).map(|port| String::from_utf8_lossy(&port).into_owned())
        };
        assert_eq!(port("1.1.1.1:1234").as_deref(), Some("1234"));
        assert_eq!(port("[2001:db8::1]:443").as_deref(), Some("443"));
        assert_eq!(port("1.1.1.1"), port("junk"), "that of the connection");
    }

    #[test]
    fn p01_nobody_else_is_believed() {
        let options = json!({"source": "http_x_forwarded_for", "trusted_addresses": ["10.0.0.0/8"]});
        assert_eq!(found(options, "127.0.0.1"), "192.0.2.7");
    }

    #[test]
    fn wrong_options_are_refused_with_their_place() {
        for (options, want) in [
            (json!({}), "the option `source` is missing"),
            (json!({"source": "x-forwarded-for"}), "source: `x-forwarded-for` is not a variable"),
            (json!({"source": "arg_a", "trusted_addresses": []}), "trusted_addresses: is empty"),
            (json!({"source": "arg_a", "trusted_addresses": ["x"]}), "trusted_addresses[0]: `x` is not an address"),
        ] {
            let error = refused::<RealIp>(options);
            assert!(error.starts_with(want), "{error}");
        }
    }
}
