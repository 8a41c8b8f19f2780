//! Host and authority: validation, and the canonical form the router uses.

/// Why an authority is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAuthority;

/// A `host[:port]` as RFC 9110 §7.2 allows it in `Host`, split. Userinfo, paths and lists are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort<'a> {
    /// A name, an IPv4 address, or an IPv6 address in brackets; without the trailing dot.
    pub host: &'a [u8],
    pub port: Option<u16>,
}

impl<'a> HostPort<'a> {
    pub fn parse(value: &'a [u8]) -> Result<HostPort<'a>, BadAuthority> {
        let (host, port) = if value.first() == Some(&b'[') {
            let end = memchr::memchr(b']', value).ok_or(BadAuthority)?;
            let inside = std::str::from_utf8(&value[1..end]).map_err(|_| BadAuthority)?;
            inside.parse::<std::net::Ipv6Addr>().map_err(|_| BadAuthority)?;
            (&value[..=end], &value[end + 1..])
        } else {
            let (mut last, mut empty_label) = (b'.', false);
            let end = value.iter().position(|&byte| {
                empty_label |= byte == b'.' && last == b'.';
                last = byte;
                !NAME[usize::from(byte)]
            });
            // A label cannot be empty (RFC 1035 §2.3.1); another parser may end the name there, so the authority is refused.
            if empty_label {
                return Err(BadAuthority);
            }
            let (host, rest) = value.split_at(end.unwrap_or(value.len()));
            (host.strip_suffix(b".").unwrap_or(host), rest)
        };
        if host.is_empty() {
            return Err(BadAuthority);
        }
        Ok(HostPort { host, port: port_of(port)? })
    }
}

/// The port that follows a host, if one does.
pub(crate) fn port_of(rest: &[u8]) -> Result<Option<u16>, BadAuthority> {
    match rest {
        b"" => Ok(None),
        [b':', digits @ ..] => parse_port(digits).map(Some),
        _ => Err(BadAuthority),
    }
}

/// The unreserved characters and sub-delims of RFC 3986 §3.2.2 except the comma, which separates lists. `%` is refused because
/// implementations disagree on how to treat an encoded host name.
const NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(byte as u8,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~'
            | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=');
        byte += 1;
    }
    table
};

fn parse_port(digits: &[u8]) -> Result<u16, BadAuthority> {
    if digits.is_empty() || digits.len() > 5 {
        return Err(BadAuthority);
    }
    let mut port = 0u32;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return Err(BadAuthority);
        }
        port = port * 10 + u32::from(digit - b'0');
    }
    u16::try_from(port).ok().filter(|&port| port != 0).ok_or(BadAuthority)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_port() {
        assert_eq!(HostPort::parse(b"a.example").unwrap(), HostPort { host: b"a.example", port: None });
        assert_eq!(HostPort::parse(b"a.example.:8080").unwrap(), HostPort { host: b"a.example", port: Some(8080) });
        assert_eq!(HostPort::parse(b"[::1]:443").unwrap(), HostPort { host: b"[::1]", port: Some(443) });
    }

    #[test]
    fn u07_names_with_empty_labels_are_no_hosts() {
        for bad in ["a.example..", "a..example", ".a.example", "..", "a.example..:80"] {
            assert_eq!(HostPort::parse(bad.as_bytes()), Err(BadAuthority), "{bad}");
        }
    }

    #[test]
    fn authority_that_is_not_a_host_is_refused() {
        for bad in [
            &b""[..],
            b".",
            b"a, b",
            b"a,b",
            b"user@h",
            b"h/path",
            b"h:0",
            b"h:99999",
            b"h:",
            b"h:1:2",
            b"h:+1",
            b"evil\x00",
            b"[::1",
            b"[::1]x",
            b"[zz]",
            b"a b",
            b"h\xff",
            b"a%2eb",
            b"h?x",
            b"h#x",
            b"h\\x",
        ] {
            assert_eq!(HostPort::parse(bad), Err(BadAuthority), "{}", bad.escape_ascii());
        }
    }
}
