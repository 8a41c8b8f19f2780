//! The certificates of a controller, from files that others replace: cert-manager, or a Secret that is mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use weir_control::document::MutualTlsFiles;
use weir_net::tls::{self, ClientDemand, ClientTerms, ClientTrust, Server, ServerTerms, Versions};

use crate::node::server::ServerTls;
use crate::say::{say, say_error};

/// The most intermediate certificates between the certificate of a node and the authority.
const NODE_DEPTH: usize = 2;

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

    pub(super) fn tls(&self) -> ServerTls {
        self.tls.clone()
    }

    /// Uses the files as they are now, for the connections from then on. Files that cannot be used change nothing: their writer may not
    /// have written all of them yet.
    pub(super) fn reload(&mut self) {
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
    let clients =
        ClientTerms { trust: ClientTrust::Authorities(&authorities, NODE_DEPTH), demand: ClientDemand::Valid };
    let terms = ServerTerms {
        keys: vec![certified],
        versions: Versions::ALL,
        clients: Some(clients),
        protocols: &["h2", "http/1.1"],
    };
    let server = Server::new(terms).map_err(|error| wrong(&files.authorities, &error))?;
    // Without tickets: a session that is resumed is not asked for its certificate again, which may have expired.
    Ok(TlsAcceptor::from(Arc::clone(server.full_config())))
}
