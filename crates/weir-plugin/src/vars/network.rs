//! Address ranges as written in configurations.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

/// Parses an address or a CIDR range, IPv4 or IPv6: `10.0.0.1`, `10.0.0.0/8`, `::1`, `fe80::/10`. Bits after the prefix are
/// ignored. A range of IPv4-mapped addresses (`::ffff:10.0.0.0/104`) becomes the IPv4 range.
pub fn parse_network(text: &str) -> Option<IpNet> {
    let network = match text.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address),
        Err(_) => text.parse::<IpNet>().ok()?,
    };
    if let IpNet::V6(mapped) = network
        && mapped.prefix_len() >= 96
        && let Some(address) = mapped.addr().to_ipv4_mapped()
    {
        return Ipv4Net::new(address, mapped.prefix_len() - 96).ok().map(IpNet::V4);
    }
    Some(network)
}

/// Whether one of the ranges contains the address. An IPv4-mapped address counts as IPv4.
pub fn any_contains(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(network: &str, address: &str) -> bool {
        any_contains(&[parse_network(network).expect("a network")], address.parse().expect("an address"))
    }

    #[test]
    fn addresses_and_ranges_of_both_families() {
        assert!(holds("10.0.0.1", "10.0.0.1"));
        assert!(!holds("10.0.0.1", "10.0.0.2"));
        assert!(holds("10.1.2.3/8", "10.200.0.1"));
        assert!(holds("fe80::1/64", "fe80::2"));
        assert!(!holds("fe80::/64", "fe81::1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4"));
        assert!(!holds("0.0.0.0/0", "::1"));
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        assert!(holds("10.0.0.0/8", "::ffff:10.1.1.1"));
        assert!(holds("::ffff:10.0.0.0/104", "10.1.1.1"));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "10.0.0", "10.0.0.0/33", "::/129", "localhost", "10.0.0.1:80", " 10.0.0.1", "10.0.0.0/"] {
            assert!(parse_network(text).is_none(), "{text:?}");
        }
    }
}
