//! HTTP/2, attacked frame by frame.

mod floods;
mod frames;
mod malformed;
mod memory;
mod messages;
mod upstreams;
