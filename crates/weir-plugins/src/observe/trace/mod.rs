//! The contexts that tie the spans of one request together, as they stand in header fields: W3C Trace Context and B3.
//! No plugin writes them yet.

pub mod b3;
pub mod hex;
pub mod w3c;
