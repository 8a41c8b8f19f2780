//! The Admin API: version 3 of Apache APISIX's, with additional fields and parameters, and Weir's own paths below `/weir/v1`.
//! This module handles requests and responses; the node owns the sockets.

mod answer;
mod api;
mod audit;
mod configs;
mod context;
mod difference;
mod dry_run;
mod history;
mod host;
mod hubs;
mod keys;
mod kinds;
mod lanes;
mod list;
mod nodes;
mod past_consumers;
mod patch;
mod plans;
mod plugins;
mod query;
mod redact;
mod references;
mod request;
mod resources;
mod scopes;
mod sent_lists;
mod tokens;
mod told;
mod transaction;
mod validate;

pub use api::{AdminApi, AdminParts, GENERATED_KEY, generated_key};
pub use audit::AuditSink;
pub use context::{MOST_WAITS, ServedRevisions};
pub use host::{HasRoom, RequestHost, ShortAnswer, TakenRoom, WaitForRoom};
pub use keys::AdminKeys;
pub use lanes::{ClientPresence, PresentClient};
pub use request::{AdminPeer, BodyFault};
pub use tokens::{AcceptedTokens, TokenFault, TokenVerifier, VerifiedClaims};
