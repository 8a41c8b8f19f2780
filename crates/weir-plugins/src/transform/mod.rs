//! Changes to heads and content: rewriting, compression, and conversion between protocols.

pub(crate) mod ai_prompt_decorator;
pub(crate) mod ai_prompt_template;
pub(crate) mod alt_svc;
pub(crate) mod body_transformer;
pub(crate) mod brotli;
pub(crate) mod compression;
pub(crate) mod degraphql;
pub(crate) mod echo;
pub(crate) mod error_page;
pub(crate) mod ext_proc;
pub(crate) mod grpc_transcode;
pub(crate) mod grpc_web;
pub(crate) mod gzip;
pub(crate) mod proxy_rewrite;
pub(crate) mod response_rewrite;
pub(crate) mod reverse_rewrite;
