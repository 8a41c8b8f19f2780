//! TLS on both sides of the gateway: rustls on aws-lc-rs, versions 1.2 and 1.3.

mod config;
mod early_data;
mod facts;
mod hashing;
mod keys;
mod server_name;
mod session;
mod spiffe;
mod tickets;
mod verify;

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;

pub use config::{
    ClientTerms, ClientTrust, InvalidTerms, Server, ServerTerms, TlsConnector, Trust, UpstreamTerms, Versions,
};
pub use facts::{CertificateFacts, ClientNames, identities, normalised_email};
pub use hashing::digest_of;
pub use keys::{KeyError, certificates, certificates_der, certified, certified_der, unchecked};
pub use rustls::pki_types::{CertificateDer, ServerName};
pub use rustls::sign::CertifiedKey;
pub use server_name::server_name;
pub use session::TlsSession;
pub(crate) use session::{cipher_name, curve_name};
pub use spiffe::{SpiffeId, SpiffePeers, SvidFault, TrustBundles, constrains_uris, svid_id};
pub use tickets::{Scope, TicketKeys};
pub use verify::ClientDemand;

/// The default algorithms of rustls. X25519MLKEM768 is the preferred key exchange, so that traffic recorded today stays secret
/// when there are quantum computers.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())))
}
