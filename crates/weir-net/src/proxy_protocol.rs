//! The PROXY protocol, versions 1 and 2: a header before all other bytes with the addresses of the client. Received from a
//! balancer in front of the gateway, and sent to upstreams that require it. Specified by HAProxy, `doc/proxy-protocol.txt`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// §2.2: the first bytes of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// §2.1: the longest line of version 1, in bytes.
const MOST_V1: usize = 107;
/// The longest header accepted, in bytes; extensions (TLVs) of version 2 are skipped.
const MOST: usize = 4 * 1024;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Length of the header in bytes.
    length: usize,
    /// The sender's client; `None` if the sender connects on its own behalf, as for health checks.
    pub client: Option<SocketAddr>,
}

/// The version a sender uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocolVersion {
    /// A line of text.
    V1,
    V2,
}

/// A header for a connection on behalf of `client`, which connected to us at `local`. `None` is a connection on our own behalf,
/// as for health checks.
pub fn header(version: ProxyProtocolVersion, ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let ends = ends.map(|(client, local)| {
        let (canonical_client, canonical_local) = (client.ip().to_canonical(), local.ip().to_canonical());
        // A header has one address family. If the two differ, the IPv4 address is written as IPv4-mapped IPv6.
        let mix = canonical_client.is_ipv4() != canonical_local.is_ipv4();
        let one_family = |ip| match ip {
            IpAddr::V4(ip) if mix => ip.to_ipv6_mapped().into(),
            ip => ip,
        };
        let end = |ip, addr: SocketAddr| SocketAddr::new(one_family(ip), addr.port());
        (end(canonical_client, client), end(canonical_local, local))
    });
    match version {
        ProxyProtocolVersion::V1 => header_1(ends).into_bytes(),
        ProxyProtocolVersion::V2 => header_2(ends),
    }
}

/// §2.1.
fn header_1(ends: Option<(SocketAddr, SocketAddr)>) -> String {
    let Some((client, local)) = ends else { return "PROXY UNKNOWN\r\n".to_owned() };
    let family = if client.is_ipv4() { "TCP4" } else { "TCP6" };
    format!("PROXY {family} {} {} {} {}\r\n", client.ip(), local.ip(), client.port(), local.port())
}

/// §2.2.
fn header_2(ends: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let Some((client, local)) = ends else {
        header.extend_from_slice(&[0x20, 0, 0, 0]); // LOCAL, without addresses
        return header;
    };
    let mut addresses = Vec::with_capacity(36);
    for ip in [client.ip(), local.ip()] {
        match ip {
            IpAddr::V4(ip) => addresses.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => addresses.extend_from_slice(&ip.octets()),
        }
    }
    for port in [client.port(), local.port()] {
        addresses.extend_from_slice(&port.to_be_bytes());
    }
    header.extend_from_slice(&[0x21, if client.is_ipv4() { 0x11 } else { 0x21 }]);
    header.extend_from_slice(&(addresses.len() as u16).to_be_bytes());
    header.extend_from_slice(&addresses);
    header
}

impl ProxyHeader {
    /// Length of the header in bytes.
    pub fn length(&self) -> usize {
        self.length
    }
}

/// The bytes are not a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads the header from a connection, and nothing after it.
///
/// # Errors
/// The header is missing or invalid, or the connection ends.
pub async fn receive(tcp: &TcpStream) -> io::Result<ProxyHeader> {
    loop {
        let ready = tcp.ready(Interest::READABLE).await?;
        match tcp.try_io(Interest::READABLE, || peek(tcp)) {
            Ok(header) => return Ok(header),
            // The peer has closed its side: what is there is all that comes.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && ready.is_read_closed() => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => {}
        }
    }
}

/// Takes the header if all of it has arrived.
///
/// # Errors
/// `WouldBlock` while it is incomplete, as if nothing had arrived.
fn peek(tcp: &TcpStream) -> io::Result<ProxyHeader> {
    let mut seen = [0; MOST];
    let (count, _) = rustix::net::recv(tcp, &mut seen, RecvFlags::PEEK)?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match parse(&seen[..count]) {
        Ok(Some(announced)) => {
            // All of it was peeked, so one call returns it.
            rustix::net::recv(tcp, &mut seen[..announced.length], RecvFlags::empty())?;
            Ok(announced)
        }
        Ok(None) if count < MOST => Err(io::ErrorKind::WouldBlock.into()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "there is no valid PROXY header")),
    }
}

