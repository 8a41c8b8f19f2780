//! The client for the gateway's own requests, from the settings of the node.

use weir_client::{Authorities, HttpClient, HttpClientSettings};

use super::Compiler;

impl Compiler<'_> {
    /// A client that asks the node's DNS servers and believes the authorities of `ssl_trusted_certificate`.
    pub(super) fn http_client(&self) -> HttpClient {
        let settings = &self.document.settings;
        let authorities = match &settings.trusted {
            None => Authorities::System,
            // What is wrong with them has been reported.
            Some(pem) => Authorities::Own(self.chain(pem).unwrap_or_default().into()),
        };
        HttpClient::new(HttpClientSettings { dns: settings.dns.clone(), authorities, ..HttpClientSettings::default() })
    }
}
