//! Field names that have a meaning for the gateway, recognised once while a head is parsed.

/// A field name with a meaning for the gateway; everything else is [`Known::Other`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Known {
    #[default]
    Other,
    Accept,
    Authorization,
    Connection,
    ContentLength,
    Date,
    Expect,
    Forwarded,
    /// The deadline of a gRPC call.
    GrpcTimeout,
    Host,
    Http2Settings,
    /// `X-Consumer-*`, `X-Credential-Identifier`: the identity of the caller, set by auth plugins only.
    Identity,
    KeepAlive,
    ProxyAuthenticate,
    ProxyAuthenticationInfo,
    ProxyAuthorization,
    ProxyConnection,
    /// `X-Original-URL`, `X-Rewrite-URL`: some upstreams route by them instead of by the target.
    RewrittenUrl,
    Server,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    XForwardedFor,
    XForwardedHost,
    /// Any other name that begins with `X-Forwarded-`.
    XForwardedOther,
    XForwardedPort,
    XForwardedPrefix,
    XForwardedProto,
    XRealIp,
}

impl Known {
    /// Recognises a name in any case. Its length and two of its bytes select the one candidate to compare with.
    #[inline]
    pub fn parse(name: &[u8]) -> Known {
        if name.is_empty() {
            return Known::Other;
        }
        let candidate = &KNOWN[place(name)];
        if usize::from(candidate.length) == name.len() && candidate.ends == ends(name) && candidate.has_middle_of(name)
        {
            return candidate.known;
        }
        if matches!(name[0], b'x' | b'X') { Known::by_prefix(name) } else { Known::Other }
    }

    fn by_prefix(name: &[u8]) -> Known {
        let begins = |prefix: &[u8]| name.len() > prefix.len() && same_name(&name[..prefix.len()], prefix);
        if begins(CONSUMER) {
            Known::Identity
        } else if begins(FORWARDED) {
            Known::XForwardedOther
        } else {
            Known::Other
        }
    }

    /// Meant for the next hop only, so not forwarded as received (RFC 9110 §7.6.1, RFC 9113 §3.1 for `HTTP2-Settings`).
    pub fn is_hop_by_hop(self) -> bool {
        matches!(
            self,
            Known::Connection
                | Known::KeepAlive
                | Known::ProxyConnection
                | Known::ProxyAuthenticate
                | Known::ProxyAuthenticationInfo
                | Known::ProxyAuthorization
                | Known::Te
                | Known::Trailer
                | Known::TransferEncoding
                | Known::Upgrade
                | Known::Http2Settings
        )
    }

    /// A proxy's information about the client; used only from trusted peers.
    pub fn is_forwarding(self) -> bool {
        matches!(
            self,
            Known::XForwardedFor
                | Known::XForwardedHost
                | Known::XForwardedOther
                | Known::XForwardedPort
                | Known::XForwardedPrefix
                | Known::XForwardedProto
                | Known::XRealIp
                | Known::Forwarded
                | Known::RewrittenUrl
        )
    }

    /// Never allowed in a trailer section: framing, routing, authentication and identity (RFC 9110 §6.5.1).
    pub fn is_forbidden_in_trailers(self) -> bool {
        self.is_hop_by_hop()
            || self.is_forwarding()
            || matches!(
                self,
                Known::Authorization | Known::ContentLength | Known::Host | Known::Expect | Known::Identity
            )
    }
}

/// A validated field name, for callers that write the same field into many heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name and the `: ` that follows it.
    line: Box<[u8]>,
    known: Known,
}

impl Name {
    /// `None` if it is not a token.
    pub fn new(name: &[u8]) -> Option<Name> {
        is_name(name).then(|| Name { line: [name, b": "].concat().into(), known: Known::parse(name) })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.line[..self.line.len() - 2]
    }

    /// The start of a line: the name and `: `.
    pub(crate) fn line(&self) -> &[u8] {
        &self.line
    }

    pub fn known(&self) -> Known {
        self.known
    }

    /// A complete line with this value, for callers that write it into many heads. `None` if the value would break the line.
    pub fn with(&self, value: &[u8]) -> Option<PreparedField> {
        is_value(value).then(|| PreparedField {
            bytes: [&self.line, value, b"\r\n"].concat().into(),
            value: self.line.len(),
            known: self.known,
        })
    }
}

/// A validated field, name and value, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedField {
    /// The whole line, with its CRLF.
    pub(crate) bytes: Box<[u8]>,
    /// The offset of the value in `bytes`.
    pub(crate) value: usize,
    pub(crate) known: Known,
}

