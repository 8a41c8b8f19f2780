//! HTTP/2, attacked frame by frame.

mod floods;
mod frames;
mod held;
mod last_response;
mod malformed;
mod malformed_upstream;
mod marked_ends;
mod memory;
mod messages;
mod peer;
mod priorities;
mod upstreams;
