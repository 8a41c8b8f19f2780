//! The certificates of a controller: from files that others replace (cert-manager, or a Secret that is mounted), or from its own authority.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use weir_control::document::MutualTlsFiles;
use weir_control::stores::{CertificateIssuer, ServingCertificate};
use weir_net::tls::{
    self, CertificateDer, CertifiedKey, ClientDemand, ClientTerms, ClientTrust, InvalidTerms, Server, ServerTerms,
    Versions,
};

use crate::node::server::ServerTls;
use crate::say::{say, say_error};

/// The most intermediate certificates between the certificate of a node and the authority.
const NODE_DEPTH: usize = 2;

/// Where the certificates come from.
pub(super) enum UsedCertificates {
    Files(CertificateFiles),
    Issued(IssuedCertificates),
}

impl UsedCertificates {
    pub(super) fn tls(&self) -> ServerTls {
        match self {
            UsedCertificates::Files(files) => files.tls.clone(),
            UsedCertificates::Issued(issued) => issued.tls.clone(),
        }
    }

    /// Uses the certificates as they are now, for the connections from then on.
    pub(super) fn reload(&mut self) {
        match self {
            UsedCertificates::Files(files) => files.reload(),
            UsedCertificates::Issued(issued) => issued.reload(),
        }
    }
}

/// Those that the controller's authority issues.
pub(super) struct IssuedCertificates {
    issuer: CertificateIssuer,
    tls: ServerTls,
    seen: Arc<ServingCertificate>,
}

impl IssuedCertificates {
    /// # Errors
    /// If they cannot be used, which is a fault of the program.
    pub(super) fn new(issuer: CertificateIssuer) -> Result<IssuedCertificates, String> {
        let seen = issuer.serving();
        let tls = ServerTls::new(of_issuer(&seen)?);
        Ok(IssuedCertificates { issuer, tls, seen })
    }

    fn reload(&mut self) {
        let now = self.issuer.serving();
        if Arc::ptr_eq(&now, &self.seen) {
            return;
        }
        match of_issuer(&now) {
            Ok(acceptor) => {
                self.tls.replace(acceptor);
                self.issuer.uses(&now);
            }
            Err(problem) => say_error!("{problem}; the certificates before stay in use"),
        }
        self.seen = now;
    }
}

fn of_issuer(serving: &ServingCertificate) -> Result<TlsAcceptor, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("controller.issue: a certificate cannot be used: {error}");
    let certified = tls::certified(serving.chain.clone(), serving.key.as_bytes()).map_err(|error| wrong(&error))?;
    // A node that asks for its certificate has none.
    let demand = ClientDemand::ValidOrNone;
    acceptor_of(certified, &serving.authorities, demand).map_err(|error| wrong(&error))
}

/// The files, and the TLS that they make.
pub(super) struct CertificateFiles {
    files: MutualTlsFiles,
    beside: PathBuf,
    tls: ServerTls,
    /// What was read last, whether it could be used or not.
    seen: FileContents,
}

/// The certificate, its key, and the authorities of nodes.
type FileContents = [Vec<u8>; 3];

impl CertificateFiles {
    /// # Errors
    /// If a file cannot be read, or cannot be used.
    pub(super) fn read(files: &MutualTlsFiles, beside: &Path) -> Result<CertificateFiles, String> {
        let seen = read(files, beside)?;
        let tls = ServerTls::new(acceptor(files, &seen)?);
        Ok(CertificateFiles { files: files.clone(), beside: beside.to_owned(), tls, seen })
    }

    /// Files that cannot be used change nothing: their writer may not have written all of them yet.
    fn reload(&mut self) {
        let read = read(&self.files, &self.beside);
        if read.as_ref() == Ok(&self.seen) {
            return;
        }
        let made = read.and_then(|contents| {
            let made = acceptor(&self.files, &contents);
            self.seen = contents;
            made
        });
        match made {
            Ok(acceptor) => {
                self.tls.replace(acceptor);
                say!("the certificates have been read again");
            }
            Err(problem) => say_error!("{problem}; the certificates before stay in use"),
        }
    }
}

fn read(files: &MutualTlsFiles, beside: &Path) -> Result<FileContents, String> {
    let read = |name: &str| {
        let path = beside.join(name);
        fs::read(&path).map_err(|error| format!("controller.tls: {} cannot be read: {error}", path.display()))
    };
    Ok([read(&files.cert)?, read(&files.key)?, read(&files.authorities)?])
}

fn acceptor(files: &MutualTlsFiles, [cert, key, ca]: &FileContents) -> Result<TlsAcceptor, String> {
    let wrong = |name: &str, error: &dyn std::fmt::Display| format!("controller.tls: `{name}` cannot be used: {error}");
    let chain = tls::certificates(cert).map_err(|error| wrong(&files.cert, &error))?;
    let certified = tls::certified(chain, key).map_err(|error| wrong(&files.key, &error))?;
    let authorities = tls::certificates(ca).map_err(|error| wrong(&files.authorities, &error))?;
    acceptor_of(certified, &authorities, ClientDemand::Valid).map_err(|error| wrong(&files.authorities, &error))
}

fn acceptor_of(
    certified: Arc<CertifiedKey>,
    authorities: &[CertificateDer<'static>],
    demand: ClientDemand,
) -> Result<TlsAcceptor, InvalidTerms> {
    let clients = ClientTerms { trust: ClientTrust::Authorities(authorities, NODE_DEPTH), demand };
    let terms = ServerTerms {
        keys: vec![certified],
        versions: Versions::ALL,
        clients: Some(clients),
        protocols: &["h2", "http/1.1"],
    };
    // Without tickets: a session that is resumed is not asked for its certificate again, which may have expired.
    Ok(TlsAcceptor::from(Arc::clone(Server::new(terms)?.full_config())))
}
