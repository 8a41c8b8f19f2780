//! The Admin API: Apache APISIX's, version 3, with more by fields and parameters of our own, and
//! paths of our own below `/weir/v1`. It knows requests and answers;
//! sockets are the node's.

mod answer;
mod api;
mod audit;
mod configs;
mod context;
mod difference;
mod history;
mod hubs;
mod keys;
mod kinds;
mod list;
mod nodes;
mod patch;
mod plans;
mod plugins;
mod query;
mod redact;
mod references;
mod request;
mod resources;
mod schema;
mod scopes;
mod tokens;
mod transaction;
mod validate;

pub use api::{AdminApi, AdminParts, GENERATED_KEY, generated_key};
pub use audit::AuditSink;
pub use context::ServedRevisions;
pub use keys::AdminKeys;
pub use request::{AdminPeer, BodyFault};
pub use tokens::{AcceptedTokens, TokenFault, TokenVerifier, VerifiedClaims};
