//! The Admin API: version 3 of Apache APISIX's, with additional fields and parameters, and Weir's own paths below `/weir/v1`.
//! This module handles requests and responses; the node owns the sockets.

mod answer;
mod api;
mod audit;
mod configs;
mod context;
mod cookies;
mod difference;
mod draft;
mod dry_run;
mod environments;
mod explain;
mod file_mode;
mod history;
mod host;
mod hubs;
mod identity;
mod keys;
mod kinds;
mod lanes;
mod list;
mod log_in;
mod node_pages;
mod nodes;
mod oidc;
mod past_consumers;
mod patch;
mod plans;
mod plugins;
mod query;
mod redact;
mod references;
mod refusals;
mod request;
mod resources;
mod scopes;
mod sent_lists;
mod sessions;
mod settings;
mod table;
mod test_record;
mod tokens;
mod told;
mod trace;
mod transaction;
mod validate;

pub use api::{AdminApi, AdminParts, GENERATED_KEY, generated_key};
pub use audit::AuditSink;
pub use context::{MOST_WAITS, ServedRevisions};
pub use difference::masked_members;
pub use environments::EnvironmentParts;
pub use host::{HasRoom, RequestHost, ShortAnswer, TakenRoom, WaitForRoom};
pub use identity::{AdminMode, NodeIdentity};
pub use keys::AdminKeys;
pub use lanes::{ClientPresence, PresentClient};
pub use node_pages::{NodePage, NodePages, NodeStream, OpenedStream, SentRequest, SessionHold, TracedRequest};
pub use oidc::{
    BeginningLogIn, BroughtCode, FinishingLogIn, LeavingProvider, LogInProvider, OidcParts, PendingSecrets,
};
pub use request::{AdminPeer, BodyFault};
pub use tokens::{AcceptedTokens, TokenFault, TokenVerifier, VerifiedToken, VerifyingToken};
