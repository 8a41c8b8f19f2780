//! IP addresses as text.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The decimal digits of each octet, left-aligned, and their number.
const OCTETS: [[u8; 4]; 256] = {
    let mut table = [[0; 4]; 256];
    let mut octet = 0;
    while octet < 256 {
        let (a, b, c) = (b'0' + (octet / 100) as u8, b'0' + (octet / 10 % 10) as u8, b'0' + (octet % 10) as u8);
        table[octet] = match octet {
            0..=9 => [c, 0, 0, 1],
            10..=99 => [b, c, 0, 2],
            _ => [a, b, c, 3],
        };
        octet += 1;
    }
    table
};

/// Writes an address. IPv4 bypasses the formatting machinery, since every request writes one.
pub fn write_ip(out: &mut Vec<u8>, addr: IpAddr) {
    match addr.to_canonical() {
        IpAddr::V4(addr) => {
            let (text, length) = ipv4_text(addr);
            out.extend_from_slice(&text[..length]);
        }
        IpAddr::V6(addr) => write!(out, "{addr}").expect("a Vec takes everything"),
    }
}

/// The text of an address at the start of sixteen bytes, and its length. A copy of a fixed length is a single instruction.
#[inline]
pub fn ipv4_text(addr: Ipv4Addr) -> ([u8; 16], usize) {
    let mut text = [0; 16];
    let mut length = 0;
    for octet in addr.octets() {
        let [a, b, c, digits] = OCTETS[usize::from(octet)];
        text[length..length + 4].copy_from_slice(&[a, b, c, b'.']);
        length += usize::from(digits);
        text[length] = b'.';
        length += 1;
    }
    (text, length - 1)
}

/// The address that stands for one client: of IPv4 the address, of IPv6 its /64 network, the smallest that a customer is
/// assigned (RFC 6177), within which a client can use any address.
pub fn client_network(addr: IpAddr) -> IpAddr {
    match addr.to_canonical() {
        IpAddr::V4(addr) => IpAddr::V4(addr),
        IpAddr::V6(addr) => IpAddr::V6(Ipv6Addr::from_bits(addr.to_bits() & !u128::from(u64::MAX))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_ipv6_is_a_network() {
        let client = |text: &str| client_network(text.parse().expect("an address")).to_string();
        assert_eq!(client("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!([client("192.0.2.7"), client("::ffff:192.0.2.7")], ["192.0.2.7", "192.0.2.7"]);
    }

    #[test]
    fn addresses_are_written_as_the_library_writes_them() {
        for octet in 0..=255u8 {
            let addr = IpAddr::from([octet, 0, 255, octet]);
            let mut out = Vec::new();
            write_ip(&mut out, addr);
            assert_eq!(out, addr.to_string().as_bytes());
        }
        let mut out = Vec::new();
        write_ip(&mut out, "::ffff:1.2.3.4".parse().unwrap());
        assert_eq!(out, b"1.2.3.4");
    }
}
