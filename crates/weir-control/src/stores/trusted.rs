//! The client that a source asks managers of secrets with.

use std::path::Path;

use weir_client::{Authorities, HttpClient, HttpClientSettings};
use weir_net::tls;

use super::beside;
use super::seen::SeenFiles;
use crate::document::{Document, PemSource};
use crate::text::substitute::VariableLookup;

/// Asks the DNS servers that the document names, and believes the authorities it names. Secrets may stand in the names of
/// files, so this comes before files are read, and reads the one it needs itself.
pub(super) fn http_client(document: &Document, directory: &Path, environment: VariableLookup) -> HttpClient {
    let settings = &document.settings;
    let authorities = settings.trusted.as_ref().map(|pem| {
        let text = match &pem.source {
            PemSource::Here(text) => Some(text.as_bytes().into()),
            PemSource::Elsewhere(name) => {
                let mut seen = SeenFiles::default();
                let mut files = beside::read(std::iter::once(&**name), directory, environment, &mut seen);
                files.remove(name).and_then(Result::ok)
            }
        };
        // Compiling reports what cannot be used; until then nobody is believed.
        text.and_then(|text| tls::certificates(&text).ok()).unwrap_or_default()
    });
    let authorities = authorities.map_or(Authorities::System, |own| Authorities::Own(own.into()));
    HttpClient::new(HttpClientSettings { dns: settings.dns.clone(), authorities, ..HttpClientSettings::default() })
}