/// Whether two names are equal, ignoring case. Compares eight bytes at a time, since this is called for every field of every
/// lookup.
pub fn same_name(one: &[u8], other: &[u8]) -> bool {
    let len = one.len();
    if len != other.len() {
        return false;
    }
    if len >= 8 {
        let word = |name: &[u8], start: usize| {
            lower_case(u64::from_le_bytes(name[start..start + 8].try_into().expect("eight bytes")))
        };
        let same = |start| word(one, start) == word(other, start);
        // The last word overlaps the previous one unless the length is a multiple of eight.
        return (0..len - 8).step_by(8).all(same) && same(len - 8);
    }
    if len >= 4 {
        let half = |name: &[u8], start: usize| {
            u64::from(u32::from_le_bytes(name[start..start + 4].try_into().expect("four bytes")))
        };
        let whole = |name| lower_case(half(name, 0) | half(name, len - 4) << 32);
        return whole(one) == whole(other);
    }
    one.eq_ignore_ascii_case(other)
}

/// Converts the ASCII capitals among eight bytes to lower case.
fn lower_case(word: u64) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let low = word & (0x7f * EACH);
    // The highest bit of each byte is set in `from_a` from `A` on, in `beyond_z` beyond `Z`, and in `word` if it is not ASCII.
    let (from_a, beyond_z) = (low + (0x80 - 0x41) * EACH, low + (0x80 - 0x5b) * EACH);
    let capital = from_a & !beyond_z & !word & (0x80 * EACH);
    word | capital >> 2
}

/// The prefix of identity fields.
const CONSUMER: &[u8] = b"x-consumer-";
/// The prefix of what proxies tell about clients: also an identity (`X-Forwarded-User`, `X-Forwarded-Client-Cert`).
const FORWARDED: &[u8] = b"x-forwarded-";

/// The names with a meaning, in lower case.
const NAMES: [(&[u8], Known); 29] = [
    (b"te", Known::Te),
    (b"host", Known::Host),
    (b"date", Known::Date),
    (b"accept", Known::Accept),
    (b"expect", Known::Expect),
    (b"server", Known::Server),
    (b"upgrade", Known::Upgrade),
    (b"trailer", Known::Trailer),
    (b"x-real-ip", Known::XRealIp),
    (b"forwarded", Known::Forwarded),
    (b"connection", Known::Connection),
    (b"keep-alive", Known::KeepAlive),
    (b"authorization", Known::Authorization),
    (b"grpc-timeout", Known::GrpcTimeout),
    (b"x-rewrite-url", Known::RewrittenUrl),
    (b"content-length", Known::ContentLength),
    (b"http2-settings", Known::Http2Settings),
    (b"x-original-url", Known::RewrittenUrl),
    (b"x-forwarded-for", Known::XForwardedFor),
    (b"x-forwarded-host", Known::XForwardedHost),
    (b"x-forwarded-port", Known::XForwardedPort),
    (b"proxy-connection", Known::ProxyConnection),
    (b"transfer-encoding", Known::TransferEncoding),
    (b"x-forwarded-proto", Known::XForwardedProto),
    (b"proxy-authenticate", Known::ProxyAuthenticate),
    (b"x-forwarded-prefix", Known::XForwardedPrefix),
    (b"proxy-authorization", Known::ProxyAuthorization),
    (b"x-credential-identifier", Known::Identity),
    (b"proxy-authentication-info", Known::ProxyAuthenticationInfo),
];

/// A known name with the sixteen bytes that are compared at once.
#[derive(Clone, Copy)]
struct KnownFieldName {
    name: &'static [u8],
    ends: u128,
    length: u8,
    known: Known,
}

impl KnownFieldName {
    const NONE: KnownFieldName = KnownFieldName { name: b"", ends: 0, length: 0, known: Known::Other };

    const fn new((name, known): (&'static [u8], Known)) -> KnownFieldName {
        KnownFieldName { name, ends: ends(name), length: name.len() as u8, known }
    }

    /// Whether the bytes that `ends` does not cover are equal, too.
    #[inline]
    fn has_middle_of(&self, name: &[u8]) -> bool {
        name.len() <= 16 || same_name(name, self.name)
    }
}

/// The first eight bytes and the last eight, which may overlap; for names shorter than eight the first and last four, and below
/// four the first and last byte. Bit 0x20 is set in every byte: among the bytes of a token this only turns capitals into lower
/// case and changes `^` and `_`, which no known name contains.
#[inline]
const fn ends(name: &[u8]) -> u128 {
    const BITS: u128 = 0x2020_2020_2020_2020_2020_2020_2020_2020;
    let ends = match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => u64::from_le_bytes(*first) as u128 | (u64::from_le_bytes(*last) as u128) << 64,
        _ => match (name.first_chunk(), name.last_chunk()) {
            (Some(first), Some(last)) => u32::from_le_bytes(*first) as u128 | (u32::from_le_bytes(*last) as u128) << 32,
            _ => name[0] as u128 | (name[name.len() - 1] as u128) << 8,
        },
    };
    ends | BITS
}

