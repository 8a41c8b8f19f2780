//! The HTTP client for requests to secret managers and token issuers.

use std::path::Path;

use weir_client::{Authorities, HttpClient, HttpClientSettings};
use weir_net::tls;

use super::beside;
use super::file_access::{FileAccess, FileStall};
use crate::document::{NodeSettings, PemSource};

/// A client with the DNS servers and authorities of the settings. File names may be secrets, so this runs before the document's
/// files are read, and reads the one file it needs itself.
///
/// # Errors
/// If a file cannot be read in time.
pub fn http_client(settings: &NodeSettings, directory: &Path, access: &FileAccess) -> Result<HttpClient, FileStall> {
    let authorities = match settings.trusted.as_ref().map(|pem| &pem.source) {
        None => Authorities::System,
        // Invalid certificates are reported when the document is compiled; until then no server is trusted.
        Some(PemSource::Here(text)) => Authorities::Own(tls::certificates(text.as_bytes()).unwrap_or_default().into()),
        Some(PemSource::Elsewhere { name, by: _ }) => {
            let mut files = beside::read(std::iter::once(&**name), directory, access, None)?.content;
            let text = files.remove(name).and_then(Result::ok).unwrap_or_default();
            Authorities::Own(tls::certificates(&text).unwrap_or_default().into())
        }
    };
    Ok(HttpClient::new(HttpClientSettings { dns: settings.dns.clone(), authorities, ..HttpClientSettings::default() }))
}
