//! Fields of a response that describe its content.

use crate::exchange::Exchange;

/// Fields with digests of the content, encoded (RFC 9530 §2, RFC 1864, RFC 3230) or not (RFC 9530 §3). A plugin that changes the
/// content removes them.
pub const DIGESTS: [&[u8]; 4] = [b"Content-MD5", b"Content-Digest", b"Repr-Digest", b"Digest"];

/// Fields that describe content, besides its digests.
const OF_THE_CONTENT: [&[u8]; 6] =
    [b"Content-Length", b"Content-Encoding", b"Content-Range", b"ETag", b"Last-Modified", b"Accept-Ranges"];

impl Exchange {
    /// Removes the fields of the response that describe its content, for what changes the content.
    pub fn forget_response_content(&mut self) {
        for name in OF_THE_CONTENT.into_iter().chain(DIGESTS) {
            self.response.head.remove(name);
        }
    }
}
