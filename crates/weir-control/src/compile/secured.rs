//! TLS to upstreams: the authorities to trust, and the client certificate.

use std::collections::HashMap;

use weir_net::tls::{InvalidTerms, SpiffeId, SpiffePeers, TlsConnector, Trust, UpstreamTerms, server_name};

use super::Compiler;
use super::spiffe::FoundSvid;
use crate::document::{self, Pem, PemSource, ResourceOrigin, Ssl, SvidChoice, SvidName, SvidRight, UpstreamIdentity};
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
    trust: TrustSource,
    identity: Option<IdentitySource>,
    protocols: &'static [&'static str],
    alt_names: Box<[Box<str>]>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum TrustSource {
    /// Certificates are not verified.
    Unverified,
    System,
    Pem(PemSource),
    Spiffe(Box<[SpiffeId]>),
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum IdentitySource {
    Pem(PemSource, PemSource),
    Svid(SvidName),
}

/// The client certificate of an upstream, as written.
#[derive(Clone, Copy)]
enum WrittenIdentity<'w> {
    Pem(&'w Pem, &'w Pem),
    Svid(&'w SvidChoice),
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
        let said = tls.verify.is_some() || tls.authorities.is_some() || !tls.peers.is_empty();
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
        let peers = &written.tls.peers;
        let authorities =
            written.tls.authorities.as_deref().or(settings.trusted.as_ref()).filter(|_| verify && peers.is_empty());
        let identity = match written.tls.identity.as_deref() {
            None => None,
            Some(UpstreamIdentity::Own(cert, key)) => Some(WrittenIdentity::Pem(cert, key)),
            Some(UpstreamIdentity::Svid(choice)) => Some(WrittenIdentity::Svid(choice)),
            Some(UpstreamIdentity::Named(reference)) => {
                let named = Some(reference.clone());
                let origin = below(written, "tls");
                let ssl = self.compiler.referred(&origin, "client_cert_id", &named, &self.identities, "ssls")?;
                ssl.pairs.first().map(|(cert, key)| WrittenIdentity::Pem(cert, key))
            }
        };
        let terms = Terms {
            trust: match authorities {
                // Which workloads endpoints may be is verified in any case: the node may show them its own identity.
                _ if !peers.is_empty() => TrustSource::Spiffe(peers.clone()),
                _ if !verify => TrustSource::Unverified,
                Some(pem) => TrustSource::Pem(pem.source.clone()),
                None => TrustSource::System,
            },
            identity: identity.map(|identity| match identity {
                WrittenIdentity::Pem(cert, key) => IdentitySource::Pem(cert.source.clone(), key.source.clone()),
                WrittenIdentity::Svid(choice) => IdentitySource::Svid(choice.name.clone()),
            }),
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
        let client = self.build(written, &terms, authorities, identity);
        self.clients.insert(terms, client.clone());
        client.map(named)
    }

    fn build(
        &self,
        written: &document::UpstreamSpec,
        terms: &Terms,
        authorities: Option<&Pem>,
        identity: Option<WrittenIdentity<'_>>,
    ) -> Option<TlsConnector> {
        let compiler = self.compiler;
        // Both are read before returning, so that the faults of both are reported.
        let identity = identity.map(|identity| match identity {
            WrittenIdentity::Pem(cert, key) => compiler.certified(&[], cert, key).map(FoundSvid::Present),
            WrittenIdentity::Svid(choice) => compiler.svid(choice),
        });
        let own = authorities.map(|pem| compiler.chain(pem));
        let identity = match identity {
            None => None,
            Some(found) => Some(found?),
        };
        let own = match own {
            None => None,
            Some(chain) => Some(chain?),
        };
        let peers = match &terms.trust {
            TrustSource::Spiffe(ids) => compiler.peers(ids, &below(written, "tls.spiffe_ids"))?,
            _ => SpiffePeers::default(),
        };
        let system = &compiler.document.beside.system_roots;
        // Without the identity that is to be shown there is no connection, as without peers.
        let (closed, is_absent) = (SpiffePeers::default(), matches!(identity, Some(FoundSvid::Absent)));
        let trust = match (&terms.trust, &own) {
            _ if is_absent => Trust::Spiffe(&closed),
            (TrustSource::Spiffe(_), _) => Trust::Spiffe(&peers),
            (TrustSource::Unverified, _) => Trust::Unverified,
            (_, Some(own)) => Trust::Authorities(own),
            (_, None) => Trust::System(system),
        };
        let identity = match identity {
            Some(FoundSvid::Present(certified)) => Some(certified),
            Some(FoundSvid::Absent) | None => None,
        };
        if matches!(terms.trust, TrustSource::System) && system.is_empty() {
            let problem = "this system has no certificate authorities, so no endpoint's certificate can be verified";
            let advice = "put the CA certificates into `tls.ca`, or into `ssl_trusted_certificate`";
            let (path, place) = (&written.origin.path, written.origin.place);
            compiler.warnings.report_text(path, place, problem, Some(advice.into()));
        }
        let complain = |wrong: InvalidTerms| {
            let origin = authorities.map_or(&written.origin, |pem| &pem.origin);
            compiler.report(&origin.path, origin.place, format!("cannot be used: {wrong}"), None);
        };
        let terms = UpstreamTerms { trust, identity, protocols: terms.protocols };
        TlsConnector::accepting(&terms, &written.tls.alt_names).map_err(complain).ok()
    }

    /// Reports an upstream of a store that would show the identity of the node to endpoints for which the node does not allow it.
    pub(super) fn refuse_svid(&self, written: &document::UpstreamSpec) {
        let Some(UpstreamIdentity::Svid(choice)) = written.tls.identity.as_deref() else { return };
        let Some(SvidRight::To(allowed)) = self.compiler.document.access().map(|access| access.svid()) else { return };
        let is_allowed = |peer: &SpiffeId| allowed.iter().any(|one| one.covers(peer));
        let refused = written.tls.peers.iter().find(|peer| !is_allowed(peer));
        let (problem, advice) = match refused {
            Some(peer) => (
                format!("an X.509-SVID of the node may not be shown to `{peer}` by a resource of the store"),
                "add the SPIFFE ID to `resource_spiffe_ids` in the configuration file of the node",
            ),
            None if written.tls.peers.is_empty() => (
                "a resource of the store may show an X.509-SVID of the node only to workloads that it names".to_owned(),
                "add `spiffe_ids`, with SPIFFE IDs that the node has in `resource_spiffe_ids`",
            ),
            None => return,
        };
        self.compiler.report(&choice.origin.path, choice.origin.place, problem, Some(advice.to_owned()));
    }
}

fn below(written: &document::UpstreamSpec, key: &str) -> ResourceOrigin {
    ResourceOrigin { path: join(&written.origin.path, key).into(), place: written.origin.place }
}
