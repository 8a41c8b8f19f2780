//! The TLS of connections to controllers. Files are read for each connection.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use weir_net::tls::{self, CertifiedKey, TlsConnector, Trust, UpstreamTerms};

use super::PullFiles;
use crate::document::{MutualTlsFiles, NodeCertificates};

/// The time for a connection with its TLS handshake.
pub(super) const CONNECT: Duration = Duration::from_secs(3);

/// That of a node that has proved itself. A certificate that controllers issue is asked for from this one if there is none and
/// `may_enrol`.
pub(super) async fn of_node(files: &PullFiles, host: &str, may_enrol: bool) -> Result<TlsConnector, String> {
    let (identity, authorities) = match (&files.settings.certificates, &files.enrolment) {
        (NodeCertificates::Files(MutualTlsFiles { cert, key, authorities }), _) => {
            let place = "store.controller.tls";
            let wrong =
                |name: &str, error: &dyn std::fmt::Display| format!("{place}: `{name}` cannot be used: {error}");
            let chain = tls::certificates(&read(files, place, cert)?).map_err(|error| wrong(cert, &error))?;
            (tls::certified(chain, &read(files, place, key)?).map_err(|error| wrong(key, &error))?, authorities)
        }
        (NodeCertificates::Enrolment(of_node), Some(enrolment)) => {
            let identity = match may_enrol {
                true => enrolment.certificate(files, host).await?,
                false => enrolment.valid().ok_or("there is no valid certificate")?,
            };
            (identity, &of_node.authorities)
        }
        (NodeCertificates::Enrolment(_), None) => return Err("this node cannot enrol".to_owned()),
    };
    connector(files, authorities, Some(identity))
}

/// That of a connection on which the authorities in a file verify the controller.
pub(super) fn connector(
    files: &PullFiles,
    authorities: &str,
    identity: Option<Arc<CertifiedKey>>,
) -> Result<TlsConnector, String> {
    let place = match &files.settings.certificates {
        NodeCertificates::Files(_) => "store.controller.tls",
        NodeCertificates::Enrolment(_) => "store.controller.enrolment",
    };
    let wrong = |error: &dyn std::fmt::Display| format!("{place}: `{authorities}` cannot be used: {error}");
    let trusted = tls::certificates(&read(files, place, authorities)?).map_err(|error| wrong(&error))?;
    let terms = UpstreamTerms { trust: Trust::Authorities(&trusted), identity, protocols: &["h2"] };
    let names: Vec<Box<str>> = files.settings.server_name.iter().cloned().collect();
    let connector = TlsConnector::accepting(&terms, &names).and_then(|terms| terms.unshared());
    connector.map_err(|error| wrong(&error))
}

fn read(files: &PullFiles, place: &str, name: &str) -> Result<Vec<u8>, String> {
    let path = files.beside.join(name);
    fs::read(&path).map_err(|error| format!("{place}: {} cannot be read: {error}", path.display()))
}
