//! The control plane: compiles a configuration as written into a snapshot, or reports everything that is wrong with it.
//!
//! ```text
//! source -> loader -> Document (as written) -> compile (no I/O) -> Snapshot (compiled) -> publish -> workers
//! ```

#![forbid(unsafe_code)]

pub mod acme;
pub mod admin;
pub mod apisix_schema;
mod causes;
mod check;
pub mod compile;
mod data_directory;
mod doubts;
pub mod explain;
pub mod hubs;
pub mod plugin_schemas;
pub mod policy_schema;
pub mod publish;
mod spiffe;
mod store_state;
pub mod stores;
pub mod whole_file;

pub use acme::Acme;
pub use check::{check_document, check_file, check_standard_input, check_text, registry_of_file};
pub use compile::{CertificateEnd, Compiled, ListedCertificate, Parts, compile};
pub use hubs::Hubs;
pub use publish::{ConfigStatus, PreparedPublication, Publication, Publisher, RefusedChange, Subscriber};
pub use spiffe::{SpiffeReport, SvidReport, WorkloadHandle};
pub use stores::{ConfigWatch, DocumentLoader, LoadedDocument, NameLookups, publish_first, watch};
pub use text::substitute::{VariableLookup, process_environment};
pub use weir_document::{Diagnostic, Document, document, keys, lua, text};