/// Parses a header at the start of `seen`. `None` while it is incomplete.
///
/// # Errors
/// The bytes do not start with a header.
pub fn parse(seen: &[u8]) -> Result<Option<ProxyHeader>, Malformed> {
    let common = seen.len().min(SIGNATURE.len());
    if seen[..common] == SIGNATURE[..common] {
        return if common < SIGNATURE.len() { Ok(None) } else { version_2(seen) };
    }
    let common = seen.len().min(6);
    if seen[..common] == b"PROXY "[..common] { version_1(seen) } else { Err(Malformed) }
}

/// §2.1: `PROXY TCP4 1.2.3.4 5.6.7.8 1000 443`, as a line.
fn version_1(seen: &[u8]) -> Result<Option<ProxyHeader>, Malformed> {
    let Some(end) = seen.windows(2).take(MOST_V1 - 1).position(|pair| pair == b"\r\n") else {
        return if seen.len() < MOST_V1 { Ok(None) } else { Err(Malformed) };
    };
    let line = std::str::from_utf8(&seen[..end]).map_err(|_| Malformed)?;
    let mut words = line.split(' ').skip(1);
    let client = match words.next() {
        // The rest of the line is ignored.
        Some("UNKNOWN") => None,
        Some(family @ ("TCP4" | "TCP6")) => {
            let mut address = || words.next().and_then(|word| word.parse::<IpAddr>().ok()).ok_or(Malformed);
            let (source, destination) = (address()?, address()?);
            let (port, _) = (port(words.next())?, port(words.next())?);
            let is_v4 = family == "TCP4";
            if words.next().is_some() || source.is_ipv4() != is_v4 || destination.is_ipv4() != is_v4 {
                return Err(Malformed);
            }
            Some(SocketAddr::new(source, port))
        }
        _ => return Err(Malformed),
    };
    Ok(Some(ProxyHeader { length: end + 2, client }))
}

fn port(word: Option<&str>) -> Result<u16, Malformed> {
    let word = word.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit())).ok_or(Malformed)?;
    word.parse().map_err(|_| Malformed)
}

