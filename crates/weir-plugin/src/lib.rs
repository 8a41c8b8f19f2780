//! The plugin API: the exchange, the plugin contract, and how exchanges end early.

#![forbid(unsafe_code)]

mod allowed_folders;
pub mod body;
mod claims;
mod client_gateway;
mod config_error;
pub mod consumer;
mod content_buffer;
mod content_fields;
pub mod definition;
pub mod escape;
pub mod exchange;
mod first_bytes;
mod forwarding;
pub mod held;
mod interner;
pub mod messages;
mod option_error;
pub mod options;
mod page;
pub mod pattern;
pub mod pattern_budget;
pub mod plugin;
pub mod protos;
pub mod publishing;
mod reply_head;
pub mod responder;
pub mod route_upstream;
mod schema;
pub mod secret_name;
pub mod state;
pub mod stop;
pub mod suggest;
pub mod template;
pub mod tls;
pub mod units;
pub mod variable;
pub mod vars;
mod written_name;

pub use allowed_folders::{AllowedFolders, AppendedFile, ReadFile};
pub use body::{EarlyEnd, Filter, Filters};
pub use claims::CallerClaims;
pub use client_gateway::{ClientGateway, InnerRequest};
pub use config_error::{AllOf, CollectAll, ConfigError};
pub use consumer::{Consumer, Consumers, Credential, Identities, Proof};
pub use content_buffer::ContentBuffer;
pub use content_fields::DIGESTS;
pub use definition::file_plugin::{FilePlugin, LoadedPlugin, LoadedPlugins, PluginRuntime};
pub use definition::{
    Authenticator, Build, BuildContext, BuildInputs, CalledService, CredentialEntry, Declaration, Definition, Entry,
    HasMetadata, MetadataEntry, PluginMetadata, Registry, SecretFields, Services, Stage,
};
pub use exchange::{
    AttemptRecord, BareExchange, BodyMask, ClientFacts, ClientProtocol, Exchange, Kept, KeptContent, LoggedExchange,
    MatchedRoute, NoteKey, Notes, PluginTurn, ResponseRate, RetryRewrite, RouteFacts, Routes, UriParameters,
    UriTemplate, uri_fits,
};
pub use first_bytes::FirstBytes;
pub use forwarding::TrustedForwarding;
pub use held::{Held, HeldBudget, HeldLimits};
pub use interner::Interner;
pub use messages::{
    MessageFilter, MessageHead, MessageKind, MessageLoss, MessageProtocol, MessageSource, MessageTerms, MessageVerdict,
    PingTerms, ReadMessages, StreamClose,
};
pub use page::PageRequest;
pub use plugin::{AnswersInPlace, Flow, Phases, Plugin, Waiting};
pub use protos::{ProtoDefinitions, ProtoFault};
pub use publishing::{DeliveryQuota, PublishQuota, PublishRefusal};
pub use reply_head::{ReplyField, ReplyHead};
pub use responder::{Content, Reply, ReplyNotes, Responder, ResponderRequest, Responding};
pub use route_upstream::{AnswerWriter, ContentReader, ContentWriter, ForwardedContent, RouteUpstream, UpstreamAnswer};
pub use state::PerWorker;
pub use stop::{EndedBy, Ending, Retry, Stop};
pub use template::Template;
pub use tls::{ClientCertificate, Tls};
pub use variable::{ExchangePhase, Variable, Variables};
pub use vars::Expression;
pub use weir_client::form;
/// The HTTP messages exchanges consist of.
pub use weir_proto as proto;
pub use written_name::WrittenName;
