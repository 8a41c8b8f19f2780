//! What the fields of a message are written to, whatever encodes them.

/// Takes the fields of a section of HTTP/2 or HTTP/3, one after the other.
pub trait FieldSink {
    /// Appends a field; the name is converted to lower case. With `never_indexed` no table holds the field, here or further on (RFC
    /// 7541 §6.2.3, RFC 9204 §4.5.4).
    fn add_as(&mut self, name: &[u8], value: &[u8], never_indexed: bool);

    /// The same for a field that tables may hold.
    fn add(&mut self, name: &[u8], value: &[u8]) {
        self.add_as(name, value, false);
    }
}

/// Calls `each` with a name in lower case. Up to 64 bytes, which nearly all names fit, this needs no allocation.
pub(crate) fn in_lower_case<T>(name: &[u8], each: impl FnOnce(&[u8]) -> T) -> T {
    let mut lower = [0; 64];
    match lower.get_mut(..name.len()) {
        Some(lower) => {
            to_lower_case(name, lower);
            each(lower)
        }
        None => each(&name.to_ascii_lowercase()),
    }
}

/// Writes `name` in lower case into `lower`, which has the same length, eight bytes at a time: `make_ascii_lowercase` takes as
/// many instructions per byte as this per name.
fn to_lower_case(name: &[u8], lower: &mut [u8]) {
    let Some((last, last_lower)) = name.last_chunk::<8>().zip(lower.last_chunk_mut::<8>()) else {
        return name.iter().zip(lower).for_each(|(byte, lower)| *lower = byte.to_ascii_lowercase());
    };
    // The last eight may overlap the eight before.
    *last_lower = eight_in_lower_case(*last);
    for (eight, lower) in name.as_chunks::<8>().0.iter().zip(lower.as_chunks_mut::<8>().0) {
        *lower = eight_in_lower_case(*eight);
    }
}

fn eight_in_lower_case(bytes: [u8; 8]) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(bytes);
    // The highest bit of each byte of `from_a` is set from `A` on, of `above_z` after `Z`.
    let (low, top) = (word & (0x7f * EACH), 0x80 * EACH);
    let (from_a, above_z) = (low + u64::from(0x80 - b'A') * EACH, low + u64::from(0x7f - b'Z') * EACH);
    let upper = (from_a ^ above_z) & !word & top;
    (word | upper >> 2).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_in_lower_case() {
        let every: Vec<u8> = (0..=255).collect();
        for length in 0..40 {
            for name in every.windows(length.max(1)).map(|name| &name[..length]) {
                let mut lower = vec![0; length];
                to_lower_case(name, &mut lower);
                assert_eq!(lower, name.to_ascii_lowercase(), "{}", name.escape_ascii());
            }
        }
    }
}
