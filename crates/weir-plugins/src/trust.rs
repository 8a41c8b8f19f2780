//! The verification of servers that plugins connect to with TLS.

use std::io;
use std::sync::{Arc, LazyLock};

use rustls::ClientConfig;
use weir_net::tls::{self, TlsConnector, UpstreamTerms};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServerTrust {
    /// Certificates are verified against the system's CA certificates.
    System,
    Unverified,
}

static SYSTEM: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| {
    let found = rustls_native_certs::load_native_certs().certs;
    match found.is_empty() {
        true => Err("the system has no CA certificates".to_owned()),
        false => config(tls::Trust::System(&found)),
    }
});

static UNVERIFIED: LazyLock<Result<Arc<ClientConfig>, String>> = LazyLock::new(|| config(tls::Trust::Unverified));

fn config(trust: tls::Trust<'_>) -> Result<Arc<ClientConfig>, String> {
    let client = TlsConnector::new(&UpstreamTerms { trust, identity: None, protocols: &[] });
    Ok(Arc::clone(client.map_err(|error| error.to_string())?.config()))
}

impl ServerTrust {
    /// Loads the system's CA certificates here if they are needed, so that no worker has to.
    pub(crate) fn of(verify: bool) -> ServerTrust {
        if verify {
            LazyLock::force(&SYSTEM);
            ServerTrust::System
        } else {
            ServerTrust::Unverified
        }
    }

    /// The rustls configuration; an error if the system's CA certificates could not be loaded.
    pub(crate) fn config(self) -> io::Result<Arc<ClientConfig>> {
        let config = match self {
            ServerTrust::System => &*SYSTEM,
            ServerTrust::Unverified => &*UNVERIFIED,
        };
        config.clone().map_err(io::Error::other)
    }
}
