//! The sources of configurations. A source yields documents; the loader adds everything that needs I/O, so that compiling needs
//! none; a watch publishes changes.
//!
//! ```text
//! source (a file, a file and a store) ──> DocumentLoader: secrets, files, names ──Document──> compile ──> publish
//! ```
//!
//! A store keeps resources individually, with a history. Those of a running node are its `LiveResources`; changes go through its
//! `ResourceWriter`: planned, compiled, committed and published, in this order.

mod beside;
pub mod checker;
mod closed;
mod disk_copy;
pub(crate) mod draft;
pub mod embedded;
mod encrypted;
pub mod etcd;
mod failure;
pub mod file;
pub mod file_access;
pub mod file_resources;
mod include;
#[cfg(feature = "kubernetes")]
mod kubernetes;
pub mod live;
pub mod loader;
mod mailbox;
mod memory;
mod names;
mod open;
mod read_lists;
mod resource_source;
pub mod resources;
mod secret_cipher;
mod secrets;
mod seen;
mod served_form;
mod settle;
pub mod shared;
pub mod source;
pub mod store;
mod transfer;
mod trial;
mod trusted;
mod wake;
pub mod watch;
pub mod writes;

pub use crate::data_directory::{data_directory, given_directory, store_path};
pub use checker::{ChangeCheck, ResourceChecker};
pub use draft::DraftFiles;
pub use file::FileSource;
pub use file_access::FileAccess;
pub use file_resources::FileResources;
#[cfg(feature = "kubernetes")]
pub use kubernetes::{
    CertificateIssuer, EnrolmentRefusal, MOST_NODE_NAME, MOST_REPORT, MOST_SIGNING_REQUEST, NodeIntroduction,
    ServedCluster, ServingCertificate, StateFeed, StateStream,
};
pub use live::{LiveResources, ResourceEdit};
pub use loader::{DocumentLoader, LoadedDocument};
pub use names::NameLookups;
pub use open::controller_name;
pub use source::{Source, SourceDocument, SourceVersion, Wake};
pub use transfer::{StoreExport, export_store, import_into_store};
pub use trusted::http_client;
pub use watch::{ConfigWatch, publish_first, watch};
pub use writes::{PlanRefusal, ResourceWriter, WriteOutcome, WriteReceipt, WriteRequest};
