//! TLS to upstreams: the authorities to trust, and the client certificate.

use std::collections::HashMap;
use std::sync::Arc;

use weir_net::tls::{CertifiedKey, InvalidTerms, TlsConnector, Trust, UpstreamTerms, server_name};

use super::Compiler;
use crate::document::{self, Pem, PemSource, Ssl, UpstreamIdentity};
use crate::text::read::join;

/// The protocol offered by ALPN: exactly the one that is configured.
const HTTP1: &[&str] = &["http/1.1"];
const HTTP2: &[&str] = &["h2"];
/// Streams carry whatever protocol the client and the endpoint agree on, which the gateway does not know.
const NONE: &[&str] = &[];

/// The TLS connectors built so far. Upstreams with equal terms share one, since it contains all authorities that the system
/// trusts.
pub(super) struct Secured<'a> {
    compiler: &'a Compiler<'a>,
    /// The entries of `ssls` with `type: client`.
    identities: HashMap<&'a str, &'a Ssl>,
    clients: HashMap<Terms, Option<TlsConnector>>,
}

/// The sources of an upstream's TLS settings.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Terms {
    /// `None`: certificates are not verified.
    trust: Option<AuthoritySource>,
    identity: Option<(PemSource, PemSource)>,
    protocols: &'static [&'static str],
    alt_names: Box<[Box<str>]>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum AuthoritySource {
    System,
    Pem(PemSource),
}

fn protocols(http2: bool) -> &'static [&'static str] {
    if http2 { HTTP2 } else { HTTP1 }
}

impl<'a> Secured<'a> {
    pub(super) fn new(compiler: &'a Compiler<'a>) -> Self {
        let ssls = compiler.document.ssls.iter().filter(|ssl| ssl.for_upstreams);
        Secured { compiler, identities: ssls.map(|ssl| (&*ssl.id, ssl)).collect(), clients: HashMap::new() }
    }

    /// `None` for upstreams without TLS, and if a fault has been reported.
    pub(super) fn client(&mut self, written: &document::UpstreamSpec) -> Option<TlsConnector> {
        if !written.scheme.is_secured() {
            return None;
        }
        self.point_out(written);
        let protocols = if written.scheme.of_streams().is_some() { NONE } else { protocols(written.http2) };
        self.on_terms(written, self.verifies(written), protocols)
    }

    /// Warns that certificates are verified, unless the file has a setting about it: users of APISIX, where verification is off
    /// by default, may not expect it.
    fn point_out(&self, written: &document::UpstreamSpec) {
        let settings = &self.compiler.document.settings;
        let tls = &written.tls;
        let said = tls.verify.is_some() || tls.authorities.is_some();
        if said || settings.upstream_tls_verify.is_some() || settings.trusted.is_some() {
            return;
        }
        let problem = "the certificates of its endpoints are verified, which Apache APISIX does not do by default";
        let advice = "write `tls: { verify: true }` if the certificates can be verified, and `false` if not";
        let (path, place) = (&written.origin.path, written.origin.place);
        self.compiler.warnings.report_text(path, place, problem, Some(advice.into()));
    }

    /// The connector for active checks.
    pub(super) fn checker(&mut self, written: &document::UpstreamSpec) -> Option<TlsConnector> {
        let active = written.active.as_ref()?;
        let verify = active.verifies(self.verifies(written))?;
        self.on_terms(written, verify, protocols(active.is_http2(written.scheme, written.http2)))
    }

    fn verifies(&self, written: &document::UpstreamSpec) -> bool {
        written.tls.verify.unwrap_or(self.compiler.document.settings.verifies_upstreams())
    }

    fn on_terms(
        &mut self,
        written: &document::UpstreamSpec,
        verify: bool,
        protocols: &'static [&'static str],
    ) -> Option<TlsConnector> {
        let settings = &self.compiler.document.settings;
        let authorities = written.tls.authorities.as_deref().or(settings.trusted.as_ref()).filter(|_| verify);
        let pair = match written.tls.identity.as_deref() {
            None => None,
            Some(UpstreamIdentity::Own(cert, key)) => Some((cert, key)),
            Some(UpstreamIdentity::Named(reference)) => {
                let named = Some(reference.clone());
                let origin = document::ResourceOrigin {
                    path: join(&written.origin.path, "tls").into(),
                    place: written.origin.place,
                };
                let ssl = self.compiler.referred(&origin, "client_cert_id", &named, &self.identities, "ssls")?;
                ssl.pairs.first().map(|(cert, key)| (cert, key))
            }
        };
        let terms = Terms {
            trust: verify
                .then(|| authorities.map_or(AuthoritySource::System, |pem| AuthoritySource::Pem(pem.source.clone()))),
            identity: pair.map(|(cert, key)| (cert.source.clone(), key.source.clone())),
            protocols,
            alt_names: written.tls.alt_names.clone(),
        };
        let name = written.tls.server_name.as_deref().and_then(server_name);
        let named = |client: TlsConnector| match name {
            Some(name) => client.for_server(name),
            None => client,
        };
        if let Some(client) = self.clients.get(&terms) {
            return client.clone().map(named);
        }
        let client = self.build(written, verify, protocols, authorities, pair);
        self.clients.insert(terms, client.clone());
        client.map(named)
    }

    fn build(
        &self,
        written: &document::UpstreamSpec,
        verify: bool,
        protocols: &'static [&'static str],
        authorities: Option<&Pem>,
        pair: Option<(&Pem, &Pem)>,
    ) -> Option<TlsConnector> {
        let compiler = self.compiler;
        // Both are read before returning, so that the faults of both are reported.
        let identity = pair.map(|(cert, key)| compiler.certified(&[], cert, key));
        let own = authorities.map(|pem| compiler.chain(pem));
        let identity: Option<Arc<CertifiedKey>> = match identity {
            None => None,
            Some(certified) => Some(certified?),
        };
        let own = match own {
            None => None,
            Some(chain) => Some(chain?),
        };
        let system = &compiler.document.beside.system_roots;
        let trust = match &own {
            _ if !verify => Trust::Unverified,
            Some(own) => Trust::Authorities(own),
            None => Trust::System(system),
        };
        if verify && own.is_none() && system.is_empty() {
            let problem = "this system has no certificate authorities, so no endpoint's certificate can be verified";
            let advice = "put the CA certificates into `tls.ca`, or into `ssl_trusted_certificate`";
            let (path, place) = (&written.origin.path, written.origin.place);
            compiler.warnings.report_text(path, place, problem, Some(advice.into()));
        }
        let complain = |wrong: InvalidTerms| {
            let origin = authorities.map_or(&written.origin, |pem| &pem.origin);
            compiler.report(&origin.path, origin.place, format!("cannot be used: {wrong}"), None);
        };
        let terms = UpstreamTerms { trust, identity, protocols };
        TlsConnector::accepting(&terms, &written.tls.alt_names).map_err(complain).ok()
    }
}
