//! The client that managers of secrets are asked with, and issuers of tokens.

use std::path::Path;

use weir_client::{Authorities, HttpClient, HttpClientSettings};
use weir_net::tls;

use super::beside;
use super::file_access::{FileAccess, FileStall};
use crate::document::{NodeSettings, PemSource};

/// Asks the DNS servers that the settings name, and believes the authorities they name. Secrets may stand in the names of
/// files, so this comes before files are read, and reads the one it needs itself.
///
/// # Errors
/// Where a file cannot be read in time.
pub fn http_client(settings: &NodeSettings, directory: &Path, access: &FileAccess) -> Result<HttpClient, FileStall> {
    let authorities = match settings.trusted.as_ref().map(|pem| &pem.source) {
        None => Authorities::System,
        // Compiling reports what cannot be used; until then nobody is believed.
        Some(PemSource::Here(text)) => Authorities::Own(tls::certificates(text.as_bytes()).unwrap_or_default().into()),
        Some(PemSource::Elsewhere(name)) => {
            let mut files = beside::read(std::iter::once(&**name), directory, access)?.content;
            let text = files.remove(name).and_then(Result::ok).unwrap_or_default();
            Authorities::Own(tls::certificates(&text).unwrap_or_default().into())
        }
    };
    Ok(HttpClient::new(HttpClientSettings { dns: settings.dns.clone(), authorities, ..HttpClientSettings::default() }))
}
