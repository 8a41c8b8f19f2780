//! Content of a request that has been sent to an upstream of HTTP/2, and is kept so that it can be sent again.

use std::net::IpAddr;

use weir_plugin::Held;

/// The most bytes that are kept of one request: most messages of calls are smaller.
pub(crate) const MOST_KEPT: usize = 16 * 1024;
/// So much is not counted as held content: it takes no more memory than other state of a stream, which has a bound of its own.
const UNCOUNTED: usize = 1024;

/// All the content that an upstream has been sent, at most [`MOST_KEPT`] bytes.
#[derive(Debug)]
pub(crate) struct ResentContent {
    bytes: Vec<u8>,
    counted: Held,
}

impl ResentContent {
    /// Nothing yet, for a client.
    pub(crate) fn of(client: IpAddr) -> ResentContent {
        ResentContent { bytes: Vec::new(), counted: Held::of(client) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Keeps more. `false` if it may not: then what has been kept is of no use.
    #[must_use]
    pub(crate) fn keep(&mut self, content: &[u8]) -> bool {
        let wanted = self.bytes.len() + content.len();
        if wanted > MOST_KEPT {
            return false;
        }
        if wanted > self.bytes.capacity() {
            let capacity = wanted.next_power_of_two().min(MOST_KEPT);
            if capacity > UNCOUNTED && self.counted.set(capacity as u64).is_err() {
                return false;
            }
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(content);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_kept_and_counted() {
        let mut kept = ResentContent::of(IpAddr::from([192, 0, 2, 77]));
        assert!(kept.keep(&[b'x'; UNCOUNTED]) && kept.counted.is_empty());
        assert!(kept.keep(b"x") && kept.counted.bytes() == 2 * UNCOUNTED as u64);
        assert!(kept.keep(&[b'x'; MOST_KEPT - UNCOUNTED - 1]));
        assert_eq!(
            (kept.bytes().len(), kept.bytes.capacity(), kept.counted.bytes()),
            (MOST_KEPT, MOST_KEPT, MOST_KEPT as u64)
        );
        assert!(!kept.keep(b"x"), "more is not kept");
    }
}
