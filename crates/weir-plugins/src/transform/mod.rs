//! Changes to heads and content: rewriting, compression, and conversion between protocols.

pub mod alt_svc;
pub mod body_transformer;
pub mod brotli;
pub mod compression;
pub mod degraphql;
pub mod error_page;
pub mod ext_proc;
pub mod grpc_transcode;
pub mod grpc_web;
pub mod gzip;
pub mod proxy_rewrite;
pub mod response_rewrite;
