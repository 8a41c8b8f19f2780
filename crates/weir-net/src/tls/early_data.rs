//! Early data of clients that have a ticket of another server with the same name (RFC 8446 §4.2.10). None is accepted, and all that a
//! client sends before it knows is skipped.

/// The record type of early data, and of everything else that is encrypted.
pub(super) const ENCRYPTED: u8 = 23;
/// The record type of a message without a meaning, which clients send to look like older ones (RFC 8446 §D.4).
pub(super) const CHANGE_CIPHER_SPEC: u8 = 20;
const HEADER: usize = 5;
/// The extension `early_data`.
const EARLY_DATA: u16 = 42;

/// The length of the first record, if all of it is there.
pub(super) fn record_length(bytes: &[u8]) -> Option<usize> {
    let length = HEADER + usize::from(u16::from_be_bytes(bytes.get(3..HEADER)?.try_into().ok()?));
    (bytes.len() >= length).then_some(length)
}

/// Whether the ClientHello in these records says that early data follows.
pub(super) fn is_announced(mut records: &[u8]) -> bool {
    let mut hello = Vec::new();
    while let Some(length) = record_length(records).filter(|_| records[0] != ENCRYPTED) {
        hello.extend_from_slice(&records[HEADER..length]);
        records = &records[length..];
    }
    has_extension(&hello).unwrap_or(false)
}

/// `None` if the message is not complete.
fn has_extension(hello: &[u8]) -> Option<bool> {
    // The kind and length of the message, the version and the random number.
    let mut rest = hello.get(4 + 2 + 32..)?;
    take(&mut rest, 1)?; // the session id
    take(&mut rest, 2)?; // cipher suites
    take(&mut rest, 1)?; // compression methods
    let mut extensions = take(&mut rest, 2)?;
    while let Some((kind, after)) = extensions.split_first_chunk() {
        if u16::from_be_bytes(*kind) == EARLY_DATA {
            return Some(true);
        }
        extensions = after;
        take(&mut extensions, 2)?;
    }
    Some(false)
}

/// Takes a list whose length is in so many bytes before it.
fn take<'a>(bytes: &mut &'a [u8], length_bytes: usize) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_at_checked(length_bytes)?;
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let (list, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ClientHello with these extensions, in records of so many bytes.
    fn hello(extensions: &[u16], size: usize) -> Vec<u8> {
        let all: Vec<u8> = extensions.iter().flat_map(|kind| [&kind.to_be_bytes()[..], &[0, 1, 7]].concat()).collect();
        let lists = [&[1, 9, 0, 2, 0x13, 1, 1, 0][..], &(all.len() as u16).to_be_bytes(), &all].concat();
        let message = [&[1, 0, 0, (34 + lists.len()) as u8, 3, 3][..], &[5; 32], &lists].concat();
        let record = |part: &[u8]| [&[22, 3, 1, 0, part.len() as u8][..], part].concat();
        message.chunks(size).flat_map(record).collect()
    }

    #[test]
    fn the_extension_is_found_wherever_the_message_is_cut() {
        for size in [1, 3, 40, 200] {
            assert!(is_announced(&hello(&[0, 43, EARLY_DATA, 41], size)), "{size}");
            assert!(!is_announced(&hello(&[0, 43, 41], size)), "{size}");
        }
        let whole = hello(&[EARLY_DATA], 200);
        assert!(is_announced(&[&whole[..], &[ENCRYPTED, 3, 3, 0, 2, 1, 2]].concat()), "early data follows");
        assert!(!is_announced(&whole[..whole.len() - 1]) && !is_announced(b""));
    }
}