const PLACES: usize = 128;

/// The known names, each at the index that [`place`] returns: a perfect hash table.
static KNOWN: [KnownFieldName; PLACES] = {
    let mut table = [KnownFieldName::NONE; PLACES];
    let mut index = 0;
    while index < NAMES.len() {
        let place = place(NAMES[index].0);
        assert!(table[place].length == 0, "two names at one place: `place` needs other factors");
        table[place] = KnownFieldName::new(NAMES[index]);
        index += 1;
    }
    table
};

/// The hash of a name, an index into `KNOWN`. No two known names collide, which the initialiser of `KNOWN` checks.
const fn place(name: &[u8]) -> usize {
    let length = name.len();
    let fourth_last = (name[length.saturating_sub(4)] | 0x20) as usize;
    let last = (name[length - 1] | 0x20) as usize;
    (length + 8 * fourth_last + 54 * last) % PLACES
}

/// Whether each byte may occur in a token (RFC 9110 §5.6.2). A table, since every byte of most names is looked up.
const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(byte as u8,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
            | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z');
        byte += 1;
    }
    table
};

/// Whether a byte may occur in a token (RFC 9110 §5.6.2).
pub const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// A field name is a token (RFC 9110 §5.1).
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&byte| is_token_byte(byte))
}

/// A field value holds visible characters, blanks, tabs and obs-text; nothing that could end a line (RFC 9110 §5.5).
pub fn is_value(value: &[u8]) -> bool {
    // Without an early exit, so that the compiler can check 16 bytes at a time.
    value.iter().fold(true, |all, &byte| all & ((byte == b'\t') | ((byte >= b' ') & (byte != 0x7f))))
}

/// Splits a comma-separated list and trims blanks; empty elements are skipped (RFC 9110 §5.6.1.2).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim).filter(|element| !element.is_empty())
}

/// Removes blanks and tabs at both ends. Only these two: `\x85` and `\xa0` are obs-text, not white space.
pub fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The name with `-` for each `_`.
pub(crate) fn dashed(name: &[u8]) -> Vec<u8> {
    name.iter().map(|&byte| if byte == b'_' { b'-' } else { byte }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case() {
        assert_eq!(Known::parse(b"Content-Length"), Known::ContentLength);
        assert_eq!(Known::parse(b"TRANSFER-encoding"), Known::TransferEncoding);
        assert_eq!(Known::parse(b"x-consumer-anything"), Known::Identity);
        assert_eq!(Known::parse(b"X-Credential-Identifier"), Known::Identity);
        assert_eq!(Known::parse(b"x-consumed"), Known::Other);
        assert_eq!(Known::parse(b"X-Forwarded-Proto"), Known::XForwardedProto);
        assert_eq!(Known::parse(b"X-FORWARDED-Client-Cert"), Known::XForwardedOther);
        assert_eq!(Known::parse(b"x-forwarded-"), Known::Other);
        assert_eq!(Known::parse(b"x-forward-user"), Known::Other);
        assert_eq!(Known::parse(b""), Known::Other);
    }

    #[test]
    fn names_are_the_same_in_any_case_and_only_then() {
        let mut name: Vec<u8> = (0..=255).collect();
        for len in 0..64 {
            let one = &name[192 - 3 * len..][..len];
            assert!(same_name(one, &one.to_ascii_uppercase()) && same_name(&one.to_ascii_lowercase(), one));
            assert!(!same_name(one, &name[..len + 1]));
        }
        for index in 0..256 {
            for bit in 0..8 {
                let one = name.clone();
                name[index] ^= 1 << bit;
                for start in [index.saturating_sub(20), index.saturating_sub(2)] {
                    let end = (index + 5).min(256);
                    let (one, other) = (&one[start..end], &name[start..end]);
                    assert_eq!(same_name(one, other), one.eq_ignore_ascii_case(other), "{one:?}, {other:?}");
                }
                name[index] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn obs_text_is_not_white_space() {
        assert_eq!(trim(b" \tadmin\x85 "), b"admin\x85");
        assert_eq!(trim(b"\xa0x"), b"\xa0x");
    }

    #[test]
    fn lists_skip_empty_elements() {
        assert_eq!(list(b" a ,, b,").collect::<Vec<_>>(), [&b"a"[..], b"b"]);
    }
}
