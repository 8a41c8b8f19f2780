//! The head of a response that does not come from a parser.

/// Name and value.
pub type ReplyField = (Box<[u8]>, Box<[u8]>);

/// A status and fields, as a responder gives them or is given them.
pub struct ReplyHead {
    pub status: u16,
    pub fields: Vec<ReplyField>,
}
