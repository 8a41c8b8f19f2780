//! The static table (RFC 7541 appendix A).

use crate::h2::class::FieldClass;

/// Entry 1 of the RFC is at index 0.
pub(super) const ENTRIES: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Hash table from names to entries, counted from 1; 0 is an empty slot. Collisions go to the next free slot.
const PLACES: [u8; 128] = {
    let mut places = [0_u8; 128];
    let mut entry = 0;
    while entry < ENTRIES.len() {
        let name = ENTRIES[entry].0;
        let mut at = place(name);
        while places[at] != 0 && !same(ENTRIES[places[at] as usize - 1].0, name) {
            at = (at + 1) % 128;
        }
        if places[at] == 0 {
            places[at] = entry as u8 + 1;
        }
        entry += 1;
    }
    places
};

const fn place(name: &[u8]) -> usize {
    let length = name.len();
    let (first, middle, last) = (name[0] as usize, name[length / 2] as usize, name[length - 1] as usize);
    (length * 7 + first * 5 + middle * 11 + last * 3) % 128
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The first entry with this name.
pub(super) fn with_name(name: &[u8]) -> Option<usize> {
    if name.is_empty() {
        return None;
    }
    let mut at = place(name);
    loop {
        match PLACES[at] {
            0 => return None,
            entry if ENTRIES[usize::from(entry) - 1].0 == name => return Some(usize::from(entry)),
            _ => at = (at + 1) % 128,
        }
    }
}

/// The class of each entry.
pub(super) fn class(entry: usize) -> FieldClass {
    use crate::field::Known;
    match entry {
        1 => FieldClass::Authority,
        2 | 3 => FieldClass::Method,
        4 | 5 => FieldClass::Path,
        6 | 7 => FieldClass::Scheme,
        8..=14 => FieldClass::Status,
        19 => FieldClass::Field(Known::Accept),
        23 => FieldClass::Field(Known::Authorization),
        28 => FieldClass::Field(Known::ContentLength),
        32 => FieldClass::Cookie,
        33 => FieldClass::Field(Known::Date),
        35 => FieldClass::Field(Known::Expect),
        38 => FieldClass::Field(Known::Host),
        48 => FieldClass::Field(Known::ProxyAuthenticate),
        49 => FieldClass::Field(Known::ProxyAuthorization),
        54 => FieldClass::Field(Known::Server),
        57 => FieldClass::Malformed,
        _ => FieldClass::Field(Known::Other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_known_for_what_it_is() {
        for (at, (name, _)) in ENTRIES.iter().enumerate() {
            let first = ENTRIES.iter().position(|entry| entry.0 == *name).expect("it is one of them");
            assert_eq!(with_name(name), Some(first + 1), "{}", name.escape_ascii());
            assert_eq!(class(at + 1), FieldClass::of_name(name), "{}", name.escape_ascii());
        }
        for name in [&b""[..], b"x", b":", b"content-lengt", b"content-lengths", b"Host"] {
            assert_eq!(with_name(name), None);
        }
    }
}
