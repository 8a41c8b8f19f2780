//! The head of a response that was not parsed from the wire.

/// Name and value.
pub type ReplyField = (Box<[u8]>, Box<[u8]>);

/// Status and fields, as a responder writes or receives them.
pub struct ReplyHead {
    pub status: u16,
    pub fields: Vec<ReplyField>,
}
