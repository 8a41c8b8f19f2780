//! The HTTP client and the DNS resolver for the gateway's own requests: to auth services, log receivers, CAs (ACME), secret
//! managers.
//!
//! Connections are pooled per thread, so a call takes no lock that another thread holds. A client works on any tokio
//! runtime; a connection is used only on the runtime that opened it.

#![forbid(unsafe_code)]

mod call_content;
mod client;
mod conduct;
mod connect;
mod content;
mod duplex;
mod error;
mod filter;
pub mod form;
mod frames;
mod guarded;
mod pool;
mod redirect;
mod resolver;
mod settings;
mod stream;
mod tls;
mod url;

pub use client::HttpClient;
pub use conduct::{MAX_INTERIM_RESPONSES, ServerExcess};
pub use content::{AnswerContent, AnswerTrailers};
pub use duplex::{CallReceiver, CallSender};
pub use error::CallError;
pub use filter::AddressFilter;
pub use resolver::{DnsSettings, Resolver, ServiceAnswer, ServiceTarget};
pub use settings::{Authorities, CallSettings, HttpClientSettings, HttpProtocol, IdleConnections, ServerVerification};
pub use stream::{ServiceStream, StreamTarget, StreamTls};
pub use url::{ServiceUrl, UrlError, UrlOrigin, without_users};
