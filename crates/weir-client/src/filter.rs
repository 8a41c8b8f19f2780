//! Restricts the addresses a client may connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Applied to the address after name resolution, so that neither a DNS answer nor a redirect leads into the node's own network
/// (server-side request forgery).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressFilter {
    /// Allow only addresses that are globally reachable.
    pub public_only: bool,
    /// Allowed in addition to [`AddressFilter::public_only`].
    pub allowed: Vec<IpNet>,
    /// Never allowed.
    pub denied: Vec<IpNet>,
}

impl AddressFilter {
    /// Allows all globally reachable addresses, and no others.
    pub fn public() -> AddressFilter {
        AddressFilter { public_only: true, ..AddressFilter::default() }
    }

    pub fn allows(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let within = |nets: &[IpNet]| nets.iter().any(|net| net.contains(&address));
        !within(&self.denied) && (!self.public_only || is_public(address) || within(&self.allowed))
    }
}

/// Not in IANA's special-purpose registries (RFC 6890 and its updates), except for entries that are globally reachable.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b); // RFC 6598
    let protocol_assignments = (a, b, c) == (192, 0, 0); // RFC 6890
    let relay = (a, b, c) == (192, 88, 99); // 6to4 relays, RFC 7526
    let benchmarks = a == 198 && (b == 18 || b == 19); // RFC 2544
    !(a == 0
        || a >= 240
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || shared
        || protocol_assignments
        || relay
        || benchmarks)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // Addresses that embed an IPv4 address lead to that address: NAT64 (RFC 6052) and 6to4 (RFC 3056).
    let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    if segments[..6] == [0x64, 0xff9b, 0, 0, 0, 0] {
        return is_public_v4(v4(segments[6], segments[7]));
    }
    if segments[0] == 0x2002 {
        return is_public_v4(v4(segments[1], segments[2]));
    }
    let global_unicast = segments[0] & 0xe000 == 0x2000; // RFC 4291: 2000::/3
    let protocol_assignments = segments[0] == 0x2001 && segments[1] < 0x200; // RFC 2928, with Teredo
    let documentation = segments[..2] == [0x2001, 0xdb8] || segments[0] == 0x3fff && segments[1] < 0x1000;
    global_unicast && !protocol_assignments && !documentation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn addresses_of_private_networks_are_not_public() {
        for text in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
        ] {
            assert!(!AddressFilter::public().allows(address(text)), "{text}");
            assert!(AddressFilter::default().allows(address(text)), "{text}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_public() {
        for text in
            ["1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700::1111", "2002:101:101::", "::ffff:8.8.8.8"]
        {
            assert!(AddressFilter::public().allows(address(text)), "{text}");
        }
    }

    #[test]
    fn networks_are_allowed_and_denied_by_name() {
        let filter = AddressFilter {
            public_only: true,
            allowed: vec!["10.1.0.0/16".parse().expect("a network")],
            denied: vec!["10.1.2.0/24".parse().expect("a network"), "1.1.1.1/32".parse().expect("a network")],
        };
        let allows = |text: &str| filter.allows(address(text));
        assert!(allows("10.1.1.1") && allows("::ffff:10.1.1.1") && allows("8.8.8.8"));
        assert!(!allows("10.1.2.1") && !allows("10.2.0.1") && !allows("1.1.1.1"));
    }
}