/// §2.2: the signature, version and command, family and transport, length, addresses, extensions.
fn version_2(seen: &[u8]) -> Result<Option<ProxyHeader>, Malformed> {
    const FIXED: usize = 16;
    if seen.len() < FIXED {
        return Ok(None);
    }
    let length = FIXED + usize::from(u16::from_be_bytes([seen[14], seen[15]]));
    if length > MOST {
        return Err(Malformed);
    }
    let local = match seen[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err(Malformed),
    };
    if seen.len() < length {
        return Ok(None);
    }
    let body = &seen[FIXED..length];
    let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let client = match seen[13] {
        _ if local => None,
        0x11 if body.len() >= 12 => {
            let source: [u8; 4] = body[..4].try_into().expect("four bytes");
            Some(SocketAddr::new(Ipv4Addr::from(source).into(), port(8)))
        }
        0x21 if body.len() >= 36 => {
            let source: [u8; 16] = body[..16].try_into().expect("sixteen bytes");
            Some(SocketAddr::new(Ipv6Addr::from(source).into(), port(32)))
        }
        0x11 | 0x21 => return Err(Malformed),
        // Unspecified, datagram and Unix socket addresses cannot be a client's.
        _ => None,
    };
    Ok(Some(ProxyHeader { length, client }))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, body].concat()
    }

    fn client(seen: &[u8]) -> Option<String> {
        let announced = parse(seen).expect("a header").expect("a whole one");
        announced.client.map(|client| client.to_string())
    }

    #[tokio::test]
    async fn a_header_that_is_cut_short_ends_the_wait() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let whole = v2(0x21, 0x11, &[1, 2, 3, 4, 5, 6, 7, 8, 3, 232, 1, 187]);
        for length in [0, 1, 20, whole.len()] {
            let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
            let (accepted, _) = listener.accept().await.expect("accepted");
            let (begun, rest) = whole[..length].split_at(length / 2);
            let sends = async {
                peer.write_all(begun).await.expect("sent");
                tokio::task::yield_now().await;
                peer.write_all(rest).await.expect("sent");
                peer.shutdown().await.expect("shut down");
            };
            let (received, ()) = tokio::join!(receive(&accepted), sends);
            match received {
                Ok(header) => assert_eq!((length, header.length), (whole.len(), whole.len())),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}"),
            }
        }
    }

    #[test]
    fn both_versions_name_the_client() {
        assert_eq!(client(b"PROXY TCP4 1.2.3.4 5.6.7.8 1000 443\r\nGET").as_deref(), Some("1.2.3.4:1000"));
        assert_eq!(client(b"PROXY TCP6 ::1 ::2 1000 443\r\n").as_deref(), Some("[::1]:1000"));
        assert_eq!(client(b"PROXY UNKNOWN whatever comes\r\n"), None);
        let v4 = [1, 2, 3, 4, 5, 6, 7, 8, 3, 232, 1, 187];
        assert_eq!(client(&v2(0x21, 0x11, &v4)).as_deref(), Some("1.2.3.4:1000"));
        assert_eq!(client(&v2(0x21, 0x11, &[&v4[..], b"\x04\0\x01x"].concat())).as_deref(), Some("1.2.3.4:1000"));
        let mut v6 = [0; 36];
        (v6[15], v6[33]) = (1, 7);
        assert_eq!(client(&v2(0x21, 0x21, &v6)).as_deref(), Some("[::1]:7"));
        assert_eq!(client(&v2(0x20, 0x11, &v4)), None, "LOCAL speaks for itself");
        assert_eq!(client(&v2(0x21, 0x00, &[])), None);
    }

    #[test]
    fn proxy_header_survives_writing_and_reading() {
        let end = |text: &str| text.parse::<SocketAddr>().expect("an address");
        for version in [ProxyProtocolVersion::V1, ProxyProtocolVersion::V2] {
            for (client, local, read) in [
                ("1.2.3.4:1000", "5.6.7.8:443", "1.2.3.4:1000"),
                ("[2001:db8::1]:1000", "[::2]:443", "[2001:db8::1]:1000"),
                ("[::ffff:1.2.3.4]:1000", "5.6.7.8:443", "1.2.3.4:1000"),
                ("1.2.3.4:1000", "[::2]:443", "[::ffff:1.2.3.4]:1000"),
            ] {
                let written = header(version, Some((end(client), end(local))));
                let read = ProxyHeader { length: written.len(), client: Some(end(read)) };
                assert_eq!(parse(&written), Ok(Some(read)), "{version:?} {client} {local}");
            }
            let ours = header(version, None);
            assert_eq!(parse(&ours), Ok(Some(ProxyHeader { length: ours.len(), client: None })));
        }
    }

    #[test]
    fn every_beginning_waits_for_the_rest() {
        let whole = [b"PROXY TCP4 1.2.3.4 5.6.7.8 1000 443\r\n".to_vec(), v2(0x21, 0x11, &[0; 12])];
        for header in whole {
            for length in 0..header.len() {
                assert_eq!(parse(&header[..length]), Ok(None), "{length} of {}", header.len());
            }
            let behind = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(parse(&behind).expect("a header").expect("a whole one").length, header.len());
        }
    }

    #[test]
    fn p01_what_is_not_exactly_a_header_is_none() {
        for wrong in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1000\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 1000 443 9\r\n",
            b"PROXY TCP4 ::1 ::2 1000 443\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 +1 443\r\n",
            b"PROXY TCP4 1.2.3.4 5.6.7.8 65536 443\r\n",
            b"PROXY TCP4  1.2.3.4 5.6.7.8 1 443\r\n",
            b"PROXY UDP4 1.2.3.4 5.6.7.8 1 443\r\n",
            &[b"PROXY UNKNOWN ", &[b'x'; 200][..]].concat(),
            &v2(0x11, 0x11, &[0; 12]),
            &v2(0x22, 0x11, &[0; 12]),
            &v2(0x21, 0x11, &[0; 11]),
            &v2(0x21, 0x21, &[0; 35]),
            &v2(0x21, 0x11, &[0; 5000])[..40],
        ] {
            assert_eq!(parse(wrong), Err(Malformed), "{:?}", String::from_utf8_lossy(wrong));
        }
    }
}
