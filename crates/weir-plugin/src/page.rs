//! Pages for errors that an upstream makes.

use weir_proto::RequestHead;

/// A request for the page of an error. Its response takes the place of the answer that the exchange has.
#[derive(Debug)]
pub struct PageRequest {
    /// The number of the upstream: see [`crate::Build::upstream`].
    pub upstream: u32,
    pub head: RequestHead,
    /// The client gets the status of the error, and not that of the page.
    pub keeps_status: bool,
}
