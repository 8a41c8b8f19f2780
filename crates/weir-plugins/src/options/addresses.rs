//! Sets of addresses and networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use weir_plugin::vars::parse_network;
use weir_plugin::{CollectAll, ConfigError};

/// Addresses and networks, merged into sorted ranges: a lookup among ten thousand takes a few comparisons.
#[derive(Debug, Default)]
pub(crate) struct AddressSet {
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

impl AddressSet {
    /// Compiles the addresses and networks at `path` of the options.
    pub(crate) fn compile(texts: &[String], path: &str) -> Result<AddressSet, ConfigError> {
        let network = |(index, text): (usize, &String)| {
            parse_network(text).ok_or_else(|| {
                let problem = format!("`{text}` is not an address or network; write as 192.0.2.1, 10.0.0.0/8 or ::1");
                ConfigError::new(format!("{path}[{index}]"), problem)
            })
        };
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in texts.iter().enumerate().map(network).collect_all::<Vec<_>>()? {
            match network {
                IpNet::V4(network) => v4.push((network.network().to_bits(), network.broadcast().to_bits())),
                IpNet::V6(network) => v6.push((network.network().to_bits(), network.broadcast().to_bits())),
            }
        }
        Ok(AddressSet { v4: merged(v4), v6: merged(v6) })
    }

    /// An IPv4 address also matches in its IPv6 form (`::ffff:192.0.2.1`).
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => holds(&self.v4, Ipv4Addr::to_bits(address)),
            IpAddr::V6(address) => holds(&self.v6, Ipv6Addr::to_bits(address)),
        }
    }
}

fn merged<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Box<[(T, T)]> {
    ranges.sort_unstable();
    let mut merged: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match merged.last_mut() {
            Some((_, last)) if start <= *last => *last = end.max(*last),
            _ => merged.push((start, end)),
        }
    }
    merged.into()
}

fn holds<T: Ord + Copy>(ranges: &[(T, T)], address: T) -> bool {
    let after = ranges.partition_point(|(start, _)| *start <= address);
    after > 0 && address <= ranges[after - 1].1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_their_networks_hold() {
        let mapped = ["::ffff:198.51.100.0/120", "::ffff:203.0.113.9"];
        let texts =
            ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.1", "2001:db8::/32", "::1", "0.0.0.0/32", mapped[0], mapped[1]];
        let set = AddressSet::compile(&texts.map(str::to_owned), "x").expect("valid");
        for (address, want) in [
            ("10.0.0.0", true),
            ("10.255.255.255", true),
            ("11.0.0.0", false),
            ("9.255.255.255", false),
            ("192.0.2.1", true),
            ("192.0.2.2", false),
            ("::ffff:192.0.2.1", true),
            ("198.51.100.255", true),
            ("::ffff:198.51.100.255", true),
            ("198.51.101.0", false),
            ("203.0.113.9", true),
            ("2001:db8:ffff::1", true),
            ("2001:db9::", false),
            ("::1", true),
            ("0.0.0.0", true),
        ] {
            assert_eq!(set.contains(address.parse().expect("an address")), want, "{address}");
        }
        let error = AddressSet::compile(&["::1".to_owned(), "10.0.0.0/33".to_owned()], "list").expect_err("refused");
        assert!(error.to_string().starts_with("list[1]: `10.0.0.0/33` is not an address"), "{error}");
    }
}
