//! The client for requests that the gateway itself makes, from the settings of the node.

use weir_client::{Authorities, HttpClient, HttpClientSettings};

use super::Compiler;

impl Compiler<'_> {
    /// A client that uses the node's DNS servers and trusts the authorities of `ssl_trusted_certificate`.
    pub(super) fn http_client(&self) -> HttpClient {
        let settings = &self.document.settings;
        let authorities = match &settings.trusted {
            None => Authorities::System,
            // Their faults have been reported.
            Some(pem) => Authorities::Own(self.chain(pem).unwrap_or_default().into()),
        };
        HttpClient::new(HttpClientSettings { dns: settings.dns.clone(), authorities, ..HttpClientSettings::default() })
    }
}
