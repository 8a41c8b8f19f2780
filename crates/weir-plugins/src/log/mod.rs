//! Records of exchanges, and where they are sent.

pub mod bodies;
pub mod entry;
pub mod file_logger;
pub mod http_logger;
pub mod sink;
